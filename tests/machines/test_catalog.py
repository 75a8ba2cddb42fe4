"""Every price could be paid, and every machine has the name that Vertex AI uses."""

from dataclasses import replace
from datetime import date

import pandas as pd
import pytest

from benchmarks.frame import DATA
from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import PriceSource
from daybreak.machines.catalog import choose, local, rented
from daybreak.machines.pricelist import prices
from tests.planning.jobs import profile

MACHINES = rented()


def test_every_row_is_dated_and_names_its_source():
    assert all(machine.source and machine.dated >= date(2026, 1, 1) for machine in MACHINES)


def test_prices_are_of_this_world_and_spot_is_the_cheaper():
    for machine in MACHINES:
        prices = [p for p in (machine.usd_per_hour, machine.spot_usd_per_hour) if p is not None]
        assert all(0.005 < price < 200 for price in prices), machine.name
        if len(prices) == 2:
            assert machine.spot_usd_per_hour < machine.usd_per_hour, machine.name


def test_every_price_is_dated_names_its_source_and_is_of_a_machine_that_is_known():
    names = {machine.name for machine in MACHINES}
    for price in prices():
        assert price.name in names
        assert price.source and price.dated >= date(2025, 8, 1), price.key
        assert (price.usd_per_hour is None) == (price.source == "no price known"), price.key
    assert len({price.key for price in prices()}) == len(prices())


def test_flex_start_is_never_dearer_than_on_demand_and_only_of_devices_that_have_it():
    flex = {"L4", "A100 40GB", "A100 80GB", "H100", "H200", "B200"}
    for machine in MACHINES:
        assert machine.flex == (machine.device in flex), machine.name
        if machine.flex_usd_per_hour is not None and machine.usd_per_hour is not None:
            assert machine.flex_usd_per_hour <= machine.usd_per_hour, machine.name


def test_small_h100_machines_are_not_rented_on_demand():
    for machine in MACHINES:
        if machine.name in ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"):
            assert machine.price("on-demand") is None
            assert machine.price("spot")


def test_there_are_several_regions_and_each_has_cpu_machines_to_fall_back_on():
    regions = {machine.region for machine in MACHINES}
    only_tpus = {"us-east1", "us-south1", "asia-northeast1"}
    assert len(regions) == 7 + len(only_tpus)
    for region in regions - only_tpus:
        assert any(m.region == region and m.device == "cpu" and m.usd_per_hour for m in MACHINES)


def test_shipped_prices_are_those_of_the_data_they_name():
    path = DATA / "prices" / "cyclenerd_gcp_2026-07-30.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is missing; set DAYBREAK_DATA to the folder that holds prices/")
    table = pd.read_csv(path).set_index(["machine_type", "region"])
    columns = {"on-demand": "usd_hour", "spot": "usd_hour_spot"}
    of_the_data = [p for p in prices() if p.source.startswith("Cyclenerd/")]
    assert len(of_the_data) > 300
    for price in of_the_data:
        expected = table.loc[(price.name, price.region), columns[price.strategy]]
        assert price.usd_per_hour == pytest.approx(expected, abs=6e-5), price.key


def test_where_a_price_comes_from_is_told_for_each_way_of_renting():
    machine = next(m for m in MACHINES if m.name == "a2-highgpu-1g" and m.region == "us-central1")
    assert machine.price_source("spot").dated == date(2026, 7, 30)
    assert machine.price_source("flex-start") == PriceSource(
        source="public notes on the Cloud Billing Catalog: SKUs of DWS Defined Duration A2; "
        "$0.73 of it for its fee: inferred: 8 x A100 are said to cost 35.26 on Vertex AI in us-central1, "
        "20 % more than on Compute Engine, 2026-11-22",
        dated=date(2026, 8, 2),
    )


def test_a_machine_is_in_a_region_once():
    assert len({(machine.name, machine.region) for machine in MACHINES}) == len(MACHINES)


def test_rates_and_sizes_are_positive():
    for machine in MACHINES:
        assert machine.speeds.flops_per_s > 1e10
        assert machine.speeds.bandwidth_bytes_per_s > 1e9
        assert machine.device_memory_bytes > 1e9
        assert machine.vcpus >= 4
        assert machine.speeds.network_bytes_per_s > 0
        assert (machine.speeds.link_bytes_per_s > 0) == (machine.num_devices > 1)


def test_more_of_the_same_device_costs_more():
    by_device: dict[tuple[str, str, str], list] = {}
    for machine in MACHINES:
        if machine.num_devices and machine.usd_per_hour:
            series = machine.name.split("-")[0]
            by_device.setdefault((series, machine.device, machine.region), []).append(machine)
    for machines in by_device.values():
        cheapest: dict[int, float] = {}
        for machine in machines:
            number = machine.num_devices
            cheapest[number] = min(cheapest.get(number, 1e9), machine.usd_per_hour)
        prices = [cheapest[number] for number in sorted(cheapest)]
        assert prices == sorted(prices)


def test_devices_of_the_catalog_are_the_known_ones():
    assert {machine.device for machine in MACHINES} == {
        "cpu",
        "T4",
        "L4",
        "RTX PRO 6000",
        "A100 40GB",
        "A100 80GB",
        "H100",
        "H200",
        "B200",
        "TPU v5e",
        "TPU v6e",
        "TPU7x",
    }


def test_a_pattern_names_machines_of_its_region_only():
    chosen = choose(["g2-*"], regions=["us-central1"], machines=MACHINES)
    assert {machine.region for machine in chosen} == {"us-central1"}
    assert {machine.device for machine in chosen} == {"L4"}


def test_an_unknown_machine_is_told_with_the_nearest():
    with pytest.raises(ParamsError, match=r"plan.machines names g2-standrd-4, .*nearest are g2-standard-4"):
        choose(["g2-standrd-4"], regions=["us-central1"], machines=MACHINES)


def test_a_machine_of_another_region_is_told_with_where_it_is():
    with pytest.raises(ParamsError, match=r"not offered in us-east4; add .* to plan.regions"):
        choose(["a2-highgpu-1g"], regions=["us-east4"], machines=MACHINES)


def test_an_unknown_region_is_told_with_the_known_ones():
    with pytest.raises(
        ParamsError,
        match=r"plan.regions names mars, of which nothing is known; choose among asia-northeast1, asia-s",
    ):
        choose(["zz-*"], regions=["us-central1", "mars"], machines=MACHINES)


def test_every_price_has_a_fee_and_it_is_the_same_however_a_machine_is_rented():
    for machine in MACHINES:
        priced = [price for price in machine.prices if price.usd_per_hour is not None]
        assert all(price.fee and price.fee.usd_per_hour > 0 for price in priced), machine.name
        not_on_demand = {price.fee.usd_per_hour for price in priced if price.strategy != "on-demand"}
        assert len(not_on_demand) <= 1


def test_the_share_of_a_small_machine_is_that_of_its_devices_and_of_one_not_sold_here_its_dearest():
    usd = {(m.name, m.region): m.prices[0].fee.usd_per_hour for m in MACHINES if m.prices[0].fee}
    assert usd["a3-highgpu-2g", "us-east4"] == pytest.approx(0.15 * 88.5558 / 4)
    spot = next(p for m in MACHINES for p in m.prices if p.key == ("a3-ultragpu-8g", "us-east4", "spot"))
    assert spot.fee.usd_per_hour == pytest.approx(0.15 * 8 * 11.4934)
    assert spot.fee.inferred


@pytest.mark.parametrize(("rate", "busy"), [("flops_per_s", 3.9e9), ("bandwidth_bytes_per_s", 6.5e8)])
def test_a_rate_measured_beside_other_processes_is_not_believed(rate: str, busy: float) -> None:
    job = profile()
    measured = {**job.evidence["machine"], rate: busy}
    here = local(replace(job, evidence={"machine": measured}), today=date(2026, 11, 25))
    listed = [getattr(m.speeds, rate) / m.vcpus for m in MACHINES if m.device == "cpu"]
    assert 2 * min(listed) <= getattr(here.speeds, rate) <= 2 * max(listed)
    assert f"{rate} {busy:.3g} is not plausible" in here.speeds.source


def test_a_rate_that_is_plausible_stays_as_measured() -> None:
    here = local(profile(), today=date(2026, 11, 25))
    assert (here.speeds.flops_per_s, here.speeds.bandwidth_bytes_per_s) == (2e11, 2e10)
    assert here.speeds.source == "measured by the profile"

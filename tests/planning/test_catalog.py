"""Every price is one that could be paid, and every machine is what VERTEX calls it."""

from datetime import date

import pytest

from pipeline.errors import ParamsError
from pipeline.planning.catalog import choose, rented

MACHINES = rented()


def test_every_row_is_dated_and_names_its_source():
    assert all(machine.source and machine.dated >= date(2026, 1, 1) for machine in MACHINES)


def test_prices_are_of_this_world_and_spot_is_the_cheaper():
    for machine in MACHINES:
        prices = [p for p in (machine.usd_per_hour, machine.spot_usd_per_hour) if p is not None]
        assert all(0.005 < price < 200 for price in prices), machine.name
        if len(prices) == 2:
            assert machine.spot_usd_per_hour < machine.usd_per_hour, machine.name


def test_a_machine_is_in_a_region_once():
    assert len({(machine.name, machine.region) for machine in MACHINES}) == len(MACHINES)


def test_rates_and_sizes_are_positive():
    for machine in MACHINES:
        assert machine.flops_per_s > 1e10
        assert machine.bandwidth_bytes_per_s > 1e9
        assert machine.device_memory_bytes > 1e9
        assert machine.vcpus >= 4
        assert machine.network_bytes_per_s > 0
        assert (machine.link_bytes_per_s > 0) == (machine.num_devices > 1)


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
        "cpu", "T4", "L4", "RTX PRO 6000", "A100 40GB", "A100 80GB", "H100", "H200", "B200",
        "TPU v5e", "TPU v6e", "TPU7x",
    }  # fmt: skip


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
        ParamsError, match=r"plan.regions names mars, of which nothing is known; choose among asia-southeast1"
    ):
        choose(["zz-*"], regions=["us-central1", "mars"], machines=MACHINES)

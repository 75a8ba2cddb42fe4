"""Prices of whole machines come out of the provider's parts, and what cannot be true is refused."""

from dataclasses import replace
from datetime import date

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.frame import DATA
from daybreak.contract.machine import Price
from daybreak.machines import pricelist
from daybreak.machines.catalog import rented
from daybreak.machines.rates import CHANGE, absurd, rates, refreshed, usd_per_hour
from tests.machines.billing import sku

TODAY = date(2026, 11, 21)
A2 = [  # as read on 2026-08-02, dollars an hour
    sku("Nvidia Tesla A100 GPU running in Americas", 2.93391, group="GPU"),
    sku("Nvidia Tesla A100 80GB GPU running in Americas", 3.93, group="GPU"),
    sku("A2 Instance Core running in Americas", 0.37932 / 12),
    sku("A2 Instance Ram running in Americas", 0.3604 / 85, group="RAM", unit="GiBy.h"),
    sku(
        "Nvidia Tesla A100 GPU attached to Spot Preemptible VMs running in Americas",
        1.5399,
        group="GPU",
        usage="Preemptible",
    ),
    sku("Spot Preemptible A2 Instance Core running in Americas", 0.19908 / 12, usage="Preemptible"),
    sku(
        "Spot Preemptible A2 Instance Ram running in Americas",
        0.1887 / 85,
        usage="Preemptible",
        unit="GiBy.h",
    ),
    sku("Nvidia Tesla A100 GPU attached to DWS Defined Duration VMs running in Americas", 1.61365),
    sku("DWS Defined Duration A2 Core running in Americas", 0.20868 / 12),
    sku("DWS Defined Duration A2 Ram running in Americas", 0.19805 / 85, unit="GiBy.h"),
]
PASSED_OVER = [
    sku("Commitment v1: Nvidia Tesla A100 GPU running in Americas for 1 Year", 1.8, usage="Commit1Yr"),
    sku("Reserved Nvidia Tesla A100 GPU running in Americas", 0.0, group="GPU"),
    sku("A2 Instance Core running in Americas", 0.001, regions=("us-east1",)),
    sku("Network Vpn Internet Egress from Americas to Africa", 0.12, unit="GiBy"),
    {"description": "Nvidia Tesla A100 GPU running in Americas"},
]


def find(name: str, region: str = "us-central1"):
    return next(m for m in rented() if (m.name, m.region) == (name, region))


def listed(*keys: tuple[str, str, str]) -> list[Price]:
    return [price for price in pricelist.prices() if price.key in keys]


@pytest.mark.parametrize(
    ("strategy", "usd"), [("on-demand", 3.67363), ("spot", 1.92768), ("flex-start", 2.02038)]
)
def test_a_machine_costs_what_its_parts_cost_however_it_is_rented(strategy, usd):
    listed_rates = rates([*PASSED_OVER, *A2])
    assert usd_per_hour(find("a2-highgpu-1g"), strategy, listed_rates) == pytest.approx(usd, abs=1e-6)
    assert usd_per_hour(find("a2-highgpu-4g"), strategy, listed_rates) == pytest.approx(4 * usd, abs=1e-5)


def test_a_machine_has_no_price_where_a_part_of_it_has_none():
    listed_rates = rates([each for each in A2 if "Ram" not in each["description"]])
    assert usd_per_hour(find("a2-highgpu-1g"), "on-demand", listed_rates) is None
    assert usd_per_hour(find("a2-highgpu-1g", "europe-west4"), "on-demand", rates(A2)) is None


def test_disks_that_come_with_a_machine_are_told_by_the_month_and_counted_by_the_hour():
    disk = sku("SSD backed Local Storage in Americas", 0.08, unit="GiBy.mo", group="LocalSSD")
    listed_rates = rates([*A2, disk])
    machine = find("a2-ultragpu-1g")
    expected = 3.93 + 0.37932 + 170 * 0.3604 / 85 + 375 * 0.08 / 730
    assert usd_per_hour(machine, "on-demand", listed_rates) == pytest.approx(expected)
    assert expected == pytest.approx(
        machine.prices[0].usd_per_hour, rel=1e-3
    )  # the shipped one, of another source


def test_chips_and_slices_come_with_their_host_and_are_spot_by_their_description():
    listed_rates = rates(
        [
            sku("TpuV6e running in Iowa", 2.70, group="TPU"),
            sku("TpuV6e attached to Spot Preemptible VMs running in Iowa", 0.514, usage="Preemptible"),
            sku("A4 Nvidia B200 (1 gpu slice) running in Americas", 16.11, group="GPU"),
            sku("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", 4.9542, group="GPU"),
        ]
    )
    assert usd_per_hour(find("ct6e-standard-4t"), "on-demand", listed_rates) == pytest.approx(10.8)
    assert usd_per_hour(find("ct6e-standard-4t"), "spot", listed_rates) == pytest.approx(2.056)
    assert usd_per_hour(find("a4-highgpu-8g"), "on-demand", listed_rates) == pytest.approx(128.88)
    assert usd_per_hour(find("a4-highgpu-8g"), "spot", listed_rates) == pytest.approx(39.6336)


def test_every_machine_of_the_catalog_has_parts_that_can_be_billed():
    for machine in rented():
        assert usd_per_hour(machine, "on-demand", {}) is None


def test_what_can_be_true_is_accepted_with_its_date_and_source():
    old = listed(("a2-highgpu-1g", "us-central1", "spot"), ("a2-highgpu-1g", "us-central1", "on-demand"))
    changes = refreshed(old, rented(), rates(A2), today=TODAY)
    assert [(p.strategy, round(p.usd_per_hour, 4), p.dated, p.source) for p in changes.accepted] == [
        ("on-demand", 3.6736, TODAY, "Cloud Billing Catalog API"),
        ("spot", 1.9277, TODAY, "Cloud Billing Catalog API"),
    ]
    assert (changes.refused, changes.num_missing) == ((), 0)


@pytest.mark.parametrize(
    ("description", "usd", "sentence"),
    [
        (
            "TpuV6e running in Iowa",
            700.0,
            "ct6e-standard-1t in us-central1, on-demand: 700 dollars an hour is 259 times "
            "the 2.7 of 2026-11-22; 2.7 of 2026-11-22 is kept",
        ),
        (
            "TpuV6e running in Iowa",
            -2.7,
            "ct6e-standard-1t in us-central1, on-demand: -2.7 dollars an hour is not a valid price; "
            "2.7 of 2026-11-22 is kept",
        ),
        (
            "TpuV6e running in Iowa",
            0.0,
            "ct6e-standard-1t in us-central1, on-demand: 0 dollars an hour is not a valid price; "
            "2.7 of 2026-11-22 is kept",
        ),
        (
            "TpuV6e attached to Spot Preemptible VMs running in Iowa",
            2.9,
            "ct6e-standard-1t in us-central1, spot: 2.9 dollars an hour is above the 2.7 of on-demand; "
            "0.544 of 2026-11-22 is kept",
        ),
    ],
)
def test_what_cannot_be_true_is_refused_in_a_sentence_and_the_old_price_kept(description, usd, sentence):
    old = listed(
        ("ct6e-standard-1t", "us-central1", "on-demand"), ("ct6e-standard-1t", "us-central1", "spot")
    )
    changes = refreshed(old, rented(), rates([sku(description, usd)]), today=TODAY)
    assert changes.refused == (sentence,)
    assert (changes.accepted, changes.num_missing) == ((), 1)


def test_a_placeholder_is_refused_also_where_no_price_was_known():
    old = listed(("tpu7x-standard-4t", "us-central1", "on-demand"))
    changes = refreshed(old, rented(), rates([sku("TPU7x running in Americas", 700)]), today=TODAY)
    assert changes.refused == (
        "tpu7x-standard-4t in us-central1, on-demand: 2800 dollars an hour is 700 a device, above 40; "
        "none is kept",
    )
    accepted = refreshed(old, rented(), rates([sku("TPU7x running in Americas", 12)]), today=TODAY).accepted
    assert [price.usd_per_hour for price in accepted] == [48]


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(0.01, 100), st.floats(0.01, 100))
def test_what_is_let_through_is_near_the_old_price_and_never_above_on_demand(usd, before, on_demand):
    spot, at_once = listed(
        ("a2-highgpu-1g", "us-central1", "spot"), ("a2-highgpu-1g", "us-central1", "on-demand")
    )[::-1]
    spot, at_once = replace(spot, usd_per_hour=before), replace(at_once, usd_per_hour=on_demand)
    if not absurd(usd, old=spot, machine=find("a2-highgpu-1g"), on_demand=at_once):
        assert 0 < usd <= on_demand
        assert before / CHANGE <= usd <= before * CHANGE


def test_no_change_that_really_happened_would_have_been_refused():
    path = DATA / "prices" / "cyclenerd_gcp_monthly_history.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is missing; set DAYBREAK_DATA to the folder that holds prices/")
    history = pd.read_csv(path).sort_values(["machine_type", "region", "snapshot_date"])
    groups = history.groupby(["machine_type", "region"])
    changes = pd.concat(
        [(history[column] / groups[column].shift()).dropna() for column in ("usd_hour", "usd_hour_spot")]
    )
    assert len(changes) == 31_518
    assert max(changes.max(), 1 / changes.min()) == pytest.approx(4.573, abs=1e-3)
    assert (changes.between(1 / CHANGE, CHANGE)).all()

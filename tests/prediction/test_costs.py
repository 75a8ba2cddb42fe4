"""Time, memory and dollars follow the lines, and never fall with more work."""

from dataclasses import replace
from datetime import date
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contract.records import Rental
from pipeline.machines.catalog import local, rented
from pipeline.prediction.costs import Estimate, estimate
from tests.planning.jobs import machine, profile

PROFILE = profile()
LOCAL = local(PROFILE, today=date(2011, 9, 1))
CATALOG = [m for m in rented() if m.region == "us-central1" and m.usd_per_hour]


def found(on=LOCAL, *, job=PROFILE, num_machines=1, strategy="on-demand", **changes) -> Estimate | None:
    rental = Rental(machine=on.name, num_machines=num_machines, region=on.region, strategy=strategy)
    arguments = {
        "rental": rental,
        "batch_size": 256,
        "num_workers": on.num_workers,
        "num_samples": 100_000,
        "num_bytes": 10**9,
    } | changes
    return estimate(job, on, measured=LOCAL, **arguments)


def test_the_measured_machine_takes_what_the_lines_say():
    work_s = ceil(100_000 / 256) * (PROFILE.load_s(256) + PROFILE.step_s(256))
    assert found().expected_s == pytest.approx(work_s + 8, rel=0.01)  # 8 s to start, and saves


def test_a_machine_never_seen_has_the_wider_interval():
    here, there = found(), found(machine())
    assert there.interval[1] / there.expected_s > 1.5
    assert here.interval[1] / here.expected_s < 1.25
    assert here.interval[0] < here.expected_s < here.interval[1]


@given(
    st.sampled_from([LOCAL, *CATALOG]), st.integers(1, 10**7), st.integers(1, 10**7), st.floats(0.5, 0.9999)
)
def test_time_never_falls_with_more_samples(on, one, other, chance):
    less, more = sorted((one, other))
    assert found(on, num_samples=less).time_s(chance) <= found(on, num_samples=more).time_s(chance)


@given(st.sampled_from([LOCAL, *CATALOG]), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_the_chance_is_the_inverse_of_the_time(on, one, other):
    candidate = found(on, strategy="spot" if on.spot else "on-demand")
    assert candidate.chance(candidate.time_s(one)) == pytest.approx(one, abs=1e-4) or on.spot
    low, high = sorted((one, other))
    assert candidate.time_s(low) <= candidate.time_s(high)


def test_batches_are_halved_until_they_fit():
    job = profile(sample_bytes=1e8)
    candidate = found(job=job)
    assert candidate.micro_batch_size == 64
    assert job.memory_bytes(64) <= 0.9 * LOCAL.device_memory_bytes < job.memory_bytes(128)


def test_what_fits_nowhere_is_no_candidate():
    assert found(job=profile(sample_bytes=1e10)) is None


def test_spot_is_cheaper_and_less_certain():
    steady, spot = found(machine()), found(machine(), strategy="spot")
    assert spot.expected_usd < steady.expected_usd
    assert spot.expected_s > steady.expected_s
    assert spot.checkpoint_every_s < steady.checkpoint_every_s


def test_dollars_are_hours_times_machines_times_price_and_the_queue_is_for_nothing():
    rented_machine = replace(machine(), usd_per_hour=2.0)
    candidate = found(rented_machine, num_machines=3)
    queue_s = next(part.seconds for part in candidate.parts if part.name == "queue")
    billed_s = candidate.expected_s - queue_s
    assert candidate.expected_usd == pytest.approx(billed_s / 3600 * 3 * 2.0)


def test_gradients_cross_the_network_only_between_machines():
    slow = replace(machine(), network_bytes_per_s=1e6)
    assert found(slow).expected_s == pytest.approx(found(machine()).expected_s)
    assert found(slow, num_machines=2).expected_s > found(machine(), num_machines=2).expected_s


def test_a_device_with_cores_to_spare_loads_beside_the_step():
    fast = next(m for m in CATALOG if m.name == "a2-highgpu-1g")
    candidate = found(fast, job=profile(load_s=1e-3))
    assert candidate.num_loaders == fast.vcpus - 1
    assert found(job=profile(load_s=1e-3)).num_loaders == 0


def test_waiting_starting_and_fetching_are_parts_of_the_time():
    there = found(machine(), num_machines=2)
    named = {part.name: part.seconds for part in there.parts}
    assert set(named) == {"queue", "start-up", "data", "training", "all-reduce"}
    assert named["data"] == pytest.approx(10**9 / 200e6)
    assert sum(part.seconds for part in there.parts) == pytest.approx(there.expected_s)
    assert {part.name for part in found().parts} == {"start-up", "training"}


def test_a_queue_is_what_is_least_certain():
    there = {part.name: part.spread for part in found(machine()).parts}
    assert there["queue"] == max(there.values())

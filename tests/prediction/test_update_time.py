"""The time to load on a machine follows the memory, where arrays may stay, and the disk."""

from dataclasses import replace
from datetime import date
from math import exp, hypot

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.machine import Machine
from daybreak.contract.record_types import Profile
from daybreak.machines.catalog import PAGE_CACHE, local, rented
from daybreak.machines.startup import Z90
from daybreak.prediction.priors import Roofline, priors
from daybreak.prediction.update_time import TimedUpdate, by_profile, update
from tests.planning.jobs import machine, profile

DISK = 200e6  # bytes/s of the machine that was profiled
FITS = int(PAGE_CACHE * machine().memory_bytes)


def job(*, waited_share: float = 0.8, cold_share: float = 0.9) -> Profile:
    """A job that loads for as long as it steps, mostly waiting for storage."""
    plain = profile(step_s=1e-3, load_s=1e-3)
    storage = {"waited_share": waited_share, "cold_share": cold_share}
    here = plain.evidence["machine"] | {"storage_bytes_per_s": DISK}
    return replace(plain, evidence={"machine": here, "storage": storage})


def timed(
    measured: Profile, on: Machine | None = None, *, num_bytes: int = 2 * FITS, num_workers: int = 1
) -> TimedUpdate:
    here = local(measured, today=date(2026, 11, 23))
    taken = update(
        measured,
        on or here,
        measured=here,
        num_machines=1,
        batch_size=256,
        num_workers=num_workers,
        num_bytes=num_bytes,
    )
    assert taken is not None
    return taken


def load_of(taken: TimedUpdate) -> float:
    return taken.parts[0].seconds * max(1, taken.num_loaders)


PLAIN_S = profile(load_s=1e-3).load_s(256)


def test_arrays_that_stay_in_memory_are_waited_for_no_more():
    assert load_of(timed(job(), machine(), num_bytes=FITS)) == pytest.approx(0.2 * PLAIN_S)


@pytest.mark.parametrize(("times", "share"), [(1, 0.65), (3, 0.35), (0.5, 1.1)])
def test_the_half_that_does_not_stay_is_waited_for_by_the_rates_of_the_disks(times, share):
    there = machine(storage_bytes_per_s=times * DISK)
    assert load_of(timed(job(), there)) == pytest.approx(share * PLAIN_S)


def test_a_disk_of_unknown_rate_counts_as_the_one_at_hand():
    assert load_of(timed(job(), machine())) == load_of(timed(job(), machine(storage_bytes_per_s=DISK)))


@pytest.mark.parametrize("num_bytes", [0, FITS, 2 * FITS])
def test_on_the_machine_at_hand_loading_is_as_measured(num_bytes):
    assert load_of(timed(job(), num_bytes=num_bytes)) == pytest.approx(PLAIN_S)


def test_a_profile_of_before_is_taken_as_it_is():
    assert load_of(timed(profile(load_s=1e-3), machine(storage_bytes_per_s=1e6))) == pytest.approx(PLAIN_S)


def test_what_was_cached_at_hand_is_read_from_the_disk_where_memory_is_short():
    measured = job(waited_share=0.0, cold_share=2.0)
    assert load_of(timed(measured, machine(), num_bytes=FITS)) == pytest.approx(PLAIN_S)
    assert load_of(timed(measured, machine(), num_bytes=2 * FITS)) == pytest.approx(2 * PLAIN_S)


@given(st.floats(0, 1), st.floats(0, 5), st.floats(1e6, 1e10), st.integers(0, 4 * FITS))
def test_the_interval_reaches_to_what_was_measured(waited, cold, rate, num_bytes):
    measured = job(waited_share=min(waited, cold), cold_share=cold)
    part = timed(measured, machine(storage_bytes_per_s=rate), num_bytes=num_bytes).parts[0]
    if part.seconds >= PLAIN_S:
        assert part.seconds * exp(-Z90 * part.spread) <= PLAIN_S
    elif part.seconds > 0.5 * PLAIN_S:  # else loaders share it, or the step takes longer
        assert part.seconds * exp(Z90 * part.spread) >= PLAIN_S


@given(st.floats(1e6, 1e10), st.floats(1e6, 1e10), st.integers(0, 4 * FITS))
def test_a_faster_disk_is_never_slower(one, other, num_bytes):
    slow, fast = (machine(storage_bytes_per_s=rate) for rate in sorted((one, other)))
    assert timed(job(), fast, num_bytes=num_bytes).seconds <= timed(job(), slow, num_bytes=num_bytes).seconds


@pytest.mark.parametrize(
    ("num_workers", "sample_bytes", "times"), [(1, 1.0, 1), (2, 1.0, 4 / 3), (1, 1e8, 4 / 3)]
)
def test_parts_of_a_batch_that_are_encoded_twice_take_one_more_forward_pass(num_workers, sample_bytes, times):
    plain = profile(step_s=1e-3, sample_bytes=sample_bytes)
    one, other = (
        timed(each, num_workers=num_workers).parts for each in (plain, replace(plain, is_encoded=True))
    )
    assert [part.seconds for part in other[1:3]] == pytest.approx([times * part.seconds for part in one[1:3]])


def test_between_gpus_the_hosts_half_of_the_fixed_part_stays_and_samples_go_by_the_roofline():
    slow = machine(num_devices=1, flops_per_s=4e13, bandwidth_bytes_per_s=1e11)  # a roofline of 2e12
    fast = machine(num_devices=1, flops_per_s=16e13, bandwidth_bytes_per_s=4e11)  # 8e12
    plain, by = profile(step_s=1e-3), Roofline(even=2e12, cpu_fixed=0.3)
    there, here = (
        by_profile(plain, one, measured=other, roofline=by) for one, other in ((fast, slow), (slow, fast))
    )
    assert there.fixed_s == pytest.approx(plain.step_s.fixed * 1.25 / 2)
    assert there.per_sample_s == pytest.approx(plain.step_s.per_sample / 4)
    assert here.fixed_s * there.fixed_s == pytest.approx(plain.step_s.fixed**2)
    assert here.per_sample_s * there.per_sample_s == pytest.approx(plain.step_s.per_sample**2)


def test_from_a_cpu_to_a_gpu_samples_go_by_the_roofline_and_the_fixed_part_stays():
    measured = machine(num_devices=0, flops_per_s=1e13, bandwidth_bytes_per_s=1e11)
    faster = machine(num_devices=1, flops_per_s=4e13, bandwidth_bytes_per_s=4e11)
    plain = profile(step_s=1e-3)
    there = by_profile(plain, faster, measured=measured)
    assert there.per_sample_s == pytest.approx(plain.step_s.per_sample / 4)
    assert there.fixed_s == plain.step_s.fixed
    assert there.fixed_error > by_profile(plain, faster, measured=faster).fixed_error


def test_of_a_cpu_forecasts_are_no_surer_by_a_better_fit_of_gpus():
    measured = machine(num_devices=0, flops_per_s=1e13, bandwidth_bytes_per_s=1e11)
    gpus = [machine(num_devices=1, flops_per_s=rate, bandwidth_bytes_per_s=4e11) for rate in (4e13, 8e13)]
    plain = profile(step_s=1e-3)
    one, other = (by_profile(plain, gpus[0], measured=each) for each in (measured, gpus[1]))
    assert one.fixed_error == pytest.approx(hypot(other.fixed_error, priors().roofline.cpu_fixed))
    assert priors().roofline.cpu_fixed > 0


def test_a_gpu_at_hand_is_no_slower_than_the_same_one_rented():
    """It was measured at less than its data sheet, which is all that is known of the one to rent."""
    listed = next(each for each in rented() if each.device == "L4" and each.num_devices == 1)
    speeds = replace(listed.speeds, flops_per_s=0.6 * listed.speeds.flops_per_s)
    plain = profile(step_s=1e-3)
    there = by_profile(
        plain, listed, measured=replace(listed, name="local", device="NVIDIA L4", speeds=speeds)
    )
    assert there.fixed_s == pytest.approx(plain.step_s.fixed)
    assert there.per_sample_s == pytest.approx(plain.step_s.per_sample)


def test_a_tpu_is_no_gpu():
    tpu = next(each for each in rented() if each.is_tpu)
    gpu = machine(num_devices=1)
    plain = profile(step_s=1e-3)
    assert by_profile(plain, tpu, measured=gpu).fixed_s == plain.step_s.fixed

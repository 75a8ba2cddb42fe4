"""Time, memory and dollars follow the lines, and never fall with more work."""

from dataclasses import replace
from datetime import date
from math import ceil, exp
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.record_parts import Rental, Sync
from daybreak.extensions.spot.hazard import Hazard
from daybreak.extensions.spot.lifetimes import Exponential
from daybreak.machines.catalog import local, rented
from daybreak.machines.losses import MEAN_TIME_TO_FAILURE_S, MEAN_TIME_TO_PREEMPTION_S
from daybreak.machines.startup import FIVEFOLD, TWICE, StartupPart, slowest
from daybreak.prediction import local_updates
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.costs import Estimate, predict, predict_counts, time_to_save_s
from daybreak.prediction.update_time import PARTS
from tests.planning.jobs import line, machine, profile

PROFILE = profile()
LOCAL = local(PROFILE, today=date(2011, 9, 1))
CATALOG = [m for m in rented() if m.region == "us-central1" and m.usd_per_hour]


def estimate(on=LOCAL, *, job=PROFILE, num_machines=1, strategy="on-demand", **changes) -> Estimate | None:
    rental = Rental(machine=on.name, num_machines=num_machines, region=on.region, strategy=strategy)
    arguments = {
        "rental": rental,
        "batch_size": 256,
        "num_workers": on.num_workers,
        "num_samples": 100_000,
        "num_bytes": 10**9,
    } | changes
    return predict(job, on, measured=LOCAL, **arguments)


def test_the_measured_machine_takes_what_the_lines_say():
    work_s = ceil(100_000 / 256) * (PROFILE.load_s(256) + PROFILE.step_s(256))
    assert estimate().expected_s == pytest.approx(work_s + 8, rel=0.01)  # 8 s to start, and saves


def test_a_machine_never_seen_has_the_wider_interval():
    here, there = estimate(), estimate(machine())
    assert there.interval[1] / there.expected_s > 1.5
    assert here.interval[1] / here.expected_s < 1.25
    assert here.interval[0] < here.expected_s < here.interval[1]


@given(
    st.sampled_from([LOCAL, *CATALOG]), st.integers(1, 10**7), st.integers(1, 10**7), st.floats(0.5, 0.9999)
)
def test_time_never_falls_with_more_samples(on, one, other, chance):
    less, more = sorted((one, other))
    assert estimate(on, num_samples=less).time_s(chance) <= estimate(on, num_samples=more).time_s(chance)


@given(st.sampled_from([LOCAL, *CATALOG]), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_the_chance_is_the_inverse_of_the_time(on, one, other):
    candidate = estimate(on, strategy="spot" if on.spot else "on-demand")
    assert candidate.chance(candidate.time_s(one)) == pytest.approx(one, abs=1e-4) or on.spot
    low, high = sorted((one, other))
    assert candidate.time_s(low) <= candidate.time_s(high)


def test_many_numbers_of_machines_at_once_are_as_each_alone():
    on, counts = replace(machine(), num_devices=2, vcpus=8), range(1, 40)
    rentals = [Rental(machine=on.name, region=on.region, strategy=each) for each in ("on-demand", "spot")]
    for rental, found_at_once in zip(
        rentals,
        predict_counts(
            PROFILE,
            on,
            measured=LOCAL,
            rentals=rentals,
            counts=counts,
            batch_size=256,
            num_workers=on.num_workers,
            num_samples=100_000,
            num_bytes=10**9,
        ),
        strict=True,
    ):
        for each in found_at_once.of(range(len(counts))):
            alone = estimate(on, num_machines=each.rental.num_machines, strategy=rental.strategy)
            assert each.rental == alone.rental
            assert each.time_s(0.9) == pytest.approx(alone.time_s(0.9), rel=1e-12)
            assert each.expected_usd == pytest.approx(alone.expected_usd, rel=1e-12)


def test_batches_are_halved_until_they_fit():
    job = profile(sample_bytes=1e8)
    candidate = estimate(job=job)
    assert candidate.micro_batch_size == 64
    assert job.memory_bytes(64) <= 0.9 * LOCAL.device_memory_bytes < job.memory_bytes(128)


def test_what_fits_nowhere_is_no_candidate():
    assert estimate(job=profile(sample_bytes=1e10)) is None


def test_spot_is_cheaper_and_less_certain():
    steady, spot = estimate(machine()), estimate(machine(), strategy="spot")
    assert spot.expected_usd < steady.expected_usd
    assert spot.expected_s > steady.expected_s
    assert spot.checkpoint_every_s < steady.checkpoint_every_s


def test_dollars_are_hours_times_machines_times_price_and_the_queue_is_for_nothing():
    rented_machine = replace(machine(), usd_per_hour=2.0)
    candidate = estimate(rented_machine, num_machines=3)
    queue_s = next(part.seconds for part in candidate.parts if part.name == "queue")
    billed_s = candidate.expected_s - queue_s
    assert candidate.expected_usd == pytest.approx(billed_s / 3600 * 3 * 2.0)


def test_gradients_cross_the_network_only_between_machines():
    slow = machine(network_bytes_per_s=1e6)
    assert estimate(slow).expected_s == pytest.approx(estimate(machine()).expected_s)
    assert estimate(slow, num_machines=2).expected_s > estimate(machine(), num_machines=2).expected_s


def test_a_device_with_cores_to_spare_loads_beside_the_step():
    fast = next(m for m in CATALOG if m.name == "a2-highgpu-1g")
    candidate = estimate(fast, job=profile(load_s=1e-3))
    assert candidate.num_loaders == fast.vcpus - 1
    assert estimate(job=profile(load_s=1e-3)).num_loaders == 0


def test_waiting_starting_and_fetching_are_parts_of_the_time():
    there = estimate(machine(), num_machines=2)
    named = {part.name: part.seconds for part in there.parts}
    assert set(named) == {"queue", "start-up", "data", "training", "all-reduce"}
    assert named["data"] == pytest.approx(10**9 / 200e6 * slowest(2)[0])
    assert sum(part.seconds for part in there.parts) == pytest.approx(there.expected_s)
    assert {part.name for part in estimate().parts} == {"start-up", "training"}


def test_a_queue_is_what_is_least_certain():
    there = {part.name: part.spread for part in estimate(machine()).parts}
    assert there["queue"] == max(there.values())


def plain(*parts: StartupPart, deviation_s: float = 0.0, **rented_as) -> Estimate:
    """An estimate of these parts alone, on a machine of 3 dollars an hour, 1 on spot."""
    on = replace(machine(), usd_per_hour=3.0, spot=True, spot_usd_per_hour=1.0)
    return Estimate(
        machine=on,
        rental=Rental(machine=on.name, **rented_as),
        batch_size=256,
        micro_batch_size=256,
        num_loaders=0,
        checkpoint_every_s=60,
        parts=parts,
        deviation_s=deviation_s,
    )


WORK = StartupPart(seconds=3600, spread=0.2)


def test_parts_are_taken_as_late_together():
    both = plain(WORK, StartupPart(seconds=100, spread=1.0, name="start-up"))
    assert both.expected_s == both.time_s(0.5) == 3700
    late = NormalDist().inv_cdf(0.9)
    assert both.time_s(0.9) == pytest.approx(3600 * exp(0.2 * late) + 100 * exp(late))


def test_preemptions_make_it_later_than_expected_but_never_earlier():
    steady, spot = plain(WORK), plain(WORK, deviation_s=600)
    assert spot.time_s(0.9) == pytest.approx(steady.time_s(0.9) + 600 * NormalDist().inv_cdf(0.9))
    assert spot.time_s(0.1) == steady.time_s(0.1)


def test_the_interval_has_nine_of_ten():
    assert plain(WORK).interval == (plain(WORK).time_s(0.05), plain(WORK).time_s(0.95))


@pytest.mark.parametrize(("seconds", "chance"), [(3600, 0.5), (3600 * exp(0.2), 0.841345), (1, 0), (1e6, 1)])
def test_the_chance_is_that_of_the_normal_distribution_of_the_logarithm(seconds, chance):
    assert plain(WORK).chance(seconds) == pytest.approx(chance, abs=1e-6)


def test_a_rental_is_billed_at_its_own_price_for_all_machines_but_not_for_the_queue():
    parts = (WORK, StartupPart(seconds=1800, spread=1.0, name="queue"))
    assert plain(*parts).expected_usd == 3
    assert plain(*parts, num_machines=2, strategy="spot").expected_usd == 2
    assert plain(*parts).usd(parts[1:]) == 0


def test_the_machine_at_hand_costs_nothing():
    assert estimate().expected_usd == 0


def test_a_checkpoint_takes_the_weights_and_two_moments():
    assert time_to_save_s(PROFILE) == pytest.approx(0.05 + 3 * 4e7 / 200e6)


def test_checkpoints_are_as_far_apart_as_loses_least():
    """Young's sqrt(2 save mean), of 0.65 s to save and a spot machine lost every 16.9 h."""
    between_s = MEAN_TIME_TO_PREEMPTION_S / 2
    spot = estimate(machine(), strategy="spot", num_machines=2)
    assert spot.checkpoint_every_s == pytest.approx((2 * 0.65 * between_s) ** 0.5)


def test_saves_and_losses_make_the_training_longer_and_nothing_else():
    """By a save each interval, and a restart and half an interval each loss."""
    restart_s = 30 + 90 + 60 + 5  # queue, boot, image and data
    plain_s = []
    for strategy, between_s in (("spot", MEAN_TIME_TO_PREEMPTION_S), ("on-demand", MEAN_TIME_TO_FAILURE_S)):
        each = estimate(machine(), strategy=strategy)
        named = {part.name: part for part in each.parts}
        assert (named["queue"].seconds, named["start-up"].seconds, named["data"].seconds) == (30, 150, 5)
        assert (named["queue"].spread, named["data"].spread) == (FIVEFOLD, TWICE)
        share = 0.65 / each.checkpoint_every_s + (restart_s + each.checkpoint_every_s / 2) / between_s
        plain_s.append(named["training"].seconds / (1 + share))
    assert plain_s[0] == pytest.approx(plain_s[1])


def test_only_spot_is_uncertain_by_its_losses():
    assert estimate(machine()).deviation_s == 0
    assert estimate(machine(), strategy="spot").deviation_s > 0


def test_lives_that_nights_have_seen_take_the_place_of_the_prior_on_spot_alone():
    hourly = CostCalibration(hazard=Hazard(lifetime=Exponential(mean_s=3600.0), says="an hour each"))
    spot = estimate(machine(), strategy="spot", known=hourly)
    assert spot.checkpoint_every_s == pytest.approx((2 * 0.65 * 3600) ** 0.5)
    assert (
        estimate(machine(), strategy="spot", known=CostCalibration()).checkpoint_every_s
        > 2 * spot.checkpoint_every_s
    )
    steady = estimate(machine(), known=hourly)
    assert steady.checkpoint_every_s == estimate(machine()).checkpoint_every_s


def test_starts_that_nights_have_seen_count_for_their_machine_alone():
    slow = CostCalibration(starts={machine().name: [3.0, 3.0]})
    named = {part.name: part for part in estimate(machine(), known=slow).parts}
    assert (named["queue"].seconds, named["data"].seconds) == pytest.approx((90, 15))
    assert named["queue"].spread == named["data"].spread
    known = CostCalibration(starts={"other": [3.0]})
    other = {part.name: part for part in estimate(machine(), known=known).parts}
    assert other["queue"].seconds == 30


def test_an_interval_is_widened_as_nights_have_shown_that_it_must_be():
    plain_one = estimate(machine(), known=CostCalibration())
    wide = estimate(machine(), known=CostCalibration(widen=1.5))
    assert (plain_one.widened, wide.widened) == (1.0, 1.5)
    for before, after in zip(plain_one.parts, wide.parts, strict=True):
        assert (after.seconds, after.spread) == pytest.approx((before.seconds, 1.5 * before.spread))
    spot, wide_spot = (
        estimate(machine(), strategy="spot", known=CostCalibration(widen=w)) for w in (1.0, 1.5)
    )
    assert wide_spot.deviation_s == pytest.approx(1.5 * spot.deviation_s)


def test_an_interval_is_widened_no_further_than_is_needed():
    """Of a spread that is the mean of all parts', each by its seconds."""
    parts = estimate(machine(), known=CostCalibration()).parts
    spread = sum(p.seconds * p.spread for p in parts) / sum(p.seconds for p in parts)
    enough = estimate(machine(), known=CostCalibration(widen=9.0, needed=1.2 * spread))
    assert enough.widened == pytest.approx(1.2)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_last_update_takes_what_the_samples_that_are_left_take(num_samples, batch_size):
    """As the trainer takes them: whole batches over all epochs, then what is left, in passes that fit."""
    job = replace(PROFILE, load_s=line(0, 1e-5), memory_bytes=line(3e8, 1e7))
    on = machine(device_memory_bytes=10**10)
    whole, left = divmod(num_samples, batch_size)
    alone = [estimate(on, job=job, batch_size=n, num_samples=n) for n in (batch_size, left) if n]
    whole_s, *left_s = map(work_s, alone)
    assert work_s(estimate(on, job=job, batch_size=batch_size, num_samples=num_samples)) == pytest.approx(
        whole * whole_s + sum(left_s), rel=0.02
    )


def work_s(estimate) -> float:
    return sum(part.seconds for part in estimate.parts if part.name in PARTS)


def test_a_batch_larger_than_all_samples_is_billed_as_the_one_update_that_runs():
    assert work_s(estimate(num_samples=1000, batch_size=10**6)) == work_s(
        estimate(num_samples=1000, batch_size=1000)
    )
    assert work_s(estimate(num_samples=1100, batch_size=1000)) < 1.2 * work_s(
        estimate(num_samples=1000, batch_size=1000)
    )


SYNCS = st.builds(Sync, every=st.integers(2, 64), is_late=st.booleans())


def sums_s(estimate) -> float:
    return sum(part.seconds for part in estimate.parts if part.name == "all-reduce")


@given(SYNCS, st.integers(2, 16), st.floats(1, 1e6))
def test_averages_every_h_updates_send_three_times_the_bytes_once_in_h(sync, num_machines, noise_scale):
    options = {"on": machine(network_bytes_per_s=1e9), "num_machines": num_machines}
    plain, apart = estimate(**options), estimate(**options, sync=sync)  # on as many samples
    assert estimate(**options, sync=Sync(), noise_scale=noise_scale) == plain
    twice = sums_s(estimate(**options, sync=Sync(every=2)))
    if sync.is_late:
        assert sums_s(apart) <= twice * 2 / sync.every
    else:  # nothing of it is hidden
        assert sums_s(apart) == pytest.approx(twice * 2 / sync.every, rel=1e-2)
        assert sums_s(apart) >= sums_s(plain) * 3 / sync.every
    longer = estimate(**options, sync=sync, noise_scale=noise_scale)
    most = local_updates.most_samples(noise_scale, batch_size=256, num_workers=num_machines, sync=sync)
    assert longer.num_samples == round(100_000 * most**0.5) >= apart.num_samples == 100_000
    assert longer.time_s(0.95) - longer.expected_s >= apart.time_s(0.95) - apart.expected_s - 1e-6


def test_workers_average_now_and_then_where_summing_takes_a_considerable_share():
    def syncs(network_bytes_per_s, noise_scale=1e5):
        at = predict_counts(
            PROFILE,
            machine(network_bytes_per_s=network_bytes_per_s),
            measured=LOCAL,
            rentals=[Rental(machine="m")],
            counts=range(1, 9),
            batch_size=256,
            num_workers=1,
            num_samples=10**7,
            num_bytes=10**9,
            sync=None,
            noise_scale=noise_scale,
        )[0]
        return {(each.rental.num_machines, each.sync.every): each for each in at.of(range(len(at.counts)))}

    assert {every for _, every in syncs(1e12)} == {1}
    slow = syncs(1.5e8)
    assert (1, 1) in slow
    assert all(number > 1 for number, every in slow if every > 1)
    number, every = next(key for key in slow if key[1] > 1)
    assert slow[number, every].expected_s < 0.95 * slow[number, 1].expected_s
    assert max(every for _, every in slow) > max(every for _, every in syncs(1.5e8, noise_scale=256.0))

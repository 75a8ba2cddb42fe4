"""Earlier nights correct the estimates of tonight, and leave less to doubt the nearer they are."""

import math
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.contract.record_parts import Rental
from daybreak.machines.catalog import local, rented
from daybreak.machines.startup import Z90
from daybreak.prediction.calibration import CostCalibration, PastUpdateTime, Update, ratio
from daybreak.prediction.costs import predict
from daybreak.prediction.measurements import StepSetting
from daybreak.prediction.update_time import by_profile, update
from tests.planning.jobs import machine, profile

PROFILE = profile()
LOCAL = local(PROFILE, today=date(2011, 9, 1))
UPDATE = Update(fixed_s=0.01, per_sample_s=1e-3, within_s=0.02, across_s=0.1)
ONE = StepSetting(workers=(1,), micro_batch_size=256)


def night(
    ratio_: float, *, name="a-1", device="A", here=False, setting=ONE, least=0.0, by=UPDATE
) -> PastUpdateTime:
    return PastUpdateTime(
        machine=name,
        device=device,
        measured_here=here,
        setting=setting,
        update=by,
        ratio=ratio_,
        least_ratio=least,
    )


def correction(past, *, name="a-1", device="A", setting=ONE):
    return CostCalibration.of(past).correction(name, device, setting, UPDATE, here=False)


def test_a_machine_that_took_longer_is_expected_to_take_longer():
    slower = correction([night(1.5)] * 5)
    assert math.exp(slower.shift) == pytest.approx(1.5, rel=0.05)
    assert slower.num_nights == 5
    assert slower.spread < 0.1


def test_one_night_counts_less_than_many():
    one, many = (correction([night(1.5)] * count) for count in (1, 20))
    assert 0 < one.shift <= many.shift + 0.02
    assert one.spread >= many.spread


def test_a_count_that_was_not_tried_is_known_less_well_than_one_that_was():
    past = [night(1.5)] * 5
    same = correction(past)
    other = correction(past, setting=StepSetting(workers=(1,) * 8, micro_batch_size=32))
    assert other.spread > same.spread
    assert other.shift > 0  # what one device does alone carries over


def test_machines_with_the_same_device_share_more_than_others():
    past = [night(1.6)] * 3
    kin, other = correction(past, name="a-8"), correction(past, name="b-1", device="B")
    assert kin.shift > other.shift > 0
    assert kin.spread < other.spread


def test_what_the_profiled_machine_took_says_little_of_the_roofline():
    past = [night(1.3, name="local", device="cpu", here=True)] * 10
    there = correction(past, name="a-1")
    assert 0 < there.shift < math.log(1.3)
    assert there.spread > 0.35


def test_without_nights_nothing_is_corrected():
    known, plain = (
        predict(
            PROFILE,
            machine(),
            measured=LOCAL,
            rental=Rental(machine="m", num_machines=2),
            batch_size=256,
            num_workers=1,
            num_samples=10**6,
            num_bytes=10**9,
            known=known,
        )
        for known in (CostCalibration(), None)
    )
    assert known == plain


def test_a_night_faster_than_its_operations_is_left_out():
    known = CostCalibration.of([night(1 / 13, least=0.1), night(1.2, least=0.1)])
    assert [each.ratio for each in known.past] == [1.2]
    assert known.left_out == [
        "a-1: an update of 0.0769 times the predicted time is left out; "
        "its operations alone take 0.1 times at the device's peak rate"
    ]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_what_is_not_a_time_is_left_out(seconds):
    known = CostCalibration.of([night(seconds), night(1.2)])
    assert [each.ratio for each in known.past] == [1.2]
    assert "it is not a valid time" in known.left_out[0]


def test_a_night_that_several_newer_ones_contradict_is_left_out():
    known = CostCalibration.of([night(13.0), *[night(each) for each in (1.0, 1.05, 0.97)]])
    assert [each.ratio for each in known.past] == [1.0, 1.05, 0.97]
    assert known.left_out == [
        "a-1: an update of 13 times the predicted time is left out; "
        "3 newer nights in the same setting took 1 times"
    ]


def test_nights_that_all_contradict_the_forecast_are_believed():
    other = StepSetting(workers=(1,), micro_batch_size=64)
    known = CostCalibration.of([night(1.0)] * 5 + [night(2.0, setting=other)] * 5)
    assert not known.left_out
    slower = known.correction("a-1", "A", other, UPDATE, here=False)
    assert math.exp(slower.shift) == pytest.approx(2, rel=0.1)


def test_what_changed_for_good_is_believed_and_what_was_before_is_not():
    known = CostCalibration.of([night(1.0)] * 9 + [night(2.0 + 0.01 * k) for k in range(4)])
    assert math.exp(known.correction("a-1", "A", ONE, UPDATE, here=False).shift) == pytest.approx(2, rel=0.1)


def test_one_night_that_contradicts_the_forecast_widens_it():
    calm, odd = correction([night(1.0)]), correction([night(8.0)])
    assert odd.shift > math.log(3)
    assert odd.spread > 2 * calm.spread


@pytest.mark.parametrize("ratio", [30.0, 100.0, 1000.0])
def test_one_night_that_took_far_longer_is_covered_and_does_not_forbid_the_next(ratio):
    once, twice = correction([night(ratio)]), correction([night(ratio)] * 2)
    assert once.shift + Z90 * once.spread >= 0.95 * math.log(ratio)
    assert once.shift - Z90 * once.spread <= math.log(ratio) / 2  # it may be a fluke
    assert once.shift + 2.326 * once.spread <= 1.3 * math.log(ratio)  # with 99 %
    assert twice.shift > 0.85 * math.log(ratio)


def test_what_the_network_takes_is_not_blamed_on_the_device():
    many = StepSetting(workers=(1,) * 8, micro_batch_size=32)
    slow = Update(fixed_s=0.01, per_sample_s=1e-3, within_s=0.02, across_s=1.0)
    known = CostCalibration.of([night(2.0, setting=many, by=slow)] * 5)
    alone, together = (known.correction("a-1", "A", at, slow, here=False).shift for at in (ONE, many))
    assert together == pytest.approx(math.log(2), abs=0.1)
    assert abs(alone) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.02, 0.1])
def test_intervals_learn_how_much_nights_differ(deviation):
    setting = update(PROFILE, LOCAL, measured=LOCAL, num_machines=1, batch_size=256, num_workers=1).setting
    ratios = 1.2 * np.exp(deviation * np.random.default_rng(0).normal(size=60))
    ran = [
        night(float(each), name="local", device="cpu", here=True, setting=setting, by=by(LOCAL))
        for each in ratios
    ]
    plain_s, held = hours(LOCAL).expected_s, 0
    for number in range(20, 60):
        low, high = hours(LOCAL, ran[:number]).interval
        held += low <= plain_s * ratios[number] <= high
    assert 0.8 <= held / 40 <= 1
    assert hours(LOCAL, ran).interval[1] / hours(LOCAL, ran).expected_s < 1 + 2.6 * deviation + 0.03


def test_of_two_nights_against_two_none_is_left_out():
    assert CostCalibration.of([night(each) for each in (1.0, 1.0, 2.0, 2.0)]).left_out == []
    assert len(CostCalibration.of([night(each) for each in (1.0, 1.0, 2.0, 2.0, 2.0)]).left_out) == 2


@pytest.mark.slow
@settings(max_examples=15)
@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8), st.integers(1, 4))
def test_corrections_stay_within_what_nights_saw(ratios, count):
    corrected = correction(
        [night(each) for each in ratios], setting=StepSetting(workers=(1,) * count, micro_batch_size=64)
    )
    low, high = min(0.0, *map(math.log, ratios)), max(0.0, *map(math.log, ratios))
    assert low - 0.05 <= corrected.shift <= high + 0.05
    assert 0 < corrected.spread < 2


def on(name: str):
    return next(each for each in rented() if each.name == name and each.region == "us-central1")


def by(where):
    return by_profile(PROFILE, where, measured=LOCAL)


def hours(where, past=(), *, widen=1.0, count=1):
    return predict(
        PROFILE,
        where,
        measured=LOCAL,
        batch_size=256,
        rental=Rental(machine=where.name, num_machines=count, region=where.region),
        num_workers=where.num_workers,
        num_samples=10**7,
        num_bytes=10**9,
        known=CostCalibration.of(past, widen=widen),
    )


def test_the_estimate_of_a_rented_machine_follows_its_nights():
    where = on("n2-standard-4")
    setting = update(PROFILE, where, measured=LOCAL, num_machines=1, batch_size=256, num_workers=1).setting
    ran = [night(1.4, name=where.name, device=where.device, setting=setting, by=by(where))] * 6
    plain, corrected = hours(where), hours(where, ran)
    assert corrected.expected_s / plain.expected_s == pytest.approx(1.4, rel=0.06)
    wide, narrow = (e.interval[1] / e.interval[0] for e in (plain, corrected))
    assert narrow < wide / 2


def test_nights_on_this_machine_correct_it_too():
    setting = update(PROFILE, LOCAL, measured=LOCAL, num_machines=1, batch_size=256, num_workers=1).setting
    ran = [night(1.2, name="local", device="cpu", here=True, setting=setting, by=by(LOCAL))] * 6
    assert hours(LOCAL, ran).expected_s / hours(LOCAL).expected_s == pytest.approx(1.2, rel=0.03)


def test_nights_on_a_cpu_leave_the_doubt_between_the_extremes_of_the_roofline_to_the_first_on_the_device():
    device = machine(device="A100", num_devices=1, flops_per_s=2e14, bandwidth_bytes_per_s=2e12)
    here = night(1.0, name=LOCAL.name, device=LOCAL.device, here=True, by=by(LOCAL))

    def spread(past):
        taken = update(
            PROFILE,
            device,
            measured=LOCAL,
            num_machines=1,
            batch_size=256,
            num_workers=1,
            known=CostCalibration.of(past),
        )
        assert taken is not None
        return max(part.spread for part in taken.parts)

    extremes = math.log(10) / 2 / Z90
    there = night(1.0, name=device.name, device=device.device, by=by(device))
    assert spread([here]) > math.hypot(0.5, extremes)
    assert spread([here, there]) < extremes / 2


def test_intervals_widen_by_the_factor_of_the_scorecard():
    plain, wide = hours(LOCAL), hours(LOCAL, widen=2.0)
    assert wide.expected_s == pytest.approx(plain.expected_s)
    assert math.log(wide.interval[1] / wide.expected_s) == pytest.approx(
        2 * math.log(plain.interval[1] / plain.expected_s), rel=0.05
    )
    assert (plain.widened, wide.widened) == (1.0, 2.0)


def test_a_night_that_was_mostly_its_start_tells_nothing():
    assert ratio(elapsed_s=5, start_s=3, num_updates=10, update_s=0.1) is None
    assert ratio(elapsed_s=103, start_s=3, num_updates=0, update_s=0.1) is None
    assert ratio(elapsed_s=103, start_s=3, num_updates=1000, update_s=0.1) == pytest.approx(1.0)


def test_an_interval_that_is_wide_enough_is_not_widened_twice():
    calibration = CostCalibration(widen=4.0, needed=0.3)
    narrow, wide, unneeded = (calibration.widened(spread) for spread in (0.01, 0.2, 0.5))
    assert (narrow, wide, unneeded) == (4.0, pytest.approx(1.5), 1.0)

"""What was measured is met, what was not has an interval that says so."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.machines.startup import Z90
from daybreak.prediction.measurements import Measurement, StepSetting
from daybreak.prediction.priors import priors
from daybreak.prediction.step_time import FIXED, MANY, ONE, PER_SAMPLE, TWO, Points, form, slopes
from daybreak.prediction.throughput import MachineKind, StepTime

PRIORS = priors()
# Fixed and per sample on a device, then what summing gradients takes by rates alone; as in true_s.
HERE = MachineKind(
    name="here",
    device="A",
    profiled=True,
    errors=(0.0,) * 10,
    constants=tuple(np.log([0.02, 0.001, 0.001, 1, 0.015, 1, 0.008, 1, 1, 1])),
)


def fit(known):
    return StepTime(known, machine_of=[0] * len(known), machines=[HERE], priors=PRIORS)


def true_s(workers, micro, *, passes=1, compute=(0.02, 0.001), sync=0.05):
    """Pollux' form with overlap, sums of gradients twice as long on two machines."""
    grad, count = compute[0] + compute[1] * micro, sum(workers)
    many = sync * (2 if len(workers) == 2 else 1 if len(workers) > 2 else 0.1) * (count / 2) ** 0.3
    total = 0.0 if count == 1 else many
    return (passes - 1) * grad + (grad**2 + total**2) ** 0.5


def steps(*settings_, noise=0.0, seed=0, **how):
    rng = np.random.default_rng(seed)
    return [
        Measurement(
            workers=workers,
            micro_batch_size=micro,
            step_s=true_s(workers, micro, **how) * float(np.exp(noise * rng.normal())),
        )
        for workers, micro in settings_
    ]


PLACEMENTS = [(1,), (2,), (4,), (1, 1), (2, 2), (4, 4), (1, 1, 1), (2, 2, 2), (1, 1, 1, 1), (4, 4, 4, 4)]
EVERYWHERE = [(workers, micro) for workers in PLACEMENTS for micro in (16, 64, 256)]


def test_settings_that_were_measured_are_met():
    known = steps(*EVERYWHERE, noise=0.02)
    seconds, _ = fit(known).predict(known, HERE)
    assert np.median(np.abs(seconds / [each.step_s for each in known] - 1)) < 0.02


def test_a_setting_between_those_measured_is_met_too():
    model = fit(steps(*EVERYWHERE, noise=0.02))
    seconds, _ = model.predict([StepSetting(workers=(3, 3), micro_batch_size=100)], HERE)
    assert seconds[0] == pytest.approx(true_s((3, 3), 100), rel=0.1)


def test_more_passes_take_longer_by_what_their_gradients_take():
    model = fit(steps(*EVERYWHERE))
    one, four = (StepSetting(workers=(2, 2, 2), micro_batch_size=64, num_passes=k) for k in (1, 4))
    seconds = model.predict([one, four], HERE)[0]
    assert seconds[1] - seconds[0] == pytest.approx(3 * 0.084, rel=0.1)


def test_intervals_widen_with_the_distance_from_what_was_measured():
    model = fit(steps(*((w, m) for w, m in EVERYWHERE if sum(w) <= 4), noise=0.02))
    wide = model.predict(
        [StepSetting(workers=w, micro_batch_size=64) for w in ((1, 1, 1), (4, 4, 4), (4,) * 16, (8,) * 64)],
        HERE,
    )[1]
    assert list(wide) == sorted(wide)
    assert wide[-1] > 2 * wide[0]


def test_a_first_measurement_narrows_the_interval():
    at = [StepSetting(workers=(4, 4, 4), micro_batch_size=64)]
    before, after = (fit(rows).predict(at, HERE)[1][0] for rows in ([], steps(((4, 4, 4), 32))))
    assert after < before / 2


def test_a_kind_of_machine_learns_from_another_with_the_same_device():
    kin, other = (
        replace(HERE, name=name, device=device, profiled=False)
        for name, device in (("kin", "A"), ("other", "B"))
    )
    ran = replace(HERE, name="ran", profiled=False)
    known = [replace(each, step_s=2 * each.step_s) for each in steps(*EVERYWHERE)]
    model = StepTime(known, machine_of=[0] * len(known), machines=[ran], priors=PRIORS)
    at = [StepSetting(workers=(1,), micro_batch_size=64)]
    (one, narrow), (two, wide) = model.predict(at, kin), model.predict(at, other)
    plain = fit([]).predict(at, HERE)[0][0]
    assert plain < two[0] < one[0]
    assert narrow[0] < wide[0]


def test_what_a_profile_of_another_device_errs_by_is_learned_from_its_kin():
    doubt = tuple(0.8 if number == FIXED else 0.0 for number in range(10))
    ran, kin = (replace(HERE, name=name, profiled=False, errors=doubt) for name in ("ran", "kin"))
    known = [replace(each, step_s=2.2 * each.step_s) for each in steps(*EVERYWHERE)]
    model = StepTime(known, machine_of=[0] * len(known), machines=[ran], priors=PRIORS)
    at = [StepSetting(workers=(1,), micro_batch_size=16)]
    told, own = model.forecast(at, kin), model.forecast(at, ran)
    assert (told.log_s - told.before_log_s)[0] > 0.4 * (own.log_s - own.before_log_s)[0]
    assert told.spread[0] < 0.9 * told.before_spread[0]
    assert own.before_spread[0] == pytest.approx(told.before_spread[0], rel=0.02)  # no surer before it ran
    surer = tuple(replace(each, errors=(0.0,) * 10) for each in (kin, ran))
    assert model.forecast(at, surer[0]).before_spread[0] < told.before_spread[0]


def test_a_size_whose_kernels_are_slow_says_little_of_the_others():
    slow = (0.036, 0.0018)
    odd = [
        each
        for workers, micro in EVERYWHERE
        for each in steps((workers, micro), **({"compute": slow} if micro == 64 else {}), sync=0.01)
    ]
    at = [StepSetting(workers=(3, 3), micro_batch_size=micro) for micro in (64, 16)]
    seconds, _ = fit(odd).predict(at, HERE)
    assert seconds[0] == pytest.approx(true_s((3, 3), 64, compute=slow, sync=0.01), rel=0.15)
    assert seconds[1] == pytest.approx(true_s((3, 3), 16, sync=0.01), rel=0.15)


def test_a_sum_that_passes_hide_by_all_that_is_known_may_outlast_them():
    """The form hardly moves with a hidden sum, but does where the sum is as much longer as priors allow."""
    hidden = replace(HERE, constants=tuple(np.array(HERE.constants) - [0, 0, 3, 0, 3, 0, 3, 0, 0, 0]))
    model = StepTime(steps(((1,), 64)), machine_of=[0], machines=[hidden], priors=PRIORS)
    at = [StepSetting(workers=(1, 1, 1), micro_batch_size=64)]
    (seconds,), (spread,) = model.predict(at, hidden)
    far = model.constants.copy()
    far[MANY] += Z90 * PRIORS.spread_of("many")
    longer = form(far[None], Points.of(at, [0]))[0][0]
    derivative = slopes(model.constants[None], Points.of(at, [0]))[0][MANY]
    linear = derivative * Z90 * PRIORS.spread_of("many")
    assert np.log(seconds) + linear < longer < np.log(seconds) + Z90 * spread


def test_a_step_that_was_disturbed_hardly_counts():
    known = steps(*EVERYWHERE, noise=0.02)
    spoilt = [*known, Measurement(workers=(2, 2), micro_batch_size=64, step_s=10 * true_s((2, 2), 64))]
    at = [StepSetting(workers=(2, 2), micro_batch_size=64)]
    assert fit(spoilt).predict(at, HERE)[0][0] == pytest.approx(fit(known).predict(at, HERE)[0][0], rel=0.1)


def test_steps_that_differ_more_from_run_to_run_have_wider_intervals():
    quiet, loud = (fit(steps(*EVERYWHERE, noise=noise)) for noise in (0.01, 0.3))
    at = [StepSetting(workers=(3, 3), micro_batch_size=100)]
    assert loud.noise > quiet.noise
    assert loud.predict(at, HERE)[1][0] > 1.5 * quiet.predict(at, HERE)[1][0]


@pytest.mark.slow
@settings(max_examples=10)
@given(st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(unit):
    known = steps(*EVERYWHERE[::3], noise=0.05)
    longer = np.isin(np.arange(10), [FIXED, PER_SAMPLE, ONE, TWO, MANY]) * np.log(unit)
    there = replace(HERE, constants=tuple(np.array(HERE.constants) + longer))
    other = StepTime(
        [replace(each, step_s=each.step_s * unit) for each in known],
        machine_of=[0] * len(known),
        machines=[there],
        priors=PRIORS,
    )
    at = [StepSetting(workers=(4, 4, 4), micro_batch_size=100)]
    (one, wide), (two, as_wide) = fit(known).predict(at, HERE), other.predict(at, there)
    assert two[0] / one[0] == pytest.approx(unit, rel=1e-3)
    assert as_wide[0] == pytest.approx(wide[0], rel=1e-2)


def test_a_night_as_expected_narrows_the_next_forecast_and_one_far_off_widens_it():
    at = [StepSetting(workers=(4, 4), micro_batch_size=16)]
    expected = fit([]).predict(steps(((1,), 64)), HERE)[0][0]
    spreads = [
        fit([Measurement(workers=(1,), micro_batch_size=64, step_s=expected * times)]).predict(at, HERE)[1][0]
        for times in (1, 2, 4)
    ]
    assert spreads[0] < fit([]).predict(at, HERE)[1][0]
    assert spreads == sorted(spreads)
    assert spreads[2] > 1.1 * spreads[0]


def test_quiet_nights_in_one_setting_narrow_only_what_they_have_seen():
    known = steps(*[((1,), 64)] * 100, noise=0.002)
    model, first = fit(known), fit(known[:1])
    there = replace(HERE, name="there", device="B", profiled=False)
    alone, many = (StepSetting(workers=workers, micro_batch_size=64) for workers in ((1,), (4, 4)))
    assert model.predict([alone], HERE)[1][0] < 0.7 * first.predict([alone], HERE)[1][0]
    assert model.predict([alone], there)[1][0] > 0.9 * first.predict([alone], there)[1][0]
    assert model.predict([many], HERE)[1][0] > 0.9 * first.predict([many], HERE)[1][0]

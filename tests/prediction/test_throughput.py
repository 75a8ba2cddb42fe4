"""What was measured is met, what was not has an interval that says so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.prediction.measurements import Measurement, Setting
from pipeline.prediction.step_time import LEARNED, MANY, PER_SAMPLE, TWO, UNINFORMED, centred
from pipeline.prediction.throughput import StepTime, fit, learn


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
            workers=workers, micro_batch_size=micro,
            step_s=true_s(workers, micro, **how) * float(np.exp(noise * rng.normal())),
        )
        for workers, micro in settings_
    ]  # fmt: skip


PLACEMENTS = [(1,), (2,), (4,), (1, 1), (2, 2), (4, 4), (1, 1, 1), (2, 2, 2), (1, 1, 1, 1), (4, 4, 4, 4)]
EVERYWHERE = [(workers, micro) for workers in PLACEMENTS for micro in (16, 64, 256)]


def test_settings_that_were_measured_are_met():
    known = steps(*EVERYWHERE, noise=0.02)
    seconds, _ = fit(known).predict(known)
    assert np.median(np.abs(seconds / [each.step_s for each in known] - 1)) < 0.02


def test_a_setting_between_those_measured_is_met_too():
    model = fit(steps(*EVERYWHERE, noise=0.02))
    seconds, _ = model.predict([Setting(workers=(3, 3), micro_batch_size=100)])
    assert seconds[0] == pytest.approx(true_s((3, 3), 100), rel=0.1)


def test_more_passes_take_longer_by_what_their_gradients_take():
    model = fit(steps(*EVERYWHERE))
    one, four = (Setting(workers=(2, 2, 2), micro_batch_size=64, num_passes=k) for k in (1, 4))
    found = model.predict([one, four])[0]
    assert found[1] - found[0] == pytest.approx(3 * 0.084, rel=0.1)


def test_intervals_widen_with_the_distance_from_what_was_measured():
    model = fit(steps(*((w, m) for w, m in EVERYWHERE if sum(w) <= 4), noise=0.02))
    wide = model.predict(
        [Setting(workers=w, micro_batch_size=64) for w in ((1, 1, 1), (4, 4, 4), (4,) * 16, (8,) * 64)]
    )[1]
    assert list(wide) == sorted(wide)
    assert wide[-1] > 2 * wide[0]


def test_without_measurements_the_prior_is_what_is_known():
    prior = centred(LEARNED, steps(((1,), 64)))
    seconds, spread = StepTime([], prior).predict([Setting(workers=(1,), micro_batch_size=64)])
    assert seconds[0] > 0
    assert spread[0] > 1


def test_a_first_measurement_narrows_the_interval():
    prior, at = centred(LEARNED, steps(((1,), 64))), [Setting(workers=(4, 4, 4), micro_batch_size=64)]
    known = steps(((1,), 64), ((4, 4, 4), 32))
    before, after = (StepTime(rows, prior).predict(at)[1][0] for rows in ([], known))
    assert after < before / 2


def test_a_step_that_was_disturbed_hardly_counts():
    known = steps(*EVERYWHERE, noise=0.02)
    spoilt = [*known, Measurement(workers=(2, 2), micro_batch_size=64, step_s=10 * true_s((2, 2), 64))]
    at = [Setting(workers=(2, 2), micro_batch_size=64)]
    assert fit(spoilt).predict(at)[0][0] == pytest.approx(fit(known).predict(at)[0][0], rel=0.1)


def test_steps_that_differ_more_from_run_to_run_have_wider_intervals():
    quiet, loud = (fit(steps(*EVERYWHERE, noise=noise)) for noise in (0.01, 0.3))
    at = [Setting(workers=(3, 3), micro_batch_size=100)]
    assert loud.noise > quiet.noise
    assert loud.predict(at)[1][0] > 1.5 * quiet.predict(at)[1][0]


@pytest.mark.slow
@settings(max_examples=10)
@given(st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(unit):
    known = steps(*EVERYWHERE[::3], noise=0.05)
    other = [
        Measurement(workers=e.workers, micro_batch_size=e.micro_batch_size, step_s=e.step_s * unit)
        for e in known
    ]
    at = [Setting(workers=(4, 4, 4), micro_batch_size=100)]
    (one, wide), (two, as_wide) = fit(known).predict(at), fit(other).predict(at)
    assert two[0] / one[0] == pytest.approx(unit, rel=1e-3)
    assert as_wide[0] == pytest.approx(wide[0], rel=1e-2)


def test_what_jobs_have_in_common_is_learned():
    jobs = [
        steps(*EVERYWHERE, noise=0.02, seed=k, compute=(0.02 * 3**k, 0.001 * 2**k), sync=0.05 * 4**k)
        for k in range(3)
    ]
    learned = learn(jobs)
    assert np.exp(learned.mean[TWO]) == pytest.approx(2, rel=0.25)
    assert learned.deviation[TWO] < UNINFORMED.deviation[TWO]
    assert learned.mean[PER_SAMPLE] == UNINFORMED.mean[PER_SAMPLE]  # scales belong to a job
    assert learned.deviation[MANY] == UNINFORMED.deviation[MANY]


def test_a_prior_of_similar_jobs_helps_where_little_is_measured():
    learned = learn([steps(*EVERYWHERE, noise=0.02, seed=k, sync=0.05 * 2**k) for k in range(3)])
    few = steps(((1,), 16), ((1,), 256), ((1, 1, 1), 16))
    at, actual = [Setting(workers=(4, 4), micro_batch_size=32)], true_s((4, 4), 32)
    with_it, without = (StepTime(few, centred(p, few)).predict(at)[0][0] for p in (learned, UNINFORMED))
    assert abs(np.log(with_it / actual)) < abs(np.log(without / actual))

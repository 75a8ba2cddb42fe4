"""Hours to a quality: what was run is met, what was not has an interval, and the prior is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.prediction.quality import Run, Scale, TimeToQuality, epochs_slope

SCALES = [Scale(batch_size=b, num_workers=k) for b in (256, 512, 1024) for k in (2, 4, 8, 16)]


def hours(scale: Scale, *, slope: float = 0.3, sync: float = 0.1) -> float:
    return 40 * (scale.batch_size / 512) ** -slope * (4 / scale.num_workers + sync)


def runs(*places: int, **how) -> list[Run]:
    return [Run(scale=SCALES[k], hours=hours(SCALES[k], **how)) for k in places]


CORNERS = (0, 3, 8, 11)


def test_four_corners_predict_the_rest():
    forecast = TimeToQuality(SCALES).given(runs(*CORNERS))
    apart = np.abs(np.log(forecast.hours / [hours(s) for s in SCALES]))
    assert apart.mean() < 0.05
    assert np.all(apart < 2 * forecast.spread)


def test_the_interval_narrows_with_what_is_run():
    model = TimeToQuality(SCALES)
    one, four, all_ = (model.given(runs(*places)) for places in ((5,), CORNERS, range(12)))
    assert one.spread.max() > 2 * four.spread.max()
    assert four.spread.mean() > all_.spread.mean()


def test_a_scale_far_from_all_runs_is_least_certain():
    forecast = TimeToQuality(SCALES).given(runs(0))
    assert forecast.spread[0] == min(forecast.spread)
    assert forecast.spread[11] == max(forecast.spread)


@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.6])
def test_epochs_are_learned_whether_they_rise_or_fall_with_the_batch(slope):
    model = TimeToQuality(SCALES, noise_scale=1000)
    forecast = model.given(runs(*CORNERS, slope=slope))
    larger = SCALES.index(Scale(batch_size=1024, num_workers=4))
    smaller = SCALES.index(Scale(batch_size=256, num_workers=4))
    assert forecast.hours[larger] / forecast.hours[smaller] == pytest.approx(4**-slope, rel=0.15)


def test_the_prior_is_theory_until_two_batch_sizes_were_run():
    model = TimeToQuality(SCALES, noise_scale=2000)
    assert model.given(runs(0, 1)).prior.startswith("noise scale 2,000: epochs as B^+0.2")
    assert model.given(runs(0, 4)).prior.startswith("learned from 2 batch sizes")
    assert TimeToQuality(SCALES).given(runs(0)).prior.startswith("no noise scale")


def test_theory_says_that_larger_batches_need_more_epochs():
    assert epochs_slope(batch_size=100, noise_scale=1e9) == pytest.approx(0, abs=1e-6)
    assert epochs_slope(batch_size=1e9, noise_scale=100) == pytest.approx(-1, abs=1e-6)


def test_runs_that_differ_from_one_another_at_one_scale_are_averaged():
    twice = [Run(scale=SCALES[5], hours=h) for h in (10.0, 14.4)]
    assert TimeToQuality(SCALES).given(twice).hours[5] == pytest.approx(12, rel=0.01)


@settings(max_examples=5)
@given(st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(unit):
    model = TimeToQuality(SCALES)
    scaled = [Run(scale=run.scale, hours=run.hours * unit) for run in runs(*CORNERS)]
    plain, other = model.given(runs(*CORNERS)), model.given(scaled)
    assert np.allclose(other.hours / plain.hours, unit, rtol=1e-3)
    assert np.allclose(other.spread, plain.spread)


def test_without_a_run_there_is_no_level():
    with pytest.raises(ValueError, match="nothing was measured"):
        TimeToQuality(SCALES).given([])

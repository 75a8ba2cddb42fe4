"""Fits find what was drawn, censoring is believed, and the choice is made by machines held out."""

import csv
import gzip

import numpy as np
import pytest
from lifelines import KaplanMeierFitter, NelsonAalenFitter

from daybreak.extensions.spot.lifetimes import (
    FITS,
    Observed,
    choose,
    fit_exponential,
    fit_piecewise,
    fit_weibull,
    log_likelihood,
)
from daybreak.extensions.spot.survival import (
    MEASURED,
    PUBLISHED,
    Bathtub,
    Exponential,
    Piecewise,
    Weibull,
    draw_s,
    survival,
)
from tests.extensions.spot.markets import measured

HOUR_S = 3600.0
CURVES = [
    Exponential(mean_s=9 * HOUR_S),
    Weibull(shape=0.6, scale_s=9 * HOUR_S),
    Bathtub(share=0.4, early_s=HOUR_S, late_s=HOUR_S, end_s=24 * HOUR_S),
    MEASURED,
]


def drawn(curve, *, number: int = 1000, seed: int = 0, watched_s: float = 12 * HOUR_S) -> Observed:
    """Machines of a fleet; each is stopped by its user at a random time, if it is not preempted before."""
    rng = np.random.default_rng(seed)
    lived = draw_s(curve, rng.random(number), longest_s=1e7)
    stopped = rng.uniform(0, watched_s, number)
    return Observed(lived_s=np.minimum(lived, stopped), preempted=lived < stopped)


def lifetimes_of_2019() -> Observed:
    with gzip.open(measured("gcp_preemption_lifetimes_2019.csv.gz"), "rt") as file:
        rows = list(csv.DictReader(file))
    return Observed(
        lived_s=np.array([float(row["lifetime_s"]) for row in rows]),
        preempted=np.array([row["end_kind"] == "preempted" for row in rows]),
    )


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
def test_the_hazard_is_what_the_cumulative_one_rises_by(curve):
    ages = np.array([60.0, 900.0, 5000.0, 30_000.0, 70_000.0])
    rise = (curve.cumulative(ages + 1) - curve.cumulative(ages - 1)) / 2
    assert curve.hazard_per_s(ages) == pytest.approx(rise, rel=1e-3)


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
def test_as_many_are_drawn_of_each_age_as_the_curve_says(curve):
    lived = draw_s(curve, np.random.default_rng(1).random(20_000), longest_s=1e7)
    ages = np.array([600.0, 3600.0, 40_000.0])
    assert (lived[:, None] > ages).mean(axis=0) == pytest.approx(survival(curve, ages), abs=0.015)


def test_the_fit_finds_what_was_drawn_though_half_of_it_is_censored():
    observed = drawn(CURVES[0])
    assert 0.4 < observed.preempted.mean() < 0.6
    assert fit_exponential(observed).mean_s == pytest.approx(9 * HOUR_S, rel=0.1)
    fitted = fit_weibull(drawn(CURVES[1]))
    assert fitted.shape == pytest.approx(0.6, rel=0.1)
    assert fitted.scale_s == pytest.approx(9 * HOUR_S, rel=0.15)


def test_pieces_rise_as_nelson_aalen_does():
    observed = drawn(CURVES[1])
    estimate = NelsonAalenFitter(nelson_aalen_smoothing=False).fit(observed.lived_s, observed.preempted)
    ages = np.sort(observed.lived_s[observed.preempted])
    hazards = estimate.cumulative_hazard_at_times(ages).to_numpy()
    assert fit_piecewise(observed).cumulative(ages) == pytest.approx(hazards, abs=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("curve", CURVES[:2], ids=lambda curve: curve.name)
def test_the_family_that_was_drawn_from_is_chosen_or_as_good(curve):
    choice = choose(drawn(curve, number=1000))
    assert choice.scores[curve.name] >= max(choice.scores.values()) - 0.003
    assert choice.best.name == max(choice.fitted, key=choice.scores.__getitem__)
    assert len(choice.fitted) == len(FITS)


def test_nothing_seen_to_be_preempted_is_not_for_ever():
    observed = Observed(lived_s=np.array([3600.0, 7200.0]), preempted=np.array([False, False]))
    assert fit_exponential(observed).mean_s == 2 * 10_800
    assert fit_piecewise(observed).hazard_per_s(np.array([1e6]))[0] > 0


def test_nothing_is_likely_to_die_after_the_end_of_a_curve():
    late = Observed(lived_s=np.array([26 * HOUR_S]), preempted=np.array([True]))
    assert log_likelihood(PUBLISHED, late) < -50


def test_machines_cut_at_an_age_are_censored_there():
    observed = Observed(lived_s=np.array([10.0, 30.0]), preempted=np.array([True, True])).cut(20.0)
    assert observed.lived_s.tolist() == [10.0, 20.0]
    assert observed.preempted.tolist() == [True, False]


def test_the_constants_are_what_the_measurements_give():
    fitted = fit_piecewise(lifetimes_of_2019().cut(24 * HOUR_S))
    assert isinstance(fitted, Piecewise)
    assert fitted.from_s == pytest.approx(MEASURED.from_s, abs=1)
    assert fitted.per_s == pytest.approx(MEASURED.per_s, rel=1e-3)


def test_of_the_measured_machines_28_percent_are_gone_after_six_hours_not_41():
    observed = lifetimes_of_2019()
    estimate = KaplanMeierFitter().fit(observed.lived_s, observed.preempted)
    assert 1 - estimate.predict(6 * HOUR_S) == pytest.approx(0.28, abs=0.005)
    assert (observed.lived_s[observed.preempted] < 6 * HOUR_S).mean() == pytest.approx(0.41, abs=0.005)

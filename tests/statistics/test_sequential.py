import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from daybreak.statistics.sequential import (
    crossing,
    family,
    group_bounds,
    inflation,
    log_mixture,
    mixture_bound,
    mixture_rho,
    spend,
)
from tests.statistics.reference import reference


def evenly(num_looks: int) -> list[float]:
    return [(look + 1) / num_looks for look in range(num_looks)]


@pytest.mark.parametrize(
    ("sides", "name"), [(1, "one_sided_normal_mixture"), (2, "two_sided_normal_mixture")]
)
def test_mixture_agrees_with_confseq(sides: Any, name: str) -> None:
    known = reference()["confseq"]
    rho = mixture_rho(known["v_opt"], alpha=known["alpha_opt"] * (2 if sides == 1 else 1))
    bound = mixture_bound(100, alpha=known["alpha"], rho=rho, sides=sides)
    assert bound == pytest.approx(known[name]["bound_v100"], abs=known["tolerance"])
    evidence = log_mixture(10, 100, rho=rho, sides=sides)
    assert evidence == pytest.approx(known[name]["log_mixture_s10_v100"], abs=known["tolerance"])
    if sides == 2:
        assert rho == pytest.approx(known[name]["best_rho"], abs=known["tolerance"])


def test_mixture_agrees_with_growthbook() -> None:
    for case in reference()["growthbook_msprt"]["cases"]:
        n = case["a"]["n"] + case["b"]["n"]
        # Growthbook's tuning parameter is our n at which the bound is lowest; its stddev is of the mean.
        rho = mixture_rho(case["tuning"], alpha=case["alpha"])
        width = case["stddev"] * math.sqrt(n) * mixture_bound(n, alpha=case["alpha"], rho=rho, sides=2) / n
        assert width == pytest.approx((case["ci"][1] - case["ci"][0]) / 2, rel=1e-3)


@pytest.mark.parametrize(("name", "delta"), [("pocock_C", 0.5), ("obrien_fleming_C", 0.0)])
def test_classic_bounds_are_those_of_the_tables(name: str, delta: float) -> None:
    for looks, known in reference()["group_sequential"]["constants_two_sided_alpha_0.05"][name].items():
        bounds = family(evenly(int(looks)), alpha=0.05, delta=delta, sides=2)
        assert round(float(bounds[-1]), 3) == pytest.approx(known, abs=6e-4)


def test_looking_again_at_1_96_errs_as_often_as_the_tables_say() -> None:
    known = reference()["group_sequential"]
    for looks, error in known["constants_two_sided_alpha_0.05"]["naive_1.96_two_sided_error"].items():
        crossed = crossing(evenly(int(looks)), [stats.norm.isf(0.025)] * int(looks), sides=2)[-1]
        assert round(float(crossed), len(str(error)) - 2) == error
    for looks, error in known["gsDesign"]["naive_repeated_testing_one_sided_error_at_1.96"].items():
        times = evenly(int(looks[1:]))
        assert round(float(crossing(times, [1.96] * len(times), sides=1)[-1]), 3) == error


def test_bounds_and_what_they_spend_agree_with_rpact() -> None:
    known = reference()["group_sequential"]["rpact"]
    for name, times, delta in (
        ("obf_inverse_normal_K3_one_sided_0.025", evenly(3), 0.0),
        ("wang_tsiatis_0.3_info_0.2_0.5_1", [0.2, 0.5, 1.0], 0.3),
    ):
        bounds = family(times, alpha=0.025, delta=delta, sides=1)
        np.testing.assert_allclose(bounds, known[name]["z"], atol=6e-8)
        np.testing.assert_allclose(crossing(times, bounds, sides=1), known[name]["alpha_spent"], atol=1.1e-8)
        back = group_bounds(times, known[name]["alpha_spent"], sides=1)
        np.testing.assert_allclose(back, known[name]["z"], atol=1e-6)


def test_bounds_and_sample_sizes_agree_with_gsdesign() -> None:
    known = reference()["group_sequential"]["gsDesign"]
    bounds = family(evenly(4), alpha=0.05, delta=0, sides=2)
    np.testing.assert_allclose(bounds, known["obf_K4_two_sided_0.05_z"], atol=6e-3)
    pocock = family(evenly(4), alpha=0.05, delta=0.5, sides=2)
    grown = 100 * inflation(evenly(4), pocock, alpha=0.05, power=0.8, sides=2)
    assert round(grown, 1) == known["pocock_K4_beta0.2_max_n_pct"]
    drift = math.sqrt(grown / 100) * (stats.norm.isf(0.025) + stats.norm.ppf(0.8))
    for theta, n_pct in zip(
        (0, 0.5, 1, 1.5), known["pocock_K4_expected_n_pct_theta_0_.5_1_1.5"], strict=True
    ):
        going_on = 1 - crossing(evenly(4), pocock, sides=2, drift=theta * drift)[:-1]
        assert round(grown * (1 + float(going_on.sum())) / 4, 1) == pytest.approx(n_pct, abs=0.11)
    flemings = family(evenly(5), alpha=0.05, delta=0, sides=2)
    grown = 100 * inflation(evenly(5), flemings, alpha=0.05, power=0.8, sides=2)
    assert round(grown, 1) == known["obf_K5_beta0.2_max_n_pct"]


def test_quadratic_spending_agrees_with_spotify() -> None:
    known = reference()["spotify_confidence"]
    run = known["run_over"]
    times = np.array(run["total_n_by_day"]) / max(run["total_n_by_day"])
    bounds = group_bounds(times.tolist(), spend(times, alpha=run["alpha"] / 2), sides=1)
    np.testing.assert_allclose(2 * stats.norm.sf(bounds), run["adjusted_alpha"], atol=run["tolerance"])
    test = known["ztest_two_sided"]
    one, two = test["group1"], test["group2"]
    variances = [(g["sum_sq"] - g["sum"] ** 2 / g["n"]) / (g["n"] - 1) / g["n"] for g in (one, two)]
    share = (one["n"] + two["n"]) / test["final_expected_n"]
    z = group_bounds([share], spend([share], alpha=(1 - test["interval"]) / 2), sides=1)[0]
    low, high = test["adjusted_ci"]
    assert round(z * math.sqrt(sum(variances)), 3) == pytest.approx((high - low) / 2, abs=5e-4)


@pytest.mark.slow
def test_many_looks_agree_with_spotify_as_far_as_its_own_search_goes() -> None:
    # Its search ends once a look spends within 1e-7 of what it should, which at first is most of it.
    listed = reference()["spotify_confidence"]["sequential_bounds"]
    for known, looks in zip(listed, (60, 120), strict=True):
        times, expected = known["information_times"][:looks], np.array(known["expected_z_bounds"][:looks])
        spent = spend(times, alpha=known["alpha"] / 2)
        bounds = group_bounds(times, spent, sides=1)
        due, theirs = np.diff(spent), np.diff(crossing(times, expected, sides=1))
        sure = expected < 7.9
        assert np.abs(theirs - due).max() < 1.5e-7
        assert bounds[0] == pytest.approx(expected[0], abs=1e-8)
        assert np.median(np.abs(bounds - expected)[sure]) < 6e-3


@settings(max_examples=40)
@given(
    st.lists(st.floats(0.02, 1), min_size=1, max_size=6, unique_by=lambda t: round(t, 2)),
    st.floats(0.001, 0.2),
    st.floats(1, 4),
    st.sampled_from([1, 2]),
)
def test_bounds_spend_what_they_may_and_no_more(
    times: list[float], alpha: float, power: float, sides: Any
) -> None:
    times = sorted(times)
    spent = spend(times, alpha=alpha, power=power)
    passed = crossing(times, group_bounds(times, spent, sides=sides), sides=sides)
    np.testing.assert_allclose(passed, spent, atol=1e-8)


def test_a_look_that_may_spend_next_to_nothing_has_a_bound_of_8() -> None:
    bounds = group_bounds([0.1, 1.0], [1e-18, 0.025], sides=1)
    assert bounds[0] == 8
    assert bounds[1] == pytest.approx(stats.norm.isf(0.025), abs=1e-6)


@pytest.mark.parametrize("times", [[], [0.0, 1.0], [0.5, 0.5], [0.7, 0.3]])
def test_times_that_do_not_increase_are_refused(times: list[float]) -> None:
    with pytest.raises(ValueError, match="do not increase"):
        crossing(times, [2.0] * len(times), sides=1)

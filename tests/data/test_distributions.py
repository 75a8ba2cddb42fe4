"""What a day looks like beside the days before: shares of values, the label, and limits of past days."""

from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from daybreak.contract.record_types import Distributions
from daybreak.data.daily_limits import Limit, _beta_binomial_ends, learn, limits_of_days
from daybreak.data.day_sample import Sample
from daybreak.data.distributions import BINS, distributions
from daybreak.data.figure import Figure, Sort

DAYS = [date(2025, 1, 6) + timedelta(days=number) for number in range(60)]
ROWS = Figure(Sort.ROWS, (), "count", 20)


def described(column: list[np.ndarray], label: list[np.ndarray]) -> Distributions:
    """Returns what the last of some days looks like, from the numbers of each."""
    days = DAYS[-len(column) :]
    samples = {
        day: Sample(
            day=day,
            num_rows=len(values),
            share=1.0,
            keys={},
            numbers={"x": values, "y": labels},
            hours=np.zeros(len(values)),
            small={},
        )
        for day, values, labels in zip(days, column, label, strict=True)
    }
    history = {
        day: {"rows": Figure(Sort.ROWS, (), "count", float(len(sample)))} for day, sample in samples.items()
    }
    limits = learn(history, days[-1], false_alarms_per_year=1)
    return distributions(
        days[-1],
        samples,
        history,
        columns=["x"],
        label="y",
        limits=limits,
        outside=[],
        num_stopping=0,
        drifted=[],
    )


@settings(max_examples=20)
@given(st.integers(0, 99), st.sampled_from(["whole", "real", "spike", "few"]))
def test_shares_add_up_and_labels_are_means_of_their_ranges(seed: int, kind: str) -> None:
    draw = np.random.default_rng(seed)
    spikes = np.where(draw.uniform(size=300) < 0.4, -999, draw.normal(size=300))
    kinds = {
        "whole": draw.poisson(50, 300),
        "real": draw.lognormal(size=300),
        "few": draw.integers(3, size=300),
    }
    values = np.asarray({**kinds, "spike": spikes}[kind], dtype=np.float64)
    values[:30] = np.nan
    labels = draw.uniform(size=300)
    (column,) = described([draw.permutation(values), values], [draw.permutation(labels), labels]).columns
    known = np.isfinite(values)
    assert sum(column.tonight) == pytest.approx(1) and sum(column.before) == pytest.approx(1)
    assert column.missing == (pytest.approx(0.1), pytest.approx(0.1))
    assert len(column.values) == len(column.edges) + 1 <= BINS + 1 or not column.edges
    of_first = (
        values[known] < column.edges[0] if column.edges else values[known] == np.unique(values[known])[0]
    )
    assert column.tonight[0] == pytest.approx(of_first.mean())
    if column.label_tonight[0] is not None:
        assert column.label_tonight[0] == pytest.approx(labels[known][of_first].mean())


def test_counts_that_are_almost_all_0_or_1_have_two_ranges() -> None:
    draw = np.random.default_rng(0)
    few = draw.integers(2, size=4000).astype(np.float64)
    few[:20] = np.arange(2, 22)
    (column,) = described([few, few], [few, few]).columns
    assert column.values == ("below 1", "1 and above")


def looks(
    history: dict[date, dict[str, Figure]], outside: list[Limit], *, num_stopping: int
) -> Distributions:
    """Returns what the last of some days looks like, whose 14 columns are numbers."""
    names = [f"c{number}" for number in range(14)]
    numbers = {name: np.arange(20.0) for name in names}
    day = DAYS[-1]
    sample = Sample(day=day, num_rows=20, share=1.0, keys={}, numbers=numbers, hours=np.zeros(20), small={})
    return distributions(
        day,
        {day: sample},
        history,
        columns=names,
        label="",
        limits=learn(history, day, false_alarms_per_year=1),
        outside=[(day, limit) for limit in outside],
        num_stopping=num_stopping,
        drifted=["c12"],
    )


def test_the_columns_of_what_stops_a_day_are_shown_first_and_other_limits_stop_none() -> None:
    means = [Figure(Sort.MEAN, (name,), "mean", 9.5) for name in ("c13", "c2")]
    history = {day: {one.name: one for one in (ROWS, *means)} for day in DAYS}
    outside = [Limit(figure=mean, low=0, high=1) for mean in means]
    seen = looks(history, outside, num_stopping=1)
    assert [one.column for one in seen.columns[:3]] == ["c12", "c13", "c0"]
    assert seen.left_out == ("c10", "c11")
    assert [(one.figure, one.stops, one.holds) for one in seen.figures[:2]] == [
        ("mean c13", True, False),
        ("mean c2", False, False),
    ]


def test_a_figure_that_the_day_lacks_is_said_to_be_of_an_older_day_and_is_no_alarm() -> None:
    draw = np.random.default_rng(1)
    history = {
        day: {
            "rows": ROWS,
            "missing c0": Figure(Sort.MISSING, ("c0",), "share", float(draw.uniform(0, 0.1)), num=500),
        }
        for day in DAYS
    }
    far = history[DAYS[-2]]["missing c0"]._replace(value=0.9)  # was outside its limits then
    history[DAYS[-2]]["missing c0"] = far
    del history[DAYS[-1]]["missing c0"]
    (figure,) = (one for one in looks(history, [], num_stopping=0).figures if one.figure == "missing c0")
    assert figure.holds
    assert figure.words.startswith(f"{DAYS[-2]}: ")


def test_limits_of_a_day_are_those_that_it_was_judged_by() -> None:
    draw = np.random.default_rng(1)
    missing = Figure(Sort.MISSING, ("x",), "share", 0.0, num=500)
    history = {day: {"missing x": missing._replace(value=float(draw.uniform(0, 0.1)))} for day in DAYS}
    limits = learn(history, DAYS[-1], false_alarms_per_year=1)
    of_days = limits_of_days("missing x", history, DAYS, chance=limits.chances["missing x"])
    assert [of_days[DAYS[-1]]] == limits.of(history[DAYS[-1]])
    assert min(of_days) == DAYS[24]  # the first that is known enough about


@settings(max_examples=20)
@given(st.integers(1, 300), st.floats(0.5, 1e5), st.floats(0.5, 1e5), st.floats(1e-7, 0.2))
def test_ends_of_the_beta_binomial_are_those_of_scipy(num: int, a: float, b: float, chance: float) -> None:
    least, most = _beta_binomial_ends(num, a, b, chance)
    law = stats.betabinom(num, a, b)
    assert law.cdf(least) >= chance * (1 - 1e-6) and law.cdf(least - 1) < chance * (1 + 1e-6)
    assert law.sf(most) <= chance * (1 + 1e-6) and law.sf(most - 1) > chance * (1 - 1e-6)

"""What a day looks like beside the days before: shares of values, the label, and limits of past days."""

from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from daybreak.contract.record_types import Distributions
from daybreak.data.daily_limits import _beta_binomial_ends, learn, limits_of_days
from daybreak.data.day_figures import Figure
from daybreak.data.day_sample import Sample
from daybreak.data.distributions import BINS, distributions

DAYS = [date(2025, 1, 6) + timedelta(days=number) for number in range(60)]


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
    history = {day: {"rows": Figure("count", float(len(sample)))} for day, sample in samples.items()}
    limits = learn(history, days[-1], false_alarms_per_year=1)
    return distributions(
        days[-1], samples, history, columns=["x"], label="y", limits=limits, outside=[], drifted=[]
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


def test_limits_of_a_day_are_those_that_it_was_judged_by() -> None:
    draw = np.random.default_rng(1)
    history = {day: {"missing x": Figure("share", float(draw.uniform(0, 0.1)), num=500)} for day in DAYS}
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

"""When the watch takes a champion back on the scores of its night; what it does then is in tests/release/."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contract.params import GateParams
from pipeline.contract.records import Release, Watch
from pipeline.gate.watch import compare

N = 400
SERVING = Release(version=4, replaced=3)
BASE = np.linspace(0, 1, N)


def watched(mean: float, *, spread: float = 0.05, num_samples: int = N, **params: float) -> Watch:
    """What is said of a champion whose scores are by `mean` better than its predecessor's."""
    drawn = np.random.default_rng(1).normal(0, 1, num_samples)
    ours = BASE[:num_samples] + mean + spread * (drawn - drawn.mean()) / drawn.std()
    return compare(SERVING, {"challenger": ours, "champion": BASE[:num_samples]}, GateParams(**params))


def test_a_champion_that_is_proven_worse_on_the_mean_is_rolled_back() -> None:
    found = watched(-0.1)
    assert found.outcome == "rolled back"
    assert (found.serving, found.predecessor, found.num_samples) == (4, 3, N)
    assert found.effect == pytest.approx(-0.1)
    assert found.high is not None
    assert found.high < 0
    assert found.reason.startswith("version 3 is better than 4: -0.1000 (from ")


@pytest.mark.parametrize("mean", [-0.004, 0.0, 0.1])
def test_a_champion_that_is_not_proven_worse_is_kept(mean: float) -> None:
    found = watched(mean)
    assert found.outcome == "kept"
    assert found.reason.startswith("version 3 is not proven better than 4: ")


def test_a_mean_that_only_one_look_would_prove_worse_is_kept_since_it_is_looked_at_each_hour() -> None:
    """One look would end 1.96 standard errors of 0.0025 above the mean; that of each hour is further out."""
    assert watched(-0.0055).outcome == "kept"
    assert watched(-0.0100).outcome == "rolled back"


@given(st.floats(-0.2, 0.2))
def test_it_is_rolled_back_where_all_of_the_interval_is_below_nought(mean: float) -> None:
    found = watched(mean)
    assert (found.outcome == "rolled back") == (found.high is not None and found.high < 0)


def test_the_margin_of_a_refresh_does_not_keep_what_is_worse() -> None:
    assert watched(-0.02, margin=0.5).outcome == "rolled back"


def test_a_smaller_alpha_asks_for_more_proof() -> None:
    assert watched(-0.0085, alpha=0.2).outcome == "rolled back"
    assert watched(-0.0085, alpha=0.001).outcome == "kept"


def test_too_few_samples_are_no_data() -> None:
    found = watched(-0.5, num_samples=29)
    assert (found.outcome, found.effect, found.num_samples) == ("no data", None, 29)
    assert found.reason == "29 samples; gate.min_samples asks for 30"


def test_scores_that_are_not_finite_are_no_data() -> None:
    ours = BASE - 0.5
    ours[7] = np.nan
    found = compare(SERVING, {"challenger": ours, "champion": BASE}, GateParams())
    assert (found.outcome, found.effect) == ("no data", None)
    assert "1 of 400 scores of the challenger are not finite" in found.reason

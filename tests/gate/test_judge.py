import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contract.records import Champion, Verdict
from pipeline.gate.judge import decide
from pipeline.statistics.paired import Rules
from tests.release.folders import NUM_SAMPLES, make_evaluation, make_version

CHAMPION = Champion(version=3, replaced=2, model_digest="c", night="before")
RNG = np.random.default_rng(0)
BASE = RNG.random(NUM_SAMPLES).astype(np.float32)


def verdict_on(
    scores: dict[str, np.ndarray] | None, *, champion: Champion | None, refresh: bool = True, **metrics: float
) -> Verdict:
    return decide(
        scores,
        evaluation=make_evaluation("m", **metrics),
        version=make_version(4, model_digest="m", night="n"),
        champion=champion,
        rules=Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=refresh),
    )


def noise(mean: float) -> np.ndarray:
    return (BASE + RNG.normal(mean, 0.05, NUM_SAMPLES)).astype(np.float32)


def test_a_refresh_that_is_no_worse_is_promoted() -> None:
    found = verdict_on({"challenger": noise(0.0), "champion": BASE}, champion=CHAMPION)
    assert found.action == "promote"
    assert (found.champion, found.challenger) == (3, 4)
    assert found.reason.startswith("refresh: proven no worse than the champion by the margin 0.03")
    assert "at 80 % power" in found.reason


def test_a_changed_recipe_that_is_only_no_worse_is_not() -> None:
    found = verdict_on({"challenger": noise(0.0), "champion": BASE}, champion=CHAMPION, refresh=False)
    assert found.action == "reject"
    assert found.reason.startswith("inconclusive")


def test_the_first_night_must_beat_popularity() -> None:
    better = {"challenger": noise(0.1), "baseline/popularity": BASE, "baseline/weak": BASE - 1}
    found = verdict_on(better, champion=None)
    assert found.action == "promote"
    assert found.champion == 0
    assert found.reason.startswith("no champion yet: proven better than the baseline popularity")
    worse = verdict_on({"challenger": noise(-0.1), "baseline/popularity": BASE}, champion=None)
    assert worse.action == "reject"
    assert "worse than the baseline popularity" in worse.reason


def test_the_first_night_without_popularity_must_beat_the_weakest_baseline() -> None:
    found = verdict_on(
        {"challenger": BASE, "baseline/a": BASE - 0.1, "baseline/b": BASE + 0.1}, champion=None
    )
    assert found.action == "promote"
    assert "the baseline a" in found.reason


def test_the_first_night_without_baselines_is_promoted_with_that_reason() -> None:
    found = verdict_on({"challenger": BASE}, champion=None)
    assert found.action == "promote"
    assert found.reason == "no champion yet, and the workload has no baseline to beat"
    assert verdict_on({"challenger": BASE * math.nan}, champion=None).action == "reject"


@pytest.mark.parametrize("scores", [None, {}, {"champion": BASE}])
def test_without_scores_there_is_no_data(scores: dict[str, np.ndarray] | None) -> None:
    assert verdict_on(scores, champion=CHAMPION).action == "no data"
    assert verdict_on(scores, champion=None).action == "no data"


def test_a_champion_that_has_seen_the_day_proves_nothing() -> None:
    found = verdict_on({"challenger": BASE}, champion=CHAMPION, champion_has_seen=1.0)
    assert found.action == "no data"
    assert "version 3 was trained on held-out days" in found.reason


def test_a_dropped_metric_fails() -> None:
    evaluation = make_evaluation("m")
    evaluation.metrics.pop("score")
    rules = Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=True)
    version = make_version(4, model_digest="m", night="n")
    found = decide(
        {"challenger": BASE, "champion": BASE}, evaluation=evaluation, version=version, champion=CHAMPION,
        rules=rules,
    )  # fmt: skip
    assert found.action == "reject"
    assert "no metric named score" in found.reason


def test_permuted_labels_are_refused() -> None:
    found = verdict_on({"challenger": RNG.permutation(BASE) - 0.3, "champion": BASE}, champion=CHAMPION)
    assert found.action == "reject"


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.floats(-1, 1, width=32) | st.just(math.nan), max_size=60),
    st.sampled_from(["champion", "baseline/popularity", "baseline/other", "none"]),
    st.booleans(),
)
def test_every_night_has_a_verdict(values: list[float], other: str, first: bool) -> None:
    ours = np.array(values, dtype=np.float32)
    found = verdict_on({"challenger": ours, other: np.zeros_like(ours)}, champion=None if first else CHAMPION)
    assert found.action in ("promote", "reject", "no data")
    assert found.reason

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from daybreak.statistics.paired import (
    Rules,
    bootstrap,
    detectable,
    holm,
    interval,
    judge,
    per_unit,
    worse_slices,
)
from daybreak.statistics.result import Effect, Status

ALPHA = 0.05
REFRESH = Rules(alpha=ALPHA, margin=0.03, min_samples=30, refresh=True)
CHANGED = Rules(alpha=ALPHA, margin=0.03, min_samples=30, refresh=False)

scores = st.lists(st.floats(0, 1, width=32), min_size=0, max_size=80)
wild = st.lists(st.floats(-2, 2, width=32) | st.just(math.nan) | st.just(math.inf), max_size=60)


def test_interval_at_the_horizon_is_the_ordinary_two_sided_one() -> None:
    d = np.random.default_rng(0).normal(size=100)
    ours = interval(d, alpha=ALPHA, horizon=100)
    low, high = stats.ttest_1samp(d, 0).confidence_interval(1 - ALPHA)
    assert ours.high - ours.low == pytest.approx(high - low, rel=0.03)


def test_without_a_horizon_the_interval_is_wider() -> None:
    d = np.random.default_rng(0).normal(size=200)
    ends = interval(d, alpha=ALPHA, horizon=None, tuned_at=200)
    known = interval(d, alpha=ALPHA, horizon=200)
    assert 1.3 < (ends.high - ends.low) / (known.high - known.low) < 1.5


def null_streams(kind: str, shape: tuple[int, int]) -> np.ndarray:
    """Differences of mean 0; `baskets` as real ones are: half are zero, the others skewed and bounded."""
    rng = np.random.default_rng(7)
    if kind == "normal":
        return rng.normal(size=shape)
    return np.where(rng.random(shape) < 0.5, 0.0, rng.beta(1, 4, shape) - 0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sign"), [("normal", 1), ("baskets", 1), ("baskets", -1)])
@pytest.mark.parametrize("horizon", [120, None])
def test_false_promotions_stay_below_alpha_when_looking_again_and_again(
    kind: str, sign: int, horizon: int | None
) -> None:
    num_streams, n = 400, 120
    d = sign * null_streams(kind, (num_streams, n))
    passed = [
        any(
            interval(stream[:looked], alpha=ALPHA, horizon=horizon, tuned_at=n).low > 0
            for looked in range(30, n + 1, 6)
        )
        for stream in d
    ]
    assert np.mean(passed) <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / num_streams)


def test_a_plain_test_would_promote_far_too_often_when_peeking() -> None:
    rng = np.random.default_rng(7)
    d = rng.normal(size=(500, 400)).cumsum(1) / np.sqrt(np.arange(1, 401))
    assert (d[:, 30:] > stats.norm.isf(ALPHA)).any(1).mean() > 0.2


@pytest.mark.slow
def test_the_detectable_effect_is_detected_at_the_stated_power() -> None:
    rng = np.random.default_rng(1)
    n, sd = 120, 0.1
    least = detectable(sd=sd, num_samples=n, alpha=ALPHA)
    detected = [
        judge(rng.normal(least, sd, n), np.zeros(n), rules=CHANGED).status.is_proof for _ in range(1500)
    ]
    assert np.mean(detected) == pytest.approx(0.8, abs=0.03)


@pytest.mark.slow
@given(scores, scores)
def test_swapped_arms_flip_the_sign(ours: list[float], theirs: list[float]) -> None:
    n = min(len(ours), len(theirs))
    one = judge(ours[:n], theirs[:n], rules=CHANGED)
    other = judge(theirs[:n], ours[:n], rules=CHANGED)
    assert (one.effect is None) == (other.effect is None)
    if one.effect and other.effect:
        assert one.effect.mean == pytest.approx(-other.effect.mean)
        assert one.effect.low == pytest.approx(-other.effect.high)
    assert not (one.status.is_proof and other.status.is_proof)


@pytest.mark.slow
@settings(max_examples=300)
@given(wild | st.none(), wild | st.none(), st.booleans(), st.integers(0, 100))
def test_every_input_has_a_verdict_with_a_reason(ours: Any, theirs: Any, refresh: bool, horizon: int) -> None:
    mask = {"half": np.arange(len(ours or ())) % 2 == 0}
    judgement = judge(ours, theirs, rules=REFRESH if refresh else CHANGED, horizon=horizon, slices=mask)
    assert judgement.status in Status
    assert judgement.sentence
    if judgement.status.is_proof:
        assert judgement.effect is not None
        assert judgement.effect.low > (-0.03 if refresh else 0)
        assert np.isfinite(ours).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_between_bonferroni_and_none(p_values: list[float]) -> None:
    rejections = holm(p_values, alpha=ALPHA)
    for p, rejected in zip(p_values, rejections, strict=True):
        assert not rejected or p <= ALPHA
        assert rejected or p > ALPHA / len(p_values)


def test_the_bootstrap_agrees_with_the_normal_interval_where_both_hold() -> None:
    d = np.random.default_rng(0).normal(0.1, 1, 600)
    low, high = bootstrap(d, alpha=ALPHA, resamples=2000)
    normal = interval(d, alpha=ALPHA, horizon=600)
    assert (low, high) == pytest.approx((normal.low, normal.high), abs=0.06 * (normal.high - normal.low))
    assert bootstrap(-d, alpha=ALPHA, resamples=2000) == pytest.approx((-high, -low), abs=0.02)


def test_the_more_cautious_of_bootstrap_and_normal_interval_decides() -> None:
    d = np.random.default_rng(0).exponential(size=60)
    resampled = Rules(alpha=ALPHA, margin=0.03, min_samples=30, refresh=False, resamples=1000)
    plain, both = judge(d, np.zeros(60), rules=CHANGED), judge(d, np.zeros(60), rules=resampled)
    assert plain.effect and both.effect
    low, high = bootstrap(d, alpha=ALPHA, resamples=1000)
    assert both.effect.low == min(plain.effect.low, low)
    assert both.effect.high == max(plain.effect.high, high) > plain.effect.high


@pytest.mark.parametrize("values", [[], [1.0], [0.5] * 40])
def test_the_bootstrap_of_too_little_or_of_equal_values_is_said_plainly(values: list[float]) -> None:
    assert bootstrap(values, alpha=ALPHA, resamples=100) == (
        (0.5, 0.5) if len(values) > 1 else (-math.inf, math.inf)
    )


def test_equal_models_pass_a_refresh_and_fail_a_change() -> None:
    same = np.random.default_rng(0).random(100)
    assert judge(same, same, rules=REFRESH).status.is_proof
    assert judge(same, same, rules=CHANGED).status is Status.INCONCLUSIVE


def test_a_refresh_that_is_proven_worse_is_rejected_even_inside_the_margin() -> None:
    d = np.random.default_rng(0).normal(-0.01, 0.01, 500)
    judgement = judge(d, np.zeros(500), rules=REFRESH)
    assert judgement.status is Status.WORSE
    assert judgement.sentence.startswith("worse than the champion")


def test_a_slice_that_suffers_stops_a_better_challenger() -> None:
    rng = np.random.default_rng(0)
    new = np.arange(600) < 100
    d = rng.normal(np.where(new, -0.2, 0.1), 0.05)
    judgement = judge(d, np.zeros(600), rules=CHANGED, slices={"new customers": new, "others": ~new})
    assert judgement.status is Status.WORSE
    assert "on new customers" in judgement.sentence


@pytest.mark.slow
def test_slices_of_equal_models_are_rarely_called_worse() -> None:
    rng = np.random.default_rng(3)
    masks = {str(k): np.arange(800) % 8 == k for k in range(8)}
    called = [
        bool(worse_slices(rng.normal(-0.03, 0.1, 800), masks, alpha=ALPHA, margin=0.03, min_samples=30))
        for _ in range(600)
    ]
    assert np.mean(called) <= ALPHA + 0.02


@pytest.mark.parametrize(
    ("ours", "theirs", "status", "words"),
    [
        (None, [0.5] * 40, Status.NO_DATA, "no scores of the challenger"),
        ([0.5] * 40, None, Status.NO_DATA, "no scores of the champion"),
        ([], [], Status.NO_DATA, "0 samples"),
        ([0.5] * 29, [0.5] * 29, Status.NO_DATA, "gate.min_samples asks for 30"),
        ([0.5] * 40, [0.5] * 41, Status.NO_DATA, "41 of the champion"),
        (
            [math.nan] + [0.5] * 39,
            [0.5] * 40,
            Status.INVALID,
            "1 of 40 scores of the challenger are",
        ),
        ([0.5] * 40, [math.inf] * 40, Status.NO_DATA, "40 of 40 scores of the champion are not finite"),
    ],
)
def test_what_cannot_be_judged_is_said(ours: Any, theirs: Any, status: Status, words: str) -> None:
    judgement = judge(ours, theirs, rules=REFRESH)
    assert judgement.status is status
    assert words in judgement.sentence


def test_before_the_horizon_the_undecided_waits() -> None:
    d = np.random.default_rng(0).normal(0, 1, 60)
    assert judge(d, np.zeros(60), rules=CHANGED, horizon=1000).status is Status.OPEN
    assert judge(d[:10], np.zeros(10), rules=CHANGED, horizon=1000).status is Status.OPEN


def test_a_margin_out_of_reach_is_said_with_the_remedy() -> None:
    d = np.random.default_rng(0).normal(0, 0.5, 60)
    assert "hold out more days (prepare.test_days)" in judge(d, np.zeros(60), rules=REFRESH).sentence


@given(st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=40), st.integers(2, 6))
def test_the_mean_of_units_is_that_of_all_samples(values: list[float], number: int) -> None:
    units = np.arange(len(values)) % number
    assert per_unit(values, units).mean() == pytest.approx(np.mean(values), abs=1e-9)


def test_samples_that_are_each_a_unit_stay_as_they_are() -> None:
    values = np.random.default_rng(0).random(50)
    assert per_unit(values, None).tolist() == values.tolist()
    assert per_unit(values, np.arange(50)[::-1]).tolist() == values.tolist()


def test_copies_of_samples_prove_no_more_than_the_samples() -> None:
    d = np.random.default_rng(3).normal(0.02, 0.1, 60)
    once = judge(d, np.zeros(60), rules=CHANGED)
    tripled = judge(np.repeat(d, 3), np.zeros(180), rules=CHANGED, units=np.repeat(np.arange(60), 3))
    careless = judge(np.repeat(d, 3), np.zeros(180), rules=CHANGED)
    assert once.effect and tripled.effect and careless.effect
    assert tripled.effect.low == pytest.approx(once.effect.low, abs=0.002)
    assert careless.effect.low > once.effect.low + 0.008


def test_a_sentence_counts_units_where_samples_belong_together() -> None:
    d, units = np.random.default_rng(3).normal(0.02, 0.1, 180), np.repeat(np.arange(60), 3)
    of_samples = judge(d, np.zeros(180), rules=CHANGED).sentence
    of_units = judge(d, np.zeros(180), rules=CHANGED, units=units).sentence
    assert ", 180 samples); 180 samples show " in of_samples
    assert ", 60 units); 60 units show " in of_units


def test_a_unit_that_has_most_samples_proves_little() -> None:
    rng = np.random.default_rng(4)
    units = np.concatenate([np.zeros(500, dtype=int), np.arange(1, 41)])
    d = 0.05 + rng.normal(0, 0.05, units.size)
    effect = judge(d, np.zeros(units.size), rules=CHANGED, units=units).effect
    assert effect is not None
    assert effect.low < 0 < effect.high


def test_too_few_units_are_no_data_however_many_samples_they_have() -> None:
    judgement = judge(np.ones(900), np.zeros(900), rules=CHANGED, units=np.arange(900) % 9)
    assert judgement.status is Status.NO_DATA
    assert judgement.sentence == "900 samples of 9 units; gate.min_samples asks for 30 units"


def test_a_refresh_may_lose_within_the_margin_only_where_an_anchor_watches() -> None:
    d = np.full(100, -0.01) + np.random.default_rng(5).normal(0, 0.01, 100)
    strict = judge(d, np.zeros(100), rules=REFRESH)
    watched = judge(d, np.zeros(100), rules=replace(REFRESH, may_lose=True))
    assert (strict.status, watched.status) == (Status.WORSE, Status.NO_WORSE)


def test_an_effect_on_errors_of_any_size_is_said_in_figures_that_tell_its_ends_apart() -> None:
    small = Effect(mean=2.1e-7, low=-0.4e-7, high=4.6e-7, sd=1.0, num_samples=900)
    assert str(small) == "+0.00000021 (from -0.00000004 to +0.00000046, 900 samples)"
    large = Effect(mean=14524.79, low=13546.13, high=15596.84, sd=1.0, num_samples=900)
    assert str(large) == "+14,525 (from +13,546 to +15,597, 900 samples)"

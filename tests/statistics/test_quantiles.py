import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.statistics.quantiles import evidence, guard, interval, p_value
from daybreak.statistics.result import Status
from daybreak.statistics.srm import concentration
from tests.statistics.reference import reference


def guarded(ours: Any, theirs: Any, **changed: Any) -> Any:
    given = {"quantile": 0.99, "margin": 0.1, "alpha": 0.05, "min_samples": 100} | changed
    return guard(ours, theirs, **given)


def test_two_arms_agree_with_confseq() -> None:
    for known in reference()["confseq"]["quantile_ab_p_value"]:
        ours = np.arange(1, 1001)
        p = p_value(ours, ours + known["offset"], quantile=known["p"], tuned_at=100)
        assert p == pytest.approx(known["value"], abs=1e-6)
        assert p_value(ours + known["offset"], ours, quantile=known["p"], tuned_at=100) == p


def test_the_interval_of_a_quantile_covers_it_at_every_look() -> None:
    rng, alpha = np.random.default_rng(4), 0.1
    true = -math.log(1 - 0.9)
    missed = 0
    for _ in range(150):
        values = rng.exponential(size=600)
        ends = [interval(values[:n], quantile=0.9, alpha=alpha, tuned_at=300) for n in range(20, 601, 20)]
        missed += any(not low <= true <= high for low, high in ends)
    assert missed / 150 <= alpha


def test_ties_prove_nothing() -> None:
    assert p_value([1.0] * 50, [1.0] * 70, quantile=0.5) == 1
    assert interval([1.0] * 500, quantile=0.5, alpha=0.05) == (1, 1)


def test_the_evidence_is_a_martingale() -> None:
    k, q, n = concentration(100, alpha=0.05), 0.3, 12
    now = np.exp(evidence(np.arange(n + 1), n, quantile=q, k=k))
    after = np.exp(evidence(np.arange(n + 2), n + 1, quantile=q, k=k))
    np.testing.assert_allclose(q * after[1:] + (1 - q) * after[:-1], now)


def test_a_slower_tail_is_found_and_an_equal_one_passes() -> None:
    rng = np.random.default_rng(0)
    champion = rng.exponential(0.02, 40_000)
    assert guarded(rng.exponential(0.02, 40_000), champion, margin=0.05).status.is_proof
    slow = np.where(rng.random(40_000) < 0.05, 0.5, rng.exponential(0.02, 40_000))
    judgement = guarded(slow, champion, margin=0.05)
    assert judgement.status is Status.WORSE
    assert "P99 is higher by 0.4" in judgement.sentence
    assert guarded(champion[:200], champion[:200]).status is Status.OPEN


@pytest.mark.parametrize(
    ("ours", "theirs", "changed", "status", "words"),
    [
        (None, [1.0], {}, Status.NO_DATA, "P99: no values of the challenger"),
        ([1.0], None, {}, Status.NO_DATA, "P99: no values of the champion"),
        ([1.0] * 200, [1.0] * 200, {"margin": 0.0}, Status.NO_DATA, "P99: it has no margin"),
        ([math.nan] * 200, [1.0] * 200, {}, Status.INVALID, "200 values of the challenger are not finite"),
        ([1.0] * 200, [math.inf] * 200, {}, Status.NO_DATA, "200 values of the champion are not finite"),
        ([1.0] * 20, [1.0] * 200, {}, Status.NO_DATA, "20 values in the smaller arm, 100 are asked for"),
    ],
)
def test_what_cannot_be_judged_is_said(
    ours: Any, theirs: Any, changed: Any, status: Status, words: str
) -> None:
    judgement = guarded(ours, theirs, **changed)
    assert judgement.status is status
    assert words in judgement.sentence


wild = st.lists(st.floats(0, 10) | st.just(math.nan) | st.just(math.inf), max_size=30) | st.none()


@settings(max_examples=100)
@given(wild, wild, st.floats(-1, 2))
def test_every_input_has_a_judgement(ours: Any, theirs: Any, margin: float) -> None:
    judgement = guarded(ours, theirs, margin=margin, min_samples=0)
    assert judgement.status in Status
    assert judgement.sentence
    assert not judgement.status.is_proof or judgement.effect is not None

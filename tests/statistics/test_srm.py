import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from pipeline.statistics.sequential import mixture_rho
from pipeline.statistics.srm import ALPHA, check, concentration, log_evidence
from tests.statistics.reference import reference

HALVES = {"champion": 0.5, "challenger": 0.5}


def test_evidence_agrees_with_confseq() -> None:
    known = reference()["confseq"]["beta_binomial_g0.2_h0.8"]
    k = mixture_rho(100, alpha=0.05) / 0.16 - 1

    def found(excess: float) -> float:
        return float(log_evidence([125 + excess, 500 - excess], [0.2, 0.8], concentration=k))

    assert found(10) == pytest.approx(known["two_sided_log_mixture"], abs=1e-5)
    bound = optimize.brentq(lambda s: found(s) - math.log(20), 1, 200)
    assert bound == pytest.approx(known["two_sided_bound_v100"], abs=1e-4)


def test_intervals_of_a_share_agree_with_confseq() -> None:
    for known in reference()["confseq"]["bernoulli_confidence_interval"]:
        n, hits, alpha = known["trials"], known["successes"], known["alpha"]
        k = concentration(known["t_opt"], alpha=alpha)

        def excess(p: float, n: int = n, hits: int = hits, k: float = k, alpha: float = alpha) -> float:
            return log_evidence([hits, n - hits], [p, 1 - p], concentration=k) - math.log(1 / alpha)

        ends = (1e-9, 1 - 1e-9)
        low = optimize.brentq(excess, ends[0], hits / n) if excess(ends[0]) > 0 else 0.0
        high = optimize.brentq(excess, hits / n, ends[1]) if excess(ends[1]) > 0 else 1.0
        assert (low, high) == pytest.approx(known["ci"], abs=2e-6)


def test_a_leak_of_one_user_in_a_hundred_is_found_and_equal_shares_are_not() -> None:
    found = check({"champion": 51_000, "challenger": 49_000}, HALVES)
    assert not found.ok
    assert "users are not shared out as they should be: challenger 49,000 of 100,000 (50.00% due)" in (
        found.reason
    )
    assert check({"champion": 50_100, "challenger": 49_900}, HALVES).ok


def test_looking_after_every_user_raises_hardly_any_false_alarm() -> None:
    rng, alpha, n = np.random.default_rng(2), 0.05, 2000
    k = concentration(n, alpha=alpha)
    champion = (rng.random((200, n)) < 0.5).cumsum(1)
    counts = np.stack([champion, np.arange(1, n + 1) - champion], axis=-1)
    least = log_evidence(counts, [0.5, 0.5], concentration=k).max(1)
    assert (least > math.log(1 / alpha)).mean() <= alpha


@given(
    st.dictionaries(
        st.sampled_from(["champion", "challenger", "other"]),
        st.integers(0, 10**6) | st.just(-1) | st.just(math.nan),
        max_size=3,
    ),
    st.dictionaries(st.sampled_from(["champion", "challenger"]), st.floats(0, 1), max_size=2),
)
def test_every_input_has_an_answer(counts: dict[str, Any], shares: dict[str, float]) -> None:
    found = check(counts, shares)
    assert found.reason
    assert found.ok == (found.p_value > ALPHA)


@pytest.mark.parametrize(
    ("counts", "shares", "words"),
    [
        ({}, HALVES, "no user has come yet"),
        ({"champion": 1}, {"champion": 1.0}, "not of two arms or more"),
        ({"stranger": 1}, HALVES, "users in arm stranger, which has no share"),
        ({"champion": math.nan}, HALVES, "are not numbers of users"),
    ],
)
def test_what_cannot_be_read_is_no(counts: Any, shares: Any, words: str) -> None:
    found = check(counts, shares)
    assert not found.ok
    assert words in found.reason


def test_three_arms_are_held_to_their_shares() -> None:
    shares = {"champion": 0.9, "challenger": 0.05, "holdout": 0.05}
    assert check({"champion": 90_000, "challenger": 5_050, "holdout": 4_950}, shares).ok
    assert not check({"champion": 90_000, "challenger": 5_700, "holdout": 4_300}, shares).ok

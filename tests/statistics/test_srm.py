import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from daybreak.statistics.result import Status
from daybreak.statistics.sequential import mixture_rho
from daybreak.statistics.srm import ALPHA, check, concentration, log_evidence
from tests.statistics.reference import reference


def arms(*groups: tuple[float, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Arms and chances of users, by groups of a chance, its users of the challenger and of the champion."""
    treated = [np.arange(ours + theirs) < ours for _, ours, theirs in groups]
    return np.concatenate(treated), np.concatenate([np.full(a + b, p) for p, a, b in groups])


def test_evidence_agrees_with_confseq() -> None:
    known = reference()["confseq"]["beta_binomial_g0.2_h0.8"]
    k = mixture_rho(100, alpha=0.05) / 0.16 - 1

    def evidence(excess: float) -> float:
        return float(log_evidence([125 + excess, 500 - excess], [0.2, 0.8], concentration=k))

    assert evidence(10) == pytest.approx(known["two_sided_log_mixture"], abs=1e-5)
    bound = optimize.brentq(lambda s: evidence(s) - math.log(20), 1, 200)
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
    leak = check(*arms((0.5, 49_000, 51_000)))
    assert leak.status is Status.MISMATCH
    assert leak.sentence.startswith("49,000 users met the challenger, 50,000.0 were due (p ")
    assert check(*arms((0.5, 49_900, 50_100))).status is Status.OPEN


def test_a_leak_at_one_step_of_a_ramp_is_found() -> None:
    fine = (0.05, 5_000, 95_000)
    assert check(*arms(fine, (0.5, 25_050, 24_950))).status is Status.OPEN
    assert check(*arms(fine, (0.5, 24_000, 26_000))).status is Status.MISMATCH


def test_looking_after_every_user_raises_hardly_any_false_alarm() -> None:
    rng, alpha, n = np.random.default_rng(2), 0.05, 2000
    k = concentration(n, alpha=alpha)
    champion = (rng.random((200, n)) < 0.5).cumsum(1)
    counts = np.stack([champion, np.arange(1, n + 1) - champion], axis=-1)
    least = log_evidence(counts, [0.5, 0.5], concentration=k).max(1)
    assert (least > math.log(1 / alpha)).mean() <= alpha


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.01, 0.3, 0.99])), max_size=50))
def test_every_stream_has_an_answer(users: list[tuple[bool, float]]) -> None:
    result = check([arm for arm, _ in users], [p for _, p in users])
    assert result.sentence
    assert (result.status is Status.NO_DATA) == (not users)
    assert (result.status is Status.MISMATCH) == (result.p_value <= ALPHA)


def test_a_chance_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not between 0 and 1"):
        check([True], [1.0])


def test_three_arms_are_held_to_their_shares() -> None:
    shares, k = [0.9, 0.05, 0.05], concentration(100_000, alpha=ALPHA)
    bound = math.log(1 / ALPHA)
    assert log_evidence([90_000, 5_050, 4_950], shares, concentration=k) < bound
    assert log_evidence([90_000, 5_700, 4_300], shares, concentration=k) > bound

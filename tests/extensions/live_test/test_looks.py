"""The looks at a live test, on streams of users of which the truth is known."""

import math

import numpy as np
import pytest
from scipy import stats

from daybreak.extensions.live_test.looks import NUM_LOOKS, Look, Looks
from daybreak.statistics.unpaired import adjusted, effect

ALPHA, SIZE = 0.05, 3000
ONE_LOOK = float(stats.norm.isf(ALPHA))  # no bound of several looks is below that of a single one
LOOKS = Looks(began=0.0, ends=24.0)
HALF = np.full(SIZE, 0.5)
RAMP = np.repeat([0.01, 0.05, 0.25, 0.5], SIZE // 4)


def promoted_at(seed: int, *, chance: np.ndarray, gain: float = 0.0, looks: Looks | None = LOOKS) -> float:
    """The time of the first look that proves the challenger better; infinite where none does."""
    rng = np.random.default_rng(seed)
    ready = np.sort(rng.uniform(0, 24, SIZE))
    arm = rng.random(SIZE) < chance
    scores = np.where(rng.random(SIZE) < 0.5, 0.0, rng.beta(1, 3, SIZE)) + gain * arm
    tuned_at = float((chance * (1 - chance)).sum())
    for now in np.arange(1.0, NUM_LOOKS + 1):
        known = int(np.searchsorted(ready, now, side="right"))
        if min(arm[:known].sum(), (~arm[:known]).sum()) < 30:
            continue
        seen = arm[:known], chance[:known], scores[:known]
        bound = None
        if looks:
            if effect(*seen, alpha=ALPHA, bound=ONE_LOOK).low <= 0:
                continue  # nor with the look's own bound, which takes most of the time
            look = looks.newest(ready, chance * (1 - chance), now=now, alpha=ALPHA)
            assert look and look.bound >= ONE_LOOK
            bound = look.bound
        if effect(*seen, alpha=ALPHA, tuned_at=tuned_at, bound=bound).low > 0:
            return float(now)
    return math.inf


@pytest.mark.slow
@pytest.mark.parametrize("chance", [HALF, RAMP], ids=["half", "ramp"])
def test_a_challenger_that_is_no_better_is_promoted_at_the_stated_rate(chance: np.ndarray) -> None:
    wrong = sum(promoted_at(seed, chance=chance) < math.inf for seed in range(300))
    assert stats.binomtest(wrong, 300, ALPHA, alternative="greater").pvalue > 0.01
    assert wrong > 0  # alpha is spent, too


@pytest.mark.slow
def test_a_known_end_shows_what_bounds_without_an_end_do_not() -> None:
    gain = 2.7 * 0.2 / math.sqrt(SIZE / 4)  # a little above what a single look shows at 80 %
    planned, any_time = (
        sum(promoted_at(1000 + seed, chance=HALF, gain=gain, looks=looks) < math.inf for seed in range(100))
        for looks in (LOOKS, None)
    )
    assert planned > any_time + 10
    assert planned >= 70


def test_between_two_looks_nothing_new_is_known() -> None:
    ready, weight = np.linspace(0, 24, 1000), np.full(1000, 0.25)
    looks = [LOOKS.newest(ready, weight, now=now, alpha=ALPHA) for now in (0.5, 1.0, 1.9, 2.0, 24.0, 99.0)]
    times = [look.time if look else None for look in looks]
    assert times == [None, 1.0, 1.0, 2.0, 24.0, 24.0]
    assert looks[-1] == looks[-2]


def test_what_early_looks_did_not_need_is_left_for_later_ones() -> None:
    steady = LOOKS.newest(np.linspace(0, 24, 1000), np.full(1000, 0.25), now=24, alpha=ALPHA)
    late = LOOKS.newest(np.linspace(23.5, 24, 1000), np.full(1000, 0.25), now=24, alpha=ALPHA)
    assert isinstance(steady, Look)
    assert late is not None
    assert late.bound == pytest.approx(stats.norm.isf(ALPHA), abs=1e-6)
    assert stats.norm.isf(ALPHA) < steady.bound < 1.2 * stats.norm.isf(ALPHA)


def test_what_users_scored_before_makes_the_effect_less_noisy_and_no_other() -> None:
    plain, less = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        arm, usual = rng.random(SIZE) < HALF, rng.normal(0, 0.3, SIZE)
        scores = usual + rng.normal(0, 0.3, SIZE) + 0.02 * arm
        before = np.where(rng.random(SIZE) < 0.8, usual + rng.normal(0, 0.1, SIZE), np.nan)
        values, foretold = adjusted(scores, before, HALF)
        assert 0.25 < foretold < 0.45
        plain.append(effect(arm, HALF, scores, alpha=ALPHA).mean)
        less.append(effect(arm, HALF, values, alpha=ALPHA))
    means = [one.mean for one in less]
    assert np.mean(means) == pytest.approx(0.02, abs=3 * np.std(means) / 10)
    assert np.var(means) < 0.85 * np.var(plain)
    assert all(one.low < 0.02 < one.high for one in less[:50])


def test_nothing_known_before_changes_nothing() -> None:
    scores = np.random.default_rng(0).random(100)
    values, foretold = adjusted(scores, np.full(100, np.nan), np.full(100, 0.5))
    assert (values == scores).all()
    assert foretold == 0
    assert adjusted(scores, np.full(100, 0.3), np.full(100, 0.5))[1] == 0

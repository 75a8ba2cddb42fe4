"""An effect over nights holds on every night at once, though nights resemble their neighbours."""

import math

import numpy as np
import pytest

from daybreak.statistics.over_nights import effect_over_nights, log_evidence

CHANCE = 0.025


def nights(rng: np.random.Generator, num: int, *, correlation: float = 0.0, mean: float = 0.0) -> np.ndarray:
    """Nights of spread 1 around the mean, of which neighbours correlate so."""
    shocks = rng.normal(size=num) * math.sqrt(1 - correlation**2)
    shocks[0] = rng.normal()
    for number in range(1, num):
        shocks[number] += correlation * shocks[number - 1]
    return np.asarray(mean + shocks)


def first_proof(values: np.ndarray, *, chance: float = CHANCE) -> int | None:
    """The number of nights after which these values are first proven above 0; None: never."""
    least = range(2, len(values) + 1)
    return next((num for num in least if log_evidence(values[:num]) >= -math.log(chance)), None)


@pytest.mark.parametrize("correlation", [0.0, 0.2, 0.4])
def test_recipes_that_are_no_better_are_hardly_ever_proven_better_on_any_of_thirty_nights(
    correlation: float,
) -> None:
    rng = np.random.default_rng(3)
    proven = [first_proof(nights(rng, 30, correlation=correlation)) is not None for _ in range(160)]
    assert sum(proven) <= 9  # of 160 at 2.5 %, more have a chance of one in a hundred


def test_of_nights_taken_for_independent_more_would_be_proven() -> None:
    """What learning the correlation is for: a t-test over five nights, of nights that resemble each other."""
    rng = np.random.default_rng(4)
    samples = np.array([nights(rng, 5, correlation=0.4) for _ in range(2000)])
    t = samples.mean(1) / samples.std(1, ddof=1) * math.sqrt(5)
    assert (t > 2.776).mean() > 0.05  # where 2.5 % is stated
    proven = [log_evidence(one) >= -math.log(CHANCE) for one in samples]
    assert np.mean(proven) <= CHANCE


def test_a_strong_effect_ends_early_and_a_weak_one_late() -> None:
    rng = np.random.default_rng(5)
    strong, weak = (
        [first_proof(nights(rng, 60, mean=mean)) or 99 for _ in range(40)] for mean in (2.0, 0.75)
    )
    assert np.median(strong) <= 11
    assert 15 < np.median(weak) < 60


def test_a_hundredth_of_the_chance_costs_less_than_twice_the_nights() -> None:
    rng = np.random.default_rng(6)
    samples = [nights(rng, 60, mean=2.0) for _ in range(40)]
    usual, rare = (
        np.median([first_proof(one, chance=chance) or 99 for one in samples]) for chance in (1e-3, 1e-5)
    )
    assert rare < 2 * usual


def test_the_interval_has_the_unit_of_the_scores_and_both_ends_alike() -> None:
    values = nights(np.random.default_rng(7), 14, mean=1.0)
    effect = effect_over_nights(values.tolist(), alpha=CHANCE)
    assert effect.low < effect.mean < effect.high
    tenfold = effect_over_nights((10 * values).tolist(), alpha=CHANCE)
    assert tenfold.low == pytest.approx(10 * effect.low)
    against = effect_over_nights((-values).tolist(), alpha=CHANCE)
    assert (against.low, against.high) == (pytest.approx(-effect.high), pytest.approx(-effect.low))
    assert (log_evidence(values - effect.low), str(effect)[-10:]) == (
        pytest.approx(-math.log(CHANCE)),
        "14 nights)",
    )


def test_under_two_nights_nothing_is_bounded() -> None:
    for means in ([], [0.3]):
        effect = effect_over_nights(means, alpha=CHANCE)
        assert (effect.low, effect.high) == (-math.inf, math.inf)
    assert str(effect) == "+0.3000 (1 night, too few to bound it)"
    with pytest.raises(ValueError, match="not all of a finite mean"):
        effect_over_nights([0.1, math.nan], alpha=CHANCE)

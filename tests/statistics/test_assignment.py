import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.statistics.assignment import CHALLENGER, CHAMPION, arm_of, place, propensity

units = st.text(min_size=1, max_size=40)
experiments = st.text(max_size=120)
shares = st.floats(0, 1)
NUM = 20_000


@pytest.mark.slow
@given(units, experiments, shares, shares)
def test_a_ramp_takes_nobody_back(unit: str, experiment: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    if arm_of(unit, experiment=experiment, share=low) == CHALLENGER:
        assert arm_of(unit, experiment=experiment, share=high) == CHALLENGER


@given(units, experiments)
def test_no_share_is_nobody_and_the_whole_is_everybody(unit: str, experiment: str) -> None:
    assert arm_of(unit, experiment=experiment, share=0.0) == CHAMPION
    assert arm_of(unit, experiment=experiment, share=1.0) == CHALLENGER
    assert 0 <= place(unit, experiment) < 1


@given(shares)
def test_propensities_of_both_arms_add_up_to_one(share: float) -> None:
    assert math.isclose(propensity(CHAMPION, share) + propensity(CHALLENGER, share), 1)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(0.01, 0.99))
@settings(max_examples=10)
def test_as_many_meet_the_challenger_as_its_share_says(seed: int, share: float) -> None:
    met = sum(arm_of(f"{seed}-{n}", experiment="a", share=share) == CHALLENGER for n in range(NUM))
    error = math.sqrt(NUM * share * (1 - share))
    assert abs(met - NUM * share) < 5 * error


def test_places_are_uniform() -> None:
    places = sorted(place(str(n), "2026-11-20") for n in range(NUM))
    furthest = max(abs(place - n / NUM) for n, place in enumerate(places))
    assert furthest < 1.95 / math.sqrt(NUM)  # Kolmogorov and Smirnov's bound at 0.1 %


def test_experiments_say_nothing_of_each_other() -> None:
    both = [(place(str(n), "2026-11-20"), place(str(n), "2026-11-21")) for n in range(NUM)]
    correlation = sum((x - 0.5) * (y - 0.5) for x, y in both) / NUM * 12
    assert abs(correlation) < 3.3 / math.sqrt(NUM)
    cells = [0] * 16
    for x, y in both:
        cells[int(4 * x) * 4 + int(4 * y)] += 1
    assert sum((cell - NUM / 16) ** 2 / (NUM / 16) for cell in cells) < 37.7  # chi-square, 15, 0.1 %

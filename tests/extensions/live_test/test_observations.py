import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import dcg_score

from daybreak.extensions.live_test.live_score import list_score
from daybreak.extensions.live_test.observations import chances, observe
from daybreak.statistics.assignment import CHALLENGER, arm_of, place
from daybreak.storage.exposures import Exposure
from tests.statistics.streams import exposures, users

ITEMS = st.lists(st.integers(0, 40), unique=True, max_size=25)


def shows(
    crowd: Sequence[str], *, share: float, start: float = 0.0, assigned: Callable[[str], str] | None = None
) -> list[Exposure]:
    """An exposure of each user, and what came of it."""
    return list(exposures(np.random.default_rng(0), crowd, share=share, start=start, assigned=assigned))


@given(ITEMS, ITEMS.filter(bool))
def test_the_score_of_a_list_is_its_ndcg_as_scikit_learn_has_it(items: list[int], taken: list[int]) -> None:
    relevance = [[float(item in taken) for item in range(41)]]
    ranks = [[-float(items.index(item)) if item in items else -100.0 - item for item in range(41)]]
    shown = [[one if item in items else 0.0 for item, one in enumerate(relevance[0])]]
    best = sum(1 / np.log2(rank + 2) for rank in range(min(len(taken), 20)))
    expected = dcg_score(shown, ranks, k=20) / best
    assert list_score([*map(str, items)], [*map(str, taken)]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("items", "taken", "score"),
    [
        ("abc", "a", 1.0),
        ("abc", "b", 0.63093),  # 1 / log2(3)
        ("abc", "c", 0.5),  # 1 / log2(4)
        ("abc", "ab", 1.0),
        ("abc", "ac", 0.91972),  # 1.5 / (1 + 0.63093)
        ("abc", "ax", 0.61315),  # 1 / (1 + 0.63093)
        ("aab", "b", 0.63093),  # shown twice is one place
        ("abc", "bb", 0.63093),  # taken twice is one hit
        ("abc", "x", 0.0),
        ("abc", "", 0.0),
        ("", "a", 0.0),
    ],
)
def test_a_score_is_worth_of_the_places_over_the_best_there_could_be(
    items: str, taken: str, score: float
) -> None:
    assert list_score([*items], [*taken]) == pytest.approx(score, abs=1e-5)


def test_what_stands_below_the_twentieth_place_scores_nothing() -> None:
    items = [str(number) for number in range(30)]
    assert list_score(items, ["19"]) > 0
    assert list_score(items, ["20"]) == 0
    assert list_score(items, items) == 1


@pytest.mark.slow
def test_a_user_counts_again_where_a_ramp_leaves_something_to_chance() -> None:
    crowd = users(0, 4000)
    log = [shown for share in (0.05, 0.25, 0.5) for shown in shows(crowd, share=share, start=share * 1e6)]
    seen = observe(log, window_s=60)
    early = {user for user in crowd if place(user, "test") < 0.05}
    again = [one for one in seen.observations if one.share == 0.25]
    assert len(again) == len(crowd) - len(early)
    assert [*{one.chance for one in again}] == [pytest.approx(0.2 / 0.95)]
    assert seen.impossible == 0
    for share in (0.05, 0.25, 0.5):
        here = [one for one in seen.observations if one.share == share]
        due = sum(one.chance for one in here)
        assert sum(one.treated for one in here) == pytest.approx(due, abs=4 * math.sqrt(due))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.01, 0.05, 0.25, 0.5, 1.0])), max_size=30)
)
def test_no_log_of_a_sound_router_is_impossible(steps: list[tuple[int, float]]) -> None:
    log = [
        shown
        for number, (user, share) in enumerate(steps)
        for shown in shows(users(user, 1), share=share, start=number)
    ]
    seen = observe(log, window_s=60)
    assert seen.impossible == 0
    assert all(0 < one.chance < 1 for one in seen.observations)


def test_an_arm_that_a_user_could_not_be_in_is_noticed() -> None:
    log = [
        *shows(users(0, 1), share=0.5, start=0, assigned=lambda _: "champion"),
        *shows(users(0, 1), share=0.25, start=1, assigned=lambda _: CHALLENGER),
    ]
    assert observe(log, window_s=60).impossible == 1
    spoilt = [replace(shown, share=math.nan) for shown in log]
    assert observe(spoilt, window_s=60).impossible == 2


def test_outcomes_after_the_window_do_not_count() -> None:
    (shown,) = shows(users(0, 1), share=0.5, start=100)
    one = observe([shown], window_s=4).observations[0]
    assert one.score(window_s=4) is None
    assert one.score(window_s=5) is not None


def test_what_a_user_does_within_the_window_counts_once() -> None:
    arm = arm_of(users(0, 1)[0], experiment="test", share=0.5)
    log = [shown for start in (0, 30, 90) for shown in shows(users(0, 1), share=0.5, start=start)]
    (one,) = observe(log, window_s=60).observations
    assert len(one.exposures) == 2
    assert one.treated == (arm == CHALLENGER)


def test_swapped_arms_are_the_champions_view() -> None:
    seen = observe(shows(users(0, 100), share=0.25, start=0), window_s=60)
    assert seen.swapped.counts() == seen.counts()[::-1]
    np.testing.assert_allclose(chances(seen.swapped.observations), 0.75)

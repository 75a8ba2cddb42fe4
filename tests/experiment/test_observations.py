import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.experiment.observations import ndcg, observe
from pipeline.statistics.assignment import CHALLENGER, arm_of, place
from tests.statistics.streams import exposures, users

RNG = np.random.default_rng(0)


@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8),
    st.lists(st.sampled_from("abcdefghxyz"), max_size=8),
)
def test_a_score_is_that_of_the_workload_offline(items: list[str], taken: list[str]) -> None:
    gain = 1 / np.log2(np.arange(2, 22))
    hits = sum(gain[rank] for rank, item in enumerate(items) if item in taken)
    best = gain[: max(len(set(taken)), 1)].sum()
    assert ndcg(items, taken) == pytest.approx(hits / best)
    assert 0 <= ndcg(items, taken) <= 1


@pytest.mark.slow
def test_a_user_counts_again_where_a_ramp_leaves_something_to_chance() -> None:
    crowd = users(0, 4000)
    log = [shown for share in (0.05, 0.25, 0.5)
           for shown in exposures(RNG, crowd, share=share, start=share * 1e6)]  # fmt: skip
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
        for shown in exposures(RNG, users(user, 1), share=share, start=number)
    ]
    seen = observe(log, window_s=60)
    assert seen.impossible == 0
    assert all(0 < one.chance < 1 for one in seen.observations)


def test_an_arm_that_a_user_could_not_be_in_is_noticed() -> None:
    log = [
        *exposures(RNG, users(0, 1), share=0.5, start=0, assigned=lambda _: "champion"),
        *exposures(RNG, users(0, 1), share=0.25, start=1, assigned=lambda _: CHALLENGER),
    ]
    assert observe(log, window_s=60).impossible == 1
    spoilt = [replace(shown, share=math.nan) for shown in log]
    assert observe(spoilt, window_s=60).impossible == 2


def test_outcomes_after_the_window_do_not_count() -> None:
    (shown,) = exposures(RNG, users(0, 1), share=0.5, start=100)
    one = observe([shown], window_s=4).observations[0]
    assert one.score(window_s=4) is None
    assert one.score(window_s=5) is not None


def test_what_a_user_does_within_the_window_counts_once() -> None:
    arm = arm_of(users(0, 1)[0], experiment="test", share=0.5)
    log = [shown for start in (0, 30, 90) for shown in exposures(RNG, users(0, 1), share=0.5, start=start)]
    (one,) = observe(log, window_s=60).observations
    assert len(one.exposures) == 2
    assert one.treated == (arm == CHALLENGER)


def test_swapped_arms_are_the_champions_view() -> None:
    seen = observe(exposures(RNG, users(0, 100), share=0.25, start=0), window_s=60)
    assert seen.swapped.counts() == seen.counts()[::-1]
    np.testing.assert_allclose(seen.swapped.chance, 0.75)

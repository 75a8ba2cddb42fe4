import numpy as np
import pytest

from daybreak.statistics.e_process import alarm, log_evidence
from daybreak.statistics.output_drift import shifted, witnessed
from daybreak.statistics.result import Status


def lists(rng: np.random.Generator, arm: np.ndarray, *, moved: float) -> list[list[str]]:
    """Ten items each of a hundred; of the challenger's, a share is of another hundred."""
    shown = []
    for ours in arm:
        other = (rng.random(10) < moved) & ours
        shown.append([f"{'new' if new else 'old'}{rng.integers(100)}" for new in other])
    return shown


@pytest.mark.parametrize(("moved", "status"), [(0.0, Status.OPEN), (0.3, Status.OPEN), (0.9, Status.WORSE)])
def test_lists_that_moved_farther_than_the_margin_are_found_and_others_are_not(
    moved: float, status: Status
) -> None:
    rng = np.random.default_rng(0)
    arm = rng.random(3000) < 0.05
    shown = witnessed(arm, lists(rng, arm, moved=moved))
    assert alarm(arm, np.full(arm.size, 0.05), shown, margin=0.5).status is status


@pytest.mark.parametrize(("moved", "status"), [(0.0, Status.OPEN), (0.3, Status.OPEN), (0.9, Status.WORSE)])
def test_two_models_lists_for_the_same_users_are_held_against_each_other(
    moved: float, status: Status
) -> None:
    rng = np.random.default_rng(0)
    judged, other = (lists(rng, np.full(400, changed), moved=moved) for changed in (False, True))
    assert shifted(judged, other, margin=0.5).status is status
    assert shifted([], [], margin=0.5).status is Status.NO_DATA


@pytest.mark.slow
def test_at_the_margin_false_alarms_are_rare() -> None:
    rng = np.random.default_rng(1)
    raised = 0
    for _ in range(60):
        arm = rng.random(400) < 0.25
        shown = witnessed(arm, lists(rng, arm, moved=0.3))
        raised += log_evidence(arm, np.full(arm.size, 0.25), shown, margin=0.3).max() >= np.log(20)
    assert raised <= 3


def test_what_a_list_shows_is_judged_by_lists_before_it_alone() -> None:
    rng = np.random.default_rng(2)
    arm = rng.random(200) < 0.5
    shown = lists(rng, arm, moved=0.5)
    whole = witnessed(arm, shown)
    for n in (1, 10, 100):
        np.testing.assert_array_equal(witnessed(arm[:n], shown[:n]), whole[:n])


def test_empty_lists_and_none_at_all_have_an_answer() -> None:
    assert witnessed([], []).size == 0
    assert witnessed([True, False], [[], ["a"]]).tolist() == [0.0, 1.0]

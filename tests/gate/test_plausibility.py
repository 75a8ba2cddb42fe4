"""Scores that are unlike those of the last nights are not believed, and it is said where to look."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from daybreak.contract.record_parts import Judged, MeasuredEffect
from daybreak.contract.record_types import Evaluation, Release
from daybreak.gate.plausibility import LEAST_NIGHTS, plausible
from daybreak.storage.ledger import Entry
from tests.minimal_records import minimal_night, promotion

NUM_SAMPLES = 60


def evaluation(champion: float, counts: float, *, metric: str = "NDCG") -> Evaluation:
    judged = (Judged(name=metric, role="success", margin=None, higher_is_better=True),)
    return Evaluation(
        model_digest="",
        data_digest="",
        num_samples=NUM_SAMPLES,
        slices=(),
        judged=judged,
        metrics={"champion_score": champion, "baseline/counts": counts},
    )


def entry(number: int, made: Evaluation, **more) -> Entry:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    night = minimal_night(at, id=str(number), day=date(2026, 1, 1))
    return Entry(commit=str(number), subject="", rollback=False, night=night, evaluation=made, **more)


def history(num_nights: int = 28, **more) -> list[Entry]:
    """Nights at 0.25 and 0.20, newest first."""
    draw = np.random.default_rng(3)
    levels = draw.normal([0.25, 0.20], 0.03, size=(num_nights, 2))
    return [entry(-number, evaluation(*level, **more)) for number, level in enumerate(levels)]


def columns(champion: float, counts: float) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(1).normal(0, 0.2, NUM_SAMPLES)
    noise -= noise.mean()
    return {"champion": champion + noise, "challenger": champion + noise, "baseline/counts": counts + noise}


def judge(champion: float, counts: float, past: list[Entry], **more):
    return plausible(
        columns(champion, counts), evaluation(champion, counts), past, false_alarms_per_year=2.0, **more
    )


def test_a_night_like_those_before_is_believed_and_says_what_was_expected():
    check = judge(0.24, 0.21, history())
    assert check.ok
    assert "28 nights lead one to expect" in check.text


def test_wrong_labels_are_noticed_and_put_down_to_the_day():
    check = judge(0.05, 0.02, history())
    assert not check.ok
    assert "the champion scores 0.05" in check.text
    assert "the baseline counts scores 0.02" in check.text
    assert "rows and labels" in check.text


def test_scores_that_are_too_good_are_noticed_too():
    assert not judge(0.60, 0.20, history()).ok


def test_a_champion_that_is_off_alone_is_put_down_to_its_code():
    assert "the champion's code" in judge(0.05, 0.20, history()).text


@pytest.mark.parametrize("past", [[], history(LEAST_NIGHTS - 1)])
def test_too_few_nights_judge_nothing(past):
    assert judge(0.05, 0.02, past) is None


def test_nights_that_share_days_count_once():
    """Of 28 nights that hold out a week each, four share no day: too few."""
    first = date(2026, 1, 1)

    def with_days(made: Evaluation, number: int, num: int) -> Evaluation:
        return replace(made, days=tuple(first + timedelta(days=number + day) for day in range(num)))

    def check(num: int):
        past = [
            replace(one, evaluation=with_days(one.evaluation, -number, num))
            for number, one in enumerate(history(), start=1)
        ]
        tonight = with_days(evaluation(0.05, 0.02), 0, num)
        return plausible(columns(0.05, 0.02), tonight, past, false_alarms_per_year=2.0)

    assert "28 nights lead" in check(1).text
    assert check(7) is None


def test_a_night_for_an_older_day_hides_none_of_the_others():
    first = date(2026, 1, 1)
    past = [
        replace(one, evaluation=replace(one.evaluation, days=(first - timedelta(days=number),)))
        for number, one in enumerate(history(), start=1)
    ]
    late = past.pop(20)
    tonight = replace(evaluation(0.24, 0.21), days=(first,))
    check = plausible(columns(0.24, 0.21), tonight, [late, *past], false_alarms_per_year=2.0)
    assert "28 nights lead" in check.text
    again = replace(tonight, days=late.evaluation.days)  # tonight is of an older day itself
    assert plausible(columns(0.24, 0.21), again, past, false_alarms_per_year=2.0) is not None


def test_zero_false_alarms_judge_nothing():
    assert plausible(columns(0.05, 0.02), evaluation(0.05, 0.02), history(), false_alarms_per_year=0) is None


def test_scores_that_are_not_finite_are_left_to_the_gate():
    scores = columns(0.24, 0.21)
    scores["champion"][0] = np.nan
    check = plausible(scores, evaluation(0.24, 0.21), history(), false_alarms_per_year=2.0)
    assert check.ok
    assert "champion" not in check.text


def test_nights_of_another_metric_and_before_a_rollback_are_not_compared_with():
    assert judge(0.05, 0.02, history(metric="AUC")) is None
    before = history()
    before[3] = replace(before[3], rollback=True)
    assert judge(0.05, 0.02, before) is None


def test_a_version_that_was_proven_better_raises_what_is_expected():
    """By 0.2, five nights ago: 0.45 is as expected, and the 0.25 of before is not."""
    past = history()
    verdict = promotion(champion=1, challenger=2, effect=MeasuredEffect(mean=0.2, low=0.1, high=0.3))
    for number in range(5):
        made = past[number].evaluation
        metrics = {**made.metrics, "champion_score": made.metrics["champion_score"] + 0.2}
        past[number] = replace(past[number], evaluation=replace(made, metrics=metrics))
    past[5] = replace(past[5], verdict=verdict, release=Release(version=2, replaced=1))
    assert judge(0.45, 0.20, past).ok
    assert not judge(0.25, 0.20, past).ok


@pytest.mark.parametrize("place", [20, 21])
def test_a_proven_version_raises_what_is_expected_where_nights_share_days(place):
    """Of two neighbouring nights one is compared with, and the other shares a day with it."""
    first, past = date(2026, 1, 1), history(40)
    for number, one in enumerate(past):
        days = (first - timedelta(days=number), first - timedelta(days=number + 1))
        metrics = {**one.evaluation.metrics}
        metrics["champion_score"] += 0.2 if number < place else 0.0
        past[number] = replace(one, evaluation=replace(one.evaluation, days=days, metrics=metrics))
    verdict = promotion(champion=1, challenger=2, effect=MeasuredEffect(mean=0.2, low=0.1, high=0.3))
    past[place] = replace(past[place], verdict=verdict, release=Release(version=2, replaced=1))
    tonight = replace(evaluation(0.25, 0.20), days=(first + timedelta(days=1),))
    assert not plausible(columns(0.25, 0.20), tonight, past, false_alarms_per_year=2.0).ok


def test_a_lasting_change_is_believed_after_a_few_nights():
    past, nights = history(), 0
    while not judge(0.05, 0.02, past).ok:
        past = [entry(nights, evaluation(0.05, 0.02)), *past]
        nights += 1
    assert 2 <= nights <= 4

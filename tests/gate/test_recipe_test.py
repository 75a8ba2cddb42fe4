"""A changed recipe is judged by nights, each of its own days, rather than by the samples of one."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np

from daybreak.contract.record_parts import Difference, RecipeTest
from daybreak.contract.record_types import Release, Verdict
from daybreak.contract.sections import GateParams
from daybreak.evaluation.scores import Columns
from daybreak.gate.recipe_test import Proof, UnderTest, nights_of, proof_of, with_tonight
from daybreak.statistics.result import Conclusion, Effect, Status
from daybreak.storage.ledger import Entry
from tests.minimal_records import minimal_night
from tests.toy.nights import make_evaluation

FIRST = date(2026, 1, 5)
METRICS = ("score",)


def test_of(number: int, mean: float = 0.0, **options: object) -> RecipeTest:
    """What night `number` adds to the test of recipe b against a."""
    day = FIRST + timedelta(days=number)
    made = RecipeTest(
        recipe="b",
        against="a",
        days=(day,),
        least_nights=7,
        metrics=METRICS,
        differences={"score": Difference(mean=mean, error=0.001)},
    )
    return replace(made, **options)


test_of.__test__ = False  # type: ignore[attr-defined]


def entry(test: RecipeTest | None, *, rollback: bool = False) -> Entry:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    night = minimal_night(at, id=str(test.days[0]) if test else "none", day=test.days[0] if test else FIRST)
    verdict = Verdict(
        action="reject", champion=1, challenger=2, reason="", recipe_test=test, false_promotion_chance=0.02
    )
    return Entry(commit="", subject="", rollback=rollback, night=night, verdict=verdict)


TESTED = UnderTest(recipe="b", against="a", arms=("challenger", "champion"))


def proof_on(number: int, past: list[Entry], scores: Columns, **options: object) -> Proof:
    """Returns the proof of night `number` after these entries, newest first."""
    day = FIRST + timedelta(days=number)
    evaluation = replace(make_evaluation("m"), **{"days": (day,), **options})
    return proof_of(past, TESTED, scores, evaluation, GateParams(), day=day, changed=True, held_since=None)


def proof(means: list[float]) -> Proof:
    """Returns the proof of these nights, the last of which is tonight."""
    past = [entry(test_of(number, mean)) for number, mean in enumerate(means[:-1])][::-1]
    spread = np.tile([-0.1, 0.1], 100)
    return proof_on(len(means) - 1, past, {"challenger": means[-1] + spread, "champion": 0 * spread})


def around(mean: float, num: int) -> list[float]:
    return (mean + 0.003 * np.random.default_rng(num).normal(size=num)).tolist()


def test_a_recipe_that_is_better_every_night_is_proven_after_a_week_and_not_before() -> None:
    early, whole = proof(around(0.02, 6)), proof(around(0.02, 7))
    assert early.over_nights
    assert early.over_nights.status is Status.INCONCLUSIVE
    assert early.over_nights.sentence.startswith("6 nights of at least 7: not yet proven better")
    assert whole.over_nights
    assert whole.over_nights.status is Status.BETTER
    assert whole.test
    assert whole.test.num_nights == 7
    assert whole.test.effect.is_proven


def test_a_recipe_that_is_better_on_some_days_and_worse_on_others_is_not() -> None:
    """Though each night by itself would prove one or the other: differences of twenty standard errors."""
    days = [0.02, 0.02, 0.02, -0.02, 0.02, -0.02, 0.02, 0.02]
    over = proof(days).over_nights
    assert over
    assert over.status is Status.INCONCLUSIVE
    assert over.sentence.startswith("not yet proven better over nights")


def test_a_recipe_that_is_worse_every_night_is_proven_worse() -> None:
    over = proof(around(-0.02, 9)).over_nights
    assert over
    assert over.status is Status.WORSE


def test_all_nights_of_a_recipe_have_the_chance_of_its_first() -> None:
    scores = {"challenger": np.arange(4.0), "champion": np.zeros(4)}
    same = [entry(test_of(number, 0.01)) for number in range(3)][::-1]
    assert proof_on(3, same, scores).chance == 0.02
    others = [entry(test_of(number, 0.01, recipe="c")) for number in range(3)][::-1]
    edited = proof_on(3, others, scores)
    assert edited.chance
    assert edited.chance < 0.02
    assert edited.test
    assert edited.test.num_nights == 1


def test_of_several_held_out_days_those_count_that_are_new() -> None:
    """Four are held out on every night, so that each night but the first has one day of its own."""
    days = tuple(FIRST + timedelta(days=number) for number in range(4))
    scores = {"challenger": np.array([9.0, 9, 9, 9, 9, 9, 1, 3]), "champion": np.zeros(8)}
    past = [entry(test_of(number)) for number in range(3)][::-1]
    tonight = proof_on(3, past, scores, days=days, num_by_day=(2, 2, 2, 2)).test
    assert tonight
    assert (tonight.days, tonight.num_nights) == (days[3:], 4)
    assert tonight.differences["score"].mean == 2.0
    unknown = proof_on(3, past, scores, days=days).test
    assert unknown
    assert (unknown.differences, unknown.num_nights) == ({}, 3)


def test_of_nights_that_share_a_held_out_day_one_counts() -> None:
    twice = [test_of(0), test_of(0, days=(FIRST, FIRST + timedelta(days=1))), test_of(1)]
    past = [entry(test) for test in twice][::-1]
    assert [one.days for one in nights_of(past, TESTED, METRICS)] == [twice[0].days, twice[2].days]


def test_nights_before_a_rollback_or_up_to_a_hold_count_no_more() -> None:
    past = [entry(test_of(number)) for number in range(4)][::-1]
    assert len(nights_of(past, TESTED, METRICS)) == 4
    assert len(nights_of([*past[:2], entry(None, rollback=True), *past[2:]], TESTED, METRICS)) == 2
    assert len(nights_of(past, TESTED, METRICS, after=FIRST + timedelta(days=2))) == 1


def test_a_night_whose_scores_are_not_believed_counts_no_more() -> None:
    asked = proof(around(0.02, 4))
    verdict = Verdict(action="no data", champion=1, challenger=2, reason="")
    kept = asked.on(verdict).recipe_test
    assert kept
    assert (kept.differences, kept.num_nights, kept.effect) == ({}, 3, None)
    assert nights_of([entry(kept)], TESTED, METRICS) == []


def test_nights_by_other_metrics_count_no_more() -> None:
    """As after an edit of gate.guardrails, or where the workload's first metric is another one."""
    past = [entry(test_of(number)) for number in range(4)][::-1]
    assert nights_of(past, TESTED, ("score", "-errors")) == []
    assert nights_of(past, TESTED, ("log loss", "score")) == []


def test_a_recipe_that_served_is_tested_anew() -> None:
    past = [entry(test_of(number)) for number in range(4)]
    served = replace(past[2], release=Release(version=2, replaced=1))
    assert len(nights_of([past[3], served, *past[1::-1]], TESTED, METRICS)) == 1


def test_a_recipe_that_was_the_fresher_one_on_all_nights_is_said_to_be() -> None:
    words = "it was the fresher recipe on all of them"
    means = around(0.02, 9)
    past = [entry(test_of(number, mean)) for number, mean in enumerate(means)][::-1]
    scores = {"challenger": 0.02 + np.tile([-0.1, 0.1], 9), "champion": np.zeros(18)}
    alone = proof_on(9, past, scores).over_nights
    assert alone
    assert words in alone.sentence
    turns = [entry(test_of(number, mean, is_turn=number % 2 == 1)) for number, mean in enumerate(means)][::-1]
    in_turn = proof_on(9, turns, scores).over_nights
    assert in_turn
    assert words not in in_turn.sentence


def test_a_proven_recipe_waits_for_a_night_on_which_its_version_is_not_worse() -> None:
    over = proof(around(0.02, 8)).over_nights
    assert over
    effect = Effect(mean=-0.1, low=-0.2, high=-0.05, sd=1, num_samples=100)
    worse = Conclusion(status=Status.WORSE, sentence="worse than the champion", effect=effect)
    tonight = with_tonight(over, worse)
    assert tonight.status is Status.WORSE
    assert tonight.sentence.startswith("worse than the champion; over nights: proven better over nights")
    assert with_tonight(over, replace(worse, status=Status.OPEN)) == over
    broken = Conclusion(status=Status.INVALID, sentence="3 scores are not finite")
    assert with_tonight(over, broken) == broken


def test_a_night_without_the_other_model_or_a_metric_adds_nothing() -> None:
    past = [entry(test_of(number, 0.01)) for number in range(3)][::-1]
    alone = proof_on(3, past, {"challenger": np.arange(4.0)})
    assert alone.test
    assert (alone.test.differences, alone.test.num_nights) == ({}, 3)

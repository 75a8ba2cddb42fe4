"""Tests a changed recipe over nights: is it better than the champion's, whichever day it is?

A night's samples share their day, and a recipe may be better on that day alone. So a changed recipe is judged
by the mean differences of several nights, at least `gate.min_nights`, each on held-out days of its own
(daybreak/statistics/over_nights.py). While the test goes on, nights of the schedule train the recipe and the
champion's in turn (daybreak/night/recipe_turns.py), and each night scores both: tonight's model beside the
champion, or, when the champion's recipe has its turn, the newest version of the recipe that is tested beside
tonight's. So neither recipe is the fresher one on average, users get a fresh champion every other night, and
no night trains twice. A fresh model each night also averages the luck of single trainings.

An edit begins a new test, and so do a rollback and the promotion of a changed recipe. Exempt are the first
version, nights against a model that was adopted and that no night can train, a person's approval, tests by
users, and `gate.min_nights: 1`, by which a night's own samples decide.
Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from operator import attrgetter
from typing import Any

from numpy.typing import NDArray

from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Difference, RecipeTest
from daybreak.contract.record_types import Evaluation, Verdict
from daybreak.contract.sections import GateParams
from daybreak.contract.workload import UNIT
from daybreak.evaluation.scores import Columns, of_days_after
from daybreak.gate.all_metrics import Pair, guardrails_of, pairs_of, success_of, together
from daybreak.gate.chain import difference_of
from daybreak.gate.false_discoveries import chance_of, expected
from daybreak.statistics.over_nights import effect_over_nights
from daybreak.statistics.paired import Rules, status_of
from daybreak.statistics.result import Conclusion, Status
from daybreak.storage.ledger import Entry


@dataclass(frozen=True, kw_only=True)
class UnderTest:
    """A recipe that is tested over nights, and which columns of scores.npy compare it."""

    recipe: str  # a digest
    against: str  # that of the champion
    arms: tuple[str, str]  # of the recipe under test, and of the one that it is compared with


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The evidence on a changed recipe over nights, and the chances that it is judged by."""

    test: RecipeTest | None = None  # over nights; None: tonight's samples alone decide, or users
    over_nights: Conclusion | None = None  # what the nights of the test prove
    chance: float | None = None  # of a false promotion; None for a refresh
    expected: float | None = None  # false promotions of a year, at most, with tonight's
    apart: float | None = None  # of a false proof of a recipe that a person holds; None: nobody does

    def on(self, verdict: Verdict) -> Verdict:
        """Returns the verdict with its test over nights; scores that are not believed do not count there."""
        test = self.test
        if test and verdict.action == "no data":
            before = test.num_nights - bool(test.differences)
            test = replace(test, differences={}, num_nights=before, effect=None)
        if test and self.chance is None and self.apart is None:
            beside = "the recipe under test was not compared tonight"
            if self.over_nights and self.test and self.test.differences:
                beside = f"the recipe under test, beside this one: {self.over_nights.sentence}"
            verdict = replace(verdict, reason=f"{verdict.reason}; {beside}")
        return replace(
            verdict,
            recipe_test=test,
            false_promotion_chance=self.chance,
            false_promotions_expected=self.expected,
        )


def proof_of(
    year: Sequence[Entry],
    tested: UnderTest | None,
    scores: Columns,
    evaluation: Evaluation,
    params: GateParams,
    *,
    day: date,
    changed: bool,
    held_since: date | None,
) -> Proof:
    """Returns the evidence on a changed recipe, tonight's included, and its chance of a false promotion.

    Args:
        year: entries of the ledger, newest first.
        tested: the recipe that is tested over nights; None: there is none.
        scores: the columns of scores.npy.
        evaluation: of the challenger.
        params: of the gate.
        day: tonight's.
        changed: whether tonight's version has to be proven better.
        held_since: the day up to which a person had seen the recipe that is held; None: nobody holds it.
    """
    recipes = (tested.recipe, tested.against) if tested else None
    ask = partial(chance_of, year, recipes, day=day, rate=params.false_discovery_rate)
    chance = ask() if changed else None
    total = expected(year, recipes, day=day, chance=chance) if chance else None
    apart = ask(spent=attrgetter("held_chance")) if held_since else None
    proof = Proof(chance=chance, expected=total, apart=apart)
    if tested is None:
        return proof
    success, guardrails = success_of(params, evaluation), guardrails_of(params, evaluation)
    metrics = (*(one.name for one in evaluation.judged[:1]), *success, *guardrails)
    nights = nights_of(year, tested, metrics, after=held_since)
    seen = max(nights[-1].days) if nights else held_since
    tonight = _tonight(tested, scores, evaluation, (*success, *guardrails), seen=seen)
    test = tonight = replace(tonight, least_nights=params.min_nights, metrics=metrics)
    nights = [*nights, tonight] if tonight.differences else nights
    if not nights:
        return replace(proof, test=test)
    result = _judged(
        nights,
        success=success,
        guardrails=guardrails,
        chance=chance or apart or ask(),
        alpha=params.alpha,
    )
    result = _with_caveats(result, nights, least=test.least_nights)
    effect = result.effect
    assert effect
    test = replace(test, num_nights=len(nights), effect=effect.measured)
    return replace(proof, test=test, over_nights=result)


def _with_caveats(result: Conclusion, nights: Sequence[RecipeTest], *, least: int) -> Conclusion:
    """Returns the result, which proves nothing before the least number of nights."""
    if len(nights) < least:
        wanting = f"{counted(len(nights), 'night')} of at least {least}: {result.sentence}"
        result = replace(result, status=Status.INCONCLUSIVE, sentence=wanting)
    if len(nights) > 1 and not any(night.is_turn for night in nights[1:]):
        only = f"{result.sentence}; it was the fresher recipe on all of them, which may be what helped"
        result = replace(result, sentence=only)
    return result


def nights_of(
    past: Sequence[Entry], tested: UnderTest, metrics: Sequence[str], *, after: date | None = None
) -> list[RecipeTest]:
    """Returns the earlier nights of this test by these metrics, oldest first.

    Of nights that share a held-out day the first counts, as the others tell little more. Left out are nights
    whose days are not all past `after`, and all before a rollback or the promotion of a changed recipe.
    """
    nights: list[RecipeTest] = []
    for test in _before(past, tested):
        newest = max(nights[-1].days) if nights else after
        counts = test.differences and test.days and test.metrics == tuple(metrics)
        if counts and (newest is None or min(test.days) > newest):
            nights.append(test)
    return nights


def _before(past: Sequence[Entry], tested: UnderTest) -> list[RecipeTest]:
    tests = []
    for entry in past:
        test = entry.verdict.recipe_test if entry.verdict else None
        if entry.rollback or (entry.promoted and test and test.recipe != test.against and not test.is_turn):
            break
        if test and (test.recipe, test.against) == (tested.recipe, tested.against):
            tests.append(test)
    return tests[::-1]


def _tonight(
    tested: UnderTest, scores: Columns, evaluation: Evaluation, names: Iterable[str], *, seen: date | None
) -> RecipeTest:
    """Returns what tonight adds to a test: the differences on held-out days after `seen`."""
    days, columns = of_days_after(seen, scores, evaluation)
    test = RecipeTest(
        recipe=tested.recipe,
        against=tested.against,
        days=days,
        is_turn=tested.arms[0] == "candidate",
        least_nights=0,
    )
    pairs = pairs_of(columns, *tested.arms)
    return replace(test, differences=_differences(pairs, names, columns.get(UNIT)))


def _differences(
    pairs: Mapping[str, Pair], names: Iterable[str], units: NDArray[Any] | None
) -> dict[str, Difference]:
    """Returns the mean differences of two models, by metric; empty if one is missing."""
    differences = {}
    for name in names:
        one = difference_of(*pairs.get(name, (None, None)), units)
        if one is None:
            return {}
        differences[name] = one
    return differences


def _judged(
    nights: Sequence[RecipeTest],
    *,
    success: Sequence[str],
    guardrails: Mapping[str, float],
    chance: float,
    alpha: float,
) -> Conclusion:
    """Returns what nights prove together: BETTER, WORSE, or INCONCLUSIVE.

    Args:
        nights: of the test, oldest first; at least one.
        success: metrics of which one must be better, and none worse.
        guardrails: metrics that must hold, and their margins.
        chance: of a false promotion, over all nights.
        alpha: of both ends of the intervals of guardrails.
    """

    def means(name: str) -> list[float]:
        return [night.differences[name].mean for night in nights]

    better = Rules(alpha=2 * chance / len(success), margin=0.0, min_samples=2, refresh=False)
    holds = replace(better, alpha=alpha, refresh=True)
    return together(
        {name: _of_metric(means(name), better) for name in success},
        {name: _of_metric(means(name), replace(holds, margin=margin)) for name, margin in guardrails.items()},
        refresh=False,
    )


def _of_metric(means: Sequence[float], rules: Rules) -> Conclusion:
    effect = effect_over_nights(means, alpha=rules.alpha / 2)
    status = status_of(effect, rules)
    status = Status.INCONCLUSIVE if status is Status.OPEN else status
    goal = f"no worse than the champion by the margin {rules.margin:g}" if rules.refresh else "better"
    words = {
        Status.WORSE: "worse over nights",
        Status.INCONCLUSIVE: f"not yet proven {goal} over nights",
    }.get(status, f"proven {goal} over nights")
    return Conclusion(status=status, effect=effect, sentence=f"{words}: {effect}")


def with_tonight(over_nights: Conclusion, tonight: Conclusion) -> Conclusion:
    """Returns the result of a test over nights, where tonight's version itself has not failed.

    Nights prove a recipe; the version that is to serve may still be invalid or worse on its own night.
    """
    if tonight.effect is None or tonight.status in (Status.NO_DATA, Status.INVALID):
        return tonight
    if tonight.status is Status.WORSE:
        return replace(tonight, sentence=f"{tonight.sentence}; over nights: {over_nights.sentence}")
    return over_nights

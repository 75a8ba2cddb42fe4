"""A person's word against a recipe lasts until a proof on later days, an approval, or another word."""

import os
import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak import commands
from daybreak.contract import params, records
from daybreak.contract.errors import NothingToDo, ParamsError
from daybreak.contract.record_parts import MeasuredEffect
from daybreak.contract.record_types import Approval, Champion, Evaluation, Hold, Night, Verdict, Version
from daybreak.contract.sections import Params
from daybreak.gate import judge, review
from daybreak.rollout import hold, promote, rollback
from daybreak.rollout.hold import InForce
from daybreak.storage import branch, ledger, ledger_notes
from daybreak.storage.home import Home
from tests.minimal_records import minimal_night, promotion
from tests.toy.nights import FIRST, PARAMS, make_evaluation, make_night
from tests.toy.stages import Released, judge_night

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]
WHY = "worse on returns"


def held() -> list[Hold]:
    """The holds in force for the next night."""
    return [one.hold for one in hold.in_force(Home.here())]


def verdict_of(number: int) -> Verdict:
    """The verdict of night `number`, in its folder."""
    day = FIRST + timedelta(days=number)
    return records.read(Verdict, Home.here().nights / day.isoformat() / records.RUN)


@pytest.fixture
def taken_back(home: Path, released: Released, settings: Params) -> Params:
    """Version 2, a refresh of version 1 that is no worse, taken back by a person."""
    released(0.9, 0.9)
    os.chdir(home)
    assert rollback.rollback(Home.here(), settings.register_, reason=WHY, by="ann").version == 1
    return settings


@pytest.fixture
def three_served(home: Path, released: Released, settings: Params) -> Params:
    """Versions 1 to 3, each promoted on a night."""
    released(0.9, 0.9, 0.9)
    os.chdir(home)
    return settings


def test_the_night_after_a_rollback_does_not_promote_the_same_recipe_on_the_same_effect(
    taken_back: Params, release: Any
) -> None:
    assert release(2, 0.9) is None
    verdict = verdict_of(2)
    night = records.read(Night, records.RUN)
    assert (verdict.action, verdict.approve_until) == ("promote", night.decide_until)
    assert f"ann took back version 2 on {datetime.now(UTC):%Y-%m-%d}: {WHY}" in verdict.reason
    assert "or a proof that it is better on days after 2025-01-11" in verdict.reason
    assert "daybreak lift --reason TEXT" in verdict.reason


def test_a_proof_on_a_week_of_later_days_ends_the_hold(taken_back: Params, release: Any) -> None:
    assert [release(number, 1.0) for number in range(2, 8)] == [None] * 6
    assert "no version of that recipe serves without" in verdict_of(7).reason
    assert release(8, 1.0).version == 9
    assert verdict_of(8).recipe_test.num_nights == 7
    assert "which ends the hold: ann took back version 2" in verdict_of(8).reason


def test_a_proof_on_a_later_day_ends_the_hold_where_a_night_decides(
    taken_back: Params, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.toy.nights.PARAMS", PARAMS + "gate: {min_nights: 1}\n")
    assert release(2, 1.0).version == 3
    assert "which ends the hold: ann took back version 2" in verdict_of(2).reason
    assert held() == []
    assert release(3, 1.0).version == 4  # a refresh, no worse


def test_a_person_who_approves_ends_the_hold(taken_back: Params, home: Path) -> None:
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    os.chdir(make_night(home, 2, weight=0.9, champion=champion))
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    records.write(replace(records.read(Night, records.RUN), decide_until=until), records.RUN)
    verdict = judge_night()
    given = records.read(Night, records.RUN), records.read(Version, records.RUN), verdict
    said = review.approve(Home.here(), *given, by="ann")
    loaded, champion = params.load(Path()), records.read(Champion, records.RUN)
    recipe = {"workload": loaded.workload, "train": loaded.train}
    made = promote.promote(*given, champion, **recipe, approval=said, home=Home.here())
    assert (made.version, held()) == (3, [])


def test_a_person_may_lift_it_and_the_ledger_says_so(
    taken_back: Params, release: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.lift(Home.here(), reason="it was the returns desk", by="bob")
    assert (
        f"lifted: ann took back version 2 on {datetime.now(UTC):%Y-%m-%d}: {WHY}" in capsys.readouterr().out
    )
    (note,) = ledger_notes.read(Home.here())
    assert note.text == "bob lifted the hold on version 2: it was the returns desk"
    assert release(2, 0.9).version == 3
    with pytest.raises(NothingToDo, match="no recipe is held"):
        commands.lift(Home.here(), reason="again")


def test_a_hold_lasts_for_as_many_days_as_asked_and_watch_leaves_none(three_served: Params) -> None:
    rollback.rollback(Home.here(), three_served.register_, reason=WHY, hold_days=2)
    (recipe,) = held()[0].recipes
    last = FIRST + timedelta(days=4)
    assert [held()[0].until, held()[0].versions] == [last, (3,)]
    assert len(hold.on(Home.here(), {recipe}, day=last)) == 1
    assert hold.on(Home.here(), {recipe}, day=last + timedelta(days=1)) == []
    assert hold.on(Home.here(), {"another"}, day=last) == []
    commands.lift(Home.here(), reason="a test")
    rollback.rollback(Home.here(), three_served.register_, reason="proven worse", by="watch", hold_days=0)
    assert held() == []


def test_a_second_rollback_to_the_same_version_leaves_the_first_hold_and_one_to_the_taken_back_ends_it(
    three_served: Params,
) -> None:
    rollback.rollback(Home.here(), three_served.register_, reason=WHY)  # to version 2
    rollback.rollback(Home.here(), three_served.register_, reason=WHY, to=1, hold_days=1)
    assert [(one.versions, one.until is None) for one in held()] == [((2,), False), ((3,), True)]
    rollback.rollback(Home.here(), three_served.register_, reason="it was version 2 alone", to=3)
    assert [one.versions for one in held()] == [(2,)]  # and none of version 1, which nobody rejected


def test_what_watch_takes_back_and_what_serves_again_by_it_is_not_held(three_served: Params) -> None:
    rollback.rollback(Home.here(), three_served.register_, reason=WHY)  # to version 2
    rollback.rollback(Home.here(), three_served.register_, reason="proven worse", by="watch", hold_days=0)
    assert [one.versions for one in held()] == [(3,)]
    with pytest.raises(ParamsError, match="--hold-days 4000000 is not -1, until lifted, nor a number"):
        rollback.rollback(Home.here(), three_served.register_, reason=WHY, to=3, hold_days=4_000_000)


def test_a_recipe_that_was_declared_the_same_is_held_too(taken_back: Params) -> None:
    assert hold.on(Home.here(), {"edited"}, day=FIRST) == []
    ledger_notes.add(Home.here(), "the same", versions=(1,), recipe="edited")
    assert hold.on(Home.here(), {"edited"}, day=FIRST) != []
    assert hold.on(Home.here(), {"another"}, day=FIRST) == []


def test_a_rejection_with_a_reason_holds_the_recipe_and_one_without_does_not() -> None:
    verdict = promotion(champion=1, challenger=3, recipe="r")

    def left_by(**said: Any) -> Hold | None:
        answer = Approval(
            champion=1, challenger=3, action="promote", by="ann", answered_at=datetime.now(UTC), **said
        )
        return hold.of_rejection(verdict, answer, since=FIRST)

    made = left_by(approved=False, reason=WHY)
    assert made and (made.recipes, made.versions, made.since) == (("r",), (3,), FIRST)
    assert str(made) == f"ann rejected version 3 on {datetime.now(UTC):%Y-%m-%d}: {WHY}"
    assert left_by(approved=False, reason="") is None
    assert left_by(approved=True, reason=WHY) is None


@pytest.mark.parametrize(
    ("scores", "low", "days", "ends"),
    [
        ("replay", 0.05, (12, 13), True),
        ("replay", 0.05, (11, 12), False),  # seen by whoever took it back
        ("replay", -0.01, (12, 13), False),
        ("replay", 0.05, (), False),
        ("both", 0.05, (12, 13), False),
    ],
)
def test_only_a_proof_by_scores_of_later_days_alone_ends_it(
    scores: Any, low: float, days: tuple[int, ...], ends: bool
) -> None:
    made = Hold(
        recipes=("r",),
        what="took back",
        versions=(2,),
        since=date(2025, 1, 11),
        until=None,
        by="ann",
        reason=WHY,
        at=datetime(2025, 1, 12, tzinfo=UTC),
    )
    verdict = promotion(champion=1, challenger=3, effect=MeasuredEffect(mean=0.1, low=low, high=0.2))
    night = minimal_night(made.at, day=FIRST)
    evaluation: Evaluation = replace(make_evaluation("m"), days=tuple(date(2025, 1, day) for day in days))

    held = [InForce(commit="c", hold=made)]
    applied = judge.under_hold(verdict, held, evaluation, night=night, scores=scores)
    assert ((applied.approve_until is None), applied.held) == (ends, ("c",))


def test_whatever_people_and_nights_do_in_turn_no_word_is_overruled(
    home: Path, release: Any, settings: Params
) -> None:
    """After a person's rollback, versions of the recipe that are only no worse never come to serve."""
    draw = random.Random(1)  # both weights come after the rollback
    release(0, 0.9)
    for number in range(1, 7):
        before, word = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here())), held()
        weight = draw.choice([0.9, 0.9, 0.9, 1.0])
        made = release(number, weight)
        if made and word:
            assert weight == 1.0 and before and verdict_of(number).effect.is_proven
        os.chdir(home)
        if made and draw.random() < 0.6:
            rollback.rollback(Home.here(), settings.register_, reason=WHY, by="ann")
            assert held()

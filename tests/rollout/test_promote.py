"""What a promotion refuses before it asks MLflow or the ledger for anything."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from daybreak.contract import params
from daybreak.contract.errors import NothingToDo, NotYet, ReleaseError
from daybreak.contract.record_types import Approval, Champion, Verdict, Version
from daybreak.rollout.promote import promote
from daybreak.storage.home import Home
from tests.minimal_records import minimal_night, promotion

NOW = datetime.now(UTC)
PARAMS = params.check(
    {"source": "tests.fakes:TwoDays", "workload": "tests.fakes:Nothing", "backend": "tests.fakes:Nothing"}
)
NIGHT = minimal_night(NOW, id="2025-01-10", trigger="schedule", code_commit="c")
VERSION = Version(name="daybreak", number=4, night=NIGHT.id, data_digest="d", model_digest="m", run_id="r")
CHAMPION = Champion(version=3, replaced=2, model_digest="c", night="before")
VERDICT = promotion(champion=3, challenger=4)
ANSWER = Approval(
    champion=3, challenger=4, action="promote", approved=True, by="a person", answered_at=NOW, reason="fine"
)


def promoted(
    verdict: Verdict, *, champion: Champion | None = CHAMPION, approval: Approval | None = None
) -> None:
    recipe = {"workload": PARAMS.workload, "train": PARAMS.train}
    promote(NIGHT, VERSION, verdict, champion, **recipe, approval=approval, home=Home.here())


def test_what_the_gate_rejects_stays_out() -> None:
    with pytest.raises(NothingToDo, match="the champion stays: worse"):
        promoted(replace(VERDICT, action="reject", reason="worse"))


@pytest.mark.parametrize("action", ["wait", "no data"])
def test_what_cannot_be_judged_stays_out(action: str) -> None:
    with pytest.raises(NothingToDo, match="the champion stays"):
        promoted(replace(VERDICT, action=action))


def test_a_person_who_is_asked_is_waited_for() -> None:
    with pytest.raises(NotYet, match="version 4 waits for a person until"):
        promoted(replace(VERDICT, approve_until=NOW + timedelta(hours=24)))


def test_an_approval_of_another_verdict_is_none() -> None:
    asked = replace(VERDICT, approve_until=NOW + timedelta(hours=24))
    with pytest.raises(NotYet):
        promoted(asked, approval=replace(ANSWER, challenger=5))


def test_what_a_person_rejected_stays_out() -> None:
    asked = replace(VERDICT, approve_until=NOW + timedelta(hours=24))
    with pytest.raises(NothingToDo, match="was rejected by a person"):
        promoted(asked, approval=replace(ANSWER, approved=False))


@pytest.mark.parametrize("champion", [None, replace(CHAMPION, version=2)])
def test_a_verdict_against_another_champion_is_refused(champion: Champion | None) -> None:
    against = champion.version if champion else 0
    with pytest.raises(ReleaseError, match=f"version 4 against 3, but tonight's is 4 against {against}; run"):
        promoted(VERDICT, champion=champion)


def test_a_verdict_on_another_version_is_refused() -> None:
    with pytest.raises(ReleaseError, match="the verdict is on version 5 against 3"):
        promoted(replace(VERDICT, challenger=5))

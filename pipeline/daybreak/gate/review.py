"""Stage `approve`: records a person's answer to a verdict that waits for one.

The answer is a record beside the verdict, `approval.json`, which the ledger keeps with the night. The first
answer stands, whether given in Airflow or on the command line, and `promote` acts on it.
"""

import logging
from typing import TYPE_CHECKING

from daybreak.contract import clock, records
from daybreak.contract.errors import NothingToDo, ReleaseError
from daybreak.contract.record_types import Approval, Hold, Night, Stop, Verdict, Version
from daybreak.contract.user import user
from daybreak.registry import approval as approvals
from daybreak.rollout import hold
from daybreak.storage import ledger, night_folders
from daybreak.storage.home import Home
from daybreak.storage.journal import alone

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

LONGEST = 500  # characters of a reason


def approve(
    home: Home,
    night: Night,
    version: Version,
    verdict: Verdict,
    *,
    reason: str = "",
    by: str = "",
    reject: bool = False,
) -> Approval:
    """Answer a verdict that waits for a person; asked again with the same answer, nothing changes.

    Raises NothingToDo where nobody is asked or it is too late, and ReleaseError where the gate failed, where
    somebody gave another answer before, or where an unproven version is approved without a reason.

    Args:
        home: whose nights these are.
        night: it is decided until its `decide_until`.
        version: tonight's.
        verdict: of the gate.
        reason: why; needed to approve what is not proven
        by: who; you if left out
        reject: keep the champion
    """
    name = f"version {verdict.challenger}"
    if verdict.approve_until is None or not approvals.may_be_approved(verdict):
        if verdict.action == "promote":
            raise NothingToDo(f"{name} is promoted without a person; release.approval says who is asked")
        why, remedy = "a failed gate stands", "fix what failed and open a new night"
        if verdict.inconclusive:
            why = "release.approval never asks for it"
            remedy = "set release.approval: inconclusive and open a new night"
        raise ReleaseError(f"{name} cannot be approved, {why}: {verdict.action}: {verdict.reason}; {remedy}")
    with alone(records.path_of(Approval, home.records).with_suffix(".lock")):
        said = approvals.answer_to(verdict, records.find(Approval, home.records))
        if said is None:
            said = _answer(home, night, verdict, approved=not reject, by=by, reason=" ".join(reason.split()))
            held = hold.of_rejection(verdict, said, since=night_folders.newest_day(home))
            if held:
                records.write(held, home.records)
            else:  # of an answer to an earlier verdict of tonight
                records.path_of(Hold, home.records).unlink(missing_ok=True)
            records.write(said, home.records)
    if said.approved is reject:
        answer = approvals.words(verdict, said)
        raise ReleaseError(f"{name} {answer}, and the first answer stands; use rollback once it serves")
    log.info("%s %s", name, approvals.words(verdict, said))
    if left := records.find(Hold, home.records):
        log.info("%s", hold.consequence(left))
    return said


def _answer(home: Home, night: Night, verdict: Verdict, *, approved: bool, by: str, reason: str) -> Approval:
    now = clock.utc()
    assert verdict.approve_until is not None
    if now >= verdict.approve_until:
        until = f"{verdict.approve_until:%Y-%m-%d %H:%M} UTC"
        raise NothingToDo(
            f"the champion stays: version {verdict.challenger} was to be approved until {until}, "
            f"and it is {now:%Y-%m-%d %H:%M}"
        )
    if ledger.is_over(home, night):
        raise NothingToDo(
            f"night {night.id} is closed, and its champion stays; open a new night with: "
            f"{ledger.new_night(home, night)}"
        )
    stopped = records.find(Stop, home.records)
    if why := f"was {approvals.stopped(stopped)}" if stopped else ledger.overtaken(home, night):
        raise NothingToDo(f"night {night.id} {why}; open a new night with: {ledger.new_night(home, night)}")
    if approved and verdict.inconclusive and not reason:
        raise ReleaseError(
            f"version {verdict.challenger} is not proven ({verdict.reason}); "
            f"say by --reason why it should serve"
        )
    return Approval(
        champion=verdict.champion,
        challenger=verdict.challenger,
        action=verdict.action,
        approved=approved,
        by=by or user(),
        reason=reason[:LONGEST],
        answered_at=now.replace(microsecond=0),
    )

"""Decides when a person has to approve a verdict, and what the answer allows.

The parameter `release.approval` says which verdicts of the gate a person is asked to approve, until the night
has to be decided; without an answer the champion stays. A verdict that failed can never be approved: only one
that promotes, or that rejects for want of proof alone.
"""

from dataclasses import replace
from datetime import datetime

from daybreak.contract.errors import NothingToDo, NotYet
from daybreak.contract.record_types import Approval, Night, Stop, Verdict
from daybreak.contract.sections import ReleaseParams


def request_approval(verdict: Verdict, params: ReleaseParams, *, until: datetime) -> Verdict:
    """Returns the verdict, with a deadline for a person's approval where params.yaml asks for approval."""
    needs_approval = {
        "never": False,
        "inconclusive": verdict.action != "promote",
        "always": True,
    }[params.approval]
    return replace(verdict, approve_until=until if needs_approval and may_be_approved(verdict) else None)


def may_be_approved(verdict: Verdict) -> bool:
    """Returns whether a person may approve it: a promotion, or a rejection for want of proof only."""
    return verdict.action == "promote" or (verdict.action == "reject" and verdict.inconclusive)


def answer_to(verdict: Verdict, approval: Approval | None) -> Approval | None:
    """Returns the approval if it answers this verdict; a second run of the gate may decide otherwise."""
    if approval is None or verdict.approve_until is None:
        return None
    answered_to = (approval.champion, approval.challenger, approval.action)
    return approval if answered_to == (verdict.champion, verdict.challenger, verdict.action) else None


def check_promotion(night: Night, verdict: Verdict, approval: Approval | None, *, now: datetime) -> None:
    """Returns if the version is to be promoted.

    Raises NothingToDo where the champion stays, and NotYet while a person may still answer.
    """
    if verdict.approve_until is None or not may_be_approved(verdict):
        if verdict.action != "promote":
            raise NothingToDo(f"the champion stays: {verdict.reason}")
        return
    answer = answer_to(verdict, approval)
    over = now >= verdict.approve_until
    if answer is None and not over:
        raise NotYet(
            f"version {verdict.challenger} {words(verdict, None)}; "
            f"answer with: daybreak approve --night {night.id} --reason TEXT [--reject]"
        )
    if answer is None or not answer.approved:
        raise NothingToDo(
            f"the champion stays: version {verdict.challenger} {words(verdict, answer, over=over)}"
        )


def words(verdict: Verdict, approval: Approval | None, *, over: bool = False) -> str:
    """Returns the end of a sentence: what a person answered, and why; "" where nobody is asked."""
    answer = answer_to(verdict, approval)
    why = f": {answer.reason or 'no reason given'}" if answer else ""
    return f"{answered(verdict, answer, over=over)}{why}"


def answered(verdict: Verdict, answer: Approval | None, *, over: bool = False) -> str:
    """Returns the end of a sentence: whether a person approved the version; "" where nobody is asked."""
    if verdict.approve_until is None:
        return ""
    if answer is None:
        until = f"{verdict.approve_until:%Y-%m-%d %H:%M} UTC"
        return f"was approved by nobody until {until}" if over else f"waits for a person until {until}"
    what, at = "approved" if answer.approved else "rejected", f"{answer.answered_at:%Y-%m-%d %H:%M} UTC"
    return f"was {what} by {answer.by} at {at}"


def reason(verdict: Verdict, approval: Approval | None, *, over: bool = False) -> str:
    """Returns the reason of the verdict, and what a person answered to it."""
    if verdict.approve_until is None:
        return verdict.reason
    return f"{verdict.reason}; version {verdict.challenger} {words(verdict, approval, over=over)}"


def ending(verdict: Verdict, approval: Approval | None) -> str:
    """Returns how a night ended, in a word, and why: a person may have approved what was not proven."""
    answer = answer_to(verdict, approval)
    approved = verdict.action != "promote" and answer is not None and answer.approved
    return f"{'promote' if approved else verdict.action}: {reason(verdict, approval, over=True)}"


def stopped(stop: Stop) -> str:
    """Returns the end of a sentence: who stopped the night, when and why."""
    return f"stopped by {stop.by} at {stop.stopped_at:%Y-%m-%d %H:%M} UTC: {stop.reason or 'no reason given'}"

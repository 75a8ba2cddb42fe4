"""Holds recipes that a person took back or rejected, until a new proof or a person's next word.

A rollback by a person, and a rejection with a reason, leave a record `Hold` in the ledger. What a person saw
is often nothing that held-out scores measure, so the same recipe may not come back the next night on the same
evidence. While a hold is in force, a version of its recipes, a refresh included, serves only

- where a person approves it,
- or where it is proven better than the champion on days that all came after the person's word.

Either ends the hold, as do a rollback of a person to a version of that recipe, `until`, and the command
`lift`, which writes a note into the ledger.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from daybreak.contract import records
from daybreak.contract.errors import NothingToDo, ReleaseError
from daybreak.contract.formats import one_line
from daybreak.contract.record_types import Approval, Evaluation, Hold, Night, Verdict
from daybreak.storage import branch, ledger, ledger_notes
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

WATCH = "watch"  # who rolls back on evidence, and leaves no hold
RECENT = 20  # newest entries that are searched for the newest day of data


@dataclass(frozen=True, kw_only=True)
class InForce:
    """A hold that nothing has ended, and the commit of the ledger that it is in."""

    commit: str
    hold: Hold

    def __str__(self) -> str:
        """Returns what is held, why, and how it ends, in a sentence."""
        return f"{self.hold}; {consequence(self.hold)}"


def consequence(hold: Hold) -> str:
    """Returns what a hold means and how it ends, as a sentence."""
    until = f" until {hold.until}" if hold.until else ""
    return (
        f"its recipe is held{until}: a version of it serves if a person approves it, or once one is proven "
        f"better on days after {hold.since}; end the hold with: daybreak lift --reason TEXT"
    )


def in_force(home: Home, *, day: date | None = None) -> list[InForce]:
    """Returns the holds that nothing has ended yet, newest first; on a day of data, the next if left out."""
    commits = ledger.commits(home)
    path = records.path_of(Hold, records.RUN)
    texts = branch.texts_at(home, [commit.id for commit in commits], [path])
    num = max((number for number, files in enumerate(texts, start=1) if files), default=0)
    if not num:
        return []
    lifted = {commit for note in ledger_notes.read(home) for commit in note.lifts}
    day = day or _newest_day(home) + timedelta(days=1)
    found: list[InForce] = []
    served: set[str] = set()  # recipes that came to serve later, by a proof or a person's word
    for entry in ledger.entries_of(home, commits[:num]):
        made = entry.hold if entry.commit not in lifted else None
        left = tuple(one for one in made.recipes if one not in served) if made else ()
        if made and left and (made.until is None or day <= made.until):
            found.append(InForce(commit=entry.commit, hold=replace(made, recipes=left)))
        if entry.release and not (entry.rollback and _by(entry) == WATCH):
            served.add(entry.release.lineage.get("recipe", ""))
    return found


def on(home: Home, recipes: Iterable[str], *, day: date) -> list[InForce]:
    """Returns the holds in force on a day on any of these recipes, newest first."""
    asked = set(recipes)
    return [one for one in in_force(home, day=day) if asked.intersection(one.hold.recipes)]


def apply(
    verdict: Verdict, held: Sequence[InForce], evaluation: Evaluation, *, night: Night, better: bool
) -> Verdict:
    """Returns the verdict as the holds on the challenger's recipe leave it.

    Args:
        verdict: of the gate.
        held: what is in force on its recipe.
        evaluation: of the challenger.
        night: tonight's, until whose end a person may answer.
        better: whether the challenger is proven better than the champion, not only no worse.
    """
    if not held:
        return verdict
    since = max(one.hold.since for one in held)
    if verdict.action == "promote" and better and evaluation.days and min(evaluation.days) > since:
        return replace(verdict, reason=f"{verdict.reason}, on days after {since}, which ends: {held[0].hold}")
    more = f" (and {len(held) - 1} more)" if len(held) > 1 else ""
    verdict = replace(verdict, reason=f"{verdict.reason}; {held[0]}{more}")
    return replace(verdict, approve_until=night.decide_until) if verdict.action == "promote" else verdict


def of_rollback(
    home: Home, releases: Sequence[Commit], *, to: int, serving: int, days: int, by: str, reason: str
) -> Hold | None:
    """Returns the hold that a rollback leaves; None for none, or where no recipe is on record.

    Args:
        home: whose nights these are.
        releases: the commits that let another version serve, newest first.
        to: the version that is to serve again.
        serving: that serves until then.
        days: of data for which it is to last; below 0: until it is lifted.
        by: who asked for it.
        reason: why.
    """
    served = ledger.served([commit.serves or 0 for commit in releases])
    versions = served[served.index(to) + 1 :] if to in served else [serving]
    made = ledger.promotions(home, *versions)
    recipes = {one.release.lineage.get("recipe", "") for one in made if one and one.release} - {""}
    if days == 0 or not recipes:
        return None
    since = _newest_day(home)
    return Hold(
        recipes=tuple(sorted(recipes)),
        what="took back",
        versions=tuple(versions),
        kept=to,
        since=since,
        until=None if days < 0 else since + timedelta(days=days),
        by=by,
        reason=reason,
        at=datetime.now(UTC).replace(microsecond=0),
    )


def of_rejection(night: Night, verdict: Verdict, answer: Approval) -> Hold | None:
    """Returns the hold that a person's answer leaves; None unless it rejects, with a reason."""
    if answer.approved or not answer.reason or not verdict.recipe:
        return None
    return Hold(
        recipes=(verdict.recipe,),
        what="rejected",
        versions=(verdict.challenger,),
        kept=verdict.champion,
        since=night.day,
        until=None,
        by=answer.by,
        reason=answer.reason,
        at=answer.answered_at,
    )


def lift(home: Home, *, reason: str, by: str) -> list[InForce]:
    """Ends all holds in force, and returns them; raises NothingToDo where there is none."""
    if not reason.strip():
        raise ReleaseError("a hold ends with a reason, which the ledger keeps; give --reason TEXT")
    held = in_force(home)
    if not held:
        raise NothingToDo("no recipe is held")
    versions = sorted({version for one in held for version in one.hold.versions})
    of = ", ".join(map(str, versions))
    text = f"{by} lifted the hold on the recipe of version {of}: {reason}"
    ledger_notes.add(home, one_line(text), versions=versions, lifts=[one.commit for one in held])
    return held


def _newest_day(home: Home) -> date:
    """Returns the newest day of data that a night of the ledger was for."""
    return max(entry.night.day for entry in ledger.history(home, RECENT))


def _by(entry: Entry) -> str:
    """Returns who asked for a rollback."""
    return entry.events.events[0].by if entry.events and entry.events.events else ""

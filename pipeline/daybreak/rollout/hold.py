"""Holds recipes that a person took back or rejected, until a new proof or a person's next word.

A rollback by a person, and a rejection with a reason, leave a record `Hold` in the ledger. What a person saw
is often nothing that held-out scores measure, so the same recipe may not come back the next night on the same
evidence. While a hold is in force, a version of its recipes, a refresh included, serves only

- where a person approves it,
- or where it is proven better than the champion on days that all came after the person's word. Where users
  judge (`gate.scores`), held-out scores prove nothing against what a person saw of them.

Either ends the hold, and the verdict of that night names it (`Verdict.held`). So do a rollback by a person to
a version that was taken back, the day `until`, and the command `lift`, which writes a note into the ledger.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from daybreak.contract import records
from daybreak.contract.errors import NothingToDo, ParamsError
from daybreak.contract.formats import one_line
from daybreak.contract.record_types import Approval, Evaluation, Events, Hold, Night, Verdict
from daybreak.storage import branch, ledger, ledger_notes
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

WATCH = "watch"  # who rolls back on evidence, and leaves no hold
LONGEST = 36_500  # days
RECENT = 20  # newest entries, of which a rollback has the day of an earlier night


@dataclass(frozen=True, kw_only=True)
class InForce:
    """A hold that nothing has ended, and the commit of the ledger that it is in; "" for tonight's own."""

    commit: str
    hold: Hold

    def __str__(self) -> str:
        """Returns what is held, why, and how it ends, as a sentence."""
        return f"{self.hold}; {consequence(self.hold)}"


def consequence(hold: Hold) -> str:
    """Returns what a hold means and how it ends, as a sentence."""
    until = f"until {hold.until}, " if hold.until else ""
    return (
        f"{until}no version of that recipe serves without a person's approval, or a proof that it is better "
        f"on days after {hold.since}; end this hold with: daybreak lift --reason TEXT"
    )


def in_force(home: Home, *, day: date | None = None) -> list[InForce]:
    """Returns the holds that nothing has ended yet, newest first; on a day of data, the next if left out."""
    holds = _not_ended(home, branch.ledger_tip(home))
    if not holds:
        return []
    day = day or max(entry.night.day for entry in ledger.history(home, limit=RECENT)) + timedelta(days=1)
    return [one for one in holds if one.hold.until is None or day <= one.hold.until]


@lru_cache(maxsize=8)  # what a commit follows never changes
def _not_ended(home: Home, tip: str) -> tuple[InForce, ...]:
    """Returns the holds of a ledger that no later entry or note has ended, newest first."""
    commits = branch.commits_up_to(home, tip)
    path = {kind: str(records.path_of(kind, records.RUN)) for kind in (Hold, Verdict, Events)}
    ids = [commit.id for commit in commits]
    if not any(branch.texts_at(home, ids, [path[Hold]])):
        return ()  # other records, of which a ledger may have thousands, need not be read
    texts = branch.texts_at(home, ids, list(path.values()))
    ended = {commit for note in ledger_notes.read(home, tip) for commit in note.lifts}
    again: set[int] = set()  # versions that a person let serve once more
    holds = []
    for commit, files in zip(commits, texts, strict=True):
        if commit.rollback and commit.serves:
            events = records.loads(Events, files.get(path[Events], ""), source=commit.id[:9]).events
            again |= {commit.serves} if events and events[0].by != WATCH else set()
        elif commit.serves and path[Verdict] in files:
            ended |= {*records.loads(Verdict, files[path[Verdict]], source=commit.id[:9]).held}
        if path[Hold] in files and commit.id not in ended and (commit.rollback or not commit.serves):
            hold = records.loads(Hold, files[path[Hold]], source=commit.id[:9])
            if not again.intersection(hold.versions):
                holds.append(InForce(commit=commit.id, hold=hold))
    return tuple(holds)


def on(home: Home, recipes: Iterable[str], *, day: date) -> list[InForce]:
    """Returns the holds on a day on any of these recipes, newest first, with that of tonight's own folder."""
    said = records.find(Hold, home.records)  # before the gate was run once more
    tonight = [InForce(commit="", hold=said)] if said else []
    held = [*tonight, *in_force(home, day=day)]
    asked = _declared_equal(home, recipes) if held else set()
    return [one for one in held if asked.intersection(one.hold.recipes)]


def _declared_equal(home: Home, recipes: Iterable[str]) -> set[str]:
    """Returns these recipes, and all that persons declared to be the same (`same-recipe`)."""
    notes = [note for note in ledger_notes.read(home) if note.recipe]
    made = ledger.promotions(home, *(version for note in notes for version in note.versions))
    of = {one.release.version: one.release.lineage.get("recipe", "") for one in made if one and one.release}
    equal = [{note.recipe, *(of.get(version, "") for version in note.versions)} - {""} for note in notes]
    same = {*recipes}
    while more := {one for group in equal if group & same for one in group} - same:
        same |= more
    return same


def is_new_evidence(held: Sequence[InForce], evaluation: Evaluation) -> bool:
    """Returns whether all days that the models were compared on came after the words of these holds."""
    return bool(evaluation.days) and min(evaluation.days) > max(one.hold.since for one in held)


def apply(verdict: Verdict, held: Sequence[InForce], *, night: Night, proven: bool) -> Verdict:
    """Returns the verdict as the holds on the challenger's recipe leave it.

    Args:
        verdict: of the gate.
        held: what is in force on its recipe.
        night: tonight's, until whose end a person may answer.
        proven: whether the challenger is proven better than the champion on days after all of these holds.
    """
    if not held:
        return verdict
    verdict = replace(verdict, held=tuple(one.commit for one in held if one.commit))
    if verdict.action == "promote" and proven:
        return replace(verdict, reason=f"{verdict.reason}, which ends the hold: {held[0].hold}")
    more = f" (and {len(held) - 1} more)" if len(held) > 1 else ""
    verdict = replace(verdict, reason=f"{verdict.reason}; {held[0]}{more}")
    return replace(verdict, approve_until=night.decide_until) if verdict.action == "promote" else verdict


def of_rollback(
    home: Home,
    releases: Sequence[Commit],
    *,
    to: int,
    serving: int,
    days: int,
    since: date,
    by: str,
    reason: str,
) -> Hold | None:
    """Returns the hold that a rollback leaves; None for none, or where no recipe is on record.

    Who takes a rollback back, and lets the version before it serve again, rejects nothing.

    Args:
        home: whose nights these are.
        releases: the commits that let another version serve, newest first.
        to: the version that is to serve again.
        serving: that serves until then.
        days: of data for which it is to last; -1: until it is lifted; ParamsError below that.
        since: newest day of data that anybody may have seen.
        by: who asked for it.
        reason: why.
    """
    if not -1 <= days <= LONGEST:
        raise ParamsError(f"--hold-days {days} is not -1, until lifted, nor a number of days up to {LONGEST}")
    served = ledger.served([commit.serves or 0 for commit in releases])
    if days == 0 or (to not in served and releases[0].rollback):
        return None
    versions = served[served.index(to) + 1 :] if to in served else [serving]
    made = ledger.promotions(home, *versions)
    recipes = {one.release.lineage.get("recipe", "") for one in made if one and one.release} - {""}
    if not recipes:
        log.warning("no recipe is held: that of version %s is not on record", ", ".join(map(str, versions)))
        return None
    return Hold(
        recipes=tuple(sorted(recipes)),
        what="took back",
        versions=tuple(versions),
        since=since,
        until=None if days < 0 else since + timedelta(days=days),
        by=by,
        reason=reason,
        at=datetime.now(UTC).replace(microsecond=0),
    )


def of_rejection(verdict: Verdict, answer: Approval, *, since: date) -> Hold | None:
    """Returns the hold that a person's answer leaves; None unless it rejects, with a reason."""
    if answer.approved or not answer.reason or not verdict.recipe:
        return None
    return Hold(
        recipes=(verdict.recipe,),
        what="rejected",
        versions=(verdict.challenger,),
        since=since,
        until=None,
        by=answer.by,
        reason=answer.reason,
        at=answer.answered_at,
    )


def lift(home: Home, *, reason: str, by: str) -> list[InForce]:
    """Ends all holds in force, and returns them.

    Raises NothingToDo where there is none, and ParamsError without a reason.
    """
    if not reason.strip():
        raise ParamsError("a hold ends with a reason, which the ledger keeps; give --reason TEXT")
    held = in_force(home)
    if not held:
        raise NothingToDo("no recipe is held")
    versions = sorted({version for one in held for version in one.hold.versions})
    of = f"version{'s' * (len(versions) > 1)} {', '.join(map(str, versions))}"
    ledger_notes.add(
        home,
        one_line(f"{by} lifted the hold on {of}: {reason}"),
        versions=versions,
        lifts=[one.commit for one in held],
    )
    return held

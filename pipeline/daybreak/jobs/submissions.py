"""Journals a job's requests for machines (`submissions.json`) and its other fallbacks (`fallbacks.json`).

`again.json` counts the jobs without a result that are no longer in the journal.

An attempt is written down before its job is submitted, and what it leaves its machines for before they are
left, so that a process restarted after a kill does it. Job names and handles identify jobs at the backend,
and no job is submitted before the one before it has ended.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybreak.contract import records
from daybreak.contract.backend import JobState
from daybreak.contract.record_parts import Placement, Rental, Taken
from daybreak.storage.journal import Journal
from daybreak.storage.request_journal import Request, RequestJournal

FILE = "submissions.json"


@dataclass(frozen=True, kw_only=True)
class JobAttempt(Request):
    """One request for machines, by its number. Times are seconds since 1970; "", None and 0 mean not yet."""

    job: str  # its name at the backend
    placement: Placement
    at: float
    run_at: float = 0.0  # when it was first seen running
    queued_at: float = 0.0  # when it was last seen to wait again, after it ran
    again_at: float = 0.0  # when it was last seen to run again, after that
    leaving: bool = False  # it is to end: hangs, changes its placement, or is cancelled
    hung: bool = False
    to: Placement | None = None  # the placement that it leaves for
    taken: Taken | None = None  # that change, as the report names it
    ended: str = ""  # the state it ended in
    ended_at: float = 0.0  # when the end was seen

    @property
    def live(self) -> bool:
        """Whether its job may exist."""
        return not self.ended

    @property
    def waits(self) -> bool:
        """Whether it waits for machines by the newest look, for the first time or again."""
        return not self.run_at or self.queued_at > self.again_at

    def holds_machines(self, state: JobState | None) -> bool:
        """Returns whether the job has held machines since the look before, if it is in this state now."""
        in_vain = state == "refused" and self.waits
        return self.live and state != "queued" and not in_vain

    @property
    def since(self) -> float:
        """When it was asked for, or last seen to wait again or to run again: what is older is of before."""
        return max(self.at, self.queued_at, self.again_at)

    @property
    def failed(self) -> bool:
        """Returns whether the job itself failed, rather than lost its machines or was given up."""
        return self.hung or (not self.leaving and self.ended in ("failed", "succeeded"))


class JobAttempts:
    """The attempts of one job, oldest first, by the only process that looks after it."""

    def __init__(self, folder: Path) -> None:
        self._journal = RequestJournal(folder / FILE, JobAttempt)
        self._fallbacks = Journal(folder / "fallbacks.json", empty=[])
        self._again = Journal(folder / "again.json", empty=0)
        self._num_forgotten: int = self._again.read()
        self.all = list(self._journal.read().values())

    @property
    def taken(self) -> list[Taken]:
        """The fallbacks that were taken, in order by attempts: one look may take two of them."""
        source = str(self._fallbacks.path)
        kept = [
            (each["attempt"], records.loads(Taken, json.dumps(each["taken"]), source=source))
            for each in self._fallbacks.read()
        ]
        left = [(int(each.name), each.taken) for each in self.all if each.taken]
        return [
            taken for _, taken in sorted([*kept, *left], key=lambda one: one[0])
        ]  # left after what was kept

    @property
    def last(self) -> JobAttempt | None:
        """The newest attempt."""
        return self.all[-1] if self.all else None

    @property
    def num_without_result(self) -> int:
        """The number of jobs that ended well, of which none left a result where another is asked for.

        Those of forgotten attempts count, as the backend still knows their names.
        """
        return self._num_forgotten + sum(each.ended == "succeeded" for each in self.all)

    @property
    def on_this_placement(self) -> Sequence[JobAttempt]:
        """The newest attempts, as far back as they were on the same placement."""
        here: list[JobAttempt] = []
        for attempt in reversed(self.all):
            if here and attempt.placement.rental != here[0].placement.rental:
                break
            here.append(attempt)
        return here[::-1]

    def refused(self, *, since: float) -> dict[Rental, float]:
        """Returns when each rental was last unavailable: refused, or waited for in vain."""
        refused: dict[Rental, float] = {}
        for attempt in self.all:
            in_vain = attempt.to is not None and attempt.waits
            if attempt.run_at or attempt.live:
                refused.pop(attempt.placement.rental, None)
            did_not_come = attempt.waits and (attempt.ended == "refused" or in_vain)
            if did_not_come and not attempt.live and attempt.ended_at > since:
                refused[attempt.placement.rental] = attempt.ended_at
        return refused

    def ask(self, now: float, *, job: str, placement: Placement) -> None:
        """Records that a job is about to be submitted."""
        self._journal.put(JobAttempt(name=str(len(self.all) + 1), job=job, placement=placement, at=now))
        self.all = list(self._journal.read().values())

    def change(self, **facts: Any) -> None:
        """Records facts of the newest attempt."""
        self._journal.change(self.all[-1].name, **facts)
        self.all = list(self._journal.read().values())

    def has_taken(self, name: str) -> bool:
        """Returns whether a fallback of that name was taken."""
        return any(each.name == name for each in self.taken)

    def take(self, taken: Taken, *, once: bool = True) -> None:
        """Records a fallback that keeps the machines; with `once`, only the first of its name counts."""
        if not (once and self.has_taken(taken.name)):
            kept = {"attempt": len(self.all), "taken": json.loads(records.dumps(taken))}
            self._fallbacks.write([*self._fallbacks.read(), kept])

    def forget(self) -> None:
        """Removes all attempts and fallbacks, so that they count from zero again; names of jobs go on."""
        if self.num_without_result > self._num_forgotten:
            self._again.write(self.num_without_result)
            self._num_forgotten = self.num_without_result
        self._fallbacks.remove()  # first: without attempts there is none to take
        self._journal.remove()
        self.all = []

"""Log of a job's requests for machines: `submissions.jsonl`, one event per line, append-only.

    ask      a job is about to be submitted, by this name, on this rung     submit   submitted, with a handle
    run      the job was first seen running                                 end      the job was seen ended
    leave    the job is to end: hangs, changes its rung, or is cancelled    rung     of the ladder, taken

An action is written down before it is taken, so that a process restarted after a kill takes it. Names and
handles identify jobs at the backend, and no job is submitted before the one before it has ended.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from daybreak.contract import records
from daybreak.contract.record_types import Record, Rental, Rung, Taken
from daybreak.storage import jsonl

FILE = "submissions.jsonl"
Why = Literal["rung", "hang", "told", "older"]


@dataclass(frozen=True, kw_only=True)
class JobAttempt:
    """One request for machines. Times are seconds since 1970; "", None and 0 mean not yet."""

    name: str
    rung: Rung
    at: float
    handle: str = ""
    run_at: float = 0.0
    leaving: bool = False
    hung: bool = False
    to: Rung | None = None  # the rung that it leaves for
    ended: str = ""  # the state it ended in
    ended_at: float = 0.0  # when the end was seen

    @property
    def live(self) -> bool:
        """Whether its job may exist."""
        return not self.ended

    @property
    def failed(self) -> bool:
        """Returns whether the job itself failed, rather than lost its machines or was given up."""
        return self.hung or (not self.leaving and self.ended in ("failed", "succeeded"))


class JobAttempts:
    """The events of one job."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.all: list[JobAttempt] = []
        self.taken: list[Taken] = []
        for line in jsonl.whole(self._path):
            self._fold(line)

    @property
    def last(self) -> JobAttempt | None:
        """The newest attempt."""
        return self.all[-1] if self.all else None

    @property
    def on_this_rung(self) -> Sequence[JobAttempt]:
        """The newest attempts, as far back as they were on the same rung."""
        here: list[JobAttempt] = []
        for attempt in reversed(self.all):
            if here and attempt.rung.rental != here[0].rung.rental:
                break
            here.append(attempt)
        return here[::-1]

    def refused(self, *, since: float) -> dict[Rental, float]:
        """Returns when each rental was last unavailable: refused, or waited for in vain."""
        refused: dict[Rental, float] = {}
        for attempt in self.all:
            in_vain = attempt.to is not None and not attempt.run_at
            if attempt.run_at or attempt.live:
                refused.pop(attempt.rung.rental, None)
            elif (attempt.ended == "refused" or in_vain) and attempt.ended_at > since:
                refused[attempt.rung.rental] = attempt.ended_at
        return refused

    def ask(self, now: float, *, name: str, rung: Rung) -> None:
        """Records that a job is about to be submitted."""
        self._add(now, "ask", name=name, rung=_plain(rung))

    def submit(self, now: float, *, handle: str) -> None:
        """Records that the job was submitted, with the backend's handle."""
        self._add(now, "submit", handle=handle)

    def run(self, now: float) -> None:
        """Records that the job was seen running for the first time."""
        self._add(now, "run")

    def leave(self, now: float, why: Why, *, to: Rung | None = None, taken: Taken | None = None) -> None:
        """Records that the job is to end, why, and for which rung."""
        facts = {"to": _plain(to) if to else None, "taken": _plain(taken) if taken else None}
        self._add(now, "leave", why=why, **facts)

    def end(self, now: float, *, state: str) -> None:
        """Records that the job was seen ended, and in which state."""
        self._add(now, "end", state=state)

    def take(self, now: float, taken: Taken) -> None:
        """Records a rung that keeps the machines; only the first of each name counts."""
        if all(each.name != taken.name for each in self.taken):
            self._add(now, "rung", taken=_plain(taken))

    def forget(self) -> None:
        """Removes all events, so that attempts count from zero again."""
        self._path.unlink(missing_ok=True)
        self.all, self.taken = [], []

    def _add(self, now: float, event: str, **facts: Any) -> None:
        line = {"time": now, "event": event, **facts}
        jsonl.add(self._path, line)
        self._fold(line)

    def _fold(self, line: dict[str, Any]) -> None:
        event, now = line["event"], line["time"]
        if line.get("taken"):
            self.taken.append(records.loads(Taken, json.dumps(line["taken"]), source=str(self._path)))
        if event == "ask":
            rung = records.loads(Rung, json.dumps(line["rung"]), source=str(self._path))
            self.all.append(JobAttempt(name=line["name"], rung=rung, at=now))
        elif event == "submit":
            self._change(handle=line["handle"])
        elif event == "run":
            self._change(run_at=now)
        elif event == "leave":
            to = line["to"] and records.loads(Rung, json.dumps(line["to"]), source=str(self._path))
            self._change(leaving=True, hung=line["why"] == "hang", to=to or None)
        elif event == "end":
            self._change(ended=line["state"], ended_at=now)

    def _change(self, **facts: Any) -> None:
        self.all[-1] = replace(self.all[-1], **facts)


def _plain(record: Record) -> Any:
    return json.loads(records.dumps(record))

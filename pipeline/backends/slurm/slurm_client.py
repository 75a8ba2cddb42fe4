"""Talks to Slurm by its commands: sbatch, squeue, scancel, scontrol.

Slurm answers in sentences, with exit status 1 whatever is wrong. So whether it is out of reach is asked of
`scontrol ping`, never read from a sentence.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pipeline.backends.place import Refused, Unreachable

AWAY = "the cluster does not answer"
CALL_S = 30.0  # the most that a command may take
FIELDS = ("%i", "%T", "%j", "%k", "%V", "%S", "%e", "%r")  # of squeue, in the order of `Listed`
SEPARATOR = "\x1f"

Phase = Literal["waits", "runs", "over"]
WAITS = frozenset(("PENDING", "CONFIGURING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"))
RUNS = frozenset(("RUNNING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"))


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A job as squeue lists it, until some minutes after its end."""

    id: str
    state: str  # Slurm's word
    name: str
    comment: str
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None  # while it runs, when its limit ends it
    reason: str  # Slurm's word for why it waits

    @property
    def phase(self) -> Phase:
        """Whether it waits, runs or is over."""
        return "waits" if self.state in WAITS else "runs" if self.state in RUNS else "over"


def submit(options: Sequence[str], script: str, *, environment: dict[str, str]) -> str:
    """Returns the id of a new job that runs the text of a shell script."""
    return _call(["sbatch", "--parsable", *options], text=script, environment=environment).partition(";")[0]


def listed(*, name: str = "") -> list[Listed]:
    """Returns the jobs of this user, oldest first: all, or those of a name.

    Jobs that ended some minutes ago (MinJobAge of Slurm) are not among them.
    """
    words = ["squeue", "--me", "--states=all", "--noheader", "--sort=V", f"--format={SEPARATOR.join(FIELDS)}"]
    rows = (
        line.split(SEPARATOR) for line in _call([*words, *([f"--name={name}"] if name else [])]).splitlines()
    )
    return [
        Listed(
            id=row[0], state=row[1], name=row[2], comment=row[3], submitted_at=_time(row[4]),
            started_at=_time(row[5]), ended_at=_time(row[6]), reason=row[7],
        )
        for row in rows
    ]  # fmt: skip


def cancel(id: str) -> None:
    """Asks Slurm to end a job; no error if it has ended."""
    _call(["scancel", "--quiet", id])


def would_take(options: Sequence[str]) -> str:
    """Returns why Slurm would not take a job with these options; "" if it would."""
    try:
        _call(["sbatch", "--test-only", *options], text="#!/bin/sh\nexit 0\n")
    except Refused as refused:
        return str(refused)
    return ""


def _call(words: Sequence[str], *, text: str = "", environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=CALL_S, check=False, env=environment
        )
    except FileNotFoundError:
        raise Unreachable(f"{AWAY}: {words[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{AWAY}: {words[0]} did not answer within {CALL_S:g} s") from None
    if not done.returncode:
        return done.stdout.strip()
    said = " ".join(done.stderr.split())[:300]
    if words[0] != "scontrol" and not _answers():
        raise Unreachable(f"{AWAY}: {said}")
    raise Refused(said)


def _answers() -> bool:
    try:
        _call(["scontrol", "ping"])
    except (Refused, Unreachable):
        return False
    return True


def _time(text: str) -> datetime | None:
    """Returns a time of Slurm, which is in the zone of this process; None for `N/A`."""
    return datetime.fromisoformat(text).astimezone() if text[:1].isdigit() else None

"""Talks to Slurm by its commands: sbatch, squeue, sinfo, scancel, scontrol, sacct.

Slurm answers in sentences, with exit status 1 whatever is wrong. So whether it is out of reach is asked of
`scontrol ping`, never read from a sentence.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from daybreak.backends.place import Refused, Unreachable

AWAY = "the cluster does not answer"
CALL_S = 30.0  # the most that a command may take
FIELDS = ("%i", "%T", "%j", "%k", "%V", "%S", "%e", "%r")  # of squeue, in the order of `Listed`
OF_ACCOUNTS = ("JobID", "State", "JobName", "Comment", "Submit", "Start", "End", "Reason")  # of sacct, alike
OF_NODES = ("%R", "%N", "%c", "%m", "%T", "%G", "%f")  # of sinfo, in the order that `nodes` reads them
SEPARATOR = "\x1f"
# Else squeue and sacct tell times in the zone of this machine, in which an hour of autumn comes twice.
TIMES = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
# The id of a job; of a part of a heterogeneous one, or of an array, `[...]` for tasks that wait.
ID = re.compile(r"(\d+)(?:([+_])\[?(\d+).*)?")
# States that a part of a job gets when another one has ended it, or all have ended by themselves.
ENDED_WITH = frozenset(("COMPLETED", "FAILED", "CANCELLED"))
TAKES_JOBS = frozenset(("idle", "mixed", "allocated", "completing", "planned"))  # states of a node
SUFFIXES = "~#!%$@^-+"  # of a state, such as idle~ to save power; `*` marks a node that does not answer

# Slurm's reasons to wait for which waiting does not help.
NEVER = frozenset(
    (
        "BadConstraints",
        "PartitionTimeLimit",
        "PartitionNodeLimit",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "InvalidAccount",
        "InvalidQOS",
        "DependencyNeverSatisfied",
    )
)

Phase = Literal["waits", "runs", "over"]
WAITS = frozenset(("PENDING", "CONFIGURING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"))
RUNS = frozenset(("RUNNING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"))
LOST = frozenset(("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REVOKED", "FAILED"))  # if others of its array run


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A job as squeue lists it, until some minutes after its end, or as sacct does later."""

    id: str
    state: str  # Slurm's word
    name: str
    comment: str
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None  # while it runs, when its limit ends it
    reason: str  # Slurm's word for why it waits
    num_running: int = 0  # tasks of an array
    lost: tuple[str, ...] = ()  # ids of the tasks that a running array has lost

    @property
    def phase(self) -> Phase:
        """Whether it waits, runs or is over."""
        return "waits" if self.state in WAITS else "runs" if self.state in RUNS else "over"


@dataclass(frozen=True, kw_only=True)
class ListedNode:
    """A node in a partition, as sinfo lists it."""

    partition: str
    cpus: int
    memory_bytes: int
    gpu: str  # the type of its GPUs in GRES; "" where that has none
    num_gpus: int
    name: str  # of the node
    features: tuple[str, ...]  # that an administrator gave it


def submit(options: Sequence[str], script: str, *, environment: dict[str, str]) -> str:
    """Returns the id of a new job that runs the text of a shell script."""
    return _call(["sbatch", "--parsable", *options], text=script, environment=environment).partition(";")[0]


def listed(*, name: str = "") -> list[Listed]:
    """Returns the jobs of this user, oldest first: all, or those of a name.

    Jobs that ended some minutes ago (MinJobAge of Slurm) are not among them. A heterogeneous job or an array
    is one job.
    """
    words = ["squeue", "--me", "--states=all", "--noheader", "--sort=V", f"--format={SEPARATOR.join(FIELDS)}"]
    return _jobs(_call([*words, *([f"--name={name}"] if name else [])], environment={**os.environ, **TIMES}))


def accounted(id: str, *, name: str) -> Listed | None:
    """Returns the job of that id and name from Slurm's accounting, which keeps jobs for months.

    None where accounting is off or does not answer. The name tells the job from a later job with the same id,
    which exists if the controller lost its state.
    """
    words = ["sacct", "--noheader", "--parsable2", "--allocations", f"--delimiter={SEPARATOR}"]
    words += [f"--format={','.join(OF_ACCOUNTS)}", f"--jobs={id}", f"--name={name}"]
    try:
        listing = _call(words, environment={**os.environ, **TIMES})
    except (Refused, Unreachable):
        return None
    return next(iter(_jobs(listing)), None)


def _jobs(listing: str) -> list[Listed]:
    """Parses the lines into jobs, in order; lines of a heterogeneous job or an array become one job."""
    jobs: dict[tuple[str, str], dict[int, Listed]] = {}
    for row in _rows(listing):
        known = ID.match(row[0])
        if known is None:
            continue
        id, mark, number = known.groups("")
        jobs.setdefault((id, mark), {})[int(number or 0)] = Listed(
            id=id,
            state=row[1].partition(" ")[0],  # "CANCELLED by 1000"
            name=row[2],
            comment=row[3],
            submitted_at=_time(row[4]),
            started_at=_time(row[5]),
            ended_at=_time(row[6]),
            reason=row[7],
        )
    return [
        _array(parts) if mark == "_" else _whole([parts[number] for number in sorted(parts)])
        for (_, mark), parts in jobs.items()
    ]


def _rows(listing: str) -> Iterator[list[str]]:
    """Yields the cells of each job. A comment or a name of any job, not only of ours, may break the line."""
    begun = ""
    for line in listing.split("\n"):
        begun = f"{begun}\n{line}" if begun else line
        row = begun.split(SEPARATOR)
        if len(row) >= len(FIELDS):
            yield row
            begun = ""


def _array(tasks: dict[int, Listed]) -> Listed:
    """Returns the tasks of an array as one job: running while a task runs, then ended as its best task."""
    running = [task for task in tasks.values() if task.phase == "runs"]
    if running:
        first = min(running, key=lambda task: str(task.started_at))
        goes_on = any(task.state == "RUNNING" for task in running)  # none is where all are being ended
        lost = [f"{task.id}_{n}" for n, task in tasks.items() if goes_on and task.state in LOST]
        asked_at = min(filter(None, (task.submitted_at for task in tasks.values())), default=None)
        return replace(first, submitted_at=asked_at, num_running=len(running), lost=tuple(lost))
    first_of = ("COMPLETED", *WAITS, "OUT_OF_MEMORY", "FAILED")  # else any of them
    return min(tasks.values(), key=lambda t: (*first_of, t.state).index(t.state))


def _whole(parts: Sequence[Listed]) -> Listed:
    """Returns the parts of a heterogeneous job as one job: the first part, which runs the script.

    A failed job has the state of the part that ended it; a job waits for ever if any part does.
    """
    first = parts[0]
    if first.phase == "over" and first.state != "COMPLETED":
        cause = next(
            (part.state for part in parts if part.phase == "over" and part.state not in ENDED_WITH), ""
        )
        return replace(first, state=cause or first.state)
    if first.phase == "waits":
        return replace(first, reason=next((p.reason for p in parts if p.reason in NEVER), first.reason))
    return first


def nodes() -> list[ListedNode]:
    """Returns the nodes that take jobs, in each of their partitions."""
    made = []
    for line in _call(["sinfo", "--Node", "--noheader", f"--format={SEPARATOR.join(OF_NODES)}"]).splitlines():
        partition, name, cpus, mebibytes, state, gres, features = line.split(SEPARATOR)
        if state.rstrip(SUFFIXES) not in TAKES_JOBS:
            continue
        gpu, num_gpus = gpus(gres)
        made.append(
            ListedNode(
                partition=partition,
                cpus=int(cpus),
                memory_bytes=int(mebibytes) << 20,
                gpu=gpu,
                num_gpus=num_gpus,
                name=name,
                features=tuple(features.split(",")),
            )
        )
    return made


def gpus(gres: str) -> tuple[str, int]:
    """Returns the type and number of the GPUs among generic resources; of several types, all as one name.

    >>> gpus("gpu:a100:4(S:0-1),craynetwork:4"), gpus("gpu:2"), gpus("(null)")
    (('a100', 4), ('', 2), ('', 0))
    """
    of_gpus = re.findall(r"(?:^|,)gpu(?::([^:,()]+))??(?::(\d+))?(?=[,(]|$)", gres)
    return "+".join(dict.fromkeys(type for type, _ in of_gpus)), sum(int(count or 1) for _, count in of_gpus)


def cancel(id: str, *, waiting: bool = False) -> None:
    """Asks Slurm to end a job, or those tasks of it that wait for a node; no error if it has ended."""
    _call(["scancel", "--quiet", *(["--state=PENDING"] if waiting else []), id])


def requeue(id: str) -> None:
    """Asks Slurm for another node for a task that was lost."""
    _call(["scontrol", "requeue", id])


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
        return done.stdout.strip("\n")  # a separator is a space to Python, and a cell may be empty
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
    """Returns a time of Slurm, which is told in UTC (`TIMES`); None for `N/A`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC) if text[:1].isdigit() else None

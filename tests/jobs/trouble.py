"""Small nights of real processes, in trouble: slowed, stopped, killed, and short of time or money."""

import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from daybreak.contract.errors import JobError
from daybreak.contract.record_types import Plan, Training
from daybreak.jobs.reconciler import ENDING_S, GRACE_S
from tests.training import nights

SLOW_S = 0.015  # a batch


def processes(job: Path) -> dict[str, list[psutil.Process]]:
    """The live processes of a job by what they are."""
    try:
        supervisor = psutil.Process(int((job / "pid").read_text()))
        every = [supervisor, *supervisor.children(recursive=True)]
        commands = {process: " ".join(process.cmdline()) for process in every}
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        return {"worker": [], "torchrun": [], "all": []}
    workers = [
        process
        for process, command in commands.items()
        if "training.worker" in command and "distributed.run" not in command
    ]
    torchrun = [process for process, command in commands.items() if "distributed.run" in command]
    return {"worker": workers, "torchrun": torchrun, "all": every}


class Sender:
    """Sends a signal, once, to the last worker or to all of a job when it has trained on some samples."""

    def __init__(self, number: signal.Signals, *, to: str = "worker", after: int = 64) -> None:
        self.number, self.to, self.after = number, to, after
        self.sent_at = 0.0

    def __call__(self, job: Path) -> None:
        beats = job / "progress.jsonl"
        if self.sent_at or not beats.exists() or _seen(beats) < self.after:
            return
        by_kind = processes(job)
        for process in by_kind[self.to][-1:] if self.to == "worker" else by_kind[self.to]:
            process.send_signal(self.number)
            self.sent_at = time.monotonic()


def _seen(beats: Path) -> int:
    words = beats.read_text().rpartition('"seen": ')[2].partition(",")[0]
    return int(words or 0)


def priced(*, num_samples: int = 3001, usd_per_hour: float = 0.0) -> Plan:
    """The plan of a small night, whose machine costs as if it were rented."""
    return replace(nights.plan(num_samples=num_samples), usd_per_hour=usd_per_hour)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a real night ended."""

    name: str
    decision: Training | JobError
    in_time: bool
    num_left: int  # processes

    @property
    def trained(self) -> bool:
        """Whether there is a candidate."""
        return isinstance(self.decision, Training)

    def row(self) -> dict[str, object]:
        """For a table."""
        decision = self.decision
        how = decision.stopped_by if isinstance(decision, Training) else str(decision)[:40]
        seen = decision.num_samples if isinstance(decision, Training) else 0
        return {"real night": self.name, "ended": how, "samples": seen, "in time": self.in_time}


def real_night(number: int) -> Ended:
    """One of the real nights, in a folder of its own."""
    draw = random.Random(number)
    workers = 1 + number % 2
    kind = ("late", "killed", "stopped", "poor", "all killed")[number % 5]
    seconds = draw.uniform(40, 60) if kind in ("late", "killed") else 120.0
    between: dict[str, Callable[[Path], None]] = {
        "killed": Sender(signal.SIGKILL, after=draw.randrange(32, 600)),
        "all killed": Sender(signal.SIGKILL, to="all", after=draw.randrange(32, 600)),
        "stopped": Sender(signal.SIGSTOP, after=draw.randrange(32, 600)),
    }
    poor = kind == "poor"
    night = nights.night(seconds=seconds, budget_usd=0.17 if poor else 50)
    params = nights.make_params(num_workers=workers, delay_s=draw.uniform(0.01, 0.05), hang_after_s=5)
    plan = priced(
        num_samples=10**6 if kind in ("late", "killed", "poor") else 3001, usd_per_hour=3.6 if poor else 0.0
    )
    with tempfile.TemporaryDirectory() as folder, nights.surroundings():
        nights.lay_out(Path(folder))
        try:
            decision: Training | JobError = nights.train(
                night, params, by_plan=plan, between=between.get(kind, lambda _: None), timeout_s=600
            )
        except JobError as error:
            decision = error
        late_s = (datetime.now(UTC) - night.train_until).total_seconds()
        working = left_behind(Path(folder))  # workers wind up after their model
        _, left = psutil.wait_procs(working, timeout=300)
    return Ended(
        name=f"{number} {kind}, {workers} worker{'s' if workers > 1 else ''}",
        decision=decision,
        in_time=late_s <= GRACE_S + ENDING_S,
        num_left=len(left),
    )


def left_behind(folder: Path) -> list[psutil.Process]:
    """Processes that still work there."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or [])
    ]

"""Runs seeds of a bag on one machine, one after the other, until the machine has to go.

    python -m daybreak.extensions.bag.seed_worker FOLDER      the job of a lease, which `dispatcher` submits

Each look at the events takes the next seed or ends. A run is the bag's command as a process, in a folder of
its own, where it also finds

    BAG_SEED      the seed
    BAG_FOLDER    where it writes, {folder} in the command
    BAG_SAVES_S   where it can save: the seconds of work between saves of its state, "960 1080 1260"

The folder of a run that succeeds is moved to seeds/. A lost run starts again, in its old folder if the
command saves, else in an empty one. On SIGTERM the run is asked to end, and killed after `STOP_S`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from daybreak.backends.place import RetryPolicy
from daybreak.contract import records
from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Record
from daybreak.extensions.bag.bucket_bag import opened
from daybreak.extensions.bag.folder import LOG, Bag, Event
from daybreak.extensions.bag.reuse import Reuse
from daybreak.extensions.bag.state import BagState
from daybreak.training import supervision
from daybreak.training.termination import die_with_parent

ORDER = "job.json"  # in the folder of the lease, so that it goes where the job goes
STOP_S = 10  # from SIGTERM to SIGKILL of a run
LOOK_S = 1.0  # between looks at what a run has saved
LATER_S = 1.0  # by which a signal to all processes of a machine may reach this one later than the run


@dataclass(frozen=True, kw_only=True)
class LeaseOrder(Record):
    """What the worker of a lease is to do."""

    bag: Bag
    cwd: str  # that runs begin in
    replace_at_s: float | None  # age from which on no further run begins; None: the machine is kept
    saves: tuple[tuple[float, tuple[float, ...]], ...] = ()  # see `Reuse`; none: it does not save, or not yet
    booted_s: float = 0.0  # age of the machine as this begins

    @property
    def reuse(self) -> Reuse:
        """Returns the rule."""
        limit = float("inf") if self.replace_at_s is None else self.replace_at_s
        return Reuse(num_runs=0, replace_at_s=limit, saves=self.saves)


class Worker:
    """The worker of one lease."""

    def __init__(self, folder: Path) -> None:
        self._name = folder.name
        self._order = records.loads(LeaseOrder, (folder / ORDER).read_text(), source=str(folder / ORDER))
        bag = self._order.bag
        self._bag = opened(folder if bag.url else folder.parents[1], bag, retry=RetryPolicy())
        self._reuse = self._order.reuse
        self._began = time.monotonic()
        self._run: subprocess.Popen[bytes] | None = None
        self._stopped = False
        supervision.note_start(folder)  # by which a machine that is rented is billed

    def work(self) -> int:
        """Runs seeds and returns the exit status: 0 where the machine is not needed any more."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        self._bag.decide(self._begin)
        while not self._stopped and (seed := self._next()) is not None:
            began = time.monotonic()
            status = self._ran(seed)
            elapsed_s = time.monotonic() - began
            if status and not self._stopped:
                time.sleep(LATER_S)  # or a run that a preemption ended would count as one that fails
            if self._stopped:
                self._bag.save(self._name, seed)
            elif status:
                self._bag.end(self._event("failed", seed=seed, status=status))
            else:
                self._bag.end(self._event("done", seed=seed, elapsed_s=elapsed_s))
        return 128 + signal.SIGTERM if self._stopped else 0

    def _event(self, event: str, **facts: object) -> Event:
        return {"event": event, "lease": self._name, "time": time.time(), **facts}

    def _begin(self, state: BagState) -> Event:
        if self._name not in state.leases:
            raise JobError(f"{self._order.bag.url} has lost events of the bag; start its command again")
        return self._event("begin")

    def _next(self) -> int | None:
        """Takes a seed and prepares its folder."""

        def take(state: BagState) -> Event | None:
            seed = state.next_seed(self._name, age_s=self._age_s(), replace_at_s=self._reuse.replace_at_s)
            return None if seed is None else self._event("take", seed=seed)

        taken = self._bag.decide(take)
        if taken is None:
            return None
        seed = int(taken["seed"])
        self._bag.begin(seed)
        return seed

    def _ran(self, seed: int) -> int:
        """Runs the command and returns its exit status, negative for a signal."""
        folder, cwd = self._bag.work(seed), Path(self._order.cwd)
        cwd.mkdir(parents=True, exist_ok=True)  # of a machine to which no file was sent
        values = {"{seed}": str(seed), "{folder}": str(folder)}
        words = [_filled(word, values) for word in self._order.bag.command]
        saves = " ".join(f"{each:.3f}" for each in self._reuse.intervals_s(self._age_s()))
        environment = {**os.environ, "BAG_SEED": str(seed), "BAG_FOLDER": str(folder)}
        if saves:
            environment["BAG_SAVES_S"] = saves
        with (folder / LOG).open("ab") as output:
            self._run = subprocess.Popen(
                words,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent,  # noqa: PLW1509 no other thread works here, that of a bucket waits
            )
            if self._stopped:
                self._run.terminate()
            while True:
                try:
                    return self._run.wait(LOOK_S if self._order.bag.save_s else None)
                except subprocess.TimeoutExpired:
                    self._bag.save(self._name, seed)

    def _age_s(self) -> float:
        return self._order.booted_s + time.monotonic() - self._began

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopped = True
        if self._run:
            self._run.terminate()
        signal.alarm(STOP_S)

    def _kill(self, _number: int, _frame: object) -> None:
        if self._run:
            self._run.kill()


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


if __name__ == "__main__":
    sys.exit(Worker(Path(sys.argv[1]).resolve()).work())

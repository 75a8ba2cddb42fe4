"""Runs seeds of a bag on one machine, one after the other, until the machine has to go.

    python -m pipeline.bag.seed_worker FOLDER      the job of a lease, which `dispatcher` submits

Each look at the events, under their lock, takes the next seed or ends. A run is the bag's command as a
process, in a folder of its own, where it also finds

    BAG_SEED      the seed
    BAG_FOLDER    where it writes, {folder} in the command
    BAG_SAVES_S   where it can save: the seconds of work between saves of its state, "960 1080 1260"

A run that succeeds has its folder moved to seeds/. One that is lost is run again, from its folder as it was
left if it saves, else from an empty one. On SIGTERM the run is asked to end, and killed after `STOP_S`.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.bag.folder import BagFolder
from pipeline.bag.reuse import Reuse
from pipeline.contract import records
from pipeline.contract.records import Record
from pipeline.training.termination import die_with_parent

STOP_S = 10  # from SIGTERM to SIGKILL of a run


@dataclass(frozen=True, kw_only=True)
class LeaseOrder(Record):
    """Orders for the worker of a lease, in `leaseorder.json` in its folder."""

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
        self._bag = BagFolder.open(folder.parents[1])
        self._order = records.read(LeaseOrder, folder)
        self._reuse = self._order.reuse
        self._began = time.monotonic()
        self._run: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def work(self) -> int:
        """Runs seeds and returns the exit status: 0 where the machine is not needed any more."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        with self._bag.alone():
            self._bag.add("begin", lease=self._name, time=time.time())
        while (seed := self._next()) is not None:
            began = time.monotonic()
            status = self._ran(seed)
            if self._stopped:
                return 128 + signal.SIGTERM
            self._end(seed, status, elapsed_s=time.monotonic() - began)
        return 0

    def _next(self) -> int | None:
        """Takes a seed and empties its folder, unless the run goes on from there."""
        with self._bag.alone() as state:
            seed = state.next_seed(self._name, age_s=self._age_s(), replace_at_s=self._reuse.replace_at_s)
            if seed is not None:
                self._bag.add("take", lease=self._name, seed=seed, time=time.time())
                if not self._bag.bag.save_s:
                    shutil.rmtree(self._bag.work(seed), ignore_errors=True)
                self._bag.work(seed).mkdir(parents=True, exist_ok=True)
        return seed

    def _ran(self, seed: int) -> int:
        """Runs the command and returns its exit status, negative for a signal."""
        folder = self._bag.work(seed)
        values = {"{seed}": str(seed), "{folder}": str(folder)}
        words = [_filled(word, values) for word in self._bag.bag.command]
        saves = " ".join(f"{each:.3f}" for each in self._reuse.intervals_s(self._age_s()))
        environment = {**os.environ, "BAG_SEED": str(seed), "BAG_FOLDER": str(folder)}
        if saves:
            environment["BAG_SAVES_S"] = saves
        with (folder / "log.txt").open("ab") as output:
            self._run = subprocess.Popen(
                words, cwd=self._bag.bag.cwd, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output,
                preexec_fn=die_with_parent,  # noqa: PLW1509 no other thread runs here
            )  # fmt: skip
            if self._stopped:
                self._run.terminate()
            return self._run.wait()

    def _end(self, seed: int, status: int, *, elapsed_s: float) -> None:
        """Records how a run ended, unless it is another machine's by now."""
        with self._bag.alone() as state:
            if not state.holds(self._name, seed):
                return
            facts = {"lease": self._name, "seed": seed, "time": time.time()}
            if status:
                self._bag.add("failed", **facts, status=status)
                return
            result = self._bag.result(seed)
            shutil.rmtree(result, ignore_errors=True)  # of a worker that was killed before its event
            result.parent.mkdir(exist_ok=True)
            self._bag.work(seed).rename(result)
            self._bag.add("done", **facts, elapsed_s=elapsed_s)

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

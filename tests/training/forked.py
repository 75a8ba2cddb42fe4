"""A job with forked workers: processes that work as under torchrun.

Their parent has imported torch, which takes 3 s. What a start of the workers did is held against their log,
and against the folder as it is read here: by hashes, and by nothing of theirs.
"""

import hashlib
import json
import logging
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybreak.contract import records
from daybreak.training.recipe import Recipe
from tests.fakes import write_curve
from tests.training.recipes import recipe

NUM_SAMPLES, EPOCHS, BATCH = 1000, 8, 32
DELAY_S = 0.001  # of each of the two batches of an update
EVERY_S = 0.05  # from one checkpoint to the next
PATIENCE_S = 20.0  # with workers that were asked to end, as torchrun has it
EVENT = re.compile(
    r"^(\d+\.\d+) (?:(?:going on|beginning) from (\d+) of|checkpoint at (\d+) samples: (\w+))", re.M
)
Strikes = Callable[["Job", list[int]], bool]


@dataclass
class Seen:
    """What came of one job or of several."""

    jobs: int = 0
    kills: int = 0
    in_a_save: int = 0  # kills that left half of a checkpoint behind
    damaged: int = 0  # whole checkpoints that were damaged afterwards
    went_on: int = 0  # starts that trained
    resumed: int = 0  # of them, from a checkpoint
    from_another: int = 0  # of them, not from the newest good checkpoint
    saves_lost: int = 0  # at most, by a kill: one, if it was being written; a whole one counts twice
    unsaved_s: float = 0.0  # at most: work lost for which no checkpoint was begun
    not_bit_equal: int = 0  # jobs that ended otherwise than one left alone


@dataclass
class Start:
    """What one start of the workers did."""

    killed_at: float  # 0 if it was left alone
    went_on: tuple[float, int] | None  # when, and from how many samples
    begun: list[tuple[float, int]]  # checkpoints
    there: dict[int, float]


class Job:
    """A job in a folder; its workers are started, and killed."""

    def __init__(self, folder: Path, made: Recipe, *, seen: Seen, seed: int = 0) -> None:
        self.folder, self.seen, self.random = folder, seen, random.Random(seed)
        self.checkpoints, self.log = folder / "checkpoints", folder / "events.log"
        self.copies = Path(made.copies)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.json").write_text(records.dumps(made))
        self.log.touch()
        self._before: Start | None = None  # the start before that trained; None where nothing can be said
        self.due = 0  # samples in the newest good checkpoint

    @classmethod
    def of_curve(
        cls, folder: Path, *, seen: Seen, seed: int = 0, copied: bool = False, dropout: float = 0.2
    ) -> "Job":
        """One that fits a curve, of which copies of checkpoints are kept where asked."""
        write_curve(folder / "arrays", num_samples=NUM_SAMPLES)
        made = recipe(
            workload="tests.fakes:LineWorkload",
            arguments={"delay_s": DELAY_S, "dropout": dropout},
            arrays=str(folder / "arrays"),
            num_samples=EPOCHS * NUM_SAMPLES,
            batch_size=BATCH,
            micro_batch_size=BATCH // 2,
            peak=0.01,
            every_s=EVERY_S,
            copies=str(folder / "copies") if copied else "",
        )
        return cls(folder, made, seen=seen, seed=seed)

    @property
    def result(self) -> dict[str, Any] | None:
        """How it ended, if it did."""
        path = self.folder / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def trains(self) -> bool:
        """Whether worker 0 of this start has come as far as to train."""
        return self.log.stat().st_size > self._read_from

    def start(self, world_size: int, strike: Strikes | None = None) -> None:
        """Start the workers; they end by themselves, or are struck and all end."""
        self._read_from, port = self.log.stat().st_size, free_port()
        workers = [self._fork(rank, world_size, port) for rank in range(world_size)]
        alive, killed_at = set(workers), 0.0
        while len(alive) == world_size and not killed_at:
            killed_at = time.time() if strike and strike(self, workers) else 0.0
            alive -= ended(alive)
            time.sleep(0.0005)
        if killed_at or not self.result:
            for pid in alive:
                os.kill(pid, signal.SIGTERM)
        wait_for(alive)
        torn = [path for path in self.checkpoints.glob(".seen=*") if not path.name.endswith(".going")]
        self.seen.kills += bool(killed_at)
        self.seen.in_a_save += bool(killed_at and torn)
        with self.log.open() as file:
            file.seek(self._read_from)
            self._judge(started(file.read(), killed_at))
        self.due = newest_good(self.checkpoints)

    def damage(self) -> None:
        """Cut or change a file of the newest of several checkpoints, as a disk may that lost its power."""
        names = sorted(path.name for path in self.checkpoints.glob("seen=*") if is_good(path))
        if len(names) < 2 or self.result:
            return
        path = self.random.choice(sorted((self.checkpoints / names[-1]).iterdir()))
        content = bytearray(path.read_bytes())
        place = self.random.randrange(len(content))
        if self.random.random() < 0.5:
            del content[place:]
        else:
            content[place] ^= 1 << self.random.randrange(8)
        path.write_bytes(content)
        self.seen.damaged += 1
        self.due, self._before = newest_good(self.checkpoints), None

    def _judge(self, start: Start) -> None:
        """Compares the position at a start with the checkpoints, and with the progress before the start."""
        if not start.went_on:
            return  # it did not come as far, so it lost nothing
        position, before = start.went_on[1], self._before
        self.seen.went_on += 1
        self.seen.resumed += position > 0
        self.seen.from_another += position != self.due
        self._before = start if start.killed_at else None
        if not before or not before.went_on:
            return
        lost = [n for _, n in before.begun if n > position]
        whole = sum(n in before.there for n in lost)
        self.seen.saves_lost = max(self.seen.saves_lost, len(lost) + whole)
        if not lost:
            since = max([before.went_on[0], *(at for at, _ in before.begun), *before.there.values()])
            self.seen.unsaved_s = max(self.seen.unsaved_s, before.killed_at - since)

    def _fork(self, rank: int, world_size: int, port: int) -> int:
        if pid := os.fork():
            return pid
        status = 1
        try:
            os.environ |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "MLFLOW_TRACKING_URI": "",
            }
            status = work(self.folder, self.log)
        finally:
            os._exit(status)


def work(folder: Path, log: Path) -> int:
    """Runs a worker as torchrun would, with its log and last words in the folder."""
    from daybreak.training import worker

    output = os.open(log.with_name("output.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if os.environ["RANK"] == "0":
        logging.basicConfig(filename=log, level=logging.DEBUG, format="%(created)f %(message)s", force=True)
    try:
        return worker.main(folder)
    except Exception:  # noqa: BLE001 as the interpreter itself would, which this process must not go back to
        sys.excepthook(*sys.exc_info())
        return 1


def started(text: str, killed_at: float) -> Start:
    """What a start did, by its log."""
    events = EVENT.findall(text)
    return Start(
        killed_at=killed_at,
        went_on=next(((float(at), int(n)) for at, n, *_ in events if n), None),
        begun=[(float(at), int(n)) for at, _, n, what in events if what == "begun"],
        there={int(n): float(at) for at, _, n, what in events if what == "there"},
    )


def is_good(path: Path) -> bool:
    """Whether a checkpoint is whole, to the letter of its manifest."""
    try:
        digests = json.loads((path / "manifest.json").read_text())
        actual = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    except (OSError, ValueError):
        return False
    del actual["manifest.json"]
    return bool(actual == digests)


def newest_good(folder: Path) -> int:
    """Samples in the newest checkpoint that is whole; 0 without any."""
    return max([int(path.name[5:]) for path in folder.glob("seen=*") if is_good(path)], default=0)


def ended(workers: set[int]) -> set[int]:
    """Those that have."""
    return {pid for pid in workers if os.waitpid(pid, os.WNOHANG)[0]}


def wait_for(workers: set[int]) -> None:
    """Until they have ended; those that take too long are killed."""
    until = time.monotonic() + PATIENCE_S
    while workers:
        workers = workers - ended(workers)
        if time.monotonic() > until:
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

"""Supervision of a training worker: heartbeats, the watchdog, records of errors, and signals to end."""

import json
import logging
import math
import os
import resource
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from daybreak.contract import clock, records
from daybreak.contract.errors import Interrupted, PipelineError
from daybreak.storage import jsonl
from daybreak.training import worker_errors
from daybreak.training.recipe import BATCH, END_BY, MOVING, Progress, Recipe
from daybreak.training.termination import Termination
from daybreak.training.watchdog import Watchdog

if TYPE_CHECKING:
    from daybreak.training.engine import TorchEngine
    from daybreak.training.estimator_engine import EstimatorEngine

    AnyEngine = TorchEngine | EstimatorEngine

log = logging.getLogger(__name__)


class Supervision:
    """Tells others how training goes on, and training when it has to end.

    The watchdog ends a worker that hangs, SIGTERM one that is to save first, and the launcher may set a time.
    """

    def __init__(self, folder: Path, *, hang_after_s: float) -> None:
        rank = int(os.environ.get("RANK", "0"))
        self._folder = folder
        self._watchdog = Watchdog(
            hang_after_s=hang_after_s,
            on_hang=lambda message: worker_errors.leave(folder, message, rank=rank),
        )
        self._termination = Termination()
        self._limit = _Limit(folder)
        self._device_use = _DeviceUse()
        self._batch_size = asked_batch_size(folder)

    def begin(self, *, update: Callable[[], int]) -> None:
        """Holds SIGTERM back and watches for hangs from now on; an error is recorded with its update."""
        self._limit.poll()
        self._termination.listen()
        self._watchdog.start()
        record_errors(self._folder, update=update)

    def end(self) -> None:
        """Stops watching, after the last update."""
        record_errors(self._folder)
        self._watchdog.stop()

    def alive(self) -> None:
        """Shows that a worker without an update is not a hang."""
        self._watchdog.alive()
        (self._folder / MOVING).touch()

    def told_to_stop(self) -> bool:
        """Returns whether SIGTERM has come; called before each update, which the watchdog sees by it."""
        self._watchdog.beat()
        return self._termination()

    def end_by(self) -> float:
        """Returns the time to end by, in seconds since 1970; infinity where the launcher has set none."""
        return self._limit.time

    def batch_size(self) -> int:
        """Returns the size of batches that a trigger asks for; 0 where none does."""
        return self._batch_size

    def report(self, engine: "AnyEngine", progress: Progress) -> None:
        """Writes a heartbeat, and reads again what the launcher asks for."""
        from daybreak.training.devices import memory_use

        self._limit.poll()
        self._batch_size = asked_batch_size(self._folder)
        use = self._device_use.since_last(progress.time.timestamp(), waited_s=engine.waited_s)
        heartbeat = replace(
            progress,
            device=engine.devices,
            device_use=use,
            memory_use=memory_use(),
            queue_length=engine.queue_length,
        )
        _report(self._folder, heartbeat)


class _Limit:
    """The time to end by that the launcher has set; infinity where it has set none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / END_BY
        self.time = math.inf
        self.poll()

    def poll(self) -> None:
        """Reads the time again."""
        self.time = math.inf
        with suppress(FileNotFoundError):  # the launcher may just have removed it
            self.time = json.loads(self._path.read_text())["time"]


def asked_batch_size(folder: Path) -> int:
    """Returns the batch size that a trigger asked for last; 0 where none did."""
    try:
        return int(json.loads((folder / BATCH).read_text())["batch_size"])
    except FileNotFoundError:
        return 0


class _DeviceUse:
    """The share of the time in which the device of worker 0 did not wait for samples."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def since_last(self, now: float, *, waited_s: float | None) -> float | None:
        """Returns the share since the call before; None at the first one, and where nothing is known."""
        if waited_s is None:
            return None
        before, self._before = self._before, (now, waited_s)
        if before is None or now <= before[0]:
            return None
        return max(0.0, 1 - (waited_s - before[1]) / (now - before[0]))


def ended_early_by(folder: Path, recipe: Recipe) -> Literal["deadline", "budget"]:
    """Returns which of the two limits came first."""
    limit = _Limit(folder)
    limit.poll()
    return "budget" if limit.time < recipe.train_until.timestamp() else "deadline"


def _report(folder: Path, progress: Progress) -> None:
    check_attempt(folder)
    if not jsonl.append(folder / "progress.jsonl", json.loads(records.dumps(progress))):
        with suppress(OSError):
            (folder / MOVING).touch()  # takes no space, and shows the launcher that this is not a hang
            os.utime(folder / MOVING, (clock.now(), clock.now()))


def check_attempt(folder: Path) -> None:
    """Raises Interrupted if the job was restarted meanwhile: the new workers own the folder."""
    own, path = os.environ.get(worker_errors.ATTEMPT), folder / "attempt"
    if own and path.exists() and path.read_text() != own:
        raise Interrupted(
            f"job {folder.name} was started again; this worker belongs to an older start and ends"
        )


def note_start(folder: Path) -> None:
    """Records that the first worker of a job began, and since when its machine has been there."""
    booted_at = datetime.fromtimestamp(clock.booted_at(), UTC)
    line = {"time": clock.utc().isoformat(), "booted_at": booted_at.isoformat()}
    line["attempt"] = os.environ.get(worker_errors.ATTEMPT, "")
    jsonl.append(folder / "starts.jsonl", line)


def record_errors(folder: Path, *, update: Callable[[], int | None] = lambda: None) -> None:
    """Lets an error that ends this process leave a record, with the update that it was taking."""
    rank = int(os.environ.get("RANK", "0"))
    sys.excepthook = lambda kind, error, trace: leave_error(folder, rank, error, update=update())


def leave_error(folder: Path, rank: int, error: BaseException, *, update: int | None = None) -> None:
    """Records what ended this worker in errors.jsonl, and prints it."""
    worker_errors.leave(folder, error, rank=rank, update=update)
    if isinstance(error, PipelineError):
        log.error("%s: %s", type(error).__name__, error)
    else:
        traceback.print_exception(error)


def set_up_process() -> None:
    """Sends logs to standard error and prints line by line, and turns off core dumps, which fill the disk.

    What is printed to a file would otherwise wait for a full block, and be lost where the process is killed.
    """
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

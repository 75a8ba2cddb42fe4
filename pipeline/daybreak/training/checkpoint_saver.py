"""Writes checkpoints while training goes on: the loop waits for a copy in memory, a thread does the rest.

The copy goes into memory that is kept: for 200 MB it takes 45 ms, where fresh memory takes 250 ms and writing
takes 1 s. torch.distributed.checkpoint was measured and is not used: importing it takes 1.8 s, more than it
would save in a night; its `.metadata` is a pickle; its safetensors writer holds the interpreter for 0.3 to
0.5 s on those 200 MB, stores no scalars and has no atomic commit; and its separate process imports torch.

One checkpoint is written at a time, so the work at risk is an interval plus the time in flight. Young's
interval depends on the cost of a checkpoint to training: the time that the loop was blocked, and the
processor seconds that the thread took from it. The time in flight is lost under any interval, so it does not
change the best interval, and is only a lower bound for it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.machines.losses import checkpoint_interval_s
from daybreak.training import checkpoint
from daybreak.training.checkpoint import TrainingState
from daybreak.training.checkpoint_copies import CheckpointCopies

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

RETRY_S = 15.0
LEAST_COST_S = 0.01  # of a checkpoint, however fast it was measured to be


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """The result of writing a checkpoint in the background."""

    succeeded: bool  # False: the disk or the storage of the copies refused
    ended: float  # by the clock
    busy_s: float  # of a processor


class Saver:
    """Writes the checkpoints of a run into `folder`, on worker 0, and says when the next is due."""

    def __init__(
        self,
        folder: Path,
        *,
        identity: str,
        every_s: float,
        mean_time_to_loss_s: float | None,
        schedule_s: Sequence[float] = (),
        clock: Callable[[], float],
        copies: CheckpointCopies | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.folder, self.copies, self._identity = folder, copies, identity
        self._first_s, self._mean_time_to_loss_s = every_s, mean_time_to_loss_s
        self._schedule_s = schedule_s  # counted from a start, where the hazard changes with a machine's age
        self._clock = clock
        self._executor = executor or ThreadPoolExecutor(1, "checkpoint")
        self._kept: dict[tuple[str, str], Tensor] = {}
        self._writing: Future[WriteResult] | None = None
        self._began = self._blocked_until = clock()
        self.every_s = every_s
        self._next = clock() + every_s
        self.blocked_s: list[float] = []  # of the loop, by each checkpoint
        self.takes_s = 0.0  # from the start of the last checkpoint until it was written

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        if self._writing and self._writing.done():
            self.wait()
        return self._writing is not None

    def due(self) -> bool:
        """Returns whether it is time for the next checkpoint, and the one before is written."""
        return not self.busy and self._clock() >= self._next

    def begin(self, state: TrainingState, *, seen: int, began: float) -> None:
        """Copies the state and starts to write it; the loop was blocked since `began`, by the clock."""
        self.wait()
        copied = TrainingState(tensors=self._copied(state.tensors), scalars=state.scalars)
        self._began, self._blocked_until = began, self._clock()
        self.blocked_s.append(self._blocked_until - began)
        log.debug("checkpoint at %d samples: begun", seen)
        self._writing = self._executor.submit(self._write, copied, seen)

    def wait(self) -> None:
        """Waits until the checkpoint that is being written is finished or was refused."""
        if self._writing is None:
            return
        written = self._writing.result()
        self._writing = None
        self.takes_s = written.ended - self._began
        self.every_s = self._best_s(written) if written.succeeded else min(self.every_s, RETRY_S)
        self._next = self._blocked_until + self.every_s

    def _best_s(self, written: WriteResult) -> float:
        """Returns the best interval by the measured cost of a checkpoint, which the plan could only guess."""
        if self._schedule_s:
            return self._schedule_s[min(len(self.blocked_s), len(self._schedule_s) - 1)]
        if self._mean_time_to_loss_s is None:
            return self._first_s
        cost_s = max(self.blocked_s[-1] + written.busy_s, LEAST_COST_S)
        return checkpoint_interval_s(save_s=cost_s, mean_time_to_preemption_s=self._mean_time_to_loss_s)

    def _copied(self, tensors: dict[str, dict[str, "Tensor"]]) -> dict[str, dict[str, "Tensor"]]:
        """Returns copies of the tensors in main memory, where no update changes them."""
        import torch

        on_gpu = torch.cuda.is_available()  # a GPU copies asynchronously to page-locked memory
        copied: dict[str, dict[str, Tensor]] = {}
        for part, named in tensors.items():
            copied[part] = {}
            for name, tensor in named.items():
                kept = self._kept.get((part, name))
                if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
                    kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu)
                    self._kept[part, name] = kept
                copied[part][name] = kept.copy_(tensor.detach(), non_blocking=on_gpu)
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return copied

    def _write(self, state: TrainingState, seen: int) -> WriteResult:
        began_s = time.thread_time()
        path = checkpoint.save(self.folder, state, seen=seen, identity=self._identity)
        succeeded = path is not None and (self.copies is None or self.copies.send(path))
        if succeeded:
            log.debug("checkpoint at %d samples: there", seen)
        return WriteResult(succeeded=succeeded, ended=self._clock(), busy_s=time.thread_time() - began_s)

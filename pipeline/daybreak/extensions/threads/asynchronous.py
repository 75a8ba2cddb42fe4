"""Trains by asynchronous workers on whatever cores are free (`train.threads: auto`).

The weights and the optimizer's state lie in memory that this process shares with its workers, each a process
with one thread. A worker copies the weights without waiting for anybody, as in Hogwild (Recht et al. 2011),
computes the gradient of its part of a batch, and changes the shared weights under a lock. The policy
(thread_policy.py) says how many workers there are, in how many parts a batch goes, and by what rate and
momentum.

The trainer knows nothing of this: a step hands out a batch, and a save waits for everything handed out. An
engine has three parts beside those of the usual one: the `trainee` computes gradients in each worker
(trainee.py), the `queue` sends parts of batches to workers (part_queue.py), and the `window` says which
batches are judged together (batch_window.py).

A window of batches begins with a copy of the weights; where the policy undoes it, training goes back to that
copy and takes the same batches again. So each sample counts once an epoch, as the audit demands. A core that
is taken away is given up: its worker finishes its part, or is stopped after a third of a second, and another
worker takes over the part. Runs are not bit-equal, since the order of workers is chance. A single worker
trains like the usual engine.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import TrainingProgress
from daybreak.extensions.threads.asynchronous_workers import Processes, Trainee, WorkerPool
from daybreak.extensions.threads.batch_window import BatchWindow, Piece, TrainBatch
from daybreak.extensions.threads.part_queue import Cores, PartQueue
from daybreak.extensions.threads.shared_weights import SharedWeights
from daybreak.extensions.threads.thread_policy import ALONE, ThreadPolicy
from daybreak.extensions.threads.trainee import PartAccumulation, PartUpdater, SharedTrainee
from daybreak.training.checkpoint import TrainingState
from daybreak.training.engine import START, TorchEngine, UpdateResult
from daybreak.training.gradients import Signals
from daybreak.training.sample_order import Indices
from daybreak.training.tuning import rule_of


class AsynchronousEngine(TorchEngine):
    """Updates by as many asynchronous workers as pay."""

    accumulation: PartAccumulation
    updater: PartUpdater
    takes_all = False
    waited_s = queue_length = None  # workers read for themselves, each on its core

    def __init__(
        self,
        *args: Any,
        tuning: Tuning,
        cores: Cores,
        pool: Callable[[Trainee], WorkerPool] = Processes,
        **kwargs: Any,
    ) -> None:
        # Workers read for themselves. What is compiled or read into memory would be so in each of them.
        own = replace(tuning, num_loaders=0, loader_processes=False, compiled=False, in_memory=False)
        torch.set_num_threads(1)  # each worker has one core, and a pool of threads does not survive a fork
        super().__init__(*args, tuning=own, **(kwargs | {"column_files": None, "follow_memory": "off"}))
        if self.world_size > 1 or self.device.type != "cpu" or rule_of(self.optimizer) is None:
            raise ParamsError(
                f"train.threads: auto is for one machine without GPUs, one worker, and SGD, Adam or Adagrad, "
                f"not {type(self.optimizer).__name__} in {self.world_size} workers on {self.device.type}; "
                f"set train.threads to fixed"
            )
        self._shared = SharedWeights(self.model, self.optimizer)
        trainee = SharedTrainee(
            self.model,
            self._shared,
            accumulation=self.accumulation,
            micro_batches=self.micro_batches,
            updater=self.updater,
        )
        self.window = BatchWindow()
        self.queue = PartQueue(
            lambda: pool(trainee),
            cores=cores,
            window=self.window,
            updater=self.updater,
            micro_batches=self.micro_batches,
        )
        self._progress: deque[TrainingProgress] = deque()
        self._num_batches = 0
        self._again: deque[TrainBatch] = deque()  # batches to train on, undone ones first

    def _new_accumulation(self, *args: Any, **parts: Any) -> PartAccumulation:
        return PartAccumulation(*args, **parts)

    def _new_updater(self, optimizers: Mapping[str, Optimizer]) -> PartUpdater:
        return PartUpdater(optimizers, model=self.model, tuner=self._tuner, group=self.group)

    def prepare(self, indices: Indices, *, progress: TrainingProgress = START) -> None:
        """Notes the progress at a share; workers load it themselves."""
        self._progress.append(progress)

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> UpdateResult:
        """Hands out a batch; the loss is that of the updates that ended meanwhile."""
        queue, window = self.queue, self.window
        progress = self._progress.popleft() if self._progress else START
        if queue.policy is None:
            queue.policy = ThreadPolicy(batch_size=batch_size)
        self._num_batches += 1
        number = self._num_batches
        batch = TrainBatch(number=number, indices=indices, progress=progress, rate=rate, size=batch_size)
        self._again.append(batch)
        while self._again:
            if not window.batches:
                self._begin_window(queue.policy)
            batch = self._again.popleft()
            window.batches.append(batch)
            self._hand_out(batch)
            while not window.has_loss:
                queue.collect()
                queue.send()
            if window.is_over(queue.pool().now(), may_be_short=not self._again):
                self._end_window()
        loss = window.mean_loss()
        noise, window.noise = window.noise, None
        return UpdateResult(loss=loss, signals=signals, noise=noise)

    def _hand_out(self, batch: TrainBatch) -> None:
        """Sends the parts of a batch to workers; if all parts make one update, waits for the update."""
        setting = self.queue.setting
        most = max(1, len(batch.indices) // self.least_share)
        parts = np.array_split(batch.indices, min(most, setting.num_parts))
        of = 1 if setting.is_asynchronous else len(parts)
        self.queue.send(Piece(indices=part, batch=batch, of=of) for part in parts)
        if of > 1:
            self.queue.drain()
            if self.window.overflowed:
                self._shared.forget()

    def _begin_window(self, policy: ThreadPolicy) -> None:
        queue = self.queue
        queue.drain()
        self.window.begin(
            queue.pool().now(),
            length=len(self._again) if len(self._again) > 1 else policy.window,  # undone ones again
            copy=self._shared.copy() if queue.setting.is_asynchronous else [],
        )

    def _end_window(self) -> None:
        """Has the policy judge the window, and goes back to its beginning if it is to be undone."""
        queue, window = self.queue, self.window
        queue.drain()
        window.expect_finite()
        if window.can_be_judged and queue.judge(may_undo=bool(window.copy)):
            self._undo()
        assert queue.policy
        if queue.policy.risen is None:
            window.forget()
        else:  # all since the copy may have to be undone
            window.extend(queue.pool().now(), length=queue.policy.window)

    def _undo(self) -> None:
        """Goes back to the weights before the window, and has its batches trained on again."""
        self._shared.restore(self.window.copy)
        self._again.extendleft(reversed(self.window.undo()))

    def _is_harmed(self, policy: ThreadPolicy) -> bool:
        """Returns whether the loss is above its level, so that no checkpoint may hold these weights."""
        window = self.window
        if not (window.batches and window.copy):
            return False
        met = bool(window.overflowed or window.losses)
        return policy.risen is not None or (met and policy.harms(window.timing(self.queue.pool().now())))

    def weights(self) -> dict[str, Tensor]:
        """Returns the whole model."""
        return self._shared.named()

    def save(self) -> TrainingState:
        """Returns model and optimizer once all that was handed out is trained on, and nothing is undone."""
        queue, window = self.queue, self.window
        queue.drain()
        window.expect_finite()
        if queue.policy and self._is_harmed(queue.policy):
            queue.policy = queue.policy.undone()
            self._undo()
        while self._again:  # one worker takes what was undone
            assert queue.policy
            queue.policy, window.copy = replace(queue.policy, setting=ALONE, accepted=ALONE, late=None), []
            batch = self._again.popleft()
            queue.send([Piece(indices=batch.indices, batch=batch)])
            queue.drain()
            window.expect_finite()
        window.forget()  # one with a pause in it is not judged
        self._updates = queue.number
        state = super().save()
        return TrainingState(tensors=state.tensors, scalars={**state.scalars, "batches": self._num_batches})

    def load(self, state: TrainingState) -> None:
        """Restores model and optimizer; workers begin anew."""
        self._end_workers()
        super().load(state)
        self._shared.share_moments()
        self.queue.number, self._num_batches = self._updates, state.scalars.get("batches", 0)

    def _load_weights(self, tensors: dict[str, Tensor]) -> None:
        super()._load_weights(tensors)
        self._shared.write()

    def close(self) -> None:
        """Ends the workers."""
        self._end_workers()
        self.queue.cores.close()
        super().close()

    def _end_workers(self) -> None:
        self.queue.close()
        self.window.forget()

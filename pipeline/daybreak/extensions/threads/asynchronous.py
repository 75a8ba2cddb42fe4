"""Trains by asynchronous workers on whatever cores are free (`train.threads: auto`).

The weights and the optimizer's state lie in memory that this process shares with its workers, each a process
with one thread. A worker copies the weights without waiting for anybody, as in Hogwild (Recht et al. 2011),
computes the gradient of its part of a batch, and changes the shared weights under a lock. The policy
(thread_policy.py) says how many workers there are, in how many parts a batch goes, and by what rate and
momentum.

The trainer knows nothing of this: a step hands out a batch, and a save waits for everything handed out. A
window of batches begins with a copy of the weights; where the policy undoes it, training goes back to that
copy and takes the same batches again. So each sample counts once an epoch, as the audit demands. A core that
is taken away is given up: its worker finishes its part, or is stopped after a third of a second, and another
worker takes over the part. Runs are not bit-equal, since the order of workers is chance. A single worker
trains like the usual engine.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import thread_time
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from daybreak.contract.errors import NotFinite, ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.extensions.threads.asynchronous_workers import BatchPart, Done, Gradient, Processes, WorkerPool
from daybreak.extensions.threads.shared_weights import SharedWeights
from daybreak.extensions.threads.thread_policy import (
    ALONE,
    CostLine,
    ThreadPolicy,
    ThreadSetting,
    ThreadTiming,
    momentum_left,
)
from daybreak.training.accumulation import Accumulation
from daybreak.training.checkpoint import TrainingState
from daybreak.training.engine import TorchEngine, UpdateResult
from daybreak.training.gradients import Signals
from daybreak.training.learning_rate import scaled
from daybreak.training.sample_order import Indices
from daybreak.training.updater import SCALED

log = logging.getLogger(__name__)

LEAST_BATCHES = 8  # that a judgement needs
WINDOW_S = 5.0  # after which a window ends with so many, as it may have to be trained on again
QUEUE = 2  # parts that a worker has, so that it need not wait for the next
POLL_S = 0.1  # between looks at the cores
GIVE_UP_S = 0.3  # until a worker whose core was taken is stopped
# Updates between measurements of the noise: of the first ones, and later.
LOOK_EVERY, NUM_FIRST, LOOK_LATER = 8, 16, 64
MAX_NAMED = 20  # samples in an error


class Cores(Protocol):
    """Says how many cores there are for this run; free_cores.py does."""

    limit: int  # cores that this process may ever use

    def free(self, *, pids: Sequence[int], wants: int) -> float:
        """Returns the cores that these processes may use now, given how many they would use at most."""

    def close(self) -> None:
        """Leaves the cores to others."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    number: int
    indices: Indices
    epoch: int
    rate: float
    size: int


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A part that is still to be trained on; its options depend on the setting when it is sent."""

    indices: Indices
    batch: _Batch
    of: int = 1  # parts that make one update


class _PartAccumulation(Accumulation):
    """Passes over a part of a batch, which measures the noise where the training process asks for it."""

    looks = False

    def measures_noise(self, num_samples: int, *, update: int) -> bool:
        return self.looks


class AsynchronousEngine(TorchEngine):
    """Updates by as many asynchronous workers as pay."""

    accumulation: _PartAccumulation
    waited_s = None  # workers read for themselves, each on its core

    def __init__(
        self,
        *args: Any,
        tuning: Tuning,
        cores: Cores,
        pool: "Callable[[AsynchronousEngine], WorkerPool] | None" = None,
        **kwargs: Any,
    ) -> None:
        # Workers read for themselves. What is compiled or read into memory would be so in each of them.
        own = replace(tuning, num_loaders=0, loader_processes=False, compiled=False, in_memory=False)
        torch.set_num_threads(1)  # each worker has one core, and a pool of threads does not survive a fork
        super().__init__(*args, tuning=own, **(kwargs | {"column_files": None, "follow_memory": "off"}))
        if self.world_size > 1 or self.device.type != "cpu" or self.updater.kind is None:
            raise ParamsError(
                f"train.threads: auto is for one machine without GPUs, one worker, and SGD, Adam or Adagrad, "
                f"not {type(self.optimizer).__name__} in {self.world_size} workers on {self.device.type}; "
                f"set train.threads to fixed"
            )
        self._cores = cores
        self._make_pool: Callable[[AsynchronousEngine], WorkerPool] = pool or Processes
        self._pool: WorkerPool | None = None
        self._shared = SharedWeights(self.model, self.optimizer)
        self._tuned = self._read_tuned()
        self.policy: ThreadPolicy | None = None
        self._epochs: deque[int] = deque()
        self._number = 0  # of the next update
        self._num_batches = 0
        self._again: deque[_Batch] = deque()  # batches to train on, undone ones first
        self._since: list[_Batch] = []  # batches since `_copy` was taken
        self._judged = 0  # of these, in windows that were judged
        self._copy: list[Tensor] = []
        self._pieces: deque[_Piece] = deque()
        self._sent: dict[int, deque[_Piece]] = {}  # what each worker has
        self._leave_at: dict[int, float] = {}  # workers whose core was taken
        self._polled = -math.inf
        self._free = 1.0
        self._window_from = 0.0
        self._window = 0  # batches of this window
        self._losses: dict[int, tuple[float, int]] = {}  # of the batches of this window: sums, and samples
        self._newest: list[tuple[float, int]] = []  # since the last step
        self._loss = math.nan
        self._overflowed: _Piece | None = None
        self._line = CostLine()
        self._noise: tuple[float, float] | None = None
        self.max_give_up_s = 0.0  # longest time from the loss of a core until its worker had ended

    def _new_accumulation(self, *args: Any, **parts: Any) -> Accumulation:
        return _PartAccumulation(*args, **parts)

    def prepare(self, indices: Indices, *, epoch: int = 0) -> None:
        """Notes the epoch of a share; workers load it themselves."""
        self._epochs.append(epoch)

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> UpdateResult:
        """Hands out a batch; the loss is that of the updates that ended meanwhile."""
        epoch = self._epochs.popleft() if self._epochs else 0
        if self.policy is None:
            self.policy = ThreadPolicy(batch_size=batch_size)
        pool = self._workers()
        self._num_batches += 1
        number = self._num_batches
        self._again.append(_Batch(number=number, indices=indices, epoch=epoch, rate=rate, size=batch_size))
        while self._again:
            if not self._since:
                self._begin_window()
            batch = self._again.popleft()
            self._since.append(batch)
            self._hand_out(batch)
            while math.isnan(self._loss) and not self._newest and not self._overflowed:
                self._collect(pool)
                self._send_all()
            length = len(self._since) - self._judged
            is_long = pool.now() > self._window_from + WINDOW_S and length >= LEAST_BATCHES
            if self._overflowed or length >= self._window or (is_long and not self._again):
                self._end_window()
        if self._newest:
            self._loss = sum(loss for loss, _ in self._newest) / sum(number for _, number in self._newest)
            self._newest = []
        noise, self._noise = self._noise, None
        return UpdateResult(loss=self._loss, signals=signals, noise=noise)

    def _hand_out(self, batch: _Batch) -> None:
        """Sends the parts of a batch to workers; if all parts make one update, waits for the update."""
        most = max(1, len(batch.indices) // self.least_share)
        parts = np.array_split(batch.indices, min(most, self.setting.num_parts))
        of = 1 if self.setting.is_asynchronous else len(parts)
        self._pieces.extend(_Piece(indices=part, batch=batch, of=of) for part in parts)
        self._send_all()
        if of > 1:
            self._drain()
            if self._overflowed:
                self._shared.forget()

    @property
    def setting(self) -> ThreadSetting:
        """The setting that the policy has chosen."""
        return self.policy.setting if self.policy else ALONE

    def _workers(self) -> WorkerPool:
        if self._pool is None:
            self._pool = self._make_pool(self)
        return self._pool

    def _begin_window(self) -> None:
        self._drain()
        assert self.policy
        self._window = len(self._again) if len(self._again) > 1 else self.policy.window  # undone ones again
        self._window_from, self._losses = self._workers().now(), {}
        self._copy = self._shared.copy() if self.setting.is_asynchronous else []

    def _seen(self) -> ThreadTiming:
        """Returns what the batches of this window gave so far."""
        return ThreadTiming(
            first=self._since[self._judged].number,
            num_samples=sum(number for _, number in self._losses.values()),
            elapsed_s=max(self._workers().now() - self._window_from, 1e-9),
            losses=(math.nan,)
            if self._overflowed
            else tuple(loss / number for _, (loss, number) in sorted(self._losses.items())),
        )

    def _end_window(self) -> None:
        """Has the policy judge the window, and goes back to its beginning if it is to be undone."""
        assert self.policy
        self._drain()
        if self._overflowed and not self._copy:
            raise self._not_finite(self._overflowed)
        if len(self._losses) >= LEAST_BATCHES or self._overflowed:
            window = self._seen()
            self._look_at_cores()
            self.policy, undo = self.policy.judge(
                window, free_cores=self._free, costs=self._line.costs(), may_undo=bool(self._copy)
            )
            log.debug("a loss of %.4g at %.0f samples/s: %s", window.loss, window.speed, self.setting)
            if undo:
                self._undo()
        if self.policy.risen is None:
            self._since, self._judged = [], 0
        else:  # all since the copy may have to be undone
            self._judged, self._window = len(self._since), self.policy.window
            self._window_from, self._losses = self._workers().now(), {}

    def _undo(self) -> None:
        """Goes back to the weights before the window, and has its batches trained on again."""
        self._shared.restore(self._copy)
        self._again.extendleft(reversed(self._since))
        self._newest, self._overflowed, self._copy = [], None, []

    def _is_harmed(self) -> bool:
        """Returns whether the loss is above its level, so that no checkpoint may hold these weights."""
        assert self.policy
        met = bool(self._overflowed or self._losses)
        return self.policy.risen is not None or (met and self.policy.harms(self._seen()))

    def _not_finite(self, piece: _Piece) -> NotFinite:
        samples = ", ".join(map(str, piece.indices[:MAX_NAMED].tolist()))
        samples += ", ..." if len(piece.indices) > MAX_NAMED else ""
        return NotFinite(
            f"the loss of update {piece.batch.number} is not a number, on {len(piece.indices)} samples: "
            f"{samples}; look at these samples, or lower train.rate",
            update=piece.batch.number,
        )

    def _send_all(self) -> None:
        """Sends all pieces, each to a worker that has room for it."""
        pool = self._workers()
        while self._pieces:
            self._look_at_cores()
            room = [w for w in range(self.setting.num_workers) if len(self._sent.get(w, ())) < QUEUE]
            if not room:
                self._collect(pool)
                continue
            worker = min(room, key=lambda w: len(self._sent.get(w, ())))
            piece = self._pieces.popleft()
            self._sent.setdefault(worker, deque()).append(piece)
            first = self._number < LOOK_EVERY * NUM_FIRST
            pool.send(
                worker,
                BatchPart(
                    number=self._number,
                    indices=piece.indices,
                    epoch=piece.batch.epoch,
                    options=self._options(piece),
                    micro_batch_size=self.micro_batches.size,
                    weight=len(piece.indices) / piece.batch.size if piece.of > 1 else 1.0,
                    of=piece.of,
                    measures_noise=(self._number + 1) % (LOOK_EVERY if first else LOOK_LATER) == 0,
                ),
            )
            self._number += 1

    def _drain(self) -> None:
        """Waits until all that was handed out is trained on."""
        while self._pieces or any(self._sent.values()):
            self._send_all()
            if any(self._sent.values()):
                self._collect(self._workers())

    def _collect(self, pool: WorkerPool) -> None:
        for worker, done in pool.wait(POLL_S):
            self._take(self._sent[worker].popleft(), done)
        self._look_at_cores()

    def _take(self, piece: _Piece, done: Done) -> None:
        if done.short:
            if len(piece.indices) > self.micro_batches.size // 2:  # others may have shrunk it meanwhile
                self.micro_batches.shrink(share=len(piece.indices))
            self._pieces.appendleft(piece)
            return
        if not math.isfinite(done.loss):
            self._overflowed = piece
            return
        number = len(piece.indices)
        loss, others = self._losses.get(piece.batch.number, (0.0, 0))
        self._losses[piece.batch.number] = loss + done.loss, others + number
        self._newest.append((done.loss, number))
        self._line.add(
            num_passes=done.num_passes,
            num_samples=number,
            gradient_s=done.gradient_s,
            apply_s=done.apply_s,
            is_update=done.is_update,
        )
        if done.noise:
            self._noise = done.noise

    def _look_at_cores(self) -> None:
        """Gives up cores that were taken away; a few times a second."""
        pool = self._workers()
        now = pool.now()
        for worker, since in list(self._leave_at.items()):
            if worker < self.setting.num_workers or not self._sent.get(worker):
                self.max_give_up_s = max(self.max_give_up_s, now - since)
                del self._leave_at[worker]
            elif now >= since + GIVE_UP_S:
                for done in pool.stop(worker):
                    self._take(self._sent[worker].popleft(), done)
                self._pieces.extendleft(reversed(self._sent.pop(worker, deque())))
        if now < self._polled + POLL_S or self.policy is None:
            return
        self._polled = now
        wants = self.policy.wanted(self._cores.limit, costs=self._line.costs())
        self._free = self._cores.free(pids=pool.pids(), wants=wants)
        before = self.setting.num_workers
        self.policy = self.policy.give_up(self._free)
        if self.setting.num_workers < before:
            self._leave_at |= dict.fromkeys(range(self.setting.num_workers, before), now)
            self._window_from, self._losses = now, {}  # a mixture is not judged

    def _options(self, piece: _Piece) -> tuple[dict[str, Any], ...]:
        """Returns rate, momentum, betas and eps of each group, for a part by the setting of now."""
        setting = self.setting
        options = []
        size = piece.batch.size if piece.of > 1 else len(piece.indices)  # of the update
        workers = setting.num_workers if setting.is_asynchronous else 1
        for tuned, part in zip(self._tuned, self.updater.rate_shares, strict=True):
            scaling = scaled(
                self.updater.kind,
                name=type(self.optimizer).__name__,
                rule="by_optimizer",
                batch_size=size,
                base_size=piece.batch.size,
                betas=tuple(tuned["betas"] or ()),
                eps=tuned["eps"] or 0.0,
            )
            own: dict[str, Any] = {"lr": piece.batch.rate * scaling.rate * part}
            if momentum := tuned["momentum"] or 0.0:
                own["momentum"] = momentum_left(momentum, num_workers=workers)
                own["lr"] *= (1 - own["momentum"]) / (1 - momentum)  # a gradient goes as far in the end
            if scaling.betas and tuned["betas"]:
                first, *rest = scaling.betas
                own["betas"] = (momentum_left(first, num_workers=workers), *rest)
            if tuned["eps"]:
                own["eps"] = scaling.eps
            options.append(own)
        return tuple(options)

    def rescale(self, **sizes: Any) -> Any:
        """Changes betas and eps for batches of another size; see the protocol."""
        scaling = super().rescale(**sizes)
        self._tuned = self._read_tuned()
        return scaling

    def _read_tuned(self) -> list[dict[str, Any]]:
        names = (*SCALED, "momentum")
        return [{name: group.get(name) for name in names} for group in self.optimizer.param_groups]

    def gradient(self, part: BatchPart) -> Gradient:
        """Returns the gradient of a part at the shared weights of this moment; a worker calls it."""
        began = thread_time()
        self._shared.read()
        self.micro_batches.resize(part.micro_batch_size)
        size = len(part.indices)
        self.accumulation.prepare(part.indices, epoch=part.epoch)
        self.accumulation.begin(part.indices)
        self.accumulation.looks = part.measures_noise
        own = self.accumulation.add_up(part.indices, batch_size=size, update=part.number)
        sums = self.accumulation.gradients.reduce(
            own.losses,
            Signals(short=int(own.is_short)),
            num_samples=size,
            first=own.first,
            batch_size=size if part.measures_noise else 0,
        )
        return Gradient(
            loss=sums.loss,
            tensors=self._shared.gradients(),
            buffers=tuple(each.clone() for each in self.model.buffers()),
            noise=sums.noise,
            num_passes=len(own.losses),
            takes_s=thread_time() - began,
            short=own.is_short,
        )

    def apply(self, gradient: Gradient, part: BatchPart) -> Done:
        """Changes the shared weights, unless the loss is not finite; one worker at a time calls it."""
        began, is_update = thread_time(), False
        if not gradient.short and math.isfinite(gradient.loss):
            for group, options in zip(self.optimizer.param_groups, part.options, strict=True):
                group.update(options)
            is_update = self._shared.add_gradients(gradient.tensors, weight=part.weight, of=part.of)
            if is_update:
                self.updater.step()
            self._shared.set_buffers(gradient.buffers)
        return Done(
            loss=gradient.loss,
            noise=gradient.noise,
            num_passes=gradient.num_passes,
            gradient_s=gradient.takes_s,
            apply_s=thread_time() - began,
            is_update=is_update,
            short=gradient.short,
        )

    def weights(self) -> dict[str, Tensor]:
        """Returns the whole model."""
        return self._shared.named()

    def save(self) -> TrainingState:
        """Returns model and optimizer once all that was handed out is trained on, and nothing is undone."""
        self._drain()
        if self._overflowed and not self._copy:
            raise self._not_finite(self._overflowed)
        if self.policy and self._since and self._copy and self._is_harmed():
            self.policy = self.policy.undone()
            self._undo()
        while self._again:  # one worker takes what was undone
            assert self.policy
            self.policy, self._copy = replace(self.policy, setting=ALONE, accepted=ALONE, late=None), []
            batch = self._again.popleft()
            self._pieces.append(_Piece(indices=batch.indices, batch=batch))
            self._drain()
            if self._overflowed:
                raise self._not_finite(self._overflowed)
        self._since, self._judged = [], 0  # a window with a pause in it is not judged
        self._updates = self._number
        state = super().save()
        return TrainingState(tensors=state.tensors, scalars={**state.scalars, "batches": self._num_batches})

    def load(self, state: TrainingState) -> None:
        """Restores model and optimizer; workers begin anew."""
        self._end_workers()
        super().load(state)
        self._shared.share_moments()
        self._number, self._num_batches = self._updates, state.scalars.get("batches", 0)

    def _load_weights(self, tensors: dict[str, Tensor]) -> None:
        super()._load_weights(tensors)
        self._shared.write()

    def close(self) -> None:
        """Ends the workers."""
        self._end_workers()
        self._cores.close()
        super().close()

    def _end_workers(self) -> None:
        if self._pool:
            self._pool.close()
        self._pool, self._sent, self._leave_at = None, {}, {}
        self._since, self._judged = [], 0
        self._pieces.clear()

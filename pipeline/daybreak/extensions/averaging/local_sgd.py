"""Trains over a slow network: workers update by themselves, and average every `train.sync_every` updates.

Local SGD with an outer momentum (DiLoCo; Douillard et al. 2023, arXiv 2311.08105): each worker takes inner
updates on its shares with the workload's optimizer. Every H updates, the mean change of the workers' weights
is the gradient of an outer SGD with Nesterov momentum (outer_optimizer.py), and all workers continue from
the resulting weights. That sends H times fewer messages. Two differences from the paper, and why:

- Moments of the inner optimizer are averaged too, where DiLoCo leaves each worker its own. That sends two to
  three times the bytes every H updates, but then all workers know the whole state: a checkpoint is no larger
  than otherwise, and continues bit for bit, on any number of workers.
- Workers are weighted by the samples that they took, since shares may differ.

Without a barrier (`train.sync: no_barrier`) an average is sent while the next H updates are taken, as in
CoCoD-SGD (Shen et al. 2019, arXiv 1906.12043), and taken up after them. So that all workers still know the
whole state, each interval begins at the same weights, to which the mean change of the interval before last
has been added (a delayed outer step, as in Kale et al. 2025, arXiv 2502.12996), without momentum: with
z^2 - z + a = 0 for the share a of the way that an interval goes, it is stable for all a below 1. Moments are
those at the end of the interval before last, too. So staleness is one interval, never more, and a checkpoint
that holds the average on its way continues bit for bit.

What the plan has chosen (`train.sync: auto`) is tried. Gradients are added up at each update until warm-up
ends. Then `TRIAL` intervals are trained on with averages, undone, and trained on again with sums. Both began
at the same weights and saw the same samples. Losses are compared where workers have just averaged, by the
rule for asynchronous workers on one machine (`pays` in thread_policy.py). If averages do not pay, gradients
are added up at each update from then on. A checkpoint keeps the decision at once; a run that is stopped
within the trial begins it anew.

Between averages workers do not communicate: signals are exchanged, and checkpoints made, when they average. A
loss is that of the worker's own share. A share without samples is an update at rate 0, so that all workers
count the same updates.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Sync, Tuning
from daybreak.contract.workload import TrainingProgress
from daybreak.extensions.averaging.outer_optimizer import OuterOptimizer
from daybreak.extensions.threads.thread_policy import ThreadTiming, pays
from daybreak.training.checkpoint import TrainingState
from daybreak.training.engine import TorchEngine, UpdateResult
from daybreak.training.gradients import Gradients, Signals
from daybreak.training.process_group import WorkerGroup
from daybreak.training.sample_order import Indices

log = logging.getLogger(__name__)

TRIAL = 8  # intervals


@dataclass(kw_only=True)
class _Trial:
    """Averages on trial, and what is needed to undo them."""

    before: TrainingState
    began: float
    # Share, its progress, batch size, rate.
    batches: list[tuple[Indices, TrainingProgress, int, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of this worker's share, by the batch's size

    @property
    def loss(self) -> float:
        """The newest finite loss: one that is not finite ends the trial, not the training."""
        return next((loss for loss in reversed(self.losses) if math.isfinite(loss)), 0.0)

    def timing(self, losses: Sequence[float], *, group: WorkerGroup, is_own: bool) -> ThreadTiming:
        """Returns the speed and the losses of all workers since the trial began, equal on each worker.

        The losses are those of this worker's share if `is_own`, or else of all.
        """
        shared = torch.tensor([time.monotonic() - self.began, *losses], dtype=torch.float64)
        shared = shared.to(group.device, torch.float32)
        dist.all_reduce(shared)
        elapsed_s, *sums = shared.tolist()
        return ThreadTiming(
            first=0,
            num_samples=sum(size for _, _, size, _ in self.batches),
            elapsed_s=elapsed_s / group.world_size,
            losses=tuple(sums) if is_own else tuple(losses),
        )


class LocalSgdEngine(TorchEngine):
    """Updates by each worker alone; all average after every `sync_every` updates, and to save.

    With `is_late` an average is taken up one interval later. With `try_after` these averages are tried after
    so many updates, and `alive` is called at each update that is then taken again.
    """

    takes_all = False

    def __init__(
        self,
        *args: Any,
        tuning: Tuning,
        sync_every: int,
        is_late: bool = False,
        try_after: int | None = None,
        alive: Callable[[], None] = lambda: None,
        **kwargs: Any,
    ) -> None:
        if tuning.sharded or tuning.sharded_weights:
            raise ParamsError(
                "averages now and then need all of the optimizer on each worker, whose memory does "
                "not suffice for that; set train.sync to every_update"
            )
        self._together = False  # gradients are added up at each update
        super().__init__(*args, tuning=tuning, **kwargs)
        self._every, self._is_late, self._alive = sync_every, is_late, alive
        self._try_after = try_after if self.world_size > 1 else None  # None: not, or no more
        self._own_gradients = self._added_gradients = self.accumulation.gradients
        self._trial: _Trial | None = None
        if self._try_after is not None:
            self._added_gradients = super()._new_gradients()
            self._join(together=True)
        self._outer = OuterOptimizer(self.model, self.optimizer, group=self.group, is_late=is_late)
        self._forget()

    def _forget(self) -> None:
        """Begins with no averages before."""
        self._outer.forget()
        self._first: TrainingState | None = None  # without a barrier, the beginning of the first interval

    def _join(self, *, together: bool) -> None:
        self._together = together
        self.accumulation.gradients = self._added_gradients if together else self._own_gradients

    def _new_gradients(self) -> Gradients:
        return Gradients(self.model, rank=self.rank, world_size=1, optimizers=self.updater.optimizers)

    @property
    def sync(self) -> Sync:
        """When workers agree now."""
        return Sync() if self._together else Sync(every=self._every, is_late=self._is_late)

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> UpdateResult:
        """Takes one update of this worker; with every H-th, all workers average."""
        if (
            self._try_after is not None
            and not self._trial
            and self._updates >= self._try_after
            and self._updates % self._every == 0
        ):
            self._trial = _Trial(before=self._copy(), began=time.monotonic())
            self._join(together=False)
        if self._together:
            return super().step(indices, batch_size=batch_size, rate=rate, signals=signals)
        step = self._step_apart(indices, batch_size=batch_size, rate=rate, signals=signals)
        if not self._trial:
            return step
        self._trial.batches.append((indices, self.accumulation.progress, batch_size, rate))
        self._trial.losses.append(step.loss * len(indices) / batch_size)
        if len(self._trial.batches) < TRIAL * self._every:
            return replace(step, loss=self._trial.loss)
        loss = self._decide(self._trial)
        return UpdateResult(loss=loss, signals=replace(step.signals, save=step.signals.save + 1))

    def _step_apart(
        self, indices: Indices, *, batch_size: int, rate: float, signals: Signals
    ) -> UpdateResult:
        outer = self._outer
        if outer.anchor() and self._is_late and not outer.pending:
            self._first = self._copy()
        before_s = self._timer.read() if self._timer else 0.0
        if len(indices):
            step = super().step(indices, batch_size=len(indices), rate=rate, signals=Signals())
        else:
            step = self._idle()
        outer.count(len(indices), batch_size=batch_size)
        if self._updates % self._every:
            return step
        sums, times_s = self._synchronize(signals, time_s=before_s)
        return UpdateResult(
            loss=step.loss, signals=sums, times_s=times_s if self._timer else (), noise=step.noise
        )

    def _decide(self, trial: _Trial) -> float:
        """Takes the batches of the trial again with sums at each update, and goes on as pays.

        Returns the last loss.
        """
        if self._outer.pending:
            self._outer.pending.wait()  # and is then forgotten
        apart = trial.timing(trial.losses, group=self.group, is_own=True)
        super().load(trial.before)
        self._forget()
        self._join(together=True)
        trial.began = time.monotonic()
        losses = []
        for indices, self.accumulation.progress, batch_size, rate in trial.batches:
            self._alive()
            step = super().step(indices, batch_size=batch_size, rate=rate, signals=Signals())
            losses.append(step.loss)
        together = trial.timing(losses, group=self.group, is_own=False)
        does_pay = pays(apart, together, every=self._every)
        if self.rank == 0:
            log.info(
                "averages every %d updates: %.4g samples/s at a loss of %.4g, beside %.4g at %.4g; %s",
                self._every,
                apart.speed,
                apart.loss,
                together.speed,
                together.loss,
                "they pay" if does_pay else "sums at every update from now on",
            )
        self._trial, self._try_after = None, None
        self._join(together=not does_pay)
        return losses[-1]

    def finish(self) -> None:
        """Brings all workers to the average of what they have learned."""
        outer = self._outer
        if self._together or not (outer.num_updates or outer.pending):
            return
        newest = outer.send(Signals(), time_s=0.0) if outer.num_updates else None
        for average in filter(None, (outer.pending, newest)):
            outer.step(average)
        outer.pending = None

    def save(self) -> TrainingState:
        """Returns model, optimizer and outer momentum, after all workers have averaged."""
        if self._outer.num_updates:
            self.finish()
        state = super().save()
        self._outer.save(state)
        if self._try_after is None:
            state.scalars["together"] = self._together
        return state

    def load(self, state: TrainingState) -> None:
        """Restores model, optimizer and outer momentum."""
        super().load(state)
        self._outer.load(state)
        self._trial = self._first = None
        if "together" in state.scalars and self._try_after is not None:
            self._try_after = None
            self._join(together=state.scalars["together"])

    def _copy(self) -> TrainingState:
        """Returns a copy of model and optimizer."""
        state = super().save()
        tensors = {
            part: {name: each.detach().clone() for name, each in named.items()}
            for part, named in state.tensors.items()
        }
        return replace(state, tensors=tensors)

    def _idle(self) -> UpdateResult:
        """Takes an update without samples: moments exist and counts rise as on the other workers."""
        self.accumulation.gradients.clear()
        for weight in self._outer.weights():
            weight.grad = torch.zeros_like(weight)
        self.updater.set_rate(0.0)
        self.updater.step()
        self._updates += 1
        return UpdateResult(loss=0.0, signals=Signals())

    def _synchronize(self, signals: Signals, *, time_s: float) -> tuple[Signals, tuple[float, ...]]:
        """Averages over workers and goes on from there; returns sums of signals, and times."""
        outer = self._outer
        average = outer.send(signals, time_s=time_s)
        if not self._is_late:
            outer.step(average)
            return average.exchanged(signals)
        arrived, outer.pending = outer.pending, average
        if arrived:
            outer.step(arrived)
            return arrived.exchanged(Signals())[0], ()  # times of shares that may have changed since
        assert self._first
        updates = self._updates
        super().load(self._first)  # nothing has arrived yet
        self._updates, self._first = updates, None
        outer.begin_interval()
        return Signals(), ()

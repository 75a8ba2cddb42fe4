"""Trains over a slow network: workers update by themselves, and average every `train.sync_every` updates.

Local SGD with an outer momentum (DiLoCo; Douillard et al. 2023, arXiv 2311.08105): each worker takes inner
updates on its shares with the workload's optimizer. Every H updates, the mean change of the workers' weights
is the gradient of an outer SGD with Nesterov momentum, and all workers continue from the resulting weights.
That sends H times fewer messages. Two differences from the paper, and why:

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
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Sync, Tuning
from daybreak.extensions.threads.thread_policy import ThreadTiming, pays
from daybreak.training.checkpoint import TrainingState
from daybreak.training.engine import TorchEngine, UpdateResult
from daybreak.training.gradients import SIGNALS, Gradients, Signals
from daybreak.training.sample_order import Indices

log = logging.getLogger(__name__)

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # as published
TRIAL = 8  # intervals


@dataclass(kw_only=True)
class _Average:
    """An average on its way: of changes of the weights, and of the rest of what is learned."""

    tensors: list[Tensor]  # weighted by samples; the means, once they are there
    num_weights: int
    steps: list[Tensor]  # updates that the moments are of, as the optimizer counts them
    flats: list[Tensor] = field(default_factory=list)  # that are being added up; the last: signals and times
    works: list[Any] = field(default_factory=list)

    def wait(self) -> None:
        """Waits until all workers have sent theirs."""
        for work in self.works:
            work.wait()
        if self.works:
            by_kind = {flat.dtype: flat for flat in self.flats[:-1]}
            ends = dict.fromkeys(by_kind, 0)
            for place, each in enumerate(self.tensors):
                start = ends[each.dtype]
                ends[each.dtype] += each.numel()
                self.tensors[place] = by_kind[each.dtype][start : ends[each.dtype]].view_as(each)
        self.works = []

    @property
    def changes(self) -> list[Tensor]:
        """Mean changes of the weights: those before, less those after the interval."""
        return self.tensors[: self.num_weights]

    @property
    def others(self) -> list[Tensor]:
        """Means of the rest."""
        return self.tensors[self.num_weights :]

    def exchanged(self, signals: Signals) -> tuple[Signals, tuple[float, ...]]:
        """Returns the sums of signals, and times; `signals` are those of a worker alone."""
        if not self.flats:
            return signals, ()
        counts = self.flats[-1].tolist()
        agreed = Signals(**dict(zip(SIGNALS, map(int, counts[: len(SIGNALS)]), strict=True)))
        return agreed, tuple(counts[len(SIGNALS) :])


@dataclass(kw_only=True)
class _Trial:
    """Averages on trial, and what is needed to undo them."""

    before: TrainingState
    began: float
    # Share, its epoch, batch size, rate.
    batches: list[tuple[Indices, int, int, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of this worker's share, by the batch's size

    @property
    def loss(self) -> float:
        """The newest finite loss: one that is not finite ends the trial, not the training."""
        return next((loss for loss in reversed(self.losses) if math.isfinite(loss)), 0.0)


class LocalSgdEngine(TorchEngine):
    """Updates by each worker alone; all average after every `sync_every` updates, and to save.

    With `is_late` an average is taken up one interval later. With `try_after` these averages are tried after
    so many updates, and `alive` is called at each update that is then taken again.
    """

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
            self._added_gradients = Gradients(self.model, rank=self.rank, world_size=self.world_size)
            self._join(together=True)
        self._forget()

    def _forget(self) -> None:
        """Begins with no averages before."""
        # Updates, own samples, and those of all workers, after the last average.
        self._since, self._taken, self._due = 0, 0, 0
        self._anchor: list[Tensor] = []  # weights after the last average
        self._momentum: list[Tensor] = []
        self._pending: _Average | None = None  # without a barrier, of the interval before
        self._first: TrainingState | None = None  # without a barrier, the beginning of the first interval

    def _join(self, *, together: bool) -> None:
        self._together = together
        self.accumulation.gradients = self._added_gradients if together else self._own_gradients

    def _new_gradients(self) -> Gradients:
        return Gradients(self.model, rank=self.rank, world_size=1)

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
        self._trial.batches.append((indices, self.accumulation.epoch, batch_size, rate))
        self._trial.losses.append(step.loss * len(indices) / batch_size)
        if len(self._trial.batches) < TRIAL * self._every:
            return replace(step, loss=self._trial.loss)
        loss = self._decide(self._trial)
        return UpdateResult(loss=loss, signals=replace(step.signals, save=step.signals.save + 1))

    def _step_apart(
        self, indices: Indices, *, batch_size: int, rate: float, signals: Signals
    ) -> UpdateResult:
        if not self._anchor:
            self._anchor = [weight.detach().clone() for weight in self._weights()]
            if self._is_late and not self._pending:
                self._first = self._copy()
        before_s = self._timer.read() if self._timer else 0.0
        if len(indices):
            step = super().step(indices, batch_size=len(indices), rate=rate, signals=Signals())
        else:
            step = self._idle()
        self._since += 1
        self._taken += len(indices)
        self._due += batch_size
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
        if self._pending:
            self._pending.wait()  # and is then forgotten
        apart = self._window(trial, losses=trial.losses, is_own=True)
        super().load(trial.before)
        self._forget()
        self._join(together=True)
        trial.began = time.monotonic()
        losses = []
        for indices, self.accumulation.epoch, batch_size, rate in trial.batches:
            self._alive()
            step = super().step(indices, batch_size=batch_size, rate=rate, signals=Signals())
            losses.append(step.loss)
        together = self._window(trial, losses=losses, is_own=False)
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

    def _window(self, trial: _Trial, *, losses: Sequence[float], is_own: bool) -> ThreadTiming:
        """Returns what the batches gave on all workers, the same for each of them."""
        shared = torch.tensor([time.monotonic() - trial.began, *losses], dtype=torch.float64)
        shared = shared.to(self.device, torch.float32)
        dist.all_reduce(shared)
        elapsed_s, *sums = shared.tolist()
        return ThreadTiming(
            first=0,
            num_samples=sum(size for _, _, size, _ in trial.batches),
            elapsed_s=elapsed_s / self.world_size,
            losses=tuple(sums) if is_own else tuple(losses),
        )

    def finish(self) -> None:
        """Brings all workers to the average of what they have learned."""
        if self._together or not (self._since or self._pending):
            return
        newest = self._sent(Signals(), time_s=0.0) if self._since else None
        for average in filter(None, (self._pending, newest)):
            average.wait()
            self._take_up(average)
        self._pending = None

    def save(self) -> TrainingState:
        """Returns model, optimizer and outer momentum, after all workers have averaged."""
        if self._since:
            self.finish()
        state = super().save()
        if self._momentum:
            state.tensors["outer"] = dict(zip(self._names(), self._momentum, strict=True))
        if self._pending:
            self._pending.wait()
            held = [*self._pending.tensors, *self._pending.steps]
            state.tensors["late"] = {f"{place:06d}": each for place, each in enumerate(held)}
            state.scalars["late"] = len(self._pending.tensors)
        if self._try_after is None:
            state.scalars["together"] = self._together
        return state

    def load(self, state: TrainingState) -> None:
        """Restores model, optimizer and outer momentum."""
        super().load(state)
        self._forget()
        self._trial = None
        if "together" in state.scalars and self._try_after is not None:
            self._try_after = None
            self._join(together=state.scalars["together"])
        kept = state.tensors.get("outer")
        self._momentum = [kept[name].to(self.device, copy=True) for name in self._names()] if kept else []
        late = state.tensors.get("late")
        if late:
            held = [late[name].to(self.device, copy=True) for name in sorted(late)]
            number = state.scalars["late"]
            steps = [each.to(own.device) for each, own in zip(held[number:], self._steps(), strict=True)]
            self._pending = _Average(tensors=held[:number], steps=steps, num_weights=len(self._weights()))

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
        for weight in self._weights():
            weight.grad = torch.zeros_like(weight)
        self.updater.set_rate(0.0)
        self.updater.step()
        self._updates += 1
        return UpdateResult(loss=0.0, signals=Signals())

    def _synchronize(self, signals: Signals, *, time_s: float) -> tuple[Signals, tuple[float, ...]]:
        """Averages over workers and goes on from there; returns sums of signals, and times."""
        average = self._sent(signals, time_s=time_s)
        if not self._is_late:
            average.wait()
            self._take_up(average)
            return average.exchanged(signals)
        arrived, self._pending = self._pending, average
        if arrived:
            arrived.wait()
            self._take_up(arrived)
            return arrived.exchanged(Signals())[0], ()  # times of shares that may have changed since
        assert self._first
        updates = self._updates
        super().load(self._first)  # nothing has arrived yet
        self._updates, self._first = updates, None
        self._since, self._taken, self._due = 0, 0, 0
        return Signals(), ()

    def _sent(self, signals: Signals, *, time_s: float) -> _Average:
        """Begins to average what this worker has learned since the last average."""
        weights = self._weights()
        with torch.no_grad():
            changes = torch._foreach_sub(self._anchor, weights)
            average = _Average(
                tensors=[*changes, *(each.detach().clone() for each in self._others())],
                num_weights=len(weights),
                steps=[each.clone() for each in self._steps()],
            )
            if self.world_size == 1:
                return average
            for kind in dict.fromkeys(each.dtype for each in average.tensors):
                alike = [each.flatten() for each in average.tensors if each.dtype == kind]
                average.flats.append(torch.cat(alike).mul_(self._taken / self._due))
        times = [0.0] * self.world_size
        times[self.rank] = time_s
        average.flats.append(
            torch.tensor([*astuple(signals), *times], dtype=torch.float32, device=self.device)
        )
        average.works = [dist.all_reduce(flat, async_op=True) for flat in average.flats]
        return average

    def _take_up(self, average: _Average) -> None:
        """Takes the outer step, from which this worker goes on."""
        weights, change = self._weights(), average.changes
        with torch.no_grad():
            if self._is_late:
                torch._foreach_sub_(self._anchor, change)
                for own, kept in zip(self._steps(), average.steps, strict=True):
                    own.copy_(kept)
            else:
                if not self._momentum:
                    self._momentum = [torch.zeros_like(weight) for weight in weights]
                torch._foreach_mul_(self._momentum, OUTER_MOMENTUM)
                torch._foreach_add_(self._momentum, change)
                change = list(torch._foreach_add(change, self._momentum, alpha=OUTER_MOMENTUM))
                torch._foreach_add_(self._anchor, change, alpha=-OUTER_RATE)
            torch._foreach_copy_(weights, self._anchor)
            for own, mean in zip(self._others(), average.others, strict=True):
                own.copy_(mean)
        self._since, self._taken, self._due = 0, 0, 0

    def _weights(self) -> list[Tensor]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def _names(self) -> list[str]:
        return [name for name, weight in self.model.named_parameters() if weight.requires_grad]

    def _others(self) -> list[Tensor]:
        """Returns the rest of what is learned: statistics of the model, and moments of the optimizer."""
        others = (*self.model.buffers(), *(each for each in self._kept() if each.dim()))
        return [each for each in others if each.is_floating_point()]

    def _steps(self) -> list[Tensor]:
        """Returns the optimizer's step counts, used for bias correction."""
        return [each for each in self._kept() if not each.dim()]

    def _kept(self) -> list[Tensor]:
        """Returns all that the optimizer keeps."""
        return [
            value
            for weight in self._weights()
            for _, value in sorted(self.optimizer.state.get(weight, {}).items())
            if isinstance(value, Tensor)
        ]

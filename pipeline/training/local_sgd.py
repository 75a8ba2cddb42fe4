"""Trains over a slow network: workers update by themselves, and average every `train.sync_every` updates.

Local SGD with an outer momentum (DiLoCo; Douillard et al. 2023, arXiv 2311.08105): each worker takes inner
updates on its shares with the workload's optimizer. Every H updates, the mean change of the workers' weights
is the gradient of an outer SGD with Nesterov momentum, and all workers continue from the resulting weights.
That sends H times fewer messages. Two differences from the paper, and why:

- Moments of the inner optimizer are averaged too, where DiLoCo leaves each worker its own. That sends two to
  three times the bytes every H updates, but then all workers know the whole state: a checkpoint is no larger
  than otherwise, and continues bit for bit, on any number of workers.
- Workers are weighted by the samples that they took, since shares may differ.

Between averages workers do not communicate: signals are exchanged, and checkpoints made, when they average. A
loss is that of the worker's own share. A share without samples is an update at rate 0, so that all workers
count the same updates.
"""

from dataclasses import astuple
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.contract.errors import ParamsError
from pipeline.contract.records import Tuning
from pipeline.training.checkpoint import State
from pipeline.training.engine import Step, TorchEngine
from pipeline.training.gradients import SIGNALS, Signals
from pipeline.training.sample_order import Indices

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # as published


class LocalSgdEngine(TorchEngine):
    """Updates by each worker alone; all average after every `sync_every` updates, and to save."""

    def __init__(self, *args: Any, tuning: Tuning, sync_every: int, **kwargs: Any) -> None:
        if tuning.sharded or tuning.sharded_weights:
            raise ParamsError(
                "train.sync: every_h_updates needs all of the optimizer on each worker, whose memory does "
                "not suffice for that; set train.sync to every_update"
            )
        super().__init__(*args, tuning=tuning, **kwargs)
        self._every = sync_every
        self._since, self._taken = 0, 0  # updates, and own samples, after the last average
        self._anchor: list[Tensor] = []  # weights after the last average
        self._momentum: list[Tensor] = []

    @property
    def _num_partners(self) -> int:
        return 1

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> Step:
        """Takes one update of this worker; with every H-th, all workers average."""
        if not self._anchor:
            self._anchor = [weight.detach().clone() for weight in self._weights()]
        before_s = self._timer.read() if self._timer else 0.0
        if len(indices):
            step = super().step(indices, batch_size=len(indices), rate=rate, signals=Signals())
        else:
            step = self._idle()
        self._since += 1
        self._taken += len(indices)
        if self._updates % self._every:
            return step
        sums, times_s = self._synchronize(signals, time_s=before_s)
        return Step(loss=step.loss, signals=sums, times_s=times_s if self._timer else (), noise=step.noise)

    def save(self) -> State:
        """Returns model, optimizer and outer momentum, after all workers have averaged."""
        if self._since:
            self._synchronize(Signals(), time_s=0.0)
        state = super().save()
        if self._momentum:
            state.tensors["outer"] = dict(zip(self._names(), self._momentum, strict=True))
        return state

    def load(self, state: State) -> None:
        """Restores model, optimizer and outer momentum."""
        super().load(state)
        kept = state.tensors.get("outer")
        self._momentum = [kept[name].to(self.device, copy=True) for name in self._names()] if kept else []
        self._anchor, self._since, self._taken = [], 0, 0

    def _idle(self) -> Step:
        """Takes an update without samples: moments exist and counts rise as on the other workers."""
        self._gradients.clear()
        for weight in self._weights():
            weight.grad = torch.zeros_like(weight)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self._update()
        self._updates += 1
        return Step(loss=0.0, signals=Signals())

    def _synchronize(self, signals: Signals, *, time_s: float) -> tuple[Signals, tuple[float, ...]]:
        """Averages weights over workers and takes the outer step; returns sums of signals, and times."""
        weights = self._weights()
        sums, times_s = self._average([*weights, *self._others()], signals, time_s=time_s)
        if not self._momentum:
            self._momentum = [torch.zeros_like(weight) for weight in weights]
        with torch.no_grad():
            change = torch._foreach_sub(self._anchor, weights)
            torch._foreach_mul_(self._momentum, OUTER_MOMENTUM)
            torch._foreach_add_(self._momentum, change)
            torch._foreach_add_(change, self._momentum, alpha=OUTER_MOMENTUM)
            torch._foreach_add_(self._anchor, change, alpha=-OUTER_RATE)
            torch._foreach_copy_(weights, self._anchor)
        self._since, self._taken = 0, 0
        return sums, times_s

    def _average(
        self, tensors: list[Tensor], signals: Signals, *, time_s: float
    ) -> tuple[Signals, tuple[float, ...]]:
        """Replaces tensors by means over workers, weighted by samples; returns sums of signals, and times."""
        if self.world_size == 1:
            return signals, ()
        times = [0.0] * self.world_size
        times[self.rank] = time_s
        slots = torch.tensor(
            [self._taken, *astuple(signals), *times], dtype=torch.float32, device=self.device
        )
        dist.all_reduce(slots)
        total, *counts = slots.tolist()
        with torch.no_grad():
            for kind in dict.fromkeys(each.dtype for each in tensors):
                alike = [each for each in tensors if each.dtype == kind]
                flat = torch.cat([each.detach().flatten() for each in alike]).mul_(self._taken / total)
                dist.all_reduce(flat)
                means = torch.split(flat, [each.numel() for each in alike])
                for each, mean in zip(alike, means, strict=True):
                    each.copy_(mean.view_as(each))
        agreed = Signals(**dict(zip(SIGNALS, map(int, counts[: len(SIGNALS)]), strict=True)))
        return agreed, tuple(counts[len(SIGNALS) :])

    def _weights(self) -> list[Tensor]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def _names(self) -> list[str]:
        return [name for name, weight in self.model.named_parameters() if weight.requires_grad]

    def _others(self) -> list[Tensor]:
        """Returns the rest of what is learned: statistics of the model, and moments of the optimizer."""
        moments = (
            value
            for weight in self._weights()
            for _, value in sorted(self.optimizer.state.get(weight, {}).items())
            if isinstance(value, Tensor) and value.dim()
        )
        return [each for each in (*self.model.buffers(), *moments) if each.is_floating_point()]

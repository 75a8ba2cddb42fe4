"""Averages workers: a step by the mean change of their weights, and the means of moments and statistics."""

from dataclasses import astuple, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from daybreak.training.checkpoint import TrainingState
from daybreak.training.gradients import SIGNALS, Signals
from daybreak.training.process_group import WorkerGroup

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # as published


@dataclass(kw_only=True)
class Average:
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


class OuterOptimizer:
    """SGD with Nesterov momentum on mean changes of weights; without momentum if averages come late."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, group: WorkerGroup, is_late: bool = False
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._group, self._is_late = group, is_late
        self.forget()

    def forget(self) -> None:
        """Begins with no averages before."""
        self._anchor: list[Tensor] = []  # weights after the last average
        self._momentum: list[Tensor] = []
        self.pending: Average | None = None  # if averages come late, of the interval before
        self.begin_interval()

    def begin_interval(self) -> None:
        """Counts from zero again: updates, own samples, and those of all workers."""
        self.num_updates, self._taken, self._due = 0, 0, 0

    def anchor(self) -> bool:
        """Copies the weights from which changes count, unless a copy exists; returns whether one was made."""
        if self._anchor:
            return False
        self._anchor = [weight.detach().clone() for weight in self.weights()]
        return True

    def count(self, num_samples: int, *, batch_size: int) -> None:
        """Counts an update of this worker, from its share of a batch."""
        self.num_updates += 1
        self._taken += num_samples
        self._due += batch_size

    def send(self, signals: Signals, *, time_s: float) -> Average:
        """Begins to average what this worker has learned since the last average."""
        weights, group = self.weights(), self._group
        with torch.no_grad():
            changes = torch._foreach_sub(self._anchor, weights)
            average = Average(
                tensors=[*changes, *(each.detach().clone() for each in self._others())],
                num_weights=len(weights),
                steps=[each.clone() for each in self._steps()],
            )
            if group.world_size == 1:
                return average
            for kind in dict.fromkeys(each.dtype for each in average.tensors):
                alike = [each.flatten() for each in average.tensors if each.dtype == kind]
                average.flats.append(torch.cat(alike).mul_(self._taken / self._due))
        times = [0.0] * group.world_size
        times[group.rank] = time_s
        average.flats.append(
            torch.tensor([*astuple(signals), *times], dtype=torch.float32, device=group.device)
        )
        average.works = [dist.all_reduce(flat, async_op=True) for flat in average.flats]
        return average

    def step(self, average: Average) -> None:
        """Takes the outer step by an average, once all workers have sent theirs; begins an interval."""
        average.wait()
        weights, change = self.weights(), average.changes
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
        self.begin_interval()

    def save(self, state: TrainingState) -> None:
        """Adds the momentum, and the average that is on its way, to a state."""
        if self._momentum:
            state.tensors["outer"] = dict(zip(self._names(), self._momentum, strict=True))
        if self.pending:
            self.pending.wait()
            held = [*self.pending.tensors, *self.pending.steps]
            state.tensors["late"] = {f"{place:06d}": each for place, each in enumerate(held)}
            state.scalars["late"] = len(self.pending.tensors)

    def load(self, state: TrainingState) -> None:
        """Restores what `save` added; the model and its optimizer were restored before."""
        self.forget()
        device = self._group.device
        kept = state.tensors.get("outer")
        self._momentum = [kept[name].to(device, copy=True) for name in self._names()] if kept else []
        late = state.tensors.get("late")
        if late:
            held = [late[name].to(device, copy=True) for name in sorted(late)]
            number = state.scalars["late"]
            steps = [each.to(own.device) for each, own in zip(held[number:], self._steps(), strict=True)]
            self.pending = Average(tensors=held[:number], steps=steps, num_weights=len(self.weights()))

    def weights(self) -> list[Tensor]:
        """Returns the weights that are trained."""
        return [weight for weight in self._model.parameters() if weight.requires_grad]

    def _names(self) -> list[str]:
        return [name for name, weight in self._model.named_parameters() if weight.requires_grad]

    def _others(self) -> list[Tensor]:
        """Returns the rest of what is learned: statistics of the model, and moments of the optimizer."""
        others = (*self._model.buffers(), *(each for each in self._kept() if each.dim()))
        return [each for each in others if each.is_floating_point()]

    def _steps(self) -> list[Tensor]:
        """Returns the optimizer's step counts, used for bias correction."""
        return [each for each in self._kept() if not each.dim()]

    def _kept(self) -> list[Tensor]:
        """Returns all that the optimizer keeps."""
        return [
            value
            for weight in self.weights()
            for _, value in sorted(self._optimizer.state.get(weight, {}).items())
            if isinstance(value, Tensor)
        ]

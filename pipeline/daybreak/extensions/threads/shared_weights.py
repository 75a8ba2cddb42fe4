"""Holds weights and the optimizer's moments in memory that forked processes share.

The memory is anonymous: /dev/shm, which containers keep small, is not needed.
"""

import mmap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class SharedWeights:
    """The shared twins of a model's parameters and buffers, which the optimizer changes in their place."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._own: list[Tensor] = [*model.parameters(), *model.buffers()]
        self._twins: list[Tensor] = [shared(each) for each in self._own]
        self._twin_of = dict(zip(map(id, self._own), self._twins, strict=True))
        self._trained = [n for n, each in enumerate(self._own) if each.requires_grad]
        self._sums = [shared(torch.zeros_like(self._own[place])) for place in self._trained]
        self._num_added = shared(torch.zeros((), dtype=torch.int64))
        for group in optimizer.param_groups:
            group["params"] = [self._twin_of[id(each)] for each in group["params"]]
        for each in list(optimizer.state):  # some optimizers make their moments at once
            optimizer.state[self._twin_of[id(each)]] = optimizer.state.pop(each)
        if not any(optimizer.state.values()):
            self._make_moments()
        self.share_moments()

    def _make_moments(self) -> None:
        """Makes the moments, zero, by an update that changes nothing."""
        for place in self._trained:
            self._twins[place].grad = torch.zeros_like(self._twins[place])
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        self._optimizer.step()
        for moment in self._moments():
            moment.zero_()

    def share_moments(self) -> None:
        """Moves the moments to shared memory; call it again after they were loaded."""
        for moments in self._optimizer.state.values():
            moments |= {name: shared(each) for name, each in moments.items() if isinstance(each, Tensor)}

    def read(self) -> None:
        """Copies the shared weights into the model of this process, without waiting for who changes them."""
        with torch.no_grad():
            for own, twin in zip(self._own, self._twins, strict=True):
                own.copy_(twin)

    def write(self) -> None:
        """Copies the model of this process into the shared weights."""
        with torch.no_grad():
            for own, twin in zip(self._own, self._twins, strict=True):
                twin.copy_(own)

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Returns the gradients of the model of this process, by its trained parameters."""
        return tuple(self._own[place].grad for place in self._trained)

    def add_gradients(self, gradients: Sequence[Tensor | None], *, weight: float, of: int) -> bool:
        """Adds the gradients of a part, and returns whether those of all parts of an update are there.

        The next step of the optimizer then takes their sum, each with its weight.
        """
        if of == 1:
            for place, gradient in zip(self._trained, gradients, strict=True):
                self._twins[place].grad = gradient
            return True
        for total, gradient in zip(self._sums, gradients, strict=True):
            if gradient is not None:
                total.add_(gradient, alpha=weight)
        self._num_added += 1
        if self._num_added < of:
            return False
        for place, total in zip(self._trained, self._sums, strict=True):
            self._twins[place].grad = total.clone()
        self.forget()
        return True

    def forget(self) -> None:
        """Forgets the parts of an update that lacks some."""
        for total in (*self._sums, self._num_added):
            total.zero_()

    def set_buffers(self, buffers: Sequence[Tensor]) -> None:
        """Sets statistics that the model keeps, such as those of BatchNorm; the last worker's stand."""
        for twin, buffer in zip(self._twins[len(self._own) - len(buffers) :], buffers, strict=True):
            twin.copy_(buffer)

    def named(self) -> dict[str, Tensor]:
        """Returns the weights by the names that they have in the model."""
        named = self._model.state_dict(keep_vars=True)
        return {name: self._twin_of.get(id(each), each).detach() for name, each in named.items()}

    def copy(self) -> list[Tensor]:
        """Returns a copy of all that updates change: weights, buffers and moments."""
        return [each.clone() for each in self._learned()]

    def restore(self, copy: Sequence[Tensor]) -> None:
        """Goes back to a copy."""
        for each, kept in zip(self._learned(), copy, strict=True):
            each.copy_(kept)

    def _learned(self) -> list[Tensor]:
        return [*(each.detach() for each in self._twins), *self._moments()]

    def _moments(self) -> list[Tensor]:
        state = self._optimizer.state.values()
        return [each for moments in state for each in moments.values() if isinstance(each, Tensor)]


def shared(tensor: Tensor) -> Any:
    """Returns a copy in memory that processes forked from now on share with this one."""
    memory = mmap.mmap(-1, max(1, tensor.numel() * tensor.element_size()))
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=max(1, tensor.numel()))
    copy = flat[: tensor.numel()].view(tensor.shape).copy_(tensor.detach())
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy

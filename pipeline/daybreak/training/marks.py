"""Takes back what passes leave behind beside gradients: buffers of the model, and the state of its class.

An update that is repeated, as memory did not suffice for it, would count its samples twice in a statistic of
BatchNorm, and so would a pass that only measures.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from daybreak.training.own_state import load_own_state, pack_own_state
from daybreak.training.process_group import WorkerGroup


class Marks:
    """What passes of a worker leave behind.

    Only the buffers that the first update changed are copied before later ones, so that a table of constants
    costs nothing.
    """

    def __init__(self, workload: Any, model: nn.Module, group: WorkerGroup) -> None:
        self._workload, self._device = workload, group.device
        self._places = [
            (module, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._before_first: list[Tensor] | None = None
        self._knows = False  # which buffers updates change

    def begin_update(self) -> None:
        """Forgets the buffers that the first update left alone, once it was taken.

        By their values: BatchNorm changes its own without another `_version`.
        """
        if self._knows:
            return
        if self._before_first is None:
            self._before_first = self._copies()
            return
        pairs = zip(self._places, self._before_first, strict=True)
        self._places = [place for place, before in pairs if not torch.equal(_buffer(place), before)]
        self._before_first, self._knows = [], True

    def taken(self) -> Callable[[], None]:
        """Returns what takes back, once, all that passes change from now on."""
        copies = self._copies()
        own = copy.deepcopy(pack_own_state(self._workload, device=self._device))

        def take_back() -> None:
            for place, before in zip(self._places, copies, strict=True):
                _buffer(place).copy_(before)
            load_own_state(self._workload, *own, device=self._device)

        return take_back

    def _copies(self) -> list[Tensor]:
        return [_buffer(place).clone() for place in self._places]


def _buffer(place: tuple[nn.Module, str]) -> Tensor:
    module, name = place
    return module.get_buffer(name)

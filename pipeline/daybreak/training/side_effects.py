"""Takes back what passes leave behind beside gradients: buffers of the model, and the state of its class.

An update that is repeated, as memory did not suffice for it, would count its samples twice in a statistic of
BatchNorm, and so would a pass that only measures.
"""

import copy
import logging
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from daybreak.training.own_state import keeps_state, load_own_state, pack_own_state
from daybreak.training.process_group import WorkerGroup

log = logging.getLogger(__name__)

LARGE_BYTES = 1 << 20  # of a buffer, which is copied before updates only if the first one changed it
MOST_OWN_S = 0.001  # that a copy of the state of a class may take at each update


class SideEffects:
    """What passes of a worker leave behind.

    A copy may not cost more than it is worth. So a large table of constants is not copied, nor is a state of
    the class that takes long to copy: an update that is repeated then counts twice in it, which is said.
    """

    def __init__(self, workload: Any, model: nn.Module, group: WorkerGroup) -> None:
        self._workload, self._device, self._own_s = workload, group.device, 0.0
        places = [
            (module, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._large = [place for place in places if _is_large(place)]
        self._places = [place for place in places if not _is_large(place)]
        self._before_first: list[tuple[int, int]] | None = None  # versions of the large ones

    def begin_update(self) -> None:
        """Finds the large buffers that the first update changed, once it was taken."""
        if not self._large:
            return
        versions = [_version(place) for place in self._large]
        if self._before_first is None:
            self._before_first = versions
            return
        pairs = zip(self._large, self._before_first, versions, strict=True)
        self._places += [place for place, before, now in pairs if before != now]
        self._large = []

    def snapshot(self, *, always: bool = False) -> Callable[[], None]:
        """Returns what restores, once, all that passes change from now on.

        `always`: the state of the class, too, however long a copy takes.
        """
        copies = [None if (buffer := _buffer(place)) is None else buffer.clone() for place in self._places]
        places, has_own = list(self._places), always or self._own_s <= MOST_OWN_S
        own: tuple[dict[str, Tensor], Any] = {}, None
        if has_own:
            began = time.perf_counter()
            own = copy.deepcopy(pack_own_state(self._workload, device=self._device))
            self._own_s = time.perf_counter() - began

        def restore() -> None:
            for place, before in zip(places, copies, strict=True):
                _restore(place, before)
            load_own_state(self._workload, *own, device=self._device)
            if not has_own and keeps_state(self._workload):
                log.warning(
                    "an update is repeated for want of memory and counts twice in %s.state_dict, of which a "
                    "copy takes %.1f ms; set a smaller train.batch_size if it matters",
                    type(self._workload).__name__,
                    1000 * self._own_s,
                )

        return restore


def _buffer(place: tuple[nn.Module, str]) -> Tensor | None:
    """Returns a buffer; None where the model has dropped it."""
    module, name = place
    return module._buffers.get(name)


def _restore(place: tuple[nn.Module, str], before: Tensor | None) -> None:
    now = _buffer(place)
    if now is not None and before is not None and now.shape == before.shape:
        now.copy_(before)
    else:
        module, name = place
        module._buffers[name] = before


def _is_large(place: tuple[nn.Module, str]) -> bool:
    """Returns whether a buffer is large and its changes show by its version, as those of BatchNorm do not."""
    buffer = _buffer(place)
    return buffer is not None and buffer.nbytes >= LARGE_BYTES and not isinstance(place[0], _NormBase)


def _version(place: tuple[nn.Module, str]) -> tuple[int, int]:
    """Returns what changes with a buffer: in place, or by another in its stead."""
    buffer = _buffer(place)
    return id(buffer), -1 if buffer is None else buffer._version

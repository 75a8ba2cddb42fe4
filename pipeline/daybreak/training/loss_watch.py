"""Says whether the loss has risen since batches grew, or since a job moved: a change that hurts is undone.

The mean losses of some blocks after a change are compared with those of blocks before. The loss has risen if
the mean after is above the mean before by `CLEARLY` standard deviations of a block (at least as many standard
errors of the difference), and by the share `LEAST_RISE`, so that a clear but small rise changes nothing.
"""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

CLEARLY = 4.0  # standard deviations of a block's loss
LEAST_RISE = 0.05  # of the loss before
BLOCK = 4  # updates
ENOUGH = 8  # blocks after a change, and at most as many before it
FEWEST = 5  # blocks before it


def rose(before: Sequence[float], after: Sequence[float]) -> bool:
    """Returns whether the losses of the blocks after a change are clearly above those before."""
    return fmean(after) > fmean(before) + max(CLEARLY * stdev(before), LEAST_RISE * abs(fmean(before)))


class LossWatch:
    """The losses of updates since batches last grew, beside those before, in blocks of `BLOCK` updates."""

    def __init__(self) -> None:
        self._block: list[float] = []  # losses of the block that is not yet full
        self._recent: list[float] = []  # means of the newest `ENOUGH` blocks
        self._before: list[float] = []  # those before the growth that is not yet judged to be harmless
        self._size = 0  # of batches then; 0: nothing is watched

    def add(self, loss: float) -> None:
        """Records the loss of an update."""
        self._block.append(loss)
        if len(self._block) == BLOCK:
            self._recent = [*self._recent, fmean(self._block)][-ENOUGH:]
            self._block = []

    def grew(self, size: int) -> None:
        """Records that batches grow, from this size.

        Where an earlier growth had not lasted long enough to be judged, both are watched as one.
        """
        if not (self._size and len(self._recent) < ENOUGH):
            judged = len(self._recent) >= FEWEST
            self._before, self._size = (self._recent, size) if judged else ([], 0)
        self._block, self._recent = [], []

    def reset(self) -> None:
        """Forgets what was watched, as batches shrink."""
        self._block, self._recent, self._before, self._size = [], [], [], 0

    @property
    def undo_to(self) -> int:
        """The size to go back to, as the loss has risen since; 0 where it has not."""
        is_over = self._size and len(self._recent) == ENOUGH
        return self._size if is_over and rose(self._before, self._recent) else 0

    def save(self) -> dict[str, Any]:
        """Returns the whole state, as JSON."""
        return {
            "block": list(self._block),
            "recent": self._recent,
            "before": self._before,
            "size": self._size,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self._block, self._recent = list(state["block"]), state["recent"]
        self._before, self._size = state["before"], state["size"]

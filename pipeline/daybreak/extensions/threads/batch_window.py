"""Adds up the losses of the batches that are judged together, and undone together if they do harm."""

import math
from dataclasses import dataclass

from torch import Tensor

from daybreak.contract.errors import NotFinite
from daybreak.contract.workload import TrainingProgress
from daybreak.extensions.threads.thread_policy import ThreadTiming
from daybreak.training.sample_order import Indices

LEAST_BATCHES = 8  # that a judgement needs
WINDOW_S = 5.0  # after which a window ends with so many, as it may have to be trained on again
MAX_NAMED = 20  # samples in an error


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """A batch that is handed out to workers."""

    number: int
    indices: Indices
    progress: TrainingProgress
    rate: float
    size: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part that is still to be trained on; its options depend on the setting when it is sent."""

    indices: Indices
    batch: TrainBatch
    of: int = 1  # parts that make one update


class BatchWindow:
    """The batches since the weights were copied, of which the newest are judged together."""

    def __init__(self) -> None:
        self.batches: list[TrainBatch] = []
        self.copy: list[Tensor] = []  # weights before them; none if they stay in any case
        self.overflowed: Piece | None = None  # a part whose loss is not finite
        self.losses: dict[int, tuple[float, int]] = {}  # of the batches to judge: sums, and samples
        self.noise: tuple[float, float] | None = None  # as measured since the last step
        self._num_judged = 0  # of the batches, in windows that were judged
        self._length = 0  # in batches
        self._began_s = 0.0
        self._newest: list[tuple[float, int]] = []  # losses since the last step
        self._loss = math.nan

    def begin(self, now_s: float, *, length: int, copy: list[Tensor]) -> None:
        """Begins a window of `length` batches, from weights of which `copy` is one."""
        self._length, self.copy = length, copy
        self.restart(now_s)

    def restart(self, now_s: float) -> None:
        """Forgets the losses so far, as for a mixture of settings."""
        self._began_s, self.losses = now_s, {}

    def extend(self, now_s: float, *, length: int) -> None:
        """Begins a window of further batches, which are undone together with those before."""
        self._num_judged, self._length = len(self.batches), length
        self.restart(now_s)

    def forget(self) -> None:
        """Forgets the batches: they stay, or are not judged."""
        self.batches, self._num_judged = [], 0

    def undo(self) -> list[TrainBatch]:
        """Forgets what came of the batches, and returns them."""
        self._newest, self.overflowed, self.copy = [], None, []
        return self.batches

    def add(self, piece: Piece, loss: float, *, noise: tuple[float, float] | None) -> None:
        """Adds the loss of a part, summed over its samples."""
        number = len(piece.indices)
        total, others = self.losses.get(piece.batch.number, (0.0, 0))
        self.losses[piece.batch.number] = total + loss, others + number
        self._newest.append((loss, number))
        self.noise = noise or self.noise

    @property
    def has_loss(self) -> bool:
        """Whether a loss, finite or not, has come since training began."""
        return not math.isnan(self._loss) or bool(self._newest or self.overflowed)

    def mean_loss(self) -> float:
        """Returns the mean loss per sample since the last call, or of that call if nothing came since."""
        if self._newest:
            self._loss = sum(loss for loss, _ in self._newest) / sum(number for _, number in self._newest)
            self._newest = []
        return self._loss

    def is_over(self, now_s: float, *, may_be_short: bool) -> bool:
        """Returns whether the window is to be judged; one that takes long may be shorter than planned."""
        length = len(self.batches) - self._num_judged
        is_long = now_s > self._began_s + WINDOW_S and length >= LEAST_BATCHES
        return bool(self.overflowed) or length >= self._length or (is_long and may_be_short)

    @property
    def can_be_judged(self) -> bool:
        """Whether enough batches have losses."""
        return len(self.losses) >= LEAST_BATCHES or bool(self.overflowed)

    def timing(self, now_s: float) -> ThreadTiming:
        """Returns what the batches of this window gave so far."""
        return ThreadTiming(
            first=self.batches[self._num_judged].number,
            num_samples=sum(number for _, number in self.losses.values()),
            elapsed_s=max(now_s - self._began_s, 1e-9),
            losses=(math.nan,)
            if self.overflowed
            else tuple(loss / number for _, (loss, number) in sorted(self.losses.items())),
        )

    def expect_finite(self) -> None:
        """Raises NotFinite, which names the samples, if a loss is not finite and cannot be undone."""
        if not self.overflowed or self.copy:
            return
        indices, update = self.overflowed.indices, self.overflowed.batch.number
        samples = ", ".join(map(str, indices[:MAX_NAMED].tolist()))
        samples += ", ..." if len(indices) > MAX_NAMED else ""
        raise NotFinite(
            f"the loss of update {update} is not a number, on {len(indices)} samples: {samples}; look at "
            f"these samples, or lower train.rate",
            update=update,
        )

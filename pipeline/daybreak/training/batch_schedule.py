"""Chooses the size of the next batch, and tracks the progress of training, from the noise of gradients.

Growth (train.batch_growth: goodput): goodput is samples a second times the progress of a sample (Pollux,
OSDI'21), B / update_s(B) * (phi + b) / (phi + B); b cancels where sizes are compared. If another size that
the plan lists for this machine gains 5 % over the current size, the batch grows by one size towards it, or
shrinks to it at once, since the rate of a smaller size was used before. So the batch grows with the noise,
and follows the machine: if a run is resumed on another machine, a batch that is too large there is not even
begun. It is never below the planned size. If the loss rises after a growth (loss_watch.py), the batch goes
back to the size before, and never beyond that again. The decision depends only on sizes, observed noise and
losses, and position, which the job and its checkpoints keep: an interrupted run changes its batch at the same
update. The same samples come in the same order; there are fewer updates.

AdaScale (train.scaling: adascale): tau counts the updates at the base size that the updates taken stand for;
it grows by the gain of each update. Progress is the share of tau that is done, and at least the share of
samples seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from daybreak.contract.record_parts import Size
from daybreak.training.learning_rate import Rule
from daybreak.training.loss_watch import LossWatch
from daybreak.training.noise import Noise

MIN_GAIN = 0.05  # of goodput
SMOOTHING = 0.95  # of the noise: it changes as training goes on
LEAST_LOOKS = 20  # measurements of the noise; fewer are mostly chance


def best_size(sizes: Sequence[Size], *, size: int, noise_scale: float, most: float = inf) -> int:
    """Returns the batch size of the best goodput of at most `most`, or `size` where that is hardly worse.

    A `size` that is not among `sizes` is never kept if any of them is allowed.

    >>> free = [Size(batch_size=n, micro_batch_size=n, update_s=1.0) for n in (64, 128, 256)]
    >>> [best_size(free, size=64, noise_scale=noise) for noise in (1.0, 10.0, 1000.0)]
    [64, 256, 256]
    """

    def goodput(each: Size) -> float:
        progress = 1.0 if noise_scale == inf else 1 / (noise_scale + each.batch_size)
        return each.batch_size / each.update_s * progress

    allowed = [each for each in sizes if each.batch_size <= most]
    current = max((goodput(each) for each in allowed if each.batch_size == size), default=0.0)
    best = max(allowed, key=goodput, default=None)
    return best.batch_size if best and goodput(best) > (1 + MIN_GAIN) * current else size


class BatchSchedule:
    """Batch sizes by position, the gradient noise, and AdaScale's tau."""

    def __init__(
        self,
        *,
        batch_size: int,
        base_size: int,
        base_samples: int,
        num_samples: int,
        rule: Rule,
        sizes: Sequence[Size] = (),
        least: int = 1,
        batch_at: Callable[[int], int] | None = None,
    ) -> None:
        """`sizes` are those to choose among on this machine; none: the size stays.

        `batch_at` has the size of each batch, by its position, where `batch_size` is their mean.
        Where fewer than `least` samples would remain for the last batch, the one before takes them too.
        """
        self._least, self._batch_at = least, batch_at
        self._base_size, self._num_samples, self._rule = base_size, num_samples, rule
        self._iterations = base_samples / base_size  # scale-invariant iterations of the whole training
        self._offered = sizes
        self._sizes = [(0, batch_size)]  # with the position from which each applies
        self._most = inf  # size that the loss bore
        self._watch = LossWatch()
        self._looks = 0
        self.noise = Noise(smoothing=SMOOTHING)
        self.tau = 0.0

    def size(self, position: int) -> int:
        """Returns the batch size at a position, ignoring that the last batch may have another."""
        start, size = self._sizes[-1]
        if start <= position:  # nearly always, and this runs at every update
            return size
        return next(size for start, size in reversed(self._sizes) if start <= position)

    def batch_size(self, position: int) -> int:
        """Returns the number of samples in the batch at a position."""
        size, left = self.size(position), self._num_samples - position
        if self._batch_at and left > 0:
            size = self._batch_at(position)
        return left if left < size + self._least else size

    @property
    def noise_scale(self) -> float | None:
        """The noise scale phi in samples; None while measurements are few or noise hides the gradient."""
        scale = self.noise.scale
        return scale if self._looks >= LEAST_LOOKS and scale < float("inf") else None

    def gain(self, batch_size: int) -> float:
        """Returns how many updates at the base size one update of this size stands for, given the noise."""
        if batch_size <= self._base_size:
            return batch_size / self._base_size
        return self.noise.gain(times=batch_size / self._base_size, base_size=self._base_size)

    def step(self, batch_size: int, *, loss: float, noise: tuple[float, float] | None) -> None:
        """Records an update of this size, with |g|^2 and tr(Sigma) if they were measured."""
        if self._offered:
            self._watch.add(loss)
        if self._rule == "adascale":
            self.tau += self.gain(batch_size)
        if noise:
            self.noise = self.noise.seen(square=noise[0], variance=noise[1])
            self._looks += 1

    @property
    def position(self) -> float:
        """Tau converted to samples, which replaces `seen` in the schedule of the learning rate."""
        return self.tau / self._iterations * self._num_samples

    @property
    def done(self) -> bool:
        """Whether tau has reached the number of updates at the base size."""
        return self._rule == "adascale" and self.tau >= self._iterations

    @property
    def undo_to(self) -> int:
        """The size to go back to, as the loss has risen since batches grew; 0 where it has not."""
        return self._watch.undo_to

    def next_size(self, *, seen: int, most: float, asked: int = 0) -> int:
        """Returns the batch size to change to now, at most `most`; 0 to keep the current size.

        A size that is `asked` for is taken in place of the best one, unless the loss has not borne it.
        """
        start, size = self._sizes[-1]
        if not self._offered or start > seen:
            return 0
        if self.undo_to:
            return self.undo_to
        if asked in [each.batch_size for each in self._offered] and asked <= min(most, self._most):
            return asked if asked != size else 0
        best = self._best(size, most=min(most, self._most))
        if best > size:
            return min(each.batch_size for each in self._offered if each.batch_size > size)
        return best if best < size else 0

    def resize(self, size: int, *, start: int) -> None:
        """Uses this batch size from the position `start` on."""
        if size > self._sizes[-1][1]:
            self._watch.grew(self._sizes[-1][1])
        else:
            if size == self.undo_to:
                self._most = size
            self._watch.reset()
        self._sizes.append((start, size))

    def _best(self, size: int, *, most: float) -> int:
        """Returns the size of the best goodput, or the given one where noise was hardly measured."""
        if self._looks < LEAST_LOOKS:
            return size
        return best_size(self._offered, size=size, noise_scale=self.noise.scale, most=most)

    @property
    def _machine(self) -> list[list[float]]:
        """What the sizes say of this machine: how long an update in each takes."""
        return [[each.batch_size, each.update_s] for each in self._offered]

    def save(self) -> dict[str, Any]:
        """Returns the whole state, as JSON."""
        return {
            "sizes": list(self._sizes),  # a copy, as it is written while training goes on
            "looks": self._looks,
            "noise": asdict(self.noise),
            "tau": self.tau,
            "machine": self._machine,
            "most": self._most if self._most < inf else None,
            "watch": self._watch.save(),
        }

    def load(self, state: dict[str, Any], *, seen: int) -> None:
        """Restores the state that `save` returned at a position, and shrinks the batch on another machine."""
        self._sizes = [(start, size) for start, size in state["sizes"]]
        self._looks, self.noise, self.tau = state["looks"], Noise(**state["noise"]), state["tau"]
        if state.get("most") is not None:
            self._most = state["most"]
        self._watch.load(state["watch"])
        size = self.size(seen)
        if state.get("machine", self._machine) != self._machine and self._best(size, most=size) < size:
            self.resize(self._best(size, most=size), start=seen)

"""Chooses the size of the next batch, and tracks the progress of training, from the noise of gradients.

Growth (train.batch_growth: goodput): goodput is samples a second times the progress of a sample (Pollux,
OSDI'21), B / update_s(B) * (phi + b) / (phi + B). The batch grows to the next larger size in the plan where
that gains 5 % over the current size. The decision depends only on the plan, the noise observed and the
position, all of which checkpoints keep: an interrupted run grows at the same update. The same samples come in
the same order; there are fewer updates.

AdaScale (train.scaling: adascale): tau counts the updates at the base size that the updates taken stand for;
it grows by the gain of each update. Progress is the share of tau that is done, and at least the share of
samples seen.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pipeline.contract.records import Size
from pipeline.training.learning_rate import Rule
from pipeline.training.noise import Noise

MIN_GAIN = 0.05  # of goodput
SMOOTHING = 0.95  # of the noise: it changes as training goes on
LEAST_LOOKS = 20  # measurements of the noise; fewer are mostly chance


class BatchSchedule:
    """Batch sizes by position, the gradient noise, and AdaScale's tau."""

    def __init__(
        self, *, batch_size: int, base_size: int, base_samples: int, num_samples: int, rule: Rule
    ) -> None:
        self._base_size, self._num_samples, self._rule = base_size, num_samples, rule
        self._iterations = base_samples / base_size  # scale-invariant iterations of the whole training
        self._sizes = [(0, batch_size)]  # with the position from which each applies
        self._looks = 0
        self.noise = Noise(smoothing=SMOOTHING)
        self.tau = 0.0

    def size(self, position: int) -> int:
        """Returns the batch size at a position, ignoring that the last batch may be smaller."""
        start, size = self._sizes[-1]
        if start <= position:  # nearly always, and this runs at every update
            return size
        return next(size for start, size in reversed(self._sizes) if start <= position)

    def batch_size(self, position: int) -> int:
        """Returns the number of samples in the batch at a position."""
        return min(self.size(position), self._num_samples - position)

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

    def step(self, batch_size: int, *, noise: tuple[float, float] | None) -> None:
        """Records an update of this size, with |g|^2 and tr(Sigma) if they were measured."""
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

    def next_size(self, sizes: Sequence[Size], *, seen: int, most: float) -> int:
        """Returns the batch size to grow to now, at most `most`; 0 to keep the current size."""
        start, size = self._sizes[-1]
        if start > seen or self._looks < LEAST_LOOKS:
            return 0
        at = {each.batch_size: each for each in sizes}
        above = [each for each in at if size < each <= most]
        if size not in at or not above:
            return 0
        gain = self._goodput(at[min(above)]) / self._goodput(at[size])
        return min(above) if gain >= 1 + MIN_GAIN else 0

    def grow(self, size: int, *, start: int) -> None:
        """Uses this batch size from the position `start` on."""
        self._sizes.append((start, size))

    def _goodput(self, size: Size) -> float:
        """Returns the progress per second, in samples at the base size."""
        progress = self.noise.efficiency(batch_size=size.batch_size, base_size=self._base_size)
        return progress * size.batch_size / size.update_s

    def save(self) -> dict[str, Any]:
        """Returns the whole state, as JSON."""
        return {
            "sizes": list(self._sizes),  # a copy, as it is written while training goes on
            "looks": self._looks,
            "noise": asdict(self.noise),
            "tau": self.tau,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self._sizes = [(start, size) for start, size in state["sizes"]]
        self._looks, self.noise, self.tau = state["looks"], Noise(**state["noise"]), state["tau"]

"""How large is the next batch, and how far is training? By what gradients tell of their noise.

Growth (train.batch_growth: goodput): goodput is samples a second times the progress of a sample (Pollux,
OSDI'21), B / update_s(B) * (phi + b) / (phi + B). The next larger size that the plan has looked at is taken
where that gains 5 % over the one now. It follows from the plan, from the noise that was seen and from the
position alone, and these are kept in checkpoints: a run that was interrupted grows at the same update. The
same samples come in the same order; there are fewer updates.

AdaScale (train.scaling: adascale): tau, the updates at the base size that were stood for, grows by the gain
of each update; how far training is, is how far tau is, and no less than what part of the samples it has seen.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pipeline.contract.records import Size
from pipeline.training.learning_rate import Rule
from pipeline.training.noise import Noise

MIN_GAIN = 0.05  # of goodput
SMOOTHING = 0.95  # of the noise: it changes as training goes on
LEAST_LOOKS = 20  # at the noise; fewer are mostly chance


class Pace:
    """Batch sizes by position, the noise, and tau."""

    def __init__(
        self, *, batch_size: int, base_size: int, base_samples: int, num_samples: int, rule: Rule
    ) -> None:
        self._base_size, self._num_samples, self._rule = base_size, num_samples, rule
        self._iterations = base_samples / base_size  # scale-invariant ones, of the whole training
        self._sizes = [(0, batch_size)]  # and the position from which it is taken
        self._looks = 0
        self.noise = Noise(smoothing=SMOOTHING)
        self.tau = 0.0

    def size(self, position: int) -> int:
        """Batch size at a position, but for the end of the training."""
        start, size = self._sizes[-1]
        if start <= position:  # nearly always, and asked for at every update
            return size
        return next(size for start, size in reversed(self._sizes) if start <= position)

    def batch_size(self, position: int) -> int:
        """Samples of the batch at a position."""
        return min(self.size(position), self._num_samples - position)

    @property
    def noise_scale(self) -> float | None:
        """Samples (phi); None where too little was seen, or noise hides the gradient."""
        scale = self.noise.scale
        return scale if self._looks >= LEAST_LOOKS and scale < float("inf") else None

    def gain(self, batch_size: int) -> float:
        """Updates at the base size that one of this size stands for, by what was seen of the noise."""
        if batch_size <= self._base_size:
            return batch_size / self._base_size
        return self.noise.gain(times=batch_size / self._base_size, base_size=self._base_size)

    def step(self, batch_size: int, *, noise: tuple[float, float] | None) -> None:
        """An update was taken."""
        if self._rule == "adascale":
            self.tau += self.gain(batch_size)
        if noise:
            self.noise = self.noise.seen(square=noise[0], variance=noise[1])
            self._looks += 1

    @property
    def position(self) -> float:
        """Samples in place of `seen` for the schedule of the rate: where tau is."""
        return self.tau / self._iterations * self._num_samples

    @property
    def done(self) -> bool:
        """Whether AdaScale has stood for all updates."""
        return self._rule == "adascale" and self.tau >= self._iterations

    def larger(self, sizes: Sequence[Size], *, seen: int, most: float) -> int:
        """The batch size to grow to now, `most` at most; 0: as it is."""
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
        """Take this size from the position `start` on."""
        self._sizes.append((start, size))

    def _goodput(self, size: Size) -> float:
        """Progress a second, in samples at the base size."""
        progress = self.noise.efficiency(batch_size=size.batch_size, base_size=self._base_size)
        return progress * size.batch_size / size.update_s

    def save(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            "sizes": list(self._sizes),  # it is written while the run goes on
            "looks": self._looks,
            "noise": asdict(self.noise),
            "tau": self.tau,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `save` gave."""
        self._sizes = [(start, size) for start, size in state["sizes"]]
        self._looks, self.noise, self.tau = state["looks"], Noise(**state["noise"]), state["tau"]

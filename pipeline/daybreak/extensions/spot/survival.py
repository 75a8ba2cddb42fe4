"""Defines families of survival curves, each by its hazard at an age.

What is left of a fleet at age t is S(t) = exp(-H(t)), where H(t) is the cumulative hazard. Exponential: no
memory. Weibull. The bathtub of Kadupitiya et al. (HPDC'20), F(t) = A (1 - e^(-t/tau1) + e^((t-b)/tau2)). And
a hazard that is constant from one age to the next, which takes any form.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from daybreak.contract.units import HOUR_S

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST = 1e-12  # lower survival counts as this, since the logarithm of zero is infinite
GRID = 400  # points of a numerical integral
HALVINGS = 20  # of the ages between two of the grid, to a millionth of them


class Lifetime(Protocol):
    """A distribution of lifetimes, by its hazard at an age."""

    @property
    def name(self) -> str:
        """Returns the name of the family."""

    def cumulative(self, age_s: "Floats") -> "Floats":
        """Returns H(t), the cumulative hazard up to an age."""

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """Returns h(t), preemptions per second among machines of that age."""


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """A memoryless lifetime: the hazard is the same at any age."""

    mean_s: float
    name: str = "exponential"

    def cumulative(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        return age_s / self.mean_s

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        return age_s * 0 + 1 / self.mean_s


@dataclass(frozen=True, kw_only=True)
class Weibull:
    """H(t) = (t / scale)^shape: a shape below one means that the hazard falls with age."""

    shape: float
    scale_s: float
    name: str = "Weibull"

    def cumulative(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        return (age_s / self.scale_s) ** self.shape

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        share = np.maximum(age_s, 1e-3) / self.scale_s
        return self.shape / self.scale_s * share ** (self.shape - 1)


@dataclass(frozen=True, kw_only=True)
class Bathtub:
    """A hazard that is high at first and at last (Kadupitiya et al., HPDC'20); no machine outlives F = 1."""

    share: float  # A
    early_s: float  # tau1
    late_s: float  # tau2
    end_s: float  # b
    name: str = "bathtub"

    def cumulative(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        return -np.log(np.maximum(1 - self._gone(age_s), LEAST))

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        early = np.exp(-age_s / self.early_s) / self.early_s
        late = np.exp(np.minimum((age_s - self.end_s) / self.late_s, 50.0)) / self.late_s
        left = 1 - self._gone(age_s)
        # Past the end of the curve no machine is left that could be preempted.
        return np.where(left > LEAST, self.share * (early + late) / np.maximum(left, LEAST), 0.0)

    def _gone(self, age_s: "Floats") -> "Floats":
        import numpy as np

        late = np.exp(np.minimum((age_s - self.end_s) / self.late_s, 50.0))
        return self.share * (1 - np.exp(-age_s / self.early_s) + late)


@dataclass(frozen=True, kw_only=True)
class Piecewise:
    """A constant hazard from each age to the next; the last one has no end (Nelson-Aalen in steps)."""

    from_s: tuple[float, ...]
    per_s: tuple[float, ...]
    name: str = "Nelson-Aalen"

    def cumulative(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        ends = np.append(self.from_s[1:], np.inf)
        lived = np.clip(np.asarray(age_s)[..., None] - np.asarray(self.from_s), 0.0, ends - self.from_s)
        return np.asarray(lived @ np.asarray(self.per_s))

    def hazard_per_s(self, age_s: "Floats") -> "Floats":
        """See `Lifetime`."""
        import numpy as np

        return np.asarray(self.per_s)[np.searchsorted(self.from_s, age_s, side="right") - 1]


PUBLISHED = Bathtub(
    share=0.414, early_s=0.9 * HOUR_S, late_s=0.76 * HOUR_S, end_s=24 * HOUR_S, name="published bathtub"
)
# Fitted by `fit_piecewise` to 1,442 preemptible machines of 2019 (kadupitiya/goog-preemption-data), cut at
# the 24 hours that such machines were allowed; spot machines have no such limit.
MEASURED = Piecewise(
    from_s=(0.0, 268.0, 685.0, 1822.0, 3490.0, 7050.0, 13077.0, 40177.0),
    per_s=(108.1e-6, 81.5e-6, 34.91e-6, 28.16e-6, 16.37e-6, 11.42e-6, 3.222e-6, 2.507e-6),
    name="measured in 2019",
)


def survival(lifetime: Lifetime, age_s: "Floats") -> "Floats":
    """Returns the share of machines that live longer than each age."""
    import numpy as np

    return np.asarray(np.exp(-lifetime.cumulative(age_s)))


def draw_s(lifetime: Lifetime, chances: "Floats", *, longest_s: float) -> "Floats":
    """Returns the lifetimes at which these shares of machines survive, up to `longest_s`."""
    import numpy as np

    ages = np.append(0.0, np.geomspace(1.0, longest_s, 4 * GRID))
    hazards = np.maximum.accumulate(lifetime.cumulative(ages))
    wanted = -np.log(chances)
    after = np.clip(np.searchsorted(hazards, wanted), 1, len(ages) - 1)
    low, high = ages[after - 1], ages[after]
    for _ in range(HALVINGS):  # on a straight line a bathtub, which is steep at its end, would end too early
        middle = (low + high) / 2
        alive = lifetime.cumulative(middle) < wanted
        low, high = np.where(alive, middle, low), np.where(alive, high, middle)
    return np.asarray(high)

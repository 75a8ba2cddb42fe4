"""The result of every test of a challenger: a status, the effect with its interval, and a sentence.

Callers decide by the status; the sentence is only ever shown. Pure.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from daybreak.contract.formats import counted, decimals
from daybreak.contract.record_parts import MeasuredEffect


class Status(StrEnum):
    """What the data prove of a challenger."""

    BETTER = "better"
    NO_WORSE = "no worse"  # than the champion less the margin
    WORSE = "worse"  # at all, or by more than the margin where that is what was tested
    INCONCLUSIVE = "inconclusive"  # nothing, and all samples are here
    OPEN = "open"  # nothing yet; more samples may come
    INVALID = "invalid"  # the challenger's own values are missing or not finite
    MISMATCH = "mismatch"  # users were not shared out as drawn, so that nothing else is believed
    NO_DATA = "no data"  # nothing can be compared

    @property
    def is_proof(self) -> bool:
        """Whether the challenger has proven what was asked of it."""
        return self in (Status.BETTER, Status.NO_WORSE)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Mean difference of scores, with an interval; each test states the level at which its ends hold."""

    mean: float
    low: float
    high: float
    sd: float
    num_samples: int
    of: Literal["sample", "unit", "user", "night"] = "sample"  # what `num_samples` counts

    @property
    def measured(self) -> MeasuredEffect:
        """Returns mean and interval for a record, which has None for an infinite end."""
        low, high = (end if math.isfinite(end) else None for end in (self.low, self.high))
        return MeasuredEffect(mean=self.mean, low=low, high=high)

    def __str__(self) -> str:
        of = counted(self.num_samples, self.of)
        if math.isinf(self.low) and math.isinf(self.high):
            return f"{decimals(self.mean, signed=True)[0]} ({of}, too few to bound it)"
        mean, low, high = decimals(self.mean, self.low, self.high, signed=True)
        return f"{mean} (from {low} to {high}, {of})"


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """The answer of a test or a comparison."""

    status: Status
    sentence: str
    effect: Effect | None = None  # None without evidence, or where the test has no interval
    p_value: float = math.nan  # NaN where the test has none

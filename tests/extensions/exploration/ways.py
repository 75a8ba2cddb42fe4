"""Ways to run a job, as the search and explorations weigh them, made of two numbers."""

from dataclasses import dataclass
from math import exp, log

from scipy.special import ndtr, ndtri

from daybreak.contract.units import HOUR_S


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to run the job: lognormal work, by its median and spread, after a start of known length."""

    hours: float
    usd_per_hour: float = 1.0
    spread: float = 0.3
    start_s: float = 0.0

    @property
    def expected_s(self) -> float:
        return self.start_s + self.hours * HOUR_S

    @property
    def expected_usd(self) -> float:
        return self.expected_s / HOUR_S * self.usd_per_hour

    def time_s(self, chance: float) -> float:
        return self.start_s + self.hours * HOUR_S * exp(float(ndtri(chance)) * self.spread)

    def chance(self, seconds: float) -> float:
        return float(ndtr(log((seconds - self.start_s) / HOUR_S / self.hours) / self.spread))

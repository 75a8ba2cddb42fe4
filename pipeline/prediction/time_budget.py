"""How much of the night may training take? What comes before it, and evaluation and gate after it.

A night has to be done with training by `night.train_until` and with its decision by `night.decide_until`,
so training has to end before both, the second less what evaluation and gate take. Those begin with a prior
(scoring is the forward third of a step, for two models) and are learned from the nights: the median of what
they took, as sure as nights are alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, exp
from statistics import NormalDist

from pipeline.contract.errors import PlanError
from pipeline.contract.records import Dataset, Night, Profile
from pipeline.contract.units import HOUR_S
from pipeline.machines.startup import Part, typical

BEFORE_TRAINING = 0.05  # share of the time from the start to the end of training that other stages take
EVALUATION, GATE = "evaluation", "register and gate"
FORWARD = 1 / 3  # of a step is the forward pass; the backward pass costs twice as much
ARMS = 2  # models that are scored: challenger and champion
STAGE_S = 10.0  # to start a stage: processes, imports, the model
GATE_S = 60.0  # three stages more, MLflow and DVC among them


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What a night took from the end of its training to the decision."""

    evaluation_s: float
    gate_s: float  # all of the rest


@dataclass(frozen=True, kw_only=True)
class Window:
    """Seconds from the opening of the night to its two deadlines, and what follows training, as likely."""

    train_s: float
    decide_s: float
    after: tuple[Part, ...]
    confidence: float
    num_nights: int = 0  # that told what follows training

    @property
    def after_s(self) -> float:
        """Seconds that what follows training keeps to, with the confidence asked for."""
        z = NormalDist().inv_cdf(self.confidence)
        return sum(part.seconds * exp(z * part.spread) for part in self.after)

    @property
    def deadline_s(self) -> float:
        """Seconds that training may take, all in all."""
        return self.until_s * (1 - BEFORE_TRAINING)

    @property
    def until_s(self) -> float:
        """Seconds from the opening until training has to be done."""
        return min(self.train_s, self.decide_s - self.after_s)

    def hours(self, deadline_s: float) -> tuple[float, float]:
        """`train_hours` and `decide_hours` that leave so many seconds to training, rounded up."""
        until_s = deadline_s / (1 - BEFORE_TRAINING)
        return _up(until_s / HOUR_S), _up((until_s + self.after_s) / HOUR_S)

    def latest_start(self, night: Night, seconds: float) -> datetime:
        """When something that takes so long has to begin."""
        until = min(night.train_until, night.decide_until - timedelta(seconds=ceil(self.after_s)))
        return until - timedelta(seconds=ceil(seconds))


def window(
    night: Night,
    dataset: Dataset,
    profile: Profile,
    *,
    test_days: int,
    confidence: float,
    decided: Sequence[Decided] = (),
) -> Window:
    """What the night leaves to training; PlanError where evaluation and gate alone are too long for it."""
    days = max(1, (dataset.last_day - dataset.first_day).days + 1)
    num_scored = ARMS * dataset.num_samples * test_days / days
    sample_s = profile.load_s.per_sample + FORWARD * profile.step_s.per_sample
    found = Window(
        train_s=(night.train_until - night.started_at).total_seconds(),
        decide_s=(night.decide_until - night.started_at).total_seconds(),
        after=(
            _part(EVALUATION, STAGE_S + num_scored * max(0.0, sample_s), [d.evaluation_s for d in decided]),
            _part(GATE, GATE_S, [d.gate_s for d in decided]),
        ),
        confidence=confidence,
        num_nights=len(decided),
    )
    if found.until_s <= 0:
        raise PlanError(
            f"evaluation and gate may take {found.after_s / HOUR_S:.2g} h and night.decide_hours leaves "
            f"{found.decide_s / HOUR_S:.2g} h for the whole night; raise night.decide_hours"
        )
    return found


def _part(name: str, prior_s: float, took_s: Sequence[float]) -> Part:
    """A stage by its prior, or by the median of the nights that it took."""
    told = [each for each in took_s if each > 0]
    seconds, spread = typical(told)
    return Part(seconds=seconds if told else prior_s, spread=spread, name=name)


def _up(hours: float) -> float:
    return ceil(hours * 10) / 10 if hours >= 1 else ceil(hours * 1000) / 1000

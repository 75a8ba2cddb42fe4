"""Computes the time left for training between the stages before and after training.

Training must end by `night.train_until`, and the decision must be made by `night.decide_until`, so training
must also end before the latter less what evaluation and gate take, and a refit where `gate.refit_epochs` asks
for one. Those start from a prior (scoring is the forward third of a step, for two models; a refit is whole
steps on the held-out samples, at the speed of the machine at hand) and are learned from the nights: the
median of what they took, with the spread between nights. Where users judge the challenger, the hours that
they need come off as well (`windows`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil, exp
from statistics import NormalDist

from daybreak.contract import formats
from daybreak.contract.errors import PlanError
from daybreak.contract.record_types import BEFORE_TRAINING, LIVE_TEST, Dataset, Night, Profile
from daybreak.contract.units import HOUR_S
from daybreak.machines.startup import IN_RUN_S, StartupPart, typical

EVALUATION, GATE, REFIT, TEST = "evaluation", "register and gate", "refit", LIVE_TEST
TEST_SHARES = tuple(tenths / 10 for tenths in range(10, -1, -1))  # of the hours that a live test needs
FORWARD = 1 / 3  # share of a step that is the forward pass; the backward pass costs twice as much
ARMS = 2  # models that are scored: challenger and champion
STAGE_S = 10.0  # start of a stage: processes, imports, the model
GATE_S = 60.0  # three more stages, including MLflow and DVC
REGISTER_S = 40.0  # of a refit, its smoke test among it
LONGEST_S = 7 * 24 * HOUR_S  # no refusal asks for a longer night: its cause is then the work, not the hours


@dataclass(frozen=True, kw_only=True)
class Decided:
    """Seconds of a night between the end of training and the decision, and of the refit."""

    evaluation_s: float
    gate_s: float  # the rest
    refit_s: float = 0.0  # its training; 0: there was none


@dataclass(frozen=True, kw_only=True)
class NightWindow:
    """Seconds from the opening of the night to its two deadlines, and the time of what follows."""

    train_s: float
    decide_s: float
    after: tuple[StartupPart, ...]
    confidence: float
    num_nights: int = 0  # nights from which the latter was learned
    waited_s: float = 0.0  # that the night has waited, for its day or for machines

    @property
    def after_s(self) -> float:
        """Seconds within which the stages after training are done, with the required confidence."""
        z = NormalDist().inv_cdf(self.confidence)
        return sum(part.seconds * exp(z * part.spread) for part in self.after)

    @property
    def deadline_s(self) -> float:
        """Seconds that training may take in total."""
        return self.until_s * (1 - BEFORE_TRAINING)

    @property
    def until_s(self) -> float:
        """Seconds from the opening until training has to be done, less what the night waited.

        The stages before training take as long after a wait, so their share is kept of the whole time.
        """
        return min(self.train_s, self.decide_s - self.after_s) - self.waited_s / (1 - BEFORE_TRAINING)

    def hours(self, deadline_s: float) -> tuple[float, float]:
        """Returns `train_hours` and `decide_hours` that leave so many seconds to training, rounded up."""
        until_s = (deadline_s + self.waited_s) / (1 - BEFORE_TRAINING)
        return _up(until_s / HOUR_S), _up((until_s + self.after_s) / HOUR_S)

    def latest_start(self, night: Night, seconds: float) -> datetime:
        """Returns when a job that takes so many seconds has to begin."""
        until = min(night.train_until, night.last_decision - timedelta(seconds=ceil(self.after_s)))
        return until - timedelta(seconds=ceil(seconds))


def windows(night: Night, there: NightWindow) -> Iterator[NightWindow]:
    """Yields windows for training: first beside the whole live test, then beside less and less of it.

    The last window is `there`, which reserves nothing for the test.
    """
    for share in TEST_SHARES if night.test_hours else (0.0,):
        test = StartupPart(seconds=share * night.test_hours * HOUR_S, spread=0.0, name=TEST)
        beside = replace(there, after=(*there.after, test)) if share else there
        if beside.until_s > 0:
            yield beside


def window(
    night: Night,
    dataset: Dataset,
    profile: Profile,
    *,
    test_days: int,
    confidence: float,
    decided: Sequence[Decided] = (),
    refit_epochs: float = 0.0,
    waited_s: float = 0.0,
) -> NightWindow:
    """Returns the time left for training; raises PlanError if the later stages alone do not fit."""
    days = max(1, (dataset.last_day - dataset.first_day).days + 1)
    num_held_out = dataset.num_samples * test_days / days
    sample_s = profile.load_s.per_sample + FORWARD * profile.step_s.per_sample
    after = [
        _part(
            EVALUATION,
            STAGE_S + ARMS * num_held_out * max(0.0, sample_s),
            [d.evaluation_s for d in decided],
        ),
        _part(GATE, GATE_S, [d.gate_s for d in decided]),
    ]
    if refit_epochs:
        step_s = max(0.0, profile.load_s.per_sample + profile.step_s.per_sample)
        prior_s = IN_RUN_S + refit_epochs * num_held_out * step_s
        took_s = [d.refit_s + REGISTER_S for d in decided if d.refit_s]
        after.append(_part(REFIT, prior_s + REGISTER_S, took_s))
    there = NightWindow(
        train_s=(night.train_until - night.started_at).total_seconds(),
        decide_s=(night.last_decision - night.started_at).total_seconds(),
        after=tuple(after),
        confidence=confidence,
        num_nights=len(decided),
        waited_s=waited_s,
    )
    if there.until_s <= 0 < replace(there, waited_s=0.0).until_s:
        needed_s = waited_s / (1 - BEFORE_TRAINING)
        decide_s = (night.decide_until - night.started_at).total_seconds()
        missing_s = {
            "night.train_hours": needed_s - there.train_s,
            "night.decide_hours": needed_s + there.after_s - decide_s,
        }
        if night.predict_until and night.predict_until != night.decide_until:  # predict.by_hours is set
            missing_s["predict.by_hours"] = needed_s + there.after_s - there.decide_s
        elif there.decide_s < decide_s:  # predictions come before the decision
            missing_s["night.decide_hours"] = needed_s + there.after_s - there.decide_s
        more = " and ".join(
            f"{key} by more than {_up(s / HOUR_S):g}" for key, s in missing_s.items() if s >= 0
        )
        raise PlanError(
            f"the night waited {formats.duration(waited_s)} for its day or for machines, which leaves no "
            f"time to train; raise {more}, or let it wait less"
        )
    if there.until_s <= 0:
        fewer = "lower prepare.test_days" if test_days > 1 else "let the source deliver fewer samples a day"
        raise PlanError(
            f"evaluation on {round(num_held_out):,} held-out samples (prepare.test_days {test_days}) and "
            f"{'gate and refit' if refit_epochs else 'gate'} may take {formats.duration(there.after_s)}, and "
            f"night.decide_hours leaves {formats.duration(there.decide_s)} for the whole night; "
            f"{fewer if there.after_s > LONGEST_S else 'raise night.decide_hours'}"
        )
    return there


def _part(name: str, prior_s: float, took_s: Sequence[float]) -> StartupPart:
    """Returns a stage with its prior time, or with the median of the nights that measured it."""
    measured = [each for each in took_s if each > 0]
    seconds, spread = typical(measured)
    return StartupPart(seconds=seconds if measured else prior_s, spread=spread, name=name)


def _up(hours: float) -> float:
    return ceil(hours * 10) / 10 if hours >= 1 else ceil(hours * 1000) / 1000

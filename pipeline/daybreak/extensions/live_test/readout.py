"""Reads the log of an experiment: its guardrails, then the effect on what users are scored by.

Guardrails are those of guardrails.py, of the groups of users in segments.py, and two more:

    labels           users with a label fit the shares of the arms as well (`srm`), and as large a share of
                     either arm's rows has one
    score            worse by more than the margin, by bets that hold from the first user on; or worse at
                     all, by the effect: what is to be improved must not have deteriorated

The effect raises a false alarm in `gate.alpha` of experiments. Lists and their users, or predictions and
their labels, are scored by `live_score`; personal lists and items shown are of lists alone, labels of
predictions.

The effect is `unpaired`'s, over users whose window for outcomes is over, adjusted by their scores before the
test; where the end of the test is known, at the looks that `looks` plans. A list without a reported outcome
scores 0, so that a challenger cannot win because fewer of its users report, or fewer of their visits. Divided
by the share of visits with an outcome, the effect is on the scale of the held-out scores, and the same margin
holds. A user of predictions without a label is left out.
The first `novelty_s` of a user count for guardrails alone: what is new attracts, or annoys, for a while. A
user who does not come back after them scores as one without an outcome. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.formats import percents
from daybreak.contract.record_parts import Check, Segment
from daybreak.extensions.live_test.guardrails import (
    GuardrailLimits,
    as_drawn,
    check,
    frequent_users,
    guardrails,
    two_means,
)
from daybreak.extensions.live_test.live_score import LISTS, LiveScore, RowScore, ShownExposure
from daybreak.extensions.live_test.looks import Looks
from daybreak.extensions.live_test.observations import Observation, ObservationLog, arms, chances, settled
from daybreak.extensions.live_test.segments import attributes_as_drawn, segments
from daybreak.gate.all_metrics import together
from daybreak.statistics import e_process, srm
from daybreak.statistics.paired import Rules, status_of
from daybreak.statistics.result import Conclusion, Status
from daybreak.statistics.unpaired import adjusted, effect

Floats = NDArray[np.float64]
MOST_UNLABELLED = 0.05  # of a user's rows, by which the arms may differ
USUALLY = 0.9  # of the labels that come in time, come within the usual delay
LEAST_FORETOLD = 0.01  # of the variance of scores, by what is known before the test, to be told


@dataclass(frozen=True, kw_only=True)
class UserMetric:
    """A metric by which users judge."""

    name: str
    by: LiveScore
    margin: float  # in the metric's unit
    is_guardrail: bool  # it must hold; else it is a success metric, of which one must be better


@dataclass(frozen=True, kw_only=True)
class Design:
    """How an experiment is judged, as it was fixed before the first user."""

    rules: Rules  # alpha, what is asked of the score, and how few users of an arm are too few
    limits: GuardrailLimits
    window_s: float  # in which outcomes of a user count
    novelty_s: float = 0.0  # of a user, before outcomes count
    by: LiveScore = LISTS  # what a user's score is
    others: tuple[UserMetric, ...] = ()  # metrics that users judge as well (daybreak/gate/all_metrics.py)
    looks: Looks | None = None  # at the effect, where the end of the test is known; None: any look counts
    before: Mapping[str, float] = field(default_factory=dict)  # what users scored before the test, by unit

    @property
    def metrics(self) -> tuple[UserMetric, ...]:
        """Returns all metrics, with the score as the first."""
        score = UserMetric(name="score", by=self.by, margin=self.limits.margin, is_guardrail=False)
        return (score, *self.others)

    def settles_s(self, by: LiveScore) -> float:
        """Returns how long after a user's first answer the score is settled.

        Where the first hours do not count, the first answer that does may come at the end of a window.
        """
        return self.novelty_s + (by.windows + bool(self.novelty_s)) * self.window_s

    def asked(self, metric: UserMetric) -> Rules:
        """Returns the rules for a metric; success metrics share alpha, as one of them is enough."""
        rules = replace(self.rules, margin=metric.margin)
        if metric.is_guardrail:
            return replace(rules, refresh=True)
        num_success = sum(not one.is_guardrail for one in self.metrics)
        return replace(rules, alpha=self.rules.alpha / num_success)


@dataclass(frozen=True, kw_only=True)
class Readout:
    """What the log says of an experiment now."""

    result: Conclusion  # of the score, on the scale of visits with an outcome
    arms: Conclusion  # MISMATCH where users did not meet the arms they were drawn for
    checks: tuple[Check, ...]  # the guardrails
    num_ours: int  # users whose arm was left to chance, by arm
    num_theirs: int
    segments: tuple[Segment, ...] = ()  # users by what clients say of them

    def beside(self, checks: Sequence[Check]) -> "Readout":
        """Returns the same with more guardrails."""
        return replace(self, checks=(*self.checks, *checks))

    def among(self, users: Conclusion) -> "Readout":
        """Returns the same, where users are also shared out among the tests that are on at once."""
        arms = users if users.status is Status.MISMATCH else self.arms
        return replace(self, arms=arms, checks=(check("users by test", users), *self.checks))

    @property
    def is_trusted(self) -> bool:
        """Whether the arms were as drawn, without which the log proves nothing."""
        return self.arms.status is not Status.MISMATCH

    @property
    def broken(self) -> tuple[str, ...]:
        """Says which guardrails are broken, a sentence each; the one of the arms comes first."""
        return tuple(f"{check.name}: {check.text}" for check in self.checks if not check.ok)


def find(seen: ObservationLog, design: Design, *, now: float) -> Readout:
    """Returns guardrails and effect of an experiment at the time `now`; every log has an answer."""
    num_ours, num_theirs = seen.counts()
    drawn, by_attribute = as_drawn(seen), attributes_as_drawn(seen)
    success: dict[str, Conclusion] = {}
    held: dict[str, Conclusion] = {}
    checks: list[Check] = []
    scored = [_scored(seen, metric.by, design, now=now) for metric in design.metrics]
    for metric, (over, scores) in zip(design.metrics, scored, strict=True):
        result = _compared(over, scores, design, rules=design.asked(metric), by=metric.by, now=now)
        (held if metric.is_guardrail else success)[metric.name] = result
        checks.append(_score(over, scores, result, metric, rate=_answered(over, metric.by, design)))
    users, scores = scored[0]
    return Readout(
        result=together(success, held, refresh=design.rules.refresh),
        arms=by_attribute if by_attribute and drawn.status is not Status.MISMATCH else drawn,
        checks=(
            check("arms as drawn", drawn),
            *([check("arms by attribute", by_attribute)] if by_attribute else []),
            *frequent_users(seen),
            *guardrails(
                seen,
                limits=design.limits,
                window_s=design.window_s,
                now=now,
                of_lists=design.by.of_lists,
            ),
            *_labels(users, scores, design),
            *checks,
        ),
        num_ours=num_ours,
        num_theirs=num_theirs,
        segments=_segments(users, scores, design),
    )


def _scored(
    seen: ObservationLog, by: LiveScore, design: Design, *, now: float
) -> tuple[list[Observation], list[float | None]]:
    """Returns the users whose score is settled by now, and these scores; None without an outcome."""
    over = settled(seen.observations, design.settles_s(by), now)
    return over, [one.score(by, window_s=design.window_s) for one in over]


def _segments(over: list[Observation], scores: list[float | None], design: Design) -> tuple[Segment, ...]:
    """Returns the effect by attribute, on the scale of visits with an outcome, as the whole effect is."""
    rate = _answered(over, design.by, design) or 1.0
    over, values = _valued(over, scores, design.by)
    return segments(over, values / rate, rules=design.rules)


def _labels(over: list[Observation], scores: list[float | None], design: Design) -> tuple[Check, ...]:
    """Returns the guardrail on labels, where a score needs them.

    The users with a label have to fit the planned shares. Each may have one, and yet one arm's rows fewer, as
    where a model decides what becomes known: so the share of labelled rows may not differ, either way.
    """
    by = design.by
    if by.of_lists or not by.has_label:
        return ()
    known, _ = _labelled(over, scores)
    users = srm.check(arms(known), chances(known))
    if users.status is Status.MISMATCH or not isinstance(by, RowScore):
        return (check("labels", users),)
    visits, window_s = [one.judged for one in over], design.window_s
    delay_s = _usual_delay_s(visits, window_s)
    shares = [by.labelled(one, window_s=window_s, delay_s=delay_s) if one else None for one in visits]
    asked, known_shares = _labelled(over, shares)
    arm, values = arms(asked), np.array(known_shares, dtype=np.float64)
    if not 0 < arm.sum() < arm.size:
        return (check("labels", users),)
    results = [
        e_process.alarm(arm, chances(asked), side, margin=MOST_UNLABELLED, num_tests=2)
        for side in (1 - values, values)
    ]
    ours, theirs = percents(*two_means(arm, values))
    text = f"{ours} of the rows of the challenger's users have a label, and {theirs} of the champion's"
    if all(one.status is not Status.WORSE for one in results):
        return (Check(name="labels", ok=True, text=text),)
    told = f"{text}, which differ by more than {MOST_UNLABELLED:.0%}; look at what delays or drops labels"
    return (Check(name="labels", ok=False, text=told),)


def _usual_delay_s(visits: Sequence[Sequence[ShownExposure]], window_s: float) -> float:
    """Returns within how many seconds most labels of users' first visits come, of those in time."""
    first = [of_user[0] for of_user in visits if of_user]
    delays = [one.taken_at - one.time for one in first if one.taken_at is not None]
    in_time = [max(delay, 0.0) for delay in delays if delay <= window_s]
    return float(np.quantile(in_time, USUALLY)) if in_time else 0.0


def _compared(
    over: list[Observation],
    scores: list[float | None],
    design: Design,
    *,
    rules: Rules,
    by: LiveScore,
    now: float,
) -> Conclusion:
    """Returns what the scores prove, the effect on the scale of visits with an outcome; or NO_DATA and why.

    Where looks are planned, that is what was known at the newest of them.
    """
    look = None
    if design.looks:
        ready, p = [one.time + design.settles_s(by) for one in over], chances(over)
        look = design.looks.newest(ready, p * (1 - p), now=now, alpha=rules.alpha)
        due = [place for place, time in enumerate(ready) if look and time <= look.time]
        over, scores = [over[place] for place in due], [scores[place] for place in due]
    if too_few := _too_few(over, scores, least=rules.min_samples):
        return Conclusion(status=Status.NO_DATA, sentence=too_few)
    rate = _answered(over, by, design)
    over, values = _valued(over, scores, by)
    if rare := too_rare(arms(over), values, least=rules.min_samples):
        return Conclusion(status=Status.NO_DATA, sentence=rare)
    earlier = [design.before.get(one.exposures[0].unit, math.nan) for one in over]
    values, foretold = adjusted(values, earlier, chances(over))
    bound = look.bound if look else None
    plain = effect(arms(over), chances(over), values, alpha=rules.alpha, bound=bound)
    scaled = replace(
        plain, mean=plain.mean / rate, low=plain.low / rate, high=plain.high / rate, sd=plain.sd / rate
    )
    if not plain.sd > 0 or not math.isfinite(scaled.high - scaled.low):
        sentence = f"the scores of {plain.num_samples:,} users do not differ, or are too few for an interval"
        return Conclusion(status=Status.NO_DATA, sentence=sentence)
    sentence = str(scaled)
    if foretold >= LEAST_FORETOLD:
        times = 1 / max(1 - foretold, LEAST_FORETOLD)
        sentence += f", worth {times:.2f} times the users by what they scored before"
    return Conclusion(status=status_of(scaled, rules), effect=scaled, sentence=sentence)


def _too_few(over: Sequence[Observation], scores: Sequence[float | None], *, least: int) -> str:
    """Returns in words that an arm has too few users, or too few with an outcome; "" for enough."""
    arm, reported = arms(over), np.array([score is not None for score in scores], dtype=bool)
    num_ours, num_theirs = int(arm.sum()), int((~arm).sum())
    if min(num_ours, num_theirs) < least:
        return (
            f"{num_ours:,} users of the challenger and {num_theirs:,} of the champion have had "
            f"time for an outcome; gate.min_samples asks for {least:,} of each"
        )
    ours, theirs = int(reported[arm].sum()), int(reported[~arm].sum())
    if min(ours, theirs) < least:
        return (
            f"an outcome was told of {ours:,} of {num_ours:,} users of the challenger and of {theirs:,} of "
            f"{num_theirs:,} of the champion; gate.min_samples asks for {least:,} of each, look at the "
            f"clients that post to /outcomes"
        )
    return ""


def _answered(over: Sequence[Observation], by: LiveScore, design: Design) -> float:
    """Returns the mean share of a user's visits with an outcome; 1 where nobody is known."""
    return float(np.mean([one.answered(by, window_s=design.window_s) for one in over])) if over else 1.0


def too_rare(arm: NDArray[np.bool_], values: Floats, *, least: int) -> str:
    """Returns in words that too few users have another score than most, "" where enough have.

    An interval of a mean goes by the spread of its scores. Of thirty users who all took nothing that is zero,
    and it would prove anything. So as many users of each arm have to score otherwise, or would if both arms
    were alike.
    """
    if not values.size:
        return ""
    distinct, counts = np.unique(values, return_counts=True)
    usual = distinct[counts.argmax()]
    other = values != usual
    ours, theirs = (max(float(other[of].sum()), float(of.sum()) * other.mean()) for of in (arm, ~arm))
    if min(ours, theirs) >= least:
        return ""
    return (
        f"most users score {usual:g}, and {int(other[arm].sum()):,} of the challenger and "
        f"{int(other[~arm].sum()):,} of the champion do not; gate.min_samples asks for {least:,} of each"
    )


def _labelled(
    over: list[Observation], scores: list[float | None]
) -> tuple[list[Observation], list[float | None]]:
    """Returns those that have a score."""
    known = [place for place, score in enumerate(scores) if score is not None]
    return [over[place] for place in known], [scores[place] for place in known]


def _valued(
    over: list[Observation], scores: list[float | None], by: LiveScore
) -> tuple[list[Observation], Floats]:
    """Returns the users that count, and their scores: of lists all, 0 where nothing was taken."""
    if not by.of_lists:
        over, scores = _labelled(over, scores)
    return over, np.array([score or 0.0 for score in scores], dtype=np.float64)


def _score(
    over: list[Observation],
    scores: list[float | None],
    result: Conclusion,
    metric: UserMetric,
    *,
    rate: float,
) -> Check:
    """Returns a metric's guardrail: not worse by more than the margin, nor proven worse at all.

    The margin is one of visits with an outcome; the others, of which `rate` is the rest, have none to lose.
    """
    over, values = _valued(over, scores, metric.by)
    losses, margin = metric.by.losses(values), metric.by.margin(metric.margin * (rate or 1.0))
    alarm = e_process.alarm(arms(over), chances(over), losses, margin=margin)
    guarded = check(metric.name, alarm, shown=metric.by.in_words(*two_means(arms(over), values)))
    if result.status is not Status.WORSE:
        return guarded
    return replace(guarded, ok=False, text=f"{guarded.text}, proven worse: {result.effect}")

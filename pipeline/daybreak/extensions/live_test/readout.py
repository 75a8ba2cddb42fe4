"""Reads the log of an experiment: first its guardrails, then the effect, then the next step of the ramp.

    arms as drawn    answers per arm fit the shares (`srm`), and no user was in an arm that could not be
    errors           requests that the model did not answer
    personal lists   answers with a list of popular items instead of the user's own
    latency          P99 of the answers at the present share (`quantiles`)
    items shown      distance between the lists of the arms (`output_drift`)
    returning users  users who come back after the time for an outcome
    labels           users with a label fit the shares of the arms as well (`srm`)
    score            worse by more than the margin, by bets that hold from the first user on; or worse at
                     all, by the effect: what is to be improved must not have deteriorated

All may be tested at any time and as often as one likes. Each raises a false alarm in at most one of 1,000
experiments, the effect in `gate.alpha` of them. If the arms were not as drawn, nothing else is believed: no
data. Any other broken guardrail rejects the challenger. Lists and their users, or predictions and their
labels, are scored by `live_score`; personal lists and items shown are of lists alone, labels of predictions.

The effect is `unpaired`'s, over users whose window for outcomes is over, adjusted by their scores before the
test; where the end of the test is known, at the looks that `looks` plans. A list without a reported outcome
scores 0, so that a challenger cannot win because fewer of its users report, or fewer of their visits. Divided
by the share of visits with an outcome, the effect is on the scale of the held-out scores, and the same margin
holds. A user of predictions without a label is left out. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.formats import duration, percents
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Action
from daybreak.extensions.live_test.live_score import LISTS, LiveScore, ShownExposure
from daybreak.extensions.live_test.looks import Looks
from daybreak.extensions.live_test.observations import Observation, ObservationLog
from daybreak.extensions.live_test.ramp import Pace, RampStep, step
from daybreak.gate.all_metrics import together
from daybreak.statistics import e_process, quantiles, srm
from daybreak.statistics.output_drift import witnessed
from daybreak.statistics.paired import Rules, status_of
from daybreak.statistics.result import Conclusion, Status
from daybreak.statistics.unpaired import adjusted, effect

Floats = NDArray[np.float64]
NOTHING: Mapping[str, float] = MappingProxyType({})
LEAST_FORETOLD = 0.01  # of the variance of scores, by what is known before the test, to be told
WINDOWS = (1, 2, 4, 8, 16)  # of a user's answers that guardrails look at together
Mode = Literal["live", "both"]


@dataclass(frozen=True, kw_only=True)
class GuardrailLimits:
    """How much worse than the champion the challenger may be."""

    errors: float  # share of users whose model did not answer
    attrition: float  # share of users who do not come back
    fallbacks: float  # share of users without a list of their own
    p99_s: float  # seconds that the P99 may be longer
    shift: float  # total variation distance between the items shown
    margin: float  # of the score


@dataclass(frozen=True, kw_only=True)
class UserMetric:
    """A metric by which users judge."""

    name: str
    by: LiveScore
    margin: float  # in the metric's unit
    is_guardrail: bool  # it must hold; else it is a success metric, of which one must be better


@dataclass(frozen=True, kw_only=True)
class Readout:
    """What the log says of an experiment now."""

    result: Conclusion  # of the score, on the scale of visits with an outcome
    arms: Conclusion  # MISMATCH where users did not meet the arms they were drawn for
    checks: tuple[Check, ...]  # the guardrails
    num_ours: int  # users whose arm was left to chance, by arm
    num_theirs: int

    @property
    def is_trusted(self) -> bool:
        """Whether the arms were as drawn, without which the log proves nothing."""
        return self.arms.status is not Status.MISMATCH

    @property
    def broken(self) -> tuple[str, ...]:
        """Says which guardrails are broken, a sentence each; the one of the arms comes first."""
        return tuple(f"{check.name}: {check.text}" for check in self.checks if not check.ok)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do with the challenger, and why."""

    action: Action
    reason: str
    inconclusive: bool = False  # rejected for want of proof only


def find(
    seen: ObservationLog,
    *,
    rules: Rules,
    limits: GuardrailLimits,
    window_s: float,
    now: float,
    looks: Looks | None = None,
    before: Mapping[str, float] = NOTHING,
    by: LiveScore = LISTS,
    others: Sequence[UserMetric] = (),
) -> Readout:
    """Returns guardrails and effect of an experiment; every log has an answer.

    Args:
        seen: the log of the experiment.
        rules: alpha, what is asked of the score, and how few users of an arm are too few.
        limits: of the guardrails.
        window_s: seconds in which outcomes of a user count.
        now: seconds since 1970.
        looks: at the effect, where the end of the test is known; None: any look counts.
        before: what users scored before the test, by unit.
        by: what a user's score is.
        others: metrics that users judge as well (daybreak/gate/all_metrics.py).
    """
    num_ours, num_theirs = seen.counts()
    arms = _as_drawn(seen)
    success: dict[str, Conclusion] = {}
    held: dict[str, Conclusion] = {}
    checks: list[Check] = []
    num_success = 1 + sum(not one.is_guardrail for one in others)
    for metric in (UserMetric(name="score", by=by, margin=limits.margin, is_guardrail=False), *others):
        asked = replace(rules, margin=metric.margin)
        if metric.is_guardrail:
            asked = replace(asked, refresh=True)
        else:
            asked = replace(asked, alpha=rules.alpha / num_success)
        over = _over(seen.observations, metric.by.windows * window_s, now)
        scores = [one.score(metric.by, window_s=window_s) for one in over]
        result = _compared(
            over, scores, rules=asked, window_s=window_s, now=now, looks=looks, before=before, by=metric.by
        )
        (held if metric.is_guardrail else success)[metric.name] = result
        rate = _answered(over, metric.by, window_s=window_s)
        checks.append(_score(over, scores, result, metric, rate=rate))
    labels: tuple[Check, ...] = ()
    if not by.of_lists and by.has_label:
        over = _over(seen.observations, by.windows * window_s, now)
        labelled, _ = _labelled(over, [one.score(by, window_s=window_s) for one in over])
        labels = (_check("labels", srm.check(_arm(labelled), _chance(labelled))),)
    return Readout(
        result=together(success, held, refresh=rules.refresh),
        arms=arms,
        checks=(
            _check("arms as drawn", arms),
            *guardrails(seen, limits=limits, window_s=window_s, now=now, of_lists=by.of_lists),
            *labels,
            *checks,
        ),
        num_ours=num_ours,
        num_theirs=num_theirs,
    )


def guardrails(
    seen: ObservationLog, *, limits: GuardrailLimits, window_s: float, now: float, of_lists: bool = True
) -> tuple[Check, ...]:
    """Returns a check for each guardrail that needs no outcome; arguments as of `find`.

    Those of lists are left out where users are shown none.

    Each is tested several times, alpha shared among the tests: on every user's first answer, at once, so that
    a broken model is stopped early; on all answers within a window, and within 2, 4, 8 and 16 of them, once
    these are over; and on the answers to users who come back at a later share. So a model that fails from the
    second visit on, or only after hours, is stopped as well. A user is one value, the mean over the answers
    that count.
    """
    users, back = list(seen.observations), _over(seen.returned, window_s, now)
    tests = [(users, _values(users, [one.exposures[:1] for one in users]))]
    for windows in WINDOWS:
        over = _over(users, windows * window_s, now)
        tests.append((over, _values(over, [one.until(windows * window_s) for one in over])))
    tests.append((back, _values(back, [one.exposures for one in back])))

    def tested(name: str, text: str, margin: float) -> Check:
        results = [
            e_process.alarm(_arm(of), _chance(of), values[name], margin=margin, num_tests=len(tests))
            for of, values in tests
        ]
        worst = min(range(len(tests)), key=lambda number: results[number].p_value)
        of, values = tests[worst]
        return _check(name, results[worst], shown=_means(text, _arm(of), values[name]))

    latency = quantiles.guard(
        seen.latencies_s[True],
        seen.latencies_s[False],
        quantile=0.99,
        margin=limits.p99_s,
        alpha=e_process.ALPHA,
        min_samples=2,
    )
    back_again = _returning(users, margin=limits.attrition, window_s=window_s, now=now)
    errors = tested(
        "errors",
        "the model did not answer {ours} of the requests of the challenger's users and {theirs} "
        "of those of the champion's",
        limits.errors,
    )
    if not of_lists:
        return errors, _check("latency", latency), back_again
    return (
        errors,
        tested(
            "personal lists",
            "{ours} of the answers to the challenger's users were no lists of their own, and "
            "{theirs} of those to the champion's",
            limits.fallbacks,
        ),
        _check("latency", latency),
        tested(
            "items shown",
            "{ours} of the items that the challenger shows, and {theirs} of those of the champion, "
            "are such as only it prefers",
            limits.shift,
        ),
        back_again,
    )


def _returning(users: Sequence[Observation], *, margin: float, window_s: float, now: float) -> Check:
    """Returns the guardrail on users who do not come back, tested 2, 4, 8 and 16 windows after they came."""
    tests = []
    for windows in WINDOWS[1:]:
        over = _over(users, windows * window_s, now)
        gone = [float(not one.came_back(after_s=window_s, until_s=windows * window_s)) for one in over]
        tests.append((over, gone, windows))
    results = [
        e_process.alarm(_arm(over), _chance(over), gone, margin=margin, num_tests=len(tests))
        for over, gone, _ in tests
    ]
    worst = min(range(len(tests)), key=lambda number: results[number].p_value)
    over, gone, windows = tests[worst]
    if not 0 < sum(one.treated for one in over) < len(over):
        return _check("returning users", results[worst])
    text = (
        f"{{ours}} of the challenger's users had not come back within {duration(windows * window_s)}, and "
        f"{{theirs}} of the champion's"
    )
    return _check("returning users", results[worst], shown=_means(text, _arm(over), gone))


def _over(observations: Sequence[Observation], after_s: float, now: float) -> list[Observation]:
    return [one for one in observations if one.time + after_s <= now]


def _values(users: list[Observation], answers: list[list[ShownExposure]]) -> dict[str, list[float]]:
    """By guardrail, a value in [0, 1] per user, higher is worse, of these answers to them."""
    lists = [[item for one in of for item in one.items] for of in answers]
    return {
        "errors": [float(np.mean([bool(one.error) for one in of])) for of in answers],
        "personal lists": [float(np.mean([one.fallback for one in of])) for of in answers],
        "items shown": [float(value) for value in witnessed(_arm(users), lists)],
    }


def decide(
    finding: Readout,
    *,
    rules: Rules,
    mode: Mode,
    pace: Pace,
    share: float,
    units: int,
    hours: float,
    over: bool,
) -> tuple[Decision, RampStep]:
    """Returns what to do with challenger and share now.

    Args:
        finding: what the log says.
        rules: `refresh` asks for no worse than the margin, else better.
        mode: whether live traffic must prove it, or only not reject it.
        pace: of the ramp.
        share: that the challenger has.
        units: that met it at this share.
        hours: that it has had this share.
        over: whether the night has come to its end.
    """
    next_step = step(pace, share=share, units=units, hours=hours, broken=finding.broken)
    decision = _decision(finding, rules=rules, mode=mode, done=next_step.action == "done", over=over)
    if decision.action != "wait":
        ended: Literal["stop", "done"] = "stop" if finding.broken else "done"
        return decision, RampStep(action=ended, share=0.0, reason=decision.reason)
    return decision, next_step


def _decision(finding: Readout, *, rules: Rules, mode: Mode, done: bool, over: bool) -> Decision:
    """Returns the decision of one look; `done`: the last share was held as long as it has to be."""
    broken, measured = "; ".join(finding.broken), finding.result.sentence
    if not finding.is_trusted:
        return Decision(action="no data", reason=f"nothing that the log says is believed: {broken}")
    if broken:
        return Decision(action="reject", reason=f"stopped by {broken}")
    if finding.result.effect is None:
        return Decision(action="no data" if over else "wait", reason=measured)
    goal = f"no worse than the champion by the margin {rules.margin:g}" if rules.refresh else "better"
    proven = finding.result.status.is_proof
    if done and (proven or mode == "both"):
        why = f"proven {goal}" if proven else "live traffic does not object"
        return Decision(action="promote", reason=f"{why}: {measured}")
    if over:
        why = f"not proven {goal}" if done else "the night ended before the last share was held"
        return Decision(action="reject", reason=f"inconclusive: {why}: {measured}", inconclusive=True)
    return Decision(action="wait", reason=f"{'proven' if proven else 'not yet proven'} {goal}: {measured}")


def _compared(
    over: list[Observation],
    scores: list[float | None],
    *,
    rules: Rules,
    window_s: float,
    now: float,
    looks: Looks | None,
    before: Mapping[str, float],
    by: LiveScore,
) -> Conclusion:
    """Returns what the scores prove, the effect on the scale of visits with an outcome; or NO_DATA and why.

    Where looks are planned, that is what was known at the newest of them.
    """
    look = None
    if looks:
        ready, p = [one.time + by.windows * window_s for one in over], _chance(over)
        look = looks.newest(ready, p * (1 - p), now=now, alpha=rules.alpha)
        due = [place for place, time in enumerate(ready) if look and time <= look.time]
        over, scores = [over[place] for place in due], [scores[place] for place in due]
    arm = _arm(over)
    num_ours, num_theirs = int(arm.sum()), int((~arm).sum())
    if min(num_ours, num_theirs) < rules.min_samples:
        sentence = (
            f"{num_ours:,} users of the challenger and {num_theirs:,} of the champion have had "
            f"time for an outcome; gate.min_samples asks for {rules.min_samples:,} of each"
        )
        return Conclusion(status=Status.NO_DATA, sentence=sentence)
    reported = np.array([score is not None for score in scores])
    if min(int(reported[arm].sum()), int(reported[~arm].sum())) < rules.min_samples:
        sentence = (
            f"an outcome was told of {int(reported[arm].sum()):,} of {num_ours:,} users of the challenger "
            f"and of {int(reported[~arm].sum()):,} of {num_theirs:,} of the champion; gate.min_samples "
            f"asks for {rules.min_samples:,} of each, look at the clients that post to /outcomes"
        )
        return Conclusion(status=Status.NO_DATA, sentence=sentence)
    rate = _answered(over, by, window_s=window_s)
    if not by.of_lists:
        over, scores = _labelled(over, scores)
    values = np.array([score or 0.0 for score in scores])
    if rare := too_rare(_arm(over), values, least=rules.min_samples):
        return Conclusion(status=Status.NO_DATA, sentence=rare)
    earlier = [before.get(one.exposures[0].unit, math.nan) for one in over]
    values, foretold = adjusted(values, earlier, _chance(over))
    bound = look.bound if look else None
    plain = effect(_arm(over), _chance(over), values, alpha=rules.alpha, bound=bound)
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


def _answered(over: Sequence[Observation], by: LiveScore, *, window_s: float) -> float:
    """Returns the mean share of a user's visits with an outcome; 1 where nobody is known."""
    return float(np.mean([one.answered(by, window_s=window_s) for one in over])) if over else 1.0


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


def _as_drawn(seen: ObservationLog) -> Conclusion:
    """Returns MISMATCH where users met another arm than they could, or the arms do not fit the chances."""
    if seen.impossible:
        sentence = (
            f"{seen.impossible:,} answers came from an arm that the user could not be in; look at the routers"
        )
        return Conclusion(status=Status.MISMATCH, sentence=sentence)
    return srm.check(seen.treated, seen.chance)


def _labelled(
    over: list[Observation], scores: list[float | None]
) -> tuple[list[Observation], list[float | None]]:
    """Returns those that have a score."""
    known = [place for place, score in enumerate(scores) if score is not None]
    return [over[place] for place in known], [scores[place] for place in known]


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
    if not metric.by.of_lists:
        over, scores = _labelled(over, scores)
    values = np.array([score or 0.0 for score in scores], dtype=np.float64)
    losses, margin = metric.by.losses(values), metric.by.margin(metric.margin * (rate or 1.0))
    alarm = e_process.alarm(_arm(over), _chance(over), losses, margin=margin)
    check = _check(metric.name, alarm, shown=metric.by.in_words(*_two_means(_arm(over), values)))
    if result.status is not Status.WORSE:
        return check
    return replace(check, ok=False, text=f"{check.text}, proven worse: {result.effect}")


def _check(name: str, result: Conclusion, *, shown: str = "") -> Check:
    """Returns a guardrail, broken where the result is WORSE, INVALID or MISMATCH.

    `shown` has the measured values, where the result's sentence lacks them.
    """
    ok = result.status not in (Status.WORSE, Status.INVALID, Status.MISMATCH)
    if not shown:
        return Check(name=name, ok=ok, text=result.sentence)
    return Check(name=name, ok=ok, text=shown if ok else f"{shown}, {result.sentence}")


def _means(text: str, arm: NDArray[np.bool_], values: list[float] | Floats) -> str:
    """Returns the text with the mean of either arm in it."""
    ours, theirs = percents(*_two_means(arm, np.asarray(values, dtype=np.float64)))
    return text.format(ours=ours, theirs=theirs)


def _two_means(arm: NDArray[np.bool_], values: Floats) -> tuple[float, float]:
    """Returns the means of the challenger and the champion; NaN for an arm without users."""
    ours = float(values[arm].mean()) if arm.any() else math.nan
    theirs = float(values[~arm].mean()) if not arm.all() else math.nan
    return ours, theirs


def _arm(over: Sequence[Observation]) -> NDArray[np.bool_]:
    return np.array([one.treated for one in over], dtype=bool)


def _chance(over: Sequence[Observation]) -> Floats:
    return np.array([one.chance for one in over], dtype=np.float64)

"""What does the log of an experiment say of the challenger? Guardrails first, then its effect, then the ramp.

    arms as drawn    answers per arm fit the shares (`ratio`), and no user was in an arm that could not be
    errors           requests that the model did not answer
    personal lists   answers with a list of popular items instead of the user's own
    latency          P99 of the answers at the present share (`quantiles`)
    items shown      distance between the lists of the arms (`shift`)
    score            NDCG@20 lower by more than `gate.margin`, by bets that hold from the first user on; or
                     lower at all, by the effect: what is to be improved must not have deteriorated

All may be asked at any time and as often as one likes; each raises a false alarm in at most one of 1,000
experiments, the effect in `gate.alpha` of them. If the arms were not as drawn, nothing is believed: no data.
Any other broken guardrail rejects.

The effect is `unpaired`'s, of users whose window for outcomes is over. A user of whom nobody told what was
taken scores 0, so that a challenger whom fewer users answer to cannot win by that; divided by the share of
users with an outcome, the effect is on the scale of the scores offline, and the same margin holds. Pure.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.contract.records import Check
from pipeline.experiment.observations import Observation, Seen, Shown
from pipeline.experiment.ramp import Pace, Step, step
from pipeline.statistics import e_process, quantiles, srm
from pipeline.statistics.output_drift import witnessed
from pipeline.statistics.paired import Action, Effect, Judgement, Rules
from pipeline.statistics.unpaired import effect

ARMS, SCORE = "arms as drawn", "score"
Floats = NDArray[np.float64]
Mode = Literal["live", "both"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the challenger may be worse by."""

    errors: float  # share of users whose model did not answer
    fallbacks: float  # share of users without a list of their own
    p99_s: float  # seconds that the P99 may be longer
    shift: float  # total variation distance between the items shown
    margin: float  # of the score


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the log says of an experiment now."""

    effect: Effect | None  # None: too few users, or no outcome
    reason: str  # what is known of the effect, or why nothing is
    checks: tuple[Check, ...]  # the guardrails
    num_ours: int  # users whose arm was left to chance, by arm
    num_theirs: int

    @property
    def broken(self) -> tuple[str, ...]:
        """What is wrong, in words."""
        return tuple(f"{check.name}: {check.text}" for check in self.checks if not check.ok)


def find(
    seen: Seen, *, rules: Rules, limits: Limits, window_s: float, now: float, tuned_at: float
) -> Finding:
    """Guardrails and effect of an experiment; every log has an answer.

    Args:
        seen: the log of the experiment.
        rules: alpha, and how many users of an arm are too few.
        limits: of the guardrails.
        window_s: that outcomes of a user are waited for.
        now: seconds since 1970.
        tuned_at: what `unpaired.effect` is tuned at.
    """
    num_ours, num_theirs = seen.counts()
    over = [one for one in seen.observations if one.time + window_s <= now]
    scores = [one.score(window_s=window_s) for one in over]
    measured, why = _effect(over, scores, rules=rules, tuned_at=tuned_at)
    return Finding(
        effect=measured,
        reason=why,
        checks=(
            *guardrails(seen, limits=limits, window_s=window_s, now=now),
            _score(over, scores, measured, margin=limits.margin),
        ),
        num_ours=num_ours,
        num_theirs=num_theirs,
    )


def guardrails(seen: Seen, *, limits: Limits, window_s: float, now: float) -> tuple[Check, ...]:
    """Returns what became of each guardrail that needs no outcome; arguments as of `find`.

    Each is tested twice, at half of alpha: on every user's first answer, at once, so that a broken model is
    stopped early; and on all answers within a user's window once that is over, so that a model which fails
    from the second answer on is stopped as well. A user is one value, the mean over the answers that count.
    """
    users = list(seen.observations)
    over = [one for one in users if one.time + window_s <= now]
    tests = [(users, _values(users, [one.exposures[:1] for one in users])),
             (over, _values(over, [one.exposures for one in over]))]  # fmt: skip

    def tested(name: str, text: str, margin: float) -> Check:
        alarms = [
            e_process.alarm(
                _arm(of), _chance(of), values[name], margin=margin, alpha=e_process.ALPHA / len(tests)
            )
            for of, values in tests
        ]
        worst = min(alarms, key=lambda alarm: alarm.p_value)
        return _told(name, text, replace(worst, p_value=min(1.0, len(tests) * worst.p_value)), margin=margin)

    return (
        _as_drawn(seen),
        tested(
            "errors",
            "the model did not answer {ours:.2%} of the requests of the challenger's users and {theirs:.2%} "
            "of those of the champion's",
            limits.errors,
        ),
        tested(
            "personal lists",
            "{ours:.2%} of the answers to the challenger's users were no lists of their own, and "
            "{theirs:.2%} of those to the champion's",
            limits.fallbacks,
        ),
        _latency(seen, margin_s=limits.p99_s),
        tested(
            "items shown",
            "{ours:.0%} of the items that the challenger shows, and {theirs:.0%} of those of the champion, "
            "are such as only it prefers",
            limits.shift,
        ),
    )


def _values(users: list[Observation], answers: list[list[Shown]]) -> dict[str, list[float]]:
    """By guardrail, a value in [0, 1] per user, higher is worse, of these answers to them."""
    lists = [[item for one in of for item in one.items] for of in answers]
    return {
        "errors": [float(np.mean([bool(one.error) for one in of])) for of in answers],
        "personal lists": [float(np.mean([one.fallback for one in of])) for of in answers],
        "items shown": [float(value) for value in witnessed(_arm(users), lists)],
    }


def decide(
    finding: Finding, *, rules: Rules, mode: Mode, pace: Pace, share: float, units: int, hours: float,
    over: bool,
) -> tuple[Judgement, Step]:  # fmt: skip
    """What to do with challenger and share now.

    Args:
        finding: what the log says.
        rules: `refresh` asks for no worse than the margin, else better.
        mode: must live traffic prove it, or only not reject it?
        pace: of the ramp.
        share: that the challenger has.
        units: that met it at this share.
        hours: that it has had this share.
        over: has the night come to its end?
    """
    next_step = step(pace, share=share, units=units, hours=hours, broken=finding.broken)
    judged = _judged(finding, rules=rules, mode=mode, done=next_step.action == "done", over=over)
    if judged.action != "wait":
        ended: Literal["stop", "done"] = "stop" if finding.broken else "done"
        return judged, Step(action=ended, share=0.0, reason=judged.reason)
    return judged, next_step


def _judged(finding: Finding, *, rules: Rules, mode: Mode, done: bool, over: bool) -> Judgement:
    measured = finding.effect
    if finding.broken:
        told = "; ".join(finding.broken)
        if told.startswith(ARMS):
            reason = f"nothing that the log says is believed: {told}"
            return Judgement(action="no data", effect=measured, reason=reason)
        return Judgement(action="reject", effect=measured, reason=f"stopped by {told}")
    if measured is None:
        return Judgement(action="no data" if over else "wait", effect=None, reason=finding.reason)
    threshold = -rules.margin if rules.refresh else 0.0
    asked = f"no worse than the champion by the margin {rules.margin:g}" if rules.refresh else "better"
    proven = measured.low > threshold
    action: Action = "wait"
    reason = f"{'proven' if proven else 'not yet proven'} {asked}: {measured}"
    if done and (proven or mode == "both"):
        action = "promote"
        reason = reason if proven else f"live traffic does not object: {measured}"
    elif over:
        action = "reject"
        ended = "the night ended before the last share was held" if not done else f"not proven {asked}"
        reason = f"inconclusive: {ended}: {measured}"
    inconclusive = reason.startswith("inconclusive")
    return Judgement(action=action, effect=measured, reason=reason, inconclusive=inconclusive)


def _effect(
    over: list[Observation], scores: list[float | None], *, rules: Rules, tuned_at: float
) -> tuple[Effect | None, str]:
    """The effect on the scale of scores with an outcome, and what it is or why there is none."""
    arm = _arm(over)
    few = min(int(arm.sum()), int((~arm).sum()))
    if few < rules.min_samples:
        return None, (
            f"{int(arm.sum()):,} users of the challenger and {int((~arm).sum()):,} of the champion have had "
            f"time for an outcome; gate.min_samples asks for {rules.min_samples:,} of each"
        )
    told = np.array([score is not None for score in scores])
    if min(int(told[arm].sum()), int(told[~arm].sum())) < rules.min_samples:
        return None, (
            f"an outcome was told of {int(told[arm].sum()):,} of {int(arm.sum()):,} users of the challenger "
            f"and of {int(told[~arm].sum()):,} of {int((~arm).sum()):,} of the champion; gate.min_samples "
            f"asks for {rules.min_samples:,} of each, look at whoever posts to /outcomes"
        )
    values = np.array([score or 0.0 for score in scores])
    found = effect(arm, _chance(over), values, alpha=rules.alpha, tuned_at=tuned_at)
    rate = float(told.mean())
    on_scale = replace(
        found, mean=found.mean / rate, low=found.low / rate, high=found.high / rate, sd=found.sd / rate
    )
    if not found.sd > 0 or not math.isfinite(on_scale.high - on_scale.low):
        return (
            None,
            f"the scores of {found.num_samples:,} users do not differ, or are too few for an interval",
        )
    return on_scale, str(on_scale)


def _as_drawn(seen: Seen) -> Check:
    """Were users shared out as they should have been, at each chance there was?"""
    if seen.impossible:
        text = (
            f"{seen.impossible:,} answers came from an arm that the user could not be in; look at the routers"
        )
        return Check(name=ARMS, ok=False, text=text)
    arm, chance = seen.treated, seen.chance
    groups = [(p, int(arm[chance == p].sum()), int((chance == p).sum())) for p in np.unique(chance)]
    found = sum(
        float(
            srm.log_evidence(
                [ours, size - ours], [p, 1 - p],
                concentration=srm.concentration(srm.TUNED_AT, alpha=srm.ALPHA),
            )
        )
        for p, ours, size in groups
    )  # fmt: skip
    due = sum(p * size for p, _, size in groups)
    text = f"{int(arm.sum()):,} users met the challenger, {due:,.1f} were due"
    return Check(name=ARMS, ok=math.exp(-max(found, 0.0)) > srm.ALPHA, text=text)


def _latency(seen: Seen, *, margin_s: float) -> Check:
    found = quantiles.guard(
        seen.latencies_s[True], seen.latencies_s[False],
        quantile=0.99, margin=margin_s, alpha=e_process.ALPHA, min_samples=2,
    )  # fmt: skip
    return Check(name="latency", ok=found.action != "reject", text=found.reason)


def _score(
    over: list[Observation], scores: list[float | None], measured: Effect | None, *, margin: float
) -> Check:
    """Is the score lower by more than the margin, as soon as that can be told, or proven lower at all?"""
    lost = [1 - (score or 0.0) for score in scores]
    found = e_process.alarm(_arm(over), _chance(over), lost, margin=margin)
    known = replace(found, ours=1 - found.ours, theirs=1 - found.theirs)
    text = "{ours:.4f} with the challenger and {theirs:.4f} with the champion"
    check = _told(SCORE, text, known, margin=margin)
    if measured is None or measured.high >= 0:
        return check
    return replace(check, ok=False, text=f"{check.text}, proven worse: {measured}")


def _told(name: str, text: str, found: e_process.Alarm, *, margin: float) -> Check:
    told = text.format(ours=found.ours, theirs=found.theirs)
    ending = f", worse by more than {margin:g} (p {found.p_value:.2g})" if found.raised else ""
    return Check(name=name, ok=not found.raised, text=told + ending)


def _arm(over: list[Observation]) -> NDArray[np.bool_]:
    return np.array([one.treated for one in over], dtype=bool)


def _chance(over: list[Observation]) -> Floats:
    return np.array([one.chance for one in over], dtype=np.float64)

"""Reads what a challenger answered in the shadow of the champion, before any user meets it.

Both have answered the same requests, so each user is a pair of values, of the first request that was put to
both:

    errors          requests that the model did not answer, by bets on the pairs (`paired_alarm`)
    personal lists  answers with a list of popular items instead of the user's own, likewise
    latency         P99 of the answers (`quantiles`)

A guardrail that breaks rejects the challenger. How much the answers differ is shown and stops nothing, as a
changed recipe is meant to answer differently. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from daybreak.contract.formats import counted, percent, percents
from daybreak.contract.record_parts import Check
from daybreak.extensions.live_test.guardrails import GuardrailLimits, check
from daybreak.statistics import e_process, quantiles
from daybreak.statistics.result import Conclusion
from daybreak.storage.exposures import ShadowedExposure


@dataclass(frozen=True, kw_only=True)
class Shadowed:
    """What the log says of a challenger in the shadow."""

    checks: tuple[Check, ...]  # none where nothing was put to it
    num_users: int  # whose requests it was asked
    num_dropped: int  # requests that it was not asked, as too many waited

    def waits(self, num_users: int) -> str:
        """Returns in words that so many users are not reached yet; "" once they are."""
        if self.num_users >= num_users:
            return ""
        dropped = f", and {counted(self.num_dropped, 'request')} dropped" if self.num_dropped else ""
        return (
            f"in the shadow {self.num_users:,} of {num_users:,} users were put to the challenger"
            f"{dropped}; nobody is shown its answers yet"
        )


def read(answers: Iterable[ShadowedExposure], *, limits: GuardrailLimits, of_lists: bool) -> Shadowed:
    """Returns guardrails of the answers of an experiment, which come oldest first."""
    first: dict[str, ShadowedExposure] = {}
    num_dropped = 0
    for one in answers:
        num_dropped += one.shadow.dropped
        if not one.shadow.dropped:
            first.setdefault(one.unit, one)
    users = list(first.values())
    if not users:
        return Shadowed(checks=(), num_users=0, num_dropped=num_dropped)
    checks = [
        _paired(
            "shadow errors",
            [(bool(one.shadow.error), bool(one.error)) for one in users],
            "the challenger did not answer {ours} of users in the shadow, and the champion {theirs}",
            margin=limits.errors,
        )
    ]
    if of_lists:
        checks.append(
            _paired(
                "shadow lists",
                [(one.shadow.fallback, one.fallback) for one in users],
                "{ours} of the challenger's answers in the shadow were no lists of the user's own, and "
                "{theirs} of the champion's",
                margin=limits.fallbacks,
            )
        )
    return Shadowed(
        checks=(*checks, check("shadow latency", _latency(users, limits)), _difference(users)),
        num_users=len(users),
        num_dropped=num_dropped,
    )


def _paired(name: str, pairs: list[tuple[bool, bool]], text: str, *, margin: float) -> Check:
    ours, theirs = np.array(pairs, dtype=np.float64).T
    mine, other = percents(float(ours.mean()), float(theirs.mean()))
    result = e_process.paired_alarm(ours, theirs, margin=margin)
    return check(name, result, shown=text.format(ours=mine, theirs=other))


def _latency(users: list[ShadowedExposure], limits: GuardrailLimits) -> Conclusion:
    return quantiles.guard(
        [one.shadow.latency_s for one in users],
        [one.latency_s for one in users],
        quantile=0.99,
        margin=limits.p99_s,
        alpha=e_process.ALPHA,
        min_samples=2,
    )


def _difference(users: list[ShadowedExposure]) -> Check:
    known = [one.shadow.difference for one in users if one.shadow.difference is not None]
    mean = percent(float(np.mean(known))) if known else "an unknown part"
    text = f"answers to {counted(len(known), 'user')} differ by {mean} from the champion's"
    return Check(name="shadow difference", ok=True, text=text)

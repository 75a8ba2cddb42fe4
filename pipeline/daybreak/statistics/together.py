"""Decides by the results of several metrics at once: success metrics, guardrails, deterioration.

Ship only if at least one success metric is better, none of them is worse, and every guardrail is no worse by
more than its margin (Schultzberg, Ankargren & Franberg 2024, as at Spotify). A refresh, the champion's own
recipe on newer data, need not be better, only no worse by the margin. Since one success is enough, alpha is
to be shared among the success metrics (Bonferroni); since all guardrails must hold, each keeps alpha whole
(intersection-union). Pure.
"""

from collections.abc import Mapping
from dataclasses import replace

from daybreak.statistics.result import Conclusion, Status

# In this order, a guardrail of the first status that there is decides.
_FAILED = (Status.NO_DATA, Status.INVALID, Status.WORSE)
_UNPROVEN = (Status.INCONCLUSIVE, Status.OPEN)


def together(
    success: Mapping[str, Conclusion], guardrails: Mapping[str, Conclusion], *, refresh: bool
) -> Conclusion:
    """Returns the result of all metrics together, with the effect of the first success metric.

    Args:
        success: results of the metrics of which one must be better; at least one.
        guardrails: results of the metrics that must be no worse, each by its own margin.
        refresh: whether no worse is enough for the success metrics, too.
    """
    effect = next(iter(success.values())).effect
    won = _succeeded(success, refresh=refresh)
    unproven = won.status in _UNPROVEN  # a person may be asked, but not where a guardrail is broken
    if not won.status.is_proof and not unproven:
        return replace(won, effect=effect)
    for status in _FAILED if unproven else (*_FAILED, *_UNPROVEN):
        for name, one in guardrails.items():
            if one.status is status:
                return replace(one, effect=effect, sentence=f"guardrail {name}: {one.sentence}")
    held = "".join(f"; guardrail {name} holds: {one.effect}" for name, one in guardrails.items())
    return replace(won, effect=effect, sentence=won.sentence if unproven else won.sentence + held)


def _succeeded(results: Mapping[str, Conclusion], *, refresh: bool) -> Conclusion:
    """Returns what the success metrics say together.

    None may be worse; one must be better or, of a refresh, all no worse.
    """
    named = [
        replace(result, sentence=f"{name}: {result.sentence}") if len(results) > 1 else result
        for name, result in results.items()
    ]
    for one in named:
        if one.status in _FAILED:
            return one
    proven = [one for one in named if one.status.is_proof]
    unproven = [one for status in (Status.OPEN, Status.INCONCLUSIVE) for one in named if one.status is status]
    first, then = (unproven, proven) if refresh else (proven, unproven)
    return (first or then)[0]

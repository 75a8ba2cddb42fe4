"""Judges all metrics together: success metrics, guardrails, deterioration.

Ship only if at least one success metric is better, none of them is worse, and every guardrail is no worse by
more than its margin (Schultzberg, Ankargren & Franberg 2024, as at Spotify). A refresh, the champion's own
recipe on newer data, need not be better: its success metrics are held to `rules.margin`. Since one success is
enough, alpha is shared among the success metrics (Bonferroni); since all guardrails must hold, each keeps
alpha whole (intersection-union). What is missing is a result with its reason, never silence. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike, NDArray

from pipeline.statistics.paired import Rules, judge
from pipeline.statistics.result import Result, Status

Pair = tuple[ArrayLike | None, ArrayLike | None]  # challenger and champion; higher is better


def judge_metrics(
    pairs: Mapping[str, Pair],
    *,
    success: Sequence[str],
    guardrails: Mapping[str, float],
    rules: Rules,
    horizon: int | None = None,
    slices: Mapping[str, NDArray[Any]] | None = None,
    against: str = "the champion",
    units: NDArray[Any] | None = None,
) -> Result:
    """Returns what the paired values of all metrics, shape [n] each, prove; the effect is the first's.

    Args:
        pairs: values of both models on the same samples.
        success: metrics of which one must be better; the slices are held against the first.
        guardrails: metrics that must not be worse, and each one's margin in its own unit.
        rules: alpha, the margin of a refresh, how few samples are too few.
        horizon: samples that are coming, as for `judge`.
        slices: boolean masks over the samples.
        against: what the challenger is compared with, in words.
        units: which samples belong together, shape [n]; None: each is its own.
    """
    if not success:
        return _no("no metric is named that may be better; set gate.success")
    if bare := sorted(name for name, margin in guardrails.items() if not margin > 0):
        return _no(f"guardrail {bare[0]} has margin {guardrails[bare[0]]:g}; give it one above 0")
    missing = [name for name in (*success, *guardrails) if name not in pairs]
    if missing:
        return _no(f"metric {missing[0]} is missing; the workload reports: {', '.join(sorted(pairs))}")
    shared = replace(rules, alpha=rules.alpha / len(success))
    results = {
        name: judge(
            *pairs[name],
            rules=shared,
            horizon=horizon,
            slices=None if number else slices,
            against=against,
            units=units,
        )
        for number, name in enumerate(success)
    }
    effect = results[success[0]].effect
    won = _succeeded(results, refresh=rules.refresh)
    if not won.status.is_proof and won.status is not Status.INCONCLUSIVE:
        return replace(won, effect=effect)
    held = {
        name: judge(
            *pairs[name],
            rules=replace(rules, margin=margin, refresh=True, may_lose=False),
            horizon=horizon,
            against=against,
            units=units,
        )
        for name, margin in guardrails.items()
    }
    unproven = won.status is Status.INCONCLUSIVE  # a person may be asked, but not where a guardrail is broken
    for status in _FAILED if unproven else (*_FAILED, *_UNPROVEN):
        for name, one in held.items():
            if one.status is status:
                return replace(one, effect=effect, sentence=f"guardrail {name}: {one.sentence}")
    kept = "".join(f"; guardrail {name} holds: {one.effect}" for name, one in held.items())
    return replace(won, effect=effect, sentence=won.sentence if unproven else won.sentence + kept)


# In this order, a guardrail of the first status that there is decides.
_FAILED = (Status.NO_DATA, Status.INVALID, Status.WORSE)
_UNPROVEN = (Status.INCONCLUSIVE, Status.OPEN)


def _succeeded(results: Mapping[str, Result], *, refresh: bool) -> Result:
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


def _no(sentence: str) -> Result:
    return Result(status=Status.NO_DATA, sentence=sentence)

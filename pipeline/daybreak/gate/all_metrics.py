"""Judges all metrics by the scores of both models on the same samples.

Success metrics and guardrails are named by params.yaml, else by the workload's roles. A missing value is a
result with a reason, never silence.

Ship only if at least one success metric is better, none of them is worse, and every guardrail is no worse by
more than its margin (Schultzberg, Ankargren & Franberg 2024, as at Spotify). A refresh, the champion's own
recipe on newer data, need not be better, only no worse by the margin. Since one success is enough, alpha is
to be shared among the success metrics (Bonferroni); since all guardrails must hold, each keeps alpha whole
(intersection-union). Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike, NDArray

from daybreak.contract.record_parts import Judged
from daybreak.contract.record_types import Evaluation
from daybreak.contract.sections import GateParams
from daybreak.evaluation.scores import Columns, with_prefix
from daybreak.statistics.paired import Rules, judge
from daybreak.statistics.result import Conclusion, Status

LEAST_MARGIN = 1e-9  # of a champion whose value is zero
Pair = tuple[ArrayLike | None, ArrayLike | None]  # challenger and champion; higher is better


def pairs_of(scores: Columns, ours: str = "challenger", theirs: str = "champion") -> dict[str, Pair]:
    """Returns values of two arms of scores.npy by metric; `-NAME` is NAME where lower is better."""
    of = [with_prefix(scores, "metric" if arm == "challenger" else arm) for arm in (ours, theirs)]
    pairs: dict[str, Pair] = {"score": (scores.get(ours), scores.get(theirs))}
    for name, values in of[0].items():
        if name in of[1]:
            pairs |= {name: (values, of[1][name]), f"-{name}": (-values, -of[1][name])}
    return pairs


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
) -> Conclusion:
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
    return together(results, held, refresh=rules.refresh)


def _no(sentence: str) -> Conclusion:
    return Conclusion(status=Status.NO_DATA, sentence=sentence)


def success_of(params: GateParams, evaluation: Evaluation) -> tuple[str, ...]:
    """Returns the success metrics, of which one must improve: from params.yaml, else from the workload."""
    if params.success != ("score",) or not evaluation.judged:
        return params.success
    others = [one for one in evaluation.judged[1:] if one.role == "success"]
    return ("score", *(_signed(one) for one in others))


def guardrails_of(params: GateParams, evaluation: Evaluation) -> dict[str, float]:
    """Returns the metrics that must hold, and what each may be worse by; params.yaml comes first."""
    own = {
        _signed(one): one.margin * abs(evaluation.metrics.get(f"champion/{one.name}", 1.0)) or LEAST_MARGIN
        for one in evaluation.judged
        if one.role == "guardrail"
    }
    return own | params.guardrails


def _signed(metric: Judged) -> str:
    return metric.name if metric.higher_is_better else f"-{metric.name}"


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

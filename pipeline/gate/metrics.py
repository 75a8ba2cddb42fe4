"""Do all metrics together allow the challenger to serve? Success metrics, guardrails, deterioration.

Ship only if at least one success metric is better, none of them is worse, and every guardrail is no worse by
more than its margin (Schultzberg, Ankargren & Franberg 2024, as at Spotify). A refresh, the champion's own
recipe on newer data, need not be better: its success metrics are held to `rules.margin`. Since one success is
enough, alpha is shared among the success metrics (Bonferroni); since all guardrails must hold, each keeps
alpha whole (intersection-union). What is missing is a verdict with its reason, never silence. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike, NDArray

from pipeline.statistics.paired import Action, Judgement, Rules, judge

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
) -> Judgement:
    """Judge the paired values of all metrics, shape [n] each; the effect is that of the first success.

    Args:
        pairs: values of both models on the same samples.
        success: metrics of which one must be better; the slices are held against the first.
        guardrails: metrics that must not be worse, and each one's margin in its own unit.
        rules: alpha, the margin of a refresh, how few samples are too few.
        horizon: samples that are coming, as for `judge`.
        slices: boolean masks over the samples.
        against: what the challenger is compared with, in words.
    """
    if not success:
        return _no("no metric is named that may be better; set gate.success")
    if bare := sorted(name for name, margin in guardrails.items() if not margin > 0):
        return _no(f"guardrail {bare[0]} has margin {guardrails[bare[0]]:g}; give it one above 0")
    missing = [name for name in (*success, *guardrails) if name not in pairs]
    if missing:
        return _no(f"metric {missing[0]} is missing; the workload reports: {', '.join(sorted(pairs))}")
    shared = replace(rules, alpha=rules.alpha / len(success))
    found = {
        name: judge(
            *pairs[name], rules=shared, horizon=horizon, slices=None if number else slices, against=against
        )
        for number, name in enumerate(success)
    }
    main = found[success[0]]
    won = _succeeded(found, refresh=rules.refresh)
    if won.action != "promote" and not won.inconclusive:
        return replace(won, effect=main.effect)
    held = {
        name: judge(
            *pairs[name],
            rules=replace(rules, margin=margin, refresh=True),
            horizon=horizon,
            against=against,
        )
        for name, margin in guardrails.items()
    }
    if won.inconclusive:  # a person may be asked, but not where a guardrail is broken
        held = {name: one for name, one in held.items() if _failed(one)}
    for action in _IN_ORDER:
        for name, one in held.items():
            if one.action == action:
                return replace(one, effect=main.effect, reason=f"guardrail {name}: {one.reason}")
    kept = "".join(f"; guardrail {name} holds: {one.effect}" for name, one in held.items())
    proven = replace(main, action="promote", reason=won.reason + kept)
    return replace(won, effect=main.effect) if won.inconclusive else proven


_IN_ORDER: tuple[Action, ...] = ("no data", "reject", "wait")  # what the first of them says, all say


def _succeeded(found: Mapping[str, Judgement], *, refresh: bool) -> Judgement:
    """What the success metrics say together: one better, none worse; all no worse where it is a refresh."""
    told = [replace(j, reason=f"{name}: {j.reason}") if len(found) > 1 else j for name, j in found.items()]
    for one in told:
        if _failed(one):
            return one
    promoted = [one for one in told if one.action == "promote"]
    undecided = [one for one in told if one.action == "wait"] or [one for one in told if one.inconclusive]
    first, then = (undecided, promoted) if refresh else (promoted, undecided)
    return (first or then)[0]


def _failed(one: Judgement) -> bool:
    return one.action == "no data" or (one.action == "reject" and not one.inconclusive)


def _no(reason: str) -> Judgement:
    return Judgement(action="no data", effect=None, reason=reason)

"""Tries the gate on tonight's own scores, changed so that the answer is known.

    swapped     the arms exchanged: the same effect with the other sign, and not both better
    permuted    arms exchanged sample by sample at random, at the edge of what is allowed: promoted in no
                more than alpha of the tries, as far as chance allows
    dropped     a metric left out, not finite, or of too few samples: not promoted
    worse       a challenger, a guardrail or a slice that is far worse: not promoted
    better      one that is far better: promoted, so the gate is not just silent

The gate's verdict is believed only where all hold. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from daybreak.contract.record_parts import Check
from daybreak.gate.all_metrics import Pair, judge_metrics
from daybreak.statistics.paired import Rules
from daybreak.statistics.result import Conclusion, Effect

NUM_TRIES = 60
CHANCE = 1e-5  # that a sound gate fails a night's self-test
Arrays = dict[str, tuple[NDArray[Any], NDArray[Any]]]


def selftest(
    *,
    pairs: Mapping[str, Pair],
    success: Sequence[str],
    guardrails: Mapping[str, float],
    rules: Rules,
    slices: Mapping[str, NDArray[Any]] | None = None,
    against: str = "the champion",
    units: NDArray[Any] | None = None,
    judged: Callable[..., Conclusion] = judge_metrics,
) -> tuple[Check, ...]:
    """Returns a check for each trial, on values that the gate has just judged; `judged` is the gate."""
    names = (*success, *guardrails)
    values: Arrays = {
        name: (np.asarray(pairs[name][0], dtype=float), np.asarray(pairs[name][1], dtype=float))
        for name in names
    }
    fine = _lifted(values, {**dict.fromkeys(success, rules.margin), **guardrails})
    plain = replace(rules, resamples=0)  # the bootstrap only ever makes the gate more cautious

    def ask(values: Mapping[str, Pair], *, refresh: bool = rules.refresh, sliced: bool = True) -> Conclusion:
        size = len(np.asarray(next(iter(values.values()))[1])) if values else 0
        return judged(
            values,
            success=success,
            guardrails=guardrails,
            rules=replace(plain, refresh=refresh),
            slices=slices if sliced else None,
            against=against,
            units=None if units is None else units[:size],
        )

    return (
        _swapped(values, ask),
        _permuted(values, fine, ask, success=success, rules=rules, units=units),
        _dropped(fine, ask, min_samples=rules.min_samples),
        _worse(fine, ask, guardrails=guardrails, slices=slices or {}, min_samples=rules.min_samples),
        _better(fine, ask),
    )


def _swapped(values: Arrays, ask: Callable[..., Conclusion]) -> Check:
    ours = ask(values, refresh=False)
    theirs = ask({name: (b, a) for name, (a, b) in values.items()}, refresh=False)
    if ours.status.is_proof and theirs.status.is_proof:
        return Check(name="arms swapped", ok=False, text="each is found better than the other")
    one, other = ours.effect, theirs.effect
    if one is None or other is None:
        return Check(name="arms swapped", ok=False, text="there is no effect any more")
    ok = bool(np.allclose(_ends(one), [-end for end in reversed(_ends(other))], equal_nan=True))
    text = f"{one.mean:+.4g} became {other.mean:+.4g}"
    return Check(name="arms swapped", ok=ok, text=text)


def _permuted(
    values: Arrays,
    fine: Arrays,
    ask: Callable[..., Conclusion],
    *,
    success: Sequence[str],
    rules: Rules,
    units: NDArray[Any] | None,
) -> Check:
    """Counts the promotions with permuted labels at the edge, where the challenger is just not good enough.

    So each of them is false. Samples of one unit change sides together.
    """
    rng = np.random.default_rng(0)
    edge = rules.margin if rules.refresh else 0.0
    size = len(next(iter(values.values()))[0])
    place = np.arange(size) if units is None else np.unique(units, return_inverse=True)[1]
    promoted = 0
    for number in range(NUM_TRIES):
        signs = rng.choice((-1.0, 1.0), size)[place]
        tried = dict(fine)
        for name in success:
            ours, theirs = values[name]
            apart = ours - theirs - (ours - theirs).mean()
            spread = float(apart.std())
            if number % 2 and edge and spread:  # so wide that worse by the margin is not proven worse
                apart *= edge * np.sqrt(size) / spread
            tried[name] = (theirs + signs * apart - edge, theirs)
        promoted += ask(tried, sliced=False).status.is_proof
    most = int(stats.binom.isf(CHANCE, NUM_TRIES, rules.alpha))
    text = f"{promoted} of {NUM_TRIES} promoted, {most} may be by chance"
    return Check(name="labels permuted", ok=promoted <= most, text=text)


def _dropped(fine: Arrays, ask: Callable[..., Conclusion], *, min_samples: int) -> Check:
    few = max(min_samples - 1, 0)
    for name, (ours, theirs) in fine.items():
        gone: dict[str, dict[str, Pair]] = {
            "is missing": {other: pair for other, pair in fine.items() if other != name},
            "has no values": {**fine, name: (None, theirs)},
            "has a value that is not finite": {**fine, name: (_spoilt(ours), theirs)},
        }
        for how, changed in gone.items():
            if ask(changed).status.is_proof:
                return Check(name="metric dropped", ok=False, text=f"promoted where {name} {how}")
    cut: dict[str, Pair] = {name: (ours[:few], theirs[:few]) for name, (ours, theirs) in fine.items()}
    if ask(cut, sliced=False).status.is_proof:
        return Check(name="metric dropped", ok=False, text=f"promoted on {few} samples")
    return Check(name="metric dropped", ok=True, text="not promoted")


def _worse(
    fine: Arrays,
    ask: Callable[..., Conclusion],
    *,
    guardrails: Mapping[str, float],
    slices: Mapping[str, NDArray[Any]],
    min_samples: int,
) -> Check:
    for where, changed in _spoils(fine, guardrails=guardrails, slices=slices, min_samples=min_samples):
        if ask(changed).status.is_proof:
            return Check(name="made worse", ok=False, text=f"promoted though far worse {where}")
    return Check(name="made worse", ok=True, text="not promoted")


def _spoils(
    fine: Arrays,
    *,
    guardrails: Mapping[str, float],
    slices: Mapping[str, NDArray[Any]],
    min_samples: int,
) -> Iterator[tuple[str, Arrays]]:
    """Challengers that are far better but for one thing, and what that is."""
    yield "in everything", {name: (2 * theirs - ours, theirs) for name, (ours, theirs) in fine.items()}
    for name in guardrails:
        ours, theirs = fine[name]
        yield f"in {name}", {**fine, name: (2 * theirs - ours, theirs)}
    first = next(iter(fine))
    ours, theirs = fine[first]
    for name, mask in slices.items():
        within = np.asarray(mask, dtype=bool)
        if min_samples <= within.sum() <= within.size / 2:
            lowered = np.where(within, 2 * theirs - ours, ours)
            yield f"on slice {name}", {**fine, first: (lowered, theirs)}


def _better(fine: Arrays, ask: Callable[..., Conclusion]) -> Check:
    result = ask(fine)
    text = "promoted" if result.status.is_proof else f"not promoted: {result.sentence}"
    return Check(name="made better", ok=result.status.is_proof, text=text)


def _lifted(values: Arrays, margins: Mapping[str, float]) -> Arrays:
    """Returns every metric far better on every sample.

    That is by ten standard deviations, or by ten where there is none; and by ten margins, since two models
    may be so alike that ten standard deviations are less than what a refresh may lose.
    """
    lifted = {}
    for name, (ours, theirs) in values.items():
        apart = ours - theirs
        spread = float(apart.std()) or 1.0
        lifted[name] = (theirs + (apart - apart.mean()) + 10 * max(spread, margins[name]), theirs)
    return lifted


def _spoilt(values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([[np.nan], values[1:]])


def _ends(effect: Effect) -> list[float]:
    return [effect.low, effect.mean, effect.high]

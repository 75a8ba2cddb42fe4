"""Holds a chain of refreshes against an anchor, so that small losses do not add up unseen.

A refresh may be worse than the champion by no more than the margin. That bounds one step, not the sum of
many: a warm start that loses a little each night, or data that rots, passes every night. So each night also
scores an anchor, the last version that was proven better than its champion (or the first), on the same
samples. The challenger's difference from the anchor, averaged over as many of the chain's newest nights as
give an error of half a margin (daybreak/statistics/level.py), has to stay above minus the margin at the lower
end of its interval: all nights of a year hold at once but for `gate.alpha` (Bonferroni). While there are too
few nights for that precision, up to three quarters of the margin are kept back. Where even `NIGHTS` nights
would be too few, small losses may add up unseen, and the verdict says which margin could be guarded. A chain
that fails this test has spent the margin, and its refresh does not serve. The next training then begins cold,
or the anchor serves again, by `gate.when_spent`.

An anchor grows old, and is less and less what one would train. After `MOST_DAYS` the next night trains cold,
on all samples; once that version serves, it is the anchor, and what the chain has lost by then stays lost to
the budget (`offset`). So it does where a changed recipe, proven better, becomes the anchor. A refresh never
does otherwise: the luck of one night would hide what its chain has lost.

What warm starts lose while the anchor itself ages shows beside neither, only beside a cold training. So one
follows `FIRST_DAYS` after the last, and later ones after the days in which warm starts may lose half of the
margin (`warm_days`), by what earlier cold trainings gained over the champion (least squares through 0).
Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from math import ceil, floor, log10, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daybreak.contract.formats import counted, decimals
from daybreak.contract.record_parts import Chain, Difference
from daybreak.contract.record_types import Anchor, Champion, Night, Release, Verdict
from daybreak.statistics.control_chart import Mean
from daybreak.statistics.level import Level, level, nights_to_show
from daybreak.statistics.paired import per_unit
from daybreak.storage.ledger import Entry

MOST_DAYS = 28  # of an anchor, and between cold trainings
FIRST_DAYS = 7  # between cold trainings, as long as it is not known what warm starts lose
QUANTILE = 1.64  # of a normal distribution, one-sided 95 %
NIGHTS = 28  # of a chain, that are looked back on
KEPT = 0.75  # of the margin, at most, for what few nights leave open
NIGHTS_PER_YEAR = 365


def anchor_of(champion: Release, made: Entry | None, *, day: date) -> Anchor:
    """Returns the anchor of the chain that the champion belongs to.

    Args:
        champion: what serves.
        made: the entry of the ledger of the night that promoted it; None where there is none.
        day: tonight's, for a champion that no night made.
    """
    chain = _chain(made) if made else None
    if chain is None or chain.renewed is not None:
        since = made.night.day if made else day
        return Anchor(release=_release(champion), since=since, offset=chain.renewed or 0.0 if chain else 0.0)
    before = made.champion.anchor if made and made.champion else None
    return before or Anchor(release=_release(champion), since=day)


def why_cold(champion: Champion | None, past: Sequence[Entry], *, day: date, when_spent: str) -> str:
    """Returns why tonight's training has to begin cold, on all samples; "" if it need not.

    `past` are the entries of the ledger of a year, newest first.
    """
    if champion is None or champion.anchor is None:
        return ""
    anchor = champion.anchor
    chains = ((one, _chain(one)) for one in past)  # a night of another recipe says nothing of the chain
    last = next((one for one, chain in chains if one.rollback or (chain and chain.challenger)), None)
    chain = _chain(last) if last and not last.rollback else None
    if when_spent == "cold" and chain and chain.spent:
        return f"the refreshes since version {anchor.release.version} have spent the margin"
    age, tried = (day - anchor.since).days, next((one.night.day for one in past if one.night.cold), date.min)
    if age >= MOST_DAYS and (day - tried).days >= FIRST_DAYS:
        return f"version {anchor.release.version}, the anchor, is {age} days old"
    loss = _warm_loss(past)
    served = loss is None or loss.mean + QUANTILE * loss.error > 0  # else cold trainings are the worse ones
    cold = (one.night.day for one in past if _is_cold(one) and (one.promoted or not served))
    warm = (day - next(cold, anchor.since)).days
    if warm < (warm_days(loss, chain.margin) if loss and chain else FIRST_DAYS):
        return ""
    days = counted(warm, "day")
    return f"no training that served began cold for {days}, in which warm starts may lose half of the margin"


def warm_days(loss: Difference, margin: float) -> int:
    """Returns the days after a cold training in which warm starts may lose half of the margin.

    A daily loss of more than `QUANTILE` errors counts as it is, otherwise the upper end of its interval does,
    and then never for fewer than `FIRST_DAYS`.

    >>> warm_days(Difference(mean=0.001, error=0.0001), margin=0.01)
    5
    >>> warm_days(Difference(mean=0.001, error=0.001), margin=0.01)
    7
    """
    shown = loss.mean > QUANTILE * loss.error
    a_day = loss.mean if shown else loss.mean + QUANTILE * loss.error
    days = floor(margin / 2 / max(a_day, margin / 2 / MOST_DAYS))
    return min(MOST_DAYS, max(days, 1 if shown else FIRST_DAYS))


def _warm_loss(past: Sequence[Entry]) -> Difference | None:
    """Returns what warm starts lose a day, by what cold trainings gained over the champion; None: none did.

    A cold training that gains g over a champion whose chain has been warm for n days shows a loss of g / n.
    """
    gained = weight = 0.0
    for number, entry in enumerate(past):
        step = chain.step if (chain := _chain(entry)) and chain.challenger else None
        before = next((one for one in past[number + 1 :] if _is_cold(one) and one.promoted), None)
        if step and step.error and before and _is_cold(entry):
            days = (entry.night.day - before.night.day).days
            gained += days * step.mean / step.error**2
            weight += days**2 / step.error**2
    return Difference(mean=gained / weight, error=1 / sqrt(weight)) if weight else None


def _is_cold(entry: Entry) -> bool:
    """Returns whether the night's training began with new weights, as far as is known."""
    return bool(entry.training and not entry.training.warm)


def chain_of(
    scores: Mapping[str, NDArray[Any]],
    champion: Champion | None,
    past: Sequence[Entry],
    *,
    night: Night,
    refresh: bool,
    margin: float,
    alpha: float,
    units: NDArray[Any] | None = None,
) -> Chain | None:
    """Returns where the chain stands with tonight's challenger; None where there is no anchor yet.

    Args:
        scores: the columns of tonight's scores.npy, shape [n] each; of the anchor too, where it was scored.
        champion: that served when the night was opened.
        past: the newest entries of the ledger, newest first.
        night: tonight's.
        refresh: whether the challenger is of the champion's recipe.
        margin: what the chain may lose, in units of the score.
        alpha: share of years in which a chain may lose more.
        units: which samples belong together, shape [n].
    """
    if champion is None or champion.anchor is None:
        return None
    anchor = champion.anchor
    ours, theirs = scores.get("challenger"), scores.get("champion")
    reference = theirs if anchor.release.version == champion.version else scores.get("anchor")
    tonight = difference_of(ours, reference, units) if refresh else None
    step = difference_of(ours, theirs, units)
    chain = Chain(
        anchor=anchor.release.version,
        since=anchor.since,
        offset=anchor.offset,
        margin=margin,
        step=step,
        challenger=tonight,
        champion=difference_of(theirs, scores.get("anchor"), units),
        predecessor=difference_of(theirs, scores.get("predecessor"), units),
        nights_to_show=nights_until_shown(margin, step, alpha=alpha) if step else None,
    )
    if refresh and tonight is None:
        return chain
    nights = [one for one in (tonight, *_since(past, chain)) if one][:NIGHTS]
    if not nights:
        return chain
    series = [Mean(value=one.mean + anchor.offset, error=one.error) for one in nights]
    now = level(series, alpha=alpha / NIGHTS_PER_YEAR, half_width=margin / 2)
    chain = replace(chain, level=now.mean, half_width=now.half_width, num_nights=now.num_nights)
    if tonight is None:  # of another recipe, which serves only if it is proven better
        return chain
    unseen = 2 * now.half_width * sqrt(now.num_nights / NIGHTS)  # after as many nights as are looked back on
    aged = bool(night.cold) and (night.day - anchor.since).days >= MOST_DAYS
    spent = is_spent(now, margin)
    return replace(
        chain,
        spent=spent,
        least_margin=unseen if now.half_width > margin / 2 and unseen > margin else None,
        renewed=min(now.mean, 0.0) if aged and not spent else None,
    )


def nights_until_shown(margin: float, compared: Difference, *, alpha: float) -> int:
    """Returns after how many nights like the one that compared two versions a loss of the margin shows."""
    return nights_to_show(margin, error=compared.error, alpha=alpha / NIGHTS_PER_YEAR)


def is_spent(now: Level, margin: float) -> bool:
    """Returns whether a chain that stands there has spent the margin."""
    return now.mean < -(margin - min(now.half_width, KEPT * margin))


def apply_chain(verdict: Verdict, chain: Chain | None, *, changed: bool) -> Verdict:
    """Returns the verdict with the chain in it, or a rejection where it would promote a chain that is spent.

    Args:
        verdict: on tonight's version.
        chain: where it stands with tonight's version; None before the first champion.
        changed: whether the version is of a changed recipe, which is proven better over nights, or by users.
            It is the next anchor then, and what the chain had lost more than it gains stays lost.
    """
    if chain is None:
        return verdict
    effect = verdict.effect
    if changed and verdict.action == "promote" and effect and effect.is_proven:
        lost = chain.offset if chain.level is None else chain.level
        gained = effect.mean if verdict.live is None else 0.0  # users' outcomes have another unit
        chain = replace(chain, renewed=min(lost + gained, 0.0))
    verdict = replace(verdict, chain=chain)
    if chain.least_margin and not chain.spent:
        verdict = replace(verdict, reason=f"{verdict.reason}; {unguarded(chain)}")
    if verdict.action != "promote" or not chain.spent:
        return verdict
    reason = f"{sentence(chain)}, which spends it; it would have been promoted: {verdict.reason}"
    return replace(verdict, action="reject", reason=reason)


def unguarded(chain: Chain) -> str:
    """Returns that small losses may add up unseen, and what would prevent it, as a sentence."""
    assert chain.least_margin
    digit = 10.0 ** (floor(log10(chain.least_margin)) - 1)
    least = ceil(chain.least_margin / digit) * digit
    more = ceil(10 * (chain.least_margin / chain.margin) ** 2) / 10
    return (
        f"losses of many refreshes may add up to more than the margin {chain.margin:g} unseen, since "
        f"{NIGHTS} nights like these need a margin of {least:g}; raise gate.margin "
        f"to that, or hold out {more:g} times as many samples, or more where nights differ"
    )


def sentence(chain: Chain) -> str:
    """Returns where the chain stands, in words; "" where the anchor was not scored."""
    if chain.level is None or chain.half_width is None:
        return ""
    nights = counted(chain.num_nights, "night")
    level, half_width = decimals(chain.level, signed=True)[0], decimals(chain.half_width)[0]
    stands = f"{level} (give or take {half_width}, {nights})"
    return f"the chain since version {chain.anchor} stands at {stands} of the margin {chain.margin:g}"


def _chain(entry: Entry) -> Chain | None:
    return entry.verdict.chain if entry.verdict else None


def _since(past: Sequence[Entry], chain: Chain) -> Iterator[Difference]:
    """Yields the differences of the chain's versions that served, newest first."""
    for entry in past:
        before = _chain(entry)
        if entry.rollback or (before and (before.anchor != chain.anchor or before.spent)):
            return
        if before and before.challenger and entry.promoted:
            yield before.challenger


def difference_of(
    ours: ArrayLike | None, theirs: ArrayLike | None, units: NDArray[Any] | None
) -> Difference | None:
    """Returns the mean difference of scores, shape [n], and its standard error; None where one is missing."""
    if ours is None or theirs is None or np.shape(ours) != np.shape(theirs):
        return None
    values = per_unit(np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float), units)
    if values.size < 2 or not np.isfinite(values).all():
        return None
    return Difference(mean=float(values.mean()), error=float(values.std(ddof=1)) / sqrt(values.size))


def _release(champion: Release) -> Release:
    return Release(**{name: getattr(champion, name) for name in Release.__dataclass_fields__})

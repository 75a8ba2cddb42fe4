"""Holds a chain of refreshes against an anchor, so that small losses do not add up unseen.

A refresh may be worse than the champion by no more than the margin. That bounds one step, not the sum of
many: a warm start that loses a little each night, or data that rots, passes every night. So each night also
scores an anchor, the last version of a changed recipe that was proven better (or the first), on the same
samples. The challenger's difference from the anchor, averaged over as many of the newest nights as give an
error of half a margin (daybreak/statistics/level.py), has to stay above minus the margin at the lower end of
its interval: all nights of a year hold at once but for `gate.alpha` (Bonferroni). Where nights hold out
several days, each day counts in the first night that scores it, since nights that share a day share its luck:
such nights amount to no more evidence than those of one day each. Challengers count whether
they served or not, as those that served are the lucky ones; only one that was proven worse is a training
that went wrong. While there are too few nights for that precision, half of the margin is kept back
instead. Where even `NIGHTS` nights would be too few, small losses may add up unseen, and the verdict says
which margin could be guarded. A chain that fails this test has spent the margin, and its refresh does not
serve, unless it is proven better than the champion. The next training then begins cold, or the anchor serves
again, by `gate.when_spent`.

An anchor grows old, and is less and less what one would train. After `MOST_DAYS` the next night trains cold
(cold_start.py); once that version serves, and the level of the chain is known to half a margin, it is the
anchor, and what the chain has lost by then stays lost to the budget (`offset`). So it does where a changed
recipe becomes the anchor. A refresh never does otherwise: the luck of one night would hide what its chain
has lost. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from itertools import takewhile
from math import ceil, floor, log10, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daybreak.contract.formats import counted, decimals
from daybreak.contract.record_parts import Chain, Difference
from daybreak.contract.record_types import Anchor, Champion, Evaluation, Night, Release, Verdict
from daybreak.contract.workload import UNIT
from daybreak.evaluation.scores import Columns, of_days_after
from daybreak.statistics.control_chart import Mean
from daybreak.statistics.level import Level, level, nights_to_show
from daybreak.statistics.paired import per_unit
from daybreak.storage.branch import Commit
from daybreak.storage.ledger import Entry

MOST_DAYS = 28  # of an anchor
NIGHTS = 28  # of a chain, that are looked back on
NIGHTS_PER_YEAR = 365
LOOKED_AT = 2 * NIGHTS  # commits of the ledger, of which some are of nights that judged nothing


def of_a_year(newest_first: Sequence[Commit], day: date) -> Sequence[Commit]:
    """Returns the commits of the year up to a day, or those of as many nights as days, if these are more."""
    since = datetime.combine(day, time(tzinfo=UTC)) - timedelta(days=NIGHTS_PER_YEAR + 1)
    num = sum(1 for _ in takewhile(lambda commit: commit.time >= since.timestamp(), newest_first))
    return newest_first[: max(num, NIGHTS_PER_YEAR + LOOKED_AT)]


def anchor_of(champion: Release, made: Entry | None, *, day: date) -> Anchor:
    """Returns the anchor of the chain that the champion belongs to.

    Args:
        champion: what serves.
        made: the entry of the ledger of the night that promoted it; None where there is none.
        day: tonight's, for a champion that no night made.
    """
    chain = made.chain if made else None
    if chain is None or chain.renewed is not None:
        since = made.night.day if made else day
        return Anchor(release=_release(champion), since=since, offset=chain.renewed or 0.0 if chain else 0.0)
    before = made.champion.anchor if made and made.champion else None
    return before or Anchor(release=_release(champion), since=day)


def chain_of(
    scores: Columns,
    champion: Champion | None,
    past: Sequence[Entry],
    *,
    night: Night,
    refresh: bool,
    margin: float,
    alpha: float,
    evaluation: Evaluation | None = None,
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
        evaluation: of these scores, which says of which days they are; None: of days of their own.
    """
    if champion is None or champion.anchor is None:
        return None
    anchor = champion.anchor
    reference = "champion" if anchor.release.version == champion.version else "anchor"
    compare = partial(_compared, scores, evaluation)
    before = list(_since(past, anchor.release.version))
    seen = max(before[0].days, default=None) if before else None
    tonight = compare("challenger", reference, seen=seen) if refresh else None
    step = compare("challenger", "champion", seen=None)
    num_days, num_new = _num_days(evaluation, past)
    chain = Chain(
        anchor=anchor.release.version,
        since=anchor.since,
        offset=anchor.offset,
        margin=margin,
        step=step,
        challenger=tonight,
        champion=compare("champion", "anchor", seen=_seen(past, champion, "champion")),
        predecessor=compare("champion", "predecessor", seen=_seen(past, champion, "predecessor")),
        nights_to_show=nights_to_show(
            margin, error=step.error * sqrt(num_days / num_new), alpha=alpha / NIGHTS_PER_YEAR
        )
        if step
        else None,
    )
    if refresh and tonight is None:
        return chain
    nights = [one for one in (tonight, *before) if one and one.counts][:NIGHTS]
    if not nights:
        return chain
    series = [Mean(value=one.mean + anchor.offset, error=one.error) for one in nights]
    now = level(series, alpha=alpha / NIGHTS_PER_YEAR, half_width=margin / 2)
    chain = replace(chain, level=now.mean, half_width=now.half_width, num_nights=now.num_nights)
    if tonight is None:  # of another recipe, which serves only if it is proven better
        return chain
    # Nights as large as tonight's part that counts; whole nights where samples cannot be told apart by day.
    by_day = evaluation is not None and bool(evaluation.num_by_day)
    num_averaged = sum(len(one.days or (night.day,)) for one in nights[: now.num_nights]) / num_new
    averaged = num_averaged if by_day else now.num_nights
    unseen = 2 * now.half_width * sqrt(averaged / NIGHTS)  # after all that are looked back on
    aged = bool(night.cold) and (night.day - anchor.since).days >= MOST_DAYS
    spent, is_known = is_spent(now, margin), now.half_width <= margin / 2
    unguarded = not is_known and unseen > margin
    return replace(
        chain,
        spent=spent,
        least_margin=unseen if unguarded else None,
        renewed=min(now.mean, 0.0) if aged and not spent and (is_known or unguarded) else None,
    )


def is_spent(now: Level, margin: float) -> bool:
    """Returns whether a chain that stands there has spent the margin."""
    return now.mean < -(margin - min(now.half_width, margin / 2))


def apply_chain(verdict: Verdict, chain: Chain | None, *, gain: float | None = None) -> Verdict:
    """Returns the verdict with the chain in it, or a rejection where it would promote a chain that is spent.

    Args:
        verdict: on tonight's version.
        chain: where it stands with tonight's version; None before the first champion.
        gain: of a changed recipe that is proven better over nights, or by users, in units of the score, as
            far as it is known in them. Its version is the next anchor, and what the chain has lost beyond
            the gain stays lost. None: a refresh, or nothing is proven.
    """
    if chain is None:
        return verdict
    if gain is not None:
        tonight = chain.champion.mean + chain.offset if chain.champion else chain.offset
        chain = replace(chain, renewed=min((tonight if chain.level is None else chain.level) + gain, 0.0))
    verdict = replace(verdict, chain=chain)
    if chain.least_margin and not chain.spent:
        verdict = replace(verdict, reason=f"{verdict.reason}; {unguarded(chain)}")
    if verdict.action != "promote" or not chain.spent:
        return verdict
    if verdict.effect and verdict.effect.is_proven:
        return replace(verdict, reason=f"{verdict.reason}; {sentence(chain)}, which is spent")
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


def _since(past: Sequence[Entry], anchor: int) -> Iterator[Difference]:
    """Yields the differences of challengers from this anchor that count, newest first.

    What a warm start had spent says nothing of the cold training that follows; cold ones tell of each other.
    """
    for entry in past:
        before = entry.chain
        if entry.rollback or (before and before.anchor != anchor):
            return
        if before is None or before.challenger is None or entry.verdict is None:
            continue
        if before.spent and not entry.is_cold:
            return
        if before.challenger.counts and (entry.promoted or entry.verdict.inconclusive or before.spent):
            yield before.challenger


def _seen(past: Sequence[Entry], champion: Champion, name: str) -> date | None:
    """Returns the newest day that counts in the champion's differences of that name; None: there is none.

    The day that promoted it counts in `step`, unless a refit has served since, which was not judged there.
    """
    for entry in past:
        if entry.rollback:
            return None
        of_it = entry.verdict is not None and entry.verdict.champion == champion.version
        one: Difference | None = getattr(entry.chain, name) if of_it and entry.chain else None
        if one and one.days:
            return max(one.days)
        if entry.release is not None:
            judged = entry.evaluation if not entry.refitted else None
            return max(judged.days, default=None) if judged else None
    return None


def _num_days(evaluation: Evaluation | None, past: Sequence[Entry]) -> tuple[int, int]:
    """Returns the number of tonight's held-out days, and of those that no earlier night had; 1 at least."""
    days = evaluation.days if evaluation else ()
    before = [max(one.evaluation.days) for one in past if one.evaluation and one.evaluation.days]
    newest = max(before, default=None)
    return max(len(days), 1), max(sum(day > newest for day in days) if newest else 1, 1)


def _compared(
    scores: Columns, evaluation: Evaluation | None, ours: str, theirs: str, *, seen: date | None
) -> Difference | None:
    """Returns the difference of two columns on days after `seen`; on all days, none counting, without any."""
    whole = difference_of(scores.get(ours), scores.get(theirs), scores.get(UNIT))
    if whole is None or evaluation is None or not evaluation.days:
        return whole
    days, new = of_days_after(seen, scores, evaluation)
    newer = difference_of(new.get(ours), new.get(theirs), new.get(UNIT)) if days else None
    return replace(newer, days=days) if newer else replace(whole, counts=False)


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

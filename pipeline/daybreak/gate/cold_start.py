"""Says when a night has to train cold: its chain is spent, its anchor is old, or warm starts may lose much.

What warm starts lose while the anchor itself ages shows neither beside it nor beside the champion, only
beside a cold training: one that gains g over a champion n warm starts after the last cold one shows a loss of
g / n a start (least squares through 0 over a year). So a cold training follows `FIRST_STARTS` warm ones as
long as none was compared, and later as many as may lose half of the margin (`starts_within`). One that did
not serve is tried again every second night; a week later where it failed, where cold trainings are proven
worse than the champion, or where the margin is too small for many versions to serve. Pure.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from math import floor, sqrt

from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Difference
from daybreak.contract.record_types import Champion
from daybreak.gate.chain import MOST_DAYS
from daybreak.storage.ledger import Entry

FIRST_STARTS, MOST_STARTS = 7, 28  # that may follow a cold training
PAUSE_DAYS = 7  # after a cold training that the gate asked for
QUANTILE = 1.64  # of a normal distribution, one-sided 95 %


def why_cold(champion: Champion | None, past: Sequence[Entry], *, day: date, when_spent: str) -> str:
    """Returns why tonight's training has to begin cold, on all samples; "" if it need not.

    `past` are the entries of the ledger of a year, newest first.
    """
    if champion is None or champion.anchor is None:
        return ""
    anchor = champion.anchor
    # A night of another recipe says nothing of the chain.
    last = next((one for one in past if one.rollback or (one.chain and one.chain.challenger)), None)
    if when_spent == "cold" and last and not last.rollback and last.chain and last.chain.spent:
        return f"the refreshes since version {anchor.release.version} have spent the margin"
    asked = next((one for one in past if one.night.cold), None)
    waited, age = (day - asked.night.day).days if asked else PAUSE_DAYS, (day - anchor.since).days
    if age >= MOST_DAYS and waited >= PAUSE_DAYS:
        return f"version {anchor.release.version}, the anchor, is {age} days old"
    loss, chain = _loss(past), next((one.chain for one in past if one.chain), None)
    worse = loss is not None and loss.mean + QUANTILE * loss.error < 0
    rarely = worse or bool(chain and chain.least_margin) or bool(asked and not asked.training)
    if asked and not asked.promoted and waited < (PAUSE_DAYS if rarely else 2):
        return ""
    starts = _warm_starts(champion.version, _promotions(past))
    if starts < (starts_within(chain.margin, loss) if loss and chain else FIRST_STARTS):
        return ""
    return f"{counted(starts, 'warm start')} since the last cold training may have lost half of the margin"


def starts_within(margin: float, loss: Difference) -> int:
    """Returns the number of warm starts, each with this loss, that may lose half of the margin.

    A loss of more than `QUANTILE` errors counts as it is, otherwise the upper end of its interval does, and
    then for no fewer than `FIRST_STARTS`.

    >>> starts_within(0.01, Difference(mean=0.001, error=0.0001))
    5
    >>> starts_within(0.01, Difference(mean=0.001, error=0.001))
    7
    """
    shown = loss.mean > QUANTILE * loss.error
    each = loss.mean if shown else loss.mean + QUANTILE * loss.error
    starts = floor(margin / 2 / max(each, margin / 2 / MOST_STARTS))
    return min(MOST_STARTS, max(starts, 1 if shown else FIRST_STARTS))


def _loss(past: Sequence[Entry]) -> Difference | None:
    """Returns what a warm start loses, by what cold trainings gained over champions; None: not known."""
    gained = weight = 0.0
    made = _promotions(past)
    for one in past:
        if not one.is_cold or one.chain is None or one.chain.challenger is None or one.champion is None:
            continue
        starts, step = _warm_starts(one.champion.version, made), one.chain.step
        if step and step.error:
            gained += starts * step.mean / step.error**2
            weight += starts**2 / step.error**2
    return Difference(mean=gained / weight, error=1 / sqrt(weight)) if weight else None


def _warm_starts(version: int, made: Mapping[int, Entry]) -> int:
    """Returns how many trainings in a row, up to that of a version, began with an earlier one's weights."""
    number, left = 0, dict(made)
    while (one := left.pop(version, None)) and one.release and not one.is_cold:
        number, version = number + 1, one.release.replaced
    return number


def _promotions(past: Sequence[Entry]) -> dict[int, Entry]:
    """Returns the entries that promoted a version, by its number."""
    return {one.release.version: one for one in past if one.promoted and one.release and not one.rollback}

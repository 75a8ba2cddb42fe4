"""Finds figures of a day that are unlike the days before, at a stated rate of false alarms.

Each figure has its own limits (daybreak/statistics/forecast_limits.py), learned on a scale that makes errors
comparable: counts by their logarithm, shares by 2 asin(sqrt(share)), a label's rate by its log odds, which
have no end, correlations by Fisher's z. For all figures together, `false_alarms_per_year` sound days a year
may be outside. A 365th of that is for a day: a fifth for drift, whose limits are the suite's; of the rest
half for what is known of the label (0.2 for the label as a whole, 0.15 for its single rows, 0.15 for its
slices and single features); the rest is shared evenly by the other families of figures. In a family it is
shared by its figures, and by the two sides of each (Bonferroni). So many columns in a table do not loosen the
limits of the volume, which is a single figure. Relations are checked only where they hold: an item has a
usual price, a customer no usual quantity. A label or feature that is constant has no correlations; that is
unlike where its own rate, or a value's share, is.

No limit is narrower than what the rows of the day alone would vary by: for a share, the beta-binomial
prediction of its units, which also holds where there was none in all the days before; else as many standard
errors. Pure.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import asin, ceil, exp, floor, inf, isfinite, log, sin, sqrt, tanh
from math import atanh as fisher
from typing import NamedTuple

from daybreak.contract.formats import percent, percents
from daybreak.data.figure import Figure, Kind, Sort
from daybreak.statistics.forecast_limits import LEAST_BEFORE, LEAST_ERRORS, SETTLED, SeriesForecast, forecast

DAYS = 365  # that are learned from
DAYS_PER_YEAR = 365
LEAST_SHARE = 0.75  # of the days that a figure has to be of
MOST_CORRELATED = 0.9999  # of any number of rows
_ENDS: Mapping[Kind, tuple[float, float]] = {"rate": (0, 1), "correlation": (-1, 1)}
ROUNDING = 1e-9  # of a figure that is the same each day
LEAST_KNOWN = 0.1  # of the pairs of two columns, for that of new ones to be looked at
LEAST_SLICE = 0.1  # of the rows, for the label there to be looked at by itself
MOST_SLICES = 8  # values of a small category
LEAST_HOLDING = 0.75  # of what a relation is of, for its breaches to be looked at
History = Mapping[date, Mapping[str, Figure]]

UPWARDS = ("repetition", "spikes", "sequences", "labels of rows")  # families of which only too much is wrong
DRIFT_SHARE = 0.2  # of the false alarms, for the limits of drift that init proposes
# Of the chance of a day; the other families share the rest.
_OF_LABELS = {"labels": 0.2, "labels of rows": 0.15, "parts of labels": 0.15}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A figure of a day, and between what it was expected."""

    figure: Figure
    low: float
    high: float

    @property
    def name(self) -> str:
        """The name of the figure."""
        return self.figure.name

    @property
    def holds(self) -> bool:
        """Returns whether the figure is within its limits."""
        return self.low <= self.figure.value <= self.high

    @property
    def excess(self) -> float:
        """Returns how far outside the figure is, in widths of what was expected."""
        kind = self.figure.kind
        value, low, high = (scaled(kind, number) for number in (self.figure.value, self.low, self.high))
        return max(low - value, value - high) / max(high - low, 1e-9)

    def __str__(self) -> str:
        figure = self.figure
        if figure.kind in ("share", "rate"):
            value, low, high = percents(figure.value, self.low, self.high)
        else:
            value, low, high = (in_words(figure.kind, number) for number in (figure.value, *self._shown()))
        return f"{figure.in_words(value)}, between {low} and {high} expected"

    def _shown(self) -> tuple[float, float]:
        """Returns the limits as they are written: 24 rows are outside of 24.3 to 94.2, which is 25 to 94."""
        if self.figure.kind != "count" or not (isfinite(self.low) and isfinite(self.high)):
            return self.low, self.high
        return ceil(self.low), floor(self.high)


class Learned(NamedTuple):
    """What the days before say of a figure."""

    figure: Figure  # of the newest of them
    forecast: SeriesForecast
    num_units: float  # that the share of all these days together is of


@dataclass(frozen=True, kw_only=True)
class DayLimits:
    """The limits of a day's figures, learned from the days before.

    Attributes:
        num_days: days that were learned from.
        learned: by the name of the figure.
        chances: by name, that a sound day's figure is outside on one side.
    """

    day: date
    num_days: int
    learned: Mapping[str, Learned]
    chances: Mapping[str, float]

    def of(self, figures: Mapping[str, Figure]) -> list[Limit]:
        """Returns the limits of these figures of the day; 0 for a small category's value that is gone."""
        limits = []
        for name, learned in self.learned.items():
            figure = figures.get(name)
            if figure is None:
                figure = _gone(learned.figure, figures.values())
            if figure is not None:
                limits.append(_limit(figure, learned, self.chances[name]))
        return limits

    @property
    def note(self) -> str:
        """Returns what is to be said of a short history; "" of a long one."""
        least = LEAST_BEFORE + LEAST_ERRORS
        if self.num_days < least:
            return f"daily limits: none yet, {self.num_days} of {least} earlier days to learn from"
        if self.num_days < LEAST_BEFORE + SETTLED:
            return f"daily limits: still wide, learned from {self.num_days} days"
        return ""


def learn(
    history: History, day: date, *, false_alarms_per_year: float, label: str = "", off: Collection[str] = ()
) -> DayLimits:
    """Returns the limits of the figures of `day`, learned from earlier days of the history.

    Args:
        history: figures by day and name.
        day: whose figures are to be judged.
        false_alarms_per_year: sound days a year that may be outside of some limit.
        label: column whose figures have half of these to themselves; "" for a table without.
        off: figures without a limit.
    """
    days = sorted(other for other in history if other < day)[-DAYS:]
    newest = {name: figure for other in days for name, figure in history[other].items()}
    learned = {
        name: known
        for name, figure in newest.items()
        if name not in off and (known := _learned(figure, history, days, weekday=day.weekday()))
    }
    learned = {name: known for name, known in learned.items() if _is_worth_a_look(known, learned)}
    for name in _small_slices(learned):
        del learned[name]
    families = {name: known.figure.family(label) for name, known in learned.items()}
    shares = _shares(Counter(families.values()))
    a_day = (1 - DRIFT_SHARE) * false_alarms_per_year / DAYS_PER_YEAR
    chances = {name: a_day * shares[each] / (1 if each in UPWARDS else 2) for name, each in families.items()}
    return DayLimits(day=day, num_days=len(days), learned=learned, chances=chances)


def _shares(sizes: Mapping[str, int]) -> dict[str, float]:
    """Returns the share of the chance of a day that each figure of a family has, from their numbers."""
    others = [each for each in sizes if each not in _OF_LABELS]
    left = 1 - sum(share for each, share in _OF_LABELS.items() if each in sizes)
    shares = {each: _OF_LABELS.get(each, left / max(1, len(others))) for each in sizes}
    return {each: shares[each] / num for each, num in sizes.items()}


def _gone(figure: Figure, others: Collection[Figure]) -> Figure | None:
    """Returns a value's share of no rows on a day that lists other values of the small category."""
    if figure.sort is not Sort.SLICE:
        return None
    listed = (other for other in others if other.sort is Sort.SLICE and other.of[0] == figure.of[0])
    return figure._replace(value=0.0, num=other.num) if (other := next(listed, None)) else None


def _small_slices(learned: Mapping[str, Learned]) -> list[str]:
    """Returns the values of small categories, and the label's figures there, beyond the most frequent."""
    shares = {
        known.figure.of: plain("share", known.forecast.expected)
        for known in learned.values()
        if known.figure.sort is Sort.SLICE
    }
    by_column: dict[str, list[tuple[str, ...]]] = {}
    for of in sorted(shares, key=lambda of: -shares[of]):
        by_column.setdefault(of[0], []).append(of)
    kept = {of for values in by_column.values() for of in values[:MOST_SLICES]}

    def is_kept(figure: Figure) -> bool:
        if figure.sort in (Sort.ODDS_WHERE, Sort.LABEL_WHERE):
            return figure.of[1:] in kept and shares[figure.of[1:]] >= LEAST_SLICE
        return figure.sort is not Sort.SLICE or figure.of in kept

    return [name for name, known in learned.items() if not is_kept(known.figure)]


def _is_worth_a_look(known: Learned, learned: "Mapping[str, Learned]") -> bool:
    """Returns whether a relation holds often enough, and a value of a small category is there at all."""
    expected, sort = known.forecast.expected, known.figure.sort
    if sort is Sort.NEW_PAIR:
        return plain("share", expected) <= 1 - LEAST_KNOWN
    if sort in (Sort.SEVERAL, Sort.FAR):
        return plain("share", expected) <= 1 - LEAST_HOLDING
    if sort is Sort.USUAL:
        far = learned.get(known.figure._replace(sort=Sort.FAR).name)
        return far is None or _is_worth_a_look(far, learned)
    if sort is Sort.SLICE:
        return plain("share", expected) > 0
    return True


def limits_of_days(name: str, history: History, days: Sequence[date], *, chance: float) -> dict[date, Limit]:
    """Returns the limits of a figure on each of these days, where the days before are enough to learn from.

    Args:
        name: of the figure.
        history: figures by day and name.
        days: on which limits are wanted.
        chance: that the figure of a sound day is outside on one side.
    """
    ordered = sorted(history)
    known = _known(name, history, ordered)
    series = [scaled(figure.kind, figure.value, num=figure.num) for figure in known.values()]
    weekdays, of_known = [other.weekday() for other in known], list(known)
    limits = {}
    for day in days:
        end, num_days = bisect_left(of_known, day), bisect_left(ordered, day)
        begin = bisect_left(of_known, ordered[max(0, num_days - DAYS)])
        if day not in known or end - begin < LEAST_SHARE * min(num_days, DAYS):
            continue
        expected = forecast(series[begin:end], weekdays[begin:end], weekday=day.weekday())
        if expected:
            nums = sum(known[other].num for other in of_known[begin:end])
            limits[day] = _limit(known[day], Learned(known[day], expected, nums), chance)
    return limits


def figure_of_days(name: str, history: History, *, until: date, most: int) -> dict[date, Figure]:
    """Returns a figure on the last days up to one that have it, in order."""
    known = _known(name, history, [day for day in history if day <= until])
    return dict(list(known.items())[-most:])


def _known(name: str, history: History, days: Sequence[date]) -> dict[date, Figure]:
    """Returns a figure on the days that have it, in order."""
    known = {other: history[other][name] for other in days if name in history[other]}
    if known:
        one = next(iter(known.values()))
        gone = {other: _gone(one, history[other].values()) for other in days if other not in known}
        known |= {other: figure for other, figure in gone.items() if figure}
    return dict(sorted(known.items()))


def _learned(newest: Figure, history: History, days: Sequence[date], *, weekday: int) -> Learned | None:
    """Returns the forecast of a figure from `days`; None where too many days lack the figure."""
    known = _known(newest.name, history, days)
    if len(known) < LEAST_SHARE * len(days):
        return None
    expected = forecast(
        [scaled(figure.kind, figure.value, num=figure.num) for figure in known.values()],
        [other.weekday() for other in known],
        weekday=weekday,
    )
    return Learned(newest, expected, sum(figure.num for figure in known.values())) if expected else None


def _limit(figure: Figure, learned: Learned, chance: float) -> Limit:
    """Returns the limits of a figure, where it is outside on one side with that chance."""
    below, above = learned.forecast.reach(chance)
    expected = learned.forecast.expected
    low, high = expected - below, expected + above
    by_rows = _by_rows(figure, expected, learned.num_units, chance)
    low, high = min(low, by_rows[0]) - ROUNDING, max(high, by_rows[1]) + ROUNDING
    if figure.kind in _ENDS:  # so many rows show no rate or correlation beyond these
        least, most = (scaled(figure.kind, end, num=figure.num) for end in _ENDS[figure.kind])
        low, high = low if low > least else -inf, high if high < most else inf
    if figure.sort.family in UPWARDS:
        low = -inf
    return Limit(figure=figure, low=plain(figure.kind, low), high=plain(figure.kind, high))


def _by_rows(figure: Figure, expected: float, num_units: float, chance: float) -> tuple[float, float]:
    """Returns the limits that the units of the day alone would give, on the scale of the figure."""
    if figure.kind in ("share", "rate"):
        num = max(1, round(figure.num))
        share = plain(figure.kind, expected)
        of_share, of_rest = share * num_units + 0.5, (1 - share) * num_units + 0.5  # Jeffreys' prior
        least, most = _beta_binomial_ends(num, of_share, of_rest, chance)
        low, high = (scaled(figure.kind, end / num, num=num) for end in (least, most))
        return low, high
    from scipy import stats

    error = 1 / sqrt(max(1.0, figure.num)) if figure.kind == "count" else figure.error
    reach = float(stats.norm.isf(chance)) * error
    return expected - reach, expected + reach


def _beta_binomial_ends(num: int, of_share: float, of_rest: float, chance: float) -> tuple[int, int]:
    """Returns the counts of `num` below and above which a beta-binomial one is with that chance each.

    They are `betabinom.ppf` and `isf` of scipy, which bisects, in a tenth of the time or less.
    """
    import numpy as np
    from scipy.special import betaln

    counts = np.arange(num + 1.0)
    ways = -betaln(num - counts + 1, counts + 1) - np.log1p(num)
    chances = np.exp(ways + betaln(counts + of_share, num - counts + of_rest) - betaln(of_share, of_rest))
    least = int(np.searchsorted(np.cumsum(chances), chance))
    return least, num - int(np.searchsorted(np.cumsum(chances[::-1]), chance, side="right"))


def scaled(kind: Kind, value: float, *, num: float = 0.0) -> float:
    """Returns a figure on the scale that makes errors comparable.

    Of `num` units, half a one is added to both sides of a rate, and a correlation ends half a one from 1: few
    rows may be correlated by 1 by chance, which is infinitely far on the scale.
    """
    if kind == "rate":
        num = max(1.0, num)
        return log((value * num + 0.5) / ((1 - value) * num + 0.5))
    if kind == "count":
        return log(max(value, 0.5))
    if kind == "share":
        return 2 * asin(sqrt(min(1.0, max(0.0, value))))
    if kind == "correlation":
        most = 1 - 1 / max(2.0, 2 * num) if num else MOST_CORRELATED
        return fisher(min(most, max(-most, value)))
    return value


def plain(kind: Kind, number: float) -> float:
    """Returns a figure as it was, from its value on that scale; a `factor` stays a logarithm."""
    if kind == "count":
        return exp(number)
    if kind == "share":
        return sin(min(max(number, 0.0), 3.141592653589793) / 2) ** 2
    if kind == "rate":
        return 0.0 if number == -inf else 1 / (1 + exp(-number))
    if kind == "correlation":
        return tanh(number)
    return number


def in_a_sentence(figure: Figure) -> str:
    """Returns a figure of a day, without limits, as a sentence."""
    if figure.kind in ("share", "rate"):
        return figure.in_words(percent(figure.value))
    return figure.in_words(in_words(figure.kind, figure.value))


def in_words(kind: Kind, value: float) -> str:
    """Returns a figure that is not a share, with its unit."""
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "factor":
        return f"{exp(min(value, 50)):.3g}"
    if kind == "hours":
        return f"{value:.1f} h"
    return f"{value:.3g}"

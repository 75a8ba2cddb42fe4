"""Finds figures of a day that are unlike the days before, at a stated rate of false alarms.

Each figure has its own limits (daybreak/statistics/forecast_limits.py), learned on a scale that makes errors
comparable: counts by their logarithm, shares by 2 asin(sqrt(share)), a label's rate by its log odds, which
have no end, correlations by Fisher's z. For all figures together, `false_alarms_per_year` sound days a year
may be outside. A 365th of that is for a day: a fifth for drift, whose limits are the suite's; of the rest
half for what is known of the label, of that half for its slices and single features; the rest is shared
evenly by the other families of figures. In a family it is shared by its figures, and by the two sides of each
(Bonferroni). So many columns in a table do not loosen the limits of the volume, which is a single figure.
Relations are checked only where they hold: an item has a usual price, a customer no usual quantity. A label
or feature that is constant has no correlations; that is unlike where its own rate, or a value's share, is.

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
from daybreak.data.day_figures import Figure, Kind
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
AGAIN, QUARANTINED = "as an earlier day", "quarantined"
SLICE = " = "
# Of a label and what the features say of it.
BESIDE, AGAINST, SLOPE = " beside forecast", " against forecast", " by forecast"

History = Mapping[date, Mapping[str, Figure]]

# The family of a figure, by the first word or by a part of the name.
_FAMILIES = {
    "rows": "volume",
    "copies": "repetition",
    "as": "repetition",
    "quarantined": "repetition",
    "missing": "values",
    "several": "relations",
    "far": "relations",
    "first": "times",
    "last": "times",
    "longest": "times",
    "spike": "spikes",
}
_RELATED = (" with ", " by ", " against ")
UPWARDS = ("repetition", "spikes")  # families of which only too much is wrong
DRIFT_SHARE = 0.2  # of the false alarms, for the limits of drift that init proposes
LABELS, LABEL_PARTS = "labels", "parts of labels"
_OF_LABELS = {LABELS: 0.25, LABEL_PARTS: 0.25}  # of the chance of a day; the other families share the rest

# The sentence of a figure, by the first word of the name, or by the word between two columns.
_SENTENCES = {
    "rows": "{value} rows",
    "distinct": "{value} different values of {rest}",
    "new": "{rest} is new in {value} of the rows",
    "missing": "{rest} is missing in {value} of the rows",
    "top": "the most frequent {rest} has {value} of the rows",
    "size": "{rest} is {value} in the geometric mean",
    "negative": "{rest} is negative in {value} of the rows",
    "zero": "{rest} is zero in {value} of the rows",
    "far": "{rest} is off by more than a factor of two in {value} of the rows",
    "first": "the first row comes at {value}",
    "last": "the last row comes at {value}",
    "longest": "the longest time without a row is {value}",
    "mean": "the mean {rest} is {value}",
    "neither": "{rest} is neither 0 nor 1 in {value} of the rows",
    "label": "{rest}, the label's odds are {value} times those expected beside the other rows",
    "spike": "one value of {rest} is in {value} more of the rows than usual",
    "copies": "{value} of the rows are alike to another but for ids and time",
    "quarantined": "{value} of the rows are in quarantine",
    "as": "{value} of the rows are those of an earlier day but for ids and time",
}

# The sentence of a label's figure, by the end of the name.
_OF_FORECAST = {
    AGAINST: "{label} is correlated by {value} with its forecast",
    SLOPE: "{label} rises by {value} where its forecast by the features rises by 1",
}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A figure of a day, and between what it was expected."""

    name: str
    kind: Kind
    value: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Returns whether the figure is within its limits."""
        return self.low <= self.value <= self.high

    @property
    def excess(self) -> float:
        """Returns how far outside the figure is, in widths of what was expected."""
        value, low, high = (scaled(self.kind, number) for number in (self.value, self.low, self.high))
        return max(low - value, value - high) / max(high - low, 1e-9)

    def __str__(self) -> str:
        if self.kind in ("share", "rate"):
            value, low, high = percents(self.value, self.low, self.high)
        else:
            value, low, high = (in_words(self.kind, number) for number in (self.value, *self._shown()))
        return f"{sentence(self.name, self.kind, value)}, between {low} and {high} expected"

    def _shown(self) -> tuple[float, float]:
        """Returns the limits as they are written: 24 rows are outside of 24.3 to 94.2, which is 25 to 94."""
        if self.kind != "count" or not (isfinite(self.low) and isfinite(self.high)):
            return self.low, self.high
        return ceil(self.low), floor(self.high)


class Learned(NamedTuple):
    """What the days before say of a figure."""

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
            if figure is None and _is_slice(name):
                figure = _gone(name, figures)
            if figure is not None:
                limits.append(_limit(name, figure, learned, self.chances[name]))
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
    names = dict.fromkeys(name for other in days for name in history[other])
    learned = {
        name: known
        for name in names
        if name not in off and (known := _learned(name, history, days, weekday=day.weekday()))
    }
    learned = {name: known for name, known in learned.items() if _is_worth_a_look(name, learned)}
    for name in _small_slices(learned):
        del learned[name]
    families = {name: family(name, label=label) for name in learned}
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


def family(name: str, *, label: str = "") -> str:
    """Returns the family of a figure; the figures of a family share its rate of false alarms evenly.

    >>> family("rows"), family("new item"), family("new item with description")
    ('volume', 'values', 'relations')
    >>> family("mean fraud", label="fraud"), family("fraud against price", label="fraud")
    ('labels', 'parts of labels')
    """
    of_forecast = {f"{label}{each}" for each in (BESIDE, AGAINST, SLOPE)}
    if name in of_forecast | {f"mean {label}", f"missing {label}", f"neither {label}"}:
        return LABELS
    if name.startswith(("label where ", f"{label} against ")):
        return LABEL_PARTS
    if name == "mean hour":
        return "times"
    first = name.partition(" ")[0]
    if first in _FAMILIES:
        return _FAMILIES[first]
    if any(word in name for word in _RELATED) and SLICE not in name:
        return "relations"
    return "values" if first == "new" else "columns"


def _is_slice(name: str) -> bool:
    """Returns whether a figure is the share of a value of a small category, 0 where it is not listed."""
    return SLICE in name and not name.startswith("label ")


def _gone(name: str, figures: Mapping[str, Figure]) -> Figure | None:
    """Returns a value's share of no rows on a day that lists other values of the small category."""
    column = name.partition(SLICE)[0]
    others = (figure for other, figure in figures.items() if other.startswith(f"{column}{SLICE}"))
    other = next(others, None)
    return Figure("share", 0.0, num=other.num) if other else None


def _small_slices(learned: Mapping[str, Learned]) -> list[str]:
    """Returns the values of small categories, and the label's figures there, beyond the most frequent."""
    shares = {name: known.forecast.expected for name, known in learned.items() if _is_slice(name)}
    by_column: dict[str, list[str]] = {}
    for name in sorted(shares, key=lambda name: -shares[name]):
        by_column.setdefault(name.partition(SLICE)[0], []).append(name)
    kept = {name for names in by_column.values() for name in names[:MOST_SLICES]}
    kept |= {f"label where {name}" for name in kept if plain("share", shares[name]) >= LEAST_SLICE}
    return [name for name in learned if SLICE in name and name not in kept]


def _is_worth_a_look(name: str, learned: "Mapping[str, Learned]") -> bool:
    """Returns whether a relation holds often enough, and a value of a small category is there at all."""
    first = name.partition(" ")[0]
    expected = learned[name].forecast.expected
    if first == "new" and family(name) == "relations":
        return plain("share", expected) <= 1 - LEAST_KNOWN
    if first in ("several", "far"):
        return plain("share", expected) <= 1 - LEAST_HOLDING
    if " by " in name and f"far {name}" in learned:
        return _is_worth_a_look(f"far {name}", learned)
    if _is_slice(name):
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
            limits[day] = _limit(name, known[day], Learned(expected, nums), chance)
    return limits


def figure_of_days(name: str, history: History, *, until: date, most: int) -> dict[date, Figure]:
    """Returns a figure on the last days up to one that have it, in order."""
    known = _known(name, history, [day for day in history if day <= until])
    return dict(list(known.items())[-most:])


def _known(name: str, history: History, days: Sequence[date]) -> dict[date, Figure]:
    """Returns a figure on the days that have it, in order."""
    known = {other: history[other][name] for other in days if name in history[other]}
    if _is_slice(name):
        gone = {other: _gone(name, history[other]) for other in days if other not in known}
        known |= {other: figure for other, figure in gone.items() if figure}
    return dict(sorted(known.items()))


def _learned(name: str, history: History, days: Sequence[date], *, weekday: int) -> Learned | None:
    """Returns the forecast of a figure from `days`; None where too many days lack the figure."""
    known = _known(name, history, days)
    if len(known) < LEAST_SHARE * len(days):
        return None
    expected = forecast(
        [scaled(figure.kind, figure.value, num=figure.num) for figure in known.values()],
        [other.weekday() for other in known],
        weekday=weekday,
    )
    return Learned(expected, sum(figure.num for figure in known.values())) if expected else None


def _limit(name: str, figure: Figure, learned: Learned, chance: float) -> Limit:
    """Returns the limits of a figure, where it is outside on one side with that chance."""
    below, above = learned.forecast.reach(chance)
    expected = learned.forecast.expected
    low, high = expected - below, expected + above
    by_rows = _by_rows(figure, expected, learned.num_units, chance)
    low, high = min(low, by_rows[0]) - ROUNDING, max(high, by_rows[1]) + ROUNDING
    if figure.kind in _ENDS:  # so many rows show no rate or correlation beyond these
        least, most = (scaled(figure.kind, end, num=figure.num) for end in _ENDS[figure.kind])
        low, high = low if low > least else -inf, high if high < most else inf
    if family(name) in UPWARDS:
        low = 0.0
    return Limit(
        name=name,
        kind=figure.kind,
        value=figure.value,
        low=plain(figure.kind, low),
        high=plain(figure.kind, high),
    )


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


def sentence(name: str, kind: Kind, value: str) -> str:
    """Returns what a figure is, as a sentence with this value."""
    first, _, rest = name.partition(" ")
    if first == "several":
        column, _, of = rest.rpartition(" of ")
        return f"{value} of the values of {of} come with several of {column}"
    if first in _SENTENCES:
        return _SENTENCES[first].format(value=value, rest=rest)
    if name.endswith(BESIDE):
        odds = f"the odds of {name.removesuffix(BESIDE)} are {value} times"
        plainly = f"{name.removesuffix(BESIDE)} is {value} beside"
        return f"{odds if kind == 'factor' else plainly} what the features lead one to expect"
    for of_forecast in (AGAINST, SLOPE):
        if name.endswith(of_forecast):
            return _OF_FORECAST[of_forecast].format(label=name.removesuffix(of_forecast), value=value)
    if " by " in name:
        return f"{name.replace(' by ', ' by its ')} is {value} times the usual"
    return f"{name} in {value} of the rows" if SLICE in name else f"{name} is correlated by {value}"


def in_a_sentence(name: str, figure: Figure) -> str:
    """Returns a figure of a day, without limits, as a sentence."""
    if figure.kind in ("share", "rate"):
        return sentence(name, figure.kind, percent(figure.value))
    return sentence(name, figure.kind, in_words(figure.kind, figure.value))


def in_words(kind: Kind, value: float) -> str:
    """Returns a figure that is not a share, with its unit."""
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "factor":
        return f"{exp(min(value, 50)):.3g}"
    if kind == "hours":
        return f"{value:.1f} h"
    return f"{value:.3g}"

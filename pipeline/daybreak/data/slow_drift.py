"""Finds figures that drift slowly: a little each day, which no limit for a single day shows.

The limits of a day (daybreak/data/daily_limits.py) follow the last weeks, so that a table which loses one row
in a hundred each day never leaves them. So each night also tests the last `WINDOW` days of some figures for a
trend (daybreak/statistics/trend.py): the number of rows, shares of missing values, sizes of numbers, the
label, and how it goes with single features. A tenth of `validate.false_alarms_per_year` is for all of them
together, shared evenly. No package that looks for change points states how often it is wrong, and a jump is
what the limits of a day find. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from math import exp
from types import MappingProxyType

from daybreak.contract.formats import percents
from daybreak.contract.record_parts import Trend
from daybreak.data.daily_limits import AGAINST, History, in_words, plain, scaled, sentence
from daybreak.data.day_figures import Figure
from daybreak.statistics.trend import TrendLine, trend

WINDOW = 60  # days
LEAST_SHARE = 0.6  # five days a week are more; of the days of a window, on which the figure is known
SHARE = 0.1  # of the false alarms a year
# Independent tests that the overlapping windows of a year's nights amount to: of series without a trend, 1 in
# 100 for each unit of chance has a night in the year that says there is one.
TESTS_PER_YEAR = 100
LONGEST = 365  # days that are looked at, to see how a figure wanders
NOWHERE: Mapping[str, date] = MappingProxyType({})
FIRST_WORDS = ("mean", "size", "missing")  # of figures that are tested


def drifting(
    history: History,
    day: date,
    *,
    false_alarms_per_year: float,
    label: str = "",
    off: Collection[str] = (),
    since: Mapping[str, date] = NOWHERE,
) -> list[Trend]:
    """Returns the figures with a trend over the `WINDOW` days up to `day`, the plainest first.

    Args:
        history: figures by day and name.
        day: the last day of the window.
        false_alarms_per_year: times a year that something unlike may be said of sound days.
        label: column of the label; "" for a table without.
        off: figures that are not judged.
        since: by figure, the day after which its window begins, as a person has accepted what was before.
    """
    days = [one for one in sorted(history) if one <= day][-LONGEST:]
    newest = {name for one in days[-WINDOW:] for name in history[one]}  # a label may be known late
    names = sorted(name for name in newest - set(off) if _is_tested(name, label))
    trends = []
    for name in names:
        known = [one for one in days if name in history[one]]
        window = [one for one in known if one > since.get(name, date.min)][-WINDOW:]
        if len(window) < WINDOW or (window[-1] - window[0]).days > WINDOW / LEAST_SHARE:
            continue
        figures = [history[one][name] for one in known]
        series = [scaled(one.kind, one.value, num=one.num) for one in figures]
        line = trend(series, [one.weekday() for one in known], window=WINDOW)
        if line.chance < SHARE * false_alarms_per_year / TESTS_PER_YEAR / len(names):
            trends.append((line.chance, _of(name, line, window, figures[-WINDOW:])))
    return [one for _, one in sorted(trends, key=lambda pair: pair[0])]


def _is_tested(name: str, label: str) -> bool:
    """Returns whether a figure is tested: what the label's forecast says is learned anew each month."""
    of_label = name.startswith(f"{label} against ") and not name.endswith(AGAINST)
    return name == "rows" or of_label or (name.partition(" ")[0] in FIRST_WORDS and name != "mean hour")


def _of(name: str, line: TrendLine, days: Sequence[date], figures: Sequence[Figure]) -> Trend:
    """Returns a trend as the report has it, from the line on the scale of the figure."""
    kind = figures[-1].kind
    ends = plain(kind, line.before), plain(kind, line.now)
    shown = percents(*ends) if kind in ("share", "rate") else [in_words(kind, end) for end in ends]
    began, ended = (exp(end) if kind == "factor" else end for end in ends)
    return Trend(
        figure=name,
        words=f"{sentence(name, kind, shown[1])}, {(days[-1] - days[0]).days} days before: {shown[0]}",
        days=tuple(days),
        values=tuple(exp(one.value) if kind == "factor" else one.value for one in figures),
        began=began,
        ended=ended,
    )

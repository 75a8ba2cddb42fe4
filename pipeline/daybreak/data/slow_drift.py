"""Finds slow drift: a little each day, which no limit for a single day shows.

The limits of a day (daybreak/data/daily_limits.py) follow the last weeks, so that a table which loses one row
in a hundred each day never leaves them. So each night also tests the last `WINDOW` days of some figures for a
trend (daybreak/statistics/trend.py): the number of rows, shares of missing values, sizes of numbers, the
label, and how it goes with single features. A tenth of `validate.false_alarms_per_year` is for all of them
together, shared evenly. No package that looks for change points states how often it is wrong, and a jump is
what the limits of a day find.

Once a week the last `WEEKS` are also held against those that the chain's anchor learned from, by the
distances of whole columns (daybreak/data/drift.py): what many days add up to.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from math import exp
from types import MappingProxyType

from daybreak.contract.errors import DataError
from daybreak.contract.formats import percents
from daybreak.contract.record_parts import Expectation, Trend
from daybreak.contract.record_types import Champion, Dataset, Night
from daybreak.contract.sections import ValidateParams
from daybreak.contract.table import Table
from daybreak.data import day_history, drift
from daybreak.data.daily_limits import History, in_words, plain, scaled
from daybreak.data.figure import Figure, Sort
from daybreak.data.partition_scan import PartitionFindings
from daybreak.data.partitions import CLEAN, partitions
from daybreak.data.quarantine import clean_rows
from daybreak.data.suite import Suite
from daybreak.statistics.trend import TrendLine, trend
from daybreak.storage import ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

WINDOW = 60  # days
LEAST_SHARE = 0.6  # five days a week are more; of the days of a window, on which the figure is known
SHARE = 0.1  # of the false alarms a year
# Independent tests that the overlapping windows of a year's nights amount to: of series without a trend, 1 in
# 100 for each unit of chance has a night in the year that says there is one.
TESTS_PER_YEAR = 100
LONGEST = 365  # days that are looked at, to see how a figure wanders
NOWHERE: Mapping[str, date] = MappingProxyType({})
# Figures that are tested; not what the label's forecast says, as that is learned anew each month.
TESTED = (Sort.ROWS, Sort.MEAN, Sort.SIZE, Sort.MISSING, Sort.LABEL_CORRELATION)
WEEKS = timedelta(days=14)  # each weekday twice
LOOKED_AT = 28  # newest entries of the ledger, for a look at the anchor's weeks
SLOW_DRIFT = "slow drift"

log = logging.getLogger(__name__)


def drifting(
    history: History,
    day: date,
    *,
    false_alarms_per_year: float,
    off: Collection[str] = (),
    since: Mapping[str, date] = NOWHERE,
) -> list[Trend]:
    """Returns the figures with a trend over the `WINDOW` days up to `day`, the plainest first.

    Args:
        history: figures by day and name.
        day: the last day of the window.
        false_alarms_per_year: times a year that something unlike may be said of sound days.
        off: figures that are not judged.
        since: by figure, the day after which its window begins, as a person has accepted what was before.
    """
    days = [one for one in sorted(history) if one <= day][-LONGEST:]
    newest = {name: figure for one in days[-WINDOW:] for name, figure in history[one].items()}
    names = sorted(name for name, figure in newest.items() if name not in off and figure.sort in TESTED)
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
            trends.append((line.chance, _of(line, window, figures[-WINDOW:])))
    return [one for _, one in sorted(trends, key=lambda pair: pair[0])]


def judged(
    night: Night,
    figures: dict[date, day_history.Known],
    table: Table,
    *,
    suite: Suite,
    params: ValidateParams,
) -> tuple[tuple[Trend, ...], dict[date, day_history.Known]]:
    """Returns the figures that drift slowly, and the figures of all days, with what a person has accepted.

    Raises DataError where slow drift has to stop the night, and no person has accepted it.
    """
    if params.slow_drift == "off" or not day_history.has_limits(suite, params):
        return (), figures
    trends = drifting(
        {day: known.figures for day, known in figures.items()},
        night.day,
        false_alarms_per_year=params.false_alarms_per_year,
        off=day_history.figures_off(suite),
        since={name: day for day, known in sorted(figures.items()) for name in known.accepted_drift},
    )
    for one in trends:
        log.warning("slow drift: %s", one.words)
    severities = suite.limits if isinstance(suite.limits, dict) else {}
    stopping = [one for one in trends if severities.get(one.figure) != "warn"]
    if not stopping or params.slow_drift != "hold":
        return tuple(trends), figures
    if night.day not in params.accepted_days:
        raise DataError(
            f"the data drifts slowly up to {night.day}: {'; '.join(one.words for one in stopping)}; fix the "
            f"source and ingest again, change validate.slow_drift, {day_history.acceptance(night.day, night)}"
        )
    accepted = tuple(one.figure for one in stopping)
    return tuple(trends), figures | {night.day: replace(figures[night.day], accepted_drift=accepted)}


def warning(one: Trend) -> Expectation:
    """Returns what the report says of a figure that drifts."""
    return Expectation(rule=f"{SLOW_DRIFT}: {one.words}", column="(day)", num_failed=0, success=False)


def since_anchor(
    home: Home,
    night: Night,
    champion: Champion | None,
    judged: Mapping[date, PartitionFindings],
    table: Table,
    *,
    suite: Suite,
    params: ValidateParams,
) -> tuple[Expectation, ...]:
    """Returns a warning where the last weeks are unlike those that the chain's anchor was trained on.

    Looks once a week, as it reads four weeks, and as a season would be told each night.
    """
    if champion is None or champion.anchor is None or params.slow_drift == "off":
        return ()
    anchor = champion.anchor.release.version
    if was_looked_at(ledger.history(home, LOOKED_AT), night, anchor):
        return ()
    (made,) = ledger.promotions(home, anchor)
    if made is None or made.dataset is None:
        return ()
    return unlike_anchor(night.day, anchor, made.dataset, judged, table, suite=suite, params=params)


def was_looked_at(past: Sequence[Entry], night: Night, anchor: int) -> bool:
    """Returns whether an earlier night held the weeks before it against this anchor, within a week."""
    begins = f"{SLOW_DRIFT}: the last {WEEKS.days} days are "
    of_anchor = f"those that version {anchor}, the anchor,"
    reports = [
        one.report
        for one in past
        if not one.rollback
        and one.night.id != night.id
        and timedelta(0) <= night.day - one.night.day < timedelta(weeks=1)
    ]
    rules = [one.rule for report in reports if report for one in report.expectations]
    return any(rule.startswith(begins) and of_anchor in rule for rule in rules)


def unlike_anchor(
    today: date,
    anchor: int,
    dataset: Dataset,
    judged: Mapping[date, PartitionFindings],
    table: Table,
    *,
    suite: Suite,
    params: ValidateParams,
) -> tuple[Expectation, ...]:
    """Returns whether the weeks up to today are unlike the last of a version's training; () if not known.

    The limits of a day follow the weeks before it, and so never see what many of them add up to.
    """
    if suite.drift == "off":
        return ()
    known = sorted({*judged, *partitions(CLEAN)})
    newest = [day for day in known if dataset.last_day < day <= today][-WEEKS.days :]
    trained_on = [day for day in known if dataset.first_day <= day <= dataset.last_day][-WEEKS.days :]
    if min(len(newest), len(trained_on)) < WEEKS.days or newest[-1] - newest[0] >= 2 * WEEKS:
        return ()
    unlike = drift.of_weeks(
        [clean_rows(day, judged) for day in newest],
        [clean_rows(day, judged) for day in trained_on],
        table,
        limits=suite.drift,
        limit=params.max_drift,
    )
    how = "unlike" if unlike else "like"
    words = f"the last {WEEKS.days} days are {how} those that version {anchor}, the anchor, learned from"
    rule = f"{SLOW_DRIFT}: {': '.join([words, *filter(None, ['; '.join(unlike)])])}"
    if unlike:
        log.warning("%s", rule)
    return (Expectation(rule=rule, column="(day)", num_failed=0, success=not unlike),)


def _of(line: TrendLine, days: Sequence[date], figures: Sequence[Figure]) -> Trend:
    """Returns a trend as the report has it, from the line on the scale of the figure."""
    figure, kind = figures[-1], figures[-1].kind
    ends = plain(kind, line.before), plain(kind, line.now)
    shown = percents(*ends) if kind in ("share", "rate") else [in_words(kind, end) for end in ends]
    began, ended = (exp(end) if kind == "factor" else end for end in ends)
    return Trend(
        figure=figure.name,
        words=f"{figure.in_words(shown[1])}, {(days[-1] - days[0]).days} days before: {shown[0]}",
        days=tuple(days),
        values=tuple(exp(one.value) if kind == "factor" else one.value for one in figures),
        began=began,
        ended=ended,
    )

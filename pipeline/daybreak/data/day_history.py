"""Keeps the figures of each partition, and judges the days that came in tonight by those of the days before.

`data/figures/day=D.json` has a day's figures (daybreak/data/day_figures.py) with the digest of everything
that they depend on: the raw partition, the rules on rows, the table and the code. Figures are computed once,
also for all days of a home without figures, and travel with the data from night to night. So do the samples
of the newest days (`day=D.npz`), to which the next days are compared, so that a night reads only its own
rows. daybreak/data/daily_limits.py learns limits from the figures; params and suite say which outcome stops a
night.
"""

import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.record_parts import Expectation
from daybreak.contract.record_types import Night
from daybreak.contract.sections import ValidateParams
from daybreak.contract.table import Table
from daybreak.data import day_figures, day_sample, figure, label_forecast, label_neighbours
from daybreak.data.daily_limits import DayLimits, Limit, learn
from daybreak.data.day_figures import WINDOW, figures_of, quarantined_of
from daybreak.data.day_sample import SKETCH, Sample, read_sample, sample_of, similarity, sketch_of
from daybreak.data.features import is_ripe
from daybreak.data.figure import Figure, Sort
from daybreak.data.suite import Suite
from daybreak.statistics.forecast_limits import LEAST_BEFORE, LEAST_ERRORS

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Rows = Callable[[date], pa.Table]  # the clean rows of a day

log = logging.getLogger(__name__)

FIGURES = Path("data/figures")
LEAST_CHANGE = 1e-9  # by which a figure of a restated day is another one
SHOWN = 3  # figures that an error names


@dataclass(frozen=True, kw_only=True)
class Known:
    """The figures of a day, a digest of everything they depend on, and the smallest hashes of the rows."""

    of: str
    figures: Mapping[str, Figure]
    sketch: Sequence[int]
    sample: Sample | None = None  # where it was read from the rows
    accepted_drift: tuple[str, ...] = ()  # figures whose slow drift up to it a person has accepted


@dataclass(frozen=True, kw_only=True)
class JudgedDay:
    """A day to be judged, with the limits learned from the days before."""

    day: date
    known: DayLimits
    limits: Sequence[Limit]

    @property
    def outside(self) -> list[Limit]:
        """Returns the limits that do not hold, the farthest off first."""
        return sorted((limit for limit in self.limits if not limit.holds), key=lambda limit: -limit.excess)


def has_limits(suite: Suite, params: ValidateParams) -> bool:
    """Returns whether days are judged by limits that are learned from the days before."""
    return bool(params.false_alarms_per_year) and suite.limits != "off"


def figures_off(suite: Suite) -> list[str]:
    """Returns the figures that the suite leaves without limits, where not all are."""
    limits = suite.limits if isinstance(suite.limits, dict) else {}
    return [name for name, how in limits.items() if how == "off"]


def unknown_limits(
    suite: Suite, params: ValidateParams, history: Mapping[date, Known]
) -> tuple[Expectation, ...]:
    """Returns a warning of names in the limits of the suite that no figure has; () of a short history."""
    limits = suite.limits if isinstance(suite.limits, dict) and has_limits(suite, params) else {}
    unknown = sorted(set(limits).difference(*(known.figures for known in history.values())))
    if not unknown or len(history) < LEAST_BEFORE + LEAST_ERRORS:
        return ()
    rule = (
        f"the suite's limits name {', '.join(unknown)}, which no figure of a day is called, so that these "
        f"have no effect; the names are in {FIGURES}"
    )
    log.warning("%s", rule)
    return (Expectation(rule=rule, column="(day)", num_failed=0, success=False),)


def days() -> list[date]:
    """Returns the days whose figures are kept, in order."""
    return sorted(date.fromisoformat(path.stem[4:]) for path in FIGURES.glob("day=*.json"))


def read() -> dict[date, Known]:
    """Returns the figures that are kept, by day; none of a day whose figures another release has written.

    Those are computed again, as the code is part of the digest `of`.
    """
    kept = {}
    for day in days():
        content = json.loads((FIGURES / f"day={day}.json").read_text())
        try:
            figures = {
                name: Figure(Sort[sort], tuple(of), *amount)
                for name, (sort, of, *amount) in content["figures"].items()
            }
        except (KeyError, TypeError, ValueError):
            figures = {}
        kept[day] = Known(
            of=content["of"],
            figures=figures,
            sketch=content["sketch"],
            accepted_drift=tuple(content.get("accepted_drift", ())),
        )
    return kept


def samples(history: Mapping[date, Known], days: Sequence[date]) -> dict[date, Sample]:
    """Returns the samples that there are of these days, by day."""
    found = {
        day: history[day].sample or read_sample(_path_of_sample(day), day, of=history[day].of) for day in days
    }
    return {day: sample for day, sample in found.items() if sample}


def write(history: Mapping[date, Known]) -> None:
    """Keeps these figures and no others, and the newest samples; a file that stays the same is left alone."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    newest = sorted(history)[-WINDOW:]
    for path in FIGURES.glob("day=*.*"):
        kept = history if path.suffix == ".json" else newest
        if date.fromisoformat(path.stem[4:]) not in kept:
            path.unlink()
    for day in newest:
        if sample := history[day].sample:
            sample.write(_path_of_sample(day), of=history[day].of)
    for day, known in history.items():
        path = FIGURES / f"day={day}.json"
        content = {
            "of": known.of,
            "figures": {name: (one.sort.name, *one[1:]) for name, one in known.figures.items()},
            "sketch": list(known.sketch),
            "accepted_drift": known.accepted_drift,
        }
        text = json.dumps(content) + "\n"
        if not path.exists() or path.read_text() != text:
            records.replace_text(path, text)


def completed(
    kept: Mapping[date, Known],
    days: Sequence[date],
    table: Table,
    *,
    by: date,
    rules: str,
    of_rows: Mapping[date, str],
    rows: "Rows",
    bad_hours: "Callable[[date], Numbers]",
) -> dict[date, Known]:
    """Returns the figures of all `days`, and computes only days that are new or outdated in `kept`.

    Args:
        kept: figures from earlier nights.
        days: all partitions up to the night's, in order.
        table: the table of the rows.
        by: the night's day; labels that are not known by then have no figures.
        rules: digest of the rules on rows.
        of_rows: digests of the raw rows, by day.
        rows: returns the clean rows of a day.
        bad_hours: returns the hour of each quarantined row of a day.
    """
    ripe = {day: is_ripe(table, day, by=by) for day in days}
    of = _digests(of_rows, ripe, table, rules)
    history = {day: kept[day] for day in days if day in kept and kept[day].of == of[day]}
    missing = [day for day in days if day not in history]
    sampled: dict[date, Sample] = {}
    for begin in range(0, len(missing), WINDOW):
        wanted = missing[begin : begin + WINDOW]
        first, last = days.index(wanted[0]), days.index(wanted[-1])
        sampled = {
            day: sampled.get(day)
            or read_sample(_path_of_sample(day), day, of=of[day])
            or sample_of(day, rows(day), table, with_label=ripe[day])
            for day in days[max(0, first - WINDOW) : last + 1]
        }
        figures = figures_of([*sampled.values()], table, wanted)
        for sample in sampled.values():  # in order, so that all days before are known
            if sample.day in figures:
                sketch = sketch_of(sample, table)
                own = all_figures(
                    figures[sample.day],
                    sample,
                    sketch,
                    bad_hours=bad_hours(sample.day),
                    before=[known.sketch for day, known in history.items() if day < sample.day],
                )
                history[sample.day] = Known(
                    of=of[sample.day],
                    figures=own,
                    sketch=sketch,
                    sample=sample,
                    accepted_drift=kept[sample.day].accepted_drift if sample.day in kept else (),
                )
    return dict(sorted(history.items()))


def all_figures(
    own: Mapping[str, Figure],
    sample: Sample,
    sketch: Sequence[int],
    *,
    bad_hours: "Numbers",
    before: Iterable[Sequence[int]],
) -> dict[str, Figure]:
    """Returns the figures of a day with those that its clean rows alone do not give.

    Args:
        own: figures of the clean rows.
        sample: of the clean rows.
        sketch: the smallest hashes of these.
        bad_hours: the hour of each quarantined row, shape [rows].
        before: the sketches of all days before.
    """
    most = max((similarity(sketch, other) for other in before), default=0.0)
    quarantined = quarantined_of(sample, bad_hours, num=own["rows"].num)
    again = Figure(Sort.AGAIN, (), "share", most, num=float(min(SKETCH, len(sketch))))
    return {**own, quarantined.name: quarantined, again.name: again}


def judged(
    history: Mapping[date, Known],
    kept: Mapping[date, Known],
    days: Collection[date],
    *,
    night: date,
    label: str,
    false_alarms_per_year: float,
    off: Collection[str],
) -> list[JudgedDay]:
    """Returns the days to be judged with their limits: the night's, and other `days` that came in with it.

    Of the first night's history only the night's own day is judged, and of a day that was judged before what
    has changed since, such as labels that have come to be known. That all values of the column `label` are
    null is unusual after a single day, where it was so on none before.
    """
    figures = {day: known.figures for day, known in history.items()}
    judged_days = []
    for day in sorted(days if kept else {night}):
        before = kept[day].figures if day in kept else {}
        changed = {
            name
            for name, own in figures[day].items()
            if name not in before or abs(before[name].value - own.value) > LEAST_CHANGE
        }
        if day in kept and (not changed or (not before and day != night)):
            continue
        known = learn(figures, day, false_alarms_per_year=false_alarms_per_year, label=label, off=off)
        limits = [
            limit
            for limit in known.of(figures[day])
            if limit.name not in figures[day] or limit.name in changed
        ]
        of_labels = f"missing {label}"
        if of_labels not in {*off, *(limit.name for limit in limits)}:
            limits += _without_labels(of_labels, day, figures)
        judged_days.append(JudgedDay(day=day, known=known, limits=limits))
    return judged_days


def _without_labels(name: str, day: date, figures: Mapping[date, Mapping[str, Figure]]) -> Iterator[Limit]:
    """Yields the limit of the share of missing labels where all are, as on none of the days before."""
    before = [known[name].value for other, known in figures.items() if other < day and name in known]
    own = figures[day].get(name)
    if own and own.value == 1 and before and max(before) < 1:
        yield Limit(figure=own, low=0.0, high=max(before))


def expectations(
    days: Sequence[JudgedDay], night: Night, suite: Suite, params: ValidateParams, *, is_first: bool
) -> tuple[Expectation, ...]:
    """Returns the expectations of these days for the report; `is_first` where no night has passed a day yet.

    Raises DataError where a figure outside its limits refuses the day, or holds a day that no person has
    accepted.
    """
    expected: list[Expectation] = []
    for day in days:
        if limits := stopping(day, suite, params):
            sentence = _stopped(day, limits, night, may_be_accepted=_may_be_accepted(limits, suite, params))
            if is_first:  # files that were exported for a try often end amid a day
                before = f"daybreak night --day {day.day - timedelta(days=1)}"
                sentence += f"; if it is not complete, begin with the day before: {before}"
            raise DataError(sentence)
        expected += _expectations(day)
    return tuple(expected)


def stopping(day: JudgedDay, suite: Suite, params: ValidateParams) -> list[Limit]:
    """Returns the limits by which a day is refused or held; none of a day that a person has accepted."""
    limits = [limit for limit in day.outside if _severity(limit.name, suite, params) != "warn"]
    accepted = day.day in params.accepted_days and _may_be_accepted(limits, suite, params)
    return [] if accepted else limits


def _may_be_accepted(limits: Sequence[Limit], suite: Suite, params: ValidateParams) -> bool:
    return all(_severity(limit.name, suite, params) == "hold" for limit in limits)


def _path_of_sample(day: date) -> Path:
    return FIGURES / f"day={day}.npz"


def _severity(name: str, suite: Suite, params: ValidateParams) -> str:
    own = suite.limits.get(name) if isinstance(suite.limits, dict) else None
    return own or params.unusual_day


def _stopped(day: JudgedDay, limits: Sequence[Limit], night: Night, *, may_be_accepted: bool) -> str:
    way = "or change its severity (validate.unusual_day, or limits of the suite)"
    if may_be_accepted:
        way = acceptance(day.day, night)
    return (
        f"{day.day} is unlike the {day.known.num_days} days before it: this {day.day:%A}: "
        f"{in_words(limits)}; fix the source and ingest again, {way}"
    )


def acceptance(day: date, night: Night) -> str:
    """Returns the words of an error on how a person lets a day in that is right."""
    return (
        f"or, if the day is right, open a night that accepts it: daybreak night --day {night.day} "
        f"--night {night.id}-accepted --set 'validate.accepted_days=[{day}]' --trigger REASON"
    )


def in_words(limits: Sequence[Limit]) -> str:
    """Returns the first limits in words, and how many more there are."""
    more = f"; and {len(limits) - SHOWN} more" if len(limits) > SHOWN else ""
    return "; ".join(map(str, limits[:SHOWN])) + more


def _expectations(day: JudgedDay) -> Iterator[Expectation]:
    """Yields what the report says of a day: each figure that is outside, the volume, and a short history."""
    for limit in day.outside:
        yield Expectation(
            rule=f"{day.day:%A} {day.day}: {limit}", column="(day)", num_failed=1, success=False
        )
    for limit in day.limits:
        if limit.name == "rows" and limit.holds:
            rule = f"{day.day:%A} {day.day}: {limit}"
            yield Expectation(rule=rule, column="(day)", num_failed=0, success=True)
    if day.known.note:
        yield Expectation(rule=day.known.note, column="(day)", num_failed=0, success=True)


def _digests(
    of_rows: Mapping[date, str], ripe: Mapping[date, bool], table: Table, rules: str
) -> dict[date, str]:
    """Returns the digest of what the figures of each day are of."""
    modules = (day_figures, day_sample, figure, label_forecast, label_neighbours)
    code = [inspect.getsource(module) for module in modules]
    shared = [rules, records.dumps(table), *code]

    def digest(day: date) -> str:
        text = json.dumps([of_rows[day], ripe[day], *shared])
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    return {day: digest(day) for day in ripe}

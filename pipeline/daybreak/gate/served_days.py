"""Compares the rows that the champion predicts with the days that it was made of, each served day once.

Routers keep a sample of them (daybreak/storage/kept_rows.py). Once a day is over in the zone of the table,
its rows are measured as `validate` measures a day's (daybreak/data/drift.py): against the last same weekdays
up to the night that made the version, by the limits of the suite, or `validate.max_drift`. So are the
predictions. As only some requests are kept, a limit is wider by what so many requests differ from their day
by chance. Together with the limits that `init` proposes, sound days are unlike at the rate for drift, twice:
that of whole days, and that of the samples.

What is unlike on the first served day is computed otherwise in serving than in training, or has been another
since before; what was as in training on a served day has drifted since. A day with too few requests is not
compared, and the day of a promotion or a rollback only by rows of the hours since.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

from daybreak.contract import days, records
from daybreak.contract.errors import DataError, PipelineError, sentence
from daybreak.contract.formats import counted, one_line
from daybreak.contract.record_parts import Drift, ServedDay, ServedDrift
from daybreak.contract.record_types import Release, ServedDays
from daybreak.contract.sections import ValidateParams, WatchSections
from daybreak.contract.table import Float, Table, Time
from daybreak.data import drift, suite
from daybreak.data.daily_limits import DAYS_PER_YEAR, DRIFT_SHARE
from daybreak.data.drift import LEAST_WEEKDAYS, ROWS, SAME_WEEKDAYS
from daybreak.data.partitions import CLEAN, part_of, partitions
from daybreak.evaluation import own_code, own_predictions
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from daybreak.storage.kept_rows import KeptDay, KeptRows
from daybreak.storage.ledger import Entry
from daybreak.storage.traffic_log import Log, existing_log
from daybreak.workloads.served_rows import conformed

if TYPE_CHECKING:
    import pyarrow as pa

LEAST_REQUESTS = 100  # of a day, for it to be compared
LEAST_HOURS = 12  # of the first day
DAY_MINUTES = 24 * 60
MAX_ROWS = 50_000  # of a training day
NUM_DAYS = 7  # that are compared, the newest, where a version begins to serve again, or was not looked at


@dataclass(frozen=True, kw_only=True)
class ServedComparison:
    """The columns that were compared, and those beyond their limits, each with both values in words."""

    columns: tuple[str, ...]
    unlike: tuple[tuple[Drift, str], ...]


def look(home: Home, serving: Release, params: WatchSections) -> ServedDay | None:
    """Compares the served days that are over and were not compared yet; returns the newest of all.

    There is none where no row is kept.
    """
    log = existing_log(params.serving, home.folder)
    if log is None:
        return None
    try:
        return _compared(home, serving, params, log)
    finally:
        log.close()


def _compared(home: Home, serving: Release, params: WatchSections, log: Log) -> ServedDay | None:
    kept = log.kept_rows.days(serving.version)
    (made,) = ledger.promotions(home, serving.version) if kept else (None,)
    table = branch.read_at(home, made.commit, Table) if made else None
    if made is None or table is None:
        return None
    known = records.find(ServedDays, home.var)
    if known is None or known.version != serving.version:
        known = ServedDays(version=serving.version)
    newest = days.newest_over(table.zone, at=datetime.fromtimestamp(log.now(), UTC))
    before = known.days[-1].day if known.days else date.min
    # Before, it met some users as a challenger, or served before a rollback.
    since = datetime.fromtimestamp(ledger.releases(home)[0].time, ZoneInfo(table.zone))
    looked = _Look(home=home, serving=serving, made=made, table=table, params=params, since=since)
    kept = [one for one in kept if date.fromisoformat(one.day) >= since.date()]
    for one in kept[-NUM_DAYS:]:
        if before < date.fromisoformat(one.day) <= newest:
            found = looked.at(one, log, known, is_first=one is kept[0])
            known = replace(known, days=(*known.days, found))
            records.write(known, home.var)
    return known.days[-1] if known.days else None


@dataclass(frozen=True, kw_only=True)
class _Look:
    """A look at the served days of a version."""

    home: Home
    serving: Release
    made: Entry  # the night that promoted it
    table: Table
    params: WatchSections
    since: datetime  # it serves all users, in the zone of the table

    def at(self, kept: KeptDay, log: Log, known: ServedDays, *, is_first: bool) -> ServedDay:
        """Returns what a served day is unlike, or why it was not compared."""
        day = date.fromisoformat(kept.day)
        found = ServedDay(day=day, num_requests=kept.num_requests)
        if kept.num_requests < LEAST_REQUESTS:
            too_few = f"{counted(kept.num_requests, 'request')} are too few, {LEAST_REQUESTS} are compared"
            return replace(found, fault=f"{too_few}; raise serving.keep_rows")
        begun = max(self.since, datetime.fromtimestamp(kept.since, ZoneInfo(self.table.zone)))
        served_for = days.ends(day, self.table.zone) - begun
        if is_first and served_for < timedelta(hours=LEAST_HOURS):
            hours = counted(round(served_for.total_seconds() / 3600), "hour")
            return replace(found, fault=f"of the day only {hours} were served, {LEAST_HOURS} are compared")
        clean = _clean(self.home)
        same = weekdays_before(day, clean, until=self.made.night.day)
        if len(same) < LEAST_WEEKDAYS:
            few = f"{len(same)} of {LEAST_WEEKDAYS} {day:%A}s up to {self.made.night.day} to compare with"
            return replace(found, fault=few)
        minutes = (60 * begun.hour + begun.minute if is_first else 0, DAY_MINUTES)
        requests = list(log.kept_rows.of(self.serving.version, kept.day))
        try:
            compared = compare_requests(
                requests,
                self.table,
                clean=clean,
                days=same,
                minutes=minutes,
                suite_file=self.home.folder / self.params.validate_.suite,
                params=self.params.validate_,
            )
        except (PipelineError, OSError) as error:
            return replace(found, fault=sentence(error))
        try:
            of_predictions = self._predictions(requests, clean, same, minutes)
            compared = ServedComparison(
                columns=(*compared.columns, *of_predictions.columns),
                unlike=(*compared.unlike, *of_predictions.unlike),
            )
        except (PipelineError, OSError) as error:
            found = replace(found, fault=f"the predictions are not compared: {sentence(error)}")
        return replace(
            found,
            compared=compared.columns,
            drift=tuple(
                ServedDrift(
                    column=one.column,
                    statistic=one.statistic,
                    value=one.value,
                    limit=one.limit,
                    words=f"{one.column.removesuffix(' nulls')} {words}",
                    since=_newest_like(one.column, known),
                )
                for one, words in compared.unlike
            ),
        )

    def _predictions(
        self, requests: Sequence[KeptRows], clean: Path, same: Sequence[date], minutes: tuple[int, int]
    ) -> ServedComparison:
        """Returns how the predictions compare with those of rows of clean days; of numbers only."""
        import pyarrow as pa

        time = self.table.time
        answers = [answer for one in requests for answer in json.loads(one.predictions)]
        columns = {name: column for name in answers[0] if (column := _column([one[name] for one in answers]))}
        of = Table(time=time, columns={time: Time(), **columns})
        with own_code.fetched(self.home, self.serving, name=self.params.register_.name) as folder:
            made = own_predictions.predictions(self.home, self.serving, folder, clean=clean, days=same)
        times = pa.concat_tables([conformed(one.rows, self.table).select([time]) for one in requests])
        served = pa.table({time: times[time], **{name: [one[name] for one in answers] for name in columns}})
        compared = compare(
            _within(served.cast(of.schema()), time, minutes),
            [_within(one.select(of.columns).cast(of.schema()), time, minutes) for one in made],
            of,
            num_requests=len(requests),
            limits={time: "off"},
            params=self.params.validate_,
        )
        return ServedComparison(
            columns=tuple(f"({name})" for name in compared.columns),
            unlike=tuple((replace(one, column=f"({one.column})"), words) for one, words in compared.unlike),
        )


def weekdays_before(day: date, clean: Path, *, until: date) -> list[date]:
    """Returns the last clean days of that weekday up to another day, which a served day is compared with."""
    same = [one for one in partitions(clean) if one.weekday() == day.weekday() and one <= until]
    return same[-SAME_WEEKDAYS:]


def compare_requests(
    requests: Sequence[KeptRows],
    table: Table,
    *,
    clean: Path,
    days: Sequence[date],
    minutes: tuple[int, int],
    suite_file: Path,
    params: ValidateParams,
) -> ServedComparison:
    """Returns how the columns of the rows of requests compare with those of clean days.

    Args:
        requests: one at least.
        table: of the rows, as clients send them.
        clean: the folder of clean rows.
        days: of these, two at least.
        minutes: of the day, from the first to before the second; rows of others are left out.
        suite_file: where it is there, it has the limits of drift.
        params: the rate of false alarms, and the limit of drift of columns without one.
    """
    import pyarrow as pa

    limits = suite.load(suite_file).drift if suite_file.exists() else {}
    if limits == "off":
        return ServedComparison(columns=(), unlike=())
    served = pa.concat_tables([conformed(one.rows, table) for one in requests])
    before = [_within(_some(day, clean, table), table.time, minutes) for day in days]
    known = set.intersection(*(set(part.column_names) for part in before))
    unknown = {*table.columns} - known  # the label among them
    return compare(
        _within(served, table.time, minutes),
        before,
        table,
        num_requests=len(requests),
        limits={**limits, **dict.fromkeys([*unknown, *(f"{name} nulls" for name in unknown)], "off")},
        params=params,
    )


def compare(
    served: "pa.Table",
    before: "Sequence[pa.Table]",
    table: Table,
    *,
    num_requests: int,
    limits: Mapping[str, float | Literal["off"]],
    params: ValidateParams,
) -> ServedComparison:
    """Returns how the columns of served rows compare with those of the days before.

    A limit is that of drift for whole days, and what `num_requests` are from their own day by chance: at the
    rate of drift, shared by the columns.
    """
    distances = drift.distances(
        served.column,
        [one.column for one in before],
        table,
        limits={**limits, ROWS: "off"},  # they are a sample
        limit=params.max_drift,
    )
    rate = params.false_alarms_per_year or ValidateParams().false_alarms_per_year
    chance = DRIFT_SHARE * rate / DAYS_PER_YEAR / max(1, len(distances))
    unlike = []
    for one in distances:
        if one.value <= one.limit:
            continue
        name = one.column if one.column in table.columns else one.column.removesuffix(" nulls")
        new, old = served[name], _pooled([part[name] for part in before])
        known = len(new) if one.statistic == drift.MISSING else len(new) - new.null_count
        num = max(1, round(num_requests * known / len(new)))
        limit = one.limit + drift.by_chance(one.statistic, old, num=num, chance=chance)
        if one.value > limit:
            words = drift.in_words(table.columns[name], one.statistic, new, old)
            unlike.append((replace(one, limit=limit), f"{words[0]}, not {words[1]}"))
    return ServedComparison(columns=tuple(one.column for one in distances), unlike=tuple(unlike))


def _newest_like(column: str, known: ServedDays) -> date | None:
    """Returns the newest day on which a column was compared and within its limit."""
    like = [
        one.day
        for one in known.days
        if column in one.compared and column not in {each.column for each in one.drift}
    ]
    return max(like, default=None)


def _clean(home: Home) -> Path:
    """Returns the folder of clean rows of the newest night that has some here."""
    folders = [home.nights / commit.night for commit in ledger.commits(home)]
    held = (folder / CLEAN for folder in (*folders, home.folder))
    return next((clean for clean in held if partitions(clean)), home.folder / CLEAN)


def _some(day: date, clean: Path, table: Table) -> "pa.Table":
    """Returns MAX_ROWS of the rows of a clean day, evenly spaced; all of fewer.

    Columns that are not as in the version's table, since that was edited, are left out. Raises DataError
    where the file is not whole.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = part_of(day, clean)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as part:
            num_rows = part.metadata.num_rows
            places = np.linspace(0, num_rows - 1, min(MAX_ROWS, num_rows)).astype(int)
            fields = {field.name: field.type for field in part.schema_arrow}
            names = [one for one in table.features if fields.get(one) == table.schema().field(one).type]
            return pa.table({name: part.read([name])[name].take(places) for name in names})
    except pa.ArrowException as error:
        raise DataError(f"{path} cannot be read: {one_line(str(error))}; run validate again") from None


def _within(rows: "pa.Table", time: str, minutes: tuple[int, int]) -> "pa.Table":
    """Returns the rows from a minute of the day to before another."""
    import pyarrow.compute as pc

    if minutes == (0, DAY_MINUTES):
        return rows
    of_rows = minutes_of_day(rows[time])
    return rows.filter(pc.and_(pc.greater_equal(of_rows, minutes[0]), pc.less(of_rows, minutes[1])))


def minutes_of_day(times: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Returns the minute of the day of each time."""
    import pyarrow.compute as pc

    return pc.add(pc.multiply(pc.hour(times), 60), pc.minute(times))


def _pooled(parts: "Sequence[pa.ChunkedArray]") -> "pa.ChunkedArray":
    import pyarrow as pa

    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=parts[0].type)


def _column(values: Sequence[Any]) -> Float | None:
    """Returns the column of predictions that are numbers, or lists of as many numbers; else None."""
    sizes = {len(value) if isinstance(value, list) else 0 for value in values}
    flat = [number for value in values for number in (value if isinstance(value, list) else [value])]
    if len(sizes) > 1 or not all(isinstance(number, int | float) for number in flat):
        return None
    return Float(size=sizes.pop())

"""Reads exposures and outcomes from a team that serves by itself.

A row has the user, the version, the time, and the value of the team's metric once known:

    {"user": "14980", "version": 4, "time": "2026-11-23T10:00:00Z", "metric": 12.5}

The user's arm follows from the traffic as it stood then (`TrafficRow.moves`), by the same hash that the
router and daybreak/extensions/router/assigner.py draw by:

    the version that the hash gives          an exposure in its arm
    the experiment's other version           an exposure that had no chance, so that nothing is believed
    the challenger of another slot           likewise, in the experiment of that challenger
    another version, or no experiment        counted for forecasts alone
    within SETTLE_S of a move                likewise, as servers read a move later, and clocks differ

Leaving out all rows near a move, in either arm, does not bias the arms. An exposure is named by unit, version
and time, so that a row may come again: an equal row changes nothing, and a row with a metric completes an
earlier row without.
"""

import math
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from re import fullmatch
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import DataError
from daybreak.extensions.live_test.live_score import report
from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.statistics.assignment import CHALLENGER, CHAMPION, arm_of, propensity, slot_of
from daybreak.storage.exposures import Exposure, Outcome, attributes_of
from daybreak.storage.traffic_row import Traffic

if TYPE_CHECKING:
    from daybreak.storage.traffic_log import Log

SETTLE_S = 10.0  # until every server follows a move of the traffic, and by how much clocks may differ
READ_DAYS = 7  # newest days of a source that each look reads, so that late values are taken in
NUMBERS = ("metric", "latency_s")  # columns of a source that may be text, in its format of numbers
MAX_NAME = 200  # characters of a user
MAX_VERSION = 2**31 - 1  # what the log's column of integers holds
Row = Mapping[str, Any]


def read(log: "Log", params: LiveTestParams, *, now: datetime, erased: Container[str] | None = None) -> int:
    """Takes in the newest days of the team's source, if it has one; returns the number of rows.

    The source may still have rows of users who were erased; they stay out where they name the
    user. Raises DataError, with no row of that day taken in, where one is malformed or the source cannot be
    read.
    """
    if params.observations is None:
        return 0
    import pyarrow.parquet as pq

    from daybreak.data import numbers
    from daybreak.data.partitions import PART

    source, num_rows = params.observations.make(), 0
    first = (now - timedelta(days=READ_DAYS, hours=params.outcome_hours)).date()
    with tempfile.TemporaryDirectory() as scratch:
        for day in source.days():
            if day < first:
                continue
            folder = Path(scratch) / str(day)
            source.fetch(day, folder)
            rows = pq.read_table(folder / PART, page_checksum_verification=True)
            for place, name in enumerate(rows.column_names):
                if name in NUMBERS and numbers.is_text(rows[name].type):
                    form = numbers.format_of(rows.schema.field(name))
                    rows = rows.set_column(place, name, numbers.plain(rows[name], form))
            try:
                num_rows += take_in(log, rows.to_pylist(), now=now, erased=erased)
            except DataError as error:
                raise DataError(f"live_test.observations, {day}, {error}") from None
    return num_rows


def take_in(log: "Log", rows: Iterable[Row], *, now: datetime, erased: Container[str] | None = None) -> int:
    """Writes rows to the log, but for those of erased users, and returns their number.

    Raises DataError, with none of them written, where one is malformed; the sentence has its number.
    """
    numbered = [_checked(row, number, now=now, unit_of=log.unit_of) for number, row in enumerate(rows, 1)]
    if erased is not None:
        numbered = [row for row in numbered if row["user"] is None or row["user"] not in erased]
    known = log.exposures.known([row["id"] for row in numbered])  # most of a file, from the second look on
    new = [row for row in numbered if not _is_told(row, known)]
    if new:
        moves = log.traffic.moves(since=min(row["time"] for row in new) - SETTLE_S)
        outcomes = [
            Outcome(exposure=row["id"], items=report(row["metric"]), time=row["time"])
            for row in new
            if row["metric"] is not None
        ]
        log.exposures.write(list(exposures_of(new, moves=moves)), outcomes)
    return len(numbered)


def _is_told(row: Row, known: Mapping[str, bool]) -> bool:
    """Returns whether the log has all that the row says."""
    return row["id"] in known and (known[row["id"]] or row["metric"] is None)


def exposures_of(rows: Iterable[Row], *, moves: Iterable[Traffic]) -> Iterator[Exposure]:
    """Yields the exposure of each row; arguments as `_checked` and `TrafficRow.moves` return them."""
    stood = list(_distinct(moves))
    times = list(accumulate((moved.changed_at for moved in stood), max))
    for row in rows:
        time, unit, version = row["time"], row["unit"], row["version"]
        at, soon = (bisect_right(times, time + around) for around in (-SETTLE_S, SETTLE_S))
        then = stood[at - 1] if at and at == soon else Traffic()
        experiment, arm, share = _drawn(unit, version, then)
        yield Exposure(
            id=row["id"],
            time=time,
            experiment=experiment,
            unit=unit,
            arm=arm,
            version=version,
            share=share,
            propensity=propensity(arm, share),
            items=(),
            latency_s=row["latency_s"],
            error=row["error"],
            attributes=row["attributes"],
        )


def _drawn(unit: str, version: int, then: Traffic) -> tuple[str, str, float]:
    """Returns the experiment, the version's arm there, and the challenger's share.

    The share gives the arm no chance if it is not as drawn.
    """
    test = next((test for test in then.tests if test.challenger == version), None)
    then = then.in_slot(slot_of(unit, then.num_slots))
    if test and test.experiment != then.experiment:
        return test.experiment, CHALLENGER, 0.0
    if not then.experiment or version not in (then.champion, then.challenger):
        return "", CHAMPION, 0.0
    arm = CHALLENGER if test else CHAMPION
    if arm == arm_of(unit, experiment=then.experiment, share=then.share):
        return then.experiment, arm, then.share
    return then.experiment, arm, 0.0 if arm == CHALLENGER else 1.0


def _distinct(moves: Iterable[Traffic]) -> Iterator[Traffic]:
    """Yields the moves by which a user may meet another version."""
    for before, after in pairwise((Traffic(revision=-1), *moves)):
        if replace(before, revision=0, ready=0, changed_at=0) != replace(
            after, revision=0, ready=0, changed_at=0
        ):
            yield after


def _checked(row: Any, number: int, *, now: datetime, unit_of: Callable[[str], str]) -> dict[str, Any]:
    """Returns a row as typed values with a unit and an id; raises DataError for an invalid row."""
    try:
        if not isinstance(row, Mapping):
            raise ValueError(f"it is {row!r:.50}; give an object")
        given = {name: None if _is_missing(value) else value for name, value in row.items()}
        time = _time(given.get("time"))
        if time > now.timestamp() + SETTLE_S:
            raise ValueError(f"time is {row['time']!r:.50}, which is in the future; give seconds since 1970")
        if time < 0:
            raise ValueError(f"time is {row['time']!r:.50}, which is before 1970; give seconds since 1970")
        version = _whole(given.get("version"))
        user = None
        if given.get("unit") is None:
            unit = unit_of(user := _name(given.get("user")))
        else:
            unit = str(given["unit"])
            if not fullmatch("[0-9a-f]{16}", unit):
                raise ValueError(f"unit is {unit!r:.50}; give it as the assignment has it, or name the user")
        name = f"{unit} {version} {round(time * 1e6)}"
        return {
            "id": blake2b(name.encode(), digest_size=16).hexdigest(),
            "unit": unit,
            "user": user,  # None: only the unit is named
            "version": version,
            "time": time,
            "metric": _number("metric", given.get("metric")),
            "latency_s": _number("latency_s", given.get("latency_s")) or 0.0,
            "error": _plain(str(given.get("error") or "")),
            "attributes": attributes_of(given.get("attributes")),
        }
    except (ValueError, OverflowError) as error:
        raise DataError(f"row {number}: {error}") from None


def _plain(text: str) -> str:
    """Returns the beginning of a text in ASCII without zeros, which any database takes."""
    return text[:MAX_NAME].encode("ascii", "backslashreplace").decode()[:MAX_NAME].replace("\0", " ")


def _is_missing(value: Any) -> bool:
    return value == "" or (isinstance(value, float) and math.isnan(value))


def _name(user: Any) -> str:
    if isinstance(user, float) and user.is_integer():  # of tools that keep numbers with gaps as floats
        user = int(user)
    name = str(user) if isinstance(user, int) and not isinstance(user, bool) else user
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"user is {user!r:.50}; name one by 1 to {MAX_NAME} characters")
    return name


def _whole(version: Any) -> int:
    number = _number("version", version)
    if number is None or not 1 <= number <= MAX_VERSION or number != int(number):
        raise ValueError(f"version is {version!r:.50}; give the number of the version that answered")
    return int(number)


def _number(name: str, value: Any) -> float | None:
    """Returns a finite number, or None where there is none."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r:.50}; give a number")
    return number


def _time(value: Any) -> float:
    """Returns seconds since 1970 of such a number, a moment, or ISO 8601; without a zone it is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = _number("time", value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    seconds = None if isinstance(value, bool) else _number("time", value)
    if seconds is None:
        raise ValueError(f"time is {value!r:.50}; give seconds since 1970, or ISO 8601")
    return seconds

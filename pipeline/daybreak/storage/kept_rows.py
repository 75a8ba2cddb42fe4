"""Keeps a sample of the rows that routers predicted, each request with the predictions that answered it.

A row of the table is a request: its rows as the client sent them. What it is an answer to, and by which
version, says its exposure, with which it is forgotten or erased. A request is drawn by the random digits of
its exposure's id, so that several routers draw alike, and users are among those kept in the shares in which
they came. Of a day with more than MAX_ROWS_A_DAY rows, the requests with the smallest numbers stay: a sample
of the whole day, whenever its rows came.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import sqlalchemy as sa

from daybreak.contract.table import code
from daybreak.storage.traffic_database import EXPOSURES, KEPT_ROWS, TrafficDatabase

MAX_ROWS_A_DAY = 10_000
MAX_CHARACTERS = 10_000  # of a row and its predictions; what has more counts as several rows
ROOM = 1.25  # times as many may be there until the others are removed
_WITH_EXPOSURES = KEPT_ROWS.join(EXPOSURES, EXPOSURES.c.id == KEPT_ROWS.c.exposure)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRows:
    """The rows of a request, and what was predicted of them."""

    day: str  # on which it was answered, in the zone of the version's table
    rows: Sequence[Mapping[str, Any]]
    predictions: str  # JSON: an object for each row


@dataclass(frozen=True, kw_only=True)
class KeptDay:
    """How much is kept of a day's requests to a version."""

    day: str
    since: float  # the first of them, in seconds since 1970
    num_requests: int


def place_of(exposure: str) -> float:
    """Returns the random number in [0, 1) that an exposure's id has in it, the same wherever it is asked."""
    return int(exposure[8:16], 16) / 2**32


class KeptRowsLog:
    """The kept rows of a log; threads may share it."""

    def __init__(self, database: TrafficDatabase) -> None:
        self._database = database

    def insert(self, connection: sa.Connection, kept: Mapping[str, KeptRows]) -> None:
        """Adds requests by the ids of their exposures."""
        lines = []
        for exposure, one in kept.items():
            rows = json.dumps(one.rows)
            lines.append(
                {
                    "exposure": exposure,
                    "day": one.day,
                    "place": place_of(exposure),
                    "size": max(len(one.rows), ceil((len(rows) + len(one.predictions)) / MAX_CHARACTERS)),
                    "rows": rows,
                    "predictions": one.predictions,
                }
            )
        connection.execute(self._database.insert(KEPT_ROWS), lines)
        for day in {one.day for one in kept.values()}:
            total = sa.select(sa.func.sum(KEPT_ROWS.c.size)).where(KEPT_ROWS.c.day == day)
            if connection.execute(total).scalar_one() > ROOM * MAX_ROWS_A_DAY:
                too_many = sa.select(KEPT_ROWS.c.exposure).where(KEPT_ROWS.c.day == day)
                too_many = too_many.where(KEPT_ROWS.c.exposure.not_in(_sample(day)))
                connection.execute(sa.delete(KEPT_ROWS).where(KEPT_ROWS.c.exposure.in_(too_many)))

    def days(self, version: int) -> list[KeptDay]:
        """Returns the days of which requests to a version are kept, in order."""
        day, time = KEPT_ROWS.c.day, EXPOSURES.c.time
        query = (
            sa.select(day, sa.func.min(time), sa.func.count())
            .select_from(_WITH_EXPOSURES)
            .where(EXPOSURES.c.version == version)
            .group_by(day)
            .order_by(day)
        )
        with self._database.reading() as connection:
            return [
                KeptDay(day=name, since=since, num_requests=num)
                for name, since, num in connection.execute(query)
            ]

    def of(self, version: int, day: str) -> Iterator[KeptRows]:
        """Yields the kept requests of a day to a version, in the order of their exposures."""
        yield from self._of_day(day, EXPOSURES.c.version == version)

    def newest_of(self, experiment: str, *, least: int) -> Iterator[KeptRows]:
        """Yields the kept requests of a day of an experiment, whichever version answered.

        It is the newest day that has at least so many, as one that has just begun has few; else the newest.
        """
        of_it = EXPOSURES.c.experiment == experiment
        query = sa.select(KEPT_ROWS.c.day, sa.func.count()).select_from(_WITH_EXPOSURES).where(of_it)
        newest_first = query.group_by(KEPT_ROWS.c.day).order_by(KEPT_ROWS.c.day.desc())
        with self._database.reading() as connection:
            days = [(day, num) for day, num in connection.execute(newest_first)]
        if days:
            yield from self._of_day(next((day for day, num in days if num >= least), days[0][0]), of_it)

    def _of_day(self, day: str, those: sa.ColumnElement[bool]) -> Iterator[KeptRows]:
        query = (
            sa.select(KEPT_ROWS.c.rows, KEPT_ROWS.c.predictions)
            .select_from(_WITH_EXPOSURES)
            .where(those, KEPT_ROWS.c.exposure.in_(_sample(day)))
            .order_by(KEPT_ROWS.c.exposure)
        )
        with self._database.reading() as connection:
            for rows, predictions in connection.execution_options(yield_per=1000).execute(query):
                yield KeptRows(day=day, rows=json.loads(rows), predictions=predictions)

    def erase(self, column: str, unit: str, *, dry_run: bool = False) -> int:
        """Removes the requests with a row of a unit, as the table has it; returns how many rows are its own.

        It looks into the rows, as a version may have had another unit, and so may the exposure.
        """
        theirs: list[str] = []
        num_rows = 0
        with self._database.reading() as connection:
            query = sa.select(KEPT_ROWS.c.exposure, KEPT_ROWS.c.rows)
            for exposure, rows in connection.execution_options(yield_per=1000).execute(query):
                num = sum(code(str(row.get(column))) == unit for row in json.loads(rows))
                num_rows += num
                theirs += [exposure] if num else []
        if theirs and not dry_run:
            with self._database.erasing() as connection:
                removed = sa.delete(KEPT_ROWS).where(KEPT_ROWS.c.exposure == sa.bindparam("id"))
                connection.execute(removed, [{"id": exposure} for exposure in theirs])
        return num_rows


def _sample(day: str) -> sa.Select[Any]:
    """Selects the exposures of a day's sample, in the order of their numbers, up to MAX_ROWS_A_DAY.

    One that is out stays out, whatever comes later, so that those removed are missing in no sample.
    """
    size = KEPT_ROWS.c.size
    before = (sa.func.sum(size).over(order_by=KEPT_ROWS.c.place) - size).label("before")
    counted = sa.select(KEPT_ROWS.c.exposure, before).where(KEPT_ROWS.c.day == day).subquery()
    return sa.select(counted.c.exposure).where(counted.c.before < MAX_ROWS_A_DAY)

"""Records exposures, which are answers to users, with their predictions and outcomes.

    exposures   an answer that a router gave: unit, arm, version, items; never the user's own name
    predictions predictions for rows, to be scored by labels
    attributes  what the client said of the user with the request, such as the device
    kept_rows   the rows themselves, of a sample of the requests (daybreak/storage/kept_rows.py)
    shadows     what a challenger answered to the same request, which nobody was shown
    outcomes    items that the user then took, or labels of the rows; the first of an exposure stays

An exposure records the version and the share that it was drawn with, since routers need a moment to follow a
move of the traffic.
"""

import functools
import itertools
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import sqlalchemy as sa

from daybreak.storage.kept_rows import KeptRows, KeptRowsLog
from daybreak.storage.log_clock import LogClock
from daybreak.storage.traffic_database import (
    ATTRIBUTES,
    EXPOSURES,
    KEPT_ROWS,
    OUTCOMES,
    PREDICTIONS,
    SHADOWS,
    TrafficDatabase,
)

MAX_ATTRIBUTES = 10  # of an exposure
MAX_TEXT = 60  # characters of an attribute, and of its name
MAX_ROWS = 500  # of a statement; SQLite takes 32,766 values


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposure:
    """An answer to a user, and the outcome that the user reported."""

    id: str
    time: float  # seconds since 1970
    experiment: str
    unit: str
    arm: str  # champion or challenger
    version: int
    share: float  # of the challenger when the arm was drawn
    propensity: float  # chance of this arm
    items: tuple[str, ...]  # best first
    latency_s: float  # within the router
    error: str = ""  # why the model did not answer
    fallback: bool = False  # the popular items were shown, not the model's
    predicted: str | None = None  # of rows, JSON: a list by the name of the prediction
    attributes: tuple[tuple[str, str], ...] = ()  # of the user, as the client sent them, by name
    kept: KeptRows | None = None  # the rows themselves, where the request is in the sample; not read again
    taken: tuple[str, ...] | None = None  # by the user, or labels as JSON; None if not reported (yet)
    taken_at: float | None = None  # when that was reported


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The items that a user took after an exposure, shown or not; or the labels of rows, each as JSON."""

    exposure: str
    items: tuple[str, ...]
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Shadow:
    """A challenger's answer to a request that the champion answered, which nobody was shown."""

    exposure: str  # the champion's answer
    version: int
    dropped: bool = False  # not asked, as too many requests waited for it
    latency_s: float = 0.0
    error: str = ""  # why the model did not answer
    fallback: bool = False
    difference: float | None = None  # from the champion's answer, in [0, 1]; None where either has none


@dataclass(frozen=True, kw_only=True, slots=True)
class ShadowedExposure:
    """The champion's answer to a request, and the challenger's in its shadow."""

    unit: str
    time: float
    latency_s: float  # of the champion
    error: str
    fallback: bool
    shadow: Shadow


def attributes_of(given: Any) -> tuple[tuple[str, str], ...]:
    """Returns the attributes of a user as texts by name; raises ValueError for those of another form."""
    if given is None:
        return ()
    if not isinstance(given, Mapping) or len(given) > MAX_ATTRIBUTES:
        raise ValueError(f"attributes is {given!r:.50}; give an object of at most {MAX_ATTRIBUTES} values")
    texts = {}
    for name, value in given.items():
        if value is None:
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        if isinstance(value, list | dict) or not 0 < len(name) <= MAX_TEXT or not 0 < len(text) <= MAX_TEXT:
            raise ValueError(
                f"attribute {name!r:.50} is {value!r:.50}; give a text, number or boolean, of which name and "
                f"value have 1 to {MAX_TEXT} characters"
            )
        texts[_plain(name)] = _plain(text)
    return tuple(sorted(texts.items()))


def _plain(text: str) -> str:
    """Returns a text in ASCII without zeros, which any database takes."""
    return text.encode("ascii", "backslashreplace").decode().replace("\0", " ")


class ExposureLog:
    """The exposures of a log, with their outcomes; threads may share it."""

    def __init__(self, database: TrafficDatabase, clock: LogClock) -> None:
        self._database, self._clock = database, clock
        self._one_row, self._kept_rows = database.text_of(database.insert(EXPOSURES)), KeptRowsLog(database)

    def add(self, exposure: Exposure) -> None:
        """Records an exposure."""
        self.write([exposure], [])

    def add_outcome(self, exposure: str, items: Sequence[str]) -> bool:
        """Records the items taken, unless an outcome is known; returns False for an unknown exposure."""
        outcome = Outcome(exposure=exposure, items=tuple(items), time=self._clock.now())
        return self.write([], [outcome])[0]

    def write(
        self, exposures: Sequence[Exposure], outcomes: Sequence[Outcome], shadows: Sequence[Shadow] = ()
    ) -> list[bool]:
        """Records everything in one commit; returns for each outcome whether the exposure is known."""
        with self._database.writing() as connection:
            if exposures:
                self._insert_exposures(connection, exposures)
            if shadows:
                connection.execute(self._database.insert(SHADOWS), [asdict(one) for one in shadows])
            if not outcomes:
                return []
            ids = sorted({outcome.exposure for outcome in outcomes})
            known: set[str] = set()
            for start in range(0, len(ids), MAX_ROWS):
                some = sa.select(EXPOSURES.c.id).where(EXPOSURES.c.id.in_(ids[start : start + MAX_ROWS]))
                known |= set(connection.execute(some).scalars())
            rows = [
                {"exposure": outcome.exposure, "time": outcome.time, "items": json.dumps(outcome.items)}
                for outcome in outcomes
                if outcome.exposure in known
            ]
            if rows:
                connection.execute(self._database.insert(OUTCOMES), rows)
        return [outcome.exposure in known for outcome in outcomes]

    def known(self, ids: Sequence[str]) -> dict[str, bool]:
        """Returns the known exposures among `ids`, and for each whether the outcome is known."""
        both = EXPOSURES.outerjoin(OUTCOMES, OUTCOMES.c.exposure == EXPOSURES.c.id)
        query = sa.select(EXPOSURES.c.id, OUTCOMES.c.exposure.is_not(None)).select_from(both)
        has_outcomes: dict[str, bool] = {}
        with self._database.reading() as connection:
            for start in range(0, len(ids), MAX_ROWS):
                some = query.where(EXPOSURES.c.id.in_(ids[start : start + MAX_ROWS]))
                has_outcomes |= {name: has_outcome for name, has_outcome in connection.execute(some)}
        return has_outcomes

    def of(self, experiment: str | None, *, since: float = 0.0) -> Iterator[Exposure]:
        """Yields the exposures of an experiment, or of all, since a time, oldest first, with outcomes."""
        both = EXPOSURES.outerjoin(OUTCOMES, OUTCOMES.c.exposure == EXPOSURES.c.id)
        both = both.outerjoin(ATTRIBUTES, ATTRIBUTES.c.exposure == EXPOSURES.c.id)
        both = both.outerjoin(PREDICTIONS, PREDICTIONS.c.exposure == EXPOSURES.c.id)
        query = (
            sa.select(
                *EXPOSURES.columns,
                PREDICTIONS.c.predicted,
                ATTRIBUTES.c.attributes,
                OUTCOMES.c["items"].label("taken"),
                OUTCOMES.c.time.label("taken_at"),
            )
            .select_from(both)
            .where(EXPOSURES.c.time >= since)
            .order_by(EXPOSURES.c.time, EXPOSURES.c.id)
        )
        if experiment is not None:
            query = query.where(EXPOSURES.c.experiment == experiment)
        with self._database.reading() as connection:
            for row in connection.execution_options(yield_per=10_000).execute(query).mappings():
                taken = None if row["taken"] is None else tuple(json.loads(row["taken"]))
                attributes = _attributes(row["attributes"]) if row["attributes"] else ()
                items = tuple(json.loads(row["items"]))
                yield Exposure(**{**row, "items": items, "taken": taken, "attributes": attributes})

    def tested(self, experiment: str, *, arm: str) -> set[int]:
        """Returns the versions that units of an experiment met in an arm, or had in the shadow."""
        met = sa.select(EXPOSURES.c.version).where(EXPOSURES.c.arm == arm)
        both = EXPOSURES.join(SHADOWS, SHADOWS.c.exposure == EXPOSURES.c.id)
        queries = (met, sa.select(SHADOWS.c.version).select_from(both))
        with self._database.reading() as connection:
            return {
                number
                for query in queries
                for number in connection.execute(
                    query.where(EXPOSURES.c.experiment == experiment).distinct()
                ).scalars()
            }

    def shadowed(self, experiment: str) -> Iterator[ShadowedExposure]:
        """Yields the answers of an experiment that have a challenger's in their shadow, oldest first."""
        query = (
            sa.select(EXPOSURES, *(SHADOWS.c[one.name].label(f"shadow_{one.name}") for one in fields(Shadow)))
            .select_from(EXPOSURES.join(SHADOWS, SHADOWS.c.exposure == EXPOSURES.c.id))
            .where(EXPOSURES.c.experiment == experiment)
            .order_by(EXPOSURES.c.time, EXPOSURES.c.id)
        )
        with self._database.reading() as connection:
            for row in connection.execution_options(yield_per=10_000).execute(query).mappings():
                yield ShadowedExposure(
                    unit=row["unit"],
                    time=row["time"],
                    latency_s=row["latency_s"],
                    error=row["error"],
                    fallback=row["fallback"],
                    shadow=Shadow(**{one.name: row[f"shadow_{one.name}"] for one in fields(Shadow)}),
                )

    def forget(self, *, before: float, dry_run: bool = False) -> int:
        """Removes exposures from before a time, with their outcomes; returns the number of exposures."""
        return self._remove(EXPOSURES.c.time < before, dry_run=dry_run, erases=False)

    def erase(self, unit: str, *, dry_run: bool = False) -> int:
        """Removes all that a unit met and did; returns the number of exposures."""
        return self._remove(EXPOSURES.c.unit == unit, dry_run=dry_run, erases=True)

    def _remove(self, which: "sa.ColumnElement[bool]", *, dry_run: bool, erases: bool) -> int:
        """Removes exposures with all that came of them; `erases`: so that no byte of them is left."""
        if dry_run:
            with self._database.reading() as connection:
                return connection.execute(sa.select(sa.func.count()).where(which)).scalar_one()
        ids = sa.select(EXPOSURES.c.id).where(which)
        with self._database.erasing() if erases else self._database.writing() as connection:
            for table in _BESIDE:
                connection.execute(sa.delete(table).where(table.c.exposure.in_(ids)))
            return connection.execute(sa.delete(EXPOSURES).where(which)).rowcount

    def _insert_exposures(self, connection: sa.Connection, exposures: Sequence[Exposure]) -> None:
        predicted = [
            {"exposure": one.id, "predicted": one.predicted} for one in exposures if one.predicted is not None
        ]
        if predicted:
            connection.execute(self._database.insert(PREDICTIONS), predicted)
        said = [
            {"exposure": one.id, "attributes": json.dumps(dict(one.attributes))}
            for one in exposures
            if one.attributes
        ]
        if said:
            connection.execute(self._database.insert(ATTRIBUTES), said)
        if kept := {one.id: one.kept for one in exposures if one.kept}:
            self._kept_rows.insert(connection, kept)
        rows = [(*row[:_ITEMS], _text(row[_ITEMS]), *row[_ITEMS + 1 :]) for row in map(_row, exposures)]
        if not self._database.is_sqlite:
            connection.execute(
                self._database.insert(EXPOSURES), [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
            )
            return
        # Many rows in one statement, which runs without Python's lock: the event loop goes on meanwhile.
        marks = f"({', '.join('?' * len(_COLUMNS))})"
        for start in range(0, len(rows), MAX_ROWS):
            some = rows[start : start + MAX_ROWS]
            statement = self._one_row.replace(marks, ", ".join([marks] * len(some)))
            connection.exec_driver_sql(statement, tuple(itertools.chain.from_iterable(some)))


_BESIDE = (OUTCOMES, PREDICTIONS, ATTRIBUTES, SHADOWS, KEPT_ROWS)  # by the id of their exposure
_COLUMNS = tuple(column.name for column in EXPOSURES.columns)
_row = operator.attrgetter(*_COLUMNS)
_ITEMS = _COLUMNS.index("items")


@functools.lru_cache(maxsize=10_000)
def _text(items: tuple[str, ...]) -> str:
    return json.dumps(items)


@functools.lru_cache(maxsize=10_000)
def _attributes(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(json.loads(text).items()))

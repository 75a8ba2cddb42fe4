"""Scans a partition by DuckDB: which of its rows fail which rules, and the figures of its day.

The rules become one condition that DuckDB computes while it reads the file, so only the rows that fail come
back: their numbers, and a truth value for each rule. Memory is that of one partition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from pipeline.contract.errors import ParamsError
from pipeline.contract.table import Float, Table
from pipeline.data.ingest import part_of
from pipeline.data.row_rules import failing, quoted
from pipeline.data.suite import COPIES, HOUR, MIDNIGHT, NUM_ROWS, Rule, Suite, imported

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_NUMBER = "file_row_number"  # of a row, as DuckDB calls it


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the rules say of a partition."""

    num_rows: int
    bad: "NDArray[np.int64]"  # numbers of the rows that fail a rule, in order
    failed: "NDArray[np.bool_]"  # which rules each of them fails; shape [bad, rules]
    figures: dict[str, float]  # of the day; NaN where there is none

    def good(self) -> "NDArray[np.bool_]":
        """Returns which rows fail no rule; shape [rows]."""
        import numpy as np

        good = np.ones(self.num_rows, dtype=np.bool_)
        good[self.bad] = False
        return good


class PartitionScan:
    """The rules and figures of a table, compiled once; ParamsError names the one that is wrong."""

    def __init__(self, table: Table, suite: Suite, rules: Sequence[Rule]) -> None:
        import duckdb

        self._table, self._suite, self._rules = table, suite, rules
        self._connection = duckdb.connect()
        self._connection.execute("SET enable_progress_bar = false")
        vectors = {
            name for name, column in table.columns.items() if isinstance(column, Float) and column.size
        }
        self._predicates = {
            number: failing(rule.name, type=rule.type, kwargs=rule.kwargs, vectors=vectors)
            for number, rule in enumerate(rules)
            if not rule.python
        }
        self._python = {number: imported(rule) for number, rule in enumerate(rules) if rule.python}
        self._check()

    def judge(self, day: date) -> Judged:
        """Returns which rows of the day's partition fail which rules, and the figures of the day."""
        import duckdb
        import pyarrow.parquet as pq

        part = part_of(day)
        source = f"(SELECT * FROM read_parquet('{part}', file_row_number = true, hive_partitioning = false))"
        num_rows = int(pq.read_metadata(part).num_rows)
        try:
            bad, failed = self._failed(self._with_columns(source, day))
            figures = self._figures(self._with_columns(source, day))
        except duckdb.Error as error:
            raise ParamsError(
                f"the suite's rules, columns or figures cannot be computed on {day}: {_first_line(error)}; "
                f"fix the SQL of the suite (validate.suite)"
            ) from None
        if self._python:
            rows = pq.read_table(part, partitioning=None).select(list(self._table.columns))
            bad, failed = self._with_python(rows, bad, failed)
        return Judged(num_rows=num_rows, bad=bad, failed=failed, figures={NUM_ROWS: num_rows} | figures)

    def _with_columns(self, source: str, day: date) -> str:
        """The rows of a source, with the derived columns that are needed."""
        columns = {name: f"({sql})" for name, sql in self._suite.columns.items()}
        named = {name for rule in self._rules for name in rule.columns}
        midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
        hour = f"(epoch_us({quoted(self._table.time)}) - {midnight}000000) / 3.6e9"
        every = ", ".join(map(quoted, self._table.columns))
        copies = f"row_number() OVER (PARTITION BY {every} ORDER BY {_NUMBER}) - 1"
        built_in = {MIDNIGHT: hour, HOUR: hour, COPIES: copies}
        taken = {name.lower() for name in self._table.columns}
        columns |= {name: sql for name, sql in built_in.items() if name in named and name not in taken}
        derived = "".join(f", {sql} AS {quoted(name)}" for name, sql in columns.items())
        return f"(SELECT *{derived} FROM {source})"

    def _check(self) -> None:
        """Computes each expression by itself on a row of nulls."""
        import duckdb
        import pyarrow as pa

        schema = self._table.schema()
        nothing = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
        self._connection.register("nothing", nothing)
        source = f"(SELECT *, 0 AS {_NUMBER} FROM nothing)"
        expressions = [
            *((f"the column {name!r}", sql, source) for name, sql in self._suite.columns.items()),
            *((f"the figure {name!r}", sql, None) for name, sql in self._suite.figures.items()),
            *((f"rule {self._rules[n].name!r}", sql, None) for n, sql in self._predicates.items()),
        ]
        for what, sql, known in expressions:
            rows = known or self._with_columns(source, date(1970, 1, 1))
            try:
                self._connection.execute(f"SELECT {sql} FROM {rows}").fetchall()
            except duckdb.Error as error:
                raise ParamsError(
                    f"{what} cannot be judged: {_first_line(error)}; fix it in the suite"
                ) from None

    def _failed(self, rows: str) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
        import numpy as np

        none = np.zeros((0, len(self._rules)), dtype=np.bool_)
        if not self._predicates:
            return np.zeros(0, dtype=np.int64), none
        columns = ", ".join(f"coalesce({sql}, FALSE) AS r{n}" for n, sql in self._predicates.items())
        some = " OR ".join(f"r{n}" for n in self._predicates)
        selected = f"SELECT {_NUMBER} AS n, {columns} FROM {rows}"
        found = self._connection.execute(f"SELECT * FROM ({selected}) WHERE {some} ORDER BY n").fetchnumpy()
        failed = np.zeros((len(found["n"]), len(self._rules)), dtype=np.bool_)
        for number in self._predicates:
            failed[:, number] = found[f"r{number}"]
        return np.asarray(found["n"], dtype=np.int64), failed

    def _figures(self, rows: str) -> dict[str, float]:
        if not self._suite.figures:
            return {}
        columns = ", ".join(self._suite.figures.values())
        values = self._connection.execute(f"SELECT {columns} FROM {rows}").fetchone() or ()
        figures = {}
        for name, value in zip(self._suite.figures, values, strict=True):
            try:
                figures[name] = float("nan") if value is None else float(value)
            except (TypeError, ValueError):
                raise ParamsError(
                    f"the figure {name!r} is {value!r}, not a number; fix its SQL in the suite"
                ) from None
        return figures

    def _with_python(
        self, rows: "pa.Table", bad: "NDArray[np.int64]", failed: "NDArray[np.bool_]"
    ) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
        """Adds the rows that fail the rules in Python."""
        import numpy as np

        fails = {
            number: ~_passes(self._rules[number], function(rows), num_rows=len(rows))
            for number, function in self._python.items()
        }
        every = np.union1d(bad, np.flatnonzero(np.logical_or.reduce(list(fails.values()))))
        both = np.zeros((len(every), len(self._rules)), dtype=np.bool_)
        both[np.searchsorted(every, bad)] = failed
        for number, fail in fails.items():
            both[:, number] = fail[every]
        return every, both


def _passes(rule: Rule, returned: Any, *, num_rows: int) -> "NDArray[np.bool_]":
    import numpy as np

    passes = np.asarray(returned)
    if passes.dtype != np.bool_ or passes.shape != (num_rows,):
        raise ParamsError(
            f"rule {rule.name!r}: {rule.python} returns {passes.dtype} of shape {list(passes.shape)} for "
            f"{num_rows:,} rows; return an array of bools, True for each row that passes"
        )
    return passes


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".!")

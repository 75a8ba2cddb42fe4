"""Starts the engine that params.yaml names, an Ibis backend, and has it read partitions.

For the rules DuckDB reads the file of a partition, and any other engine is given its rows: they are the table
`partition_rows`, which has two columns more, the number of a row in the file, and the microseconds at
midnight of the partition's day.
"""

import shutil
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import ParamsError
from daybreak.data.bad_cells import without_texts
from daybreak.data.dialects import DIALECTS, DUCKDB
from daybreak.data.partitions import part_of

if TYPE_CHECKING:
    import ibis.expr.types as ir
    from duckdb import DuckDBPyConnection

NUMBER = "file_row_number"  # as DuckDB calls it
AT_MIDNIGHT = "file_midnight"
ROWS = "partition_rows"
GATHERED = Path("data/work/prepare")
# Optimizers whose time grows with the square of a query's expressions. Rules gain little from them, since
# each is a separate condition: 24 rules on 2,000,000 rows took 0.29 s of CPU without them, and 0.24 s with
# them.
QUADRATIC = "common_subexpressions,filter_pushdown,statistics_propagation"
NUMBERED = Path("data/work/validate/rows.parquet")


def duckdb_connection() -> "DuckDBPyConnection":
    """Returns a connection to DuckDB for queries with thousands of expressions."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    connection.execute(f"SET disabled_optimizers = '{QUADRATIC}'")
    return connection


def connect(engine: str) -> Any:
    """Returns a connection of an Ibis backend by its name; ParamsError where there is none."""
    import ibis
    from ibis.common.exceptions import IbisError

    try:
        return getattr(ibis, engine).connect()
    except (AttributeError, ImportError, IbisError) as error:
        raise ParamsError(
            f"prepare.engine {engine!r} does not start: {error}; name an Ibis backend that is "
            f"installed, such as duckdb"
        ) from None


def read_parts(parts: Mapping[date, Path], *, engine: str) -> "ir.Table":
    """Returns the rows of the files of some days, on an Ibis backend."""
    connection = connect(engine)
    if engine == DUCKDB:  # a table may have a column `day`, which the names of the folders say as well
        paths = [str(part) for part in parts.values()]
        return connection.read_parquet(paths, table_name="clean", hive_partitioning=False)
    shutil.rmtree(GATHERED, ignore_errors=True)
    GATHERED.mkdir(parents=True)
    for day, part in parts.items():  # as the others take one path, which may be a pattern
        (GATHERED / f"{day}.parquet").symlink_to(part.resolve())
    return connection.read_parquet(str(GATHERED.resolve() / "*.parquet"), table_name="clean")


class DuckDB:
    """DuckDB, past Ibis, whose own work on a query is more than DuckDB's on some thousand rows."""

    name = DUCKDB

    def __init__(self) -> None:
        self._connection = duckdb_connection()

    def read(self, day: date) -> None:
        """Makes a day's partition the table `partition_rows`."""
        file = f"read_parquet('{part_of(day)}', file_row_number = true, hive_partitioning = false)"
        self._rows = f"SELECT *, {midnight(day)} AS {AT_MIDNIGHT} FROM {file}"

    def rows(self, query: str) -> Mapping[str, Any]:
        """Returns the columns that a query finds, as arrays."""
        return self._execute(query).fetchnumpy()

    def line(self, query: str) -> tuple[Any, ...]:
        """Returns the one line that a query finds."""
        return tuple(self._execute(query).fetchone() or ())

    def _execute(self, query: str) -> "DuckDBPyConnection":
        """Executes a query with the rows as its first table: a view would be bound each time once more."""
        return self._connection.execute(query.replace("WITH ", f"WITH {ROWS} AS ({self._rows}), ", 1))


class Other:
    """Another Ibis backend, such as Spark and BigQuery."""

    def __init__(self, engine: str) -> None:
        self.name = engine
        self._connection = connect(engine)

    def read(self, day: date) -> None:
        """Makes a day's partition the table `partition_rows`, with numbers that are written for it."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = pq.read_table(part_of(day), partitioning=None, page_checksum_verification=True)
        rows = without_texts(rows)
        numbers = {NUMBER: np.arange(len(rows)), AT_MIDNIGHT: np.full(len(rows), midnight(day))}
        for name, values in numbers.items():
            rows = rows.append_column(name, pa.array(values, pa.int64()))
        NUMBERED.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, NUMBERED)
        self._connection.read_parquet(str(NUMBERED.resolve()), table_name=ROWS)

    def rows(self, query: str) -> Mapping[str, Any]:
        """Returns the columns that a query finds, as arrays."""
        table = self._connection.sql(query).to_pyarrow()
        return {name: table[name].to_numpy() for name in table.column_names}

    def line(self, query: str) -> tuple[Any, ...]:
        """Returns the one line that a query finds."""
        return tuple(column[0].as_py() for column in self._connection.sql(query).to_pyarrow().columns)


def engine_of(name: str) -> DuckDB | Other:
    """Returns the engine that judges rows: the named one, or DuckDB if it cannot express the rules."""
    return Other(name) if name in DIALECTS else DuckDB()


def midnight(day: date) -> int:
    """Returns the microseconds at midnight of a day since 1970, as times are kept without their zone."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000

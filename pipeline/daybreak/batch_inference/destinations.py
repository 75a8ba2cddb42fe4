"""Writes predictions to where a team reads them: a folder, a file, or a table of a database.

A folder has Parquet files, then `_SUCCESS` with their number of rows and digest: while that is missing, the
folder is not whole. A table has the rows of a day exchanged in one transaction. Each place that is written to
is noted in the home before, so that an erasure knows of all.
"""

import csv
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from daybreak.contract import extras, records
from daybreak.contract.errors import DataError, JobError, ParamsError, without_password
from daybreak.data.ingest import without
from daybreak.storage import journal, jsonl
from daybreak.storage.bucket import options
from daybreak.storage.home import Home

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from filelock import BaseFileLock

WRITTEN = Path("var/predictions.jsonl")  # in the home: where predictions were written
SUCCESS = "_SUCCESS"
DAY, VERSION, NIGHT = "daybreak_day", "daybreak_version", "daybreak_night"  # columns beside each prediction
FORMS = (".parquet", ".csv")  # of a destination that is one file
VERBATIM: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
NUM_ROWS = 10_000  # inserted at once
PART = re.compile(r"/part-\d{5,}\.parquet$")
IN_BRACES = re.compile(r"(?<!\$)\{[^}]*\}")
OF_DAY = re.compile(r"\{day(?::([^}]*))?\}")  # as source.url has it
VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)  # as os.path.expandvars has it


class Destination(Protocol):
    """Where predictions are written."""

    def write(self, files: Sequence[Path], facts: Mapping[str, Any]) -> None:
        """Writes the rows of Parquet files in place of what was there, with facts about them."""

    def erase(self, column: str, units: set[str], *, dry_run: bool) -> int:
        """Removes the rows of some units, named in a column, and returns the number of rows."""


def url_of(to: str, *, day: date) -> str:
    """Returns a destination with variables of the environment and the day; ParamsError if one is not known.

    What is left as it stands would be the name of a folder.
    """
    for place in IN_BRACES.findall(to):
        form = OF_DAY.fullmatch(place)
        if form is None or (form[1] and set(re.findall("%.", form[1])) != {"%Y", "%m", "%d"}):
            raise ParamsError(
                f"{without_password(to)} has {place}, which is no day; write {{day}} or {{day:%Y/%m/%d}}"
            )
    for name in VARIABLE.findall(to):
        if not os.environ.get(name.strip("{}")):
            raise ParamsError(
                f"{without_password(to)} names no place while ${name} is not set; set it in the environment"
            )
    return named(os.path.expandvars(to), day=day)


def named(to: str, *, day: date) -> str:
    """Returns a destination with the day, for a person: without what the environment has."""
    return OF_DAY.sub(lambda place: day.strftime(place[1] or "%Y-%m-%d"), to)


def destination_of(home: Home, to: str, *, day: date, table: str) -> Destination:
    """Returns what a URL names; ParamsError where that cannot be used."""
    import fsspec

    url = url_of(to, day=day)
    scheme = url.partition("://")[0].partition("+")[0]
    if "://" in url and scheme not in fsspec.available_protocols():
        return DatabaseTable(url, table=table, day=day)
    if "://" in url:
        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            raise _unusable(url, error) from None
    place = url if "://" in url else str(home.folder / url)
    return OneFile(place) if url.endswith(FORMS) else ParquetFolder(place)


def alone(home: Home) -> "BaseFileLock":
    """Returns the lock that each call of a home holds while it writes or erases predictions.

    Two that exchange the rows of a day in a table at once would both delete the old rows, and then both
    insert theirs.
    """
    return journal.alone(home.predictions_lock)


def note(home: Home, to: str, *, day: date, table: str) -> None:
    """Notes that predictions are about to be written."""
    line = {"to": to, "day": str(day), "table": table}
    if line not in jsonl.whole(home.folder / WRITTEN):
        jsonl.add(home.folder / WRITTEN, line)


def noted(home: Home) -> Iterator[tuple[str, Destination]]:
    """Yields each place that predictions were written to once, and its name for a person.

    Raises ParamsError where a place is not known, since a variable of the environment is not set.
    """
    places = set()
    for line in jsonl.whole(home.folder / WRITTEN):
        to, table, day = line["to"], line["table"], date.fromisoformat(line["day"])
        place = url_of(to, day=day), table
        if place not in places:
            places.add(place)
            name = without_password(named(to, day=day))
            yield name, destination_of(home, to, day=day, table=table)


class ParquetFolder:
    """A folder of Parquet files, at any URL of fsspec."""

    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, files: Sequence[Path], facts: Mapping[str, Any]) -> None:
        """Writes files and then `_SUCCESS`, which is removed before another run replaces them.

        Raises ParamsError where the folder has files that Daybreak did not write.
        """
        with _at(self._url) as (there, root):
            _expect_own(there, root)
            if there.exists(f"{root}/{SUCCESS}"):
                there.rm_file(f"{root}/{SUCCESS}")
            for path in files:
                _put(there, path, f"{root}/{path.name}")
            names = {path.name for path in files}
            for old in _parts(there, root):
                if old.rpartition("/")[2] not in names:
                    there.rm_file(old)
            self._succeed(there, root, facts)

    def erase(self, column: str, units: set[str], *, dry_run: bool) -> int:
        """Rewrites the files that have such rows; `_SUCCESS` then has the number of rows that are left."""
        num = 0
        with _at(self._url) as (there, root):
            for part in _parts(there, root) if there.exists(root) else ():
                num += _erase_rows(there, part, column, units, dry_run=dry_run)
            if num and not dry_run and there.exists(f"{root}/{SUCCESS}"):
                facts = json.loads(there.cat_file(f"{root}/{SUCCESS}"))
                left = facts["num_rows"] - num
                self._succeed(
                    there, root, facts | {"num_rows": left, "num_erased": facts.get("num_erased", 0) + num}
                )
        return num

    @staticmethod
    def _succeed(there: Any, root: str, facts: Mapping[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / SUCCESS
            path.write_text(json.dumps(facts, indent=2) + "\n")
            _put(there, path, f"{root}/{SUCCESS}")


class OneFile:
    """A file of Parquet or CSV, at any URL of fsspec; it is there whole or not at all."""

    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, files: Sequence[Path], facts: Mapping[str, Any]) -> None:
        """Writes all rows into the file; ParamsError where CSV cannot hold them."""
        import pyarrow as pa

        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "predictions"
            try:
                _join(files, path, as_csv=self._url.endswith(".csv"))
            except pa.ArrowInvalid as error:
                raise ParamsError(
                    f"{without_password(self._url)} cannot hold these predictions: {error}; name a file "
                    f"of .parquet"
                ) from None
            with _at(self._url) as (there, to):
                _put(there, path, to)

    def erase(self, column: str, units: set[str], *, dry_run: bool) -> int:
        """Rewrites the file, if it is still there."""
        with _at(self._url) as (there, to):
            if not there.exists(to):
                return 0
            if to.endswith(".csv"):
                return _erase_records(
                    there, to, column, units | {in_csv(unit) for unit in units}, dry_run=dry_run
                )
            return _erase_rows(there, to, column, units, dry_run=dry_run)


class DatabaseTable:
    """A table of a database, such as PostgreSQL or SQLite; a missing table is created."""

    def __init__(self, url: str, *, table: str, day: date) -> None:
        import sqlalchemy as sa

        self._name, self._day = table, day
        try:
            self._engine = sa.create_engine(url)
        except (sa.exc.ArgumentError, ImportError) as error:  # NoSuchModuleError is an ArgumentError
            advice = f"{error}; write a URL of fsspec or of SQLAlchemy, and install its driver"
            raise ParamsError(f"predict.to cannot be used: {extras.missing(error) or advice}") from None

    def write(self, files: Sequence[Path], facts: Mapping[str, Any]) -> None:
        """Exchanges the rows of the day in one transaction; DataError where the table lacks a column."""
        import pyarrow.parquet as pq
        import sqlalchemy as sa

        schema = pq.read_schema(files[0])
        with self._began() as connection:
            table = self._table(connection) if self._exists(connection) else self._made(connection, schema)
            if missing := [name for name in schema.names if name not in table.columns]:
                raise DataError(
                    f"table {self._name} has no column {', '.join(missing)}; add it, or name another table "
                    f"by predict.table"
                )
            if rounded := [one.name for one in schema if _is_rounded(one.type, table.columns[one.name].type)]:
                raise DataError(
                    f"column {', '.join(rounded)} of table {self._name} has integers, which would round the "
                    f"predictions; change its type, or name another table by predict.table"
                )
            connection.execute(sa.delete(table).where(table.columns[DAY] == self._day))
            for path in files:
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(NUM_ROWS):
                        connection.execute(sa.insert(table), batch.to_pylist())

    def erase(self, column: str, units: set[str], *, dry_run: bool) -> int:
        """Deletes such rows of all days."""
        import sqlalchemy as sa

        with self._began() as connection:
            if not self._exists(connection):
                return 0
            table = self._table(connection)
            if column not in table.columns:
                return 0
            is_theirs = sa.cast(table.columns[column], sa.Text).in_(sorted(units))
            found = connection.scalar(sa.select(sa.func.count()).select_from(table).where(is_theirs)) or 0
            if not dry_run:
                connection.execute(sa.delete(table).where(is_theirs))
            return int(found)

    @contextmanager
    def _began(self) -> "Iterator[sa.Connection]":
        """Yields a connection whose changes are made together at the end; JobError says why they are not."""
        import sqlalchemy as sa

        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            message = " ".join(str(getattr(error, "orig", None) or error).split())
            raise JobError(
                f"table {self._name} cannot be written: {without_password(message)}; check predict.to, and "
                f"what its user may do"
            ) from None
        finally:
            self._engine.dispose()

    @property
    def _names(self) -> tuple[str | None, str]:
        schema, _, name = self._name.rpartition(".")
        return schema or None, name

    def _exists(self, connection: "sa.Connection") -> bool:
        import sqlalchemy as sa

        schema, name = self._names
        return sa.inspect(connection).has_table(name, schema=schema)

    def _table(self, connection: "sa.Connection") -> "sa.Table":
        import sqlalchemy as sa

        schema, name = self._names
        return sa.Table(name, sa.MetaData(), schema=schema, autoload_with=connection)

    def _made(self, connection: "sa.Connection", fields: "pa.Schema") -> "sa.Table":
        import sqlalchemy as sa

        schema, name = self._names
        columns = [sa.Column(each.name, _in_sql(each.type), index=each.name == DAY) for each in fields]
        table = sa.Table(name, sa.MetaData(), *columns, schema=schema)
        table.create(connection)
        return table


def _in_sql(kind: "pa.DataType") -> Any:
    """Returns the type in SQL of a type in Arrow; what has none becomes JSON."""
    import sqlalchemy as sa
    from pyarrow import types

    kinds: tuple[tuple[Callable[[Any], bool], Any], ...] = (
        (types.is_boolean, sa.Boolean),
        (types.is_integer, sa.BigInteger),
        (types.is_floating, sa.Double),
        (types.is_date, sa.Date),
        (types.is_timestamp, sa.DateTime),
        (types.is_string, sa.Text),
        (types.is_binary, sa.LargeBinary),
    )
    return next((sort() for is_kind, sort in kinds if is_kind(kind)), sa.JSON())


def _is_rounded(kind: "pa.DataType", in_table: Any) -> bool:
    """Returns whether a database rounds fractions of a type in Arrow to a column's integers."""
    import sqlalchemy as sa
    from pyarrow import types

    return bool(types.is_floating(kind)) and isinstance(in_table, sa.Integer)


@contextmanager
def _at(url: str) -> Iterator[tuple[Any, str]]:
    """Yields the file system of a URL and the path there; ParamsError or JobError says why it fails."""
    import fsspec

    try:
        there, path = fsspec.core.url_to_fs(url, **options(url))
    except (ValueError, ImportError) as error:
        raise _unusable(url, error) from None
    try:
        there.invalidate_cache()
        yield there, str(path).rstrip("/")
    except (ParamsError, DataError):
        raise
    except Exception as error:  # each file system has errors of its own
        why = without_password(f"{type(error).__name__}: {error}")
        raise JobError(
            f"{without_password(url)} cannot be written: {why}; check that it can be reached"
        ) from error


def _unusable(url: str, error: Exception) -> ParamsError:
    why = extras.missing(error) or f"{error}; name another"
    return ParamsError(f"predict.to {without_password(url)} cannot be used: {why}")


def _put(there: Any, path: Path, to: str) -> None:
    """Puts a file, whole or not at all: a bucket shows no object before it is whole."""
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(there, LocalFileSystem):
        with path.open("rb") as file:
            records.replace_file(Path(to), lambda whole: shutil.copyfileobj(file, whole))
        return
    there.makedirs(to.rpartition("/")[0], exist_ok=True)
    there.put_file(str(path), to)


def _parts(there: Any, root: str) -> list[str]:
    """Returns the paths of our files of rows in a folder; Spark has names that begin alike."""
    return sorted(path for path in map(str, there.glob(f"{root}/part-*.parquet")) if PART.search(path))


def _expect_own(there: Any, root: str) -> None:
    """Raises ParamsError where a folder has files of another writer, whose readers would mix ours in."""
    own, success = _parts(there, root), f"{root}/{SUCCESS}"
    others = [path for path in map(str, there.glob(f"{root}/*.parquet")) if path not in own]
    if there.exists(success) and b'"night"' not in there.cat_file(success):
        others.append(success)
    if others:
        raise ParamsError(
            f"{without_password(root)} has files of another writer, such as "
            f"{others[0].rpartition('/')[2]}; name a folder of its own for predictions"
        )


def _erase_rows(there: Any, path: str, column: str, units: set[str], *, dry_run: bool) -> int:
    """Rewrites a Parquet file without the rows of `units`, and returns their number."""
    import pyarrow.parquet as pq

    rows = pq.read_table(io.BytesIO(there.cat_file(path)))
    left = without(rows, column, units) if column in rows.column_names else rows
    if len(left) < len(rows) and not dry_run:
        with tempfile.NamedTemporaryFile() as file:
            pq.write_table(left, file.name, compression="zstd", write_page_checksum=True)
            _put(there, Path(file.name), path)
    return len(rows) - len(left)


def _join(files: Sequence[Path], to: Path, *, as_csv: bool) -> None:
    """Writes the rows of Parquet files into one file, batch by batch."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    schema = pq.read_schema(files[0])
    writer = pyarrow.csv.CSVWriter if as_csv else pq.ParquetWriter
    given = {} if as_csv else {"compression": "zstd", "write_page_checksum": True}
    with writer(str(to), schema, **given) as joined:
        for path in files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1 << 16):
                    rows = pa.Table.from_batches([batch])
                    joined.write_table(_without_formulas(rows) if as_csv else rows)


def _without_formulas(table: "pa.Table") -> "pa.Table":
    """Returns the table with a quote before text that a spreadsheet would run, as `=cmd|'/c calc'!A0`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            texts = table[field.name]
            runs = pc.match_substring_regex(texts, r"^\s*(=|[+@-].*[(|!])")
            quoted = pc.binary_join_element_wise("'", texts, "")
            table = table.set_column(number, field, pc.if_else(runs, quoted, texts))
    return table


def in_csv(text: str) -> str:
    """Returns a text for a CSV file: a quote is put before text that a spreadsheet would run as a formula."""
    import pyarrow as pa

    return str(_without_formulas(pa.table({"text": [text]}))["text"][0].as_py())


def _erase_records(there: Any, path: str, column: str, units: set[str], *, dry_run: bool) -> int:
    """Rewrites a CSV file without the records of `units`, and returns their number; others do not change."""
    num = 0
    with (
        there.open(path, "rb") as file,
        io.TextIOWrapper(file, **VERBATIM) as content,
        tempfile.NamedTemporaryFile("w", **VERBATIM) as left,
    ):
        found = _records_of(content)
        header = next(found, "")
        names = _fields(header.removeprefix("\ufeff"))
        if column not in names:
            return 0
        place = names.index(column)
        left.write(header)
        for record in found:
            if units.isdisjoint(_fields(record)[place : place + 1]):
                left.write(record)
            else:
                num += 1
        if num and not dry_run:
            left.flush()
            _put(there, Path(left.name), path)
    return num


def _records_of(content: Iterable[str]) -> Iterator[str]:
    """Yields the records of a CSV file verbatim."""
    record = ""
    for line in content:
        record += line
        if record.count('"') % 2 == 0:  # else a line ends within quotes
            yield record
            record = ""
    if record:
        yield record


def _fields(record: str) -> list[str]:
    return next(csv.reader([record]), [])

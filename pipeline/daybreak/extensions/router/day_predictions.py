"""Writes what a version predicts of the clean rows of a day, as a file at any URL of fsspec.

The version is fetched from the registry, checked against the ledger and run in a process of its own, as a
router does. Its features look back on the clean days of the same folder, and on none that come later.
"""

import io
import os
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract import records
from daybreak.contract.errors import DataError, JobError, NothingToDo, ParamsError, ReleaseError
from daybreak.data.features import CLEAN
from daybreak.data.partitions import part_of
from daybreak.extensions.router.loading import case_of, recorded
from daybreak.registry import aliases, carried_code
from daybreak.registry.host import NoAnswer
from daybreak.serving.version_process import VersionProcess
from daybreak.storage import branch, jsonl, ledger
from daybreak.storage.bucket import options
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session

if TYPE_CHECKING:
    import pyarrow as pa

DAY_S = 4 * 3600.0  # that the predictions of a day may take
FORMS = (".parquet", ".csv")
WRITTEN = Path("var/predictions.jsonl")  # in the home: where files of predictions were written


def write_day(home: Home, day: date, to: str, *, version: int = 0) -> tuple[int, int]:
    """Writes the predictions of a day's rows; returns the version and the number of rows.

    A row has the columns of the table's unit, key and time, and a column for each prediction. A `version` of
    0 is the champion. The file is there whole or not at all.

    Raises:
        NothingToDo: no version serves.
        ParamsError: `to` names no file that can be written.
        DataError: the day has no clean rows here, or they are not rows of the version's table.
        ReleaseError: the version cannot be loaded, or does not predict rows.
    """
    if not to.endswith(FORMS):
        raise ParamsError(f"--to {to} is not a file of {' or '.join(FORMS)}; name one")
    folder = next((one for one in _folders(home) if part_of(day, one / CLEAN).exists()), None)
    if folder is None:
        raise DataError(f"no night here has clean rows of {day}; run a night with that day")
    number, predicted = _predicted(home, version, day, folder / CLEAN)
    at = to if "://" in to else str(Path(to).absolute())
    jsonl.add(
        home.folder / WRITTEN, {"to": at, "day": str(day)}
    )  # before it is there: an erasure knows of each
    write(predicted, to)
    return number, len(predicted)


def _folders(home: Home) -> Iterator[Path]:
    """Yields the folders that may have clean rows, the newest night's first."""
    for commit in ledger.commits(home):
        yield home.nights / commit.night
    yield home.folder


def _predicted(home: Home, number: int, day: date, clean: Path) -> "tuple[int, pa.Table]":
    """Returns the number of the version and its predictions for the day, made in a separate process."""
    import pyarrow.parquet as pq

    name = home.params.register_.name
    if not number:
        champion = ledger.champion_at(home, branch.ledger_tip(home))
        if champion is None:
            raise NothingToDo("no version serves yet; run a night, or name a version by --version")
        number = champion.version
    with tempfile.TemporaryDirectory() as scratch:
        with session(home) as client:
            night = aliases.existing(client, name, number).tags.get("night", "")
            version = recorded(home, name, number, night=night)
            folder = carried_code.fetch(home, f"models:/{name}/{number}", version, into=Path(scratch))
        case = case_of(folder, None, online=False)
        process = VersionProcess(number, case, answer_s=DAY_S, home=home, reads=(clean,))
        try:
            if process.about.get("answers") != "rows":
                workload = process.about.get("workload")
                raise ReleaseError(
                    f"version {number} is of {workload}, which predicts no rows; give it `features` and "
                    f"`predict`"
                )
            there = process.scratch / "predicted.parquet"
            process.ask("write_day", day=str(day), clean=str(clean.absolute()), to=str(there))
            return number, pq.read_table(there)
        except NoAnswer as error:
            if error.is_sentence:
                raise DataError(error.message) from None
            raise ReleaseError(
                f"version {number} does not predict the rows of {day}: {error}; fix its workload"
            ) from None
        finally:
            process.close()


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


def write(table: "pa.Table", to: str) -> None:
    """Writes a file of parquet or CSV to a URL, whole or not at all; ParamsError or JobError says why not.

    Text that a spreadsheet would take for a formula has a quote before it in CSV.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    try:
        if to.endswith(".csv"):
            pyarrow.csv.write_csv(_without_formulas(table), buffer)
        else:
            pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    except pa.ArrowInvalid as error:
        raise ParamsError(f"{to} cannot hold these predictions: {error}; name a file of .parquet") from None
    put(buffer.getvalue(), to)


def put(content: bytes, to: str) -> None:
    """Puts a file at a URL, whole or not at all; ParamsError or JobError says why not."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    try:
        files, path = fsspec.core.url_to_fs(to, **options(to))
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        if not isinstance(files, LocalFileSystem):
            files.pipe_file(path, content)  # a bucket shows no object before it is whole
            return
        unfinished = Path(f"{path}.{os.getpid()}")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        records.sync(Path(path).parent)
    except (ValueError, ImportError) as error:
        raise ParamsError(f"--to {to} cannot be used: {error}; name another") from None
    except OSError as error:
        raise JobError(f"{to} cannot be written: {error}; check that it can be reached") from None

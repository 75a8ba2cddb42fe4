"""Predicts all rows of a day, or the lists of all users, in files of a limited number of rows.

The version runs in processes of its own, without secrets or network, as a router runs it. Each scores one
file of rows at a time, and writes one file of predictions, so that memory does not grow with the day. A file
that is whole is not scored again: a call after a kill goes on with the others. Rows of erased units are left
out wherever they come from: a source has them still, and a version may name them.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

from daybreak.contract import records
from daybreak.contract.errors import DataError, ReleaseError
from daybreak.data.ingest import without
from daybreak.registry import aliases, carried_code
from daybreak.registry.host import NoAnswer
from daybreak.serving.recorded import NightArrays, case_of, recorded, rows_of_others
from daybreak.serving.version_process import VersionProcess
from daybreak.storage import erasures
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session

log = logging.getLogger(__name__)

FILE_S = 3600.0  # that the predictions of one file may take
MOST_PROCESSES = 3  # of a version, each with half a gigabyte of libraries; the cores are divided among them
BATCH = 1 << 16  # rows that are read at once
Ask = Callable[[VersionProcess, Path], None]  # has a version write one file


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A version that is asked for predictions; its files are whole as the ledger has them.

    Attributes:
        number: of the version.
        files: its folder.
        arrays: the folder of arrays that it makes lists from; None where it predicts rows.
        others: the folder of their night, where another class made them, of whose rows it makes its own.
        clean: the folder of clean rows, which features look back on.
        work: the folder of rows that are scored.
        first: a process of it.
        erased: the units that have no predictions; None where none was erased.
    """

    home: Home
    number: int
    files: Path
    arrays: Path | None
    others: Path | None
    clean: Path
    work: Path
    first: VersionProcess
    erased: erasures.ErasedUnits | None

    @property
    def about(self) -> dict[str, Any]:
        """Returns what the version does (daybreak/serving/version_worker.py)."""
        return self.first.about

    def ask(self, process: VersionProcess, verb: str, to: Path, **arguments: Any) -> None:
        """Has a process of the version write a file, whole or not at all, without erased units."""
        import pyarrow.parquet as pq

        there = process.scratch / to.name
        try:
            process.ask(verb, to=str(there), **arguments)
            with process.reading(there) as file:
                for _ in pq.ParquetFile(file, page_checksum_verification=True).iter_batches(BATCH):
                    pass  # else a later step would fail, and not name the version
            written = process.written(there)
        except NoAnswer as error:
            if error.is_sentence:
                raise DataError(error.message) from None
            raise ReleaseError(
                f"version {self.number} does not predict: {error}; fix its workload, or roll back"
            ) from None
        with written as file:
            self.copy(file, to)
        with suppress(OSError):  # of what the version put in its place, which goes with its folder
            there.unlink()

    def copy(self, source: BinaryIO, to: Path) -> None:
        """Copies a file of rows or predictions batch by batch, whole or not at all, without erased units."""
        about = self.about
        column = about["unit"] if about["answers"] == "rows" else about["beside"][0]
        records.replace_file(to, lambda whole: _copy(source, whole, column, self.erased))

    def score(self, files: Sequence[Path], asks: Iterator[Ask | None]) -> int:
        """Has each file written by its ask, several at once; returns how many were whole before.

        An ask is None for a file that is whole.
        """
        todo = [path for path in files if not path.exists()]
        num = max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)), len(todo)))
        with ExitStack() as stack:
            free = [self.first]
            for _ in range(num - 1):
                free.append(started(self, threads=ceil(len(os.sched_getaffinity(0)) / num)))
                stack.callback(free[-1].close)
            running: dict[Future[None], VersionProcess] = {}
            for path, ask in zip(files, asks, strict=True):
                if ask is None:
                    continue
                if not free:
                    free += _ended(running)
                process = free.pop()
                running[process.thread.submit(ask, process, path)] = process
            while running:
                _ended(running)
        return len(files) - len(todo)


def _copy(source: BinaryIO, to: BinaryIO, column: str, erased: erasures.ErasedUnits | None) -> None:
    if erased is None:
        shutil.copyfileobj(source, to)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    with (
        pq.ParquetFile(source, page_checksum_verification=True) as rows,
        pq.ParquetWriter(to, rows.schema_arrow, compression="zstd", write_page_checksum=True) as left,
    ):
        for batch in rows.iter_batches(BATCH):
            left.write_table(without(pa.Table.from_batches([batch]), column, erased))


def _ended(running: dict[Future[None], VersionProcess]) -> list[VersionProcess]:
    """Waits for a process to finish, and returns the free processes; raises the error of a failed one."""
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for each in done:
        each.result()
    return [running.pop(each) for each in done]


def started(scorer: Scorer, *, threads: int) -> VersionProcess:
    """Returns a further process of a version."""
    return _process(
        scorer.home,
        scorer.number,
        scorer.files,
        scorer.arrays,
        others=scorer.others,
        reads=(scorer.clean, scorer.work),
        threads=threads,
    )


def _process(
    home: Home,
    number: int,
    files: Path,
    arrays: Path | None,
    *,
    others: Path | None,
    reads: Sequence[Path],
    threads: int,
) -> VersionProcess:
    case = {**case_of(files, arrays, online=False, night=others), "threads": threads}
    return VersionProcess(number, case, answer_s=FILE_S, home=home, reads=reads)


@contextmanager
def opened(
    home: Home, number: int, *, name: str, arrays: NightArrays | None, clean: Path, work: Path
) -> Iterator[Scorer]:
    """Yields a version of the registry, once its files are as the ledger has them."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        with session(home) as client:
            night = aliases.existing(client, name, number).tags.get("night", "")
            version = recorded(home, name, number, night=night)
            files = carried_code.fetch(home, f"models:/{name}/{number}", version, into=Path(scratch))
        threads = ceil(len(os.sched_getaffinity(0)) / MOST_PROCESSES)
        others, folder = rows_of_others(home, version, arrays), arrays.folder if arrays else None
        reads = (clean, work)
        first = _process(home, number, files, folder, others=others, reads=reads, threads=threads)
        stack.callback(first.close)
        if others and first.about["answers"] == "users":
            log.info("version %d is of another class than tonight's, and makes lists by its own code", number)
        yield Scorer(
            home=home,
            number=number,
            files=files,
            arrays=folder,
            others=others,
            clean=clean,
            work=work,
            first=first,
            erased=erasures.units(home),
        )


def rows_asked(
    scorer: Scorer, rows: Path, files: Sequence[Path], *, size: int, beside: Mapping[str, Any]
) -> Iterator[Ask | None]:
    """Yields for each file how it is asked for: its rows are the next `size` of a Parquet file.

    They are read one file ahead of the versions.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(rows, page_checksum_verification=True) as source:
        for path, batch in zip(files, _batches(source, size), strict=True):
            if path.exists():
                yield None
                continue
            part = scorer.work / f"rows-{path.name}"
            pq.write_table(pa.Table.from_batches(batch), part, compression="none")
            yield _rows_ask(scorer, part, beside)


def _batches(source: Any, size: int) -> Iterator[list[Any]]:
    """Yields lists of record batches, of `size` rows together, the last of fewer."""
    together: list[Any] = []
    num = 0
    for batch in source.iter_batches(min(size, BATCH)):
        rest = batch
        while num + len(rest) >= size:
            yield [*together, rest.slice(0, size - num)]
            rest, together, num = rest.slice(size - num), [], 0
        if len(rest):
            together.append(rest)
            num += len(rest)
    if together:
        yield together


def _rows_ask(scorer: Scorer, part: Path, beside: Mapping[str, Any]) -> Ask:
    def ask(process: VersionProcess, to: Path) -> None:
        scorer.ask(
            process,
            "write_rows",
            to,
            rows=str(part.absolute()),
            clean=str(scorer.clean.absolute()),
            beside=dict(beside),
        )
        part.unlink()

    return ask


def lists_asked(
    scorer: Scorer, files: Sequence[Path], *, size: int, top: int, beside: Mapping[str, Any]
) -> Iterator[Ask | None]:
    """Yields for each file how it is asked for: the lists of the next `size` users."""
    for number, path in enumerate(files):
        yield None if path.exists() else _lists_ask(scorer, number * size, size, top, beside)


def _lists_ask(scorer: Scorer, first: int, num: int, top: int, beside: Mapping[str, Any]) -> Ask:
    def ask(process: VersionProcess, to: Path) -> None:
        scorer.ask(process, "write_lists", to, first=first, num=num, top=top, beside=dict(beside))

    return ask

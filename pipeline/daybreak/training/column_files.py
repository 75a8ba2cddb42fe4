"""Keeps samples that a data set parsed, by day, so that a night parses only those of its new days.

This is for a data set with `days`, the number of samples of each day in order: having it is a promise that a
sample depends on its day's rows alone. Where samples stay in memory (`Tuning.in_memory`), the columns of a
day are written to a file under $DAYBREAK_HOME/var/columns once all samples of the day have been read. The
file is named by a digest of everything that they depend on: the day's partition, the workload's code and
arguments, the libraries, and the state. A day with a file is not parsed, except for the first and last
sample: where these differ from the file, the promise is broken, and no file is used or written.

No files are written for a data set without `days`, for a day of which a worker reads only a part, or on a
rented machine, which has no home. Files that no job has read for a week are removed.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from daybreak.contract import disk
from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import STATE
from daybreak.machines import this_machine
from daybreak.storage import known_digests
from daybreak.storage.home import Home
from daybreak.storage.source_code import running_digest
from daybreak.training import checkpoint

log = logging.getLogger(__name__)

CLEAN = Path("data/clean")


@dataclass(frozen=True, kw_only=True)
class DaySamples:
    """The samples of a day, from `start` to before `stop`, and the digest of what they are made of."""

    name: str
    start: int
    stop: int
    digest: str


def open_files(
    home: Home | None, dataset: Any, *, workload: str, arguments: Mapping[str, Any], arrays: Path
) -> "ColumnFiles | None":
    """Returns the files of a data set's days; None where the data set has no `days`, or outside of a home.

    None also where the rows of a day are not in `CLEAN`, since nothing would tell that they have changed.

    Raises ParamsError where its days do not add up to its samples.
    """
    days: Mapping[str, int] = getattr(dataset, "days", {})
    if not days or home is None:
        return None
    if sum(days.values()) != len(dataset):
        raise ParamsError(
            f"the data set of {workload} has {len(dataset):,} samples, and its `days` add up to "
            f"{sum(days.values()):,}; make them agree, or leave `days` out (key workload)"
        )
    if not all((CLEAN / f"day={name}").is_dir() for name in days):
        return None
    made_of = {name: _files(CLEAN / f"day={name}", arrays / f"day={name}", arrays / STATE) for name in days}
    digests = known_digests.digests(home, {path for paths in made_of.values() for path in paths})
    common = [running_digest(workload), dict(arguments)]
    known, start = [], 0
    for name, number in days.items():
        own = [[path.name, digests[path]] for path in made_of[name]]
        digest = this_machine.facts_digest([*common, number, own])
        known.append(DaySamples(name=str(name), start=start, stop=start + number, digest=digest))
        start += number
    return ColumnFiles(home.var / "columns", known)


def _files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


class ColumnFiles:
    """The files of the days of a data set."""

    def __init__(self, folder: Path, days: Sequence[DaySamples]) -> None:
        self._folder, self._days = folder, [day for day in days if day.stop > day.start]
        self._starts = np.array([day.start for day in self._days])
        self._tried: set[DaySamples] = set()  # to read
        self._written: set[DaySamples] = set()  # now or earlier
        self.is_trusted = True
        disk.remove_old(folder, after=this_machine.KEPT)

    def days(self, samples: Tensor) -> list[DaySamples]:
        """Returns the days of these samples."""
        places = np.searchsorted(self._starts, samples.numpy(), side="right") - 1
        return [self._days[place] for place in np.unique(places).tolist()]

    def read(self, day: DaySamples) -> list[Tensor] | None:
        """Returns the columns of a day; None where there is no whole file, and on any later call."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if day in self._tried or not self.is_trusted:
            return None
        self._tried.add(day)
        path = self._path(day)
        try:
            columns = load_file(path)
            os.utime(path)
        except (OSError, SafetensorError):
            return None
        self._written.add(day)
        return [columns[str(number)] for number in range(len(columns))]

    def write(self, day: DaySamples, columns: Sequence[Tensor]) -> None:
        """Writes the columns of a day, unless there is such a file; a full disk is only logged."""
        from safetensors import SafetensorError

        if day in self._written or not self.is_trusted:
            return
        self._written.add(day)
        path = self._path(day)
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            checkpoint.write_tensors(unfinished, {str(n): column for n, column in enumerate(columns)})
            unfinished.rename(path)
        except (OSError, SafetensorError) as error:
            with suppress(OSError):
                unfinished.unlink()
            log.warning("the samples of %s are parsed again the next night: %s", day.name, error)

    def distrust(self, day: DaySamples) -> None:
        """Stops all use: the samples of that day are made of something else than its rows."""
        self.is_trusted = False
        log.warning(
            "samples of %s came out otherwise than when they were kept, so they are made of more than its "
            "rows; the data set must not have `days`: all samples are parsed",
            day.name,
        )

    def _path(self, day: DaySamples) -> Path:
        return self._folder / f"{day.digest}.safetensors"

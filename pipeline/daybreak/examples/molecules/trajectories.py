"""Delivers the trajectories of a day: what the runs of that day's bag left.

A day's bag has the day as its name. It is delivered once it is closed with enough runs done; runs that were
lost, and those beyond the number needed, are missed by nobody.
"""

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daybreak import BAGS, DataError, bags, home_folder, write_partition

LEFT_OVER = 1e-6  # eV per Angstrom, of rounding


class Trajectories:
    """Frames of the trajectories in var/bags."""

    def days(self) -> list[date]:
        """Returns the days whose bags are closed with enough runs."""
        return sorted(self._days())

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the frames of a day in the order of their times; DataError for a day that is not there."""
        if day not in self.days():
            raise DataError(f"there is no closed bag of {day}; run daybreak bag --name {day}")
        write_partition(frames(day), folder)

    def _days(self) -> Iterator[date]:
        for bag in bags(home_folder()):
            try:
                day = date.fromisoformat(bag.name)
            except ValueError:
                continue  # a bag of something else
            if bag.closed_at and len(_runs(day)) >= bag.num_needed:
                yield day


def frames(day: date) -> pa.Table:
    """Returns the frames of a day's runs."""
    return pa.concat_tables([pq.read_table(run / "frames.parquet") for run in _runs(day)])


def _runs(day: date) -> list[Path]:
    """Returns the folders of a day's runs, by their seeds."""
    return sorted((home_folder() / BAGS / str(day) / "seeds").glob("*"), key=lambda run: int(run.name))


def balanced(rows: pa.Table) -> NDArray[np.bool_]:
    """Returns for each row whether its forces add up to nothing, as in a cluster alone, shape [rows]."""
    passes = np.ones(len(rows), dtype=np.bool_)
    for place, answer in enumerate(rows["energy_and_forces"].to_pylist()):
        if answer is not None:
            passes[place] = np.abs(np.reshape(answer[1:], (-1, 3)).sum(axis=0)).max() < LEFT_OVER
    return passes

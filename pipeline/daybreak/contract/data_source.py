"""Defines where data comes from, a `Source`; params.yaml names the class, which may be a team's own."""

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Protocol


class Source(Protocol):
    """A place that data comes from, one day at a time.

    One that joins other tables may have `joined`, by each day that was fetched and the name of each table the
    digest of its rows that were used: the night's record keeps it. Where `omits_nulls` is true, a nullable
    column that is missing on a day is null in all of its rows, as a key that no object of JSON has. Where
    `cuts` is true, days are cut by time, so that a day between others that is not among `days` has no rows.
    `left_out()` may say by reasons which files are not read. `version(day)` may return a text that changes
    while a day is delivered, which `ingest.settle_minutes` needs.
    """

    def days(self) -> Iterable[date]:
        """Returns the days that have data, in order."""

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day`, as delivered, to `folder/part.parquet`."""

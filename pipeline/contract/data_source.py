"""Defines where data comes from, a `Source`; params.yaml names the class, which may be a team's own."""

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Protocol


class Source(Protocol):
    """A place that data comes from, one day at a time."""

    def days(self) -> Iterable[date]:
        """Returns the days that have data, in order."""

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day`, as delivered, to `folder/part.parquet`."""

"""Serves the days of a simulation: each is made when it is fetched, and the same whenever that is."""

from abc import ABC, abstractmethod
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from daybreak import DataError, write_partition


class Simulated(ABC):
    """Source of the days from `start` to yesterday, none of them late.

    Args:
        seed: each seed gives other rows.
        start: first day; `num_days` before `today` if None.
        today: the last day is the one before; the clock's date (UTC) if None.
        num_days: until `today`, where no start is given.
    """

    def __init__(
        self, *, seed: int, start: date | str | None, today: date | str | None, num_days: int
    ) -> None:
        self._seed = seed
        self._today = date.fromisoformat(str(today)) if today else datetime.now(UTC).date()
        self._start = date.fromisoformat(str(start)) if start else self._today - timedelta(days=num_days)

    def days(self) -> list[date]:
        """Returns the days from `start` to yesterday."""
        return [self._start + timedelta(days=number) for number in range((self._today - self._start).days)]

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the rows of `day` in the order of their times; DataError for a day that is not there."""
        if not self._start <= day < self._today:
            raise DataError(
                f"{type(self).__name__} has no rows of {day}; ask for a day of {self._start} to yesterday"
            )
        write_partition(self._rows(day), folder)

    @abstractmethod
    def _rows(self, day: date) -> pa.Table:
        """Returns the rows of a day, a function of the seed and the day."""

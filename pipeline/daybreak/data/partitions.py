"""Names the files of rows, a partition a day, raw, clean or bad; and the days that are held out of arrays."""

import json
from datetime import date
from pathlib import Path

from daybreak.contract.errors import DataError
from daybreak.contract.workload import ARRAYS

PART = "part.parquet"
RAW, CLEAN, QUARANTINE = Path("data/raw"), Path("data/clean"), Path("data/quarantine")


def part_of(day: date, folder: Path = RAW) -> Path:
    """Returns the file of a day's rows: `data/raw/day=2025-01-31/part.parquet`."""
    return folder / f"day={day}" / PART


def partitions(folder: Path) -> list[date]:
    """Returns the days that have a partition in the folder, in order."""
    return sorted(date.fromisoformat(path.parent.name[4:]) for path in folder.glob(f"day=*/{PART}"))


def held_out_days(arrays: Path = ARRAYS) -> tuple[date, ...]:
    """Returns the held-out days of the arrays, in the order of their samples."""
    path = arrays / "meta.json"
    try:
        return tuple(date.fromisoformat(day) for day in json.loads(path.read_text())["test_days"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} names no test_days ({error!r}); run prepare again") from None

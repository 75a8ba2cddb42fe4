"""Names the files of rows: a partition a day, in the folder of a night's raw or clean rows."""

from datetime import date
from pathlib import Path

PART = "part.parquet"
RAW = Path("data/raw")


def part_of(day: date, folder: Path = RAW) -> Path:
    """Returns the file of a day's rows: `data/raw/day=2025-01-31/part.parquet`."""
    return folder / f"day={day}" / PART


def partitions(folder: Path) -> list[date]:
    """Returns the days that have a partition in the folder, in order."""
    return sorted(date.fromisoformat(path.parent.name[4:]) for path in folder.glob(f"day=*/{PART}"))

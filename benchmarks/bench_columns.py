"""What does a night save that finds yesterday's samples in files? A data set that parses JSON, one epoch.

Thirty days of lines of JSON, of which each sample parses its own. Five ways to read all samples once, in the
order of training, in turn: as they are; into columns in memory; into columns that write files; a day later,
when 29 of the 30 days have a file; and the same night again, when all have. All return the same bits.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import frame
from daybreak.storage.home import Home
from daybreak.training import column_files, sample_order
from daybreak.training.tuning import Columns, read, tensors

NUM_DAYS, PER_DAY = 30, 200 if frame.QUICK else 1000
BATCH, WIDTH = 256, 64
ROUNDS = 2 if frame.QUICK else 5


class Lines:
    """Samples of lines of JSON, parsed when they are read."""

    def __init__(self, days: list[str]) -> None:
        self.lines = [line for day in days for line in path_of(day).read_text().splitlines()]
        self.days = dict.fromkeys(days, PER_DAY)

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = json.loads(self.lines[index])
        return {"x": torch.tensor(row["x"]), "y": torch.tensor(row["y"])}


def main() -> None:
    """Read each way in turn, and compare the medians."""
    days = [f"{np.datetime64('2026-10-01') + number}" for number in range(NUM_DAYS + 1)]
    seconds: dict[str, list[float]] = {}
    equal = True
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["DAYBREAK_HOME"] = folder
            os.chdir(folder)
            for day in days:
                write(day)
            before, after = Lines(days[:-1]), Lines(days[1:])
            for name, data, how in (
                ("parsed", after, "plain"),
                ("in memory", after, "columns"),
                ("first night", before, "files"),
                ("next night", after, "files"),
                ("same night again", after, "files"),
            ):
                begin = time.perf_counter()
                columns = epoch(data, how)
                seconds.setdefault(name, []).append(time.perf_counter() - begin)
            plain = read(after, range(len(after)))
            kept = read(columns, range(len(after)))
            equal &= all(map(torch.equal, tensors(plain), tensors(kept)))
            os.chdir("/")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    figures = {"samples": float(NUM_DAYS * PER_DAY), "the same bits": float(equal)}
    figures |= {f"{name}, s": value for name, value in medians.items()}
    figures |= {f"{name} / parsed": value / medians["parsed"] for name, value in medians.items()}
    targets: dict[str, frame.Target] = {
        "the same bits": ("==", 1),
        "first night / parsed": ("<=", 1.5),
        "next night / parsed": ("<=", 0.5),
    }
    frame.finish("columns", figures, targets)


def epoch(data: Lines, how: str) -> Any:
    """Read all samples once, in batches, and return what reads them."""
    files = None
    if how == "files":
        files = column_files.open_files(
            Home.here(), data, workload="tests.fakes:LineWorkload", arguments={}, arrays=Path("data/arrays")
        )
    columns = data if how == "plain" else Columns(data, files=files)
    for start in range(0, len(data), BATCH):
        stop = min(len(data), start + BATCH)
        read(columns, sample_order.indices(seed=0, num_samples=len(data), start=start, stop=stop))
    return columns


def path_of(day: str) -> Path:
    """The file of a day's rows."""
    return column_files.CLEAN / f"day={day}" / "part.parquet"


def write(day: str) -> None:
    """Write lines of JSON in place of a partition: to the files it is bytes like any."""
    draw = np.random.default_rng(int(day[-2:]))
    path_of(day).parent.mkdir(parents=True)
    rows = [{"x": draw.normal(size=WIDTH).tolist(), "y": draw.normal()} for _ in range(PER_DAY)]
    path_of(day).write_text("\n".join(map(json.dumps, rows)))


if __name__ == "__main__":
    main()

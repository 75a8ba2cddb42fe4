"""How fast do batches come? 5 million rows of 28 bytes, in batches of 8192 torch tensors of their own.

All ways take turns, and each figure is of medians over the rounds, beside a plain copy of the same bytes from
memory to memory. Ours keeps a row in 32 bytes, and has the copy's 28 to compete with; what it delivers
is copied, also in order. Cold: the files are dropped from the page cache, and the disk is read. The limit
on memory is the kernel's on what a process allocates (RLIMIT_DATA); held against it is the resident memory of
its own (RssAnon). Pages of mapped files, which the kernel takes back at will, count for neither.
"""

import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Subset

from benchmarks import frame
from daybreak.training import sample_order
from daybreak.training.arrays import Arrays, padded
from daybreak.training.loader import Loader

ROWS = 1_000_000 if frame.QUICK else 5_000_000
ROUNDS = 3 if frame.QUICK else 7
BATCH, BLOCK = 8192, 512
ROW = np.dtype([("user", "i4"), ("item", "i4"), ("dense", "f4", (4,)), ("label", "f4")])
GROUP = 1 << 16  # rows in a group of the parquet file
LIMIT_BYTES = 384 << 20
Batch = dict[str, torch.Tensor]


def main() -> None:
    """Write the data in each format, read it in each way in turn, and hold the rates against the copy's."""
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        folder = Path(name)
        rows = made(ROWS)
        write(folder, rows)
        warm = median_rates(ways_of(folder, rows), rounds=ROUNDS)
        gc.collect()  # nothing is to be mapped any more: such pages stay in the cache
        cold = median_rates(cold_ways_of(folder), rounds=3, before=lambda: forget(folder))
        limited = under_limit(folder)
    frame.table(
        [
            {"way": key, "warm Mrows/s": rate / 1e6, "cold Mrows/s": cold[key] / 1e6 if key in cold else ""}
            for key, rate in warm.items()
        ]
    )
    ours = warm["ours, shuffled"]
    figures = {
        "copy Mrows/s": warm["copy"] / 1e6,
        "shuffled Mrows/s": ours / 1e6,
        "shuffled / copy": ours / warm["copy"],
        "in order / copy": warm["ours, in order"] / warm["copy"],
        "shuffled / per-row loader": ours / warm["per-row loader"],
        "shuffled / vectorised sampler": ours / warm["vectorised sampler"],
        "shuffled / parquet": ours / warm["parquet"],
        "shuffled / Arrow map": ours / warm["Arrow map"],
        "2 processes / none, sampler": warm["sampler, 2 processes"] / warm["vectorised sampler"],
        "1 thread / none, ours": warm["ours, 1 thread"] / ours,
        "cold shuffled / cold copy": cold["ours, shuffled"] / cold["copy"],
        "correlation of the order": correlation(),
        "resume ms": resume_ms(),
        "not once over 31 worlds": not_once(),
        "data / memory limit": limited[0],
        "memory / limit": limited[1],
    }
    targets = {
        "shuffled / copy": (">=", 0.15),
        "in order / copy": (">=", 0.5),
        "shuffled / per-row loader": (">=", 150),
        "correlation of the order": ("<=", 0.05),
        "resume ms": ("<=", 5),
        "not once over 31 worlds": ("==", 0),
        "data / memory limit": (">=", 4),
        "memory / limit": ("<=", 1),
    }
    frame.finish("input", figures, targets)


def made(num_rows: int) -> np.ndarray:
    """Rows of random numbers; `user` is the row's own number."""
    rng = np.random.default_rng(0)
    rows = np.zeros(num_rows, ROW)
    rows["user"] = np.arange(num_rows)
    rows["item"] = rng.integers(0, 1 << 20, num_rows)
    rows["dense"] = rng.random((num_rows, 4))
    rows["label"] = rng.random(num_rows)
    return rows


def write(folder: Path, rows: np.ndarray) -> None:
    """The rows packed, as ours, as parquet and as an Arrow file; on the disk when it returns."""
    (folder / "ours").mkdir()
    np.save(folder / "packed.npy", rows)
    np.save(folder / "ours" / "rows.npy", rows.astype(padded(ROW)))
    columns = {name: rows[name] for name in ("user", "item", "label")}
    columns |= {f"dense{i}": rows["dense"][:, i] for i in range(4)}
    table = pa.table({name: np.ascontiguousarray(values) for name, values in columns.items()})
    pq.write_table(table, folder / "rows.parquet", row_group_size=GROUP)
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=BATCH)
    os.sync()


def ways_of(folder: Path, rows: np.ndarray) -> dict[str, Callable[[], int]]:
    """Ways to go once through the data, each returning the number of rows it delivered."""
    ours, full = Arrays(folder / "ours", block=BLOCK), Arrays(folder / "ours")
    by_row, by_batch = PerRow(rows), WholeBatches(rows)
    few = Subset(by_row, range(5 * BATCH))
    batches = BatchSampler(RandomSampler(by_batch), BATCH, drop_last=False)
    target = np.zeros_like(rows)
    return {
        "copy": lambda: copied(rows, target),
        "ours, shuffled": lambda: shuffled(ours),
        "ours, 1 thread": lambda: shuffled(ours, num_loaders=1),
        "ours, 2 threads": lambda: shuffled(ours, num_loaders=2),
        "ours, full shuffle": lambda: shuffled(full),
        "ours, in order": lambda: in_order(ours),
        "per-row loader": lambda: counted(DataLoader(few, batch_size=BATCH, shuffle=True)),
        "vectorised sampler": lambda: counted(DataLoader(by_batch, sampler=batches, batch_size=None)),
        "sampler, 2 processes": lambda: counted(
            DataLoader(by_batch, sampler=batches, batch_size=None, num_workers=2)
        ),
        "parquet": lambda: counted(parquet_groups(folder / "rows.parquet")),
        "Arrow map": lambda: counted(arrow_blocks(folder / "rows.arrow")),
    }


def cold_ways_of(folder: Path) -> dict[str, Callable[[], int]]:
    """Ways to go once through the files, opened anew each time."""
    target = np.zeros(ROWS, ROW)
    return {
        "copy": lambda: copied(np.load(folder / "packed.npy", mmap_mode="r"), target),
        "ours, shuffled": lambda: shuffled(Arrays(folder / "ours", block=BLOCK)),
        "ours, in order": lambda: in_order(Arrays(folder / "ours")),
        "parquet": lambda: counted(parquet_groups(folder / "rows.parquet")),
        "Arrow map": lambda: counted(arrow_blocks(folder / "rows.arrow")),
    }


class PerRow(Dataset[Batch]):
    """What most data sets are: one row at a time."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        return {"user": row["user"], "item": row["item"], "dense": row["dense"], "label": row["label"]}


class WholeBatches(PerRow):
    """As many rows as the sampler asks for, by one gather."""

    def __getitem__(self, index: Any) -> Batch:
        taken = self.rows[index]
        return {name: torch.from_numpy(taken[name]) for name in ROW.names or ()}


def copied(rows: np.ndarray, target: np.ndarray) -> int:
    """Copy all rows, as bytes, by one call."""
    np.copyto(target.view("V28"), rows.view("V28"))
    return len(rows)


def shuffled(data: Arrays, *, num_loaders: int = 0) -> int:
    """Our way, as training goes it: the order by positions, and batches loaded ahead."""
    loader = Loader(data, num_loaders=num_loaders)
    ahead: deque[sample_order.Indices] = deque()
    delivered = 0
    for start in range(0, len(data), BATCH):
        stop = min(start + BATCH, len(data))
        part = sample_order.indices(seed=0, num_samples=len(data), start=start, stop=stop, block=data.block)
        loader.prepare([part])
        ahead.append(part)
        if len(ahead) > num_loaders:
            delivered += len(loader.get(ahead.popleft())["user"])
    delivered += sum(len(loader.get(part)["user"]) for part in ahead)
    loader.close()
    return delivered


def in_order(data: Arrays) -> int:
    """Batch after batch, as evaluation reads."""
    starts = range(0, len(data), BATCH)
    return sum(len(data.__getitems__(range(at, min(at + BATCH, len(data))))["user"]) for at in starts)


def counted(batches: Any) -> int:
    """Rows in all the batches."""
    return sum(len(batch["user"]) for batch in batches)


def parquet_groups(path: Path) -> Iterator[Batch]:
    """Row groups in random order, each shuffled and cut into batches."""
    rng = np.random.default_rng(0)
    file = pq.ParquetFile(path)
    for group in rng.permutation(file.num_row_groups):
        table = file.read_row_group(group)
        yield from cut(table, rng.permutation(len(table)))


def arrow_blocks(path: Path) -> Iterator[Batch]:
    """Record batches of a mapped file in random order, each shuffled inside."""
    rng = np.random.default_rng(0)
    with pa.memory_map(str(path)) as mapped:
        file = pa.ipc.open_file(mapped)
        for number in rng.permutation(file.num_record_batches):
            block = file.get_batch(number)
            yield from cut(block, rng.permutation(len(block)))


def cut(table: Any, places: np.ndarray) -> Iterator[Batch]:
    """Batches of columns as tensors, their rows in the order of `places`."""
    columns = {name: table.column(name).to_numpy() for name in table.schema.names}
    for start in range(0, len(places), BATCH):
        part = places[start : start + BATCH]
        yield {name: torch.from_numpy(values[part]) for name, values in columns.items()}


def median_rates(
    ways: dict[str, Callable[[], int]], *, rounds: int, before: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Rows per second of each way, the median of `rounds`; they take turns."""
    rates: dict[str, list[float]] = {key: [] for key in ways}
    for _ in range(rounds):
        for key, way in ways.items():
            before()
            began = time.perf_counter()
            delivered = way()
            rates[key].append(delivered / (time.perf_counter() - began))
    return {key: float(np.median(each)) for key, each in rates.items()}


def forget(folder: Path) -> None:
    """Drop the files from the page cache."""
    for path in folder.rglob("rows.*"), folder.glob("packed.npy"):
        for file in path:
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def correlation() -> float:
    """Of the order with itself, one sample on, over an epoch."""
    epoch = sample_order.indices(seed=0, num_samples=ROWS, start=0, stop=ROWS, block=BLOCK)
    return float(abs(np.corrcoef(epoch[1:], epoch[:-1])[0, 1]))


def resume_ms() -> float:
    """Milliseconds to the indices of the next batch at any position of a run, with nothing known before."""
    times = []
    for position in np.random.default_rng(0).integers(0, 10 * ROWS, 21).tolist():
        for known in (
            sample_order._part,
            sample_order._window,
            sample_order._inside_twice,
            sample_order._tables,
        ):
            known.cache_clear()
        began = time.perf_counter()
        sample_order.indices(seed=0, num_samples=ROWS, start=position, stop=position + BATCH, block=BLOCK)
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))


def not_once() -> int:
    """Samples of an epoch that are not seen exactly once while the number of workers changes 31 times."""
    rng = np.random.default_rng(0)
    edges = [0, *np.sort(rng.integers(0, ROWS, 31)).tolist(), ROWS]
    count = np.zeros(ROWS, np.int64)
    for start, stop in pairwise(edges):
        world_size = int(rng.integers(1, 9))
        for first in range(start, stop, BATCH):
            after = min(first + BATCH, stop)
            batch = sample_order.indices(seed=0, num_samples=ROWS, start=first, stop=after, block=BLOCK)
            for rank in range(world_size):
                np.add.at(count, sample_order.share(batch, rank=rank, world_size=world_size), 1)
    return int((count != 1).sum())


READER = """
import sys
from pathlib import Path
from benchmarks.bench_input import Arrays, BATCH, BLOCK, sample_order
data, total, peak = Arrays(Path(sys.argv[1]), block=BLOCK), 0, 0
for start in range(0, len(data), BATCH):
    stop = min(start + BATCH, len(data))
    part = sample_order.indices(seed=0, num_samples=len(data), start=start, stop=stop, block=BLOCK)
    total += int(data.__getitems__(part)["user"].sum())
    if start % (BATCH * 64) == 0:
        status = open("/proc/self/status").read()
        peak = max(peak, int(status.split("RssAnon:")[1].split()[0]))
print(total, peak * 1024)
"""


def under_limit(folder: Path) -> tuple[float, float]:
    """Size of data, and most memory of the process that reads it, both over the limit of that process."""
    num_rows = 4 * LIMIT_BYTES // padded(ROW).itemsize + 1
    (folder / "large").mkdir()
    path = folder / "large" / "rows.npy"
    rows = np.lib.format.open_memmap(path, "w+", padded(ROW), (num_rows,))
    rows["user"] = np.arange(num_rows)
    rows.flush()
    del rows
    done = subprocess.run(
        [sys.executable, "-c", READER, str(folder / "large")],
        cwd=frame.ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(frame.ROOT),
        },
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"reading under a limit ended with {done.returncode}:\n{done.stderr}")
    total, peak_bytes = map(int, done.stdout.split())
    if total != num_rows * (num_rows - 1) // 2:
        raise RuntimeError(f"the sum of what was read is {total}, not that of {num_rows} rows, each once")
    return path.stat().st_size / LIMIT_BYTES, peak_bytes / LIMIT_BYTES


if __name__ == "__main__":
    main()

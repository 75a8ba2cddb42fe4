"""Thirty jobs whose bound is known by how they are made: ten of I/O, ten of compute, ten of memory.

I/O: a sample takes long to get, and the model that sees it is a handful of weights. Compute: samples lie
ready in memory, and the step works on what fits the caches again and again. Memory: samples lie ready too,
and the step goes once through far more bytes than any cache holds, in order or at random; or the batch does
not fit what the process may have, a limit that the kernel enforces.
"""

import json
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

SAMPLES = 4096
WIDTH = 256  # numbers of a sample of the jobs of I/O
READ_BYTES_PER_S = 4e6  # of storage that is slow
LATENCY_S = 0.5e-3  # of a request to storage that is far
IDS, ROWS, DIM = 200, 2_000_000, 16  # looked up per sample; a table of 128 MB


@dataclass(frozen=True, kw_only=True)
class Job:
    """How a job is made, and the bound that follows from it."""

    bound: str
    data: Callable[[Path], Any]
    model: Callable[[], nn.Module]
    batch_size: int = 64
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    room_bytes: int | None = None  # that the process may take on top of what it has; None: no limit


class Constructed:
    """Workload: the job of that name; the loss of a sample is the mean square of the model's answer."""

    def __init__(self, name: str) -> None:
        self.job = JOBS[name]
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return Constructed, (self.name,)

    def dataset(self, folder: Path, split: str) -> Any:
        return self.job.data(folder)

    def model(self) -> nn.Module:
        return self.job.model()

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return self.job.optimizer(parameters, lr=1e-4)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        made: Tensor = model(batch)
        return made.flatten(1).square().mean(1)

    def score(self, model: nn.Module, batch: Any) -> Tensor:
        return -self.loss(model, batch)


# Data


class Each(Dataset[Tensor]):
    """Samples got one by one."""

    def __init__(self, get: Callable[[int], Tensor]) -> None:
        self.get = get

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> Tensor:
        return self.get(sample)


class Whole(Dataset[Tensor]):
    """Samples that lie ready in memory, got by the batch."""

    def __init__(self, samples: Tensor) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: list[int]) -> Tensor:
        return self.samples[torch.tensor(indices)]


class Slow(Whole):
    """The same, after a wait for each batch of so many seconds and so many for each of its samples."""

    def __init__(self, samples: Tensor, *, batch_s: float = 0.0, sample_s: float = 0.0) -> None:
        super().__init__(samples)
        self.batch_s, self.sample_s = batch_s, sample_s

    def __getitems__(self, indices: list[int]) -> Tensor:
        time.sleep(self.batch_s + self.sample_s * len(indices))
        return super().__getitems__(indices)


def write(folder: Path) -> None:
    """Write the files that the jobs of I/O read, a record a sample."""
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0).normal(size=(SAMPLES, WIDTH)).astype(np.float32)
    np.save(folder / "numbers.npy", numbers)
    np.save(folder / "blocks.npy", np.tile(numbers, (1, 64)))  # 64 KB a sample
    texts = {
        "json": [json.dumps({"id": n, "values": row.tolist()}).encode() for n, row in enumerate(numbers)],
        "csv": [",".join(f"{value:.6f}" for value in row).encode() for row in numbers],
        "zlib": [zlib.compress(np.repeat(row, 64).tobytes()) for row in numbers],
        "mixed": [mixed(row) for row in numbers],
    }
    for name, records in texts.items():
        ends = np.cumsum([len(record) for record in records])
        np.save(folder / f"{name}.ends.npy", ends)
        (folder / f"{name}.bin").write_bytes(b"".join(records))


def mixed(row: np.ndarray) -> bytes:
    """A record of key=value pairs of several types, in another order each."""
    order = np.random.default_rng(abs(int(row[0] * 1e6))).permutation(len(row))
    kinds = [
        lambda v: f"{v:.5f}",
        lambda v: f"{int(v * 1000)}m",
        lambda v: float(v).hex(),
        lambda v: str(v > 0),
    ]
    return ";".join(f"k{n}={kinds[n % 4](row[n])}" for n in order).encode()


def from_mixed(record: bytes) -> np.ndarray:
    """The numbers of a record of `mixed`."""
    numbers = np.zeros(WIDTH, np.float32)
    for pair in record.decode().split(";"):
        key, value = pair.split("=")
        if value in ("True", "False"):
            numbers[int(key[1:])] = value == "True"
        elif value.endswith("m"):
            numbers[int(key[1:])] = int(value[:-1]) / 1000
        else:
            numbers[int(key[1:])] = float.fromhex(value) if "0x" in value else float(value)
    return numbers


def parsed(name: str, parse: Callable[[bytes], np.ndarray]) -> Callable[[Path], Any]:
    """A data set that parses one record a sample."""

    def data(folder: Path) -> Each:
        ends = np.load(folder / f"{name}.ends.npy").tolist()
        held = (folder / f"{name}.bin").read_bytes()
        return Each(lambda n: torch.from_numpy(parse(held[ends[n - 1] if n else 0 : ends[n]]).copy()))

    return data


def from_slow_disk(folder: Path) -> Slow:
    """Rows from storage of `READ_BYTES_PER_S`."""
    samples = torch.from_numpy(np.load(folder / "numbers.npy"))
    return Slow(samples, sample_s=samples[0].nbytes / READ_BYTES_PER_S)


def from_afar(folder: Path) -> Each:
    """Rows asked for one by one from storage that answers after `LATENCY_S`."""
    samples = torch.from_numpy(np.load(folder / "numbers.npy"))

    def get(sample: int) -> Tensor:
        time.sleep(LATENCY_S)
        return samples[sample]

    return Each(get)


def from_cold_disk(folder: Path) -> Each:
    """Rows of 64 KB that are in no cache: what was read is dropped at once."""
    path = folder / "blocks.npy"
    size = 64 * 4 * WIDTH
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    first = path.stat().st_size - SAMPLES * size
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def get(sample: int) -> Tensor:
        read = os.pread(descriptor, size, first + sample * size)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return torch.from_numpy(np.frombuffer(read, np.float32)[:WIDTH].copy())

    return Each(get)


def row_by_row(folder: Path) -> Each:
    """Rows of a memory map, one by one."""
    numbers = np.load(folder / "numbers.npy", mmap_mode="r")
    return Each(lambda sample: torch.from_numpy(np.array(numbers[sample])))


def large_rows(folder: Path) -> Any:
    """Rows of 64 KB of a memory map, by the batch, for a model that looks at the first of their numbers."""
    numbers = np.load(folder / "blocks.npy", mmap_mode="r")

    class Large(Whole):
        def __getitems__(self, indices: list[int]) -> Tensor:
            return torch.from_numpy(numbers[np.array(indices)])[:, :WIDTH]

    return Large(torch.empty(SAMPLES, 0))


def normal(*shape: int) -> Callable[[Path], Whole]:
    """Samples of noise of that shape."""

    def data(_: Path) -> Whole:
        return Whole(torch.randn(min(SAMPLES, max(256, (1 << 24) // int(np.prod(shape)))), *shape))

    return data


def ids(count: int = IDS, rows: int = ROWS) -> Callable[[Path], Whole]:
    """Samples of random numbers of rows."""
    return lambda _: Whole(torch.randint(0, rows, (SAMPLES, count)))


# Models


def tiny() -> nn.Module:
    return nn.Linear(WIDTH, 1)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))


class Last(nn.Module):
    """A recurrent layer's answer after the last step."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]


class Special(nn.Module):
    """Costly functions of few numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1024))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = torch.erfinv(torch.tanh(torch.lgamma(1.5 + torch.sigmoid(x * self.scale))) * 0.9)
        return x


class Pairs(nn.Module):
    """All products of pairs of vectors, and of pairs of those."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(96, 96)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        gram = x @ x.transpose(1, 2) / 96
        return gram @ gram @ x


class Solve(nn.Module):
    """A system of equations a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.ridge = nn.Parameter(torch.ones(96))

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.solve(x @ x.transpose(1, 2) / 96 + torch.diag(self.ridge), x)


class Frozen(nn.Module):
    """The sum of the rows looked up in a table that came trained, and a weight for each of their numbers."""

    def __init__(self, *, rows: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(rows, dim))
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        table: Tensor = self.table
        return functional.embedding(x, table).sum(1) * self.weight


class Lookup(nn.Module):
    """The sum of the rows looked up."""

    def __init__(self, *, rows: int = ROWS) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, DIM, _weight=torch.zeros(rows, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).sum(1)


class Hashed(nn.Module):
    """Buckets of a frozen table picked by index, with a weight for all."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(ROWS * DIM))
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        table: Tensor = self.table
        return table[x.flatten()].view(x.shape) * self.weight


class Streams(nn.Module):
    """Simple steps over tensors far beyond the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1 << 18))

    def forward(self, x: Tensor) -> Tensor:
        x = x.repeat(1, 256) + self.bias
        return (x * 0.5 + 1.0).relu() - x


class Chain(nn.Module):
    """Many layers of a weight per number, whose activations are all kept."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.ones(4096) for _ in range(40)])

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = (x * weight).tanh()
        return x


class Scores(nn.Module):
    """Attention that keeps all scores."""

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ x.transpose(1, 2)).softmax(-1)
        return self.last(scores @ x)

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 1)


def deep(depth: int, width: int) -> nn.Module:
    return nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh())))


def images() -> nn.Module:
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(32, 8, 3, padding=1))


def from_json(record: bytes) -> np.ndarray:
    return np.array(json.loads(record)["values"], np.float32)


def from_csv(record: bytes) -> np.ndarray:
    return np.array([float(value) for value in record.split(b",")], np.float32)


def from_zlib(record: bytes) -> np.ndarray:
    return np.frombuffer(zlib.decompress(record), np.float32)[::64]


IO = {
    "JSON parsed row by row": Job(bound="io", data=parsed("json", from_json), model=tiny),
    "CSV parsed row by row": Job(bound="io", data=parsed("csv", from_csv), model=small),
    "decompression": Job(bound="io", data=parsed("zlib", from_zlib), model=small),
    "records of mixed types": Job(bound="io", data=parsed("mixed", from_mixed), model=tiny),
    "storage of 4 MB/s": Job(bound="io", data=from_slow_disk, model=small),
    "storage half a millisecond away": Job(bound="io", data=from_afar, model=small),
    "cold disk": Job(bound="io", data=from_cold_disk, model=tiny),
    "row by row from a map": Job(bound="io", data=row_by_row, model=tiny, batch_size=512),
    "tiny model, large rows": Job(bound="io", data=large_rows, model=tiny, batch_size=256),
    "too few loaders": Job(
        bound="io", data=lambda _: Slow(torch.randn(SAMPLES, WIDTH), batch_s=0.02), model=small
    ),
}
COMPUTE = {
    "products": Job(bound="compute", data=normal(512), model=lambda: deep(4, 512)),
    "wide layers": Job(bound="compute", data=normal(1024), model=lambda: deep(2, 1024), batch_size=256),
    "convolution of images": Job(bound="compute", data=normal(3, 32, 32), model=images, batch_size=16),
    "convolution in time": Job(
        bound="compute",
        data=normal(32, 256),
        model=lambda: nn.Sequential(nn.Conv1d(32, 64, 9), nn.ReLU(), nn.Conv1d(64, 32, 9)),
        batch_size=16,
    ),
    "GRU": Job(bound="compute", data=normal(24, 64), model=lambda: Last(nn.GRU(64, 128, batch_first=True))),
    "LSTM": Job(bound="compute", data=normal(24, 64), model=lambda: Last(nn.LSTM(64, 128, batch_first=True))),
    "attention": Job(
        bound="compute",
        data=normal(64, 64),
        model=lambda: nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True),
        batch_size=16,
    ),
    "costly functions": Job(bound="compute", data=normal(1024), model=Special),
    "all pairs": Job(bound="compute", data=normal(96, 96), model=Pairs, batch_size=32),
    "a system of equations a sample": Job(bound="compute", data=normal(96, 96), model=Solve, batch_size=32),
}
MEMORY = {
    "random rows, wide": Job(
        bound="memory", data=ids(rows=500_000), model=lambda: Frozen(rows=500_000, dim=64), batch_size=256
    ),
    "random rows, wider": Job(
        bound="memory", data=ids(rows=200_000), model=lambda: Frozen(rows=200_000, dim=192), batch_size=128
    ),
    "table with a dense gradient": Job(bound="memory", data=ids(50), model=Lookup, batch_size=64),
    "table under Adam": Job(
        bound="memory",
        data=ids(50, ROWS // 2),
        model=lambda: Lookup(rows=ROWS // 2),
        batch_size=64,
        optimizer=torch.optim.Adam,
    ),
    "buckets of a table": Job(bound="memory", data=ids(400, ROWS * DIM), model=Hashed, batch_size=256),
    "streams through large tensors": Job(bound="memory", data=normal(1024), model=Streams, batch_size=16),
    "a large layer, few samples": Job(
        bound="memory", data=normal(6144), model=lambda: nn.Linear(6144, 6144, bias=False), batch_size=2
    ),
    "activations that do not fit": Job(
        bound="memory",
        data=normal(4096),
        model=Chain,
        batch_size=512,
        room_bytes=400 << 20,
    ),
    "weights and moments that do not fit": Job(
        bound="memory",
        data=normal(512),
        model=lambda: deep(48, 512),
        batch_size=2048,
        optimizer=torch.optim.Adam,
        room_bytes=400 << 20,
    ),
    "scores that do not fit": Job(
        bound="memory", data=normal(512, 16), model=Scores, batch_size=256, room_bytes=300 << 20
    ),
}
JOBS = {**IO, **COMPUTE, **MEMORY}


def sizes(batch_size: int) -> Sequence[int]:
    """Batch sizes to profile a job at."""
    return tuple(
        sorted({max(1, batch_size // 8), max(1, batch_size // 4), max(1, batch_size // 2), batch_size})
    )

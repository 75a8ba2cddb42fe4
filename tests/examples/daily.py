"""Samples of a workload over a few days of its source, as `prepare` makes them."""

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from daybreak.contract.workload import State
from daybreak.data.features import past_of, samples_of
from daybreak.data.partitions import part_of

Arrays = dict[str, np.ndarray]


def made(workload: Any, source: Any, day: date, folder: Path) -> tuple[pa.Table, State, Arrays]:
    """The rows, the state and the samples of a day, with the days before that it looks back on."""
    back = getattr(workload, "looks_back", timedelta())
    days = [other for other in source.days() if day - back <= other <= day]
    for other in days:
        source.fetch(other, part_of(other, folder).parent)
    rows = pq.read_table(part_of(day, folder), partitioning=None)
    state = workload.fit(ibis.duckdb.connect().read_parquet(str(part_of(day, folder))))
    return rows, state, samples_of(workload, rows, state, past_of(workload, day, days, read=reader(folder)))


def reader(folder: Path) -> Callable[[date], pa.Table]:
    """Reads the days that are in the folder."""
    return lambda day: pq.read_table(part_of(day, folder), partitioning=None)


def learned(workload: Any, state: State, samples: Arrays, *, updates: int, rate: float = 3e-3) -> list[float]:
    """The mean loss of 256 samples before and after some updates on them."""
    torch.manual_seed(0)
    model = workload.model(state)
    batch = {name: torch.from_numpy(values[:256]) for name, values in samples.items()}
    optimizer = workload.optimizer(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = rate
    losses = []
    for _ in range(updates + 1):
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        assert loss.shape == (len(batch[next(iter(batch))]),)
        losses.append(float(loss.detach().mean()))
        loss.mean().backward()
        optimizer.step()
    return [losses[0], losses[-1]]


def one_by_one(workload: Any, rows: pa.Table, state: State, past: Any, *, number: int) -> bool:
    """Whether the features of the first rows are the same alone as together."""
    seen = rows.select(list(workload.table.features))
    together = workload.features(seen, state, past)
    for place in range(number):
        alone = workload.features(seen.slice(place, 1), state, past)
        for name, values in together.items():
            if not np.array_equal(values[place : place + 1], alone[name]):
                return False
    return True

"""Reads the samples of many partitions as one data set, mapped into memory."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from daybreak.contract.errors import DataError
from daybreak.contract.workload import Split, State, read_state
from daybreak.training.sample_order import Indices


class Samples(Dataset[dict[str, Tensor]]):
    """The samples of a split, of which `prepare` wrote a structured array for each day.

    A batch is a dict of tensors of shape [b, ...] by the names that `features` gave, with the label and the
    unit. `state` is what `fit` found. The split `serve` is the newest day. `weights` are by how much more
    often samples are drawn, of each; None where all come alike. `groups` are numbers of which equal ones are
    in the same batch; None where samples come one by one.
    """

    weights: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None

    def __init__(self, folder: Path, split: Split) -> None:
        meta = json.loads((folder / "meta.json").read_text())
        first, last, test = meta["first_day"], meta["last_day"], meta["test_days"]
        days = sorted(path.parent.name[4:] for path in folder.glob("day=*/samples.npy"))
        chosen = days[bisect_left(days, first) : bisect_left(days, last) + 1] if split == "train" else test
        if not chosen or not set(chosen) <= set(days):
            raise DataError(f"{folder} has not the samples of the days {split}; run prepare again")
        self.state: State = read_state(folder)
        self._days = [np.load(folder / f"day={day}" / "samples.npy", mmap_mode="r") for day in chosen]
        self._kind: np.dtype[Any] = self._days[0].dtype
        self._rows = [np.ndarray(len(day), f"V{self._kind.itemsize}", day) for day in self._days]
        self._starts = np.cumsum([0, *map(len, self._days)])

    @property
    def num_by_day(self) -> tuple[int, ...]:
        """Returns the number of samples of each day, in their order."""
        return tuple(map(len, self._days))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int] | Indices) -> dict[str, Tensor]:
        """Returns copies of the samples, in the order of the indices."""
        wanted = np.asarray(indices, dtype=np.int64)
        day = np.searchsorted(self._starts, wanted, side="right") - 1
        taken = np.empty(len(wanted), dtype=self._rows[0].dtype)
        order = np.argsort(day, kind="stable")
        ends = np.flatnonzero(np.diff(day[order], append=-1)) + 1
        begin = 0
        for end in ends.tolist():  # one gather from each day that the batch touches
            places = order[begin:end]
            number = day[places[0]]
            taken[places] = self._rows[number].take(wanted[places] - self._starts[number])
            begin = end
        values = taken.view(self._kind)
        return {name: torch.from_numpy(values[name]) for name in self._kind.names or ()}

    def column(self, name: str) -> NDArray[Any]:
        """Returns one field of all samples, shape [n, ...]; DataError where there is none of that name."""
        if name not in (self._kind.names or ()):
            raise DataError(f"the samples have no {name}, only {', '.join(self._kind.names or ())}")
        return np.concatenate([day[name] for day in self._days])

"""Reads samples from arrays mapped into memory, a whole batch with one gather.

A folder of `NAME.npy` files with one row per sample is a data set as it stands: a batch is a dict of tensors,
one per file, or one per field where the rows of a file are a numpy structure. A structured row, with all
fields of a sample side by side, is gathered by one copy; numpy is fastest at 1, 2, 4, 8, 16 or 32 bytes per
row.

Mapped pages are not held: the kernel drops them when other processes need the memory, so the data may be
larger than the memory.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from daybreak.contract.errors import DataError
from daybreak.training.sample_order import Indices


class Arrays(Dataset[dict[str, Tensor]]):
    """The samples of a folder of arrays.

    `block` neighbours are trained on close together, in windows of 64 such blocks: choose a size for which a
    window fits into a cache of the processor and a block is worth a read from the disk. The block size
    affects the trained model, so keep it fixed or make it an argument of the workload. 1 means a full
    shuffle, which suits rows of kilobytes.
    """

    def __init__(self, folder: Path, *, block: int = 1) -> None:
        self.block = block
        self._columns = {path.stem: _Column(path) for path in sorted(folder.glob("*.npy"))}
        lengths = {name: len(column.rows) for name, column in self._columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(
                f"the arrays in {folder} are of {lengths or 'no'} samples; write NAME.npy files of one length"
            )
        self._num_samples = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int] | Indices) -> dict[str, Tensor]:
        """Returns copies of the samples, each tensor of shape [b, ...]; a range is copied in one piece."""
        batch: dict[str, Tensor] = {}
        for name, column in self._columns.items():
            batch |= column.batch(name, indices)
        return batch


class _Column:
    """A mapped file, whose rows are copied as bytes, without regard to their type."""

    def __init__(self, path: Path) -> None:
        # Read-only and shared: pages mapped this way do not count as memory of the process.
        self._mapped: NDArray[Any] = np.load(path, mmap_mode="r")
        if self._mapped.ndim == 0 or not self._mapped.flags.c_contiguous:
            raise DataError(
                f"{path} has no rows to gather; write an array of shape [samples, ...] in C order"
            )
        num_bytes = self._mapped.itemsize * int(np.prod(self._mapped.shape[1:]))
        self.rows: NDArray[Any] = np.ndarray(len(self._mapped), f"V{num_bytes}", self._mapped)
        try:
            self.batch(path.stem, range(0))
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"{path} holds {self._mapped.dtype}, which torch does not take: {reason}; write numbers or "
                f"bools, fields at multiples of their size"
            ) from None

    def batch(self, name: str, indices: Sequence[int] | Indices) -> dict[str, Tensor]:
        if isinstance(indices, range) and indices.step == 1:
            taken = self.rows[indices.start : indices.stop].copy()
        else:
            taken = self.rows.take(np.asarray(indices, dtype=np.int64))
        values = taken.view(self._mapped.dtype).reshape(-1, *self._mapped.shape[1:])
        fields: tuple[str, ...] | None = self._mapped.dtype.names
        if fields is None:
            return {name: torch.from_numpy(values)}
        return {field: torch.from_numpy(values[field]) for field in fields}


def padded(row: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the structure with its size raised to a power of two, so that a row is copied at once.

    >>> padded(np.dtype([("user", "i4"), ("item", "i4"), ("price", "f4")])).itemsize
    16
    """
    fields: Mapping[str, Any] = row.fields or {}
    return np.dtype(
        {
            "names": list(fields),
            "formats": [field[0] for field in fields.values()],
            "offsets": [field[1] for field in fields.values()],
            "itemsize": 1 << (row.itemsize - 1).bit_length(),
        }
    )

"""How are samples read at the speed of the machine? Arrays mapped into memory, a whole batch by one gather.

A folder of `NAME.npy` files, one row a sample, is a data set as it stands: a batch is a dict of tensors, one
per file, or one per field where the rows of a file are a numpy structure. Rows packed so, all fields of a
sample beside each other, are gathered by one copy each; numpy is fastest at 1, 2, 4, 8, 16 or 32 bytes a row.

What is mapped is not held: the kernel drops pages when others need the memory, so data may be larger than it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from pipeline.contract.errors import DataError
from pipeline.training.sample_order import Indices


class Arrays(Dataset[dict[str, Tensor]]):
    """The samples of a folder of arrays.

    `block` neighbours are trained on near each other, in windows of 64 such blocks: let a window fit into a
    cache of the processor, and a block be worth a read from the disk. It is part of what is learned: let it
    be fixed, or an argument of the workload. 1: a full shuffle, for rows of kilobytes.
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
        """Copies of the samples, each tensor of shape [b, ...]; a range of them is copied in one piece."""
        batch: dict[str, Tensor] = {}
        for name, column in self._columns.items():
            batch |= column.batch(name, indices)
        return batch


class _Column:
    """A mapped file; rows are copied as so many bytes, whatever they mean."""

    def __init__(self, path: Path) -> None:
        # Read-only and shared: what is mapped so counts as no memory of the process.
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
            told = " ".join(str(error).split())
            raise DataError(
                f"{path} holds {self._mapped.dtype}, which torch does not take: {told}; write numbers or "
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
    """The structure with its size raised to a power of two, so that a row is copied at once.

    >>> padded(np.dtype([("user", "i4"), ("item", "i4"), ("price", "f4")])).itemsize
    16
    """
    fields: Mapping[str, Any] = row.fields or {}
    return np.dtype(
        {
            "names": list(fields),
            "formats": [told[0] for told in fields.values()],
            "offsets": [told[1] for told in fields.values()],
            "itemsize": 1 << (row.itemsize - 1).bit_length(),
        }
    )

"""Loads whole batches by their indices, ahead of the training thread, with threads.

Threads rather than processes: numpy and torch release the interpreter's lock while they copy, and a process
would have to send what it read. Where loading a batch takes less than a thread switch, no thread is fastest.
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from torch.utils.data import Dataset, default_collate

from pipeline.contract.workload import Batch
from pipeline.training.sample_order import Indices


class Loader:
    """Batches of a data set by their indices."""

    def __init__(self, dataset: "Dataset[Any]", *, num_loaders: int) -> None:
        self._dataset = dataset
        self._pool = ThreadPoolExecutor(num_loaders, "loader") if num_loaders else None
        self._ahead: deque[tuple[Indices, Future[Batch]]] = deque()

    def prepare(self, passes: list[Indices]) -> None:
        """Starts to load these passes."""
        if self._pool:
            for part in passes:
                self._ahead.append((part, self._pool.submit(self._load, part)))

    def get(self, part: Indices) -> Batch:
        """Returns the batch of these samples, whether it was prepared or not."""
        while self._ahead:
            ahead, future = self._ahead.popleft()
            if np.array_equal(ahead, part):
                return future.result()
        return self._load(part)

    def close(self) -> None:
        """Ends the threads."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def _load(self, part: Indices) -> Batch:
        if hasattr(self._dataset, "__getitems__"):
            return self._dataset.__getitems__(part)
        return default_collate([self._dataset[sample] for sample in part.tolist()])

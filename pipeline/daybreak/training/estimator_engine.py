"""Takes the updates of what is no network: each adds a tree that all samples of the run have part in.

So the loop, its checkpoints and its deadline are those of a network: a batch is all samples, an epoch is an
update, and `train.epochs` is the number of trees. What is of gradients does not apply (estimator_keys.py).
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import EVERY_UPDATE, Sync
from daybreak.contract.workload import TrainingProgress, Workload, make_model
from daybreak.training.checkpoint import TrainingState
from daybreak.training.devices import peak_memory_bytes
from daybreak.training.engine import START, UpdateResult
from daybreak.training.estimator_keys import expect_all_samples
from daybreak.training.fit import Fit
from daybreak.training.gradients import Signals
from daybreak.training.learning_rate import Rule, Scaled
from daybreak.training.sample_order import Indices
from daybreak.training.validation_score import validation_score

SCORED = 100_000  # samples at once
ALIVE_EVERY_S = 10.0


class EstimatorEngine:
    """Updates of an estimator, by one worker on its CPU.

    It begins with the samples of the first update, or of the first one after a checkpoint was loaded.
    """

    rank, world_size, least_share = 0, 1, 1
    has_rate, can_score = False, True
    devices = "CPU"
    sync: Sync = EVERY_UPDATE
    waited_s: float | None = None
    queue_length: int | None = None
    num_skipped = 0

    def __init__(
        self,
        workload: Workload,
        dataset: "Dataset[Any]",
        *,
        seed: int,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """Opens the samples; `alive` is called every few seconds of an update, also by another thread."""
        expect_all_samples(workload, dataset)
        self._workload: Any = workload
        self._dataset: Any = dataset
        self._seed, self._alive = seed, alive
        self.model: Any = make_model(workload, getattr(dataset, "state", {}))
        self._fit: Fit | None = None
        self._num_samples = 0
        self.short_of_memory: dict[str, int] = {}

    @property
    def peak_bytes(self) -> int:
        """The most memory that this process has used."""
        return peak_memory_bytes()

    def prepare(self, indices: Indices, *, progress: TrainingProgress = START) -> None:
        """Does nothing: samples are read once, all of them."""

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> UpdateResult:
        """Adds a tree. Raises JobError where the samples are not those of the update before."""
        with _kept_alive(self._alive):
            return self._step(indices, signals)

    def _step(self, indices: Indices, signals: Signals) -> UpdateResult:
        if self._fit is None:
            self._fit = self._begun(np.sort(indices))
        if len(indices) != self._num_samples:
            raise JobError(
                f"an update has {len(indices):,} samples, and the one before had {self._num_samples:,}; set "
                f"train.epochs to a whole number"
            )
        before = self._fit.num_grown
        loss = self._fit.grow()
        return UpdateResult(loss=loss, signals=signals, nothing_left=self._fit.num_grown == before)

    def _begun(self, rows: Indices) -> Fit:
        self._num_samples = len(rows)
        data = self._workload.fit_data(self._dataset.__getitems__(rows))
        fit: Fit = self.model.library.begin(
            self.model.estimator, data, seed=self._seed, content=self.model.content
        )
        return fit

    def begin_from(self, tensors: dict[str, Tensor]) -> bool:
        """Raises JobError: trees are grown anew each night."""
        raise JobError("an estimator has no weights to begin with; set train.cold_every to 1")

    def rescale(
        self, *, batch_size: int, base_size: int, rule: Rule, micro_batch_size: int | None = None
    ) -> Scaled:
        """Returns that nothing changes: there is one size of a batch."""
        return Scaled()

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the counts of the one worker."""
        return counts

    def mean_score(self, samples: Indices, *, alive: Callable[[], None]) -> float:
        """Returns the mean score of samples by the trees of this moment."""
        self._take_over()
        total = 0.0
        for start in range(0, len(samples), SCORED):
            alive()
            batch = self._dataset.__getitems__(samples[start : start + SCORED])
            total += float(validation_score(self._workload, self.model, batch).double().sum())
        return total / len(samples)

    def weights(self) -> dict[str, Tensor]:
        """Returns the model, in the format of its library."""
        self._take_over()
        return dict(self.model.state_dict())

    def whole(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights, which the one worker holds whole."""
        return dict(weights)

    def shares(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights, of which the one worker holds all."""
        return dict(weights)

    def save(self) -> TrainingState:
        """Returns the model."""
        return TrainingState(tensors={"model": self.weights()}, scalars={"device": self.devices})

    def load(self, state: TrainingState) -> None:
        """Restores a model, from which the next update goes on."""
        self.model.load_state_dict(state.tensors["model"])
        self._fit = None

    def finish(self) -> None:
        """Does nothing: no update is on its way."""

    def close(self) -> None:
        """Does nothing: there are no other workers."""

    def _take_over(self) -> None:
        """Gives the model the trees that were added since it was last asked for."""
        if self._fit is not None:
            self.model.load(self._fit.content())


@contextmanager
def _kept_alive(alive: Callable[[], None]) -> Iterator[None]:
    """Calls `alive` all the while, as a fit that takes hours says nothing meanwhile; its deadline ends it."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(ALIVE_EVERY_S):
            alive()

    thread = threading.Thread(target=repeat, name="alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

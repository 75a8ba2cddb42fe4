"""What is changed is really changed: the cache is cold, the operators are free, the workers add up."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from daybreak.profiling import all_reduce
from daybreak.profiling.bounds import Bound, Operator
from daybreak.profiling.counterfactuals import Changes, cold, drop, step_gains, storage
from daybreak.profiling.harness import Harness


def cached_bytes(array: np.ndarray) -> int:
    """Bytes of a mapped array that the page cache holds: pages that a read would not fault in (mincore)."""
    import ctypes

    num_pages = -(-array.nbytes // 4096)
    resident = (ctypes.c_ubyte * num_pages)()
    start = array.ctypes.data & ~4095
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(array.nbytes), resident) == 0
    return 4096 * sum(page & 1 for page in resident)


def test_dropped_arrays_are_in_no_cache_though_they_are_mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(1 << 22, np.uint8))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert int(mapped.sum()) == 1 << 22
    before = cached_bytes(mapped)
    assert drop(tmp_path)
    assert cached_bytes(mapped) < before / 2
    assert int(mapped.sum()) == 1 << 22


def test_what_is_written_in_place_is_kept(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(1 << 20, np.uint8))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    mapped[5] = 7
    drop(tmp_path)
    assert mapped[5] == 7


class Mapped:
    """Rows of a mapped file, copied as they are read."""

    def __init__(self, folder: Path) -> None:
        self.rows = np.load(folder / "x.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: np.ndarray) -> Tensor:
        return torch.from_numpy(self.rows[np.asarray(indices)])


def changed(*, load_busy: float) -> Changes:
    return Changes(
        update_s=0.02,
        load_s=0.01,
        step_s=0.01,
        load_busy=load_busy,
        no_input_gain=0.5,
        no_model_gain=0.5,
        half_batch_gain=0.0,
        more_loader_gain=0.0,
    )


def test_the_second_of_two_loads_is_of_the_same_samples(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1 << 16, dtype=np.float32).reshape(-1, 64))
    workload = Ranker()
    workload.dataset = lambda folder, split: Mapped(tmp_path)  # type: ignore[assignment,return-value]
    harness = Harness(workload, tmp_path, seed=0)
    first = harness.load(64)
    assert torch.equal(harness.reload(64), first)
    assert not torch.equal(harness.load(64), first)
    assert set(cold(harness, 64, tmp_path)) == {"cold_load_s", "warm_load_s"}


@pytest.mark.parametrize(
    ("cold_s", "busy", "cold_share", "waited_share"),
    [
        ({"cold_load_s": 0.012, "warm_load_s": 0.004}, 0.3, 0.8, 0.7),  # it waits for its arrays
        ({"cold_load_s": 0.012, "warm_load_s": 0.004}, 1.0, 0.8, 0.0),  # they are in memory
        ({"cold_load_s": 0.004, "warm_load_s": 0.004}, 0.0, 0.0, 0.0),  # it waits for something else
        ({}, 0.0, 0.0, 0.0),  # nothing can be dropped
    ],
)
def test_a_load_waits_for_storage_no_longer_than_that_takes(cold_s, busy, cold_share, waited_share):
    shares = storage(changed(load_busy=busy), cold_s)
    assert shares == {
        "cold_share": pytest.approx(cold_share),
        "waited_share": pytest.approx(waited_share),
    }


def test_a_folder_without_files_cannot_be_dropped(tmp_path):
    assert not drop(tmp_path / "nowhere")


@pytest.mark.slow
def test_two_workers_take_longer_for_more_bytes():
    line = all_reduce.allreduce_s(1 << 20, num_workers=2)
    assert line(1 << 20) > 0
    assert torch.isfinite(torch.tensor([line.fixed, line.per_sample])).all()


def test_one_worker_has_nothing_to_add_up():
    assert all_reduce.evidence(1000, num_workers=1, update_s=1.0)["sync_s"] == 0


class Ranker:
    """A table whose gradient goes straight to its parameter, and scores that are scaled in place."""

    factor = 1.0

    def dataset(self, folder: Path, split: str) -> list[int]:
        return list(range(256))

    def model(self) -> nn.Module:
        return nn.ModuleDict({"table": nn.Embedding(256, 64), "net": nn.Linear(64, 64)})

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.0)

    def loss(self, model: nn.ModuleDict, batch: Tensor) -> Tensor:
        scores = model["net"](model["table"](batch))
        scores *= self.factor
        return scores.tanh().square().sum(1)

    def score(self, model: nn.ModuleDict, batch: Tensor) -> Tensor:
        return -self.loss(model, batch)


class Overflowing(Ranker):
    """Not finite once it is scaled again and again, as what comes before is not computed anew."""

    factor = 1e15

    def loss(self, model: nn.ModuleDict, batch: Tensor) -> Tensor:
        scores = model["net"](model["table"](batch))
        scores *= self.factor
        return scores.square().sum(1)


@dataclass(frozen=True)
class Named(Operator):
    """An operator that is free of charge or not by its name."""

    def bound(self, rates: object) -> Bound:
        return "compute" if self.name == "addmm" else "memory"


def gains(workload: Ranker) -> dict[Bound, float] | None:
    harness = Harness(workload, Path(), seed=0)
    harness.build()
    batch = harness.load(64)
    operators = [Named(**vars(each)) for each in harness.operators([batch, batch], 64)]
    return step_gains(harness, 64, batch, operators, None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_step_with_gradients_that_go_straight_to_their_parameters_is_run_again():
    assert gains(Ranker()) is not None


@pytest.mark.slow
def test_a_step_that_breaks_without_its_operators_is_no_broken_job():
    assert gains(Overflowing()) is None

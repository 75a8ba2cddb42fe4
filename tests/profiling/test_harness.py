"""What the harness counts is what can be worked out by hand."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import TrainingProgress
from daybreak.profiling import harness as harness_module
from daybreak.profiling.bounds import Operator
from daybreak.profiling.harness import Harness
from daybreak.profiling.operators import OperatorLog, OtherStep, Replay
from daybreak.training import sample_order
from daybreak.training.arrays import Arrays

MEAN, DEVIATION, DIM = 0.5, 2.0, 50


class Mean:
    """Learns the mean of normal samples: the gradient of a sample is w - x, so all is known."""

    def __init__(self, sparse: bool = False, whole_batch: bool = False):
        self.sparse, self.whole_batch = sparse, whole_batch

    def dataset(self, folder: Path, split: str) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        return list(MEAN + DEVIATION * torch.randn(5000, DIM, generator=generator))

    def model(self) -> nn.Module:
        model = nn.Embedding(1, DIM, sparse=self.sparse)
        nn.init.zeros_(model.weight)
        return model

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return ((model(torch.zeros(len(batch), dtype=torch.long)) - batch) ** 2).sum(dim=1) / 2

    def score(self, model: nn.Module, batch: Tensor) -> Tensor:
        return -self.loss(model, batch)


def operators(run: Callable[[], object], *, cache_bytes: int = 0) -> list[Operator]:
    with OperatorLog(time.perf_counter, cache_bytes=cache_bytes) as log:
        run()
    return log.operators


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("whole_batch", [False, True])
def test_the_noise_scale_is_the_variance_over_the_square_of_the_gradient(sparse, whole_batch):
    harness = Harness(Mean(sparse, whole_batch), Path(), seed=0)
    harness.build()
    squares, variances = zip(*(harness.noise(32) for _ in range(20)), strict=True)
    assert sum(squares) / 20 == pytest.approx(DIM * MEAN**2, rel=0.1)
    assert sum(variances) / 20 == pytest.approx(DIM * DEVIATION**2, rel=0.1)


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        ((64, 16, 6000), (16, 64)),
        ((64,), (32, 64)),  # not the whole data set, which need not fit the memory
        ((1,), (1, 2)),
        ((8000, 9000), (2500, 5000)),
    ],
)
def test_a_line_has_two_batch_sizes_that_the_data_can_fill(wanted, sizes):
    assert Harness(Mean(), Path(), seed=0).sizes(wanted) == sizes


@pytest.mark.parametrize(("sparse", "copies"), [(False, 2), (True, 1)])
def test_weights_are_held_in_their_own_bytes_and_with_gradients_where_these_are_dense(sparse, copies):
    harness = Harness(Mean(sparse), Path(), seed=0)
    harness.build()
    assert harness.num_held_bytes() == copies * 4 * DIM
    harness.model.bfloat16()
    assert harness.num_held_bytes() == copies * 2 * DIM
    harness.model.requires_grad_(False)
    assert harness.num_held_bytes() == 2 * DIM


@pytest.mark.slow
def test_every_sample_is_loaded_once_before_one_is_loaded_again():
    harness = Harness(Mean(), Path(), seed=0)
    seen = torch.cat([harness.load(500) for _ in range(10)])
    assert len(seen.unique(dim=0)) == 5000


def test_samples_come_in_the_order_of_training(tmp_path):
    class Blocks(Mean):
        def dataset(self, folder: Path, split: str) -> Arrays:
            return Arrays(folder, block=8)

    np.save(tmp_path / "x.npy", np.arange(4096))
    harness = Harness(Blocks(), tmp_path, seed=3)
    trained_on = sample_order.indices(seed=3, num_samples=4096, start=0, stop=200, block=8)
    assert [*harness.load(100)["x"].tolist(), *harness.load(100)["x"].tolist()] == trained_on.tolist()


@pytest.mark.slow
def test_the_largest_batch_is_of_the_longest_sample_and_an_order_is_made_once_a_size(tmp_path, monkeypatch):
    class Long(Mean):
        def dataset(self, folder: Path, split: str) -> Arrays:
            dataset = Arrays(folder)
            dataset.lengths = np.where(np.arange(4096) == 5, 9, 3)
            return dataset

    np.save(tmp_path / "x.npy", np.arange(4096))
    harness, made, kind = Harness(Long(), tmp_path, seed=3), [], harness_module.SampleOrder
    assert harness.load_largest(2)["x"].tolist() == [5, 5]
    monkeypatch.setattr(
        harness_module, "SampleOrder", lambda **given: made.append(given["batch_size"]) or kind(**given)
    )
    for size in (2, 3, 2, 3):
        harness.load(size)
    assert made == [2, 3]


def test_a_product_reads_both_and_writes_one():
    a, b = torch.ones(10, 20), torch.ones(20, 30)
    (product,) = operators(lambda: a @ b)
    assert product.num_bytes == 4 * (10 * 20 + 20 * 30 + 10 * 30)
    assert product.flops == 2 * 10 * 20 * 30


def test_what_was_used_of_late_is_in_the_cache():
    a, b = torch.ones(10, 20), torch.ones(20, 30)
    first, second = operators(lambda: (a @ b, a @ b), cache_bytes=1 << 20)
    assert first.num_bytes > 0
    assert second.num_bytes <= 4 * 10 * 30  # what is written may be new


@pytest.mark.parametrize("heads", [1, 4])
def test_attention_on_a_cpu_counts_both_of_its_products(heads):
    q = torch.ones(2, heads, 16, 8, requires_grad=True)

    def step():
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()

    flops = sum(operator.flops for operator in operators(step))
    forward = 2 * (2 * heads * 16 * 16 * 8) * 2
    assert flops == pytest.approx(3.5 * forward)  # backward computes the scores again


def test_a_recurrent_layer_on_a_cpu_counts_the_products_of_all_its_steps():
    lstm = nn.LSTM(8, 16, batch_first=True)
    with torch.no_grad():
        flops = sum(operator.flops for operator in operators(lambda: lstm(torch.ones(3, 5, 8))))
    assert flops == 2 * 3 * 5 * 4 * 16 * (8 + 16)


def test_a_view_moves_nothing_and_a_lookup_only_its_rows():
    table, rows = torch.ones(100_000, 8), torch.tensor([1, 2, 3, 3])

    def look_up():
        table.view(8, 100_000)
        torch.nn.functional.embedding(rows, table)

    (lookup,) = operators(look_up)
    assert (lookup.num_rows, lookup.row_bytes) == (3, 64)  # less than a line does not come from memory
    assert lookup.num_bytes == 4 * 8 + 4 * 4 * 8  # the numbers of the rows, and what is made of them


def test_a_sparse_update_touches_its_rows_only():
    table = nn.Embedding(100_000, 8, sparse=True)
    table(torch.tensor([1, 2, 3])).sum().backward()
    update = operators(torch.optim.SGD(table.parameters(), lr=0.1).step)
    assert sum(operator.num_rows for operator in update) == 3
    assert sum(operator.num_bytes for operator in update) < 1000


def test_a_replay_does_not_run_what_is_free_of_charge():
    weight, ran = torch.ones(3), []
    replay = Replay(["mul", "add_"], {1})
    for _ in range(3):
        replay.rewind()
        with replay:
            product = weight * 2
            weight.add_(1)
        ran.append((product[0].item(), weight[0].item()))
    assert ran == [(2, 2), (4, 2), (4, 2)]


def test_a_replay_of_another_step_is_refused():
    replay = Replay(["mul"], set())
    with pytest.raises(OtherStep, match="operator 0"), replay:
        torch.ones(3)


class Broken(Mean):
    """Asks for a device that no machine has."""

    def model(self) -> nn.Module:
        return nn.Linear(1, 1).to("cuda:99")


def test_a_device_that_is_not_there_is_told_in_one_sentence_with_its_place():
    with pytest.raises(ParamsError, match=r"Broken fails in model with .*; fix its code"):
        Harness(Broken(), Path(), seed=0).build()


class Thawing(Mean):
    """Trains a bias from the beginning, and the table in the middle of the run alone."""

    def model(self) -> nn.Module:
        return nn.ModuleDict({"table": super().model(), "bias": nn.Linear(1, 1)})

    def trainable(self, model: nn.ModuleDict, progress: TrainingProgress) -> None:
        model["table"].requires_grad_(0.4 < progress.done < 0.6)

    def loss(self, model: nn.ModuleDict, batch: Tensor) -> Tensor:
        return super().loss(model["table"], batch) + model["bias"](batch[:, :1])[:, 0].square()


class ThawingLater(Thawing):
    """Trains the table from its third epoch on."""

    def trainable(self, model: nn.ModuleDict, progress: TrainingProgress) -> None:
        model["table"].requires_grad_(progress.epoch >= 2)


@pytest.mark.parametrize("kind", [Thawing, ThawingLater])
def test_weights_that_thaw_are_measured_where_most_are_trained(kind: type[Thawing]) -> None:
    harness = Harness(kind(), Path(), seed=0)
    harness.build()
    assert harness.num_sync_bytes() == 4 * (DIM + 2)
    harness.step(harness.load(8), 8)
    assert all(each.grad is not None for each in harness.model.parameters())

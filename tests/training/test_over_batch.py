"""A loss over a batch is that of a plain loop over whole batches, in passes, after a kill and on workers."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, normalize

from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import is_encoded, is_undivided
from daybreak.training import accumulation, cached_gradients, sample_order
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.micro_batch import MicroBatches
from daybreak.training.worker_keys import expect_batches_alike
from tests.fakes import LineWorkload, write_curve
from tests.training.recipes import recipe
from tests.training.stoppable import StoppableRun

NUM_SAMPLES, SIZE, NUM_UPDATES, RATE = 64, 16, 12, 0.01
BATCHES = [np.arange(0, 10), np.arange(10, 13), np.arange(13, 14), np.arange(14, 30)]
Weights = dict[str, Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    return tmp_path


class Towers(LineWorkload):
    """Finds the answer of each sample among those of its batch; some of its units are left out."""

    dropped = 0.0

    def model(self) -> Any:
        parts = {"question": nn.Linear(1, 8), "answer": nn.Linear(1, 8), "table": nn.Embedding(50, 8)}
        return nn.ModuleDict(parts)

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=RATE)

    def encode(self, model: Any, batch: Any) -> Weights:
        question = model["question"](batch["x"][:, None]) + model["table"](batch["key"])
        answer = dropout(model["answer"](batch["y"][:, None]), self.dropped)
        return {"question": normalize(question), "answer": normalize(answer), "key": batch["key"]}

    def batch_loss(self, encoded: Any) -> Tensor:
        alike = encoded["question"] @ encoded["answer"].T / 0.1
        others = encoded["key"][:, None] != encoded["key"]
        alike = alike.masked_fill(~others & ~torch.eye(len(alike), dtype=torch.bool), -math.inf)
        return cross_entropy(alike, torch.arange(len(alike)), reduction="none")

    def loss(self, model: Any, batch: Any) -> Any:
        return self.batch_loss(self.encode(model, batch))


class Dropping(Towers):
    dropped = 0.5


class Whole(LineWorkload):
    """The same loss, and statistics of BatchNorm, in one pass."""

    whole_batch = True

    def model(self) -> Any:
        return nn.ModuleDict({**Towers().model(), "norm": nn.BatchNorm1d(8)})

    def loss(self, model: Any, batch: Any) -> Any:
        towers = Towers()
        encoded = towers.encode(model, batch)
        return towers.batch_loss({**encoded, "question": model["norm"](encoded["question"])})


class Run(StoppableRun):
    """A run at a constant rate, in passes of a few samples."""

    def __init__(self, folder: Path, workload: Any, *, micro_batch_size: int = 5) -> None:
        made = recipe(
            num_samples=NUM_UPDATES * SIZE, batch_size=SIZE, peak=RATE, warmup=0.0, schedule="constant"
        )
        super().__init__(folder, workload, made, epoch_samples=NUM_SAMPLES, micro_batch_size=micro_batch_size)


def by_hand(folder: Path, workload: Any) -> Weights:
    """The weights after the same batches in a plain loop, each in one pass."""
    data = workload.dataset(folder, "train")
    torch.manual_seed(7)
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = RATE
    for number in range(NUM_UPDATES):
        samples = sample_order.indices(
            seed=7, num_samples=NUM_SAMPLES, start=number * SIZE, stop=(number + 1) * SIZE
        )
        optimizer.zero_grad()
        workload.loss(model, data.__getitems__(samples)).mean().backward()
        optimizer.step()
    return dict(model.state_dict())


def same(ours: Weights, theirs: Weights) -> bool:
    return all(torch.equal(ours[name], weight) for name, weight in theirs.items())


@pytest.mark.parametrize("micro_batch_size", [16, 5, 1])
def test_a_loss_over_encoded_samples_is_that_of_a_plain_loop_in_any_passes(folder, micro_batch_size):
    ours = Run(folder, Towers(), micro_batch_size=micro_batch_size).until()
    torch.testing.assert_close(ours, by_hand(folder, Towers()), rtol=1e-6, atol=1e-6)


def test_a_whole_batch_with_its_statistics_is_that_of_a_plain_loop(folder):
    ours = Run(folder, Whole()).until()
    torch.testing.assert_close(ours, by_hand(folder, Whole()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [Dropping, Whole])
def test_a_loss_over_a_batch_is_the_same_after_a_kill(folder, monkeypatch, kind):
    monkeypatch.setattr(accumulation, "HALVE_EVERY", 3)  # which also measures the noise
    (folder / "alone").mkdir()
    write_curve(folder / "alone", num_samples=NUM_SAMPLES)
    alone = Run(folder / "alone", kind()).until()
    for update in (3, 8, math.inf):
        weights = Run(folder, kind()).until(update)
    assert same(weights, alone)


def test_dropout_leaves_out_the_same_units_when_a_pass_is_encoded_again(folder, monkeypatch):
    encode, drawn = Dropping.encode, []

    def noted(self: Any, model: Any, batch: Any) -> Weights:
        encoded = encode(self, model, batch)
        drawn.append((encoded["answer"] == 0).sum(1).tolist())
        return encoded

    monkeypatch.setattr(Dropping, "encode", noted)
    Run(folder, Dropping(), micro_batch_size=8).until(1)
    first, second = drawn[:2], drawn[2:4]
    assert first == second
    assert first[0] != first[1]


def test_the_noise_of_a_loss_over_a_batch_comes_from_a_batch_and_its_half(folder, monkeypatch):
    monkeypatch.setattr(accumulation, "HALVE_EVERY", 1)
    run = Run(folder, Towers())
    samples = np.arange(16)
    noise = run.engine.step(samples, batch_size=16, rate=0.0, signals=Signals()).noise
    data = Towers().dataset(folder, "train")

    def square(part: Any) -> float:
        run.engine.model.zero_grad()
        Towers().loss(run.engine.model, data.__getitems__(part)).mean().backward()
        return float(sum(each.grad.square().sum() for each in run.engine.model.parameters()))

    small, big = square(samples[:8]), square(samples)
    assert noise == pytest.approx(((16 * big - 8 * small) / 8, (small - big) * 16), rel=1e-4)


def test_where_memory_is_short_a_whole_batch_is_not_divided():
    batches = MicroBatches(4, is_undivided=True, on_shrink=lambda size: None)
    assert [len(part) for part in batches.split(np.arange(10))] == [10]
    with pytest.raises(
        JobError, match=r"memory does not suffice for 10 samples in one pass, and whole_batch"
    ):
        batches.shrink(share=10)


def test_where_memory_is_short_encoded_samples_are_taken_in_smaller_passes(folder):
    sizes = []

    class Short(Towers):
        def encode(self, model: Any, batch: Any) -> Weights:
            sizes.append(len(batch["x"]))
            if sizes[-1] > 4:
                raise MemoryError
            return super().encode(model, batch)

    ours = Run(folder, Short(), micro_batch_size=8).until()
    assert max(sizes[3:]) == 4
    torch.testing.assert_close(ours, by_hand(folder, Towers()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "returned, sentence",
    [
        (
            {"batch_loss": lambda self, encoded: encoded["question"].sum()},
            r"batch_loss returns shape \[\] for",
        ),
        (
            {"encode": lambda self, model, batch: {"question": batch["x"].sum()}},
            r"encode returns question of",
        ),
        (
            {"encode": lambda self, model, batch: batch["x"][:2]},
            r"encode returns a tensor of shape \[2\] for 5",
        ),
    ],
)
def test_what_encode_and_batch_loss_return_wrongly_is_said(folder, returned, sentence):
    with pytest.raises(ParamsError, match=sentence):
        Run(folder, type("Wrong", (Towers,), returned)()).until(1)


def test_batch_norm_in_encoded_samples_is_refused(folder):
    kind = type("Normed", (Towers,), {"model": lambda self: Whole().model()})
    with pytest.raises(ParamsError, match=r"the model has BatchNorm, by which Normed\.encode depends on"):
        Run(folder, kind())


def test_a_loss_for_which_memory_does_not_suffice_says_so(folder, monkeypatch):
    def short(self: Any, encoded: Any) -> Tensor:
        raise MemoryError

    monkeypatch.setattr(Towers, "batch_loss", short)
    with pytest.raises(JobError, match="memory does not suffice for batch_loss over 16 encoded samples"):
        Run(folder, Towers()).until(1)


class Normed(Towers):
    """Its weights are divided by a norm, which each pass in training estimates further in a buffer."""

    def model(self) -> Any:
        parts = super().model()
        parts["table"] = nn.utils.parametrizations.spectral_norm(parts["table"])
        return parts


def test_what_a_pass_changes_in_buffers_is_the_same_when_it_is_encoded_again(folder, monkeypatch):
    encode, norms = Towers.encode, []

    def noted(self: Any, model: Any, batch: Any) -> Weights:
        norms.append(model["table"].parametrizations.weight[0]._u.tolist())
        return encode(self, model, batch)

    monkeypatch.setattr(Towers, "encode", noted)
    workload = Normed()
    engine = TorchEngine(
        workload, workload.dataset(folder, "train"), seed=1, micro_batch_size=4, tuning=Tuning()
    )
    engine.step(np.arange(16), batch_size=16, rate=0.1, signals=Signals())
    assert norms[:4] == norms[4:]
    assert norms[0] != norms[1]


def test_encodings_of_all_workers_for_which_memory_does_not_suffice_end_the_job(folder, monkeypatch):
    def lacking(*given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cached_gradients, "_gathered", lacking)
    workload = Towers()
    engine = TorchEngine(
        workload, workload.dataset(folder, "train"), seed=1, micro_batch_size=4, tuning=Tuning()
    )
    with pytest.raises(JobError, match="memory does not suffice for batch_loss over 16 encoded samples"):
        engine.step(np.arange(16), batch_size=16, rate=0.1, signals=Signals())


def test_a_class_that_asks_for_whole_batches_gets_them_though_it_inherits_batch_loss():
    class Both(Towers):
        whole_batch = True

    assert is_undivided(Both())
    assert not is_encoded(Both())


def test_batches_of_as_many_tokens_are_refused_where_the_loss_compares_a_batch():
    with pytest.raises(ParamsError, match=r"the loss of Towers is over a batch, and train\.batch_by: tokens"):
        expect_batches_alike("tokens", Towers())
    expect_batches_alike("samples", Towers())
    expect_batches_alike("tokens", LineWorkload())


def trained(folder: Path) -> TorchEngine:
    """Updates on uneven shares, one of them empty."""
    workload = Towers()
    engine = TorchEngine(
        workload, workload.dataset(folder, "train"), seed=1, micro_batch_size=4, tuning=Tuning()
    )
    for batch in BATCHES:
        cut = 1 + len(batch) // 4 if engine.world_size > 1 else len(batch)
        share = batch[:cut] if engine.rank == 0 else batch[cut:]
        step = engine.step(share, batch_size=len(batch), rate=0.1, signals=Signals())
        assert np.isfinite(step.loss)
        assert engine.world_size == 1 or step.noise is None
    return engine


@pytest.mark.slow
def test_workers_compare_the_samples_of_all_of_them(folder):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*command, "-m", "tests.training.test_over_batch", str(folder)],
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    alone = trained(folder).weights()
    torch.testing.assert_close(torch.load(folder / "two.pt"), alone, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    accumulation.HALVE_EVERY = accumulation.LOOK_EVERY = 1
    made = trained(Path(sys.argv[1]))
    if made.rank == 0:
        torch.save(made.weights(), Path(sys.argv[1]) / "two.pt")
    made.close()

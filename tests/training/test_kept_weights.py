"""Tied weights, lazy modules, buffers and counts are right in each checkpoint, and in what serves."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import TrainingProgress
from daybreak.registry.weights import load_model
from daybreak.training import checkpoint
from daybreak.training.checkpoint import write_tensors
from daybreak.training.engine import TorchEngine
from daybreak.training.recipe import Averaging
from daybreak.training.trainer import Trainer
from daybreak.training.weight_average import WeightAverage
from tests.fakes import AtOnce, LineWorkload, write_curve
from tests.training.recipes import recipe

NUM_SAMPLES, SIZE, NUM_KEYS = 48, 8, 50


class Met(nn.Module):
    """Keeps which keys it has met, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, int] = {}

    def forward(self, keys: Tensor) -> Tensor:
        """Returns how often it has met each key."""
        for key in map(str, keys.tolist() if self.training else ()):
            self.times[key] = self.times.get(key, 0) + 1
        return torch.tensor([float(self.times.get(str(key), 0)) for key in keys.tolist()])

    def get_extra_state(self) -> dict[str, int]:
        return dict(self.times)

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.times = dict(state)


class Kept(nn.Module):
    """A table that gives the answer, too, lazy layers, running statistics, buffers, and counts."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_KEYS, width)
        self.answer = nn.Linear(width, NUM_KEYS, bias=False)
        self.answer.weight = self.table.weight
        self.net = nn.Sequential(nn.LazyLinear(width), nn.LazyBatchNorm1d(), nn.Tanh())
        self.met = Met()
        self.num_seen: Tensor
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.int64))
        self.scale: Tensor
        self.register_buffer("scale", torch.linspace(1, 2, width), persistent=False)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if self.training:
            self.num_seen += len(batch["x"])
        hidden = self.net(torch.stack([batch["x"], batch["x"].square()], 1)) + self.table(batch["key"])
        answers: Tensor = self.answer(hidden * self.scale)
        return answers.gather(1, batch["key"][:, None])[:, 0] / (1 + self.met(batch["key"]))


class OfTable(LineWorkload):
    """Workload of that model."""

    def model(self) -> Any:
        return Kept()

    def _answer(self, model: Any, batch: Any) -> Any:
        return model({**batch, "key": batch["key"].reshape(len(batch["x"]), -1)[:, 0]})


def run(folder: Path, *, until: float = math.inf) -> tuple[TorchEngine, WeightAverage]:
    """Returns the engine and the average of a run from its newest checkpoint to an update, or to its end."""
    workload = OfTable()
    made = recipe(num_samples=3 * NUM_SAMPLES, batch_size=SIZE, peak=0.01)
    data = workload.dataset(folder, "train")
    engine = TorchEngine(workload, data, seed=7, micro_batch_size=SIZE, tuning=Tuning())
    average = WeightAverage(engine, Averaging(ema=0.9), base_size=SIZE)
    trainer = Trainer(
        engine,
        made,
        folder=folder / "checkpoints",
        epoch_samples=NUM_SAMPLES,
        told_to_stop=lambda: trainer.num_updates + 1 >= until,
        report=lambda progress: None,
        executor=AtOnce(),
        average=average,
    )
    if path := checkpoint.newest(folder / "checkpoints", identity=made.identity):
        trainer.resume(path)
    trainer.run()
    return engine, average


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    return tmp_path


def test_a_run_that_is_stopped_keeps_tied_weights_lazy_layers_and_buffers(folder):
    left_alone, of_left_alone = (each.weights() for each in run(folder))
    run(folder, until=4)
    resumed, average = run(folder)
    for ours, theirs in ((resumed.weights(), left_alone), (average.weights(), of_left_alone)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    model: Any = resumed.model
    assert model.answer.weight is model.table.weight
    assert int(model.num_seen) == 3 * NUM_SAMPLES
    assert sum(model.met.times.values()) == 3 * NUM_SAMPLES
    assert torch.equal(model.scale, torch.linspace(1, 2, 8))
    assert "scale" not in left_alone


def test_the_model_that_serves_answers_as_the_one_that_was_trained(folder):
    engine, _ = run(folder)
    write_tensors(folder / "model.safetensors", engine.weights())
    served: Any = load_model(OfTable(), folder).cpu()
    assert served.answer.weight is served.table.weight
    assert sum(served.met.times.values()) == 3 * NUM_SAMPLES
    batch = OfTable().dataset(folder, "train").__getitems__(list(range(SIZE)))
    with torch.no_grad():
        engine.model.eval()
        assert torch.equal(OfTable().score(served, batch), OfTable().score(engine.model, batch))


def test_a_warm_start_takes_what_modules_keep_whatever_its_length(folder):
    engine, _ = run(folder)
    workload = OfTable()
    fresh = TorchEngine(
        workload, workload.dataset(folder, "train"), seed=1, micro_batch_size=SIZE, tuning=Tuning()
    )
    assert fresh.begin_from(engine.weights())
    ours: Any = fresh.model
    assert sum(ours.met.times.values()) == 3 * NUM_SAMPLES


def test_lazy_layers_begin_with_the_weights_of_the_seed(folder):
    workload = OfTable()
    data = workload.dataset(folder, "train")
    engines = [
        TorchEngine(workload, data, seed=seed, micro_batch_size=3, tuning=Tuning()) for seed in (1, 1, 2)
    ]
    first, again, other = (engine.weights()["net.0.weight"] for engine in engines)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class InTurns(LineWorkload):
    """Reaches its lazy layer in each third update alone."""

    def model(self) -> Any:
        return nn.ModuleDict({**super().model(), "third": nn.LazyLinear(1)})

    def loss(self, model: Any, batch: Any, progress: TrainingProgress) -> Any:
        losses = super().loss(model, batch)
        return losses + model["third"](batch["x"][:, None])[:, 0] if progress.update % 3 == 2 else losses


def test_a_lazy_layer_of_a_later_turn_gets_its_shape(folder):
    workload: Any = InTurns()
    data = workload.dataset(folder, "train")
    engine = TorchEngine(workload, data, seed=1, micro_batch_size=3, tuning=Tuning())
    assert engine.weights()["third.weight"].shape == (1, 1)

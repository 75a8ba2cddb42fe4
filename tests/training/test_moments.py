"""What an optimizer kept in the champion's training is where a warm start begins, if it is asked for."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daybreak.contract import records
from daybreak.contract.record_parts import Tuning
from daybreak.jobs import collector
from daybreak.training import checkpoint, moments
from daybreak.training.checkpoint import TrainingState
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.recipe import Result, WarmStart
from tests.fakes import LineWorkload, write_curve
from tests.training.nights import ROOT
from tests.training.recipes import recipe

SIZE, RATE = 8, 0.01


class Decaying(LineWorkload):
    """A curve by AdamW."""

    decay = 0.1

    def __init__(self) -> None:
        super().__init__(dropout=0.0)

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, weight_decay=self.decay)


class DecaysMore(Decaying):
    """The class after an edit."""

    decay = 0.5


class OfSgd(Decaying):
    """The class with another optimizer."""

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


class InGroups(Decaying):
    """The class with its weights in two groups."""

    def optimizer(self, model: Any) -> Any:
        return torch.optim.AdamW([{"params": part.parameters()} for part in model.values()])


class Reordered(Decaying):
    """The class with its weights in another order."""

    def optimizer(self, model: Any) -> Any:
        return torch.optim.AdamW(list(model.parameters())[::-1])


class Wider(Decaying):
    """The class with a layer of another shape."""

    def model(self) -> Any:
        model = super().model()
        model["net"][0] = torch.nn.Linear(model["net"][0].in_features, 7)
        model["net"][2] = torch.nn.Linear(7, 1)
        return model


class KeepsLargest(Decaying):
    """The class by AMSGrad, which keeps one more moment."""

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, amsgrad=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_curve(tmp_path, num_samples=64)
    return tmp_path


def engine(folder: Path, workload: Any) -> TorchEngine:
    data = workload.dataset(folder, "train")
    return TorchEngine(workload, data, seed=1, micro_batch_size=SIZE, tuning=Tuning())


def train(made: TorchEngine, *, first: int, last: int) -> dict[str, torch.Tensor]:
    for number in range(first, last):
        share = np.arange(number * SIZE, (number + 1) * SIZE)
        made.step(share, batch_size=SIZE, rate=RATE, signals=Signals())
    return {name: weight.clone() for name, weight in made.weights().items()}


def kept(folder: Path) -> tuple[TorchEngine, dict[str, torch.Tensor]]:
    """Returns the engine of a champion whose moments lie in a folder, and its weights."""
    champion = engine(folder, Decaying())
    weights = train(champion, first=0, last=4)
    moments.write(folder, *champion.updater.save())
    return champion, weights


def test_a_warm_start_with_moments_goes_on_as_the_champion_would(folder):
    champion, weights = kept(folder)
    warm, bare = engine(folder, Decaying()), engine(folder, Decaying())
    for made in (warm, bare):
        assert made.begin_from(weights)
    assert moments.take_over(warm.updater, folder)
    went_on = train(champion, first=4, last=8)
    assert all(torch.equal(value, went_on[name]) for name, value in train(warm, first=4, last=8).items())
    without = train(bare, first=4, last=8)
    assert not torch.equal(without["net.0.weight"], went_on["net.0.weight"])


def test_options_of_an_edited_optimizer_stand(folder):
    kept(folder)
    edited = engine(folder, DecaysMore())
    assert moments.take_over(edited.updater, folder)
    assert [group["weight_decay"] for group in edited.updater.groups()] == [0.5]
    assert len(edited.optimizer.state) == len(list(edited.model.parameters()))


@pytest.mark.parametrize("workload", [OfSgd, InGroups, Reordered, Wider, KeepsLargest])
def test_moments_of_another_optimizer_or_of_other_weights_are_left_out_and_said(folder, workload, caplog):
    kept(folder)
    other = engine(folder, workload())
    assert not moments.take_over(other.updater, folder)
    assert not any(optimizer.state for optimizer in other.updater.optimizers.values())
    assert "are of another optimizer, or of other weights or options; beginning without" in caplog.text


def test_a_champion_without_moments_is_said(folder, caplog):
    assert not moments.take_over(engine(folder, Decaying()).updater, folder)
    assert "has no moments of its optimizer; beginning without" in caplog.text


def test_a_job_whose_time_is_over_leaves_the_moments_of_its_checkpoint(folder):
    champion, _ = kept(folder)
    made = recipe(arrays=str(folder), workload="tests.training.test_moments:Decaying", carries_optimizer=True)
    state = champion.save()
    scalars = {**state.scalars, "num_updates": 4}
    checkpoint.save(
        folder / "checkpoints",
        TrainingState(tensors=state.tensors, scalars=scalars),
        seen=32,
        identity=made.identity,
    )
    result = collector.from_checkpoint(folder, made, now=0.0)
    assert result.model_digest == records.digest(folder / "model")
    assert moments.take_over(engine(folder, Decaying()).updater, folder / "model")


@pytest.mark.slow
def test_a_job_leaves_moments_with_its_model_and_the_next_one_begins_with_them(folder):
    def run(name: str, **changed: Any) -> str:
        job = folder / name
        job.mkdir()
        made = recipe(
            arrays=str(folder),
            workload="tests.training.test_moments:Decaying",
            num_samples=64,
            carries_optimizer=True,
            **changed,
        )
        records.replace_text(job / "job.json", records.dumps(made))
        command = [sys.executable, "-m", "daybreak.training.worker", str(job)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        assert (job / "model" / moments.TREE).exists()
        return ended.stderr

    run("first")
    digest = records.read(Result, folder / "first").model_digest
    said = run("second", warm_start=WarmStart(folder=str(folder / "first/model"), digest=digest))
    assert records.read(Result, folder / "second").warm
    assert "beginning without" not in said

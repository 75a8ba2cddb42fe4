"""A loss knows where the run is, and what it draws and keeps beside tensors is the same after a kill."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import TrainingProgress
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine
from daybreak.training.generators import BLOCK, Generators
from daybreak.training.trainer import Trainer
from tests.fakes import AtOnce, LineWorkload, write_curve
from tests.training.recipes import recipe

NUM_SAMPLES, SIZE, EPOCHS = 32, 8, 3


class Noted(LineWorkload):
    """Notes the progress of each pass, and weighs its losses by numbers that it draws."""

    def __init__(self, *, first: int = 0) -> None:
        super().__init__(dropout=0.0)
        self.first = first
        self.noted: list[TrainingProgress] = []
        self.count: Any = {"hard": [0], "sum": torch.zeros(1)}

    def loss(self, model: Any, batch: Any, progress: TrainingProgress) -> Tensor:
        self.noted.append(progress)
        losses = super().loss(model, batch)
        self.count["hard"][0] += 1
        self.count["sum"] += losses.detach().mean()
        if progress.update < self.first:
            return losses
        drawn = random.random() + np.random.rand() + float(torch.rand(1, generator=progress.generator))
        return losses * drawn / (1 + float(self.count["sum"]) + self.count["hard"][0])

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "pair": ("a", 1)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["pair"] == ("a", 1)
        self.count = {"hard": list(state["count"]["hard"]), "sum": state["count"]["sum"].clone()}


class Run:
    """A run as a worker makes it."""

    def __init__(self, folder: Path, workload: Noted) -> None:
        self.stop_after = math.inf
        made = recipe(num_samples=EPOCHS * NUM_SAMPLES, batch_size=SIZE, peak=0.1)
        data = workload.dataset(folder, "train")
        self.engine = TorchEngine(workload, data, seed=7, micro_batch_size=5, tuning=Tuning())
        self.trainer = Trainer(
            self.engine,
            made,
            folder=folder / "checkpoints",
            epoch_samples=NUM_SAMPLES,
            told_to_stop=lambda: self.trainer.num_updates + 1 >= self.stop_after,
            report=lambda progress: None,
            executor=AtOnce(),
        )
        if path := checkpoint.newest(folder / "checkpoints", identity=made.identity):
            self.trainer.resume(path)

    def until(self, update: float) -> dict[str, Tensor]:
        random.seed()  # as in a new process
        np.random.seed()
        self.stop_after = update
        self.trainer.run()
        return {name: weight.clone() for name, weight in self.engine.weights().items()}


def test_a_loss_knows_samples_share_epoch_and_update(tmp_path):
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    workload = Noted()
    Run(tmp_path, workload).until(math.inf)
    passes = workload.noted[::2]  # two an update
    assert [each.seen for each in passes] == [number * SIZE for number in range(12)]
    assert [each.done for each in passes] == pytest.approx([number / 12 for number in range(12)])
    assert [each.epoch for each in passes] == [number // 4 for number in range(12)]
    assert [each.update for each in workload.noted] == [number // 2 for number in range(24)]
    assert {each.generator for each in passes} == {torch.default_generator}


@pytest.mark.parametrize("first", [0, 5])
def test_what_a_loss_draws_from_any_generator_and_keeps_is_the_same_after_a_kill(tmp_path, first):
    """It draws from the first update on, or begins in a later one, before or after the kill."""
    for name in ("alone", "stopped"):
        write_curve(tmp_path / name, num_samples=NUM_SAMPLES)
    alone = Run(tmp_path / "alone", Noted(first=first)).until(math.inf)
    for update in (3, 8, math.inf):
        weights = Run(tmp_path / "stopped", Noted(first=first)).until(update)
    assert all(torch.equal(weights[name], weight) for name, weight in alone.items())


def numbers(generators: Generators, updates: list[int], *, drawing: range) -> list[tuple[float, float]]:
    drawn = []
    for update in updates:
        generators.begin(update)
        if update in drawing:
            drawn.append((random.random(), np.random.rand()))
    return drawn


def of_seed(seed: int) -> Generators:
    return Generators(seed=seed, rank=0, world_size=1, device=torch.device("cpu"))


@pytest.mark.parametrize("begins_at", [BLOCK - 2, BLOCK, BLOCK + 3])
def test_the_numbers_of_an_update_follow_from_its_number_and_the_seed(begins_at):
    drawing = range(BLOCK + 3, BLOCK + 10)
    whole = numbers(of_seed(1), list(range(BLOCK + 10)), drawing=drawing)
    assert len(set(whole)) == len(whole)
    assert numbers(of_seed(1), list(range(begins_at, BLOCK + 10)), drawing=drawing) == whole
    again = [*range(BLOCK + 4), BLOCK + 3, *range(BLOCK + 4, BLOCK + 10)]  # an update is repeated
    assert numbers(of_seed(1), again, drawing=drawing) == [whole[0], *whole]
    assert numbers(of_seed(2), list(range(begins_at, BLOCK + 10)), drawing=drawing) != whole


class KeepsAnObject(Noted):
    """Its state has what is neither number, text nor tensor."""

    def state_dict(self) -> dict[str, Any]:
        return {"object": object()}


def test_a_state_that_no_checkpoint_can_hold_is_named(tmp_path):
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    with pytest.raises(
        ParamsError, match=r"KeepsAnObject\.state_dict has a value that no checkpoint can hold"
    ):
        Run(tmp_path, KeepsAnObject()).until(2)

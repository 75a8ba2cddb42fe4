"""A loss knows where the run is, and what it draws and keeps beside tensors is the same after a kill."""

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import TrainingProgress
from daybreak.training.engine import TorchEngine
from daybreak.training.generators import BLOCK, Generators
from daybreak.training.own_state import load_own_state, pack_own_state
from daybreak.workloads.table_workload import TableWorkload
from tests.fakes import LineWorkload, write_curve
from tests.training.recipes import recipe
from tests.training.stoppable import StoppableRun

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


class Run(StoppableRun):
    """A run of passes of five samples, whose process has drawn at random before."""

    def __init__(self, folder: Path, workload: Noted) -> None:
        made = recipe(num_samples=EPOCHS * NUM_SAMPLES, batch_size=SIZE, peak=0.1)
        super().__init__(folder, workload, made, epoch_samples=NUM_SAMPLES, micro_batch_size=5)

    def until(self, update: float = math.inf) -> dict[str, Tensor]:
        random.seed()  # as in a new process
        np.random.seed()
        return super().until(update)


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


def test_numbers_first_drawn_in_the_newest_update_are_noticed_without_taking_any():
    generators = of_seed(1)
    assert not generators.have_drawn()
    generators.begin(3)
    assert not generators.have_drawn()
    state = random.getstate()
    np.random.rand()
    assert generators.have_drawn()
    assert random.getstate() == state


@pytest.mark.parametrize("update", [1, 2])
def test_a_kill_just_after_the_first_update_that_draws_changes_nothing(tmp_path, update):
    for name in ("alone", "stopped"):
        write_curve(tmp_path / name, num_samples=NUM_SAMPLES)
    alone = Run(tmp_path / "alone", Noted(first=update)).until(math.inf)
    for until in (update + 1, math.inf):
        weights = Run(tmp_path / "stopped", Noted(first=update)).until(until)
    assert all(torch.equal(weights[name], weight) for name, weight in alone.items())


class KeepsAnything(Noted):
    """Its state is what the test says."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.state}


@pytest.mark.parametrize(
    ("state", "named"),
    [(object(), "a object"), (Counter("a"), "a Counter"), ({(1, 2): 3}, r"a key \(1, 2\)")],
)
def test_a_state_that_would_come_back_as_another_is_named(tmp_path, state, named):
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    with pytest.raises(
        ParamsError, match=rf"KeepsAnything\.state_dict has a value that no checkpoint can hold \({named}\)"
    ):
        Run(tmp_path, KeepsAnything(state)).until(2)


def test_tensors_of_a_state_come_back_on_the_device_of_the_model_or_where_they_were_apart():
    class Kept:
        def __init__(self, **state: Tensor) -> None:
            self.state = state

        def state_dict(self) -> dict[str, Tensor]:
            return self.state

        def load_state_dict(self, state: dict[str, Tensor]) -> None:
            self.state = state

    meta, fresh = torch.device("meta"), Kept()
    _, packed = pack_own_state(Kept(near=torch.zeros(1, device=meta), apart=torch.zeros(1)), device=meta)
    load_own_state(fresh, {"0": torch.zeros(1), "1": torch.zeros(1)}, packed, device=meta)
    assert {name: each.device.type for name, each in fresh.state.items()} == {"near": "meta", "apart": "cpu"}


class Forgets(LineWorkload):
    """Has no method that takes its state back."""

    def state_dict(self) -> dict[str, Any]:
        return {}


def test_a_class_that_cannot_take_its_state_back_is_told_at_the_start(tmp_path):
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    workload: Any = Forgets()
    with pytest.raises(ParamsError, match="has state_dict and no load_state_dict"):
        Run(tmp_path, workload)


def test_a_state_of_its_own_is_of_one_worker(tmp_path, monkeypatch):
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    monkeypatch.setattr(TorchEngine, "takes_all", False)
    with pytest.raises(ParamsError, match=r"Noted\.state_dict is of one worker, and 1 train by TorchEngine;"):
        Run(tmp_path, Noted())


class ScoresByItsLoss(Noted):
    """Its score is the default one, by a loss that counts."""

    def loss(self, model: Any, batch: Any, progress: TrainingProgress) -> Tensor:
        assert progress.done == 1
        self.count["hard"][0] += 1
        return LineWorkload.loss(self, model, batch)

    def score(self, model: Any, batch: Any) -> Tensor:
        return TableWorkload.score(self, model, batch)  # type: ignore[arg-type]


def test_a_validation_leaves_what_a_class_keeps_as_it_is(tmp_path):
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    workload = ScoresByItsLoss()
    Run(tmp_path, workload).engine.mean_score(np.arange(SIZE), alive=lambda: None)
    assert workload.count["hard"] == [0]


@pytest.mark.parametrize("name", ["seen", "epoch", "update"])
def test_a_score_by_a_loss_that_reads_what_only_training_knows_is_refused(name):
    class Reads(TableWorkload):
        def loss(self, model: Any, batch: Any, *, progress: TrainingProgress) -> Any:  # type: ignore[override]
            return getattr(progress, name) * batch

    with pytest.raises(ParamsError, match=rf"the loss reads progress\.{name}, which is not known"):
        Reads().score(torch.nn.Linear(1, 1), torch.zeros(1))


def test_a_score_by_losses_of_several_optimizers_asks_for_metrics():
    class Several(TableWorkload):
        def loss(self, model: Any, batch: Any) -> Any:
            return {"one": batch, "other": batch}

    with pytest.raises(
        ParamsError, match=r"Several\.loss returns a loss for each optimizer, .* name metrics"
    ):
        Several().score(torch.nn.Linear(1, 1), torch.zeros(1))


class ByKeyword(LineWorkload):
    """Takes the progress by keyword, after an argument of its own."""

    def loss(self, model: Any, batch: Any, weight: float = 1.0, *, progress: TrainingProgress) -> Tensor:
        assert weight == 1
        return super().loss(model, batch) * (1 + progress.done)


def test_a_loss_may_take_the_progress_by_keyword(tmp_path):
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    workload: Any = ByKeyword()
    Run(tmp_path, workload).until(2)

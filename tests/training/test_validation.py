"""Validation while training keeps the best weights, and ends a run where nothing better comes."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset

from daybreak.contract import records
from daybreak.contract.record_parts import Tuning
from daybreak.jobs import collector
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine
from daybreak.training.recipe import Averaging, Progress, Recipe, Result, Validation
from daybreak.training.sampling import Sampling
from daybreak.training.trainer import Trainer
from daybreak.training.validation import COST, FEWEST_SCORED, FORWARD, Validator, validation_of
from daybreak.training.weight_average import WeightAverage
from tests.fakes import AtOnce, LineWorkload, write_curve
from tests.training.nights import ROOT
from tests.training.recipes import recipe

NUM_ALL, NUM_VALIDATED, SIZE = 120, 20, 10
PATIENCE = Validation(num_samples=NUM_VALIDATED, num_scored=8, every=2 * SIZE, patience=3)


class Passing(LineWorkload):
    """A weight that rises by 0.1 an update and scores best at `best`, as where a model begins to overfit."""

    def __init__(self, best: float = 0.75) -> None:
        super().__init__()
        self.best = best

    def model(self) -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        return nn.Sequential(model, nn.Dropout(0.5)).append(nn.Identity())

    def optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters)

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        assert model.training
        return -model[0].weight.expand(len(batch["x"]), 1)[:, 0]

    def score(self, model: Any, batch: Any) -> torch.Tensor:
        assert not model[1].training
        return -(model[0].weight.expand(len(batch["x"]), 1)[:, 0] - self.best).square()


class Run:
    """A run of a recipe over the samples that it is not validated on."""

    def __init__(
        self, folder: Path, made: Recipe, *, best: float = 0.75, workload: Passing | None = None
    ) -> None:
        workload = workload or Passing(best)
        write_curve(folder, num_samples=NUM_ALL)
        data = workload.dataset(folder, "train")
        self.engine = TorchEngine(workload, data, seed=1, micro_batch_size=SIZE, tuning=Tuning())
        average = None
        if made.averaging != Averaging():
            average = WeightAverage(self.engine, made.averaging, base_size=SIZE)
        self.validator = Validator(self.engine, made.validation, num_all=len(data), average=average)
        self.stop_after = math.inf
        self.trainer = Trainer(
            self.engine,
            made,
            folder=folder / "checkpoints",
            epoch_samples=NUM_ALL - NUM_VALIDATED,
            told_to_stop=lambda: self.trainer.num_updates + 1 >= self.stop_after,
            report=lambda progress: None,
            executor=AtOnce(),
            average=average,
            validator=self.validator,
        )
        if path := checkpoint.newest(folder / "checkpoints", identity=made.identity):
            self.trainer.resume(path)

    def until(self, update: float) -> str:
        self.stop_after = update
        return self.trainer.run().stopped_by

    @property
    def weight(self) -> float:
        return float(self.validator.weights()["0.weight"])


def job(**changed: Any) -> Recipe:
    values = {"peak": 0.1, "warmup": 0.0, "decay": 0.0, "validation": PATIENCE} | changed
    return recipe(**{"num_samples": 300, "batch_size": SIZE} | values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_curve(tmp_path, num_samples=NUM_ALL)
    return tmp_path


def test_the_best_weights_are_the_model_and_a_run_that_only_gets_worse_ends(folder):
    run = Run(folder, job())
    run.engine.model[2].eval()
    assert run.until(math.inf) == "validation"
    assert run.weight == pytest.approx(0.8)  # of 0.2, 0.4 and so on, nearest to 0.75
    assert run.trainer.num_updates == 8 + 2 * PATIENCE.patience
    seen, scores = zip(*run.validator.scores, strict=True)
    assert seen == (20, 40, 60, 80, 100, 120, 140)
    assert scores == pytest.approx([-((0.2 * number - 0.75) ** 2) for number in range(1, 8)], abs=1e-6)
    modes = [module.training for module in run.engine.model]
    assert modes == [True, True, False]  # as they were


class Between(Passing):
    """A weight that jumps to and fro over `best` by as much as the rate."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return (model[0].weight.expand(len(batch["x"]), 1)[:, 0] - self.best).abs()


def test_a_run_that_gets_no_better_at_its_peak_does_where_its_rate_falls(folder):
    at_once, falling = (
        Run(folder / name, job(peak=0.125, decay=decay), workload=Between(0.8125))
        for name, decay in (("at once", 0.0), ("falling", 0.5))
    )
    assert at_once.until(math.inf) == falling.until(math.inf) == "validation"
    assert (at_once.trainer.seen, falling.trainer.seen) == (120, 240)  # of 300
    assert abs(at_once.weight - 0.8125) == pytest.approx(0.0625, abs=1e-6)  # half of the rate
    assert abs(falling.weight - 0.8125) < 0.02


def test_patience_counts_again_while_the_rate_falls(folder):
    run = Run(folder, job(decay=0.6))
    assert run.until(math.inf) == "validation"
    assert run.weight == pytest.approx(0.8)
    assert run.trainer.seen == 140 + 60  # and not 350, where the rate is 0


def test_a_rate_that_falls_already_falls_to_the_end(folder):
    run = Run(folder, job(decay=0.6, num_samples=180))
    assert run.until(math.inf) == "finished"
    assert run.validator.scores[-1][0] == 180


def test_a_run_that_gets_better_goes_on_to_its_end_and_is_validated_there(folder):
    run = Run(folder, job(), best=100.0)
    assert run.until(math.inf) == "finished"
    assert run.trainer.seen == 300
    assert run.validator.scores[-1][0] == 300
    assert run.weight == pytest.approx(3.0)


def test_without_patience_a_run_goes_on_and_keeps_the_best(folder):
    without = Validation(num_samples=NUM_VALIDATED, num_scored=8, every=2 * SIZE)
    run = Run(folder, job(validation=without))
    assert run.until(math.inf) == "finished"
    assert run.weight == pytest.approx(0.8)


@pytest.mark.parametrize("averaging", [Averaging(), Averaging(ema=0.5)])
@pytest.mark.parametrize("decay", [0.0, 0.25])
def test_a_run_that_is_stopped_anywhere_keeps_the_same_weights_and_ends_at_the_same_update(
    folder, averaging, decay
):
    made = job(averaging=averaging, decay=decay)
    left_alone = Run(folder, made)
    assert left_alone.until(math.inf) == "validation"
    for update in (3, 8, 9, 13, *range(14, left_alone.trainer.num_updates)):
        again = folder / f"stopped {update}"
        for until in (update, math.inf):
            run = Run(again, made)
            run.until(until)
        assert run.trainer.num_updates == left_alone.trainer.num_updates
        assert run.validator.scores == left_alone.validator.scores
        assert run.weight == left_alone.weight
        assert float(run.engine.weights()["0.weight"]) == float(left_alone.engine.weights()["0.weight"])
    run.trainer.save()  # as the worker does at the end
    ended = Run(again, made)
    assert ended.until(math.inf) == "validation"
    assert ended.trainer.num_updates == left_alone.trainer.num_updates


def test_an_average_is_what_is_validated_and_training_goes_on_from_the_newest_weights(folder):
    plain, averaged = Run(folder, job()), Run(folder, job(averaging=Averaging(ema=0.8)))
    plain.until(math.inf)
    averaged.until(math.inf)
    newest = averaged.engine.weights()["0.weight"]
    assert float(newest) == pytest.approx(0.1 * averaged.trainer.num_updates)
    assert averaged.trainer.num_updates > plain.trainer.num_updates  # as an average comes later to its best


def test_a_job_whose_time_is_over_is_judged_by_its_best_weights(folder):
    made = job(arrays=str(folder), workload="tests.training.test_validation:Passing")
    Run(folder, made).until(11)
    result = collector.from_checkpoint(folder, made, now=0.0)
    assert float(load_file(folder / "model" / "model.safetensors")["0.weight"]) == pytest.approx(0.8)
    assert [seen for seen, _ in result.validations] == [20, 40, 60, 80, 100]
    assert result.num_samples == 110


def test_a_score_that_is_not_a_number_is_never_the_best(folder):
    made = job(arrays=str(folder), workload="tests.training.test_validation:Passing")
    run = Run(folder, made, best=math.nan)
    assert run.until(math.inf) == "validation"
    assert len(run.validator.scores) == PATIENCE.patience
    run.trainer.save()
    result = collector.from_checkpoint(folder, made, now=0.0)
    assert records.read(Result, folder) == result  # no record holds what is not a number
    assert result.validations == ()
    assert run.weight == float(run.engine.weights()["0.weight"])


def test_what_a_checkpoint_is_written_of_does_not_change_while_it_is(folder):
    run = Run(folder, job())
    run.until(5)
    state = run.engine.save()
    run.validator.save(state)
    run.until(9)
    assert [seen for seen, _ in state.scalars["validations"]] == [20, 40]


class Large(Passing):
    """Scores two samples at once at most."""

    def score(self, model: Any, batch: Any) -> torch.Tensor:
        if len(batch["x"]) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return super().score(model, batch)


def test_scores_that_do_not_fit_the_memory_are_taken_in_smaller_passes(folder):
    alive: list[int] = []
    samples = np.arange(20, 40)
    engines = []
    for workload in (Passing(), Large()):
        data = workload.dataset(folder, "train")
        engines.append(TorchEngine(workload, data, seed=1, micro_batch_size=SIZE, tuning=Tuning()))
    plain, short = (engine.mean_score(samples, alive=lambda: alive.append(1)) for engine in engines)
    assert plain == short
    assert len(alive) > 12
    assert engines[1].micro_batches.size == SIZE  # training goes on as before


class Noisy(Dataset[Any]):
    """Samples with random numbers of their own."""

    def __len__(self) -> int:
        return NUM_ALL

    def __getitem__(self, sample: int) -> Any:
        return {"x": torch.rand(())}


class NoisyScore(Passing):
    """A score by what its samples draw."""

    def dataset(self, folder: Path, split: str) -> Any:
        return Noisy()

    def score(self, model: Any, batch: Any) -> torch.Tensor:
        return batch["x"]


def test_samples_that_draw_random_numbers_score_alike_each_time(folder):
    workload = NoisyScore()
    engine = TorchEngine(workload, Noisy(), seed=1, micro_batch_size=SIZE, tuning=Tuning())
    state = torch.get_rng_state()
    scores = [engine.mean_score(np.arange(30), alive=lambda: None) for _ in range(3)]
    assert scores[0] == scores[1] == scores[2]
    assert torch.equal(torch.get_rng_state(), state)


class Slow(Passing):
    """Takes a hundredth of a second an update, and three to be scored."""

    now = 1e9

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        Slow.now += 0.01
        return super().loss(model, batch)

    def score(self, model: Any, batch: Any) -> torch.Tensor:
        Slow.now += 3.0
        return super().score(model, batch)


def slow(
    folder: Path, *, best: float, decay: float, seconds: float, sampling: Sampling | None = None
) -> tuple[Trainer, list[Progress]]:
    """A run of 20 s, and 60 s of validations, with its heartbeats."""
    workload = Slow(best=best)
    data = workload.dataset(folder, "train")
    engine = TorchEngine(workload, data, seed=1, micro_batch_size=SIZE, tuning=Tuning())
    validation = Validation(num_samples=NUM_VALIDATED, num_scored=8, every=1000, patience=3)
    until = datetime.fromtimestamp(Slow.now + seconds, UTC)
    made = job(num_samples=20_000, peak=1e-3, decay=decay, validation=validation, train_until=until)
    heartbeats: list[Progress] = []
    trainer = Trainer(
        engine,
        made,
        folder=folder / "checkpoints",
        epoch_samples=NUM_ALL - NUM_VALIDATED,
        sampling=sampling,
        told_to_stop=lambda: False,
        report=heartbeats.append,
        clock=lambda: Slow.now,
        executor=AtOnce(),
        validator=Validator(engine, validation, num_all=len(data)),
    )
    return trainer, heartbeats


def test_a_validation_is_not_taken_for_a_loss_of_speed(folder):
    trainer, heartbeats = slow(folder, best=100, decay=0.3, seconds=100)
    assert trainer.run().stopped_by == "finished"
    assert {beat.end for beat in heartbeats} == {20_000}
    assert min(beat.samples_per_s for beat in heartbeats) > 900


def test_an_end_by_validation_is_not_put_off_as_there_is_time(folder):
    trainer, heartbeats = slow(folder, best=0.5, decay=0.25, seconds=1000)
    assert trainer.run().stopped_by == "validation"
    assert trainer.seen == 10_670  # with patience out at 8,000
    assert [beat.end for beat in heartbeats] == [beat.num_samples for beat in heartbeats]
    assert {beat.num_samples for beat in heartbeats if beat.seen > 8000} == {10_670}
    assert heartbeats[-1].rate < 1e-5


@pytest.mark.parametrize("decay", [0.2, 0.22, 0.25])
def test_an_end_by_validation_is_that_of_a_batch_of_whole_groups(folder, decay):
    of_sample = np.repeat(np.arange(14), 7)
    of_sample = np.append(of_sample, [14, 14])
    sampling = Sampling(groups=of_sample)
    trainer, heartbeats = slow(folder, best=0.5, decay=decay, seconds=1000, sampling=sampling)
    assert trainer.run().stopped_by == "validation"
    assert {beat.num_samples for beat in heartbeats} == {20_000, trainer.seen}
    assert trainer.seen < 12_000


def test_a_deadline_brings_the_end_by_validation_forward(folder):
    trainer, heartbeats = slow(folder, best=0.5, decay=0.25, seconds=37)
    assert trainer.run().stopped_by == "deadline"
    assert heartbeats[-1].end < heartbeats[-1].num_samples == 10_670
    assert heartbeats[-1].rate < 5e-5


@given(st.integers(1, 10**7), st.integers(1, 10**9))
def test_validation_costs_little_where_a_run_is_long(num_validated, num_samples):
    made = validation_of(num_validated, num_samples=num_samples, patience=5)
    number = num_samples // made.every
    assert made.num_scored <= num_validated
    work = FORWARD * number * made.num_scored
    if COST * num_samples >= FORWARD * 4 * FEWEST_SCORED:
        assert work <= 1.05 * COST * num_samples
        assert 4 <= number <= 20
    assert validation_of(0, num_samples=num_samples, patience=5) == Validation()


@pytest.mark.slow
def test_a_job_trains_on_all_samples_but_those_that_it_is_validated_on(folder):
    (folder / "job").mkdir()
    made = job(
        arrays=str(folder),
        workload="tests.fakes:LineWorkload",
        validation=Validation(num_samples=NUM_VALIDATED, num_scored=8, every=60),
    )
    records.replace_text(folder / "job/job.json", records.dumps(made))
    command = [sys.executable, "-m", "daybreak.training.worker", str(folder / "job")]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, cwd=ROOT)
    result = json.loads((folder / "job/result.json").read_text())
    assert [(epoch["num_samples"], epoch["whole"]) for epoch in result["epochs"]] == [(100, True)] * 3
    scores = dict(result["validations"])
    assert list(scores) == [60, 120, 180, 240, 300]
    best = max(scores, key=scores.__getitem__)
    model = load_file(folder / "job/model/model.safetensors")
    newest = load_file(next((folder / "job/checkpoints").glob("*300/model.safetensors")))
    assert torch.equal(model["net.0.weight"], newest["net.0.weight"]) == (best == 300)

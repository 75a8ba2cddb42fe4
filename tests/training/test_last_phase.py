"""The last phase of a validated run trains on the days of its validation, too, from the best weights on."""

import json
import math
import os
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from daybreak.contract.record_parts import Tuning
from daybreak.jobs import collector
from daybreak.training import checkpoint
from daybreak.training.engine import TorchEngine
from daybreak.training.last_phase import PEAK, MainPhase
from daybreak.training.phases import Phases
from daybreak.training.recipe import Averaging, Progress, Recipe, Validation
from daybreak.training.sample_audit import SampleAudit
from daybreak.training.sampling import SampleOrder, Sampling
from daybreak.training.trainer import Trainer
from daybreak.training.validation import Validator
from daybreak.training.weight_average import WeightAverage
from tests.fakes import AtOnce, write_curve
from tests.training import nights
from tests.training.forked import Job, Seen
from tests.training.recipes import recipe
from tests.training.test_validation import NUM_ALL, NUM_VALIDATED, SIZE, Passing, Slow

NUM_LAST = 2 * NUM_VALIDATED
VALIDATION = Validation(
    num_samples=NUM_VALIDATED, num_scored=8, every=2 * SIZE, patience=3, num_last=NUM_LAST
)


class Run:
    """A run of both phases in this process."""

    def __init__(
        self,
        folder: Path,
        made: Recipe,
        *,
        workload: Passing | None = None,
        left_s: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        workload = workload or Passing()
        write_curve(folder, num_samples=NUM_ALL)
        data = workload.dataset(folder, "train")
        self.engine = TorchEngine(workload, data, seed=1, micro_batch_size=SIZE, tuning=Tuning())
        average = None
        if made.averaging != Averaging():
            average = WeightAverage(self.engine, made.averaging, base_size=SIZE)
        self.validator = Validator(self.engine, made.validation, num_all=len(data), average=average)
        self.stop_after = math.inf
        self.heartbeats: list[Progress] = []

        def phase(tonight: Recipe, main: MainPhase | None) -> Trainer:
            return Trainer(
                self.engine,
                tonight,
                folder=folder / "checkpoints",
                epoch_samples=NUM_ALL if main else NUM_ALL - NUM_VALIDATED,
                told_to_stop=lambda: self.phases.trainer.num_updates + 1 >= self.stop_after,
                report=self.heartbeats.append,
                executor=AtOnce(),
                clock=clock,
                average=average,
                validator=None if main else self.validator,
                main=main,
            )

        self.phases = Phases(
            self.engine, made, phase, num_all=NUM_ALL, validator=self.validator, left_s=lambda: left_s
        )
        if path := checkpoint.newest(folder / "checkpoints", identity=made.identity):
            self.phases.resume(path)

    def until(self, update: float) -> str:
        self.stop_after = update
        self.outcome = self.phases.run()
        if self.outcome.stopped_by != "terminated":
            self.phases.trainer.save()
        return self.outcome.stopped_by

    @property
    def weight(self) -> float:
        return float(self.validator.weights()["0.weight"])


def job(**changed: Any) -> Recipe:
    values = {"peak": 0.1, "warmup": 0.0, "decay": 0.0, "validation": VALIDATION} | changed
    return recipe(**{"num_samples": 300, "batch_size": SIZE} | values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_curve(tmp_path, num_samples=NUM_ALL)
    return tmp_path


@pytest.mark.parametrize("patience", [0, 3])
def test_the_last_phase_goes_on_from_the_best_weights_over_the_newest_samples(folder, patience):
    run = Run(folder, job(validation=replace(VALIDATION, patience=patience)))
    assert run.until(math.inf) == ("validation" if patience else "finished")
    assert float(run.validator.best()["0.weight"]) == pytest.approx(0.8)
    rates = [PEAK * 0.1 * share for share in (0.875, 0.625, 0.375, 0.125)]  # at the middle of each update
    assert run.weight == pytest.approx(0.8 + sum(rates))
    assert run.outcome.num_last == NUM_LAST
    main = 140 if patience else 300
    assert run.outcome.seen == main + NUM_LAST
    *epochs, last = run.phases.epochs()
    assert sum(epoch.num_samples for epoch in epochs) == main
    assert (last.num_samples, last.whole) == (NUM_LAST, True)
    order = SampleOrder(seed=7, num_samples=NUM_LAST, first_sample=NUM_ALL - NUM_LAST, sampling=Sampling())
    by_hand = SampleAudit(order)
    by_hand.add(0, order.samples(0, NUM_LAST))
    by_hand.settle(seen=NUM_LAST, total=lambda counts: counts)
    assert by_hand.proven() == (last,)
    seen = [beat.seen for beat in run.heartbeats]
    assert seen == sorted(seen)
    assert seen[-1] == run.heartbeats[-1].end == run.heartbeats[-1].num_samples == main + NUM_LAST
    if not patience:
        assert run.heartbeats[0].num_samples == 300 + NUM_LAST


def test_the_last_phase_of_a_long_run_comes_to_all_samples_again(folder):
    run = Run(folder, job(validation=replace(VALIDATION, num_last=180)))
    assert run.until(math.inf) == "validation"
    assert run.outcome.num_last == 180
    *_, whole, part = run.phases.epochs()
    assert [(each.num_samples, each.whole) for each in (whole, part)] == [(NUM_ALL, True), (60, False)]


@pytest.mark.parametrize("averaging", [Averaging(), Averaging(ema=0.5)])
def test_a_run_that_is_stopped_anywhere_ends_its_last_phase_with_the_same_weights(folder, averaging):
    made = job(averaging=averaging, decay=0.25)
    alone = Run(folder / "alone", made)
    alone.until(math.inf)
    assert alone.outcome.num_last == NUM_LAST
    for update in range(2, alone.outcome.num_updates + 1):
        for until in (update, math.inf):
            run = Run(folder / f"stopped {update}", made)
            run.until(until)
        assert run.outcome == alone.outcome
        assert run.weight == alone.weight
        assert run.validator.scores == alone.validator.scores
        assert run.phases.epochs() == alone.phases.epochs()
    ended = Run(folder / f"stopped {update}", made)  # killed between the last checkpoint and the result
    ended.until(math.inf)
    assert (ended.outcome, ended.weight) == (alone.outcome, alone.weight)
    assert float(ended.validator.best()["0.weight"]) == float(alone.validator.best()["0.weight"])


@pytest.mark.parametrize(("left_s", "is_whole"), [(0.035, False), (0.06, True)])
def test_where_time_does_not_suffice_for_the_last_phase_it_is_left_out_and_said(
    folder, caplog, left_s, is_whole
):
    validation = Validation(num_samples=NUM_VALIDATED, num_scored=8, every=500, num_last=NUM_LAST)
    made = job(num_samples=2000, peak=1e-3, validation=validation)
    run = Run(folder, made, left_s=left_s, workload=Slow(best=100), clock=lambda: Slow.now)
    assert run.until(math.inf) == ("finished" if is_whole else "deadline")  # at 1,000 samples a second
    assert run.outcome.num_last == NUM_LAST * is_whole
    assert ("there is no time for a whole last phase" in caplog.text) == (not is_whole)
    best = float(run.validator.best()["0.weight"])
    assert (run.weight > best) == is_whole


def test_a_job_that_ends_within_its_last_phase_is_judged_by_the_best_weights(folder):
    made = job(arrays=str(folder), workload="tests.training.test_validation:Passing")
    made = replace(made, last_trained_day=date(2025, 12, 31))
    for update, weight, last in ((16, 0.8, "2025-12-31"), (math.inf, 0.9, None)):
        run = Run(folder, made)
        run.until(update)
        result = collector.from_checkpoint(folder, made, now=0.0)
        model = load_file(folder / "model" / "model.safetensors")
        assert float(model["0.weight"]) == pytest.approx(weight)
        assert result.num_samples == run.outcome.seen
        assert sum(epoch.num_samples for epoch in result.epochs) == result.num_samples
        assert result.num_last == (0 if last else NUM_LAST)
        assert json.loads((folder / "model/model.json").read_text()).get("last_trained_day") == last


class InLastPhase:
    """Kills all workers, at a random moment of the last phase."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.from_last_phase = 0

    def __call__(self, job: Job, workers: list[int]) -> bool:
        text = job.log.read_text()[job._read_from :]
        resumed = re.search(r"going on from (\d+) of", text)
        is_resumed = bool(resumed and int(resumed[1]) > NUM_MAIN)
        if "the last phase goes on" not in text and not is_resumed:
            return False
        time.sleep(self.random.uniform(0.0, 0.25))
        if job.result:
            return False
        self.from_last_phase += is_resumed
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        return True


NUM_CURVE, NUM_MAIN, LAST_OF_CURVE = 1000, 1400, 600


def of_curve(folder: Path, **changed: Any) -> Job:
    write_curve(folder / "arrays", num_samples=NUM_CURVE)
    values: dict[str, Any] = {
        "arguments": {"delay_s": 0.01, "dropout": 0.2},
        "validation": Validation(num_samples=300, num_scored=60, every=200, num_last=LAST_OF_CURVE),
        "last_trained_day": date(2025, 12, 31),
    }
    made = recipe(
        workload="tests.fakes:LineWorkload",
        arrays=str(folder / "arrays"),
        num_samples=NUM_MAIN,
        batch_size=32,
        micro_batch_size=16,
        peak=0.01,
        every_s=0.05,
        **values | changed,
    )
    return Job(folder, made, seen=Seen())


@pytest.mark.slow
@pytest.mark.promise
def test_jobs_that_are_killed_in_their_last_phase_end_bit_for_bit_as_one_left_alone(tmp_path):
    torch.set_num_threads(1)  # threads would not survive the fork
    with nights.surroundings():
        for num_workers in (1, 2):
            alone = of_curve(tmp_path / f"alone {num_workers}")
            alone.start(num_workers)
            killed = of_curve(tmp_path / f"killed {num_workers}")
            strike = InLastPhase(seed=num_workers)
            for _ in range(6):
                killed.start(num_workers, strike)
            killed.start(num_workers)
            assert strike.from_last_phase
            assert killed.seen.kills > 1
            one, other = (load_file(each.folder / "model/model.safetensors") for each in (alone, killed))
            assert all(torch.equal(one[name], other[name]) for name in one)
            for name in ("num_samples", "num_updates", "num_last", "epochs", "validations"):
                assert alone.result[name] == killed.result[name]
            assert alone.result["num_last"] == LAST_OF_CURVE
            assert [epoch["num_samples"] for epoch in killed.result["epochs"]] == [700, 700, 600]
            assert all(epoch["whole"] for epoch in killed.result["epochs"])
            facts = json.loads((killed.folder / "model/model.json").read_text())
            assert "last_trained_day" not in facts  # as all are


@pytest.mark.slow
def test_a_last_phase_that_was_begun_on_one_worker_is_ended_on_two_with_the_same_samples(tmp_path):
    torch.set_num_threads(1)
    without = {"delay_s": 0.01, "dropout": 0.0}  # workers draw numbers of their own
    with nights.surroundings():
        alone, moved = (of_curve(tmp_path / name, arguments=without) for name in ("alone", "moved"))
        alone.start(1)
        moved.start(1, InLastPhase(seed=1))
        assert moved.due > NUM_MAIN - 200
        moved.start(2)
        one, other = (load_file(each.folder / "model/model.safetensors") for each in (alone, moved))
        assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
        assert alone.result["epochs"] == moved.result["epochs"]
        assert alone.result["num_updates"] == moved.result["num_updates"]

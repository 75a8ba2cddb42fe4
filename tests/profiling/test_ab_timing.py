"""The faster way is told from the slower one, and what is not clearly faster is not kept."""

import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import TrainParams
from daybreak.profiling import tuner
from daybreak.profiling.ab_timing import Trials, Variant, bounds
from daybreak.profiling.harness import Harness
from daybreak.profiling.job_facts import JobFacts
from tests.planning.jobs import line
from tests.profiling.test_profiler import Job as SmallJob
from tests.profiling.test_remedies import facts_of

TRAINING = TrainParams(batch_size=16, epochs=2000)  # trials may take their time on any machine
SLOW_S = 0.002  # of loading a sample: so much more than the step that no noise hides it


class Slow(SmallJob):
    """A job that waits for its data, the same each time."""

    def dataset(self, folder: Path, split: str):
        data = super().dataset(folder, split)
        return _Fixed(data)


class _Fixed:
    def __init__(self, data) -> None:
        self.data, self.x = data, torch.randn(len(data), 32)

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, samples):
        self.data.__getitems__(samples)
        return self.x[list(samples)]


class _Drawn:
    """Samples that are drawn from torch's generator each time, after a wait or after some work in Python."""

    def __init__(self, num_samples: int, *, wait_s: float = 0.0, work_s: float = 0.0) -> None:
        self.num_samples, self.wait_s, self.work_s = num_samples, wait_s, work_s

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, sample):
        time.sleep(self.wait_s)
        until = time.perf_counter() + self.work_s
        while time.perf_counter() < until:
            pass
        return torch.randn(32)


class Drawn(SmallJob):
    """A job that reads its samples singly."""

    def __init__(self, **costs: float) -> None:
        super().__init__(num_samples=64)
        self.costs = costs

    def dataset(self, folder: Path, split: str):
        return _Drawn(self.num_samples, **self.costs)


def harness(job: SmallJob) -> Harness:
    made = Harness(job, Path(), seed=0)
    made.build()
    return made


def way(**tuning) -> Variant:
    return Variant(tuning=Tuning(**tuning), batch_size=16, micro_batch_size=16)


def job(**changed) -> JobFacts:
    facts = {
        "bound": "io",
        "batch_size": 16,
        "load_s": line(0, SLOW_S),
        "step_s": line(5e-4, 1e-5),
        "whole_batches": True,
        "num_cores": 2,
        "on_cpu": True,
        "flops_per_s": 1e11,
        "fits": True,
    }
    return facts_of({**facts, **changed})


@given(st.lists(st.floats(0.1, 10), max_size=30))
def test_the_bounds_enclose_the_median_and_too_few_say_nothing(ratios):
    low, high = bounds(ratios)
    assert (
        (low, high) == (0.0, float("inf"))
        if len(ratios) < 5
        else low <= sorted(ratios)[len(ratios) // 2] <= high
    )


@pytest.mark.slow
def test_samples_in_memory_are_told_to_be_faster():
    made = harness(Slow(num_samples=64, load_s=SLOW_S))
    comparison = Trials(made.workload, made.data, TRAINING).compare(
        way(), way(in_memory=True), update_s=0.03, enough=0.9, limit_s=60
    )
    assert comparison.high < 0.9
    assert comparison.loss_difference == 0


@pytest.mark.alone
@pytest.mark.slow
def test_a_job_that_waits_is_made_faster_and_stays_so():
    made = harness(Slow(num_samples=64, load_s=SLOW_S))
    tuned = tuner.tune(made, job(), TRAINING, quality="offer")
    kept = [remedy for remedy in tuned.remedies if remedy.kept]
    assert tuned.tuning.in_memory
    assert all(remedy.applied and remedy.measured_gain > 0 for remedy in kept)
    assert tuned.evidence["ratio"][2] < 1


@pytest.mark.slow
def test_samples_that_differ_each_time_are_not_kept():
    made = harness(SmallJob(num_samples=64))  # noise, drawn anew
    assert tuner.with_measurements(made, job(), TRAINING).reads.columns_bytes == 0


@pytest.mark.alone
@pytest.mark.slow
def test_samples_that_are_drawn_each_time_are_read_by_processes_and_the_losses_are_the_same():
    made = harness(Drawn(wait_s=SLOW_S))
    tuned = tuner.tune(made, job(whole_batches=False), TRAINING, quality="offer")
    assert tuned.tuning.loader_processes
    assert tuned.evidence["ratio"][2] < 1
    compared = Trials(made.workload, made.data, TRAINING).compare(
        way(), way(num_loaders=2, loader_processes=True), update_s=0.03, enough=0.9, limit_s=60
    )
    assert compared.loss_difference == 0


def test_a_trial_that_costs_more_than_it_could_save_is_not_made():
    made = harness(Slow(num_samples=64, load_s=SLOW_S))
    tuned = tuner.tune(made, job(), TRAINING.model_copy(update={"epochs": 0.5}), quality="offer")
    assert tuned.tuning == Tuning()
    assert not any(remedy.applied for remedy in tuned.remedies)
    assert any("not tried: a trial takes" in remedy.note for remedy in tuned.remedies)


def test_what_breaks_on_trial_is_said_and_left_out(monkeypatch):
    made = harness(Slow(num_samples=64, load_s=SLOW_S))
    monkeypatch.setattr(made.workload, "optimizer", _broken)
    tuned = tuner.tune(made, job(), TRAINING, quality="offer")
    failed = [remedy for remedy in tuned.remedies if remedy.note.startswith("failed: ")]
    assert failed
    assert not any(remedy.kept for remedy in failed)


def _broken(parameters):
    raise RuntimeError("only one optimizer at a time")

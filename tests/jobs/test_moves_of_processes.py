"""Jobs of real processes step down to a cheaper machine, and come back where that turns out slow."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.backends.local import Local
from daybreak.contract import records
from daybreak.contract.backend import Job
from daybreak.contract.errors import NotYet
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import LOCAL, JobForecast, Placement, Rental, Size
from daybreak.contract.record_types import Training
from daybreak.contract.sections import Plug
from daybreak.jobs import launcher
from daybreak.storage.home import Home
from daybreak.training.gpus import MACHINE
from daybreak.training.recipe import Recipe
from tests.fakes import Curve, LineWorkload
from tests.training import nights

SAMPLE_S = {"a": 0.01, "d": 0.1}  # where the plan takes a for a fifth, and d for twice as fast as it is
PASSES = {"a": 2, "d": 4}  # of an update
NUM_SAMPLES = 4000


class OnMachines(LineWorkload):
    """A workload whose samples take as long as the machine says."""

    def dataset(self, folder: Path, split: str) -> "Slowed":
        return Slowed(folder, delay_s=0.0, poison=-1)


class Slowed(Curve):
    """Samples that are read one by one."""

    def __getitems__(self, indices: list[int]) -> object:
        import os

        time.sleep(SAMPLE_S[os.environ[MACHINE]] * len(indices))
        return super().__getitems__(indices)


class AsFastAnywhere(LineWorkload):
    """A workload whose samples come as fast on any machine."""

    def dataset(self, folder: Path, split: str) -> "FromStorage":
        return FromStorage(folder, delay_s=0.0, poison=-1)


class FromStorage(Curve):
    """Samples that are waited for."""

    def __getitems__(self, indices: list[int]) -> object:
        time.sleep(0.01 * len(indices))
        return super().__getitems__(indices)


class Cheaper(Local):
    """This machine, under the names of two that differ in price."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.passes: list[tuple[int, ...]] = []  # samples of each size's, as the workers read them

    def submit(self, job: Job) -> str:
        self.asked.append(job.rental.machine)
        text = (Path(job.folder) / "job.json").read_text()
        self.passes.append(tuple(each.micro_batch_size for each in records.loads(Recipe, text).sizes))
        environment = {**job.environment, MACHINE: job.rental.machine}
        return super().submit(replace(job, rental=Rental(machine=LOCAL), environment=environment))

    def machines(self) -> Sequence[Machine]:
        return ()


def trained(
    folder: Path,
    workload: str,
    *,
    planned_s: dict[str, float],
    prices: dict[str, float],
    triggers: tuple[str, ...] = (),
) -> tuple[Training, Cheaper]:
    """Trains on a, with d as a cheaper machine of less memory, and returns what came back."""
    plug = Plug(use=f"{__name__}:{workload}")
    with nights.surroundings():
        nights.lay_out(folder / "night")
        night = nights.night(seconds=1800)
        placements = {
            name: Placement(
                rental=Rental(machine=name),
                expected_s=planned_s[name],
                usd_per_hour=prices[name],
                expected_usd=planned_s[name] * prices[name] / 3600,
                latest_start=night.train_until - timedelta(seconds=1.5 * planned_s[name]),
                sizes=tuple(
                    Size(batch_size=n, micro_batch_size=n // PASSES[name], update_s=n * SAMPLE_S[name])
                    for n in (32, 64)
                ),
            )
            for name in prices
        }
        planned = replace(
            nights.plan(num_samples=NUM_SAMPLES),
            rental=placements["a"].rental,
            forecast=JobForecast(
                expected_s=planned_s["a"],
                interval=(0.75 * planned_s["a"], 1.5 * planned_s["a"]),
                expected_usd=placements["a"].expected_usd,
            ),
            usd_per_hour=prices["a"],
            cheaper=(placements["d"],),
            sizes=placements["a"].sizes,
        )
        params = nights.make_params().model_copy(update={"workload": plug})
        objective = "time" if triggers else "cost"  # by which no job steps down by itself
        asked = params.plan.model_copy(update={"triggers": triggers, "objective": objective})
        params = params.model_copy(update={"plan": asked})
        backend = Cheaper()
        until = time.monotonic() + 480
        while time.monotonic() < until:
            time.sleep(0.5)
            try:
                training = launcher.train(
                    Home(Path.cwd()),
                    night,
                    nights.dataset(),
                    planned,
                    None,
                    backend=backend,
                    **nights.sections(params),
                )
            except NotYet:
                continue
            return training, backend
    raise AssertionError("training took longer than eight minutes")


@pytest.mark.slow
def test_a_job_far_ahead_steps_down_and_comes_back_when_that_is_slower_with_each_sample_once(tmp_path):
    training, backend = trained(
        tmp_path, "OnMachines", planned_s={"a": 200.0, "d": 200.0}, prices={"a": 3.0, "d": 0.5}
    )
    assert [taken.name for taken in training.fallbacks] == ["step down", "undo"]
    assert backend.asked == ["a", "d", "a"]
    assert backend.passes == [(16, 32), (8, 16), (16, 32)]
    assert (training.stopped_by, training.num_samples) == ("finished", NUM_SAMPLES)
    assert all(epoch.whole for epoch in training.epochs)
    assert [taken.usd < 0 for taken in training.fallbacks] == [True, True]


@pytest.mark.slow
def test_a_job_whose_device_waits_for_samples_steps_down_to_a_slower_one_and_stays(tmp_path):
    """Samples come as fast on d, whose device the plan takes for four times as slow, at half the price."""
    training, backend = trained(
        tmp_path, "AsFastAnywhere", planned_s={"a": 44.0, "d": 176.0}, prices={"a": 3.0, "d": 1.5}
    )
    assert [taken.name for taken in training.fallbacks] == ["step down"]
    assert "its device waits for samples" in training.fallbacks[0].reason
    assert backend.asked == ["a", "d"]
    assert training.device_use is not None
    assert training.device_use < 0.4
    assert (training.stopped_by, training.num_samples) == ("finished", NUM_SAMPLES)


def batches(beat: Mapping[str, object]) -> float:
    return float(str(beat["batch_size"]))


@pytest.mark.slow
def test_triggers_change_the_batch_of_a_real_job_and_move_it_each_once_with_each_sample_once(tmp_path):
    """Its batches are small, so it gets larger ones; as they are large, it goes to the cheaper machine."""
    signal = f"{__name__}:batches"
    training, backend = trained(
        tmp_path,
        "AsFastAnywhere",
        planned_s={"a": 60.0, "d": 90.0},
        prices={"a": 3.0, "d": 0.5},
        triggers=(f"{signal} < 40 for 0.1 min: larger batch", f"{signal} > 60 for 0.1 min: step down"),
    )
    assert [taken.name for taken in training.fallbacks] == ["triggered batch", "triggered move"]
    batch, move = (taken.reason for taken in training.fallbacks)
    assert batch.startswith(f"batches of 64 in place of 32, as {signal} was 32 to 32 for 0.1 min")
    assert move.startswith(f"to d, as {signal} was 64 to 64 for 0.1 min")
    assert backend.asked == ["a", "d"]
    assert (training.stopped_by, training.num_samples) == ("finished", NUM_SAMPLES)
    assert all(epoch.whole for epoch in training.epochs)
    assert training.num_updates < 0.8 * NUM_SAMPLES / 32

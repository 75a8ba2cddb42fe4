"""A job of real processes steps down to a cheaper machine, and comes back when that turns out slow."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pipeline.backends.local import Local
from pipeline.contract.backend import Job
from pipeline.contract.errors import NotYet
from pipeline.contract.machine import Machine
from pipeline.contract.params import Plug
from pipeline.contract.records import LOCAL, Rental, Rung
from pipeline.jobs import launcher
from pipeline.training.gpus import MACHINE
from tests.fakes import Curve, LineWorkload
from tests.training import nights

NUM_SAMPLES = 4000
SAMPLE_S = {"a": 0.01, "d": 0.1}  # the plan takes a for a fifth, and d for twice as fast as it is
PLANNED_S = {"a": 200.0, "d": 200.0}
PRICES = {"a": 3.0, "d": 0.5}


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


class Cheaper(Local):
    """This machine, under the names of two that differ in price."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def submit(self, job: Job) -> str:
        self.asked.append(job.rental.machine)
        environment = {**job.environment, MACHINE: job.rental.machine}
        return super().submit(replace(job, rental=Rental(machine=LOCAL), environment=environment))

    def machines(self) -> Sequence[Machine]:
        return ()


@pytest.mark.slow
def test_a_job_far_ahead_steps_down_and_comes_back_when_that_is_slower_with_each_sample_once(tmp_path):
    with nights.surroundings():
        nights.lay_out(tmp_path / "night")
        night = nights.night(seconds=1800)
        rungs = {
            name: Rung(
                rental=Rental(machine=name), expected_s=PLANNED_S[name], usd_per_hour=PRICES[name],
                expected_usd=PLANNED_S[name] * PRICES[name] / 3600,
                latest_start=night.train_until - timedelta(seconds=1.5 * PLANNED_S[name]),
            )
            for name in PRICES
        }  # fmt: skip
        planned = replace(
            nights.plan(num_samples=NUM_SAMPLES), rental=rungs["a"].rental, expected_s=PLANNED_S["a"],
            expected_usd=rungs["a"].expected_usd, usd_per_hour=PRICES["a"], interval=(150.0, 300.0),
            cheaper=(rungs["d"],),
        )  # fmt: skip
        params = nights.make_params().model_copy(update={"workload": Plug(use=f"{__name__}:OnMachines")})
        backend, training = Cheaper(), None
        until = time.monotonic() + 240
        while training is None and time.monotonic() < until:
            time.sleep(0.5)
            try:
                training = launcher.train(
                    night, nights.dataset(), planned, None, backend=backend, params=params
                )
            except NotYet:
                continue
        assert training
        assert [taken.name for taken in training.rungs] == ["step down", "undo"]
        assert backend.asked == ["a", "d", "a"]
        assert (training.stopped_by, training.num_samples) == ("finished", NUM_SAMPLES)
        assert all(epoch.whole for epoch in training.epochs)
        assert [taken.usd < 0 for taken in training.rungs] == [True, True]

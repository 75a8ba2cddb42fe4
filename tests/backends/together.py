"""Tonight's model, trained on rented machines: what the tests and benchmarks of all places share."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from daybreak.contract import records
from daybreak.contract.backend import Backend
from daybreak.contract.errors import NotYet
from daybreak.contract.record_parts import Rental
from daybreak.contract.record_types import Training
from daybreak.contract.sections import Plug
from daybreak.jobs import collector, launcher
from daybreak.jobs.cost_tracker import JOBS
from daybreak.storage.home import Home
from daybreak.training import gpus
from tests.backends.rented import wait
from tests.fakes import Curve, LineWorkload
from tests.training import nights

SLOW, SLOW_S = "slow", 0.3
SAMPLE_S = 0.02  # on a slow machine


class Witnessed(LineWorkload):
    """Leaves a file per worker, which says how many there are."""

    def __init__(self, *, witness: str, slow_machine: str = "") -> None:
        super().__init__(delay_s=0.01)
        self.witness, self.slow_machine = Path(witness), slow_machine

    def dataset(self, folder: Path, split: str) -> Any:
        (self.witness / f"worker {os.environ['RANK']} of {os.environ['WORLD_SIZE']}").touch()
        made = super().dataset(folder, split)
        sample_s = SAMPLE_S if self.slow_machine == os.environ.get(gpus.MACHINE, "here") else 0.0
        return Slowed(folder, witness=self.witness, sample_s=sample_s) if split == "train" else made


class Slowed(Curve):
    """Its samples, slowly as long as the witness is asked for that, and each slowly on a slow machine."""

    def __init__(self, folder: Path, *, witness: Path, sample_s: float) -> None:
        super().__init__(folder, delay_s=0.01, poison=-1)
        self.witness, self.sample_s = witness, sample_s

    def __getitems__(self, indices: list[int]) -> Any:
        if (self.witness / SLOW).exists():
            time.sleep(SLOW_S)
        time.sleep(self.sample_s * len(indices))
        return super().__getitems__(indices)


class TrainingNight:
    """A night in a folder, which becomes the current one; whatever is asked is asked of the launcher."""

    def __init__(
        self,
        folder: Path,
        backend: Backend,
        *,
        rental: Rental,
        num_samples: int = 3000,
        bucket: str = "",
        name: str = "n",
        slow_machine: str = "",
    ) -> None:
        nights.lay_out(folder)
        self.folder, self.backend, self.bucket, self.num_samples = folder, backend, bucket, num_samples
        self.witness = folder / "witness"
        self.witness.mkdir()
        self.night = nights.night(seconds=1800, name=name)
        self.plan = replace(nights.plan(num_samples=num_samples), rental=rental, usd_per_hour=1.0)
        given = nights.make_params()
        train = given.train
        if bucket:
            train = train.model_copy(update={"checkpoints": f"{bucket}/checkpoints"})
        workload = Plug(use=f"{__name__}:Witnessed", witness=str(self.witness), slow_machine=slow_machine)
        self.params = given.model_copy(update={"workload": workload, "train": train})
        self.looks: Callable[[], object] = self.ask
        self.training: Training | None = None

    @property
    def job(self) -> Path:
        """The folder of the one job."""
        (folder,) = (path for path in JOBS.iterdir() if path.is_dir())
        return folder.resolve()

    @property
    def workers(self) -> set[str]:
        """The workers that there were, such as `worker 0 of 2`."""
        return {path.name for path in self.witness.glob("worker *")}

    def be_slow(self) -> None:
        """Training takes a batch in a third of a second."""
        (self.witness / SLOW).touch()

    def be_quick(self) -> None:
        """Training is as quick as it is."""
        (self.witness / SLOW).unlink(missing_ok=True)

    def forget_workers(self) -> None:
        """Only workers that come now are counted."""
        for name in self.workers:
            (self.witness / name).unlink()

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints that another machine would find."""
        if self.bucket:
            return list(Path(self.bucket.removeprefix("file://")).rglob("checkpoints/**/heads/*.json"))
        return list((self.job / "checkpoints").glob("*/manifest.json"))

    def ask(self) -> Training | None:
        """Look after the job once."""
        time.sleep(0.1)
        try:
            self.training = launcher.train(
                Home(Path.cwd()),
                self.night,
                nights.dataset(),
                self.plan,
                None,
                backend=self.backend,
                **nights.sections(self.params),
            )
        except NotYet:
            return None
        return self.training

    def until(self, condition: Callable[[], Any], *, timeout_s: float = 300) -> None:
        """Look after the job until something has come about."""

        def met() -> bool:
            if not condition():
                self.looks()
            return bool(condition())

        wait(met, timeout_s=timeout_s)

    def until_saved(self) -> None:
        """Look after the job until there is a checkpoint to go on from, and its start is known."""
        self.ask()
        self.until(lambda: self.checkpoints and (self.job / "starts.jsonl").exists())

    def finish(self) -> Training:
        """Look after the job until it has trained."""
        self.until(lambda: self.training)
        assert self.training
        return self.training

    def assert_whole(self) -> None:
        """The model is there, and has seen each sample once an epoch."""
        training = self.training
        assert training
        assert (training.num_samples, training.stopped_by) == (self.num_samples, "finished")
        epochs = [(epoch.num_samples, epoch.whole) for epoch in training.epochs]
        assert epochs == [(1000, True)] * (self.num_samples // 1000)
        assert records.digest(collector.MODEL) == training.model_digest
        assert training.cost_usd > 0

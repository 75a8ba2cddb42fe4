"""Fakes of the protocols: real enough to run, small enough to read."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from daybreak.contract.backend import Backend, Job, JobState
from daybreak.contract.errors import ReleaseError
from daybreak.contract.machine import Machine
from daybreak.contract.record_types import Release
from daybreak.contract.records import replace_text
from daybreak.machines.catalog import AT_HAND, rented


class LineWorkload:
    """Workload: a small net fits a curve over x.npy, shape [n]; sample `poison` has no answer."""

    def __init__(
        self,
        *,
        delay_s: float = 0.0,
        sparse: bool = False,
        dropout: float = 0.2,
        poison: int = -1,
        width: int = 16,
    ) -> None:
        self.delay_s, self.sparse, self.dropout, self.poison, self.width = (
            delay_s,
            sparse,
            dropout,
            poison,
            width,
        )

    def dataset(self, folder: Path, split: str) -> Any:
        return Curve(folder, delay_s=self.delay_s, poison=self.poison if split == "train" else -1)

    def model(self) -> Any:
        from torch import nn

        return nn.ModuleDict(
            {
                "table": nn.Embedding(50, self.width, sparse=self.sparse),
                "net": nn.Sequential(
                    nn.Linear(1, self.width), nn.Tanh(), nn.Dropout(self.dropout), nn.Linear(self.width, 1)
                ),
            }
        )

    def optimizer(self, parameters: Any) -> Any:
        import torch

        return torch.optim.Adagrad(parameters) if self.sparse else torch.optim.AdamW(parameters)

    def loss(self, model: Any, batch: Any) -> Any:
        return (self._answer(model, batch) - batch["y"]).square()

    def score(self, model: Any, batch: Any) -> Any:
        return -(self._answer(model, batch) - batch["y"]).abs()

    def _answer(self, model: Any, batch: Any) -> Any:
        near = model["table"](batch["key"]).mean(1)
        return model["net"](batch["x"][:, None])[:, 0] + near


class RootWorkload(LineWorkload):
    """Workload: its loss is finite, and the gradient of that is not, as the root of a 0 has none."""

    def loss(self, model: Any, batch: Any) -> Any:
        return super().loss(model, batch) + (model["net"][0].weight.sum() * 0).sqrt()


class OddWorkload(LineWorkload):
    """Workload: its loss cannot be computed where the sample `poison` is among those of a batch."""

    def loss(self, model: Any, batch: Any) -> Any:
        if batch["y"].isnan().any():
            raise ValueError("odd")
        return super().loss(model, batch)


class Curve:
    """Dataset: y = sin(3 x), its samples loaded by list."""

    def __init__(self, folder: Path, *, delay_s: float, poison: int) -> None:
        self.x = np.load(folder / "x.npy", mmap_mode="r")
        self.delay_s, self.poison = delay_s, poison

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return {key: value[0] for key, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: list[int]) -> Any:
        import torch

        time.sleep(self.delay_s)
        x = np.asarray(self.x[indices], dtype=np.float32)
        y = np.where(np.asarray(indices) == self.poison, np.nan, np.sin(3 * x)).astype(np.float32)
        key = torch.from_numpy(np.asarray(indices) % 50)
        return {"x": torch.from_numpy(x), "y": torch.from_numpy(y), "key": key}


def write_curve(folder: Path, *, num_samples: int, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", np.random.default_rng(seed).uniform(-1, 1, num_samples))


class TwoDays:
    """Source of two days without rows."""

    def __init__(self, first: int = 1) -> None:
        self.first = first

    def days(self) -> list[date]:
        return [date(2025, 1, self.first), date(2025, 1, self.first + 1)]

    def fetch(self, day: date, folder: Path) -> None:
        raise NotImplementedError


class Nothing:
    """Stands where a workload is named but not used."""


class FolderTarget:
    """Target that keeps in files which version serves and which are prepared."""

    name = "the folder"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broken = False

    def prepare(self, release: Release) -> None:
        if self.broken:
            raise ReleaseError("the folder has no room; clear it")
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.folder / f"ready-{release.version}", "")

    def show(self, release: Release) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.folder / "serving", str(release.version))
        self.discard(release)

    def shown(self) -> int:
        path = self.folder / "serving"
        return int(path.read_text()) if path.exists() else 0

    def discard(self, release: Release) -> None:
        (self.folder / f"ready-{release.version}").unlink(missing_ok=True)

    def ready(self) -> tuple[str, ...]:
        return tuple(path.name for path in self.folder.glob("ready-*"))


class ScriptedBackend(Backend):
    """Has all machines; each job goes through `script`, one state a look, and stays in its last.

    One that was cancelled is gone; where the backend is `slow_to_end`, from the look after next on.
    """

    def __init__(self, *script: JobState) -> None:
        self.script = list(script)
        self.jobs: list[Job] = []
        self.cancelled: list[str] = []
        self.slow_to_end = False
        self._ending: dict[str, int] = {}  # looks at which it is still there

    def submit(self, job: Job) -> str:
        self.jobs.append(job)
        self._ending.pop(job.folder, None)
        return job.folder

    def state(self, handle: str) -> JobState:
        if handle in self._ending:
            self._ending[handle] -= 1
            return "running" if self._ending[handle] >= 0 else "preempted"
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def cancel(self, handle: str) -> None:
        self.cancelled.append(handle)
        self._ending.setdefault(handle, 1 if self.slow_to_end else 0)

    def machines(self) -> Sequence[Machine]:
        return AT_HAND, *rented()

    def logs(self, handle: str) -> str:
        return f"{handle}/log.txt"


class CountingEngine:
    """Engine: its model is how often it was trained on each sample; a step takes `step_s` on `clock`.

    Workers of one world run one after the other; what they told in `total` is added to what the next told.
    """

    has_rate = True

    def __init__(
        self,
        *,
        num_samples: int,
        rank: int = 0,
        world_size: int = 1,
        step_s: float = 0.0,
        save_every: int = 0,
        before: "CountingEngine | None" = None,
        least_share: int = 1,
    ) -> None:
        self.least_share = least_share
        self.sizes: list[int] = []  # of its shares
        self.rank, self.world_size, self.before = rank, world_size, before
        self.save_every = save_every  # updates after which all are told to save
        self.totals: list[Any] = []
        self.count = np.zeros(num_samples, dtype=np.int64)
        self.rates: list[float] = []
        self.step_s = step_s
        self.now = 0.0
        self.loss = 1.0
        self.times_s: tuple[float, ...] = ()
        self.noise: tuple[float, float] | None = None
        self.rescaled: list[Any] = []

    def clock(self) -> float:
        return self.now

    def prepare(self, indices: Any, *, progress: Any) -> None:
        pass

    def step(self, indices: Any, *, batch_size: int, rate: float, signals: Any) -> Any:
        from daybreak.training.engine import UpdateResult

        np.add.at(self.count, indices, 1)
        self.rates.append(rate)
        self.sizes.append(len(indices))
        self.now += self.step_s
        if self.save_every and len(self.rates) % self.save_every == 0:
            signals = replace(signals, save=1)
        return UpdateResult(loss=self.loss, signals=signals, times_s=self.times_s, noise=self.noise)

    def rescale(self, *, batch_size: int, base_size: int, rule: Any, micro_batch_size: Any = None) -> Any:
        from daybreak.training.learning_rate import scaled

        self.rescaled.append((batch_size, micro_batch_size))
        return scaled("sgd", name="SGD", rule=rule, batch_size=batch_size, base_size=base_size)

    def total(self, counts: Any) -> Any:
        self.totals.append(counts + (self.before.totals[len(self.totals)] if self.before else 0))
        return self.totals[-1]

    def save(self) -> Any:
        import torch

        from daybreak.training.checkpoint import TrainingState

        counts = self.total(self.count)
        return TrainingState(tensors={"model": {"count": torch.from_numpy(counts.copy())}})

    def load(self, state: Any) -> None:
        if self.rank == 0:
            self.count = state.tensors["model"]["count"].numpy().copy()


class AtOnce(Executor):
    """Calls a function before `submit` returns, so that a fake clock does not race against a thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

"""Where do a version and its arrays come from? The registry, and the newest closed night.

A version is fetched from MLflow into a folder of its own; it must have the digest that it was registered with
and hold no pickle (pipeline/release/packaging.py) before its safetensors are read into the workload that its
model.json names. The workload's code is this checkout's.

All versions answer from the arrays of one night, so that versions differ by their models alone: of the
newest commit of the ledger whose night's folder is still here. A rollback is a commit of the night that it
goes back to, so the data goes back with it. Before the first night is closed, while it promotes its version,
there is only that night itself. Arrays are mapped, and stay readable when the folder is removed.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import ledger, records
from pipeline.errors import PipelineError, ReleaseError
from pipeline.params import Plug
from pipeline.records import Night
from pipeline.release import aliases
from pipeline.release.evaluator import ARRAYS, load_model
from pipeline.release.packaging import fetch_model
from pipeline.serving.answers import Answers

if TYPE_CHECKING:
    from mlflow import MlflowClient

NIGHTS_BACK = 30


@dataclass(frozen=True)
class Arrays:
    """What versions answer from."""

    night: str
    folder: Path


def newest_arrays(home: Path) -> Arrays | None:
    """Arrays of the newest closed night; None where there are none yet."""
    for commit in ledger.commits(limit=NIGHTS_BACK):
        if found := arrays_of(home, commit.night):
            return found
    return None


def arrays_of(home: Path, night: str) -> Arrays | None:
    """Arrays of a night; None where its folder is not here any more."""
    for folder in (home / "nights" / night, home):  # home itself after a night with --here
        found = records.find(Night, folder / records.RUN)
        if found and found.id == night and (folder / ARRAYS / "meta.json").exists():
            return Arrays(night, folder / ARRAYS)
    return None


class Shelf:
    """Opens versions; those with the same workload share the samples of a night."""

    def __init__(self, name: str, *, home: Path, top: int, keep: int) -> None:
        self._home = home
        self.name, self._top, self._keep = name, top, keep
        self._opened: dict[tuple[str, str], tuple[Any, Any]] = {}  # workload and samples, of one night
        self._night = ""

    def load(self, client: "MlflowClient", number: int, *, arrays: Arrays | None) -> Answers:
        """The version, ready to answer from these arrays; PipelineError where it cannot be."""
        tags = aliases.existing(client, self.name, number).tags
        arrays = arrays or arrays_of(self._home, tags.get("night", ""))
        if arrays is None:
            raise ReleaseError("no night has its arrays here any more; run a night")
        with tempfile.TemporaryDirectory(prefix="serving-") as scratch:
            uri, digest = f"models:/{self.name}/{number}", tags.get("model_digest", "")
            folder = fetch_model(uri, digest, into=Path(scratch))
            facts = json.loads((folder / "model.json").read_text())
            workload, samples = self._open(facts, arrays)
            model = load_model(workload, folder)
        try:
            return Answers(
                number, night=arrays.night, workload=workload, model=model, samples=samples, top=self._top,
                keep=self._keep,
            )  # fmt: skip
        except PipelineError:
            raise
        except Exception as error:
            raise ReleaseError(
                f"version {number} does not answer: {type(error).__name__}: {error}; mend its workload"
            ) from error

    def _open(self, facts: dict[str, Any], arrays: Arrays) -> tuple[Any, Any]:
        if arrays.night != self._night:
            self._opened, self._night = {}, arrays.night
        key = facts["workload"], json.dumps(facts["arguments"], sort_keys=True)
        if key not in self._opened:
            workload = Plug(use=facts["workload"], **facts["arguments"]).make()
            expect_online(workload)
            self._opened[key] = workload, workload.dataset(arrays.folder, "serve")
        return self._opened[key]


def expect_online(workload: Any) -> None:
    """ReleaseError unless the workload answers users online."""
    missing = [name for name in ("recommend", "popular") if not hasattr(workload, name)]
    if missing:
        raise ReleaseError(
            f"{type(workload).__qualname__} does not serve users online: it has no {' and no '.join(missing)}"
            f"; give it both (pipeline/workload.py says how), or leave serving to MLflow"
        )

"""Loads versions from the registry, and the arrays they answer from, those of the newest closed night.

A version is fetched from MLflow into a folder of its own. All its files must have the digest that its night
recorded, in the ledger or, before the night is closed, in the night's folder; only then are its safetensors
read into the workload that its model.json names, which is imported from the version's own code
(pipeline/registry/carried_code.py).

All versions answer from the arrays of one night, so that versions differ by their models alone: the night of
the newest commit of the ledger whose folder is still here. A rollback is a commit of the night that it
goes back to, so the data goes back with it. Before the first night is closed, while it promotes its version,
the arrays are those of that night itself. Arrays are mapped, and stay readable when the folder is removed.
A version that predicts rows needs no arrays: it is complete by itself.
"""

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.contract import records
from pipeline.contract.errors import PipelineError, ReleaseError
from pipeline.contract.params import Plug
from pipeline.contract.records import Night, Refit, Version
from pipeline.registry import aliases, carried_code, packaging
from pipeline.registry.row_packaging import read_example
from pipeline.registry.weights import ARRAYS, load_model, load_rows
from pipeline.serving.answers import Answers, Predictor
from pipeline.storage import ledger
from pipeline.workloads.served_rows import serves_rows

if TYPE_CHECKING:
    from mlflow import MlflowClient

NIGHTS_BACK = 30


@dataclass(frozen=True)
class Arrays:
    """The arrays of a night, which versions answer from."""

    night: str
    folder: Path


def newest_arrays(home: Path) -> Arrays | None:
    """Returns the arrays of the newest closed night; None if there are none yet."""
    for commit in ledger.commits(limit=NIGHTS_BACK):
        if arrays := arrays_of(home, commit.night):
            return arrays
    return None


def arrays_of(home: Path, night: str) -> Arrays | None:
    """Returns the arrays of a night; None if its folder is not here any more."""
    for folder in (home / "nights" / night, home):  # home itself after a night with --here
        record = records.find(Night, folder / records.RUN)
        if record and record.id == night and (folder / ARRAYS / "meta.json").exists():
            return Arrays(night, folder / ARRAYS)
    return None


class ModelCache:
    """Loads versions; those with the same workload share the samples of a night."""

    def __init__(self, name: str, *, home: Path, top: int, keep: int) -> None:
        self._home = home
        self.name, self._top, self._keep = name, top, keep
        self._opened: dict[tuple[str, str, str], tuple[Any, Any]] = {}  # workload and samples, of one night
        self._night = ""

    def load(self, client: "MlflowClient", number: int, *, arrays: Arrays | None) -> Answers | Predictor:
        """Returns the version, ready to answer from these arrays; PipelineError if it cannot be loaded."""
        night = aliases.existing(client, self.name, number).tags.get("night", "")
        version = recorded(self._home, self.name, number, night=night)
        arrays = arrays or arrays_of(self._home, version.night)
        try:
            with tempfile.TemporaryDirectory(prefix="serving-") as scratch:
                folder = packaging.fetch(f"models:/{self.name}/{number}", version, into=Path(scratch))
                workload, samples = self._open(folder, arrays, carries_code=bool(version.files_digest))
                if samples is None:
                    predictor = Predictor(number, load_rows(workload, folder / carried_code.MODEL.parent))
                    predictor.warm(read_example(folder))
                    return predictor
                model = load_model(workload, folder / carried_code.MODEL)
            return Answers(
                number, night=self._night, workload=workload, model=model, samples=samples, top=self._top,
                keep=self._keep,
            )  # fmt: skip
        except PipelineError:
            raise
        except Exception as error:
            raise ReleaseError(
                f"version {number} does not answer: {type(error).__name__}: {error}; fix its workload"
            ) from error

    def _open(self, folder: Path, arrays: Arrays | None, *, carries_code: bool) -> tuple[Any, Any]:
        """Returns the workload of a version, and the samples that it answers from; None if it needs none."""
        night = arrays.night if arrays else ""
        if night != self._night:
            self._opened, self._night = {}, night
        facts = carried_code.facts(folder)
        code = records.digest(folder / carried_code.CODE) if carries_code else ""
        key = code, facts["workload"], json.dumps(facts["arguments"], sort_keys=True)
        if key not in self._opened:
            if carries_code:
                workload = carried_code.workload_of(folder)
            else:  # no digest covers the code of an older version, so this checkout's code runs
                workload = Plug(use=facts["workload"], **facts["arguments"]).make()
            expect_online(workload)
            samples = None
            if not serves_rows(workload):
                if arrays is None:
                    raise ReleaseError("no night has its arrays here any more; run a night")
                samples = workload.dataset(arrays.folder, "serve")
            self._opened[key] = workload, samples
        return self._opened[key]


def recorded(home: Path, name: str, number: int, *, night: str) -> Version:
    """Returns the record of a version by the night that made it, from the ledger or a night still open.

    MLflow only says which `night` to look at. Raises ReleaseError if that night did not make the version, so
    that a person who can write to MLflow cannot make a router load anything else.
    """
    of_night = [commit for commit in ledger.commits() if commit.night == night and not commit.rollback]
    versions = [ledger.read_at(commit.id, Version) for commit in of_night]
    refits = [ledger.read_at(commit.id, Refit) for commit in of_night]
    if re.fullmatch(records.NIGHT_ID, night):
        folders = (home / "nights" / night, home)
        versions += [records.find(Version, folder / records.RUN) for folder in folders]
        refits += [records.find(Refit, folder / records.RUN) for folder in folders]
    versions += [refit.version for refit in refits if refit]
    for version in versions:
        if version and (version.name, version.number, version.night) == (name, number, night):
            return version
    raise ReleaseError(
        f"no night of the ledger, nor one that is open here, made version {number} of {name} (MLflow says "
        f"night {night or 'nothing'}); it is not loaded, roll back to a version that a night made"
    )


def expect_online(workload: Any) -> None:
    """Raises ReleaseError unless the workload answers online: users, or by predictions of rows."""
    if serves_rows(workload):
        return
    missing = [name for name in ("recommend", "popular") if not hasattr(workload, name)]
    if missing:
        raise ReleaseError(
            f"{type(workload).__qualname__} does not serve users online: it has no {' and no '.join(missing)}"
            f"; give it both (pipeline/contract/workload.py says how), or `features` and `predict`, or leave "
            f"serving to MLflow"
        )

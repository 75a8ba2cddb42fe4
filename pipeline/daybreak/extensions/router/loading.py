"""Loads versions from the registry, and the arrays they answer from, those of the newest closed night.

A version is fetched from MLflow into a separate folder. All files must have the digest that the version's
night recorded, in the ledger or, before the night is closed, in the night's folder. Only then a separate
process reads the safetensors into the workload that model.json names, imported from the version's own code
(daybreak/registry/carried_code.py).

All versions answer from the arrays of one night, so that versions differ by their models alone: the night of
the newest commit of the ledger whose folder is still here. A rollback is a commit of the night restored by
it, so the data goes back too. Before the first night is closed, while it promotes its version, that night's
own arrays serve. Arrays are mapped, and stay readable when the folder is removed. A version that predicts
rows needs no arrays.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract import records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Night, Refit, Version
from daybreak.contract.workload import ARRAYS
from daybreak.extensions.router.answers import Answers, Predictor, texts
from daybreak.registry import aliases, carried_code
from daybreak.registry.host import NoAnswer
from daybreak.serving.version_process import VersionProcess
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

NIGHTS_BACK = 30


@dataclass(frozen=True)
class NightArrays:
    """The arrays of a night, which versions answer from."""

    night: str
    folder: Path


def newest_arrays(home: Home) -> NightArrays | None:
    """Returns the arrays of the newest closed night; None if there are none yet.

    Raises ReleaseError where the ledger has to be signed, and is not.
    """
    branch.expect_signed(home)
    for commit in ledger.commits(home, limit=NIGHTS_BACK):
        if arrays := arrays_of(home, commit.night):
            return arrays
    return None


def arrays_of(home: Home, night: str) -> NightArrays | None:
    """Returns the arrays of a night; None if its folder is not here any more."""
    for folder in (home.nights / night, home.folder):  # home itself after a night with --here
        record = records.find(Night, folder / records.RUN)
        if record and record.id == night and (folder / ARRAYS / "meta.json").exists():
            return NightArrays(night, folder / ARRAYS)
    return None


class VersionLoader:
    """Loads versions, each into a process of its own."""

    def __init__(self, name: str, *, home: Home, top: int, keep: int, answer_s: float) -> None:
        self._home = home
        self.name, self._top, self._keep, self._answer_s = name, top, keep, answer_s

    def load(self, client: "MlflowClient", number: int, *, arrays: NightArrays | None) -> Answers | Predictor:
        """Returns the version, ready to answer from these arrays; PipelineError if it cannot be loaded."""
        night = aliases.existing(client, self.name, number).tags.get("night", "")
        version = recorded(self._home, self.name, number, night=night)
        arrays = arrays or arrays_of(self._home, version.night)
        with tempfile.TemporaryDirectory(prefix="serving-") as scratch:
            folder = carried_code.fetch(
                self._home, f"models:/{self.name}/{number}", version, into=Path(scratch)
            )
            case = case_of(folder, arrays.folder if arrays else None)
            process = VersionProcess(number, {**case, "threads": 1}, answer_s=self._answer_s, home=self._home)
        return served(process, number, night=arrays.night if arrays else "", top=self._top, keep=self._keep)


def case_of(version: Path, arrays: Path | None, *, online: bool = True) -> dict[str, Any]:
    """Returns what the process of a version is to load (daybreak/serving/version_worker.py)."""
    return {
        "version": str(version),
        "arrays": str(arrays) if arrays else "",
        "online": online,
        "threads": 0,
    }


def served(process: VersionProcess, number: int, *, night: str, top: int, keep: int) -> Answers | Predictor:
    """Returns the version in a process, which answers users or rows; ReleaseError where it does not."""
    try:
        if process.about.get("answers") == "rows":
            return Predictor(number, process=process)
        popular = texts(process.ask("popular", top=top).get("items"))
        return Answers(number, night=night, process=process, popular=popular, top=top, keep=keep)
    except NoAnswer as error:
        raise ReleaseError(f"version {number} does not answer: {error}; fix its workload") from None


def recorded(home: Home, name: str, number: int, *, night: str) -> Version:
    """Returns the record of a version by the night that made it, from the ledger or a night still open.

    MLflow only says which `night` to look at. Raises ReleaseError if that night did not make the version, so
    that a person who can write to MLflow cannot make a router load anything else. So it does where the ledger
    has to be signed, and is not.
    """
    branch.expect_signed(home)
    of_night = [commit for commit in ledger.commits(home) if commit.night == night and not commit.rollback]
    versions = [branch.read_at(home, commit.id, Version) for commit in of_night]
    refits = [branch.read_at(home, commit.id, Refit) for commit in of_night]
    if records.names_folder(night):
        folders = (home.nights / night, home.folder)
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

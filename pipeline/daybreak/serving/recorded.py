"""Finds what a version is by the ledger, and the arrays that versions answer from.

A version is fetched from MLflow into a separate folder. All files must have the digest that the version's
night recorded, in the ledger or, before the night is closed, in the night's folder. Only then a separate
process reads the safetensors into the workload that model.json names, imported from the version's own code
(daybreak/registry/carried_code.py).

Arrays are those of the newest closed night: the newest commit of the ledger whose folder is still here. A
rollback is a commit of the night restored by it, so the data goes back too. Before the first night is closed,
while it promotes its version, that night's own arrays serve. Arrays are mapped, and stay readable when the
folder is removed. Where another class made them, as while an edit of the workload has yet to be proven
better, the version makes its own of the same clean rows.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybreak.contract import records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Dataset, Night, Refit, Version
from daybreak.contract.workload import ARRAYS
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home

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


def rows_of_others(home: Home, version: Version, arrays: NightArrays | None) -> Path | None:
    """Returns the folder of the night of some arrays where another class than the version's made them.

    The version's own code then makes arrays of that night's clean rows. None where it need not, or where the
    class is not on record.
    """
    if arrays is None:
        return None
    folder = arrays.folder.parents[1]
    made = records.find(Dataset, folder / records.RUN)
    of_night = [one for one in ledger.commits(home) if one.night == version.night and not one.rollback]
    datasets = [branch.read_at(home, commit.id, Dataset) for commit in of_night]
    if records.names_folder(version.night):
        datasets.append(records.find(Dataset, home.nights / version.night / records.RUN))
    own = next((one.made_by for one in datasets if one), "")
    return folder if made and made.made_by and own and made.made_by != own else None


def case_of(
    version: Path, arrays: Path | None, *, online: bool = True, night: Path | None = None
) -> dict[str, Any]:
    """Returns what the process of a version is to load (daybreak/serving/version_worker.py).

    `night` is the folder of a night of whose clean rows it makes its arrays, in place of those of `arrays`.
    """
    return {
        "version": str(version),
        "arrays": str(arrays) if arrays else "",
        "night": str(night) if night else "",
        "online": online,
        "threads": 0,
    }


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

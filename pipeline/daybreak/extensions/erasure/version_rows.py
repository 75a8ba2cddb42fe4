"""Takes a unit's rows out of the versions in MLflow: the past that they look back on, and their example.

The ledger has the digest of all files of a version, so a version without these rows has a new digest, which
the note of the erasure keeps (daybreak/storage/erasures.py). The weights of a version that learned from the
rows stay: the version is named and tagged, and should be replaced.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract import records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Version
from daybreak.contract.table import code
from daybreak.data.ingest import without
from daybreak.data.partitions import PART
from daybreak.extensions.erasure.cached_rows import parquet
from daybreak.registry import aliases, carried_code, packaging
from daybreak.storage import artifact_files, erasures, ledger
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import locations

if TYPE_CHECKING:
    from mlflow import MlflowClient

ERASED = "erased"  # tag of a version that learned from rows which were erased
EXAMPLE, SERVED_EXAMPLE = "input_example.json", "serving_input_example.json"


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A version some of whose files have rows of the unit."""

    number: int
    location: str  # where its files are, which has been looked at
    before: str  # digest of all its files
    after: str
    files: dict[str, bytes | None]  # by their paths; None: the file goes


def changed(home: Home, client: "MlflowClient", name: str, *, column: str, unit: str) -> Iterator[Changed]:
    """Yields the versions that carry rows of the unit, with their files after the rows are removed.

    Raises ReleaseError for a version whose files are neither those in the ledger nor those that a killed call
    left halfway: an erasure from damaged files would make them pass for sound ones. Also where MLflow names
    files that are not the home's, or not those of the version's own run.
    """
    of_ledger, own = {one.number: one for one in ledger.versions(home)}, locations(home)
    for version in aliases.versions(client, name):
        if aliases.PRUNED in version.tags:
            continue
        known = of_ledger.get(int(version.version))
        location = own.expect_own(str(version.source), run_id=known.run_id if known else "")
        with tempfile.TemporaryDirectory() as scratch:
            number = int(version.version)
            folder = _brought(home, location, number, known, into=Path(scratch))
            before, is_whole = records.digest(folder), _is_whole(home, folder, known)
            try:
                files = {
                    path.relative_to(folder).as_posix(): content
                    for path, content in _files(folder, column=column, unit=unit)
                }
            except (OSError, ValueError) as error:  # what cannot be parsed was written otherwise
                raise _damaged(number, error) from None
            for path, content in files.items():
                (folder / path).unlink()
                if content is not None:
                    (folder / path).write_bytes(content)
            if not is_whole and not _is_whole(home, folder, known):
                raise _damaged(number)
            if files:
                after = records.digest(folder)
                yield Changed(number=number, location=location, before=before, after=after, files=files)


def _brought(home: Home, location: str, number: int, version: Version | None, *, into: Path) -> Path:
    """Returns the folder with the files of a version.

    Raises ReleaseError where a file is larger than the ledger says, or the store gives none: its rows would
    stay, and the erasure would be noted. What the ledger does not name, as of a version that no night
    registered, is downloaded whole.
    """
    try:
        if version is None or not version.files:
            return carried_code.download(location, into)
        carried_code.bring(home, location, version, into=into)
    except ReleaseError as error:
        raise _damaged(number, error) from None
    if not any(into.iterdir()):
        raise _damaged(number)
    return into


def _is_whole(home: Home, folder: Path, version: Version | None) -> bool:
    """Returns whether files are those that the ledger has of a version, which may be of no night: None."""
    return version is None or records.digest(folder) in erasures.forms(home, version.files_digest)


def _damaged(number: int, error: Exception | None = None) -> ReleaseError:
    return ReleaseError(
        f"the files of version {number} are not to be had as they were registered"
        f"{f' ({error})' if error else ''}; "
        f"daybreak repair puts them back, or delete the version in MLflow; then erase again"
    )


def replace(change: Changed) -> None:
    """Replaces the files of a version by those without the rows."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    with artifact_files.told_in_a_sentence(change.location, writes=True):
        store: Any = get_artifact_repository(change.location)
        for path, content in change.files.items():
            with tempfile.TemporaryDirectory() as scratch:
                if content is None:
                    store.delete_artifacts(path)
                    continue
                local = Path(scratch) / Path(path).name
                local.write_bytes(content)
                store.log_artifact(str(local), Path(path).parent.as_posix() if "/" in path else None)
    packaging.sync(change.location)


def _files(folder: Path, *, column: str, unit: str) -> Iterator[tuple[Path, bytes | None]]:
    """Yields the files that have rows of the unit, and their bytes without these; None where none is left."""
    import pyarrow.parquet as pq

    for path in sorted(folder.rglob(PART)):
        rows = pq.read_table(path, partitioning=None, page_checksum_verification=True)
        left = without(rows, column, {unit})
        if len(left) < len(rows):
            yield path, parquet(left) if len(left) else None
    for path in (folder / EXAMPLE, folder / SERVED_EXAMPLE):
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        table = content.get("dataframe_split", content)
        if column not in table.get("columns", ()):
            continue
        place = table["columns"].index(column)
        left = [number for number, row in enumerate(table["data"]) if code(str(row[place])) != unit]
        if len(left) < len(table["data"]):
            table["data"] = [table["data"][number] for number in left]
            if "index" in table:
                table["index"] = [table["index"][number] for number in left]
            yield path, json.dumps(content).encode()

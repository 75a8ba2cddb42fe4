"""Takes a unit's rows out of the versions in MLflow: the past that they look back on, and their example.

The ledger names the digest of all files of a version, so a version without these rows has another one,
which the note of the erasure keeps (pipeline/storage/erasures.py). What a version learned from the rows stays
in its weights: it is named and tagged, and to be replaced.
"""

import json
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.contract import records
from pipeline.data.ingest import without
from pipeline.data.source import PART
from pipeline.erasure.cached_rows import parquet
from pipeline.registry import aliases, packaging

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

ERASED = "erased"  # tag of a version that learned from rows which were erased
EXAMPLE, SERVED_EXAMPLE = "input_example.json", "serving_input_example.json"


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A version some of whose files have rows of the unit."""

    number: int
    before: str  # digest of all its files
    after: str
    files: dict[str, bytes | None]  # by their paths; None: the file goes


def changed(client: "MlflowClient", name: str, *, column: str, unit: str) -> Iterator[Changed]:
    """Yields the versions that carry rows of the unit, with what these files are without them."""
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    for version in aliases.versions(client, name):
        if aliases.PRUNED in version.tags:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                folder = Path(download_artifacts(str(version.source), dst_path=scratch))
            except (MlflowException, OSError) as error:
                log.warning("version %s has no files here that could hold rows: %s", version.version, error)
                continue
            for of_mlflow in packaging.OF_MLFLOW:
                (folder / of_mlflow).unlink(missing_ok=True)
            files = {
                path.relative_to(folder).as_posix(): content
                for path, content in _files(folder, column=column, unit=unit)
            }
            if not files:
                continue
            before = records.digest(folder)
            for path, content in files.items():
                (folder / path).unlink()
                if content is not None:
                    (folder / path).write_bytes(content)
            yield Changed(
                number=int(version.version), before=before, after=records.digest(folder), files=files
            )


def replace(client: "MlflowClient", name: str, change: Changed) -> None:
    """Replaces the files of a version by those without the rows."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    source = str(aliases.existing(client, name, change.number).source)
    store: Any = get_artifact_repository(source)
    for path, content in change.files.items():
        with tempfile.TemporaryDirectory() as scratch:
            if content is None:
                store.delete_artifacts(path)
                continue
            local = Path(scratch) / Path(path).name
            local.write_bytes(content)
            store.log_artifact(str(local), Path(path).parent.as_posix() if "/" in path else None)
    packaging.sync(source)


def _files(folder: Path, *, column: str, unit: str) -> Iterator[tuple[Path, bytes | None]]:
    """Yields the files that have rows of the unit, and their bytes without these; None where none is left."""
    import pyarrow.parquet as pq

    for path in sorted(folder.rglob(PART)):
        rows = pq.read_table(path, partitioning=None)
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
        left = [number for number, row in enumerate(table["data"]) if str(row[place]) != unit]
        if len(left) < len(table["data"]):
            table["data"] = [table["data"][number] for number in left]
            if "index" in table:
                table["index"] = [table["index"][number] for number in left]
            yield path, json.dumps(content).encode()

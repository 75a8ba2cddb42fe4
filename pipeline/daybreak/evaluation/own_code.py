"""Scores an earlier version by the code that it carries, in a process of its own.

    echo CASE | python -P -m daybreak.registry.confined daybreak.evaluation.own_code

An edit of the workload may change the shapes of weights or the meaning of the score, so that an older version
no longer fits today's class. The version is fetched from the registry, checked against the digest in the
ledger, and scores the held-out samples with its own modules (daybreak/registry/carried_code.py), without
secrets or network (daybreak/registry/confined.py).
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np

from daybreak.contract.errors import DataError, without_password
from daybreak.contract.record_types import Release
from daybreak.data import prepare
from daybreak.evaluation.held_out import folder_of, keep
from daybreak.evaluation.scores import Columns
from daybreak.evaluation.scoring import ScoredModel, declared, predict, score
from daybreak.registry import carried_code
from daybreak.registry.weights import load_model
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session


def columns(
    home: Home, release: Release, folder: Path, *, arm: str, days: Sequence[date], batch_size: int
) -> Columns:
    """Returns the columns ARM and `ARM/METRIC`, a value per held-out sample, shape [n].

    Samples are made of tonight's clean rows by the version's own `arrays`, or features and state. A workload
    with metrics also has its predictions, `prediction/NAME`.

    Args:
        home: whose nights these are.
        release: the version, as the ledger has it.
        folder: its files, as `fetched`.
        arm: what it is compared as: `champion`, `anchor`, `predecessor`.
        days: whose held-out samples are scored.
        batch_size: samples scored at once.

    Raises:
        ReleaseError: the version's files are gone, or not those that the ledger names.
        DataError: the version's own code does not score today's samples.
    """
    out = folder.parent / "columns.npz"
    case = {
        "version": str(folder),
        "arm": arm,
        "days": list(map(str, days)),
        "batch_size": batch_size,
        "out": str(out),
    }
    done = subprocess.run(
        carried_code.command(home, __name__, scratch=folder.parent, reads=(home.tonight,)),
        input=json.dumps(case),
        env=carried_code.environment(folder.parent),
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        why = without_password(" ".join(done.stderr.split()))[-300:]
        raise DataError(
            f"version {release.version}, the {arm}, does not score today's samples by its own code: "
            f"... {why}; change back what it reads, or roll back to a version that can"
        )
    with np.load(out, allow_pickle=False) as archive:
        return {column: archive[column] for column in archive.files}


@contextmanager
def fetched(home: Home, release: Release, *, name: str) -> Iterator[Path]:
    """Yields the folder of a version's files, which are removed afterwards; ReleaseError as `columns`."""
    uri = f"models:/{name}/{release.version}"
    with tempfile.TemporaryDirectory() as scratch:
        with session(home):
            folder = carried_code.fetch(home, uri, release, into=Path(scratch) / "version")
        yield folder


def main() -> None:
    """Scores the samples of the current folder's night as the case on standard input says."""
    import torch

    case = json.loads(sys.stdin.read())
    version = Path(case["version"])
    workload = carried_code.workload_of(version)
    model = load_model(workload, version / carried_code.MODEL)
    batch_size = case["batch_size"]
    with torch.inference_mode(), tempfile.TemporaryDirectory() as scratch:
        days = [date.fromisoformat(day) for day in case["days"]]
        remade = hasattr(workload, "arrays") or (declared(workload) and hasattr(workload, "features"))
        if remade:
            prepare.remake(workload, version / carried_code.MODEL, Path(scratch))
            keep(days, Path(scratch))
        samples = workload.dataset(Path(scratch) if remade else folder_of(days), "test")
        arm = ScoredModel(name=case["arm"], workload=workload, model=model, samples=samples)
        if declared(workload):
            predictions = predict(arm, batch_size=batch_size)
            scored = {f"prediction/{name}": values for name, values in predictions.items()}
        else:
            scored = score([arm], len(samples), batch_size=batch_size)
    np.savez(case["out"], allow_pickle=False, **scored)


if __name__ == "__main__":
    main()

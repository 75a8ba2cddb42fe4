"""Scores an earlier version by the code that it carries, in a process of its own.

An edit of the workload may change the shapes of weights or the meaning of the score, so that an older version
no longer fits today's class. The version is fetched from the registry, checked against the digest in the
ledger, and scores the held-out samples with its own modules (daybreak/registry/carried_code.py), without
secrets or network (daybreak/registry/host.py).
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from daybreak.contract.errors import DataError, without_password
from daybreak.contract.record_types import Release
from daybreak.data import prepare
from daybreak.evaluation.held_out import arrays_of, keep
from daybreak.evaluation.scores import Columns
from daybreak.evaluation.scoring import ScoredModel, declared, predict, score
from daybreak.registry import carried_code
from daybreak.registry.host import CodeHost, NoAnswer
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
    try:
        return asked(home, folder, arm=arm, days=days, batch_size=batch_size)
    except NoAnswer as error:
        raise DataError(
            f"version {release.version}, the {arm}, does not score today's samples by its own code: "
            f"{without_password(str(error))}; change back what it reads, or roll back to a version "
            f"that can"
        ) from None


def asked(home: Home, folder: Path, *, arm: str, days: Sequence[date], batch_size: int) -> Columns:
    """Returns what `columns` does of a folder with a model and its code; NoAnswer says why there is none."""
    case: dict[str, Any] = {
        "version": str(folder),
        "arrays": str(arrays_of(days)),
        "days": list(map(str, days)),
        "arm": arm,
        "batch_size": batch_size,
    }
    with CodeHost(__name__, answer_s=inf, home=home, reads=(home.tonight, folder)) as process:
        out = process.scratch / "columns.npz"
        process.ask("score", to=str(out), **case)
        with process.reading(out) as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):  # one array
                raise ValueError("it has no columns")
            return {column: archive[column] for column in archive.files}


@contextmanager
def fetched(home: Home, release: Release, *, name: str) -> Iterator[Path]:
    """Yields the folder of a version's files, which are removed afterwards; ReleaseError as `columns`."""
    uri = f"models:/{name}/{release.version}"
    with tempfile.TemporaryDirectory() as scratch:
        with session(home):
            folder = carried_code.fetch(home, uri, release, into=Path(scratch) / "version")
        yield folder


def _score(
    *, version: str, arrays: str, days: Sequence[str], arm: str, batch_size: int, to: str
) -> dict[str, Any]:
    """Writes the scores of the held-out samples to a file, or the predictions that metrics are of."""
    import torch

    folder, samples_of = Path(version), Path(arrays)
    workload = carried_code.workload_of(folder)
    model = load_model(workload, folder / carried_code.MODEL)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as scratch:
        if hasattr(workload, "arrays") or (declared(workload) and hasattr(workload, "features")):
            samples_of = Path(scratch)
            prepare.remake(workload, folder / carried_code.MODEL, samples_of)
            keep(list(map(date.fromisoformat, days)), samples_of)
        samples = workload.dataset(samples_of, "test")
        own = ScoredModel(name=arm, workload=workload, model=model, samples=samples)
        if declared(workload):
            predictions = predict(own, batch_size=batch_size)
            scored = {f"prediction/{name}": values for name, values in predictions.items()}
        else:
            scored = score([own], len(samples), batch_size=batch_size)
    np.savez(to, allow_pickle=False, **scored)
    return {}


VERBS = {"score": _score}

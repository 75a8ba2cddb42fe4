"""Packs a version for the registry: the model as code and safetensors, and the night's records.

Everything goes to the same places of the night's one run, so a second call overwrites the first.
"""

import hashlib
import importlib.metadata
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract import records
from daybreak.contract.errors import without_password
from daybreak.contract.record_parts import Slice
from daybreak.contract.record_types import (
    Champion,
    Dataset,
    Evaluation,
    Night,
    Plan,
    Training,
)
from daybreak.contract.sections import WorkloadPlug
from daybreak.contract.workload import ARRAYS, serves_rows
from daybreak.registry import carried_code, row_packaging
from daybreak.registry.weights import MODEL, load_rows
from daybreak.storage import artifact_files
from daybreak.storage.home import Home
from daybreak.storage.source_code import imported_libraries

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.models import ModelSignature
    from numpy.typing import NDArray

DESCRIPTION = "MLmodel"  # MLflow's file of what the version is
MOST_LETTERS = 200  # of the name of a slice; MLflow takes 250 of a metric's
MOST_PARAMS = 100  # of one request
MOST_OF_PARAM = 500  # characters, which the oldest servers take
MOST_SLICES = 200  # of one request, which may have 1000 metrics
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a package, at the beginning of a requirement
REQUIRED = ("mlflow", "torch", "safetensors", "numpy", "pydantic", "ruamel.yaml")
# Modules that an estimator of a library needs to be loaded, which the workload's files do not import.
ALONGSIDE = {"lightgbm": "sklearn", "xgboost": "sklearn", "sklearn": "skops"}


@dataclass(frozen=True, kw_only=True)
class Logged:
    """The files of a version, as they were logged."""

    source: str  # their URI
    files_digest: str
    files: dict[str, int]  # bytes of each
    mlmodel: str  # text of the file that describes them to MLflow


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """What is known of a model that a team had before, which is not to be loaded in this process."""

    code: str  # import path of the class whose code the version carries
    predicted: "Mapping[str, NDArray[Any]]"  # by the model, of held-out rows
    requirements: Sequence[str]  # of the model for pip, a line each


def log_model(
    client: "MlflowClient",
    run_id: str,
    plug: WorkloadPlug,
    *,
    day: date,
    model: Path = MODEL,
    to: str = "model",
    adopted: Adopted | None = None,
) -> Logged:
    """Logs a model as a pyfunc with its code.

    It takes raw rows where the workload predicts them, else the numbers of samples.

    Args:
        client: of MLflow.
        run_id: of the night.
        plug: the workload.
        day: the night's.
        model: folder of the model.
        to: folder among the artifacts of the run.
        adopted: what is known of a model that a team had before; None for one that a night trained.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*type hint")  # of MLflow's own classes
        import mlflow.pyfunc

    workload, code_of = plug.make(), adopted.code if adopted else plug.use
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        # The signature is explicit; ranges are compared by MLflow 3.17 on pandas 3.
        warnings.filterwarnings("ignore", message=".*(type hint|input example|Operation with range)")
        folder = Path(scratch) / "model"
        taken = _samples()
        if serves_rows(workload):
            taken = _rows(workload, Path(scratch), day=day, predicted=adopted.predicted if adopted else None)
        code = Path(scratch) / carried_code.ARCHIVE
        carried_code.pack(carried_code.files_of(code_of), code)
        mlflow.pyfunc.save_model(
            folder,
            python_model=str(Path(__file__).with_name("served.py")),
            artifacts={path.name: str(path) for path in (model.resolve(), taken.past) if path},
            code_paths=[str(code)],
            signature=taken.signature,
            input_example=taken.example,
            pip_requirements=_with_others(
                requirements(code_of, of_rows=taken.example is not None),
                adopted.requirements if adopted else (),
            ),
        )
        files_digest, mlmodel = records.digest(folder), (folder / DESCRIPTION).read_text()
        files = artifact_files.sizes(folder)
        source = f"{client.get_run(run_id).info.artifact_uri}/{to}"
        with artifact_files.told_in_a_sentence(source, writes=True):
            client.log_artifacts(run_id, str(folder), to)
    sync(source)
    return Logged(source=source, files_digest=files_digest, files=files, mlmodel=mlmodel)


def requirements(use: str, *, of_rows: bool) -> list[str]:
    """Returns the requirements of a version for pip: Daybreak's, and the imports of the workload's files.

    Versions are the installed ones, without local labels (`+cpu`), which no index has.
    """
    needed = {*REQUIRED, *(row_packaging.REQUIRED if of_rows else ())}
    for name in imported_libraries(use):
        needed |= _owners(name)
        if also := ALONGSIDE.get(name.partition(".")[0]):
            needed |= _owners(also)
    return [f"{name}=={_version(name)}" for name in sorted(needed)]


def _with_others(own: list[str], others: Sequence[str]) -> list[str]:
    """Returns requirements, and those of others for packages that they do not name."""
    named = {line.partition("==")[0] for line in own}
    return own + [line for line in others if (name := NAME.match(line)) and name[0].lower() not in named]


def unavailable(use: str) -> Iterator[str]:
    """Yields a sentence on each library of a workload's files that no index is known to have."""
    imported = imported_libraries(use)
    owned = {name: _owners(name) for name in imported}
    tops = {name.partition(".")[0]: file for name, file in imported.items() if not owned[name]}
    for top, file in sorted(tops.items()):
        yield (
            f"{file} imports {top}, which no installed distribution provides and which is not beside the "
            f"package, so that no version carries it; move it into the package, or install it"
        )
    for name in sorted(set().union(*owned.values())):
        direct = importlib.metadata.distribution(name).read_text("direct_url.json")
        if direct:
            yield (
                f"{name} is installed from {without_password(json.loads(direct)['url'])}, and a version asks "
                f"for {name}=={_version(name)}; publish it where versions are installed from, or move it "
                f"into the package"
            )


def _version(name: str) -> str:
    return importlib.metadata.version(name).partition("+")[0]


def _owners(name: str) -> set[str]:
    """Returns the distributions that a dotted name is of."""
    folders = _installed()
    distributions = set(_distributions(folders).get(name.partition(".")[0], ()))
    parts = name.split(".") if len(distributions) > 1 else []
    for end in range(len(parts), 0, -1):  # a namespace, such as google, has many
        module = "/".join(parts[:end])
        modules = {f"{module}.py", f"{module}/__init__.py"}
        owners = {each for each in distributions if modules & _files(folders, each)}
        if owners:
            return owners
    return distributions


def _installed() -> tuple[str, ...]:
    """Returns the folders of `sys.path` that have distributions; that of a night, which changes, has none."""
    return tuple(folder for folder in sys.path if any(importlib.metadata.distributions(path=[folder])))


# Both read tens of thousands of names, once in a process for what is installed in the same folders.
@cache
def _distributions(folders: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """Returns the distributions of each top-level package."""
    return importlib.metadata.packages_distributions()


@cache
def _files(folders: tuple[str, ...], distribution: str) -> frozenset[str]:
    """Returns the names of a distribution's files."""
    return frozenset(file.as_posix() for file in importlib.metadata.files(distribution) or ())


def sync(uri: str) -> None:
    """Syncs a version's files to disk, if MLflow keeps them in a folder here, since MLflow does not.

    So files that the ledger names survive a power failure.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    store = get_artifact_repository(uri)
    if isinstance(store, LocalArtifactRepository):
        folder = Path(store.artifact_dir)
        for path in (*folder.rglob("*"), folder, *list(folder.parents)[:3]):  # up to the experiment's
            records.sync(path)


@dataclass(frozen=True, kw_only=True)
class _ModelInput:
    """The input of a version: signature, example, and past days for features that look back."""

    signature: "ModelSignature"
    example: "pd.DataFrame | None" = None
    past: Path | None = None


def _rows(
    workload: Any, scratch: Path, *, day: date, predicted: "Mapping[str, NDArray[Any]] | None"
) -> _ModelInput:
    example = row_packaging.example(workload.table)
    past = row_packaging.past(workload, scratch, day=day)
    predicted = predicted or load_rows(workload, scratch, model=MODEL).predict(example)
    return _ModelInput(
        signature=row_packaging.signature(workload.table, predicted), example=example, past=past
    )


def _samples() -> _ModelInput:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.long, "sample")]),
        outputs=Schema([ColSpec(DataType.double)]),
        params=ParamSchema(
            [
                ParamSpec("folder", DataType.string, "data/arrays"),
                ParamSpec("split", DataType.string, "test"),
            ]
        ),
    )
    return _ModelInput(signature=signature)


def log_records(
    home: Home,
    client: "MlflowClient",
    run_id: str,
    *,
    night: Night,
    plan: Plan,
    training: Training,
    evaluation: Evaluation,
    champion: Champion | None,
    made_of: Mapping[str, object],
) -> None:
    """Logs the night's numbers as params and metrics of its run, and its records as artifacts.

    MLflow groups metrics by what their names have before a slash. `made_of` has the recipe, its digest and
    its values by their keys.
    """
    from mlflow.entities import Metric, Param

    params = run_params(night, plan, training, evaluation=evaluation, champion=champion) | dict(made_of)
    metrics = dict(evaluation.metrics) | {
        "time/planned_s": plan.forecast.expected_s,
        "time/took_s": training.took_s,
        "cost/planned_usd": plan.forecast.expected_usd,
        "cost/usd": training.cost_usd,
        "training/num_updates": float(training.num_updates),
        "training/num_restarts": float(training.num_restarts),
    }
    metrics |= slice_metrics(evaluation.slices)
    stamp = int(night.started_at.timestamp() * 1000)  # the same when logged again
    logged = client.get_run(run_id).data.params
    client.log_batch(
        run_id,
        metrics=[
            *(Metric(key(name), value, stamp, 0) for name, value in metrics.items()),
            *(Metric("validation/score", score, stamp, seen) for seen, score in training.validations),
        ],
    )
    missing = [
        Param(name, without_password(str(value))[:MOST_OF_PARAM])
        for name, value in ((key(name).replace("//", "/"), value) for name, value in params.items())
        if name not in logged and value not in ("", None)
    ]
    for start in range(0, len(missing), MOST_PARAMS):
        client.log_batch(run_id, params=missing[start : start + MOST_PARAMS])
    with artifact_files.told_in_a_sentence(f"the place of artifacts of run {run_id}", writes=True):
        for path in sorted(home.records.glob("*.json")):
            client.log_artifact(run_id, str(path), "records")


def log_sources(
    client: "MlflowClient",
    run_id: str,
    *,
    night: Night,
    dataset: Dataset,
    evaluation: Evaluation,
    workload: str,
) -> None:
    """Logs the samples, trained on and held out, and the code in the fields that MLflow has for them."""
    from mlflow.entities import Dataset as LoggedDataset
    from mlflow.entities import DatasetInput, InputTag
    from mlflow.utils import mlflow_tags

    days = evaluation.days
    trained = {
        "num_samples": dataset.num_samples,
        "num_bytes": dataset.num_bytes,
        "first_day": str(dataset.first_day),
        "last_day": str(dataset.last_day),
    }
    held_out: dict[str, object] = {"num_samples": evaluation.num_samples, "days": [str(day) for day in days]}
    # The same arrays have other held-out days beside another champion, and MLflow keeps one profile a name.
    of_days = f"held out, {_span(days)}" if days else "held out"
    inputs = [
        DatasetInput(
            dataset=LoggedDataset(
                name=name,
                digest=digest,
                source_type="dvc",
                source=json.dumps({"path": ARRAYS.as_posix(), "night": night.id}),
                profile=json.dumps(profile),
            ),
            tags=[InputTag(mlflow_tags.MLFLOW_DATASET_CONTEXT, context)],
        )
        for name, digest, context, profile in (
            ("training arrays", dataset.digest, "training", trained),
            (of_days, evaluation.data_digest, "eval", held_out),
        )
    ]
    client.log_inputs(run_id, datasets=inputs)
    code = {
        mlflow_tags.MLFLOW_SOURCE_NAME: workload,
        mlflow_tags.MLFLOW_SOURCE_TYPE: "LOCAL",
        mlflow_tags.MLFLOW_GIT_COMMIT: night.code_commit,
    }
    for name, value in code.items():
        client.set_tag(run_id, name, value)


def run_params(
    night: Night, plan: Plan, training: Training, *, evaluation: Evaluation, champion: Champion | None
) -> dict[str, object]:
    """Returns the params of a night's MLflow run: the plan, what was trained, and what its scores are of.

    Scores of two nights differ by their held-out days, too, so that MLflow's comparison has to show these.
    """
    version = f"version {champion.version}" if champion else "no version"
    is_compared = not evaluation.metrics.get("champion_has_seen")
    held_out = f"{_span(evaluation.days)}, " if evaluation.days else ""
    return {
        "day": night.day,
        "trigger": night.trigger,
        "code_commit": night.code_commit,
        "machine": " + ".join(f"{pool.num_machines} x {pool.machine}" for pool in plan.rental.pools),
        "region": plan.rental.region,
        "strategy": plan.rental.strategy,
        "batch_size": plan.batch_size,
        "num_samples": plan.num_samples,
        "starts_from": {True: version, False: "new weights", None: ""}[training.warm],
        "stopped_by": training.stopped_by,
        "device": training.device,
        "held_out": f"{held_out}{evaluation.num_samples:,} samples",
        "compared_with": version if is_compared else "no version",
    }


def _span(days: Sequence[date]) -> str:
    return f"{days[0]} to {days[-1]}" if len(days) > 1 else f"{days[0]}"


def slice_metrics(slices: Sequence[Slice]) -> dict[str, float]:
    """Returns the challenger's scores by slice, by names that MLflow takes: no two slices have the same."""
    metrics: dict[str, float] = {}
    for part in slices[:MOST_SLICES]:
        name = key(part.name).replace("/", "_").replace("..", "__").strip(".")[:MOST_LETTERS]
        if not name or f"slice/{name}" in metrics:  # `hour < 6` and `hour > 6` are written alike
            name = f"{name} {hashlib.sha256(part.name.encode()).hexdigest()[:8]}".strip()
        metrics[f"slice/{name}"] = part.score
    return metrics


def key(name: str) -> str:
    """Returns the name as MLflow accepts it for a metric: `recall@20` becomes `recall_at_20`."""
    plain = name.replace("@", "_at_")
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in plain)

"""What goes into the registry with a version? The model as code and safetensors, and the night's records.

Everything goes to the same places of the night's one run, so doing it again overwrites it.
"""

import importlib.metadata
import importlib.util
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import records
from pipeline.errors import ReleaseError
from pipeline.params import Params
from pipeline.records import Evaluation, Night, Plan, Training
from pipeline.release.evaluator import MODEL
from pipeline.release.tracking import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

PICKLES = {".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".npz"}
REQUIRED = ("mlflow", "torch", "safetensors", "numpy", "pydantic", "ruamel.yaml")


def log_model(client: "MlflowClient", run_id: str, params: Params) -> str:
    """Log `data/run/model` as a pyfunc with its code, and return the URI of the artifact."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*type hint")  # of MLflow's own classes
        import mlflow.pyfunc
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
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(type hint|input example)")  # the signature is explicit
        folder = Path(scratch) / "model"
        mlflow.pyfunc.save_model(
            folder,
            python_model=str(Path(__file__).with_name("served.py")),
            artifacts={"model": str(MODEL.resolve())},
            code_paths=[str(path) for path in code_paths(params.workload.use)],
            signature=signature,
            pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in REQUIRED],
        )
        client.log_artifacts(run_id, str(folder), "model")
    return f"{client.get_run(run_id).info.artifact_uri}/model"


def check_files(client: "MlflowClient", uri: str, model_digest: str, *, into: Path) -> int:
    """Fetch a version's files into a folder, and check them as `fetch_model` does; their bytes."""
    fetch_model(uri, model_digest, into=into)
    return sum(path.stat().st_size for path in into.rglob("*") if path.is_file())


def fetch_model(uri: str, model_digest: str, *, into: Path) -> Path:
    """Fetch a version's files into a folder; where in it the model's own are.

    Raises ReleaseError where they are gone, not of that model, or hold a pickle, which loading would run.
    """
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    try:
        folder = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(into)))
    except (MlflowException, OSError) as error:
        told = without_password(" ".join(str(error).split()))[:200]
        raise ReleaseError(f"{uri} cannot be fetched: {told}; restore MLflow's artifacts") from None
    if pickled := sorted(path.name for path in folder.rglob("*") if path.suffix in PICKLES):
        raise ReleaseError(f"{uri} holds {pickled[0]}, which may be a pickle; register the model again")
    model = folder / "artifacts" / "model"
    if (found := records.digest(model)) != model_digest:
        raise ReleaseError(
            f"the files of {uri} have digest {found}, the ledger says {model_digest}; "
            f"restore MLflow's artifacts"
        )
    return model


def code_paths(workload: str) -> list[Path]:
    """Code that a version carries: this package and the workload's own, unless that is installed."""
    tops = dict.fromkeys((__package__.partition(".")[0], workload.partition(":")[0].partition(".")[0]))
    paths = []
    for top in tops:
        spec = importlib.util.find_spec(top)
        if spec is None:
            continue
        folders = list(spec.submodule_search_locations or ())
        path = Path(folders[0] if folders else str(spec.origin))
        if not {"site-packages", "dist-packages"} & set(path.parts):
            paths.append(path)
    return paths


def log_records(
    client: "MlflowClient",
    run_id: str,
    *,
    night: Night,
    plan: Plan,
    training: Training,
    evaluation: Evaluation,
) -> None:
    """The night's numbers as params and metrics of its run, and its records as they are."""
    from mlflow.entities import Metric, Param

    params = {
        "day": night.day,
        "trigger": night.trigger,
        "code_commit": night.code_commit,
        "machine": f"{plan.num_machines} x {plan.machine}",
        "spot": plan.spot,
        "batch_size": plan.batch_size,
        "num_samples": plan.num_samples,
        "stopped_by": training.stopped_by,
    }
    metrics = dict(evaluation.metrics) | {
        "planned_s": plan.expected_s,
        "elapsed_s": training.elapsed_s,
        "planned_usd": plan.expected_usd,
        "cost_usd": training.cost_usd,
        "num_updates": float(training.num_updates),
        "num_restarts": float(training.num_restarts),
    }
    stamp = int(night.started_at.timestamp() * 1000)  # the same when logged again
    have = client.get_run(run_id).data.params
    client.log_batch(
        run_id,
        metrics=[Metric(key(name), value, stamp, 0) for name, value in metrics.items()],
        params=[Param(name, str(value)[:500]) for name, value in params.items() if name not in have],
    )
    for path in sorted(records.RUN.glob("*.json")):
        client.log_artifact(run_id, str(path), "records")


def key(name: str) -> str:
    """The name as MLflow takes it for a metric: `recall@20` is `recall_at_20`."""
    plain = name.replace("@", "_at_")
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in plain)

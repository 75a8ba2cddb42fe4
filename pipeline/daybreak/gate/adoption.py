"""Stage admit: makes a model that a team serves already the first version of a home, and its champion.

`daybreak adopt` runs a night whose data is brought in as ever, and which trains nothing: this stage takes the
place of all from `profile` to `refit`. The model, a pyfunc of MLflow, becomes a version like any other
(daybreak/workloads/adopted.py), which carries the code of the class that the home trains. Its predictions of
the held-out rows are scored by the metrics of that class, and it has to pass the smoke test. Nothing else is
asked of it, since it serves already: the verdict promotes it, and the next night has to beat it.

A model may be a pickle. It runs in processes alone that have no secrets and no network; this one reads what
MLflow's file says of it.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daybreak.contract import clock, records
from daybreak.contract.errors import ParamsError, ReleaseError, without_password
from daybreak.contract.formats import counted
from daybreak.contract.record_types import Champion, Dataset, Evaluation, Night, Verdict
from daybreak.contract.sections import EvaluateParams, GateSections, WorkloadPlug
from daybreak.contract.user import user
from daybreak.contract.workload import write_state
from daybreak.data.partitions import held_out_days
from daybreak.evaluation import own_code
from daybreak.evaluation.evaluator import evaluate_predicted
from daybreak.evaluation.held_out import arrays_of
from daybreak.evaluation.scores import Columns, read_scores, with_prefix
from daybreak.evaluation.scoring import declared
from daybreak.evaluation.smoke_test import smoke_test
from daybreak.gate.judge import fit_to_serve
from daybreak.registry import carried_code
from daybreak.registry.host import NoAnswer
from daybreak.registry.packaging import Adopted
from daybreak.registry.register import register_adopted
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session
from daybreak.workloads.adopted import PYFUNC, USE

if TYPE_CHECKING:
    from mlflow.models import Model

    from daybreak.workloads.metrics import Metric

URI = re.compile(r"models:/(?P<name>[^/@]+)(/(?P<number>\d+)|@(?P<alias>[^/@]+))")
MODEL = records.RUN / "adopted" / "model"
OF_FEATURES = re.compile(r"^AdoptedModel\.features fails: \w+: (.*); fix it$", re.S)


@dataclass(frozen=True, kw_only=True)
class Described:
    """What MLflow says of a model, before anything of it is loaded."""

    uri: str
    flavour: str
    registered_on: date


def expect_first(champion: Champion | None) -> None:
    """Raises ReleaseError where a version serves already."""
    if champion:
        raise ReleaseError(
            f"version {champion.version} serves already, and a model is adopted as the first champion of a "
            f"home; adopt it in a new home, or under a new register.name"
        )


def described(home: Home, model: str, workload: WorkloadPlug) -> Described:
    """Returns what MLflow says of a model that can be adopted for a workload.

    Raises ParamsError or ReleaseError, with why, where it cannot be.
    """
    own = workload.make()
    if not declared(own) or not hasattr(own, "features") or hasattr(own, "arrays"):
        raise ParamsError(
            f"{workload.use} has no `metrics` of predictions of rows, by which an adopted model is judged; "
            f"name them in the class (docs/own-data.md), or begin with a night that trains"
        )
    if (named := URI.fullmatch(model)) is None:
        raise ParamsError(
            f"{model} is not a model of MLflow; write models:/NAME/VERSION or models:/NAME@ALIAS"
        )
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model

    with session(home) as client:
        try:
            found = (
                client.get_model_version(named["name"], named["number"])
                if named["number"]
                else client.get_model_version_by_alias(named["name"], named["alias"])
            )
            uri = f"models:/{named['name']}/{found.version}"
            described = Model.load(uri)
        except (MlflowException, OSError) as error:
            message = without_password(" ".join(str(error).split()))[:200]
            raise ReleaseError(f"{model} is not to be had: {message}; look at it in MLflow") from None
    return Described(
        uri=uri,
        flavour=_flavour(uri, described, own),
        registered_on=datetime.fromtimestamp(found.creation_timestamp / 1000, UTC).date(),
    )


def _flavour(uri: str, described: "Model", workload: Any) -> str:
    """Returns the flavour of a model; ParamsError where rows of the workload's table do not suit it."""
    flavours = [name for name in described.flavors if name != "python_function"]
    if "python_function" not in described.flavors:
        raise ParamsError(
            f"{uri} is of the flavour {', '.join(flavours) or 'none'}, which is not a pyfunc; log it again "
            f"by a flavour of MLflow that is one"
        )
    flavour = flavours[0] if flavours else "python_function"
    schema = described.signature.inputs if described.signature else None
    if schema is not None and schema.is_tensor_spec():
        raise ParamsError(
            f"{uri}, of the flavour {flavour}, takes tensors and not columns of rows; log it again as a "
            f"pyfunc of rows, with their features in it"
        )
    needed = [] if schema is None else schema.required_input_names()
    if lacking := [str(name) for name in needed if name not in workload.table.features]:
        raise ParamsError(
            f"{uri} needs the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}, which the table of "
            f"{type(workload).__name__} lacks; declare what the source has of them, or log the model "
            f"again as a pyfunc that makes them of the rows"
        )
    return flavour


def admit(
    home: Home,
    night: Night,
    dataset: Dataset,
    *,
    champion: Champion | None,
    evaluate: EvaluateParams,
    params: GateSections,
    model: str,
    output: str = "",
    last_day: date | None = None,
) -> Verdict:
    """Makes the model a version, scores it on the held-out rows, and returns the verdict.

    Raises ParamsError where it cannot be judged as the workload is, by these rows.

    Args:
        home: whose nights these are.
        night: tonight's.
        dataset: of tonight.
        champion: that serves; there is to be none.
        evaluate: how many rows are predicted at once.
        params: sections.
        model: the model in MLflow, as models:/NAME/VERSION
        output: which of several outputs is the prediction: the name of a column, or its number from 0
        last_day: last day of data that it was trained on; the day on which it was registered if left out
    """
    expect_first(champion)
    known = described(home, model, params.workload)
    last = last_day or known.registered_on
    arguments = {
        "of": params.workload.use,
        "arguments": params.workload.model_extra or {},
        "flavour": known.flavour,
        "output": output,
    }
    plug = WorkloadPlug(use=USE, **arguments)
    with tempfile.TemporaryDirectory() as scratch:
        files = _fetched(home, known.uri, Path(scratch) / "theirs")
        facts = {"workload": USE, "arguments": arguments, "seen": 0, "data_digest": dataset.digest}
        _write_model(files, {**facts, "last_day": str(last)}, archive=Path(scratch) / "pyfunc.zip")
        listed = files / "requirements.txt"
        requirements = listed.read_text().splitlines() if listed.exists() else ()
        everything = held_out_days()
        days = tuple(day for day in everything if day > last) or everything
        columns = _predicted(
            home, known, params.workload, days, folder=Path(scratch) / "version", evaluate=evaluate
        )
    predicted = with_prefix(columns, "prediction")
    evaluation = _scored(known.uri, params.workload, columns, days, data_digest=dataset.digest)
    version = register_adopted(
        home,
        night,
        name=params.register_.name,
        uri=known.uri,
        model=MODEL,
        adopted=Adopted(code=params.workload.use, predicted=predicted, requirements=requirements),
        plug=plug,
        evaluation=evaluation,
        train=params.train,
    )
    for record in (evaluation, version):
        records.write(record, home.records)
    checks = smoke_test(
        home,
        version,
        None,
        (read_scores() or {}).get("challenger"),
        params.smoke_test,
        predicted=predicted,
        arrays=arrays_of(days),
    )
    verdict = Verdict(
        action="promote",
        champion=0,
        challenger=version.number,
        num_samples=evaluation.num_samples,
        reason=_reason(known, evaluation, last=last, days=days),
        decided_at=clock.utc().replace(microsecond=0),
    )
    return fit_to_serve(verdict, checks)


def _reason(known: Described, evaluation: Evaluation, *, last: date, days: Sequence[date]) -> str:
    metric = evaluation.judged[0].name
    seen = "" if days[0] > last else f", which it may have been trained on (until {last})"
    return (
        f"{user()} adopted {known.uri}, of the flavour {known.flavour}: {metric} "
        f"{evaluation.metrics[metric]:.4g} on "
        f"{evaluation.num_samples:,} held-out samples of {counted(len(days), 'day')}{seen}; the next night "
        f"has to beat it"
    )


def _fetched(home: Home, uri: str, to: Path) -> Path:
    """Returns the folder with the files of a team's model."""
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    to.mkdir()
    with session(home):
        try:
            folder = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(to)))
        except (MlflowException, OSError) as error:
            message = without_password(" ".join(str(error).split()))[:200]
            raise ReleaseError(f"{uri} cannot be fetched: {message}; restore MLflow's artifacts") from None
    for name in carried_code.OF_MLFLOW:
        (folder / name).unlink(missing_ok=True)
    return folder


def _write_model(files: Path, facts: Mapping[str, Any], *, archive: Path) -> None:
    """Writes the model of a version that wraps these files."""
    from safetensors.torch import save_file

    carried_code.pack(
        {path.relative_to(files).as_posix(): path for path in files.rglob("*") if path.is_file()}, archive
    )
    shutil.rmtree(MODEL, ignore_errors=True)
    MODEL.mkdir(parents=True)
    save_file({}, MODEL / "model.safetensors")
    write_state(MODEL, {PYFUNC: np.frombuffer(archive.read_bytes(), dtype=np.uint8)})
    (MODEL / "model.json").write_text(json.dumps(facts))


def _predicted(
    home: Home,
    known: Described,
    workload: WorkloadPlug,
    days: Sequence[date],
    *,
    folder: Path,
    evaluate: EvaluateParams,
) -> Columns:
    """Returns what the model predicts of the held-out rows, in a process of its own.

    `folder` gets what a version has there: model and code.
    """
    shutil.copytree(MODEL, folder / carried_code.MODEL)
    (folder / carried_code.CODE).mkdir()
    code = folder / carried_code.CODE / carried_code.ARCHIVE
    carried_code.pack(carried_code.files_of(workload.use), code)
    try:
        return own_code.asked(home, folder, arm="challenger", days=days, batch_size=evaluate.batch_size)
    except NoAnswer as error:
        message = OF_FEATURES.sub(r"\1", without_password(error.message))
        raise ParamsError(f"{known.uri} cannot be adopted: {message}") from None


def _scored(
    uri: str, workload: WorkloadPlug, columns: Columns, days: Sequence[date], *, data_digest: str
) -> Evaluation:
    """Returns the scores of predictions; ParamsError where the metrics of the workload do not judge them."""
    own = workload.make()
    first, predicted = declared(own)[0], with_prefix(columns, "prediction")
    _expect_judged(uri, declared(own), predicted)
    try:
        evaluation = evaluate_predicted(
            own, columns, days, model_digest=records.digest(MODEL), data_digest=data_digest
        )
    except ValueError as error:  # of NumPy: the metric cannot put them beside the labels
        raise ParamsError(
            f"{uri} predicts shape {list(predicted[first.prediction].shape)}, which {first.name} of "
            f"{type(own).__name__} does not judge ({error}); choose one of its outputs by --output"
        ) from None
    if evaluation.metrics.get("num_not_finite"):
        raise ParamsError(
            f"{uri} has no {first.name}, as scores are not numbers; look at its predictions and the labels "
            f"of {', '.join(map(str, days))}"
        )
    return evaluation


def _expect_judged(uri: str, metrics: "Sequence[Metric]", predicted: Columns) -> None:
    """Raises ParamsError where metrics are of other predictions than these."""
    for metric in metrics:
        if metric.prediction not in predicted:
            raise ParamsError(
                f"{uri} predicts {', '.join(predicted)}, and {metric.name} judges {metric.prediction!r}; "
                f"choose one of its outputs by --output, or log it with that name"
            )
        values = predicted[metric.prediction]
        is_whole = values.dtype.kind != "f"
        if metric.of_chances and (is_whole or values.min() < 0 or values.max() > 1):
            low, high = float(values.min()), float(values.max())
            raise ParamsError(
                f"{uri} predicts {'whole numbers' if is_whole else 'numbers'} from {low:g} to {high:g}, and "
                f"{metric.name} judges chances from 0 to 1; log it so that it predicts chances (in sklearn, "
                f"pyfunc_predict_fn='predict_proba'), or choose another first metric"
            )

"""Stage admit: makes a model that a team serves already the first version of a home, and its champion.

`daybreak adopt` runs a night whose data is brought in as ever, and which trains nothing: this stage takes the
place of all from `profile` to `refit`. The model, a pyfunc of MLflow, becomes a version like any other
(daybreak/workloads/adopted.py), which carries the code of the class that the home trains. Its predictions of
the held-out rows are scored by the metrics of that class, and it has to pass the smoke test. Nothing else is
asked of it, since it serves already: the verdict promotes it, and the next night has to beat it.

A model may be a pickle. It runs only in processes that have no secrets and no network; this one reads
MLflow's description of it (daybreak/registry/team_model.py).
"""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
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
from daybreak.registry import carried_code, team_model
from daybreak.registry.host import NoAnswer
from daybreak.registry.packaging import Adopted
from daybreak.registry.register import register_adopted
from daybreak.registry.team_model import TeamModel
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import locations, session
from daybreak.workloads.adopted import PYFUNC, USE

if TYPE_CHECKING:
    from daybreak.workloads.metrics import Metric

MODEL = records.RUN / "adopted" / "model"
OF_FEATURES = re.compile(r"^AdoptedModel\.features fails: \w+: (.*); fix it$", re.S)


def expect_first(champion: Champion | None) -> None:
    """Raises ReleaseError where a version serves already."""
    if champion:
        raise ReleaseError(
            f"version {champion.version} serves already, and a model is adopted as the first champion of a "
            f"home; adopt it in a new home, or under a new register.name"
        )


def find(home: Home, model: str, workload: WorkloadPlug) -> TeamModel:
    """Returns the description of a model that the metrics of a workload can judge.

    Raises ParamsError or ReleaseError, with the reason, where they cannot, or the model is not to be had.
    """
    own = workload.make()
    if not declared(own) or not hasattr(own, "features") or hasattr(own, "arrays"):
        raise ParamsError(
            f"{workload.use} has no `metrics` of predictions of rows, by which an adopted model is judged; "
            f"name them in the class (docs/own-data.md), or begin with a night that trains"
        )
    return team_model.find(home, model, own.table.features)


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
    known = find(home, model, params.workload)
    last = last_day or known.registered_on
    arguments = {
        "of": params.workload.use,
        "arguments": params.workload.model_extra or {},
        "flavour": known.flavour,
        "output": output,
    }
    plug = WorkloadPlug(use=USE, **arguments)
    with tempfile.TemporaryDirectory() as scratch:
        (theirs := Path(scratch) / "theirs").mkdir()
        with session(home):
            location = locations(home).expect_known_host(carried_code.location_of(known.uri))
            files = carried_code.download(location, theirs)
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


def _reason(known: TeamModel, evaluation: Evaluation, *, last: date, days: Sequence[date]) -> str:
    metric = evaluation.judged[0].name
    seen = "" if days[0] > last else f", which it may have been trained on (until {last})"
    return (
        f"{user()} adopted {known.uri}, of the flavour {known.flavour}: {metric} "
        f"{evaluation.metrics[metric]:.4g} on "
        f"{evaluation.num_samples:,} held-out samples of {counted(len(days), 'day')}{seen}; the next night "
        f"has to beat it"
    )


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
    known: TeamModel,
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

"""Stage register: makes tonight's model a version in MLflow, with what a reviewer needs to decide.

It may be killed at any line and called again: tonight's version is looked up by its tags before one is made.
"""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract import records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Champion, Dataset, Evaluation, Night, Plan, Training, Version
from daybreak.contract.sections import RegisterParams, TrainParams, WorkloadPlug
from daybreak.registry import aliases, description, packaging
from daybreak.registry.lineage import ingredients, lineage, lineage_of
from daybreak.registry.lineage import tags as tags_of
from daybreak.registry.weights import MODEL, check_digest
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import find_or_make_run, own_run, session, team_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient


def register(
    home: Home,
    night: Night,
    dataset: Dataset,
    *,
    plan: Plan,
    training: Training,
    evaluation: Evaluation,
    champion: Champion | None,
    workload: WorkloadPlug,
    train: TrainParams,
    register: RegisterParams,
) -> Version:
    """Makes tonight's model a version under the alias `challenger`, and returns its record.

    Raises DataError if the model is not the one on record, and ReleaseError if another one was evaluated.
    """
    check_digest(MODEL, training.model_digest, record="training.json")
    if evaluation.model_digest != training.model_digest:
        raise ReleaseError(
            f"evaluation.json is of model {evaluation.model_digest}, training.json of "
            f"{training.model_digest}; run evaluate again"
        )
    name = register.name
    made_of = ingredients(workload, train)
    records.write(made_of, home.records)
    tags = tags_of(
        lineage(
            night,
            data_digest=dataset.digest,
            model_digest=training.model_digest,
            workload=workload,
            train=train,
        )
    )
    with session(home) as client:
        run_id = find_or_make_run(home, client, night.id)
        text = description.describe(night=night, evaluation=evaluation, champion=champion)
        number, known = _find_version(client, name, tags), records.find(Version, home.records)
        if known and known.number == number and known.model_digest == training.model_digest:
            files_digest, files, mlmodel = known.files_digest, known.files, known.mlmodel
        else:  # also after a killed call: of MLflow's files only those just sent are known to be whole
            packaging.log_records(
                home,
                client,
                run_id,
                night=night,
                plan=plan,
                training=training,
                evaluation=evaluation,
                champion=champion,
                made_of={"recipe": tags["recipe"], **made_of.values},
            )
            packaging.log_sources(
                client, run_id, night=night, dataset=dataset, evaluation=evaluation, workload=workload.use
            )
            logged = packaging.log_model(client, run_id, workload, day=night.day)
            files_digest, files, mlmodel = logged.files_digest, logged.files, logged.mlmodel
            number = number or _make_version(
                client, name, source=logged.source, run_id=run_id, tags={**team_tags(home), **tags}, text=text
            )
        client.set_registered_model_alias(name, aliases.CHALLENGER, str(number))
        # Those of the team too: a job on a machine without params.yaml may have made the run.
        run_tags = {**team_tags(home), **tags, "version": f"{name}/{number}"}
        experiment = _end_run(client, run_id, run_tags)
    return Version(
        name=name,
        number=number,
        night=night.id,
        data_digest=dataset.digest,
        model_digest=training.model_digest,
        run_id=run_id,
        files_digest=files_digest,
        files=files,
        mlmodel=mlmodel,
        experiment=experiment,
    )


def register_adopted(
    home: Home,
    night: Night,
    *,
    name: str,
    uri: str,
    model: Path,
    adopted: packaging.Adopted,
    plug: WorkloadPlug,
    evaluation: Evaluation,
    train: TrainParams,
) -> Version:
    """Registers the wrapped model in a folder as a version, and returns the record of the version."""
    made = Version(
        name=name,
        number=0,
        night=night.id,
        data_digest=evaluation.data_digest,
        model_digest=evaluation.model_digest,
        run_id="",
        adopted=uri,
    )
    tags = tags_of(lineage_of(made, night=night, workload=plug, train=train))
    with session(home) as client:
        run_id = find_or_make_run(home, client, night.id)
        logged = packaging.log_model(client, run_id, plug, day=night.day, model=model, adopted=adopted)
        number = _find_version(client, name, tags) or _make_version(
            client,
            name,
            source=logged.source,
            run_id=run_id,
            tags={**team_tags(home), **tags},
            text=description.describe(night=night, evaluation=evaluation, champion=None),
        )
        client.set_registered_model_alias(name, aliases.CHALLENGER, str(number))
        run_tags = {**team_tags(home), **tags, "version": f"{name}/{number}"}
        experiment = _end_run(client, run_id, run_tags)
    return replace(
        made,
        number=number,
        run_id=run_id,
        files_digest=logged.files_digest,
        files=logged.files,
        mlmodel=logged.mlmodel,
        experiment=experiment,
    )


def _end_run(client: "MlflowClient", run_id: str, tags: dict[str, str]) -> str:
    """Ends the run of the night with these tags, and returns its experiment."""
    for key, value in tags.items():
        client.set_tag(run_id, key, value)
    with contextlib.redirect_stdout(sys.stderr):  # MLflow prints the run; stdout is for the record
        client.set_terminated(run_id, "FINISHED")
    return str(client.get_run(run_id).info.experiment_id)


def register_refit(
    home: Home,
    judged: Version,
    *,
    night: Night,
    model: Path,
    training: Training,
    workload: WorkloadPlug,
    train: TrainParams,
) -> Version:
    """Makes a refit of tonight's version, in the folder `model`, a version too, and returns its record.

    It belongs to the same run, and has the page and the scores of the judged version.
    """
    check_digest(model, training.model_digest, record="the record of the refit")
    made = replace(judged, model_digest=training.model_digest)
    tags = tags_of(lineage_of(made, night=night, workload=workload, train=train))
    tags["refit_of"] = str(judged.number)
    with session(home) as client:
        run_id = own_run(home, client, judged.run_id)
        logged = packaging.log_model(client, run_id, workload, day=night.day, model=model, to="refitted")
        page = aliases.existing(client, judged.name, judged.number).description or ""
        number = _find_version(client, judged.name, tags) or _make_version(
            client,
            judged.name,
            source=logged.source,
            run_id=judged.run_id,
            tags={**team_tags(home), **tags},
            text=description.of_refit(page, judged=judged.number),
        )
    return replace(
        made,
        number=number,
        files_digest=logged.files_digest,
        files=logged.files,
        mlmodel=logged.mlmodel,
    )


def _find_version(client: "MlflowClient", name: str, tags: dict[str, str]) -> int | None:
    """Returns tonight's version, the oldest if there are two; None before one is made."""
    wanted = ("night", "model_digest")
    query = " and ".join(f"tags.{key} = '{tags[key]}'" for key in wanted)
    versions = client.search_model_versions(f"name = '{name}' and {query}")
    return min((int(version.version) for version in versions), default=None)


def _make_version(
    client: "MlflowClient", name: str, *, source: str, run_id: str, tags: dict[str, str], text: str
) -> int:
    _make_model(client, name)
    made = client.create_model_version(
        name,
        source,
        run_id=run_id,
        tags={**tags, "status": aliases.CHALLENGER},
        description=description.fitting(text),
        await_creation_for=0,
    )
    return int(made.version)


def _make_model(client: "MlflowClient", name: str) -> None:
    """Makes the registered model if it is missing, since some accounts may only write to an existing one."""
    from mlflow.exceptions import MlflowException

    with aliases.missing_is_nothing():
        client.get_registered_model(name)
        return
    try:
        client.create_registered_model(name, description=description.of_model(name))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise

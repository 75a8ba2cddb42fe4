"""Promotion moves ledger, alias and data together, or nothing."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError, NothingToDo, ReleaseError
from daybreak.contract.record_types import Champion, Evaluation, Night, Release, Training, Verdict, Version
from daybreak.contract.sections import Params
from daybreak.gate import judge
from daybreak.registry import packaging
from daybreak.rollout import promote
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.toy.nights import files_of_version, make_night
from tests.toy.stages import client, judge_night, promote_night, register_night, serving, versions

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def test_the_first_night_is_promoted_and_described(home: Path, release: Any) -> None:
    made = release(0, 1.0)
    assert made == Release(
        version=1,
        replaced=0,
        model_digest=made.model_digest,
        night="2025-01-10",
        files_digest=records.read(Version, records.RUN).files_digest,
        files=records.read(Version, records.RUN).files,
        lineage=made.lineage,
    )
    assert made.files_digest
    assert serving() == (1, 1)
    version = client().get_model_version("daybreak", "1")
    night = records.read(Night, records.RUN)
    assert version.description.startswith(
        "**Verdict: promote.** no champion yet: proven better than the baseline"
    )
    assert "| baseline/popularity |" in version.description
    assert "| time | 20 s | 21 s |" in version.description
    assert version.tags["night"] == night.id
    assert made.lineage["dvc_lock"] == records.digest(Path("dvc.lock"))
    assert len(version.tags) <= 8
    assert version.tags["status"] == "serving"
    assert version.tags["ledger"] == branch.ledger_tip(Home.here())
    assert "Trained on local (NVIDIA L4), with 0 restarts; training ended to its end" in version.description
    run = client().get_run(version.run_id)
    assert run.data.params["device"] == "NVIDIA L4"
    assert (run.data.params["machine"], run.data.params["strategy"]) == ("1 x local", "on-demand")
    assert run.data.params["held_out"] == f"{night.day}, 200 samples"
    assert run.data.params["compared_with"] == "no version"
    assert run.data.params["recipe"] == made.lineage["recipe"]
    assert (run.data.params["train.rate"], run.data.params["workload.use"]) == ("0.002", "toy:Toy")
    assert not {"region", "starts_from", "train.ema"} & run.data.params.keys()  # which are empty
    assert run.data.tags["mlflow.note.content"].startswith("**Verdict: promote.** no champion yet: proven")
    assert "[Version 1 of daybreak](#/models/daybreak/versions/1)" in run.data.tags["mlflow.note.content"]
    assert run.data.tags["version"] == "daybreak/1"
    assert run.data.tags["verdict"] == "promote"
    assert run.data.tags["mlflow.source.git.commit"] == night.code_commit
    logged = {one.tags[0].value: one.dataset for one in run.inputs.dataset_inputs}
    scored = records.read(Evaluation, records.RUN)
    assert logged.keys() == {"training", "eval"}
    assert {one.digest for one in logged.values()} == {made.lineage["data_digest"]} == {scored.data_digest}
    assert logged["eval"].name == f"held out, {night.day}"
    assert json.loads(logged["eval"].profile)["num_samples"] == scored.num_samples
    assert dict(client().get_registered_model("daybreak").aliases) == {"champion": 1}
    assert run.data.metrics["baseline/popularity"] < run.data.metrics["score"]
    judged = records.read(Verdict, records.RUN).effect
    assert judged and run.data.metrics["effect"] == pytest.approx(judged.mean)
    interval = run.data.metrics["effect_low"], run.data.metrics["effect_high"]
    assert interval == (pytest.approx(judged.low), pytest.approx(judged.high))
    parts = records.read(Evaluation, records.RUN).slices
    assert {packaging.key(f"slice/{part.name}") for part in parts} <= run.data.metrics.keys()
    assert {"recipe", "data_digest", "model_digest"} <= set(made.lineage)
    tip = branch.ledger_tip(Home.here())
    assert promote_night() == made  # called again, it ends the same
    assert branch.ledger_tip(Home.here()) == tip
    assert ledger.champion_at(Home.here(), tip) == Champion(**vars(made))  # which the next night sees


def test_of_two_nights_one_wins_and_the_other_changes_nothing(home: Path) -> None:
    first, second = (make_night(home, number, weight=1.0) for number in (0, 1))
    for folder in (first, second):
        os.chdir(folder)
        judge_night()
    promote_night()
    os.chdir(first)
    with pytest.raises(ReleaseError, match="nothing is changed"):
        promote_night()
    assert serving() == (2, 2)
    assert not records.path_of(Release, records.RUN).exists()


def test_records_of_another_version_or_model_are_refused(home: Path, release: Any, settings: Params) -> None:
    release(0, 1.0)
    verdict, version = records.read(Verdict, records.RUN), records.read(Version, records.RUN)
    night, recipe = records.read(Night, records.RUN), {"workload": settings.workload, "train": settings.train}
    other = Version(**{**vars(version), "number": 7})
    with pytest.raises(ReleaseError, match="verdict is on version 1 against 0, but tonight's is 7"):
        promote.promote(night, other, verdict, None, **recipe, home=Home.here())
    stale = Verdict(**{**vars(verdict), "action": "reject"})
    with pytest.raises(NothingToDo, match="the champion stays"):
        promote.promote(night, version, stale, None, **recipe, home=Home.here())
    before, evaluation = records.read(Training, records.RUN), records.read(Evaluation, records.RUN)
    unlike = replace(evaluation, model_digest="other")
    with pytest.raises(ReleaseError, match="evaluated other; run evaluate"):
        judge.gate(records.read(Night, records.RUN), unlike, version, None, settings, home=Home.here())
    records.write(unlike, records.RUN)
    with pytest.raises(ReleaseError, match=r"evaluation.json is of model other"):
        register_night()
    records.write(evaluation, records.RUN)
    records.write(replace(before, model_digest="x"), records.RUN)
    with pytest.raises(DataError, match=r"training.json says x"):
        register_night()
    assert versions() == [1]


def test_a_version_whose_files_were_damaged_since_it_was_judged_is_not_promoted(
    home: Path, release: Any
) -> None:
    release(0, 1.0)
    os.chdir(
        make_night(
            home, 1, weight=1.0, champion=ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
        )
    )
    assert judge_night().action == "promote"
    weights = next(files_of_version(home, 2).rglob("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(ReleaseError, match="the files of models:/daybreak/2 have digest"):
        promote_night()
    assert serving() == (1, 1)

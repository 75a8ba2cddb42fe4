import contextlib
import itertools
import json
import os
import pty
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daybreak import cli
from daybreak.contract import records
from daybreak.contract.errors import DataError, JobError, NothingToDo, ParamsError, ReleaseError
from daybreak.contract.params import Params
from daybreak.contract.record_types import (
    Chain,
    Champion,
    Chosen,
    Dataset,
    Difference,
    Evaluation,
    Night,
    Release,
    Training,
    Verdict,
    Version,
)
from daybreak.evaluation import evaluator
from daybreak.evaluation.scores import read_scores
from daybreak.extensions.care.restore import restore
from daybreak.extensions.lineage import provenance
from daybreak.gate import judge, watch
from daybreak.registry import aliases
from daybreak.report import links, publisher
from daybreak.rollout import promote, release_journal, rollback
from daybreak.storage import branch, ledger, ledger_notes, mlflow_client
from daybreak.storage.home import Home
from tests.release.conftest import evaluate_night, judge_night, promote_night, register_night
from tests.release.folders import files_of_version, make_night

ROOT = Path(__file__).parents[2]
# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def client() -> Any:
    from mlflow import MlflowClient

    return MlflowClient(mlflow_client.tracking_uri(Home.here()))


def versions() -> list[int]:
    return sorted(int(version.version) for version in client().search_model_versions("name = 'daybreak'"))


def serving() -> tuple[int, int]:
    """What the ledger and what the alias says."""
    now = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    return now.version if now else 0, aliases.alias(client(), "daybreak")


def test_the_first_night_is_promoted_and_described(home: Path, release: Any) -> None:
    made = release(0, 1.0)
    assert made == Release(
        version=1,
        replaced=0,
        model_digest=made.model_digest,
        night="2025-01-10",
        files_digest=records.read(Version, records.RUN).files_digest,
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
    assert version.tags["code_commit"] == night.code_commit
    assert version.tags["dvc_lock"] == records.digest(Path("dvc.lock"))
    assert version.tags["status"] == "serving"
    assert version.tags["ledger"] == branch.ledger_tip(Home.here())
    assert "Trained on local (NVIDIA L4), 0 restarts" in version.description
    run = client().get_run(version.run_id)
    assert run.data.params["device"] == "NVIDIA L4"
    assert (run.data.params["machine"], run.data.params["strategy"]) == ("1 x local", "on-demand")
    assert run.data.tags["version"] == "daybreak/1"
    assert run.data.tags["verdict"] == "promote"
    assert run.data.tags["mlflow.source.git.commit"] == night.code_commit
    (logged,) = run.inputs.dataset_inputs
    assert (logged.dataset.digest, logged.tags[0].value) == (version.tags["data_digest"], "training")
    assert dict(client().get_registered_model("daybreak").aliases) == {"champion": 1}
    assert run.data.metrics["baseline/popularity"] < run.data.metrics["score"]
    assert {"recipe", "data_digest", "model_digest"} <= set(made.lineage)
    tip = branch.ledger_tip(Home.here())
    assert promote_night() == made  # called again, it ends the same
    assert branch.ledger_tip(Home.here()) == tip
    assert ledger.champion_at(Home.here(), tip) == Champion(**vars(made))  # which the next night sees


def test_registering_again_after_a_kill_makes_no_second_version(home: Path) -> None:
    os.chdir(make_night(home, 0, weight=1.0))
    judge_night()
    assert register_night() == register_night() == records.read(Version, records.RUN)
    assert versions() == [1]
    assert len(client().search_runs([client().get_experiment_by_name("daybreak").experiment_id])) == 1


def installed(folder: Path) -> Path:
    """Returns a folder with the entry points of this package, as pip writes them where it is installed."""
    about = folder / "site" / "daybreak_entry_points-0.dist-info"
    about.mkdir(parents=True)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        line for name, group in groups.items()
        for line in (f"[{name}]", *(f"{key} = {value}" for key, value in group.items()))
    ]  # fmt: skip
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: daybreak-entry-points\nVersion: 0\n")
    return about.parent


def test_a_version_holds_no_pickle_and_scores_in_a_clean_process_as_it_was_trained(
    home: Path, release: Any, tmp_path: Path
) -> None:
    release(0, 0.9)
    artifacts = home / "var" / "artifacts"
    names = [path.name for path in artifacts.rglob("*") if path.is_file()]
    assert "model.safetensors" in names
    assert "served.py" in names
    assert [name for name in names if name.endswith(".py")] == ["served.py"]
    assert names.count("code.zip") == 1
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".pth", ".bin"))]
    code = (
        "import json, mlflow, pandas, sys; "
        "model = mlflow.pyfunc.load_model('models:/daybreak@champion'); "
        "scores = model.predict(pandas.DataFrame({'sample': range(50)}), params={'folder': sys.argv[1]}); "
        "print(json.dumps([float(score) for score in scores]))"
    )
    environment = os.environ | {"PYTHONPATH": str(installed(tmp_path))}
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path("data/arrays").resolve())],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**environment, "MLFLOW_TRACKING_URI": mlflow_client.tracking_uri(Home.here())},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    scores = read_scores()
    assert scores is not None
    np.testing.assert_allclose(json.loads(done.stdout.splitlines()[-1]), scores["challenger"][:50], atol=1e-6)


def test_a_worse_model_is_refused_and_changes_nothing(home: Path, release: Any) -> None:
    release(0, 1.0)
    assert release(1, 0.2) is None
    assert serving() == (1, 1)
    version = client().get_model_version("daybreak", "2")
    assert version.tags["status"] == "rejected"
    assert version.description.startswith("**Verdict: reject.** refresh: worse than the champion")
    assert aliases.alias(client(), "daybreak", "challenger") == 0


def test_a_refresh_is_promoted_and_a_changed_recipe_is_not(home: Path, release: Any) -> None:
    release(0, 1.0)
    assert release(1, 1.0).replaced == 1
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    folder = make_night(home, 2, weight=1.0, champion=champion)
    os.chdir(folder)
    Path("params.yaml").write_text(Path("params.yaml").read_text() + "train: {rate: 0.5}\n")
    assert judge_night().reason.startswith("inconclusive: not proven better than the champion")


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
    other = Version(**{**vars(version), "number": 7})
    with pytest.raises(ReleaseError, match="verdict is on version 1 against 0, but tonight's is 7"):
        promote.promote(records.read(Night, records.RUN), other, verdict, None, settings, home=Home.here())
    stale = Verdict(**{**vars(verdict), "action": "reject"})
    with pytest.raises(NothingToDo, match="the champion stays"):
        promote.promote(records.read(Night, records.RUN), version, stale, None, settings, home=Home.here())
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


def judged_night(home: Path, release: Any, settings: Params) -> tuple[Night, tuple[Any, ...], Params]:
    """A night after one that promoted, what `gate` reads of it, and params of another recipe."""
    release(0, 1.0)
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    os.chdir(make_night(home, 1, weight=1.0, champion=champion))
    judge_night()
    night, inputs = (
        records.read(Night, records.RUN),
        (records.read(Evaluation, records.RUN), records.read(Version, records.RUN), champion),
    )
    another = settings.model_copy(update={"train": settings.train.model_copy(update={"epochs": 9})})
    return night, inputs, another


def test_what_earlier_nights_proved_better_is_judged_as_a_refresh_and_spends_no_chance_of_a_recipe(
    home: Path, release: Any, settings: Params
) -> None:
    night, inputs, another = judged_night(home, release, settings)
    tried = judge.gate(night, *inputs, another, home=Home.here())
    assert (tried.action, tried.false_promotion_chance) == ("reject", 0.025)
    chosen = Chosen(values={"workload.width": 128}, rest="", is_refresh=True)
    bought = judge.gate(replace(night, chosen=chosen), *inputs, another, home=Home.here())
    assert (bought.action, bought.false_promotion_chance) == ("promote", None), bought.reason


@pytest.mark.parametrize(("days", "action"), [(0, "promote"), (1, "reject")])
def test_a_model_of_data_that_ends_before_the_champions_is_not_a_refresh(
    home: Path, release: Any, settings: Params, days: int, action: str
) -> None:
    night, inputs, _ = judged_night(home, release, settings)
    of_champion = ledger.history(Home.here())[0].dataset
    assert of_champion
    earlier = of_champion.last_day - timedelta(days)
    dataset = replace(records.read(Dataset, records.RUN), last_day=earlier)
    verdict = judge.gate(night, *inputs, settings, dataset=dataset, home=Home.here())
    older = (
        f"its data ends on {earlier}, and that of version 1 on {of_champion.last_day}, so it is not a refresh"
    )
    assert (verdict.action, older in verdict.reason) == (action, bool(days)), verdict.reason
    assert verdict.false_promotion_chance == (0.025 if days else None)


def test_the_verdict_on_another_recipe_says_what_was_changed_and_how_to_declare_it_the_same(
    home: Path, release: Any, settings: Params
) -> None:
    night, inputs, another = judged_night(home, release, settings)
    verdict = judge.gate(night, *inputs, another, home=Home.here())
    assert verdict.reason.endswith(
        "; the recipe is not that of version 1 (train.epochs 3.0 -> 9.0); if it learns the same, declare "
        'it: daybreak same-recipe --reason "why it does"'
    )
    assert "same-recipe" not in judge.gate(night, *inputs, settings, home=Home.here()).reason


def test_a_night_that_goes_on_after_it_was_closed_has_the_same_verdict(
    home: Path, release: Any, settings: Params
) -> None:
    """Its own entry of the ledger is none of an earlier night."""
    night, inputs, another = judged_night(home, release, settings)
    first = judge.gate(night, *inputs, another, home=Home.here())
    records.write(first, records.RUN)
    ledger.commit_night(Home.here(), night, message="promote failed")
    again = judge.gate(night, *inputs, another, home=Home.here())
    assert (first.false_promotion_chance, replace(again, decided_at=first.decided_at)) == (0.025, first)


def test_rollback_moves_alias_and_data_back_and_once_more(home: Path, release: Any, settings: Params) -> None:
    for number in range(3):
        release(number, 1.0)
    os.chdir(home)
    made = rollback.rollback(Home.here(), settings, reason="customers complain")
    assert (made.version, made.replaced, made.night) == (2, 3, "2025-01-11")
    assert serving() == (2, 2)
    assert "data of night 1" in str(branch.text_at(Home.here(), branch.ledger_tip(Home.here()), "dvc.lock"))
    assert client().get_model_version("daybreak", "3").tags["status"] == "replaced"
    assert "rolled back from version 3 to 2: customers complain" in (
        client().get_model_version("daybreak", "3").description
    )
    assert rollback.rollback(Home.here(), settings, reason="a test").version == 1
    assert rollback.rollback(Home.here(), settings, to=3, reason="a test").version == 3
    assert serving() == (3, 3)
    with pytest.raises(NothingToDo, match="version 3 serves already"):
        rollback.rollback(Home.here(), settings, to=3, reason="a test")
    assert rollback.rollback(Home.here(), settings, to="2025-01-11", reason="a test").version == 2
    with pytest.raises(ReleaseError, match=r"monday is not a version, nor a night .*; the newest that made"):
        rollback.rollback(Home.here(), settings, to="monday", reason="a test")
    with pytest.raises(ReleaseError, match="version 9 was never promoted; choose one of: 1, 2, 3"):
        rollback.rollback(Home.here(), settings, to=9, reason="a test")


def test_a_rollback_to_a_version_whose_files_are_gone_is_refused_and_changes_nothing(
    home: Path, release: Any, settings: Params
) -> None:
    release(0, 1.0)
    release(1, 1.0)
    os.chdir(home)
    shutil.rmtree(files_of_version(home, 1))
    tip = branch.ledger_tip(Home.here())
    with pytest.raises(ReleaseError, match=r"daybreak/1.* restore MLflow's artifacts"):
        rollback.rollback(Home.here(), settings, reason="a test")
    assert (
        serving(),
        branch.ledger_tip(Home.here()),
        release_journal.journal(Home.here()).path.exists(),
    ) == (
        (2, 2),
        tip,
        False,
    )


def test_an_alias_moved_by_hand_to_a_version_whose_files_are_gone_is_not_adopted(
    home: Path, release: Any, settings: Params
) -> None:
    release(0, 1.0)
    release(1, 1.0)
    os.chdir(home)
    shutil.rmtree(files_of_version(home, 1))
    client().set_registered_model_alias("daybreak", "champion", "1")
    edits = settings.watch.model_copy(update={"alias_edits": "adopt"})
    said = watch.watch(Home.here(), settings.model_copy(update={"watch": edits})).reason
    assert "moved back to version 2" in said and "restore MLflow's artifacts" in said
    assert serving() == (2, 2)


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


def test_a_ledger_whose_champion_has_no_files_is_not_restored_without_a_word(
    home: Path, release: Any, settings: Params
) -> None:
    release(0, 1.0)
    release(1, 1.0)
    os.chdir(home)
    shutil.rmtree(files_of_version(home, 2))
    subprocess.run(["git", "update-ref", branch.BRANCH, f"{branch.BRANCH}~1"], cwd=home, check=True)
    said = "\n".join(restore(Home.here(), settings))
    assert "look at this first: version 2 would serve, and the files of models:/daybreak/2" in said


def test_a_rollback_needs_a_reason(settings: Params, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ParamsError, match=r"a rollback needs a reason, .*; give --reason TEXT"):
        rollback.rollback(Home.here(), settings, reason="  ")
    with pytest.raises(SystemExit):
        cli.main(["rollback"])
    assert "the following arguments are required: --reason" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "serves"), [("n", 2), ("y", 1)])
def test_a_person_at_a_terminal_is_asked_before_a_rollback(
    home: Path, release: Any, settings: Params, monkeypatch: pytest.MonkeyPatch, answer: str, serves: int
) -> None:
    release(0, 1.0)
    release(1, 1.0)
    os.chdir(home)
    person, here = pty.openpty()
    os.write(person, f"{answer}\n".encode())
    with os.fdopen(here) as given, os.fdopen(os.dup(here), "w") as shown, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", given)
        patch.setattr(sys, "stderr", shown)
        with contextlib.suppress(NothingToDo):
            rollback.rollback(Home.here(), settings, reason="a test")
    asked = ""
    while "[y/N]" not in asked:  # what a person typed comes back first, in a piece of its own or not
        asked += os.read(person, 1000).decode()
    os.close(person)
    assert "Version 2 of daybreak serves. Let version 1, of night 2025-01-10, serve again? [y/N]" in asked
    assert serving() == (serves, serves)


def test_after_a_rollback_the_pages_say_what_serves_now_here_and_in_mlflow(
    home: Path, release: Any, settings: Params
) -> None:
    release(0, 1.0)
    release(1, 1.0)
    night, version = records.read(Night, records.RUN), records.read(Version, records.RUN)
    publisher.publish_closed(Home.here())
    page = home / "nights" / night.id / links.PAGE
    assert ">Roll back<" in page.read_text()
    os.chdir(home)
    rollback.rollback(Home.here(), settings, reason="customers complain")
    publisher.publish_home(Home.here())
    kept = (files_of_version(home, version.number).parent / links.PAGE.name).read_text()
    for text in (page.read_text(), kept):
        assert "rolled back" in text and "customers complain" in text
        assert ">Roll back<" not in text


def test_the_page_of_a_replaced_version_offers_no_rollback_once_the_night_is_over(
    home: Path, release: Any
) -> None:
    for number, weight in enumerate((1.0, 1.0, 0.2, 1.0)):  # a night between them promotes nothing
        release(number, weight)
        publisher.publish_closed(Home.here())
        if number == 1:
            page = Path(links.PAGE).absolute()
            assert ">Roll back<" in page.read_text()
    assert ">Roll back<" not in page.read_text()


def test_the_registered_model_says_what_it_is(home: Path, release: Any) -> None:
    release(0, 1.0)
    assert "**daybreak** is trained anew each night" in client().get_registered_model("daybreak").description


def test_the_version_of_a_night_that_failed_before_its_gate_is_no_challenger(
    home: Path, release: Any, settings: Params
) -> None:
    release(0, 1.0)
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    os.chdir(make_night(home, 1, weight=1.0, champion=champion))
    inputs = (
        records.read(Dataset, records.RUN),
        records.read(Training, records.RUN),
        champion,
        settings.workload.make(),
    )
    records.write(
        evaluator.evaluate(*inputs, settings.evaluate, registered=settings.register_, home=Home.here()),
        records.RUN,
    )
    register_night()
    assert aliases.alias(client(), "daybreak", "challenger") == 2
    night = records.read(Night, records.RUN)
    records.write(replace(records.read(Verdict, home / "nights/2025-01-10" / records.RUN), action="no data",
                          challenger=0, reason="gate failed: no space left"), records.RUN)  # fmt: skip
    ledger.commit_night(Home.here(), night, message="gate failed")
    publisher.publish_closed(Home.here())
    version = client().get_model_version("daybreak", "2")
    assert (version.tags["status"], aliases.alias(client(), "daybreak", "challenger")) == ("rejected", 0)
    assert version.description.startswith("**Verdict: no data.** gate failed: no space left.")


def test_a_request_that_is_made_again_goes_back_once(home: Path, release: Any, settings: Params) -> None:
    for number in range(3):
        release(number, 1.0)
    os.chdir(home)
    first = rollback.rollback(Home.here(), settings, reason="complaints", by="ann", once="run 7")
    assert rollback.rollback(Home.here(), settings, reason="complaints", by="ann", once="run 7") == first
    assert serving() == (2, 2)
    assert rollback.rollback(Home.here(), settings, reason="complaints", by="ann", once="run 8").version == 1


def test_the_night_after_a_rollback_follows_it(home: Path, release: Any, settings: Params) -> None:
    release(0, 1.0)
    release(1, 1.0)
    os.chdir(home)
    rollback.rollback(Home.here(), settings, reason="a test", hold_days=0)
    made = release(2, 1.0)
    assert (made.version, made.replaced) == (3, 1)
    assert [entry.rollback for entry in ledger.history(Home.here())] == [False, True, False, False]
    with pytest.raises(ReleaseError, match="versions that serve or served are 1, 3"):
        rollback.rollback(Home.here(), settings, steps=2, reason="a test")


def test_with_nothing_promoted_there_is_nothing_to_roll_back(
    home: Path, release: Any, settings: Params
) -> None:
    with pytest.raises(ReleaseError, match="no version was ever promoted"):
        rollback.rollback(Home.here(), settings, reason="a test")
    release(0, 1.0)
    with pytest.raises(ReleaseError, match=r"cannot take back 1 promotion: .* are 1;"):
        rollback.rollback(Home.here(), settings, reason="a test")


def test_watch_finishes_what_was_interrupted_and_reverts_edits_by_hand(
    home: Path, release: Any, settings: Params
) -> None:
    assert watch.watch(Home.here(), settings).reason == "no version was ever promoted"
    for number in range(2):
        release(number, 1.0)
    os.chdir(home)
    assert watch.watch(Home.here(), settings).reason == "no night has compared version 2 with version 1 yet"
    client().set_registered_model_alias("daybreak", "champion", "1")
    reporting = settings.model_copy(
        update={"watch": settings.watch.model_copy(update={"alias_edits": "report"})}
    )
    assert "moved by hand to version 1, the ledger says 2" in watch.watch(Home.here(), reporting).reason
    assert serving() == (2, 1)
    assert "moved by hand to version 1, moved back to version 2" in watch.watch(Home.here(), settings).reason
    edits = [text for name, text in provenance.why(Home.here(), 2) if name == "by hand"]
    assert [text.partition("UTC: ")[2] for text in edits] == [
        "alias champion was moved by hand to version 1, moved back to version 2"
    ]
    assert [str(note) for note in ledger_notes.read(Home.here())] == edits
    assert serving() == (2, 2)
    adopting = settings.model_copy(
        update={"watch": settings.watch.model_copy(update={"alias_edits": "adopt"})}
    )
    client().set_registered_model_alias("daybreak", "champion", "1")
    assert "moved by hand to version 1, which the ledger adopted" in watch.watch(Home.here(), adopting).reason
    assert "to 1: the alias champion was moved by hand" in ledger.commits(Home.here())[0].subject
    assert "to 1: the alias champion was moved by hand)" in dict(provenance.why(Home.here(), 2))["served"]
    assert provenance.why(Home.here(), 1)[-3][1] == edits[0]
    assert serving() == (1, 1)
    rollback.rollback(Home.here(), settings, to=2, reason="a test")
    client().set_registered_model_alias("daybreak", "champion", "1")
    client().set_model_version_tag("daybreak", "2", "status", "challenger")
    assert "finished the release of version 2" in watch.watch(Home.here(), reporting).reason
    assert serving() == (2, 2)


def test_watch_rolls_back_a_champion_that_is_proven_worse(home: Path, release: Any, settings: Params) -> None:
    for number in range(2):
        release(number, 1.0)
    os.chdir(home)
    newest, *before = ledger.history(Home.here())
    assert newest.verdict
    lost = Difference(mean=-0.2, error=0.001)
    chain = Chain(anchor=1, since=newest.night.day, margin=0.03, step=lost, challenger=lost)
    compared = replace(newest, verdict=replace(newest.verdict, chain=chain))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch.ledger, "history", lambda home, limit=None: [compared, *before])
        seen = watch.watch(Home.here(), settings)
    assert (seen.outcome, seen.serving, seen.predecessor) == ("rolled back", 2, 1)
    assert seen.effect is not None and seen.effect < 0  # serving - predecessor
    assert serving() == (1, 1)
    again = watch.watch(Home.here(), settings)
    assert again.outcome == "no data"
    assert serving() == (1, 1)


def test_a_night_has_one_run_however_often_it_is_asked_for(home: Path) -> None:
    assert (
        mlflow_client.run_of(Home.here(), "2025-01-10")
        == mlflow_client.run_of(Home.here(), "2025-01-10")
        != mlflow_client.run_of(Home.here(), "2025-01-11")
    )


def test_an_mlflow_that_does_not_answer_is_one_sentence_without_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mlflow_client, "FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    with pytest.raises(JobError, match=r"MLflow at 127.0.0.1:9 does not answer after 5 tries: .*; start it"):
        mlflow_client.reachable(Home.here())
    with pytest.raises(JobError) as refusal:
        mlflow_client.run_of(Home.here(), "x")
    assert "secret" not in str(refusal.value)


def test_a_database_that_cannot_be_opened_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mlflow_client, "FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}")
    with pytest.raises(JobError, match=r"does not answer after 5 tries: .*directory"):
        mlflow_client.reachable(Home.here())


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


WRITES = (
    "create_model_version", "create_registered_model", "create_run", "log_artifact", "log_artifacts",
    "log_batch",
    "log_text", "set_model_version_tag", "set_registered_model_alias", "set_tag", "set_terminated",
    "update_model_version",
)  # fmt: skip


def killed_at_each_write(stage: Callable[[], Any], check: Callable[[], None]) -> int:
    """Run the stage, killed after its 1st, 2nd, ... write to MLflow, again and again until it ends."""
    from mlflow import MlflowClient

    for reached in itertools.count(1):
        left = [reached]

        def counting(write: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def written(*args: Any, **named: Any) -> Any:
                done = write(*args, **named)
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return done

            return written

        with pytest.MonkeyPatch.context() as patch:
            for name in WRITES:
                patch.setattr(MlflowClient, name, counting(getattr(MlflowClient, name)))
            try:
                stage()
            except Killed:
                check()
            else:
                return reached
    raise AssertionError


def test_register_killed_after_any_write_ends_with_one_version(home: Path, settings: Params) -> None:
    os.chdir(make_night(home, 0, weight=1.0))
    evaluate_night()
    assert killed_at_each_write(register_night, lambda: None) > 10
    assert versions() == [1]
    assert client().get_model_version("daybreak", "1").tags["status"] == "challenger"

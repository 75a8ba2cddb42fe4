"""A ledger that was lost is not taken for an empty one."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from daybreak import check, cli, runner
from daybreak.contract import records
from daybreak.contract.errors import JobError, NothingToDo, ReleaseError
from daybreak.contract.record_types import Evaluation, Night, Version
from daybreak.contract.sections import Params
from daybreak.extensions.care.restore import restore
from daybreak.gate import judge
from daybreak.report import publisher
from daybreak.rollout.lost_ledger import expect_ledger
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from tests.toy.nights import files_of_version
from tests.toy.stages import Released

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]


def tips_after(released: Released, *weights: float) -> list[str]:
    """Returns the newest commit of the ledger after each of these nights."""
    tips = []
    for num in range(1, len(weights) + 1):
        released(*weights[:num])  # each is the one before and a night
        tips.append(branch.ledger_tip(Home.here()))
    return tips


@pytest.fixture
def lost(home: Path, released: Released) -> str:
    """Two versions were promoted and a third was not; then the branch was deleted. Its newest commit."""
    released(0.2, 1.0, 0.1)
    tip = branch.ledger_tip(Home.here())
    subprocess.run(["git", "update-ref", "-d", branch.BRANCH], cwd=home, check=True)
    return tip


def test_a_ledger_that_was_deleted_is_refused_and_named_until_it_is_back(
    home: Path, lost: str, settings: Params, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    night = (
        records.read(Night, records.RUN),
        records.read(Evaluation, records.RUN),
        records.read(Version, records.RUN),
    )  # of the third night
    with pytest.raises(ReleaseError, match="alias champion names version 2 of daybreak, promoted by"):
        judge.gate(*night, None, settings, home=Home.here())
    monkeypatch.chdir(home)
    assert cli.main(["watch"]) == 1
    assert "daybreak restore" in caplog.text
    with pytest.raises(ReleaseError, match="the git branch nights, is gone"):
        runner.run(Home.here(), "open", night="next")
    with pytest.raises(ReleaseError, match="the git branch nights, is gone"):
        runner.run(
            Home.here(), "close"
        )  # of the night that could not be opened, which would begin another ledger
    assert not branch.ledger_tip(Home.here())
    monkeypatch.chdir(home)
    with pytest.raises(ReleaseError, match="the git branch nights, is gone"):
        runner.run(Home.here(), "rollback", reason="a test")
    assert cli.main(["restore"]) == 0
    assert not branch.ledger_tip(Home.here())
    assert cli.main(["restore", "--yes"]) == 0
    assert branch.ledger_tip(Home.here()) == lost
    assert cli.main(["restore", "--yes"]) == NothingToDo.exit_status
    assert cli.main(["watch"]) == 0
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert champion
    assert champion.version == 2


@pytest.mark.parametrize("which", ["champion", "challenger"])
def test_an_alias_of_a_team_s_own_version_is_not_taken_for_a_lost_ledger_and_not_taken_over(
    home: Path, settings: Params, which: str
) -> None:
    with mlflow_client.session(Home(home)) as client:
        client.create_registered_model("daybreak")
        client.create_model_version("daybreak", "s3://team/model", await_creation_for=0)
        client.set_registered_model_alias("daybreak", which, "1")
    with pytest.raises(ReleaseError, match=f"alias {which} names version 1 of daybreak, which no night made"):
        expect_ledger(Home.here(), settings.register_, opens=True)
    found = check._ledger(Home.here(), settings.register_)
    assert (found.ok, "which no night made; remove the alias" in found.text) == (False, True)


def test_check_finds_that_mlflow_is_another_than_the_one_of_the_champion(
    home: Path, released: Released, settings: Params, empty_store: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    released(1.0)
    assert check._ledger(Home(home), settings.register_).ok
    other = shutil.copy(empty_store, tmp_path / "other.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
    found = check._ledger(Home(home), settings.register_)
    said = f"MLflow at sqlite:///{other} lacks what serves, version 1 of daybreak; set register.tracking_uri"
    assert (found.ok, found.text.partition(" or MLFLOW")[0]) == (False, said)


def test_a_ledger_that_was_reset_behind_the_champion_is_refused(
    home: Path, released: Released, settings: Params
) -> None:
    before, tip = tips_after(released, 0.2, 1.0)
    subprocess.run(["git", "update-ref", branch.BRANCH, before], cwd=home, check=True)
    for opens in (False, True):
        with pytest.raises(ReleaseError, match=f"commit {tip[:9]}; .* ends at {before[:9]} without it"):
            expect_ledger(Home.here(), settings.register_, opens=opens)


def test_a_ledger_that_was_reset_behind_a_night_that_promoted_nothing_is_refused(
    home: Path, released: Released, settings: Params
) -> None:
    before, commit = tips_after(released, 1.0, 0.1)
    publisher.publish_closed(Home.here())  # as `close` does
    subprocess.run(["git", "update-ref", branch.BRANCH, before], cwd=home, check=True)
    with pytest.raises(ReleaseError, match=f"version 2 of daybreak is of the ledger's commit {commit[:9]}"):
        expect_ledger(Home.here(), settings.register_)


def test_a_commit_that_only_mlflow_names_is_shown_and_taken_only_by_name(
    home: Path, released: Released, settings: Params
) -> None:
    released(1.0)
    tip = branch.ledger_tip(Home.here())
    subprocess.run(["git", "branch", "kept", tip], cwd=home, check=True)  # so that it is not unreachable
    subprocess.run(["git", "update-ref", "-d", branch.BRANCH], cwd=home, check=True)
    with pytest.raises(ReleaseError, match=f"only MLflow names .* --commit {tip} --yes"):
        list(restore(Home.here(), settings.register_, yes=True))
    assert not branch.ledger_tip(Home.here())
    lines = list(restore(Home.here(), settings.register_, commit=tip, yes=True))
    assert branch.ledger_tip(Home.here()) == tip
    assert f"MLflow, by version 1: {tip[:9]}, night 2025-01-10" in "\n".join(lines)


def test_a_remote_that_has_the_ledger_is_named(
    home: Path, released: Released, settings: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released(1.0)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--branch", "main", str(home), str(clone)], check=True)
    monkeypatch.setenv("DAYBREAK_HOME", str(clone))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/another.db")
    with pytest.raises(ReleaseError, match="the remote origin has the branch nights at"):
        expect_ledger(Home.here(), settings.register_)
    assert not (tmp_path / "another.db").exists()
    assert "remote origin: " in "\n".join(restore(Home.here(), settings.register_, yes=True))
    with pytest.raises(JobError, match=r"another[.]db, the database of MLflow, is missing"):
        expect_ledger(Home.here(), settings.register_, opens=True)
    assert not (tmp_path / "another.db").exists()


def test_a_first_night_and_an_alias_moved_by_hand_are_no_loss(
    home: Path, release: Any, settings: Params
) -> None:
    expect_ledger(Home.here(), settings.register_)
    release(0, 0.2)
    release(1, 1.0)
    from daybreak.storage.mlflow_client import session

    with session(Home.here()) as client:
        client.set_registered_model_alias("daybreak", "champion", "1")
    expect_ledger(Home.here(), settings.register_)


def test_a_ledger_whose_champion_has_no_files_is_not_restored_without_a_word(
    settings: Params, home_of_two: Path
) -> None:
    shutil.rmtree(files_of_version(home_of_two, 2))
    subprocess.run(["git", "update-ref", branch.BRANCH, f"{branch.BRANCH}~1"], cwd=home_of_two, check=True)
    said = "\n".join(restore(Home.here(), settings.register_))
    assert "look at this first: version 2 would serve, and models:/daybreak/2 has none of its 8 files" in said

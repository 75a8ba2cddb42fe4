"""Homes that are copied or moved: a copy leaves the original alone, and a moved one loses nothing."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from daybreak import check
from daybreak.backends.local import Local
from daybreak.contract import params
from daybreak.contract.backend import Job
from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Rental
from daybreak.contract.record_types import Version
from daybreak.rollout import prune
from daybreak.storage import address, checkout, mlflow_client, snapshots
from daybreak.storage.home import Home
from tests.backends.small_place import MACHINE, Cloud, SmallPlace

ROOT = Path(__file__).parents[2]
NIGHT = "2026-11-24"


@pytest.fixture
def home(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a night's folder and version; a stage in a folder finds the home by git."""
    monkeypatch.delenv("DAYBREAK_HOME")
    monkeypatch.delenv("MLFLOW_ARTIFACTS_DESTINATION", raising=False)
    (repository / ".dvc").mkdir(exist_ok=True)
    address.settle(repository)
    folder = repository / "nights" / NIGHT
    checkout.add_worktree(repository, folder, checkout.git("rev-parse", "HEAD"))
    (folder / ".dvc").mkdir(exist_ok=True)
    (repository / ".dvc" / "cache").mkdir(exist_ok=True)
    snapshots.share_cache(folder, repository / ".dvc" / "cache")
    with mlflow_client.session(Home.here()) as client:
        run = mlflow_client.find_or_make_run(Home.here(), client, NIGHT)
        client.log_text(run, "weights", "model/model.safetensors")
        source = f"{client.get_run(run).info.artifact_uri}/model"
        client.create_registered_model("m")
        client.create_model_version("m", source, tags={"night": NIGHT}, await_creation_for=0)
    return repository


@pytest.fixture
def copy(home: Path) -> Path:
    """A copy of that home, beside it."""
    return Path(shutil.copytree(home, home.with_name("copy"), symlinks=True))


def models(home: Path) -> list[str]:
    return [path.read_text() for path in (home / "var" / "artifacts").rglob("model.safetensors")]


def test_a_copy_deletes_the_models_of_the_copy_alone(home: Path, copy: Path) -> None:
    with mlflow_client.session(Home(copy)) as client:
        run = client.get_model_version("m", "1").source.split("/")[1]
    version = Version(name="m", number=1, night=NIGHT, data_digest="", model_digest="", run_id=run)
    assert prune._models(Home(copy), "m", [version], dry_run=False).num == 1
    assert (models(home), models(copy)) == (["weights"], [])


def test_what_a_copy_writes_to_a_version_of_the_original_stays_in_the_copy(
    home: Path, copy: Path, tmp_path: Path
) -> None:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    (tmp_path / "model.safetensors").write_text("other")
    with mlflow_client.session(Home(copy)) as client:
        store = get_artifact_repository(client.get_model_version("m", "1").source)
        store.log_artifact(str(tmp_path / "model.safetensors"))  # as an erasure does
    assert (models(home), models(copy)) == (["weights"], ["other"])


def test_the_files_of_a_version_are_found_where_a_home_was_moved_to(home: Path, tmp_path: Path) -> None:
    import mlflow

    moved = home.rename(tmp_path / "moved here, with 100 % spaces#")
    with mlflow_client.session(Home(moved)):
        folder = mlflow.artifacts.download_artifacts("models:/m/1", dst_path=str(tmp_path / "fetched"))
    assert (Path(folder) / "model.safetensors").read_text() == "weights"


def test_a_night_of_a_copy_is_one_of_the_copy(
    home: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy / "nights" / NIGHT)
    assert Home.here().folder == copy
    assert checkout.git("rev-parse", "--path-format=absolute", "--git-common-dir") == str(copy / ".git")
    assert snapshots._waiting(lambda repo: Path(repo.cache.local.path)).is_relative_to(copy)


def test_a_copy_that_forgets_its_nights_leaves_those_of_the_original(home: Path, copy: Path) -> None:
    checkout.remove_worktrees(copy, [copy / "nights" / NIGHT])
    assert len(checkout.git("worktree", "list", folder=copy).splitlines()) == 1
    assert checkout.git("rev-parse", "HEAD", folder=home / "nights" / NIGHT)
    assert len(checkout.git("worktree", "list", folder=home).splitlines()) == 2


def test_git_does_not_forget_the_nights_of_a_home_that_was_moved(home: Path, tmp_path: Path) -> None:
    moved = home.rename(tmp_path / "moved")
    checkout.prune_worktrees(moved)
    listed = checkout.git("worktree", "list", "--porcelain", folder=moved)
    assert f"worktree {moved / 'nights' / NIGHT}\n" in listed


def test_a_copy_has_a_token_of_its_own_and_a_moved_home_keeps_its_own(
    home: Path, copy: Path, tmp_path: Path
) -> None:
    token = address.look(home).token
    of_copy = address.look(copy)
    assert (of_copy.token != token, of_copy.copy_of) == (True, str(home))
    assert address.look(copy) == of_copy
    assert address.look(home.rename(tmp_path / "moved")).token == token


@pytest.mark.parametrize(("variable", "ok"), [("", True), ("MLFLOW_TRACKING_URI", False)])
def test_check_says_of_what_a_home_is_a_copy_and_what_the_two_still_share(
    home: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, variable: str, ok: bool
) -> None:
    if variable:
        monkeypatch.setenv(variable, "http://mlflow")
    found = check._moved(copy, params.load(copy))
    assert found and found.ok == ok and f"this home is a copy of {home}" in found.text
    assert found.text.endswith("both use MLFLOW_TRACKING_URI; set them to others in one of the two") != ok
    assert check._moved(home, params.load(home)) is None


def test_check_says_where_a_moved_home_was(home: Path, tmp_path: Path) -> None:
    moved = home.rename(tmp_path / "moved")
    found = check._moved(moved, params.load(moved))
    assert found and found.ok and found.text.startswith(f"this home was at {home}; ")
    address.settle(moved)  # as the next night does
    assert check._moved(moved, params.load(moved)) is None


@pytest.fixture
def running(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The handle of a job on this machine, of a night of the home that is being trained."""
    monkeypatch.chdir(home / "nights" / NIGHT)
    job = Job(
        name="j",
        module="tests.backends.script",
        arguments=("sleep 60",),
        rental=Rental(machine="local"),
        folder="data/work/jobs/j",
        timeout_s=60,
        environment={"PYTHONPATH": str(ROOT)},
    )
    handle = Local(home=Home(home)).submit(job)
    yield handle
    Local(home=Home(home)).cancel(handle)


def test_a_copy_does_not_end_the_training_of_the_original(home: Path, running: str) -> None:
    copy = Local(home=Home(Path(shutil.copytree(home, home.with_name("copy"), symlinks=True))))
    assert copy.state(running) == "preempted"
    copy.cancel(running)
    assert Local(home=Home(home)).state(running) == "running"


def test_a_copy_does_not_end_a_rented_job_of_the_original(home: Path) -> None:
    cloud = Cloud()
    rental = Rental(machine=MACHINE.name, region=MACHINE.region)
    job = Job(
        name="j",
        module="tests.backends.script",
        arguments=("sleep 60",),
        rental=rental,
        folder=str(home / "nights" / NIGHT / "data/work/jobs/j"),
        timeout_s=60,
        environment={"PYTHONPATH": str(ROOT)},
    )
    handle = SmallPlace(cloud, home=Home(home)).submit(job)
    copy = Path(shutil.copytree(home, home.with_name("copy"), symlinks=True))
    (thing,) = cloud.things.values()
    try:
        place = SmallPlace(cloud, home=Home(copy))
        assert (place.live(), place.state(handle)) == ([], "preempted")
        place.cancel(handle)
        assert thing.process.poll() is None
        assert SmallPlace(cloud, home=Home(home)).state(handle) == "running"
    finally:
        thing.end()


def down(folder: Path) -> str:
    words = ["make", "--silent", "-f", ROOT / "Makefile", "down", f"DAYBREAK_HOME={folder}"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_down_in_a_copy_ends_nothing_of_the_original(home: Path, copy: Path) -> None:
    began = subprocess.Popen(["sleep", "60"], env={"DAYBREAK_UP": str(home)}, start_new_session=True)
    for folder in (home, copy):
        (folder / "var" / "supervisord.pid").write_text(str(began.pid))

    try:
        assert "Nothing is up" in down(copy)
        assert began.poll() is None
        assert "1 processes ended" in down(home)
    finally:
        began.kill()
        began.wait()


def test_make_down_ends_what_was_started_in_the_same_home_by_a_link(home: Path) -> None:
    link = home.with_name("link")
    link.symlink_to(home)
    for began_in, ended_in in ((link, home), (home, link)):
        began = subprocess.Popen(["sleep", "60"], env={"DAYBREAK_UP": str(began_in)}, start_new_session=True)
        try:
            assert "1 processes ended" in down(ended_in)
        finally:
            began.kill()
            began.wait()


def test_a_copied_member_of_a_fleet_does_not_write_to_the_versions_of_the_original(
    home: Path, copy: Path
) -> None:
    lead = home.parent / "lead"
    lead.mkdir()
    member = checkout.Membership(lead=str(lead), member=str(home), model="m", own_registry=False)
    member.write(home)
    shutil.copy(home / checkout.LEAD, copy / checkout.LEAD)
    assert checkout.membership(home) == member
    with pytest.raises(ParamsError, match=r"copied or moved from .*home, a member"):
        mlflow_client.tracking_uri(Home(copy))


def test_a_fleet_that_is_moved_as_a_whole_stays_one(home: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    (fleet / "lead").mkdir(parents=True)
    home.rename(fleet / "home")
    member = checkout.Membership(
        lead=str(fleet / "lead"), member=str(fleet / "home"), model="m", own_registry=False
    )
    member.write(fleet / "home")
    moved = fleet.rename(tmp_path / "moved")
    known = checkout.membership(moved / "home")
    assert known and (known.lead, known.member) == (str(moved / "lead"), str(moved / "home"))

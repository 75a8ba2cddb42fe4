"""Whoever writes to MLflow's store changes neither what is run nor which version is meant by a number."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from mlflow import MlflowClient

from daybreak import cli
from daybreak.contract import records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Version
from daybreak.registry import carried_code
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from tests.toy.nights import files_of_version
from tests.toy.stages import Released

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]


@pytest.fixture
def two(home: Path, released: Released) -> list[Version]:
    """Two versions, of which the second serves."""
    released(0.2, 1.0)
    return [records.read(Version, night / records.RUN) for night in sorted((home / "nights").iterdir())]


def files_of(number: int) -> Path:
    return files_of_version(Home.here().folder, number)


def fetched(version: Version, into: Path) -> Path:
    with mlflow_client.session(Home.here()):
        return carried_code.fetch(Home.here(), f"models:/daybreak/{version.number}", version, into=into)


def test_an_old_version_under_a_new_number_and_swapped_files_are_refused(
    two: list[Version], tmp_path: Path
) -> None:
    old, new = two
    kept = tmp_path / "kept"
    shutil.copytree(files_of(2), kept)
    shutil.rmtree(files_of(2))
    shutil.copytree(files_of(1), files_of(2))  # replayed
    with pytest.raises(ReleaseError, match=r"the ledger says"):
        fetched(new, tmp_path / "a")
    shutil.rmtree(files_of(1))
    shutil.copytree(kept, files_of(1))  # swapped
    with pytest.raises(ReleaseError, match=r"the ledger says"):
        fetched(old, tmp_path / "b")


def test_a_version_whose_source_was_pointed_at_another_is_refused(
    home: Path, two: list[Version], tmp_path: Path
) -> None:
    with sqlite3.connect(home / "var" / "mlflow.db") as database:
        sources = dict(database.execute("SELECT version, source FROM model_versions"))
        database.execute("UPDATE model_versions SET source = ?, storage_location = ?", (sources[1],) * 2)
    with pytest.raises(ReleaseError, match=r"the ledger says"):
        fetched(two[1], tmp_path / "a")


def test_a_version_without_files_is_refused(two: list[Version], tmp_path: Path) -> None:
    shutil.rmtree(files_of(2))
    with pytest.raises(ReleaseError, match=r"models:/daybreak/2 has none of its \d+ files at mlflow-artif"):
        fetched(two[1], tmp_path / "a")


def test_a_link_among_the_files_of_a_version_is_refused(two: list[Version], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    (files_of(2) / "MLmodel").unlink()
    (files_of(2) / "MLmodel").symlink_to(secret)
    with pytest.raises(ReleaseError, match=r"MLmodel is a link; restore") as refused:
        fetched(two[1], tmp_path / "a")
    assert "hunter2" not in str(refused.value)


def test_nobody_who_writes_to_mlflow_decides_which_version_serves(home: Path, two: list[Version]) -> None:
    """Alias, tags and the text of a verdict there are for show: the ledger says who serves."""
    client = MlflowClient(mlflow_client.tracking_uri(Home.here()))
    client.set_registered_model_alias("daybreak", "champion", "1")
    client.set_model_version_tag("daybreak", "1", "status", "champion")
    client.update_model_version("daybreak", "1", description="**Verdict: promote.**")
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert champion
    assert champion.version == 2
    assert cli.main(["watch"]) == 0
    assert client.get_model_version_by_alias("daybreak", "champion").version in (2, "2")

"""Files are on the disk before the ledger names them, also on a disk that loses what was not synced."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking._tracking_service.utils import _get_store

from daybreak.extensions.erasure.cached_rows import Objects
from daybreak.registry import packaging
from daybreak.storage import checkout, snapshots
from daybreak.storage.home import Home
from tests.disk import Disk, Tree

FULL = 2  # of SQLite's "PRAGMA synchronous"
DIGESTS = ("aa" * 16, "ab" * 16)


def of(tree: Tree) -> dict[str, bytes]:
    """The files of a tree by their paths."""
    files = {}
    for name, content in tree:
        inner = {name: content} if isinstance(content, bytes) else of(content)
        files |= (
            inner if isinstance(content, bytes) else {f"{name}/{key}": value for key, value in inner.items()}
        )
    return files


@pytest.fixture
def cache(repository: Path) -> Path:
    folder = repository / ".dvc" / "cache" / "files" / "md5"
    folder.mkdir(parents=True)
    return folder


def test_the_objects_of_a_night_are_on_the_disk_before_it_is_in_the_ledger(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(cache, monkeypatch)
    listing = json.dumps([{"md5": DIGESTS[0], "relpath": "part"}]).encode()
    written = {f"{DIGESTS[0][:2]}/{DIGESTS[0][2:]}": b"rows", f"cc/{'c' * 30}.dir": listing}
    for name, content in written.items():  # as DVC does, which syncs nothing
        (cache / name).parent.mkdir()
        (cache / name).write_bytes(content)
    Path("dvc.lock").write_text(f"stages: {{ingest: {{outs: [{{path: data/raw, md5: {'c' * 32}.dir}}]}}}}\n")
    assert written not in map(of, [min(disk.left(), key=len)])
    snapshots.sync(Home.here(), Path())
    assert [of(tree) for tree in disk.left()] == [written]


def test_a_partition_without_the_rows_is_on_the_disk_before_the_old_one_may_go(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / DIGESTS[0][:2]).mkdir()
    disk = Disk(cache, monkeypatch)
    name = f"{DIGESTS[0][:2]}/{DIGESTS[0][2:]}"

    def add() -> None:
        Objects(Home.here(), None, dry_run=False).add(DIGESTS[0], b"rows")

    for tree in disk.left_by(add):
        assert of(tree).get(name) in (None, b"rows"), "half an object under its name"
    assert [of(tree) for tree in disk.left()] == [{name: b"rows"}]


def test_the_files_of_a_version_are_on_the_disk_before_it_is_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "artifacts").mkdir()
    disk = Disk(tmp_path / "artifacts", monkeypatch)
    model = tmp_path / "artifacts" / "run" / "artifacts" / "model"
    model.mkdir(parents=True)
    (model / "MLmodel").write_text("flavors")  # as MLflow does, which syncs nothing
    written = {"run/artifacts/model/MLmodel": b"flavors"}
    assert all(of(tree) != written for tree in disk.left())
    packaging.sync(model.as_uri())
    assert [of(tree) for tree in disk.left()] == [written]


def test_what_mlflow_commits_is_on_the_disk(empty_store: Path, tmp_path: Path) -> None:
    store: Any = _get_store(f"sqlite:///{shutil.copy(empty_store, tmp_path)}")
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == FULL


def test_git_syncs_what_the_ledger_names(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = repository.parent / "trace"
    monkeypatch.setenv("GIT_TRACE2_EVENT", str(trace))
    checkout.git("hash-object", "-w", "--stdin", text="a record")
    monkeypatch.delenv("GIT_TRACE2_EVENT")
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    counts = {event["key"]: int(event["value"]) for event in events if event.get("category") == "fsync"}
    assert counts["fsync/hardware-flush"] == 1

"""Data and artifacts in a bucket: what a night leaves there, another clone has again."""

import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ruamel.yaml

from daybreak.contract import records
from daybreak.contract.errors import DataError, sentence
from daybreak.contract.records import digest as digest_of
from daybreak.storage import checkout, mlflow_client, snapshots
from daybreak.storage.home import Home
from tests import cloud_storage, s3_storage
from tests.bad_disks import full, in_memory
from tests.terminal import terminal

pytestmark = [
    pytest.mark.slow,  # the clients take seconds to import
    pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning"),  # dvc 3.67 on pygtrie 2.5
]

REMOTE = """
[core]
    analytics = false
    remote = bucket
['remote "bucket"']
    url = gs://bucket/dvc
    allow_anonymous_login = true
    projectname = p
"""
STAGES = "stages:\n  ingest: {cmd: 'true', outs: [data/raw]}\n"


@pytest.fixture
def storage() -> Iterator[cloud_storage.Store]:
    with cloud_storage.served() as store, cloud_storage.emulated(store):
        yield store


@pytest.fixture
def night(repository: Path, commit: Callable[[str], str], storage: cloud_storage.Store) -> Path:
    """A night whose data is recorded and whose remote is a bucket."""
    (repository / ".dvc" / "config").write_text(REMOTE)
    (repository / "dvc.yaml").write_text(STAGES)
    for day in ("2026-01-01", "2026-01-02"):
        (repository / "data" / "raw" / f"day={day}").mkdir(parents=True)
        (repository / "data" / "raw" / f"day={day}" / "part.parquet").write_bytes(day.encode() * 500)
    snapshots.record(Home.here(), "ingest")
    commit("Close a night")
    return repository


def test_what_a_night_pushed_is_restored_in_another_clone(
    night: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal() as screen:
        assert snapshots.push(Home.here())
        assert "copy data to DVC's remote" in screen()
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "--quiet", str(night), str(other)], check=True)
    monkeypatch.chdir(other)
    with terminal() as screen:
        snapshots.restore(Home.here(), ["data/raw"])
        assert "fetch data from DVC's remote:   0%" in screen()
    for path in (night / "data" / "raw").rglob("*.parquet"):
        assert (other / path.relative_to(night)).read_bytes() == path.read_bytes()
    assert len(list((other / "data" / "raw").rglob("*.parquet"))) == 2


def test_no_bar_of_dvc_is_among_what_a_night_prints(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVC_IGNORE_ISATTY", "1")  # it draws them as on a terminal
    (repository / "dvc.yaml").write_text(STAGES)
    (repository / "data" / "raw").mkdir(parents=True)
    for number in range(20):
        (repository / "data" / "raw" / f"{number}.txt").write_text(str(number))
    snapshots.record(Home.here(), "ingest")
    assert "%" not in capfd.readouterr().err


@pytest.fixture
def recorded(repository: Path) -> Path:
    """A folder under DVC, with links into the cache as a night has them; no remote."""
    (repository / "dvc.yaml").write_text(STAGES)
    snapshots.share_cache(repository, repository / ".dvc" / "cache")
    for day in ("2026-01-01", "2026-01-02"):
        (repository / "data" / "raw" / f"day={day}").mkdir(parents=True)
        (repository / "data" / "raw" / f"day={day}" / "part.parquet").write_bytes(day.encode() * 500)
    snapshots.record(Home.here(), "ingest")
    return repository


def test_what_is_recorded_is_a_link_into_the_cache(recorded: Path) -> None:
    """Or a copy that takes no room, on a disk that has those."""
    types = (recorded / ".dvc/config.local").read_text()
    files = list(Path("data/raw").rglob("*.parquet"))
    assert len(files) == 2
    assert "reflink" in types or all(file.stat().st_nlink == 2 for file in files)


@pytest.mark.parametrize("taken", ["", "a folder of all", "a file", "a link"])
def test_dvc_keeps_its_state_where_no_other_user_writes(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    (base := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    first = base / f"daybreak-dvc-{os.getuid()}"
    if taken == "a folder of all":
        first.mkdir()
        first.chmod(0o777)
    elif taken == "a file":
        first.touch()
    elif taken == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        first.symlink_to(tmp_path / "theirs")
    for _ in range(2):
        with snapshots.remote(recorded):
            pass
    (state,) = [each for each in base.iterdir() if each != first or not taken]
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert list(state.iterdir())
    assert taken != "a link" or not list((tmp_path / "theirs").iterdir())


def test_what_dvc_keeps_of_a_night_elsewhere_goes_with_its_folder(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    nights = [recorded / "nights" / name for name in ("one", "two")]
    for folder in (recorded, *nights):
        if folder != recorded:
            checkout.add_worktree(recorded, folder, checkout.git("rev-parse", "HEAD"))
        with snapshots.remote(folder):
            pass
    (own,) = (tmp_path / "tmp").iterdir()
    assert len(list(own.iterdir())) == 3
    snapshots.remove_nights(Home.here(), nights)
    assert not any(folder.exists() for folder in nights)
    assert len(list(own.iterdir())) == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_a_process_killed_while_dvc_writes_its_lock_leaves_it_as_it_was(
    recorded: Path, is_first: bool
) -> None:
    lock = Path("dvc.lock")
    Path("data/raw/day=2026-01-02/new.parquet").write_text("1")
    if is_first:
        lock.unlink()
    before = lock.read_text() if lock.exists() else None
    if not (pid := os.fork()):
        ruamel.yaml.YAML.dump = half_of_it  # type: ignore[method-assign]
        snapshots.record(Home.here(), "ingest")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert lock.read_text() == "schema: '2"
    snapshots.recover(Home.here())
    assert (lock.read_text() if lock.exists() else None) == before
    snapshots.record(Home.here(), "ingest")
    assert snapshots.is_current("ingest")


def test_objects_that_a_lost_power_left_torn_are_removed_and_what_rotted_before_is_not(
    recorded: Path,
) -> None:
    rotten, torn = (path for path in sorted((recorded / ".dvc/cache/files/md5").glob("??/*"))[:2])
    for path in (rotten, torn):
        path.chmod(0o644)
    rotten.write_bytes(b"rotten")
    time.sleep(0.05)  # the clock of the file system moves in steps
    records.replace_text(snapshots.BEFORE, snapshots.LOCK.read_text())
    torn.write_bytes(b"")
    torn.chmod(0o444)  # DVC would take it for whole
    snapshots.recover(Home.here())
    assert (rotten.exists(), torn.exists()) == (True, False)
    assert not snapshots.BEFORE.exists()


def test_what_finds_no_room_in_the_cache_ends_the_call_though_dvc_logs_it_and_goes_on(
    recorded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = Path("dvc.lock").read_text()
    (recorded / "data/raw/day=2026-01-03").mkdir()
    (recorded / "data/raw/day=2026-01-03/part.parquet").write_bytes(bytes(100_000))
    with in_memory("size=1m", at=recorded / ".dvc" / "cache") as disk, full(disk):
        with pytest.raises(OSError, match="No space left on device") as error:
            snapshots.record(Home.here(), "ingest")
        assert f"the disk {disk} is full" in sentence(error.value)
    assert "failed to transfer" not in caplog.text
    assert Path("dvc.lock").read_text() == before


@pytest.mark.parametrize("torn", ["", '{"read": {"da'])
def test_a_process_killed_while_dvc_writes_who_reads_what_stops_no_later_call(
    recorded: Path, torn: str
) -> None:
    lock = recorded / ".dvc" / "tmp" / "rwlock"
    lock.write_text(torn)
    snapshots.record(Home.here(), "ingest")
    assert snapshots.is_current("ingest")
    assert not json.loads(lock.read_text())["write"]


def half_of_it(yaml: Any, data: Any, stream: Any) -> None:
    """Write as DVC does, and be killed on the way."""
    stream.write("schema: '2")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def flip_a_bit(file: Path) -> None:
    """Damage the file as a disk does: neither size nor time changes."""
    before = file.stat()
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.chmod(0o644)
    with file.open("r+b") as open_file:  # in place: the cache holds the same file
        open_file.write(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_damaged_file_of_the_cache_is_not_restored_without_a_word(recorded: Path) -> None:
    file = Path("data/raw/day=2026-01-02/part.parquet")
    flip_a_bit(file)
    with pytest.raises(
        DataError, match=r"1 restored files are not what dvc[.]lock says: data/raw/day=2026-01"
    ):
        snapshots.restore(Home.here(), ["data/raw"])
    flip_a_bit(file)  # back
    snapshots.restore(Home.here(), ["data/raw"])
    lists = [path for path in (recorded / ".dvc/cache").rglob("*.dir") if path.is_file()]
    flip_a_bit(lists[0])
    with pytest.raises(DataError, match=r"1 restored files are not what dvc[.]lock says: .*[.]dir"):
        snapshots.restore(Home.here(), ["data/raw"])


def test_a_damaged_file_of_the_cache_is_fetched_again_from_the_remote(
    recorded: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remote = f"[core]\n    remote = disk\n['remote \"disk\"']\n    url = {tmp_path / 'remote'}\n"
    (recorded / ".dvc" / "config").write_text(remote)
    assert snapshots.push(Home.here())
    file = Path("data/raw/day=2026-01-02/part.parquet")
    before = file.read_bytes()
    flip_a_bit(file)
    snapshots.restore(Home.here(), ["data/raw"])
    assert file.read_bytes() == before
    assert "is damaged in DVC's cache" in caplog.text


def test_a_file_that_is_neither_in_the_cache_nor_in_the_remote_is_said_to_be_lost(
    recorded: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (lost,) = (recorded / ".dvc/cache").rglob(digest_of(Path("data/raw/day=2026-01-02/part.parquet"))[2:])
    content = lost.read_bytes()
    lost.unlink()
    assert not snapshots.push(Home.here())
    remote = f"[core]\n    remote = disk\n['remote \"disk\"']\n    url = {tmp_path / 'remote'}\n"
    (recorded / ".dvc" / "config").write_text(remote)
    assert not snapshots.push(Home.here())
    assert "nor a remote has: 1, such as data/raw/day=2026-01-02/part.parquet; no rollback" in caplog.text
    lost.write_bytes(content)
    assert snapshots.push(Home.here())
    lost.unlink()
    assert snapshots.push(Home.here())  # the remote has it


def test_a_remote_that_refuses_is_asked_again_and_warned_of_once(
    night: Path,
    storage: cloud_storage.Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(snapshots, "PUSH_WAIT_S", 0.0)
    storage.read_only = True
    assert not snapshots.push(Home.here())
    (warning,) = (record for record in caplog.records if record.name == "daybreak.storage.snapshots")
    assert "not in DVC's remote" in warning.getMessage()
    assert f"3 tries); run dvc push in {night} once it answers" in warning.getMessage()
    storage.read_only = False
    assert snapshots.push(Home.here())


def test_artifacts_lie_where_the_variable_says(
    repository: Path, storage: cloud_storage.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ARTIFACTS_DESTINATION", "gs://bucket/mlflow")
    (tmp_path / "report.html").write_text("a report")
    with mlflow_client.session(Home.here()) as client:
        run = mlflow_client.find_or_make_run(Home.here(), client, "2026-01-02")
        assert client.get_run(run).info.artifact_uri.startswith("gs://bucket/mlflow/")
        client.log_artifact(run, str(tmp_path / "report.html"))
        (tmp_path / "back").mkdir()
        downloaded = client.download_artifacts(run, "report.html", str(tmp_path / "back"))
    assert Path(downloaded).read_text() == "a report"
    assert [name for name in storage.storage.objects["bucket"] if name.endswith("report.html")]


def test_s3_is_a_remote_of_dvc_and_a_place_for_artifacts_too(
    night: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_storage.served() as store, s3_storage.emulated(store):
        url = f"    url = s3://bucket/dvc\n    endpointurl = {store.url}\n"
        (night / ".dvc" / "config").write_text(REMOTE[: REMOTE.index("    url = ")] + url)
        assert snapshots.push(Home.here())
        shutil.rmtree(night / ".dvc" / "cache")
        shutil.rmtree(night / "data" / "raw")
        snapshots.restore(Home.here(), ["data/raw"])
        assert (night / "data/raw/day=2026-01-01/part.parquet").read_bytes() == b"2026-01-01" * 500
        monkeypatch.setenv("MLFLOW_ARTIFACTS_DESTINATION", "s3://bucket/mlflow")
        with mlflow_client.session(Home.here()) as client:
            run = mlflow_client.find_or_make_run(Home.here(), client, "2026-01-02")
            assert client.get_run(run).info.artifact_uri.startswith("s3://bucket/mlflow/")
            client.log_text(run, "a report", "report.html")
            (tmp_path / "back").mkdir()
            downloaded = client.download_artifacts(run, "report.html", str(tmp_path / "back"))
        assert Path(downloaded).read_text() == "a report"

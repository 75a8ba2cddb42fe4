"""The power fails below the process, on a file system of its own: what was not synced is lost."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from daybreak.contract import disk, records
from daybreak.data.partitions import RAW, part_of
from daybreak.storage import checkout, snapshots
from daybreak.storage.home import Home
from tests.conftest import make_repository
from tests.data.test_ingest import nth, rows, run
from tests.storage.test_snapshots import STAGES
from tests.volume import Volume, volume


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Volume]:
    """A volume of a few megabytes as the home; its folder `night` is the current folder."""
    before = Path.cwd()
    with volume(tmp_path / "disk", num_bytes=64 << 20) as made:
        if made is None:
            pytest.skip("only who may mount a file system can let its power fail (root)")
        monkeypatch.setenv("DAYBREAK_HOME", str(made.folder))
        subprocess.run(["git", "init", "--quiet", str(made.folder)], check=True)
        enter(made)
        try:
            yield made
        finally:
            os.chdir(before)


def enter(disk_: Volume) -> None:
    (disk_.folder / "night").mkdir(exist_ok=True)
    os.chdir(disk_.folder / "night")


def fail(small: Volume) -> None:
    small.fail()
    os.chdir("/")
    small.restart()
    enter(small)


@pytest.mark.slow
def test_all_that_was_written_is_left_once_its_disk_was_synced_and_else_nothing(small: Volume) -> None:
    Path("before").write_text("a")
    disk.sync(Path())
    Path("after").write_text("b")
    Path("before").rename("renamed")
    fail(small)
    assert {path.name: path.read_text() for path in Path().iterdir()} == {"before": "a"}


@pytest.mark.slow
def test_days_that_belong_to_a_night_are_whole_or_come_in_again_when_the_power_fails(
    small: Volume, tmp_path: Path
) -> None:
    sales = small.folder / "sales"
    sales.mkdir()
    for number in range(3):
        pq.write_table(rows(nth(number)), sales / f"{nth(number)}.parquet")
    small.sync()
    batch = run(2)
    records.replace_text(Path("other"), "")  # by which ext4 keeps the names of all files, not their content
    fail(small)
    assert [path for path in RAW.glob("day=*/part.parquet") if not path.stat().st_size] == []
    again = run(2)
    assert (again.digest, again.late_days) == (batch.digest, batch.late_days)
    assert pq.read_table(part_of(nth(2)), partitioning=None).num_rows == 3


@pytest.mark.slow
def test_what_dvc_recorded_stays_so_when_the_power_fails_right_after(
    small: Volume, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_repository(small.folder / "home", store=empty_store)
    monkeypatch.setenv("DAYBREAK_HOME", str(home))
    os.chdir(home)
    Path("dvc.yaml").write_text(STAGES)
    for text in ("first", "second"):
        Path("data/raw").mkdir(parents=True, exist_ok=True)
        Path("data/raw/part.parquet").write_text(text)
        snapshots.record(Home.here(), "ingest")
        recorded = snapshots.LOCK.read_text()
        small.fail()
        os.chdir("/")
        small.restart()
        os.chdir(home)
        snapshots.recover(Home.here())
        assert snapshots.LOCK.read_text() == recorded
        assert snapshots.is_current("ingest")


@pytest.mark.slow
def test_commands_that_only_read_leave_the_index_of_git_as_it_was(small: Volume, empty_store: Path) -> None:
    home = make_repository(small.folder / "home", store=empty_store)
    small.sync()
    os.utime(home / "params.yaml", (1, 1))  # git would look into the file, and write the index anew
    for _ in range(2):
        assert checkout.git("status", "--porcelain", folder=home) == ""
    fail(small)
    assert checkout.git("status", "--porcelain", folder=home) == ""

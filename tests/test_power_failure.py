"""The power fails below the process, on a file system of its own: what was not synced is lost."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.contract import disk, records
from pipeline.data.ingest import RAW, part_of
from tests.data.test_ingest import nth, rows, run
from tests.volume import Volume, volume


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Volume]:
    """A volume of a few megabytes, whose folder `night` is the current one."""
    before = Path.cwd()
    with volume(tmp_path / "disk", num_bytes=64 << 20) as made:
        if made is None:
            pytest.skip("only who may mount a file system can let its power fail (root)")
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

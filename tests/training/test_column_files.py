"""Samples that were parsed are kept by day: the next night parses its new days, and learns the same."""

import errno
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.machines import this_machine
from daybreak.storage.home import Home
from daybreak.training import column_files
from daybreak.training.column_files import CLEAN, ColumnFiles
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.tuning import Columns, leaves, read, tensors
from tests.fakes import LineWorkload

USE = "tests.fakes:LineWorkload"
ARRAYS = Path("data/arrays")
PER_DAY = 20
EQUAL = {"rtol": 0, "atol": 0, "equal_nan": True}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Lines:
    """Samples of lines of JSON, each parsed when it is read; `shift` is of the whole window."""

    def __init__(self, days: list[str], *, shift: float = 0.0) -> None:
        self.lines = [line for day in days for line in path_of(day).read_text().splitlines()]
        self.days = dict.fromkeys(days, PER_DAY)
        self.shift, self.parsed = shift, 0

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.parsed += 1
        row = json.loads(self.lines[index])
        x = torch.tensor(row["x"] + self.shift, dtype=torch.float32)
        return {"x": x, "y": torch.sin(3 * x), "key": torch.tensor(row["key"])}


def path_of(day: str) -> Path:
    return CLEAN / f"day={day}" / "part.parquet"


def deliver(day: str, *, seed: int = 0) -> None:
    draw = np.random.default_rng([seed, int(day[-2:])])
    path_of(day).parent.mkdir(parents=True, exist_ok=True)
    rows = [{"x": draw.uniform(-1, 1), "key": int(draw.integers(50))} for _ in range(PER_DAY)]
    rows[3]["x"] = float("nan")
    path_of(day).write_text("\n".join(map(json.dumps, rows)))


DAYS = [f"2026-11-{number:02}" for number in range(1, 7)]


def window(first: int, last: int, **options: float) -> Lines:
    for day in DAYS[first:last]:
        if not path_of(day).exists():
            deliver(day)
    return Lines(DAYS[first:last], **options)


def files_of(data: Lines, **arguments: float) -> ColumnFiles:
    files = column_files.open_files(Home.here(), data, workload=USE, arguments=arguments, arrays=ARRAYS)
    assert files is not None
    return files


def epoch(data: Lines, **arguments: float) -> tuple[dict[str, torch.Tensor], int]:
    """All samples, read in batches out of order, and how many of them were parsed."""
    columns = Columns(data, files=files_of(data, **arguments))
    order = np.random.default_rng(0).permutation(len(data))
    for batch in np.array_split(order, 7):
        read(columns, batch)
    parsed = data.parsed
    return read(columns, range(len(data))), parsed


def assert_as_parsed(columns: dict[str, torch.Tensor], data: Lines) -> None:
    plain = read(data, list(range(len(data))))
    for one, other in zip(tensors(columns), tensors(plain), strict=True):
        torch.testing.assert_close(one, other, **EQUAL)


def test_the_next_night_parses_its_new_day_alone():
    assert epoch(window(0, 4))[1] == 4 * PER_DAY
    data = window(1, 5)
    columns, parsed = epoch(data)
    assert (
        parsed == PER_DAY + 2 * 3
    )  # the first and the last sample of each other day show that it still holds
    assert_as_parsed(columns, data)


def test_a_restated_day_and_other_arguments_are_parsed_anew():
    epoch(window(0, 3))
    deliver(DAYS[1], seed=1)
    data = window(0, 3)
    columns, parsed = epoch(data)
    assert parsed == PER_DAY + 2 * 2
    assert_as_parsed(columns, data)
    assert epoch(window(0, 3), width=3)[1] == 3 * PER_DAY


def test_samples_of_more_than_their_day_are_not_taken_from_files(caplog):
    epoch(window(0, 3))
    data = window(0, 3, shift=1.0)
    columns, _ = epoch(data)
    assert_as_parsed(columns, data)
    assert "must not have `days`" in caplog.text


def test_days_that_were_taken_are_read_again_once_another_shows_that_the_files_do_not_hold():
    class OneDay(Lines):
        """The first half of the days is as it was, the second is not."""

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            sample = super().__getitem__(index)
            return leaves(sample, lambda leaf: leaf + 1) if index >= 2 * PER_DAY else sample

    epoch(window(0, 4))
    data = OneDay(DAYS[:4])
    columns = Columns(data, files=files_of(data))
    read(columns, range(PER_DAY))
    read(columns, range(3 * PER_DAY, 4 * PER_DAY))
    before = data.parsed
    read(columns, range(PER_DAY))
    assert data.parsed == before + PER_DAY


def test_a_torn_file_is_parsed_and_written_anew(home):
    epoch(window(0, 2))
    for path in (home / "var" / "columns").iterdir():
        path.write_bytes(path.read_bytes()[:-5])
    data = window(0, 2)
    columns, parsed = epoch(data)
    assert parsed == 2 * PER_DAY
    assert_as_parsed(columns, data)
    assert epoch(window(0, 2))[1] == 2 * 2


def test_part_of_a_day_is_not_written(home):
    data = window(0, 2)
    columns = Columns(data, files=files_of(data))
    read(columns, range(PER_DAY + 5))
    assert len(list((home / "var" / "columns").iterdir())) == 1


def test_a_full_disk_is_only_said(home, caplog):
    (home / "var").mkdir()
    (home / "var" / "columns").write_text("not a folder")
    data = window(0, 2)
    assert_as_parsed(epoch(data)[0], data)
    assert "parsed again the next night" in caplog.text


def test_a_disk_that_fills_up_while_a_day_is_written_is_only_said_and_leaves_nothing(home, caplog):
    files, limits = files_of(window(0, 2)), resource.getrlimit(resource.RLIMIT_FSIZE)
    (day,) = files.days(torch.tensor([0]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        files.write(day, [torch.zeros(100_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "parsed again the next night" in caplog.text
    assert not list((home / "var" / "columns").iterdir())


def test_an_old_file_that_cannot_be_removed_is_in_nobodys_way(home, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EROFS, "read-only", str(path))

    stuck = home / "var" / "columns" / "stuck.safetensors"
    stuck.parent.mkdir(parents=True)
    stuck.touch()
    monkeypatch.setattr(Path, "unlink", refuse)
    old = time.time() - this_machine.KEPT.total_seconds() - 60
    os.utime(stuck, (old, old))
    data = window(0, 2)
    assert_as_parsed(epoch(data)[0], data)


def test_files_that_no_job_reads_are_removed_after_a_week(home):
    epoch(window(0, 3))
    old = time.time() - this_machine.KEPT.total_seconds() - 60
    for path in (home / "var" / "columns").iterdir():
        os.utime(path, (old, old))
    files_of(window(1, 2))
    assert not list((home / "var" / "columns").iterdir())


def test_days_that_do_not_add_up_are_the_teams_to_fix():
    data = window(0, 2)
    data.days = {DAYS[0]: PER_DAY}
    with pytest.raises(ParamsError, match="40 samples, and its `days` add up to 20"):
        column_files.open_files(Home.here(), data, workload=USE, arguments={}, arrays=ARRAYS)


def test_a_data_set_without_days_keeps_nothing():
    data = window(0, 2)
    del data.days
    assert column_files.open_files(Home.here(), data, workload=USE, arguments={}, arrays=ARRAYS) is None


def test_days_whose_rows_are_elsewhere_keep_nothing():
    data = window(0, 2)
    path_of(DAYS[1]).unlink()
    path_of(DAYS[1]).parent.rmdir()
    assert column_files.open_files(Home.here(), data, workload=USE, arguments={}, arrays=ARRAYS) is None


def test_what_is_learned_from_files_is_the_same_bit_for_bit():
    def learned(*, in_memory: bool) -> dict[str, torch.Tensor]:
        data = window(0, 3)
        data.lines = [line.replace("NaN", "0.5") for line in data.lines]
        engine = TorchEngine(
            LineWorkload(dropout=0.0),
            data,
            seed=1,
            micro_batch_size=16,
            tuning=Tuning(in_memory=in_memory),
            column_files=files_of(data) if in_memory else None,
        )
        for batch in np.array_split(np.random.default_rng(0).permutation(len(data)), 4):
            engine.step(batch, batch_size=len(batch), rate=0.1, signals=Signals())
        engine.close()
        return engine.model.state_dict()

    plain, first, second = learned(in_memory=False), learned(in_memory=True), learned(in_memory=True)
    for name, weight in plain.items():
        assert torch.equal(weight, first[name])
        assert torch.equal(weight, second[name])

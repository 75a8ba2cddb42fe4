"""Whoever names the columns of a table writes no code into the repository that `init` makes of it."""

import runpy
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.extensions.init import new_home, survey
from daybreak.extensions.init.module_text import Choice

SPOILS = "open('spoils', 'w')"
NAMES = [
    f'y"""\n{SPOILS}\n"""',
    f'y"]\n{SPOILS}\n["',
    f'y"); {SPOILS} #',
    f'y\\"""\n{SPOILS}\n',
    f"y`\n\n{SPOILS}",
]


def rows(path: Path, label: str, *, binary: bool) -> survey.Options:
    """Writes rows with hostile column names, and returns the options for `init`."""
    num = 200
    columns = {
        "time": [datetime(2025, 1, 1 + number // 10) for number in range(num)],
        label: [number % 2 if binary else number * 0.37 for number in range(num)],
        f"{label}, too": [float(number) for number in range(num)],
    }
    pq.write_table(pa.table(columns), path)
    return survey.Options(label=label, unit=f"{label}, too")


def expect_harmless(house: Path, label: str) -> None:
    """Imports the module of a home; the columns have their names, and no name is run as code."""
    made = runpy.run_path(str(house / "house.py"))["House"]
    assert made.table.label.column == label
    assert set(made.table.columns) == {"time", label, f"{label}, too"}
    assert not Path("spoils").exists()
    readme = (house / "README.md").read_text()
    assert not [line for line in readme.splitlines() if line.startswith(SPOILS)]


@pytest.fixture(autouse=True)
def _beside_the_house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "house"), *sys.path])


@pytest.mark.slow
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("label", NAMES, ids=ascii)
@pytest.mark.promise
def test_no_name_of_a_column_is_run_by_the_module_that_init_writes(
    tmp_path: Path, label: str, binary: bool
) -> None:
    url, house = str(tmp_path / "rows.parquet"), tmp_path / "house"
    surveyed = survey.survey(url, rows(Path(url), label, binary=binary))
    for path, text in new_home.files(surveyed, "house", Choice(), title="house").items():
        (house / path).parent.mkdir(parents=True, exist_ok=True)
        (house / path).write_text(text)
    expect_harmless(house, label)


@pytest.mark.slow
@pytest.mark.promise
def test_no_name_of_a_column_is_run_where_init_also_tries_the_newest_day(tmp_path: Path) -> None:
    url = str(tmp_path / "rows.parquet")
    new_home.write(tmp_path / "house", url, rows(Path(url), NAMES[0], binary=True))
    expect_harmless(tmp_path / "house", NAMES[0])

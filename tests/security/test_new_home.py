"""Whoever names the columns of a table writes no code into the repository that `init` makes of it."""

import runpy
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.extensions.init import new_home

SPOILS = "open('spoils', 'w')"
NAMES = [
    f'y"""\n{SPOILS}\n"""',
    f'y"]\n{SPOILS}\n["',
    f'y"); {SPOILS} #',
    f'y\\"""\n{SPOILS}\n',
    f"y`\n\n{SPOILS}",
]


@pytest.mark.slow
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("label", NAMES, ids=ascii)
@pytest.mark.promise
def test_no_name_of_a_column_is_run_by_the_module_that_init_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, binary: bool
) -> None:
    num = 200
    columns = {
        "time": [datetime(2025, 1, 1 + number // 10) for number in range(num)],
        label: [number % 2 if binary else number * 0.37 for number in range(num)],
        f"{label}, too": [float(number) for number in range(num)],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    new_home.write(tmp_path / "house", str(tmp_path / "rows.parquet"), label=label, unit=f"{label}, too")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "house"), *sys.path])
    house = runpy.run_path(str(tmp_path / "house" / "house.py"))["House"]
    assert house.table.label.column == label
    assert set(house.table.columns) == set(columns)
    assert not (tmp_path / "spoils").exists()
    readme = (tmp_path / "house" / "README.md").read_text()
    assert not [line for line in readme.splitlines() if line.startswith(SPOILS)]

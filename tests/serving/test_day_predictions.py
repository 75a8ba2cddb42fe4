"""`daybreak predict`: a file of what a version predicts of a day's clean rows."""

from datetime import date, datetime
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from daybreak import cli
from daybreak.extensions.erasure.erase import _predictions
from daybreak.extensions.router.day_predictions import write
from tests.serving.conftest import live_in
from tests.serving.test_predict import USE, expected, home_of_rows  # noqa: F401  the fixture
from tests.workloads.payments import rows_of

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

DAY = date(2025, 1, 10)


@pytest.fixture
def home(home_of_rows: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    live_in(home_of_rows, monkeypatch)
    return home_of_rows


def test_the_champion_predicts_the_clean_rows_of_a_day(home: Path, tmp_path: Path) -> None:
    to = tmp_path / "new" / "predictions.parquet"
    assert cli.main(["predict", "--day", str(DAY), "--to", str(to)]) == 0
    predicted, rows = pq.read_table(to), rows_of(DAY)
    assert predicted.column_names == ["account", "ts", "prediction", "parts"]
    assert predicted["account"].to_pylist() == rows["account"].to_pylist()
    assert predicted["ts"][0].as_py() == rows["ts"][0].as_py()
    assert isinstance(predicted["ts"][0].as_py(), datetime)
    for name, values in expected(home, rows).items():
        np.testing.assert_allclose(np.array(predicted[name].to_pylist()), values, rtol=0, atol=1e-6)
    assert [path.name for path in to.parent.iterdir()] == ["predictions.parquet"]
    other = "memory://predictions/other.parquet"
    assert cli.main(["predict", "--day", str(DAY), "--to", other, "--version", "2"]) == 0
    with fsspec.open(other, "rb") as file:
        assert pq.read_table(file)["prediction"].to_pylist() != predicted["prediction"].to_pylist()


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (["--day", "2020-01-01", "--to", "there.parquet"], 78, "no night here has clean rows of 2020-01-01"),
        (["--day", str(DAY), "--to", "there.txt"], 78, "is not a file of .parquet or .csv"),
        (["--day", str(DAY), "--to", "there.csv"], 78, "name a file of .parquet"),
        (["--day", str(DAY), "--to", "nowhere://there.csv"], 78, "nowhere"),
        (["--day", str(DAY), "--to", "there.parquet", "--version", "9"], 1, "9"),
    ],
)
def test_what_cannot_be_predicted_leaves_no_file(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    words: list[str],
    status: int,
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["predict", *words]) == status
    assert why in caplog.text
    assert list(tmp_path.glob("there*")) == []


@pytest.mark.parametrize("unit", ["+49 (30) 123", "=1+1", 'a "quoted"\r\nname', "plain"])
def test_lines_of_a_unit_go_out_of_a_csv_and_others_stay_byte_by_byte(tmp_path: Path, unit: str) -> None:
    units = [unit, "00123", None, "", unit, "-7", "caf\u00e9, (1)"]
    table = pa.table(
        {"zip": ["00123"] * 7, "unit": units, "prediction": [0.5, 1.0, 1e-9, None, 2.0, -3.0, 4.0]}
    )
    to, others = tmp_path / "found.csv", tmp_path / "others.csv"
    write(table, str(to))
    write(table.take([1, 2, 3, 5, 6]), str(others))
    before = to.read_bytes()
    assert _predictions(str(to), "unit", unit, dry_run=True) == 2
    assert to.read_bytes() == before
    assert _predictions(str(to), "unit", unit, dry_run=False) == 2
    assert to.read_bytes() == others.read_bytes()
    assert _predictions(str(to), "unit", unit, dry_run=False) == 0
    assert _predictions(str(to), "account", "00123", dry_run=False) == 0
    to.write_bytes(b"\xef\xbb\xbf" + before)  # as a spreadsheet saves it
    assert _predictions(str(to), "zip", "00123", dry_run=True) == 7


def test_one_value_a_row_may_be_csv(tmp_path: Path) -> None:
    write(rows_of(DAY).select(["account", "amount"]), str(tmp_path / "found.csv"))
    assert pyarrow.csv.read_csv(tmp_path / "found.csv").num_rows == 60

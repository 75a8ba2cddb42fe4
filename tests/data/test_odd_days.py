"""Days that are odd but allowed go through validation and preparation, by DVC as in a night."""

import shutil
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from daybreak import cli, dvc_file
from daybreak.contract import records
from daybreak.contract.record_types import Dataset, Report
from daybreak.stages import STAGES

ROOT = Path(__file__).parents[2]
FIRST = date(2025, 1, 6)
NUM_DAYS = 4  # before the odd one
COLUMNS = ["invoice", "item", "description", "quantity", "time", "price", "customer", "country"]
# The rules of the rows as they are; of the figures of a day, none.
LENIENT = {
    "days": [
        {
            "name": "a day has a row",
            "type": "expect_column_values_to_be_between",
            "column": "(rows)",
            "kwargs": {"column": "num_rows", "min_value": 1},
        }
    ]
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*infer_string.*"),
]


def lines(day: date, *, customers: int = 8) -> pd.DataFrame:
    """Forty clean lines of a day."""
    rows = [
        (
            f"{500000 + 100 * day.day + n // 4}",
            f"2200{n % 10}",
            "A CUP",
            1 + n % 3,
            datetime.combine(day, datetime.min.time()) + timedelta(hours=9, minutes=n),
            1.5,
            f"{12000 + n % customers}",
            "France",
        )
        for n in range(40)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def only_bad(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(price=-1.0)


def only_copies(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame.head(1)] * 40)


def as_it_is(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


@pytest.fixture
def home(repository: Path, commit: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose nights validate and prepare files of a shop."""
    from ruamel.yaml import YAML

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yaml = YAML()
    suite = yaml.load(ROOT / "data/expectations.yaml") | LENIENT
    yaml.dump(suite, repository / "suite.yaml")
    shutil.copy(ROOT / "dvc.yaml", repository)
    settings = yaml.load(ROOT / "params.yaml")
    settings["source"] = {"use": "daybreak:Files", "url": str(repository / "var/sales/{day}.csv")}
    settings["validate"] = {"suite": "suite.yaml", "max_quarantined": 1.0}
    yaml.dump(settings, repository / "params.yaml")
    cached = [name for name, stage in STAGES.items() if stage.dvc == "cached"]
    for room in {room for name in cached for room in dvc_file.rooms(name)}:
        copy = shutil.copytree if (ROOT / room).is_dir() else shutil.copy  # a room, or a module beside them
        (repository / room).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / room, repository / room)  # deps of dvc.yaml
    (repository / "data").mkdir(exist_ok=True)
    shutil.copy(ROOT / "data/expectations.yaml", repository / "data")
    (repository / ".gitignore").write_text("/nights/\n/var/\n/data/*\n!/data/expectations.yaml\n")
    commit("Set up a shop")
    (repository / "var/sales").mkdir(parents=True)
    for n in range(NUM_DAYS):
        lines(FIRST + timedelta(days=n)).to_csv(repository / f"var/sales/{FIRST + timedelta(days=n)}.csv")
    return repository


@pytest.mark.parametrize(
    ("change", "num_rows", "num_clean"),
    [
        (as_it_is, 40, 40),  # nobody new buys, and no row is bad
        (only_bad, 40, 0),
        (only_copies, 40, 1),
    ],
    ids=["no bad row and no new customer", "only bad rows", "only copies of one row"],
)
def test_a_night_with_an_odd_day_is_validated_and_prepared(
    home: Path,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    num_rows: int,
    num_clean: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    day = FIRST + timedelta(days=NUM_DAYS)
    change(lines(day)).to_csv(home / f"var/sales/{day}.csv")
    assert cli.main(["open", "--day", str(day)]) == 0
    for stage in ("ingest", "validate"):
        assert cli.main([stage]) == 0, caplog.text
    report = records.read(Report, records.RUN)
    before = 40 * NUM_DAYS  # a first night judges all days
    assert (report.num_rows - before, report.num_clean - before) == (num_rows, num_clean)
    assert Path("data/quarantine").is_dir()
    if num_clean:
        assert cli.main(["prepare"]) == 0, caplog.text
        assert records.read(Dataset, records.RUN).num_samples > 0
    else:
        assert cli.main(["prepare"]) == 78
        assert "there is no sample on the held-out days" in (records.RUN / "prepare.error").read_text()

"""`daybreak init`: a home from what the data looks like, or one sentence, nothing left behind."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from PIL import Image

from daybreak import cli, dvc_file
from daybreak.contract import params
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.table import Bool, Category, Float, Id, Int, Table, Text, Time, days
from daybreak.contract.workload import read_state, write_state
from daybreak.data import suite
from daybreak.examples.fraud.payments import Payments
from daybreak.extensions.init import new_home, survey
from daybreak.extensions.init.module_text import Choice, module_text
from daybreak.extensions.init.params_text import params_text
from daybreak.storage.source_code import frame_digest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_other_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DAYBREAK_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def payments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty days of payments, the labels of the newest unknown."""
    path = tmp_path_factory.mktemp("data") / "payments.parquet"
    source = Payments(seed=1, start="2025-05-22", today="2025-07-01", rows_per_day=300)
    pq.write_table(pa.concat_tables(source._rows(day) for day in source.days()), path)
    return path


def table_of(folder: Path, use: str) -> Table:
    """The table of a home, as Python reads its module."""
    module, _, name = use.partition(":")
    code = (
        f"import {module}; from daybreak.contract import records; print(records.dumps({module}.{name}.table))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return records_of(done.stdout)


def left_out(made: survey.Survey) -> dict[str, str]:
    """The columns that the table has not, and why."""
    return {note.name: note.use for note in made.columns if not note.kind}


def records_of(text: str) -> Table:
    from daybreak.contract import records

    return records.loads(Table, text, source="here")


def formatted(path: Path) -> bool:
    words = [sys.executable, "-m", "ruff", "format", "--check", "--isolated", str(path)]
    checked = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E,F,I", str(path)]
    return all(
        subprocess.run(one, check=False, capture_output=True).returncode == 0 for one in (words, checked)
    )


def test_a_home_of_payments_is_complete_and_committed(
    payments: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`tests/test_own_data.py` takes such a home through every step, and a night."""
    folder = tmp_path / "card-fraud"
    words = ["--label", "is_fraud", "--unit", "account", "--ripe-after", "14"]
    assert cli.main(["init", str(folder), "--from", str(payments), *words]) == 0
    assert "40 days of" in capfd.readouterr().out
    git = subprocess.run(["git", "status", "--short"], cwd=folder, capture_output=True, text=True, check=True)
    assert git.stdout == ""
    assert formatted(folder / "card_fraud.py") and formatted(folder / "test_card_fraud.py")
    assert not any("from daybreak." in path.read_text() for path in folder.glob("*.py"))  # the API alone
    table = table_of(folder, "card_fraud:CardFraud")
    assert table.time == "time" and table.unit == "account"
    assert table.label and (table.label.column, table.label.ripe_after) == ("is_fraud", days(14))
    assert table.columns == {
        "payment": Id(),
        "account": Id(),
        "amount": Float(),
        "shop": Category(nullable=True),
        "country": Category(),
        "online": Bool(),
        "time": Time(),
        "is_fraud": Int(min=0, max=1, nullable=True),
    }
    loaded = params.load(folder)
    assert loaded.register_.name == "card-fraud" and loaded.gate.margin is None
    assert loaded.ingest.late_days == 21
    limits = suite.load(folder / "data/expectations.yaml")
    assert {"num_rows", "nulls_of_shop"} == {rule.kwargs["column"] for rule in limits.days}
    assert {"amount", "shop", "time", "(rows)"} <= set(limits.drift)
    assert dvc_file.text(folder) == (folder / "dvc.yaml").read_text()
    assert "pipeline/" not in (folder / "dvc.yaml").read_text()
    assert len((folder / "card_fraud.py").read_text().splitlines()) < 60


def test_a_number_from_csv_gets_a_squared_error_and_typed_columns(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    num = 2000
    rows = pa.table(
        {
            "when": [f"{1 + n * 28 // num:02}/02/2025 {n % 24:02}:30" for n in range(num)],
            "code": [f"{n % 7:03}" for n in range(num)],
            "size": rng.gamma(2, 2, num),
            "pieces": rng.integers(0, 50, num),
            "note": [f"this is what number {n} says about it all" for n in range(num)],
            "user_id": rng.integers(0, 10**6, num),
            "price": rng.normal(0, 3, num),
            "nothing": pa.nulls(num, pa.string()),
        }
    )
    pyarrow.csv.write_csv(rows, tmp_path / "sales.csv")
    options = survey.Options(label="price")
    made = new_home.write(tmp_path / "sales", str(tmp_path / "sales.csv"), options)
    assert made.table.columns == {
        "when": Time(),
        "code": Category(),
        "size": Float(),
        "pieces": Int(min=0),
        "note": Text(),
        "user_id": Id(),
        "price": Float(),
    }
    assert left_out(made) == {"nothing": "no: null in all rows"} and made.plug["time"] == "%d/%m/%Y %H:%M"
    assert formatted(tmp_path / "sales/sales.py")
    assert [note for note in made.notes if "try" in note] == []


def test_files_of_local_days_whose_times_have_offsets_need_the_zone_of_their_days(tmp_path: Path) -> None:
    (tmp_path / "rides").mkdir()
    for day in (28, 29, 30):  # clocks change on the 29th of March 2026, and its third hour is not there
        hours = [hour for hour in range(24) if (day, hour) != (29, 2)]
        text = "".join(
            f"2026-03-{day}T{hour:02}:30:00{'+02:00' if (day, hour) > (29, 2) else '+01:00'},{hour / 2}\n"
            for hour in hours
        )
        (tmp_path / f"rides/2026-03-{day}.csv").write_text(f"at,y\n{text}")
    url = f"{tmp_path}/rides/*.csv"
    with pytest.raises(ParamsError, match=r"^6% of rows have times in at that are .* --zone Europe/Berlin"):
        new_home.write(tmp_path / "new", url, survey.Options(label="y"))
    with pytest.raises(ParamsError, match="zone 'Europe/Berlino' is not known; name one such as"):
        new_home.write(tmp_path / "new", url, survey.Options(label="y", zone="Europe/Berlino"))
    local = new_home.write(tmp_path / "new", url, survey.Options(label="y", zone="Europe/Berlin"))
    assert local.plug["zone"] == table_of(tmp_path / "new", "new:New").zone == "Europe/Berlin"
    assert formatted(tmp_path / "new/new.py")
    assert local.num_days == 3 and [local.least_rows, local.most_rows] == [23, 24]


def test_json_lines_of_a_day_each_and_a_sql_table_are_known_too(payments: Path, tmp_path: Path) -> None:
    rows = pq.read_table(payments)
    frame = rows.to_pandas()
    (tmp_path / "lines").mkdir()
    for day, part in frame.groupby(frame["time"].dt.date):
        part.to_json(tmp_path / f"lines/{day}.jsonl", orient="records", lines=True, date_format="iso")
    lines = f"{tmp_path}/lines/{{day}}.jsonl"
    one = survey.survey(lines, survey.Options(label="is_fraud", unit="account"))
    assert one.num_days == 40 and one.table.columns["online"] == Bool()
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    frame.to_sql("payments", engine, index=False)
    engine.dispose()
    other = survey.survey(f"sqlite:///{tmp_path}/shop.db#payments", survey.Options(label="is_fraud"))
    assert other.num_days == 40 and other.plug["table"] == "payments"
    assert other.table.columns["amount"] == one.table.columns["amount"] == Float()


def test_a_key_that_no_line_of_some_days_has_is_null_there(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        lines: list[dict[str, object]] = [{"t": f"2025-01-0{day}", "x": n / 2} for n in range(24)]
        for n, line in enumerate(lines):
            line.update({"y": n % 2} if day < 3 else {})
            line.update({"coupon": "half", "pieces": 3} if day == 2 and n % 2 else {})
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (tmp_path / f"2025-01-0{day}.jsonl").write_text(text)
    made = survey.survey(f"{tmp_path}/{{day}}.jsonl", survey.Options(label="y"))
    assert made.table.columns == {
        "t": Time(),
        "x": Float(min=0),
        "y": Int(min=0, max=1, nullable=True),
        "coupon": Category(nullable=True),
        "pieces": Int(nullable=True),
    }
    assert made.table.label and made.table.label.ripe_after == days(1)
    assert (made.nulls, made.ranges["pieces"]) == ({"coupon": 1, "pieces": 1}, (3, 3))


def test_days_whose_types_do_not_go_together_are_refused_in_a_sentence(tmp_path: Path) -> None:
    for day, value in ((1, "a"), (2, [7])):
        lines = [json.dumps({"t": f"2025-01-0{day}", "x": value, "y": n % 2}) for n in range(9)]
        (tmp_path / f"2025-01-0{day}.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"^days have columns of different types: .* x "):
        survey.survey(f"{tmp_path}/{{day}}.jsonl", survey.Options(time="t", label="y"))


def as_csv(rows: pa.Table, path: Path) -> None:
    pyarrow.csv.write_csv(rows, path.with_suffix(".csv"))


def as_parquet(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path.with_suffix(".parquet"))


def of_day(number: int) -> dict[str, Any]:
    """Columns of a day, with a code that looks like a number and a number with a gap."""
    begin = np.datetime64("2025-01-01", "us") + np.timedelta64(number, "D")
    return {
        "t": [begin + np.timedelta64(n, "h") for n in range(20)],
        "amount": [0.5 * (n % 7) for n in range(20)],
        "items": [n % 5 for n in range(20)],
        "zip": [f"0{n % 3}234" for n in range(20)],
        "y": [n % 2 for n in range(20)],
    }


@pytest.mark.parametrize("newest", ["csv", "parquet"])
def test_csv_beside_parquet_is_one_table_whichever_is_the_newest(newest: str, tmp_path: Path) -> None:
    for number in range(4):
        write = as_csv if (number > 1) == (newest == "csv") else as_parquet
        write(pa.table(of_day(number)), tmp_path / f"2025-01-0{number + 1}")
    seen = survey.survey(str(tmp_path), survey.Options(time="t", label="y"))
    kinds = {name: column.kind for name, column in seen.table.columns.items()}
    assert kinds == {"t": "time", "amount": "float", "items": "int", "zip": "category", "y": "int"}
    days = {"csv": "2025-01-04", "parquet": "2025-01-02"}
    said = f"t, amount, items, y are text on 2 days, such as {days[newest]}, and typed on others"
    assert any(note.startswith(said) for note in seen.notes), seen.notes


def test_the_dialect_of_older_csv_is_known_where_the_newest_file_is_parquet(tmp_path: Path) -> None:
    for number in range(2):
        rows = of_day(number) | {"t": [f"0{number + 1}/01/2025 {n:02}:30" for n in range(20)]}
        lines = [";".join(map(str, row)).replace(".", ",") for row in zip(*rows.values(), strict=True)]
        (tmp_path / f"2025-01-0{number + 1}.csv").write_text("\n".join([";".join(rows), *lines]))
    as_parquet(pa.table(of_day(2)), tmp_path / "2025-01-03")
    seen = survey.survey(str(tmp_path), survey.Options(time="t", label="y"))
    assert {key: seen.plug[key] for key in ("delimiter", "decimal", "time")} == {
        "delimiter": ";",
        "decimal": ",",
        "time": "%d/%m/%Y %H:%M",
    }
    assert seen.table.columns["amount"].kind == "float"


OTHERWISE: dict[str, tuple[str, list[object], str]] = {
    "a whole number with gaps": ("items", [1.0, None] * 10, "int"),
    "text": ("items", [str(n % 5) for n in range(20)], "int"),
    "nothing": ("items", [None] * 20, "int"),
    "true and false": ("y", [n % 2 > 0 for n in range(20)], "int"),
    "a time with its zone": ("t", [datetime(2025, 1, 2, n, tzinfo=UTC) for n in range(20)], "time"),
}


@pytest.mark.parametrize(("name", "values", "kind"), OTHERWISE.values(), ids=OTHERWISE)
def test_a_column_that_has_another_type_on_one_day_is_read(
    name: str, values: list[object], kind: str, tmp_path: Path
) -> None:
    as_parquet(pa.table(of_day(0)), tmp_path / "2025-01-01")
    other = of_day(1) | {name: values}
    as_parquet(pa.table(dict(reversed(other.items()))), tmp_path / "2025-01-02")  # in another order, too
    seen = survey.survey(str(tmp_path), survey.Options(time="t", label="y"))
    assert seen.num_days == 2
    assert seen.table.columns[name].kind == kind


NEWEST: dict[str, tuple[dict[str, Any], str]] = {
    "has no rows": ({name: [] for name in of_day(0)}, "1 day without rows: 2025-01-03; begin with: "),
    "has no times": (of_day(2) | {"t": [""] * 20}, "2025-01-03, the newest day, has 0 rows with a time, "),
}


@pytest.mark.parametrize(("columns", "said"), NEWEST.values(), ids=NEWEST)
def test_a_newest_day_without_values_hides_no_other(
    columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    for number in range(2):
        as_csv(pa.table(of_day(number)), tmp_path / f"2025-01-0{number + 1}")
    as_csv(pa.table(columns), tmp_path / "2025-01-03")
    seen = survey.survey(str(tmp_path), survey.Options(time="t", label="y"))
    assert seen.table.columns["amount"].kind == "float"
    assert any(note.startswith(said) for note in seen.notes), seen.notes


def test_a_newest_day_unlike_the_others_is_said_with_what_differs(tmp_path: Path) -> None:
    for number in range(2):
        as_csv(pa.table(of_day(number)), tmp_path / f"2025-01-0{number + 1}")
    newest = tmp_path / "2025-01-03"
    as_csv(pa.table(of_day(2)).drop_columns(["y"]), newest)
    with pytest.raises(DataError, match="--label y is in the data until 2025-01-02, and not on the newest"):
        survey.survey(str(tmp_path), survey.Options(time="t", label="y"))
    as_csv(pa.table(of_day(2) | {"t": [f"03/01/2025 {n:02}:30" for n in range(20)]}), newest)
    with pytest.raises(ParamsError, match=r"t is written in two formats, as 2025-.* and as 03/01/2025 00:30"):
        survey.survey(str(tmp_path), survey.Options(time="t", label="y"))


def refused(tmp_path: Path, rows: pa.Table, **options: Any) -> str:
    """The sentence, after a look that nothing is left behind."""
    path = tmp_path / "data.parquet"
    pq.write_table(rows, path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises((DataError, ParamsError)) as caught:
        new_home.write(tmp_path / "new", str(path), survey.Options(**options))
    assert sorted(tmp_path.iterdir()) == before
    return str(caught.value)


def rows(**columns: list[object]) -> pa.Table:
    num = len(next(iter(columns.values())))
    return pa.table(
        {"t": [np.datetime64("2025-01-01", "us") + np.timedelta64(n, "h") for n in range(num)], **columns}
    )


def test_what_cannot_be_begun_with_is_refused_in_a_sentence(tmp_path: Path) -> None:
    good = rows(y=[0, 1] * 20, x=[0.5, 1.5] * 20)
    no_time = refused(tmp_path, good.drop_columns(["t"]))
    assert no_time == "no column is a time; name the one whose day a row belongs to by --time: y, x"
    two = refused(tmp_path, good.append_column("u", good["t"]))
    assert two == "the columns t, u are times; name the one whose day a row belongs to by --time: t, u"
    assert refused(tmp_path, good, label="z") == "--label z is not in the data; name one of t, y, x"
    assert refused(tmp_path, good.drop_columns(["y"])) == (
        "nothing says what to predict; name a column by --label: t, x"
    )
    assert refused(tmp_path, good, time="x").startswith(
        "--time x is double such as 0.5, not times; name another"
    )
    same = refused(tmp_path, rows(y=[0] * 40))
    assert same.startswith("the label y is 0 in all 40 rows, so that there is nothing to learn; name another")
    no = refused(tmp_path, rows(y=["no"] * 40))
    assert no.startswith(
        "the label y is 'no' in all 40 rows, so that there is nothing to learn; name another"
    )
    for kind in (pa.null(), pa.float64(), pa.string(), pa.list_(pa.int8())):
        null = refused(tmp_path, rows(y=pa.nulls(40, kind)))
        assert null.startswith("the label y is null in all 40 rows, so that there is nothing to learn; name")
    assert refused(tmp_path, rows(y=[{"a": 1}] * 40)) == (
        "the label y is struct<a: int64>, not a number; name another by --label"
    )
    footed = rows(y=[0, 1] * 20).set_column(0, "t", [[f"2025-01-{n + 10}" for n in range(20)] * 2])
    footed = footed.set_column(0, "t", [[*footed["t"].to_pylist()[:39], "Total"]])
    assert refused(tmp_path, footed, time="t").startswith(
        "--time t is not times in all rows: row 40 is 'Total'; have it left out or set right, name another"
    )
    assert refused(tmp_path, rows(y=[1, 2, 3, 5] * 10)).startswith(
        "the label y has 4 values (1, 2, 3, 5), like counts or stars, or like classes that are not numbered"
    )
    assert refused(tmp_path, rows(y=[f"n{n % 30}" for n in range(90)])).startswith(
        "the label y is text with 30 values ('n0', 'n1', 'n2', ...), more than classes have; name another"
    )
    assert refused(tmp_path, good.slice(0, 0)).endswith("has no rows; check that the data is delivered")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(ParamsError, match="is not empty; name a folder that is, or a new one"):
        new_home.write(tmp_path / "full", str(tmp_path / "data.parquet"))
    with pytest.raises(DataError, match="does not exist; check that it is delivered"):
        new_home.write(tmp_path / "new", str(tmp_path / "gone.parquet"))
    for url in ("postgresql://me:secret@host/shop#payments", "https://host/payments.csv?sig=secret"):
        with pytest.raises(ParamsError, match="the URL has a password or a key, which would be committed"):
            new_home.write(tmp_path / "new", url)


def test_a_night_of_a_home_imports_the_module_of_its_own_commit(payments: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cards"
    new_home.write(folder, str(payments), survey.Options(label="is_fraud", ripe_days=14))
    words = [sys.executable, "-m", "daybreak"]
    subprocess.run([*words, "open"], cwd=folder, check=True, capture_output=True)
    night = folder / "nights/2025-06-30"
    (folder / "cards.py").write_text("raise SystemExit('the home has changed since')\n")
    code = "import runpy, sys; sys.path[0] = ''; import cards; print(cards.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=night, check=True, capture_output=True, text=True
    )
    assert Path(shown.stdout.strip()) == night / "cards.py"
    subprocess.run([*words, "ingest", "--night", "2025-06-30"], cwd=folder, check=True, capture_output=True)
    assert (night / "data/run/daybreak.txt").read_text() == f"{frame_digest()}\n"
    assert json.loads((night / "data/run/batch.json").read_text())["day"] == str(date(2025, 6, 30))


def test_folders_of_images_become_a_home_that_goes_through_every_step(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    for day in range(1, 7):
        for shade, name in ((40, "dark"), (120, "grey"), (200, "light")):
            folder = tmp_path / "photos" / f"2026-01-{day:02}" / name
            folder.mkdir(parents=True)
            for number in range(4):
                image = draw.normal(shade, 20, (12, 12)).clip(0, 255).astype(np.uint8)
                Image.fromarray(image).save(folder / f"{number}.jpg")
    made = new_home.write(tmp_path / "shades", str(tmp_path / "photos"))
    assert made.plug["classes"] == ["dark", "grey", "light"]
    assert (made.num_classes, made.images) == (3, survey.ImageColumn(column="image", size=12, color=False))
    assert formatted(tmp_path / "shades/shades.py")
    table = table_of(tmp_path / "shades", "shades:Shades")
    assert table.columns["label"] == Int(min=0, max=2)
    assert "daybreak:decodes" in (tmp_path / "shades/data/expectations.yaml").read_text()
    assert [note for note in made.notes if "try" in note] == []


def test_labels_numbered_from_0_become_classes(tmp_path: Path) -> None:
    pq.write_table(rows(y=[0, 1, 2, 3] * 10, x=[0.5] * 40), tmp_path / "data.parquet")
    made = survey.survey(str(tmp_path / "data.parquet"))
    assert made.num_classes == 4
    folder = written(made, tmp_path / "new")
    assert "TableModel(state, num_outputs=4)" in (folder / "new.py").read_text()
    assert formatted(folder / "new.py")


@pytest.mark.parametrize(
    ("labels", "regression", "said"),
    [
        ([0, 1, 2, 3, 4, 5], False, "label y: 6 classes, 0 to 5; for a number write --regression"),
        ([0, 1, 2, 3, 4, 5], True, "label y: a whole number"),
        ([0, 1, 2, 4], True, "label y: a whole number"),  # counts
        ([1, 2, 3, 4, 5], True, "label y: a whole number"),  # stars
        ([0, 1], False, "label y: 0 or 1; for a number write --regression"),
        ([0, 1], True, "label y: a whole number"),
        ([0.5, 1.25], False, "label y: a number"),
        (["no", "yes"], False, "label y: 2 classes, no, yes"),
    ],
)
def test_it_is_said_how_a_label_is_read_and_how_to_say_otherwise(
    labels: list[object], regression: bool, said: str, tmp_path: Path
) -> None:
    pq.write_table(rows(y=labels * 10, x=[0.5] * 10 * len(labels)), tmp_path / "data.parquet")
    made = survey.survey(str(tmp_path / "data.parquet"), survey.Options(regression=regression))
    assert made.label == said
    if regression:
        assert made.table.columns["y"] == Int() and not made.num_classes and not made.binary


@pytest.mark.parametrize("labels", [[0, 1, 2, 4], [1, 2, 3, 4, 5]])
def test_counts_and_stars_are_refused_with_the_option_that_makes_them_numbers(
    labels: list[int], tmp_path: Path
) -> None:
    pq.write_table(rows(y=labels * 12, x=[0.5] * 12 * len(labels)), tmp_path / "data.parquet")
    with pytest.raises(ParamsError, match=r"like counts or stars, .* write --regression to predict it as a"):
        survey.survey(str(tmp_path / "data.parquet"))


@pytest.mark.parametrize(
    ("values", "classes", "metric"),
    [
        (["no", "no", "no", "yes"], ["no", "yes"], "AUC()"),  # of two, the rarer one is 1
        (["tech", "sales", "billing", "other"], ["billing", "other", "sales", "tech"], "ClassLogLoss()"),
        ([f"a long name {n}" for n in range(4)], [f"a long name {n}" for n in range(4)], "ClassLogLoss()"),
    ],
)
def test_labels_that_are_text_become_classes_by_name(
    values: list[str], classes: list[str], metric: str, tmp_path: Path
) -> None:
    pq.write_table(rows(y=values * 12, x=[0.5, 1.5] * 24), tmp_path / "data.parquet")
    made = new_home.write(tmp_path / "new", str(tmp_path / "data.parquet"))
    text = (tmp_path / "new/new.py").read_text()
    assert metric in text and formatted(tmp_path / "new/new.py")
    table = table_of(tmp_path / "new", "new:New")
    assert table.label and list(table.label.classes) == classes
    assert table.columns["y"] == Int(min=0, max=len(table.label.classes) - 1)
    assert [note for note in made.notes if "try" in note] == []


def test_csv_of_a_spreadsheet_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Semicolons, decimal commas, Windows' letters, and times as the country writes them."""
    lines = ["Datum;Straße;Preis;y"]
    lines += [
        f"{1 + n // 24:02}.03.2026 {n % 24:02}:00;Müllergasse;{n * 37 % 96 / 8:.3f};{n % 2}"
        for n in range(96)
    ]
    (tmp_path / "a.csv").write_bytes(
        "\r\n".join(lines).replace(".", ",").replace(",03,", ".03.").encode("cp1252")
    )
    made = survey.survey(str(tmp_path / "a.csv"))
    arguments = {"encoding": "cp1252", "delimiter": ";", "decimal": ",", "cut_by": "Datum"}
    assert arguments.items() <= made.plug.items()
    assert made.plug["time"] == "%d.%m.%Y %H:%M" and made.num_days == 4
    assert made.table.columns["Preis"] == Float(min=0)
    assert made.ranges["Preis"] == (0, 95 / 8)


@pytest.mark.parametrize(
    ("columns", "decimal"),
    [
        (["0.942", "1,000"], None),  # the point is that of numbers, and the comma that of thousands
        (["3", "1,000"], None),
        (["3", "1,000,000"], None),
        (["3", "0,125"], ","),
        (["a.b", "0,942"], ","),
        (["01.12.2025", "1,5"], ","),
    ],
)
def test_a_comma_of_thousands_is_no_decimal_comma(
    columns: list[str], decimal: str | None, tmp_path: Path
) -> None:
    lines = "".join(f"2025-01-01;{';'.join(columns)};{n % 2}\n" for n in range(48))
    (tmp_path / "a.csv").write_text(f"t;a;b;y\n2025-01-01;7;;0\n{lines}")
    assert survey.survey(str(tmp_path / "a.csv"), survey.Options(time="t")).plug.get("decimal") == decimal


@pytest.mark.parametrize(("values", "decimal"), [(["4,5", "5"], ","), (["1,000", "500"], None)])
def test_a_decimal_comma_is_known_where_other_values_are_whole(
    values: list[str], decimal: str | None, tmp_path: Path
) -> None:
    lines = "".join(f"2025-01-01;{values[n % 3 == 0]};{n % 2}\n" for n in range(48))
    (tmp_path / "a.csv").write_text(f"t;a;y\n{lines}")
    made = survey.survey(str(tmp_path / "a.csv"), survey.Options(time="t"))
    assert made.plug.get("decimal") == decimal
    assert (made.table.columns["a"] == Float()) is bool(decimal)


def test_names_of_columns_that_no_rule_could_name_are_refused(tmp_path: Path) -> None:
    numbers: list[object] = [0, 1] * 24
    assert refused(tmp_path, rows(y=numbers, File_row_number=numbers)).startswith(
        "a column is called File_row_number"
    )
    assert refused(tmp_path, rows(y=numbers, x=numbers, X=numbers)).startswith(
        "columns x and X differ in upper and lower case only"
    )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_since_1970_are_known_by_their_size_where_they_are_named(unit: str, tmp_path: Path) -> None:
    times = rows(y=[0, 1] * 24)["t"].cast(pa.timestamp(unit)).cast(pa.int64())
    table = pa.table({"at": times, "y": [0, 1] * 24, "x": [0.5, 1.5] * 24})
    assert refused(tmp_path, table).startswith("no column is a time; name the one")
    assert refused(tmp_path, table, time="x").startswith("--time x is double such as 0.5, not times")
    made = survey.survey(str(tmp_path / "data.parquet"), survey.Options(time="at"))
    assert (made.plug["time"], made.days) == (unit, (date(2025, 1, 1), date(2025, 1, 2)))


def test_names_of_any_letters_go_through_every_step_and_a_column_without_one_is_left_out(
    tmp_path: Path,
) -> None:
    """As of a data frame whose index was written with it."""
    odd = "Country/Region 50% =?#"
    lines = [f'"",when,"{odd}",y'] + [
        f"{n},2026-03-{1 + n // 24:02},{'ab'[n % 2]},{n % 2}" for n in range(96)
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    made = new_home.write(tmp_path / "new", str(tmp_path / "a.csv"))
    assert left_out(made) == {"": "no: without a name"} and odd in made.table.columns
    assert [note for note in made.notes if "try" in note] == []
    names = {f"values_{odd}", "a=2Fb", "edges"}
    write_state(tmp_path, {name: np.zeros(1) for name in names})
    assert read_state(tmp_path).keys() == names
    assert not re.search("[/%?#]", "".join(path.name for path in (tmp_path / "state").iterdir()))


DAY_FIRST, MONTH_FIRST = "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"


def times_of(form: str, first: datetime, num_days: int) -> list[str]:
    """Twelve rows a day."""
    return [(first + timedelta(hours=2 * n)).strftime(form) for n in range(12 * num_days)]


def lines_of(times: list[str]) -> str:
    return "t,y\n" + "".join(f"{time},{n % 2}\n" for n, time in enumerate(times))


@pytest.mark.parametrize(
    ("form", "num_days", "a_file"),
    [
        (MONTH_FIRST, 14, 99),  # of which the first twelve could have the day first
        (DAY_FIRST, 14, 99),
        (MONTH_FIRST, 12, 1),  # by the names of the files
        (DAY_FIRST, 12, 1),
        ("%d.%m.%y", 3, 99),  # not of the year 25
        ("%m/%d/%y", 14, 99),
        ("%m/%d/%Y %I:%M %p", 14, 99),
    ],
)
def test_the_format_of_times_is_known_by_all_rows(
    form: str, num_days: int, a_file: int, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    first = datetime(2025, 12, 1)
    times = times_of(form, first, num_days)
    for start in range(0, num_days, a_file):
        path = tmp_path / f"rows/{first.date() + timedelta(start)}.csv"
        path.write_text(lines_of(times[12 * start : 12 * (start + a_file)]))
    url = str(tmp_path / "rows" if a_file == 1 else path)
    inspected = survey.survey(url)
    assert (inspected.plug["time"], inspected.days[0], inspected.num_days) == (form, first.date(), num_days)


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("%Y-%m-%d %H:%M:%S UTC", None),  # BigQuery's
        ("%Y-%m-%d %H:%M:%S,123", None),  # of Python's log
        ("%Y-%m-%dT%H:%M:%S.123456789Z", None),
        ("%d-%b-%y", "%d-%b-%y"),  # Oracle's
        ("%d-%b-%y %I.%M.%S.250000 %p", "%d-%b-%y %I.%M.%S.%f %p"),
        ("%b %d, %Y %H:%M", "%b %d, %Y %H:%M"),
        ("%a, %d %b %Y %H:%M:%S +0000", "%a, %d %b %Y %H:%M:%S %z"),  # of mail
        ("%d/%b/%Y:%H:%M:%S +0000", "%d/%b/%Y:%H:%M:%S %z"),  # of a web server
    ],
)
def test_times_as_other_programs_write_them_are_read(form: str, wanted: str | None, tmp_path: Path) -> None:
    times = times_of(form, datetime(2025, 3, 5), 3)
    lines = [
        f'"{time.upper() if form.startswith("%d-%b") else time}",{n % 2}' for n, time in enumerate(times)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["t,y", *lines]))
    inspected = survey.survey(str(tmp_path / "a.csv"), survey.Options(time="t"))
    assert inspected.plug.get("time") == wanted
    assert inspected.days == tuple(date(2025, 3, day) for day in (5, 6, 7))


def test_digits_in_large_texts_as_pandas_writes_them_are_looked_at_as_times(tmp_path: Path) -> None:
    times = pa.array([datetime(2025, 3, 1 + n // 20) for n in range(60)], pa.timestamp("us"))
    users = pa.array([str(n) for n in range(60)], pa.large_string())
    pq.write_table(pa.table({"t": times, "user": users, "y": [0, 1] * 30}), tmp_path / "a.parquet")
    assert survey.survey(str(tmp_path / "a.parquet")).table.time == "t"


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (
            b"PK\x03\x04",
            r"^the newest file is an Excel workbook; save its sheet as CSV UTF-8, and read that$",
        ),
        (b"SQLite format 3\0", r"^the newest file is a database; read it as --from 'sqlite:///PATH#TABLE'$"),
    ],
)
def test_a_workbook_or_a_database_is_not_taken_for_text(head: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "sales.file").write_bytes(head + bytes(100))
    with pytest.raises(DataError, match=what):
        survey.survey(str(tmp_path / "sales.file"))


def test_dates_before_1970_are_times(tmp_path: Path) -> None:
    lines = [f"1958{n // 28 + 1:02}{n % 28 + 1:02},{n % 9 + 0.5}" for n in range(150)]
    (tmp_path / "co2.csv").write_text("\n".join(["date,y", *lines]))
    made = survey.survey(str(tmp_path / "co2.csv"))
    assert made.plug["time"] == "%Y%m%d" and made.days[0] == date(1958, 1, 1)


def test_where_days_begin_is_a_guess_where_times_have_offsets(tmp_path: Path) -> None:
    for offset, is_guess in (("+01:00", True), ("Z", False)):
        lines = [f"2025-01-0{n // 20 + 1}T12:00:00{offset},{n % 2}" for n in range(80)]
        (tmp_path / "a.csv").write_text("\n".join(["t,y", *lines]))
        guesses = survey.survey(str(tmp_path / "a.csv")).guesses
        assert ("a day begins at midnight in UTC (--zone)" in guesses) == is_guess


def test_times_of_no_known_format_are_refused_with_the_option_that_names_it(tmp_path: Path) -> None:
    form = "%Y year %j day"
    (tmp_path / "a.csv").write_text(lines_of(times_of(form, datetime(2025, 3, 5), 3)))
    for time in ("", "t"):
        with pytest.raises(ParamsError, match="format, as --time-format '%d/%m/%Y %H:%M'"):
            survey.survey(str(tmp_path / "a.csv"), survey.Options(time=time))


def test_who_names_the_format_decides_whether_the_day_is_first(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(lines_of(times_of(MONTH_FIRST, datetime(2025, 12, 1), 12)))
    asked = (
        f"^t may be {DAY_FIRST} or {MONTH_FIRST}, which give other days, as of 12/01/2025 00:00; name the "
        f"right one by --time-format, as --time-format '{MONTH_FIRST}'$"
    )
    with pytest.raises(ParamsError, match=asked):
        survey.survey(str(path))
    for time in ("", "t"):
        inspected = survey.survey(str(path), survey.Options(time=time, time_format=MONTH_FIRST))
        assert inspected.days[-1] == date(2025, 12, 12)
    with pytest.raises(ParamsError, match=r"^no column is a time as %d.%m.%y; name the one"):
        survey.survey(str(path), survey.Options(time_format="%d.%m.%y"))


def test_rows_in_order_tell_whether_the_day_is_first(tmp_path: Path) -> None:
    days = [datetime(2025, month, day) for month in (1, 2, 3) for day in range(1, 13)]
    lines = [time for day in days for time in times_of(MONTH_FIRST, day, 1)]
    (tmp_path / "a.csv").write_text(lines_of(lines))
    assert survey.survey(str(tmp_path / "a.csv")).plug["time"] == MONTH_FIRST


@pytest.mark.parametrize(
    ("values", "column", "ends"),
    [
        (pa.array(range(2**53 - 48, 2**53)), Int(), (2**53 - 48, 2**53 - 1)),
        (pa.array(range(2**60, 2**60 + 48)), Id(), None),
        (pa.array(range(2**63, 2**63 + 48), pa.uint64()), Id(), None),
        (pa.array([1.0, None, 2.0, np.inf] * 12), Float(nullable=True), (1, 2)),
        (pa.array([-np.inf, np.inf] * 24), Float(), None),
    ],
)
def test_numbers_that_are_large_or_infinite_are_looked_at(
    values: pa.Array, column: object, ends: object, tmp_path: Path
) -> None:
    pq.write_table(rows(x=values, y=[0, 1] * 24), tmp_path / "a.parquet")
    made = survey.survey(str(tmp_path / "a.parquet"))
    assert (made.table.columns["x"], made.ranges.get("x")) == (column, ends)


def test_ids_beyond_a_float_are_told_apart_and_an_infinite_label_is_a_number(tmp_path: Path) -> None:
    lines = "".join(f"2025-01-01,{2**60 + n},{2**63 + n},{n / 7 if n else 'inf'}\n" for n in range(48))
    (tmp_path / "a.csv").write_text(f"t,user_id,code,y\n{lines}")
    columns = survey.survey(str(tmp_path / "a.csv")).table.columns
    assert (columns["user_id"], columns["code"], columns["y"]) == (Id(), Id(), Float())


def written(survey_: survey.Survey, folder: Path, title: str = "new") -> Path:
    """The files of a home of what was found, in a folder."""
    for path, text in new_home.files(survey_, "new", Choice(), title=title).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_words_of_the_template_in_names_of_columns_stay_as_they_are(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for day in (1, 2):
            folder = tmp_path / "pets" / f"2026-03-{day:02}" / name
            folder.mkdir(parents=True)
            Image.new("RGB", (16, 16), (day, 0, 0)).save(folder / "0.png")
    found = survey.survey(str(tmp_path / "pets"))
    images, label = found.images, found.table.label
    assert images and label
    for word in ("SIZE_IMG COLOR CHANNELS CLASSES LABEL", "IMAGE", '"LABEL"'):
        text = module_text(replace(found, images=replace(images, column=word)), "new")
        assert f"pixels(rows[{json.dumps(word)}], size=16, color=True)" in text
        columns = {word if name == label.column else name: of for name, of in found.table.columns.items()}
        table = replace(found.table, columns=columns, label=replace(label, column=word))
        text = module_text(replace(found, table=table), "new")
        assert f"batch[{json.dumps(word)}] == n for n in range(2)" in text
        compile(text, "new.py", "exec")


def test_letters_beyond_the_first_plane_and_what_does_not_print_are_read_as_written(tmp_path: Path) -> None:
    odd = "pri\U0001f600ce\x7f\x85\u2028"
    lines = [f"when,{odd},y", *(f"2026-03-{1 + n // 24:02},{n * 37 % 96 or ''},{n % 2}" for n in range(96))]
    (tmp_path / "\U0001f600.csv").write_text("\n".join(lines))
    made = survey.survey(str(tmp_path / "\U0001f600.csv"))
    assert odd in made.table.columns
    folder = written(made, tmp_path / "new")
    assert str(tmp_path / "\U0001f600.csv") in str(params.load(folder).source)
    limits = suite.load(folder / "data/expectations.yaml")
    assert odd in {rule.kwargs["column"] for rule in limits.rows}
    assert f"nulls_of_{odd}" in limits.figures


@pytest.mark.parametrize("title", ["2025", "true", "null", "1e3", "2025-01-01", "card fraud"])
def test_the_name_of_any_folder_is_that_of_a_model(tmp_path: Path, title: str) -> None:
    (tmp_path / "a.csv").write_text(lines_of(times_of("%Y-%m-%d %H:%M", datetime(2026, 3, 1), 3)))
    folder = written(survey.survey(str(tmp_path / "a.csv")), tmp_path / "new", title)
    assert params.load(folder).register_.name == title.replace(" ", "-")


def test_a_folder_that_would_have_the_name_of_others_in_mlflow_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,y\n")
    with pytest.raises(ParamsError, match="'данные' gives the model no name in MLflow; use letters"):
        new_home.write(tmp_path / "данные", str(tmp_path / "a.csv"))
    assert not (tmp_path / "данные").exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.7976931348623157e308, {}),
        (8e306, {"max_value": 8.8e307}),
        (5e-324, {"max_value": 0}),
    ],
)
def test_extreme_numbers_have_no_bound_or_0(tmp_path: Path, value: float, expected: dict[str, float]) -> None:
    lines = ["t,x,y", *(f"2026-03-{1 + n // 24:02},{(n % 3 == 1) * value},{n % 2}" for n in range(96))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    folder = written(survey.survey(str(tmp_path / "a.csv")), tmp_path / "new")
    bounds = [rule.kwargs for rule in suite.load(folder / "data/expectations.yaml").rows]
    assert [each for each in bounds if each["column"] == "x"] == (
        [{"column": "x", **expected}] if expected else []
    )


@pytest.mark.parametrize(("low", "high"), [(44.9, 44.91), (-93.33, -93.32)], ids=["latitude", "longitude"])
def test_bounds_of_a_narrow_range_far_from_0_hold_it(tmp_path: Path, low: float, high: float) -> None:
    lines = [
        "t,x,y",
        *(f"2026-03-{1 + n // 24:02},{low + n % 3 * (high - low) / 2},{n % 2}" for n in range(96)),
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    folder = written(survey.survey(str(tmp_path / "a.csv")), tmp_path / "new")
    (bounds,) = (
        rule.kwargs
        for rule in suite.load(folder / "data/expectations.yaml").rows
        if rule.kwargs["column"] == "x"
    )
    assert bounds["min_value"] < low < high < bounds["max_value"]


def files_of_days(folder: Path, change: dict[int, Callable[[pd.DataFrame], pd.DataFrame]]) -> Path:
    folder.mkdir()
    random = np.random.default_rng(0)
    for n in range(6):
        day = date(2025, 3, 3) + timedelta(days=n)
        frame = pd.DataFrame(
            {
                "time": [f"{day} {hour:02}:00:00" for hour in range(24)],
                "amount": np.arange(24) + 0.5,
                "label": random.permutation([0, 1] * 12),
            }
        )
        change.get(n, lambda frame: frame)(frame).to_csv(folder / f"{day}.csv", index=False)
    return folder


def test_a_column_that_came_in_the_history_is_null_before_it(tmp_path: Path) -> None:
    data = files_of_days(tmp_path / "data", {n: lambda frame: frame.assign(extra=1.5) for n in range(3, 6)})
    found = survey.survey(str(data), survey.Options(time="time", label="label"))
    assert found.table.columns["extra"].nullable and len(found.days) == 6
    assert [note for note in found.notes if "extra is in the data since 2025-03-06, and null" in note]


def test_a_column_that_went_in_the_history_is_left_out(tmp_path: Path) -> None:
    data = files_of_days(tmp_path / "data", {n: lambda frame: frame.assign(old=1.5) for n in range(3)})
    found = survey.survey(str(data), survey.Options(time="time", label="label"))
    assert "old" not in found.table.columns
    assert "old is not in the data since 2025-03-05, and left out" in found.notes


def test_the_day_whose_columns_are_others_is_named(tmp_path: Path) -> None:
    data = files_of_days(tmp_path / "data", {2: lambda frame: frame.rename(columns=str.upper)})
    with pytest.raises(DataError, match=r"^2025-03-05 has other columns than 5 of 6 days: it has AMOUNT"):
        survey.survey(str(data), survey.Options(time="time", label="label"))


@pytest.mark.parametrize("days", [1, 7])
def test_files_whose_names_are_not_the_days_of_their_rows_are_cut_by_time(days: int, tmp_path: Path) -> None:
    data = files_of_days(tmp_path / "data", {})
    for path in sorted(data.iterdir(), reverse=True):
        day = date.fromisoformat(path.stem)
        path.rename(data / f"export_{day + timedelta(days=days)}.csv")
    found = survey.survey(str(data), survey.Options(time="time", label="label"))
    assert found.plug["days_by"] == "time"
    assert list(found.days) == [date(2025, 3, 3) + timedelta(days=n) for n in range(6)]
    assert [note for note in found.notes if "so that days are cut by the times of their rows" in note]


def test_init_says_which_files_it_does_not_read(tmp_path: Path) -> None:
    data = files_of_days(tmp_path / "data", {})
    (data / "2025-03-09.xlsx").write_bytes(b"PK")
    notes = survey.survey(str(data), survey.Options(time="time", label="label")).notes
    assert [note for note in notes if note.startswith("1 file is left out: 2025-03-09.xlsx, as it is not")]


def test_utf_16_is_read_and_without_its_mark_needs_the_option(tmp_path: Path) -> None:
    data = files_of_days(tmp_path / "data", {})
    for path in data.iterdir():
        path.write_bytes(path.read_text().encode("utf-16-le"))
    with pytest.raises(ParamsError, match="name the encoding, as --encoding utf-16-le"):
        survey.survey(str(data), survey.Options(time="time", label="label"))
    with pytest.raises(ParamsError, match="--encoding is 'utf17', which is not a known encoding"):
        survey.survey(str(data), survey.Options(time="time", label="label", encoding="utf17"))
    found = survey.survey(str(data), survey.Options(time="time", label="label", encoding="utf-16-le"))
    assert found.plug["encoding"] == "utf-16-le" and found.num_days == 6


def delivered(folder: Path, num_days: int, num_rows: int = 60, **columns: Callable[[int], object]) -> str:
    """The URL of a folder with a file a day: time, account, amount and label, and whatever else is given."""
    folder.mkdir()
    for number in range(num_days):
        day, draw = datetime(2025, 3, 3) + timedelta(number), np.random.default_rng(number)
        times = [day + timedelta(minutes=int(minute)) for minute in np.sort(draw.integers(0, 1440, num_rows))]
        others = {name: values(number) for name, values in columns.items()}
        given = {
            "time": times,
            "account": [f"A{n}" for n in draw.integers(0, 55, num_rows)],
            "amount": draw.lognormal(3, 1, num_rows).round(2),
            "label": draw.integers(0, 2, num_rows),
            **others,
        }
        pq.write_table(pa.table(given), folder / f"{day:%Y-%m-%d}.parquet")
    return str(folder)


def test_times_that_stand_for_unknown_ones_are_said_and_left_out_of_the_history(tmp_path: Path) -> None:
    url = delivered(tmp_path / "days", 6)
    every = pa.concat_tables(pq.read_table(path) for path in sorted(Path(url).iterdir()))
    odd = [datetime(9999, 12, 31), datetime(1900, 1, 1), *every["time"].to_pylist()[2:]]
    pq.write_table(every.set_column(0, "time", pa.array(odd, pa.timestamp("us"))), tmp_path / "all.parquet")
    made = new_home.write(
        tmp_path / "new", str(tmp_path / "all.parquet"), survey.Options(label="label", unit="account")
    )
    assert (made.num_days, made.days[-1]) == (6, date(2025, 3, 8))
    assert params.load(tmp_path / "new").ingest.history_days == 5
    (said,) = made.notes  # so that `try` took the newest of these days
    assert said.startswith(
        "2 days (1900-01-01 and 9999-12-31), far from the others (2025-03-03 to 2025-03-08)"
    )


def test_a_home_whose_gate_could_not_decide_is_said_at_once(tmp_path: Path) -> None:
    url = delivered(tmp_path / "days", 6, account=lambda n: [f"P{k % 12}" for k in range(60)])
    made = new_home.write(tmp_path / "new", url, survey.Options(label="label", unit="account"))
    assert made.table.columns["account"] == Category()  # a few that come again and again are a feature
    (said,) = made.notes
    assert said.startswith("no night could decide, as 1 held-out day (2025-03-08) has 12 values of account, ")


def test_columns_that_follow_the_calendar_are_written_without_limits(tmp_path: Path) -> None:
    url = delivered(tmp_path / "days", 6, seq=lambda n: range(60 * n, 60 * n + 60), month=lambda n: [3] * 60)
    made = survey.survey(url)
    folder = written(made, tmp_path / "new")
    text = (folder / "new.py").read_text()
    assert '"seq": Int(off=("drift", "limits")),' in text and formatted(folder / "new.py")
    limits = suite.load(folder / "data/expectations.yaml")
    assert {rule.kwargs["column"] for rule in limits.rows} == {"amount"}
    assert not {"seq", "month"} & set(limits.drift)
    uses = {note.name: note.use for note in made.columns}
    assert (uses["seq"], uses["month"]) == (
        "yes; rises from day to day: no limits",
        "yes; is the month: no limits",
    )


def test_ranges_of_a_few_days_are_wide_proposals_and_0_is_a_least_value_only_where_it_is_common(
    tmp_path: Path,
) -> None:
    draw = np.random.default_rng(0)
    url = delivered(
        tmp_path / "days",
        6,
        celsius=lambda n: draw.uniform(2, 8, 60).round(1),
        pieces=lambda n: [0, 1, 5] * 20,
    )
    made = survey.survey(url)
    assert (made.table.columns["celsius"], made.table.columns["pieces"]) == (Float(), Int(min=0))
    rules = suite.load(written(made, tmp_path / "new") / "data/expectations.yaml").rows
    bounds = {rule.kwargs["column"]: rule.kwargs for rule in rules}
    assert bounds["celsius"]["min_value"] < -50  # no winter is refused


def test_a_column_of_a_type_that_no_table_has_is_left_out_with_what_to_deliver_instead(
    tmp_path: Path,
) -> None:
    columns = {
        "shop": [{"id": n, "city": "Ulm"} for n in range(60)],
        "tags": [["new"] if n % 2 else None for n in range(60)],
        "sizes": [[1.5] * (1 + n % 3) for n in range(60)],
        "took": [timedelta(seconds=n) for n in range(60)],
    }
    vectors = delivered(tmp_path / "vectors", 3, vector=lambda _: [[1.5, 2.5]] * 60)
    with pytest.raises(ParamsError, match=r"^--unit vector is a list; or name another column$"):
        survey.survey(vectors, survey.Options(unit="vector"))
    url = delivered(
        tmp_path / "days", 3, **{name: lambda _, each=each: each for name, each in columns.items()}
    )
    for name in columns:
        with pytest.raises(ParamsError, match=rf"^--unit {name} is .*deliver.*; or name another column$"):
            survey.survey(url, survey.Options(unit=name))
    assert left_out(survey.survey(url)) == {
        "shop": "no: fields within a column, which no table has; have them delivered as columns, such as "
        "shop_id, shop_city",
        "tags": "no: of type list<element: string>, and a table has lists of floats only; have it "
        "delivered as text or columns",
        "sizes": "no: a list of different lengths; have as many numbers delivered in each row",
        "took": "no: of type duration[us], which no table has; have it delivered as numbers, text or times",
    }


def test_a_column_may_be_left_out_but_not_the_one_that_is_needed(tmp_path: Path) -> None:
    url = delivered(tmp_path / "days", 3, code=lambda n: ["x"] * 60)
    made = survey.survey(url, survey.Options(without=["code"]))
    assert "code" not in made.table.columns and left_out(made) == {"code": "no: left out by --without"}
    with pytest.raises(ParamsError, match=r"^--without cod is not in the data; name one of time, account"):
        survey.survey(url, survey.Options(without=["cod"]))
    with pytest.raises(
        ParamsError, match=r"^--without label is the label, which a table needs; name another"
    ):
        survey.survey(url, survey.Options(without=["label"]))


def test_a_label_of_few_rows_and_days_that_were_not_looked_at_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daybreak.extensions.init.survey_source.MOST_DAYS", 4)
    made = survey.survey(
        delivered(tmp_path / "days", 6, label=lambda n: [int(n == 4 and k < 3) for k in range(60)])
    )
    older, few = made.notes
    assert older.startswith("types and limits are from the newest 4 of 6 days, from 2025-03-05 on")
    assert few.startswith("only 3 of 240 rows have the label label = 1, which is little to learn from")


def test_classes_that_only_older_days_have_keep_their_numbers(tmp_path: Path) -> None:
    days = pd.date_range("2023-01-01", periods=420)  # it looks at 400
    weather = ["snow" if n < 10 else ["fog", "rain", "sun"][n % 3] for n in range(len(days))]
    pd.DataFrame({"date": days, "wind": range(len(days)), "weather": weather}).to_csv(tmp_path / "all.csv")
    made = survey.survey(str(tmp_path / "all.csv"), survey.Options(label="weather"))
    assert made.table.label and made.table.label.classes == ("fog", "rain", "snow", "sun")
    assert made.num_classes == 4
    assert made.table.columns["weather"] == Int(min=0, max=3)


def test_days_far_apart_are_all_in_the_window(tmp_path: Path) -> None:
    days = pd.date_range("2015-01-01", periods=60, freq="MS")
    sales = np.random.default_rng(0).normal(size=60)
    pd.DataFrame({"date": days, "wind": range(60), "sales": sales}).to_csv(tmp_path / "all.csv")
    text = params_text(
        survey.survey(str(tmp_path / "all.csv"), survey.Options(label="sales")), "x", Choice(), title="x"
    )
    assert f"window_days: {(days[-1] - days[0]).days + 1} " in text


def test_the_day_in_names_of_folders_is_not_taken_for_the_time_of_a_row(tmp_path: Path) -> None:
    for day in pd.date_range("2025-03-03", periods=4):
        folder = tmp_path / f"day={day.date()}"
        folder.mkdir()
        at = [day + timedelta(hours=hour) for hour in range(12)]
        pd.DataFrame({"at": at, "y": [0, 1] * 6}).to_csv(folder / "rows.csv", index=False)
    assert survey.survey(str(tmp_path)).table.time == "at"


@pytest.mark.parametrize("model", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("kind", ["binary", "classes", "number"])
def test_a_module_with_trees_makes_their_estimator(model: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    labels: Callable[[int], float] = {
        "binary": lambda i: i % 2,
        "classes": lambda i: i % 4,
        "number": lambda i: i / 7,
    }[kind]
    lines = [f"2025-03-{1 + i % 9:02},{i % 11},{labels(i)}" for i in range(900)]
    path.write_text("time,a,label\n" + "\n".join(lines) + "\n")
    surveyed = survey.survey(str(path))
    text = module_text(surveyed, "rows", model=model)
    (tmp_path / "rows.py").write_text(text)
    code = "import rows; print(type(rows.Rows().estimator({})).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    prefix = {"lightgbm": "LGBM", "xgboost": "XGB"}[model]
    assert done.stdout.strip() == prefix + ("Regressor" if kind == "number" else "Classifier")
    written = params_text(surveyed, "rows", Choice(model=model, epochs=100), title="rows")
    assert "epochs: 100 " in written
    assert "cold_every: 1 " in written
    assert "batch_size: " not in written.partition("train:")[2].partition("evaluate:")[0]


def test_a_model_that_is_not_known_is_named_with_those_that_are(payments: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ParamsError, match=r"--model catboost is not known; choose network, lightgbm, xgboost"
    ):
        new_home.write(tmp_path / "home", str(payments), model="catboost")
    assert not (tmp_path / "home").exists()


def test_trees_need_scikit_learn_too_before_the_data_is_read(monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else found(name))
    with pytest.raises(ParamsError, match=r"sklearn is not installed; pip install 'daybreak\[estimators\]'"):
        new_home.write(tmp_path / "home", "nothing.parquet", model="lightgbm")

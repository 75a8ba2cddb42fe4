"""The table of columns that `init` prints: what each is, and why the model does not see it."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.contract.table import AnyColumn, Bytes, Category, Float, Id, Int, Label, Table, Text, Time, days
from daybreak.extensions.init import survey_columns
from daybreak.extensions.init.survey import survey
from daybreak.extensions.init.survey_columns import ColumnNote

NUM = 40
TIMES = [datetime(2025, 3, 3) + timedelta(hours=n) for n in range(NUM)]


def note_of(column: AnyColumn, values: list[object], **table: object) -> ColumnNote:
    rows = pa.table({"t": TIMES, "x": values, "y": [0, 1] * (NUM // 2)})
    columns = {"t": Time(), "x": column, "y": Int(min=0, max=1)}
    made = Table(time="t", columns=columns, label=Label("y"), **table)  # type: ignore[arg-type]
    return survey_columns.described(rows, made, unlimited={}, left_out={})[1]


@pytest.mark.parametrize(
    ("column", "values", "shown", "use"),
    [
        (Float(nullable=True), [None, 1.5, 2.0, 9.25] * 10, "1.5 to 9.25", "yes"),
        (Category(), ["a", "a", "a", "b"] * 10, "a (75 %), b (25 %)", "yes"),
        (Category(), [f"c{n % 5}" for n in range(NUM)], "5, as c0, c1, c2", "yes"),
        (Category(), ["EUR"] * NUM, "EUR (100 %)", "yes, but it is the same in all rows"),
        (Id(), [f"i{n}" for n in range(NUM)], "40 different", "no: an id, 40 values"),
        (Time(), TIMES, "2025-03-03 to 2025-03-04", "no: a second time"),
        (Bytes(), [b"x"] * NUM, "", "no: bytes"),
        (
            Text(),
            [f"so it is {n}" for n in range(NUM)],
            "40 different",
            "yes, its length and words",
        ),
    ],
)
def test_a_column_is_shown_with_its_values_and_whether_the_model_sees_it(
    column: AnyColumn, values: list[object], shown: str, use: str
) -> None:
    note = note_of(column, values)
    assert (note.kind, note.values, note.use) == (type(column).__name__, shown, use)
    assert note.nulls == values.count(None) / NUM


@pytest.mark.parametrize(
    ("hours", "use"), [(1, "yes, the time of day and of week"), (24, "yes, the day of the week")]
)
def test_dates_alone_have_no_time_of_day(hours: int, use: str) -> None:
    times = [TIMES[0] + timedelta(hours=hours * n) for n in range(NUM)]
    table = Table(time="t", columns={"t": Time(), "y": Int()}, label=Label("y"))
    rows = pa.table({"t": times, "y": range(NUM)})
    assert survey_columns.described(rows, table, unlimited={}, left_out={})[0].use == use


def test_the_unit_is_seen_only_as_a_category() -> None:
    assert note_of(Id(), [f"i{n}" for n in range(NUM)], unit="x").use == "no: the unit, 40 of them"
    assert note_of(Category(), ["a", "b"] * 20, unit="x").use == "yes, and the unit"


def test_the_label_is_shown_by_its_classes_and_when_it_is_known() -> None:
    label = Label("y", ripe_after=days(3), classes=("no", "yes"))
    table = Table(time="t", columns={"t": Time(), "y": Int(min=0, max=1)}, label=label)
    rows = pa.table({"t": TIMES, "y": [0, 0, 0, 1] * 10})
    note = survey_columns.described(rows, table, unlimited={}, left_out={})[-1]
    assert (note.values, note.use) == ("no (75 %), yes (25 %)", "is predicted, known 3 days later")


def test_a_number_that_stands_for_a_missing_one_is_seen() -> None:
    values = np.random.default_rng(0).uniform(0, 50, NUM).round(1)
    table = Table(time="t", columns={"t": Time(), "x": Float(), "y": Float()}, label=Label("y"))

    def said(x: np.ndarray) -> list[str]:
        return survey_columns.stand_ins(pa.table({"t": TIMES, "x": x, "y": values}), table)

    assert (
        said(values) == [] and said(np.where(np.arange(NUM) < 1, -999, values)) == []
    )  # one may be an error
    (sentence,) = said(np.where(np.arange(NUM) < 3, -999, values))
    assert sentence.startswith("x is -999 in 3 of 40 rows, far from the others, ")


def test_a_wide_table_fits_a_screen_and_what_is_left_out_stays_in_it() -> None:
    plain = [ColumnNote(name=f"x{n}", kind="Float", nulls=0, values="0 to 1", use="yes") for n in range(500)]
    odd = ColumnNote(
        name="a name that is far too long for a line", kind="", nulls=0, values="", use="no: null"
    )
    lines = survey_columns.lines([*plain, odd])
    assert len(lines) < 25 and lines[-1] == "and 500 more columns, 500 Float; README.md lists all"
    assert "a name that is far too …" in lines[1]
    assert survey_columns.markdown([*plain, odd]).count("\n") == 502


def test_names_and_values_of_data_end_no_row_of_the_table() -> None:
    note = ColumnNote(name="a|`b\nc", kind="Category", nulls=0.5, values="x|y\x1b[2J", use="yes")
    assert (
        survey_columns.markdown([note]).splitlines()[-1]
        == "| `a\\|'b c` | Category | 50 % | x\\|y [2J | yes |"
    )
    assert "\x1b" not in "".join(survey_columns.lines([note]))


def test_a_vector_that_is_null_in_some_rows_is_left_out_and_why_is_said(tmp_path: Path) -> None:
    rows = {"time": TIMES, "v": [[1.0, 2.0], None] * 20, "w": [[1.0, 2.0]] * NUM, "label": [0, 1] * 20}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    made = survey(str(tmp_path / "rows.parquet"))
    assert set(made.table.columns) == {"time", "w", "label"}
    assert made.table.columns["w"] == Float(size=2)
    (note,) = (note for note in made.columns if note.name == "v")
    assert note.use.startswith("no: a list that is null in some rows; have zeros delivered there")

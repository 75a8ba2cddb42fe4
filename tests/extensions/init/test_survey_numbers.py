"""`init` reads texts as numbers, says so, and a night reads the same numbers."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.sections import Plug
from daybreak.contract.table import Category, Float, Id, Int
from daybreak.data.casts import conform
from daybreak.data.partitions import PART
from daybreak.data.source import Files
from daybreak.extensions.init.survey import Survey, survey
from daybreak.extensions.init.survey_numbers import symbol_of
from daybreak.extensions.init.survey_rows import Options

NUM = 40


def written(folder: Path, *, sign: str = ",", **columns: list[str]) -> str:
    """A file of CSV with a time, these columns, whose values repeat, and a label."""
    texts = {"t": ["2025-01-01", "2025-01-02"], **columns}
    lines = [sign.join([*texts, "y"])]
    for n in range(NUM):
        values = [
            values[n * len(values) // NUM if name == "t" else n % len(values)]
            for name, values in texts.items()
        ]
        lines.append(sign.join(f'"{value}"' for value in [*values, str(n % 2)]))
    (folder / "a.csv").write_text("\n".join(lines))
    return str(folder / "a.csv")


def read(made: Survey, folder: Path) -> pa.Table:
    """The rows of the first day, as `ingest` reads them by what `init` settled."""
    Plug(**made.plug).make().fetch(made.days[0], folder)
    return conform(pq.read_table(folder / PART, partitioning=None), made.table, origin="x")


@pytest.mark.parametrize(
    ("sign", "texts", "numbers", "column", "plug"),
    [
        (",", ["$1,234.50", "$5.25"], [1234.5, 5.25], Float(symbol="$"), {"thousands": ","}),
        (",", ["1,234", "5"], [1234, 5], Int(), {"thousands": ","}),
        (";", ["1.234,50", "5"], [1234.5, 5], Float(), {"decimal": ",", "thousands": "."}),
        (";", ["4,5", "5"], [4.5, 5], Float(), {"decimal": ","}),
        (",", ["1 234", "-5"], [1234, -5], Int(), {"thousands": " "}),
        (",", ["1'234.5", "5"], [1234.5, 5], Float(), {"thousands": "'"}),
        (",", ["12 %", "7 %"], [12, 7], Int(symbol="%"), {}),
        (",", ["EUR 12.5", "EUR 7"], [12.5, 7], Float(symbol="EUR"), {}),
        (",", ["12.5 kg", "7 kg"], [12.5, 7], Float(symbol="kg"), {}),
        (",", ["1e3", "2.5E-1"], [1000, 0.25], Float(), {}),
        (",", ["NA", "7"], [None, 7], Int(nullable=True), {}),
        (",", ["-", "7.5"], [None, 7.5], Float(nullable=True), {}),
    ],
)
def test_numbers_are_read_as_they_are_written_by_init_and_by_nights(
    sign: str, texts: list[str], numbers: list[float], column: object, plug: dict[str, str], tmp_path: Path
) -> None:
    made = survey(written(tmp_path, sign=sign, x=texts))
    assert made.table.columns["x"] == column
    assert {key: made.plug[key] for key in ("decimal", "thousands") if key in made.plug} == plug
    assert read(made, tmp_path)["x"].to_pylist()[:2] == numbers


@pytest.mark.parametrize(
    "texts", [["A12", "A7"], ["12A", "7A"], ["192.168.1.1", "10.0.0.1"], ["007", "12"], ["0x1F", "0x2A"]]
)
def test_codes_are_not_numbers(texts: list[str], tmp_path: Path) -> None:
    made = survey(written(tmp_path, x=texts))
    assert made.table.columns["x"] == Category() and not any(note.startswith("x") for note in made.notes)


def test_a_word_for_null_stays_a_value_of_a_category(tmp_path: Path) -> None:
    made = survey(written(tmp_path, country=["NA", "DE", "FR"], n=["NA", "1", "2"]))
    assert (made.table.columns["country"], made.table.columns["n"]) == (
        Category(),
        Int(nullable=True),
    )
    assert "n: 'NA' in 14 of 40 values, read as null" in made.notes
    rows = read(made, tmp_path)
    assert rows["country"][0].as_py() == "NA" and rows["n"][0].as_py() is None


def test_an_unknown_word_in_numbers_is_named_with_the_option_that_settles_it(tmp_path: Path) -> None:
    url = written(tmp_path, x=["1.5", "n.v.", "2", "3"])
    made = survey(url)
    assert made.table.columns["x"] == Category()
    assert made.notes[0] == (
        "x stays text: 10 of 40 values are not numbers, such as 'n.v.' in row 2 of 2025-01-01; if it stands "
        "for no value, write --nulls 'n.v.'"
    )
    settled = survey(url, Options(nulls="n.v.,missing"))
    assert settled.table.columns["x"] == Float(nullable=True)
    assert settled.plug["nulls"] == ["n.v.", "missing"]
    assert read(settled, tmp_path)["x"].to_pylist()[:3] == [1.5, None, 2]
    with pytest.raises(ParamsError, match=r"^the label x stays text: 10 of 40 .* --nulls 'n.v.'$"):
        survey(url, Options(label="x"))
    assert survey(url, Options(label="x", nulls="n.v.")).label == "label x: a number"


def test_a_comma_that_may_be_either_is_asked_for(tmp_path: Path) -> None:
    url = written(tmp_path, sign=";", x=["1,000", "500"])
    assert survey(url).notes[0] == (
        "x stays text: '1,000' may be 1000 or 1.000; write --thousands , or, where the comma is the decimal "
        "sign, --thousands ."
    )
    for thousands, first in ((",", 1000), (".", 1)):
        assert read(survey(url, Options(thousands=thousands)), tmp_path)["x"][0].as_py() == first


def test_numbers_in_texts_of_a_typed_source_are_numbers_where_no_code_is_written_so(tmp_path: Path) -> None:
    rows = {
        "t": pa.array(range(NUM), pa.timestamp("s")),
        "y": [0, 1] * 20,
        "code": ["12", "7"] * 20,
        "paid": ["$1.50", "$2"] * 20,
        "gap": ["NA", "3"] * 20,
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    columns = survey(str(tmp_path / "a.parquet")).table.columns
    assert (columns["code"], columns["paid"]) == (Category(), Float(symbol="$"))
    assert columns["gap"] == Int(nullable=True)


@pytest.mark.parametrize(
    ("texts", "symbol"),
    [
        (["\u20ac 5", "-\u20ac7,50"], "\u20ac"),
        (["(US$5)", "US$ 7"], "US$"),
        (["5 km/h", "7 km/h"], "km/h"),
        (["5 kg", "7 g", "8 oz"], ""),
        (["INV 5", "INV 7"], ""),
        (["5", "7"], ""),
        (["1e5", "2e-3"], ""),
    ],
)
def test_a_symbol_is_a_currency_or_a_unit_beside_most_numbers(texts: list[str], symbol: str) -> None:
    assert symbol_of(pa.array(texts)) == symbol


def test_ids_keep_all_their_digits(tmp_path: Path) -> None:
    texts = [str(2**60 + n) for n in range(NUM)]
    made = survey(written(tmp_path, tweet=texts))
    assert made.table.columns["tweet"] == Id()
    assert read(made, tmp_path)["tweet"].to_pylist() == texts[: NUM // 2]


def test_one_sign_cannot_be_that_of_decimals_and_of_thousands() -> None:
    with pytest.raises(ParamsError, match=r"source.decimal and source.thousands are both ','"):
        Files("a.csv", decimal=",", thousands=",")


def test_a_night_refuses_numbers_of_another_format_than_init_settled(tmp_path: Path) -> None:
    made = survey(written(tmp_path, sign=";", x=["4,5", "5"]))
    written(tmp_path, sign=";", x=["4.125", "5"])
    with pytest.raises(DataError, match=r"row 1 is '4.125 \(not as 1000,5\)'"):
        read(made, tmp_path)


def test_a_row_of_units_is_no_value_of_its_columns(tmp_path: Path) -> None:
    lines = [f"2025-01-0{1 + n // NUM},{n / 8},{n % 7},{n % 2}" for n in range(2 * NUM)]
    for first in (0, NUM):
        (tmp_path / f"2025-01-0{1 + first // NUM}.csv").write_text(
            "\n".join(["t,paid,pieces,y", *([",EUR,pcs,"] if first else []), *lines[first : first + NUM]])
        )
    made = survey(str(tmp_path), Options(time="t"))
    assert (made.table.columns["paid"], made.table.columns["pieces"]) == (
        Float(min=0),
        Int(min=0),
    )
    assert made.notes[0] == (
        "paid: a number in all but 1 of 81 rows, such as 'EUR' in row 1 of 2025-01-02, which go to "
        "quarantine; if it stands for no value, write --nulls 'EUR'"
    )


def test_a_day_full_of_a_word_is_named_with_the_option_that_settles_it(tmp_path: Path) -> None:
    for n in range(1, 25):
        lines = [f"2025-01-{n:02},{'nil' if n == 7 else k + 1},{k % 2}" for k in range(NUM)]
        (tmp_path / f"2025-01-{n:02}.csv").write_text("\n".join(["t,x,y", *lines]))
    with pytest.raises(DataError) as refused:
        survey(str(tmp_path), Options(time="t"))
    assert str(refused.value) == (
        "x is 'nil' in 40 of 40 rows of 2025-01-07, and a number on other days; if it stands for no value, "
        "write --nulls 'nil', or leave the column out by --without 'x'"
    )
    assert survey(str(tmp_path), Options(time="t", nulls="nil")).table.columns["x"] == Int(nullable=True)
    assert "x" not in survey(str(tmp_path), Options(time="t", without=["x"])).table.columns

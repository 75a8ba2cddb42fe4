"""daybreak/data/numbers.py: numbers in texts, as people and programs write them."""

from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.errors import DataError
from daybreak.contract.table import Bool, Category, Float, Id, Int, Label, Table, Text, Time
from daybreak.data.casts import conform
from daybreak.data.numbers import NumberFormat, format_of, marked, plain
from daybreak.workloads.columns import by_type

AT = datetime(2025, 3, 5)


def read(texts: list[str | None], form: NumberFormat, symbol: str = "") -> list[float | None]:
    numbers: list[float | None] = (
        plain(pa.chunked_array([texts]), form, symbol).cast(pa.float64()).to_pylist()
    )
    return numbers


@pytest.mark.parametrize(
    ("texts", "form", "symbol", "numbers"),
    [
        (["1,234.50", "12", "-1,234,567"], NumberFormat(thousands=","), "", [1234.5, 12, -1234567]),
        (["1.234,50", "12,5", "1.234"], NumberFormat(decimal=",", thousands="."), "", [1234.5, 12.5, 1234]),
        (
            ["1 234,5", "1\u00a0234", "1\u202f234"],
            NumberFormat(decimal=",", thousands=" "),
            "",
            [1234.5, 1234, 1234],
        ),
        (["1'234.5", "1\u2019234"], NumberFormat(thousands="'"), "", [1234.5, 1234]),
        (["1,5e3", "1E-2", "+4"], NumberFormat(decimal=","), "", [1500, 0.01, 4]),
        (
            ["$1,234.50", "-$5", "$-5", "($5.25)", "$ 7"],
            NumberFormat(thousands=","),
            "$",
            [1234.5, -5, -5, -5.25, 7],
        ),
        (["12 %", "0.5%", "\u22123 %"], NumberFormat(), "%", [12, 0.5, -3]),
        (["1 234 kg", "2 kg"], NumberFormat(thousands=" "), "kg", [1234, 2]),
        (["NA", "-", "?", "N/A", "\\N", "None", "NULL", "4"], NumberFormat(), "", [None] * 7 + [4]),
        (["missing", "4"], NumberFormat(nulls=("missing",)), "", [None, 4]),
    ],
)
def test_numbers_are_read_as_they_are_written(
    texts: list[str | None], form: NumberFormat, symbol: str, numbers: list[float | None]
) -> None:
    assert read(texts, form, symbol) == numbers


@pytest.mark.parametrize(
    ("text", "form", "symbol"),
    [
        ("1,234", NumberFormat(), ""),
        ("1.234", NumberFormat(decimal=","), ""),  # 1234, where the comma is the decimal sign
        ("12,34", NumberFormat(thousands=","), ""),
        ("0,942", NumberFormat(thousands=","), ""),
        ("1,2345", NumberFormat(thousands=","), ""),
        ("192.168.100.200", NumberFormat(), ""),
        ("12", NumberFormat(), "%"),  # 12 %, or 1,200 %
        ("\u20ac5", NumberFormat(), "$"),
    ],
)
def test_what_may_be_another_number_is_none(text: str, form: NumberFormat, symbol: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        read([text], form, symbol)


@given(
    number=st.decimals(-(10**12), 10**12, places=2),
    form=st.sampled_from(
        [
            NumberFormat(decimal=decimal, thousands=thousands)
            for decimal in (".", ",")
            for thousands in ("", ",", ".", " ", "'")
            if thousands != decimal
        ]
    ),
    symbol=st.sampled_from(["", "$", "%", "kg"]),
)
def test_a_number_is_the_same_in_every_format(number: float, form: NumberFormat, symbol: str) -> None:
    written = f"{number:,.2f}".replace(",", "T").replace(".", form.decimal).replace("T", form.thousands)
    assert read([f"{symbol}{written}", f"{written} {symbol}".strip()], form, symbol) == [float(number)] * 2


def test_columns_that_are_no_numbers_keep_what_looks_like_one_and_words_for_null() -> None:
    texts = ["NA", "1,234", "?"]
    table = Table(
        columns={
            "at": Time(),
            "country": Category(),
            "code": Id(),
            "said": Text(),
            "n": Int(nullable=True),
            "paid": Float(nullable=True, symbol="$"),
            "open": Bool(nullable=True),
        },
        time="at",
    )
    given = {"country": texts, "code": texts, "said": texts, "n": texts, "paid": ["$5", "NA", "$1,000.5"]}
    rows = pa.table({**given, "at": [AT] * 3, "open": ["true", "-", "false"]})
    form = NumberFormat(thousands=",")
    made = conform(marked(rows, form), table, origin="x")
    assert format_of(marked(rows, form).schema.field("n")) == form
    assert [made[name].to_pylist() for name in ("country", "code", "said")] == [texts] * 3
    assert made["n"].to_pylist() == [None, 1234, None]
    assert made["paid"].to_pylist() == [5, None, 1000.5]
    assert made["open"].to_pylist() == [True, None, False]


def test_a_word_for_null_is_an_unknown_label_unless_it_is_a_class() -> None:
    for classes, labels in ((("no", "yes"), [1, None, 0]), (("NA", "no", "yes"), [2, 0, 1])):
        table = Table(
            columns={"at": Time(), "y": Int(min=0, max=len(classes) - 1, nullable=True)},
            time="at",
            label=Label("y", classes=classes),
        )
        rows = pa.table({"at": [AT] * 3, "y": ["yes", "NA", "no"]})
        assert conform(rows, table, origin="x")["y"].to_pylist() == labels


def test_a_number_in_another_format_is_named_with_the_one_expected() -> None:
    table = Table(columns={"at": Time(), "x": Float()}, time="at")
    rows = marked(pa.table({"at": [AT] * 2, "x": ["4,5", "1.234"]}), NumberFormat(decimal=","))
    with pytest.raises(DataError, match=r"row 2 is '1.234 \(not as 1000,5\)'"):
        conform(rows, table, origin="x")


def test_whole_numbers_beyond_a_float_are_rounded_as_features() -> None:
    table = Table(columns={"at": Time(), "n": Int()}, time="at")
    rows = pa.table({"at": [AT], "n": [2**53 + 1]}, schema=table.schema())
    assert by_type(rows, {"edges": np.zeros((5, 2))}, table)["numbers"][0, 0] == np.float32(2**53)

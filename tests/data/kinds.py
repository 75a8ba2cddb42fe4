"""A table with a column of each type, odd rows of it, and a suite of what engines read differently."""

from datetime import date, datetime, timedelta
from typing import Any

import ibis.expr.types as ir
import pyarrow as pa

from daybreak.contract.table import Bool, Bytes, Category, Float, Id, Int, Table, Text, Time
from daybreak.data.suite import Rule, Suite

DAY = date(2025, 3, 14)
KINDS = Table(
    time="at",
    key=("id", "number"),
    columns={
        "id": Id(),
        "number": Float(min=-5, max=1e6, nullable=True),
        "whole": Int(min=-3, nullable=True),
        "flag": Bool(),
        "kind": Category(values=("a", "b'c", 'd"\\')),
        "text": Text(nullable=True),
        "at": Time(),
        "raw": Bytes(nullable=True),
        "vector": Float(size=2, min=0, max=1),
    },
)
TEXTS = [
    "",
    "a",
    "a\n",
    "\na",
    "a\r",
    "a\x0b",
    "\u0085",
    "a\u2028b",
    "é",
    "É",
    "١",
    "a b",
    "a-b",
    "[",
    "]",
    "&",
    "a&&b",
    "x_1",
    "ünder",
    "\\",
    "'",
    '"',
    "$",
    "tab\there",
    None,
]
PATTERNS = [
    "a$",
    "^a.b$",
    r"^\d$",
    r"\w",
    r"\s",
    r"\S$",
    r"\bnder",
    r"a\b",
    r"^[^\s]*$",
    "(?i)é",
    "(?s)^a.b$",
    "(?m)^a$",
    "[[]",
    r"[]\[]",
    "[a&&b]{4}",
    "[[:alpha:]]_",
    r"\pL$",
    r"\p{Arabic}|\PN",
    r"\Qa-b\E",
    r"(?P<first_one>a)\z",
    r"[\x{e9}\x0b]",
    "(?:a|b)-",
    r"\$|\\",
    r"^[\w-]+$",
    r"(?U)a+$",
]


def product(rows: ir.Table) -> ir.Column:
    return rows.number * rows.whole


def mean_product(rows: ir.Table) -> ir.Scalar:
    return rows.product.mean()


def length(rows: ir.Table) -> ir.Column:
    return rows.text.length()


def rules() -> list[Rule]:
    matches = [("expect_column_values_to_match_regex", "regex", pattern) for pattern in PATTERNS]
    kwargs: list[tuple[str, dict[str, Any]]] = [
        *((kind, {"column": "text", key: pattern}) for kind, key, pattern in matches),
        *(
            ("expect_column_values_to_be_between", {"column": name, "min_value": 0, "max_value": 4})
            for name in ("ratio", "inverse", "rounded", "product", "length", "hour")
        ),
        ("expect_column_values_to_be_between", {"column": "copies", "max_value": 0}),
        ("expect_column_value_lengths_to_be_between", {"column": "text", "min_value": 1, "max_value": 3}),
        ("expect_column_values_to_be_unique", {"column": "number"}),
        ("expect_compound_columns_to_be_unique", {"column_list": ["whole", "flag", "number"]}),
        ("expect_column_values_to_not_be_in_set", {"column": "text", "value_set": ["\\", "'", "a\n", "é"]}),
        ("expect_column_values_to_be_between", {"column": "at", "max_value": datetime(2025, 3, 14, 12)}),
        ("expect_column_pair_values_a_to_be_greater_than_b", {"column_A": "number", "column_B": "whole"}),
        ("expect_column_values_to_be_null", {"column": "raw"}),
    ]
    return [Rule(name=f"{n} {args}", type=kind, kwargs=args) for n, (kind, args) in enumerate(kwargs)]


def suite() -> Suite:
    return Suite.model_validate(
        {
            "columns": {
                "ratio": "number / whole",
                "inverse": "1 / number",
                "rounded": "number::INT",
                "product": {"ibis": "tests.data.kinds:product"},
                "length": {"ibis": "tests.data.kinds:length"},
            },
            "figures": {
                "flags": "avg(flag::INT)",
                "texts": "count(DISTINCT text)",
                "rare": "count(*) FILTER (whole > 2)",
                "median_number": "median(number) FILTER (NOT flag)",
                "highest": "max(number)",
                "mean_product": {"ibis": "tests.data.kinds:mean_product"},
                "whole_part": "avg(regexp_full_match(text, 'a|a.b')::INT)",
            },
            "rows": rules(),
        }
    )


def rows() -> pa.Table:
    n = 4 * len(TEXTS)
    start = datetime(2025, 3, 13, 23)
    numbers = [0.0, -6.5, 2.5, 3.5, 0.5, -0.5, 1e7, None, 4.49, 1e-3, 7.0]
    made = {
        "id": [f"id{i // 2}" if i % 9 == 0 else f"id{i}" for i in range(n)],
        "number": [numbers[i % 11] for i in range(n)],
        "whole": [[0, 1, 2, 3, -4, None, 5][i % 7] for i in range(n)],
        "flag": [i % 3 == 0 for i in range(n)],
        "kind": [["a", "b'c", 'd"\\', "e"][i % 4] for i in range(n)],
        "text": [TEXTS[i % len(TEXTS)] for i in range(n)],
        "at": [start + timedelta(minutes=16 * i, microseconds=i) for i in range(n)],
        "raw": [[b"\x00\xff", b"", None][i % 3] for i in range(n)],
        "vector": [[[0.0, 1.0], [0.5, 1.5], [-0.1, 0.2]][i % 3] for i in range(n)],
    }
    table = pa.table(made, schema=KINDS.schema())
    return pa.concat_tables([table, table.slice(10, 8), table.slice(12, 2)])

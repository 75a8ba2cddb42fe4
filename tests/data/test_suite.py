"""The rules of a suite file, those that follow from a table."""

from pathlib import Path
from typing import Any

import numpy as np

from daybreak.contract.table import Category, Float, Id, Int, Label, Table, Time, days
from daybreak.data.row_rules import BETWEEN
from daybreak.data.suite import Suite, load, rules_digest, rules_of
from daybreak.examples.shop.sold_lines import LINES

SUITE = Path(__file__).parents[2] / "data/expectations.yaml"
PAYMENTS: dict[str, Any] = {
    "time": "at",
    "key": ("id", "at"),
    "label": Label("fraud", ripe_after=days(14)),
    "columns": {
        "id": Id(),
        "at": Time(),
        "amount": Float(min=0),
        "tries": Int(min=1, max=9, off=("range",)),
        "mcc": Category(values=("a", "b"), nullable=True),
        "country": Category(off=("nulls",)),
        "currency": Category(values=("EUR",), off=("values",)),
        "fraud": Int(min=0, max=1),
    },
}


def test_rules_follow_from_the_types_of_a_table() -> None:
    names = [rule.name for rule in rules_of(Suite(), Table(**PAYMENTS))]
    assert names == [
        "at is a Time",
        "amount is a Float",
        "tries is an Int",
        "fraud is an Int",
        "id is there",
        "at is there",
        "amount is there",
        "tries is there",
        "currency is there",
        "amount is in range",
        "mcc is a known value",
        "fraud is in range",
        "at is on the day of its partition",
        "id and at comes once",
    ]


def test_an_auxiliary_label_need_not_be_there() -> None:
    columns = {**PAYMENTS["columns"], "refund": Float()}
    names = {rule.name for rule in rules_of(Suite(), Table(**PAYMENTS | {"columns": columns}))}
    table = Table(**PAYMENTS | {"columns": columns, "auxiliary": (Label("refund"),)})
    assert names - {rule.name for rule in rules_of(Suite(), table)} == {"refund is there"}


def test_a_number_is_finite_unless_its_range_is_off() -> None:
    numbers = {
        "free": Float(),
        "low": Float(min=0),
        "both": Float(min=0, max=1e300),
        "any": Float(off=("range",)),
        "vector": Float(size=2),
        "whole": Int(),
    }
    table = Table(time="at", columns={"at": Time(off=("range",)), **numbers})
    largest = float(np.finfo(np.float32).max)
    bounds = {rule.name: rule.kwargs for rule in rules_of(Suite(), table) if rule.type == BETWEEN}
    assert bounds == {
        "free is a finite number": {"column": "free", "min_value": -largest, "max_value": largest},
        "low is in range": {"column": "low", "min_value": 0, "max_value": largest},
        "both is in range": {"column": "both", "min_value": 0, "max_value": 1e300},
        "vector is finite": {"column": "vector", "min_value": -largest, "max_value": largest},
    }


def test_the_time_may_be_off_the_day_where_its_range_is_off() -> None:
    table = Table(time="at", columns={"at": Time(off=("range", "nulls"))})
    assert [rule.name for rule in rules_of(Suite(), table)] == ["at is a Time"]


def test_a_rule_of_the_suite_takes_the_place_of_one_that_has_its_name() -> None:
    values = {
        "name": "amount is there",
        "type": "expect_column_values_to_be_null",
        "kwargs": {"column": "id"},
    }
    more = {"name": "more", "type": "expect_column_values_to_be_null", "kwargs": {"column": "id"}}
    rules = rules_of(Suite.model_validate({"rows": [more, values]}), Table(**PAYMENTS))
    (rule,) = (rule for rule in rules if rule.name == "amount is there")
    assert rule.type == "expect_column_values_to_be_null"
    assert [rule.name for rule in rules].count("amount is there") == 1
    assert rules[-1].name == "more"


def test_the_digest_is_of_the_table_the_columns_and_the_rules_of_rows() -> None:
    suite, table = load(SUITE), LINES
    digest = rules_digest(suite, table)
    assert digest == rules_digest(suite.model_copy(update={"days": (), "drift": {}, "figures": {}}), table)
    assert digest != rules_digest(suite.model_copy(update={"rows": suite.rows[1:]}), table)
    assert digest != rules_digest(suite.model_copy(update={"columns": {"pieces": "quantity"}}), table)
    assert digest != rules_digest(suite, Table(columns=LINES.columns, time="time", zone="Europe/Paris"))


def test_a_suite_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("# nothing but what the table says\n")
    assert load(tmp_path / "s.yaml") == Suite()

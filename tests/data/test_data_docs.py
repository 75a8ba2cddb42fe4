"""Data Docs show days and rows; judging many columns stays cheap."""

import sys
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import pytest

from daybreak.contract.table import Float, Table, Time
from daybreak.data import data_docs
from daybreak.data.data_docs import RuleLine, of_figures, of_rows, of_types
from daybreak.data.findings import no_row_fails
from daybreak.data.row_rules import BETWEEN
from daybreak.data.suite import Judge, Rule, RuleResult, schema_rules

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
DAYS = [date(2026, 11, 23), date(2026, 11, 24), date(2026, 11, 25)]
MEAN = "expect_column_mean_to_be_between"


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge()


def rule(kind: str, column: str, **kwargs: Any) -> Rule:
    return Rule(name=f"{kind} of {column}", type=kind, kwargs={"column": column, **kwargs})


def found(lines: list[RuleLine]) -> list[tuple[bool, str]]:
    return [(line.holds, line.found) for line in lines]


def table(num_columns: int) -> Table:
    floats = {f"f{number}": Float() for number in range(num_columns - 1)}
    return Table(columns={"time": Time(), **floats}, time="time")


def types(of: Table, **others: str) -> pd.DataFrame:
    return pd.DataFrame([{field.name: str(field.type) for field in of.schema()} | others])


def test_a_rule_on_rows_says_how_many_of_all_rows_fail_it_and_on_which_days(judge: Judge) -> None:
    rules = [Rule(name=name, type=BETWEEN, kwargs={}) for name in ("price is in range", "item is there")]
    counts = pd.DataFrame({"price is in range": [0, 21, 4], "item is there": [0, 0, 0]})
    lines = of_rows(judge.findings([*map(no_row_fails, rules)], counts), counts, DAYS, num_rows=1000)
    assert found(lines) == [
        (False, "25 of 1,000 rows (2.5 %): 21 on 2026-11-24, 4 on 2026-11-25"),
        (True, ""),
    ]


def test_a_rule_on_figures_says_the_figures_and_the_days_that_are_outside(judge: Judge) -> None:
    figures = pd.DataFrame({"num_rows": [1200, 40, 1300], "mean_price": [1.0, 2.0, 6.0], "gone": [None] * 3})
    rules = [
        rule(BETWEEN, "num_rows", min_value=100),
        rule(MEAN, "mean_price", max_value=5),
        rule(BETWEEN, "mean_price", max_value=9),
        rule(MEAN, "gone", min_value=0),
    ]
    lines = of_figures(judge.findings(rules, figures.astype("float64")), figures, DAYS)
    assert found(lines) == [
        (False, "40 on 2026-11-24"),
        (True, "3"),
        (True, "1 to 6"),
        (False, "no value"),
    ]


def test_a_rule_on_types_says_the_other_types_and_the_new_columns(judge: Judge) -> None:
    of = table(3)
    lines = of_types(judge.findings(schema_rules(of), types(of, f0="string", added="int64")))
    assert [(line.rule, line.found) for line in lines if not line.holds] == [
        ("columns are those of the table", "added is new"),
        ("f0 is double", "string"),
    ]


def test_a_page_shows_what_fails_first_and_names_as_they_are(tmp_path: Path) -> None:
    lines = [
        RuleLine(rule="b & <c> holds", holds=True, found=""),
        RuleLine(rule="a fails", holds=False, found="3 rows"),
    ]
    data_docs.write(tmp_path, {"rows": lines, "days": []}, DAYS)
    text = (tmp_path / "rows.html").read_text()
    assert text.index("a fails") < text.index("b &amp; &lt;c&gt; holds")
    assert "1 of 2 rules on rows fails" in text and "None" not in text
    assert "2026-11-23 to 2026-11-25, 3 days" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "rows.html"]
    assert 'href="rows.html"' in (tmp_path / "index.html").read_text()


def test_a_long_list_of_days_is_cut_off_and_counted() -> None:
    many = [date.fromordinal(DAYS[0].toordinal() + number) for number in range(25)]
    counts = pd.DataFrame({"a": [1] * 25})
    (line,) = of_rows([finding("a")], counts, many, num_rows=50)
    assert line.found.startswith("25 of 50 rows (50 %): 1 on 2026-11-23, ")
    assert line.found.endswith(", 1 on 2026-12-12, and on 5 more days")


def finding(name: str) -> RuleResult:
    return RuleResult(rule=Rule(name=name, type=BETWEEN), success=False, rows=(), details={})


def test_names_of_columns_that_are_compared_grow_with_the_rules_and_not_by_their_square(judge: Judge) -> None:
    """Great Expectations compares the column of each rule with all columns of its frame."""

    def num_compared(num_columns: int) -> int:
        of, num = table(num_columns), 0

        def count(frame: FrameType, event: str, function: Any) -> None:
            nonlocal num
            num += event == "c_call" and function.__name__ == "casefold"

        sys.setprofile(count)
        try:
            findings = judge.findings(schema_rules(of), types(of))
        finally:
            sys.setprofile(None)
        assert len(findings) == num_columns + 1 and all(one.success for one in findings)
        return num

    assert 0 < num_compared(128) < 2.2 * num_compared(64)


def test_a_rule_with_a_condition_on_other_columns_sees_all_of_them(judge: Judge) -> None:
    of_kind = rule(BETWEEN, "price", max_value=5, row_condition='kind=="a"', condition_parser="pandas")
    frame = pd.DataFrame({"price": [1.0, 9.0], "kind": ["a", "b"]})
    (one,) = judge.findings([of_kind], frame)
    assert one.success

"""Every rule, derived column and figure compiles for BigQuery, and one that cannot be is named."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from sqlglot import exp

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Float, Id, Table, Time
from daybreak.data.patterns import in_java
from daybreak.data.queries import Queries
from daybreak.data.row_rules import _TYPES, failing
from daybreak.data.suite import OF_TYPE, Rule, Suite, load, rules_digest, rules_of
from daybreak.examples.shop.sold_lines import LINES
from tests.data import kinds, test_row_by_row
from tests.data.shop_weeks import SUITE

PAYMENTS = Table(time="at", columns={"at": Time(), "account": Id(), "amount": Float(min=0)})
# What DuckDB has and BigQuery has not, of all that the suites below use.
OURS_ALONE = {
    "EPOCH_US",
    "LIST_MIN",
    "LIST_MAX",
    "ARRAY_MIN",
    "ARRAY_MAX",
    "MEDIAN",
    "REGEXP_MATCHES",
    "REGEXP_FULL_MATCH",
    "ISNAN",
    "RLIKE",
}


def queries(
    table: Table, suite: Suite, others: Sequence[tuple[str, dict[str, Any]]] = (), *, engine: str = "bigquery"
) -> Queries:
    own = [Rule(name=f"rule {n}", type=kind, kwargs=kwargs) for n, (kind, kwargs) in enumerate(others)]
    rules = (*rules_of(suite, table), *own)
    vectors = {name for name, column in table.columns.items() if isinstance(column, Float) and column.size}
    predicates = {
        number: failing(rule.name, type=rule.type, kwargs=rule.kwargs, vectors=vectors)
        for number, rule in enumerate(rules)
        if rule.type != OF_TYPE
    }
    return Queries(table, suite, rules, predicates=predicates, engine=engine)


def in_bigquery(query: str) -> Any:
    """The query as BigQuery's grammar reads it, with nothing in it that only DuckDB has."""
    tree = sqlglot.parse_one(query, read="bigquery")
    called = {match.upper() for match in re.findall(r"(\w+)\(", re.sub(r"'(\\.|[^'\\])*'", "''", query))}
    assert not called & OURS_ALONE
    assert not list(tree.find_all(exp.Filter))
    for window in tree.find_all(exp.Window):
        (by,) = window.args["partition_by"]  # which may be neither a float nor an array
        assert by.sql("bigquery").startswith("TO_JSON_STRING(STRUCT(")
    return tree


def test_the_shops_suite_and_every_type_of_rule_compile_for_bigquery() -> None:
    compiled = queries(LINES, load(SUITE), test_row_by_row.OTHERS)
    in_sql = [rule.type for rule in rules_of(load(SUITE), LINES) if rule.type != OF_TYPE]
    in_sql += [kind for kind, _ in test_row_by_row.OTHERS]
    assert set(in_sql) == set(_TYPES)
    tree = in_bigquery(compiled.rules)
    assert len(tree.selects) == 1 + len(in_sql)
    assert "REGEXP_CONTAINS" in compiled.rules
    ((names, figures),) = compiled.figures
    assert names == tuple(load(SUITE).figures)
    assert len(in_bigquery(figures).selects) == len(names)


def test_each_type_of_column_and_ibis_compile_for_bigquery() -> None:
    compiled = queries(kinds.KINDS, kinds.suite())
    in_bigquery(compiled.rules)
    assert "IEEE_DIVIDE" in compiled.rules
    assert "UNNEST" in compiled.rules
    assert "COUNTIF" in compiled.figures[0][1]
    assert [names for names, _ in compiled.figures[1:]] == [("mean_product",)]
    for _, figures in compiled.figures:
        in_bigquery(figures)


@pytest.mark.parametrize(
    ("pattern", "java"),
    [
        ("^[a-z]{2}(?:x|y)*", "^[a-z]{2}(?:x|y)*"),
        ("a$", r"a\z"),
        (r"\$", r"\$"),
        ("[$]", "[$]"),
        ("(?m)a$", "(?m)a$"),
        ("(?i)a", "(?iu)a"),
        ("(?P<a_b>x)", "(?<ab>x)"),
        (r"[]a]", r"[\]a]"),
        ("[^]&[]", r"[^\]\&\[]"),
        (r"\Q$\E", r"\$"),
        ("[[:alpha:]1]", r"[\p{Alpha}1]"),
        (r"\p{Greek}", r"\p{IsGreek}"),
        (r"\PL", r"\P{L}"),
        (r"\s", r"[\t\n\f\r ]"),
        (r"[\s]", r"[\t\n\f\r ]"),
        ("(?U)a", "a"),
        (r"\\$", r"\\\z"),
    ],
)
def test_a_pattern_in_javas_dialect(pattern: str, java: str) -> None:
    assert in_java(pattern) == f"(?d){java}"


def compiled_s(num_columns: int) -> float:
    """Returns the CPU seconds in which rules of so many columns are compiled, the least of 3."""
    names = [f"x{number}" for number in range(num_columns)]
    table = Table(time="at", columns={"at": Time(), **{name: Float(min=0) for name in names}})
    taken = []
    for _ in range(3):
        began = time.process_time()
        queries(table, Suite(), engine="duckdb")
        taken.append(time.process_time() - began)
    return min(taken)


@pytest.mark.slow
def test_rules_take_no_square_of_the_columns() -> None:
    """Eight times the columns: 8 times the time if it grows linearly, 64 times if by the square."""
    assert compiled_s(1200) < 24 * compiled_s(150)


def doubled(rows: Any) -> Any:
    return rows.amount * 2


def misspelt(rows: Any) -> Any:
    return rows.amounts


def no_expression(rows: Any) -> Any:
    return 2


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"columns": {"x": {"ibis": "tests.data.test_queries:nowhere"}}},
            "the column 'x': tests.data.test_queries:nowhere cannot be imported: .*; write module:function",
        ),
        (
            {"columns": {"x": {"ibis": "tests.data.test_queries:misspelt"}}},
            "the column 'x': tests.data.test_queries:misspelt fails: AttributeError: .*amounts.*; fix it",
        ),
        (
            {"columns": {"x": {"ibis": "tests.data.test_queries:no_expression"}}},
            "the column 'x': .*:no_expression returns int; return a column of the rows, as an Ibis",
        ),
        (
            {"figures": {"x": {"ibis": "tests.data.test_queries:doubled"}}},
            "the figure 'x': .*:doubled returns FloatingColumn; return one number for all rows, as an Ibis",
        ),
        ({"columns": {"x": "nosuch(amount)"}}, "the column 'x' cannot be judged: .*nosuch.*; fix it"),
        ({"columns": {"x": "list_transform([amount], v -> v + 1)[1]"}}, "the column 'x' cannot be judged"),
    ],
)
def test_an_expression_that_cannot_be_computed_is_named(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ParamsError, match=reason):
        queries(PAYMENTS, Suite.model_validate(values))


def test_the_source_of_a_column_by_ibis_belongs_to_the_digest_of_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    suite = Suite.model_validate({"columns": {"x": {"ibis": "own_columns:x"}}})
    (tmp_path / "own_columns.py").write_text("def x(rows):\n    return rows.amount\n")
    first = rules_digest(suite, PAYMENTS)
    (tmp_path / "own_columns.py").write_text("def x(rows):\n    return rows.amount + 1\n")
    __import__("linecache").clearcache()
    assert rules_digest(suite, PAYMENTS) != first

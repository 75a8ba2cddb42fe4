"""Loads the reviewed suite of rules for the data, and judges the data by it with Great Expectations.

The suite is a YAML file, all of which is optional: `columns` that are derived and `figures` of a day, each by
SQL or by an Ibis expression, rules on both, and limits of drift. A rule is an expectation of Great
Expectations by its type and arguments. The rules that follow from the types of the workload's table come
first, and need not be written. The context of Great Expectations ends with the process; what it found stays
as pages (daybreak/data/data_docs.py).
"""

import hashlib
import importlib
import inspect
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from daybreak.contract import records
from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import Section
from daybreak.contract.table import AnyColumn, Bytes, Category, Float, Id, Int, Table, Text
from daybreak.data.bad_cells import AS_DELIVERED
from daybreak.data.drift import ROWS
from daybreak.data.engines import AT_MIDNIGHT, NUMBER
from daybreak.data.row_rules import BETWEEN

if TYPE_CHECKING:
    from pandas import DataFrame

HOUR, COPIES = "hour", "copies"  # columns that every partition has, if a rule names them
NUM_ROWS = "num_rows"  # a figure that every day has
MIDNIGHT = "hours since midnight"  # `hour` by a name that no column of a table has
RESERVED = (NUMBER, AT_MIDNIGHT, MIDNIGHT, AS_DELIVERED)
LARGEST = 3.4028234663852886e38  # of float32, in which models are trained: beyond is infinity
IN_SET = "expect_column_values_to_be_in_set"
ALL_IN_SET = "expect_column_distinct_values_to_be_in_set"  # at a quarter of the cost, without the lines
OF_TYPE = "expect_column_values_to_be_of_type"
BLOCK = 32  # rules that Great Expectations judges together
RESULT_FORMAT = {"result_format": "COMPLETE", "partial_unexpected_count": 20}


class Rule(Section):
    """One expectation: name, type, arguments, and the raw column to blame.

    A rule on rows may instead be a team's own function, `module:function`.
    """

    name: str
    type: str = ""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    column: str = ""
    python: str = Field("", pattern=r"^([\w.]+:\w+)?$")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if bool(self.type) == bool(self.python):
            raise ValueError(f"rule {self.name!r} has not one of type and python")
        return self

    @property
    def blamed(self) -> str:
        """Returns the raw column that a failure is counted under."""
        return self.column or str(self.kwargs.get("column", "(table)"))

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns the columns that its arguments name."""
        named = [self.kwargs.get(key) for key in ("column", "column_A", "column_B")]
        return tuple(str(name) for name in (*named, *self.kwargs.get("column_list", ())) if name)


class IbisFunction(Section):
    """A derived column or a figure: a function of the rows, an Ibis table, that returns an expression."""

    ibis: str = Field(pattern=r"^[\w.]+:\w+$")


class Suite(Section):
    """The suite file."""

    columns: dict[str, str | IbisFunction] = Field(default_factory=dict)
    figures: dict[str, str | IbisFunction] = Field(default_factory=dict)
    days: tuple[Rule, ...] = ()
    rows: tuple[Rule, ...] = ()
    drift: Literal["off"] | dict[str, float | Literal["off"]] = Field(default_factory=dict)
    limits: Literal["off"] | dict[str, Literal["off", "warn", "hold", "refuse"]] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """The result of one rule: the numbers of the lines that failed it, and the values found instead."""

    rule: Rule
    success: bool
    rows: tuple[int, ...]
    details: dict[str, Any]


def load(path: Path) -> Suite:
    """Returns the suite in the file; ParamsError names the key that is wrong."""
    try:
        suite = Suite.model_validate(YAML(typ="safe", pure=True).load(path.read_text()) or {})
    except FileNotFoundError:
        raise ParamsError(f"{path} is missing; name the suite in validate.suite") from None
    except YAMLError as error:
        raise ParamsError(f"{path} is not YAML: {' '.join(str(error).split())}; fix it") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ParamsError(f"{path}: {key}: {first['msg'].lower()}; fix it in {path}") from None
    names = Counter(rule.name for rule in (*suite.days, *suite.rows))
    if twice := sorted(name for name in names if names[name] > 1):
        raise ParamsError(f"{path}: two rules are named {twice[0]!r}; give each its own name")
    if python := [rule.name for rule in suite.days if rule.python]:
        raise ParamsError(
            f"{path}: the rule of days {python[0]!r} is in python; write a figure in SQL or Ibis instead"
        )
    return suite


def rules_of(suite: Suite, table: Table) -> tuple[Rule, ...]:
    """Returns the rules on rows: those of the table first, then those of the suite.

    A rule of the suite takes the place of one of the table that has its name, but of none on types: a row
    whose cell is not of the type cannot be clean. Raises ParamsError where a
    name of a column cannot be queried, and where the suite gives one of the table's to another column, or a
    limit of drift to none.
    """
    expect_names(table.columns)
    names = Counter(name.lower() for name in (*table.columns, *suite.columns))
    if same := [name for name in suite.columns if names[name.lower()] > 1]:
        raise ParamsError(
            f"there are two columns {same[0]}, as SQL knows no upper case and lower; rename the suite's"
        )
    if taken := [name for name in suite.columns if name.lower() in (HOUR, COPIES, *RESERVED)]:
        raise ParamsError(
            f"the suite derives the column {taken[0]}, which is there already; give it another name"
        )
    known = {*table.columns, *(f"{name} nulls" for name in table.columns), ROWS}
    if isinstance(suite.drift, dict) and (unknown := sorted(set(suite.drift) - known)):
        raise ParamsError(
            f"the suite limits the drift of {', '.join(unknown)}, which the table has not; "
            f"its columns are {', '.join(table.columns)}; the number of rows is called {ROWS}"
        )
    own = {rule.name: rule for rule in suite.rows}
    of_types = tuple(_of_types(table))
    if taken := [rule.name for rule in of_types if rule.name in own]:
        raise ParamsError(
            f"the suite has a rule {taken[0]!r}, which follows from the table's types; give it another name"
        )
    derived = [own.pop(rule.name, rule) for rule in _derived(table)]
    return (*of_types, *derived, *own.values())


def expect_names(names: Collection[str]) -> None:
    """Raises ParamsError where columns differ in case only, or have a name that the queries use."""
    lower = Counter(name.lower() for name in names)
    if same := [name for name in names if lower[name.lower()] > 1]:
        raise ParamsError(
            f"columns {' and '.join(same[:2])} differ in upper and lower case only, which SQL does not "
            f"distinguish; rename one at the source, or under source.columns"
        )
    if taken := [name for name in names if name.lower() in RESERVED]:
        raise ParamsError(
            f"a column is called {taken[0]}, as one that the rules' queries add; rename it at the source, or "
            f"under source.columns"
        )


def _of_types(table: Table) -> Iterator[Rule]:
    """The rules that values are of the types of their columns; any value is text."""
    for name, column in table.columns.items():
        if not isinstance(column, Category | Id | Text | Bytes):
            kind = type(column).__name__
            yield Rule(
                name=f"{name} is {'an' if kind == 'Int' else 'a'} {kind}",
                type=OF_TYPE,
                kwargs={"column": name, "type_": kind},
            )


def _derived(table: Table) -> Iterator[Rule]:
    """The rules that follow from the types of the table's columns."""
    for name, column in table.columns.items():
        if not column.nullable and name not in table.labels and "nulls" not in column.off:
            kwargs: dict[str, Any] = {"column": name}
            yield Rule(name=f"{name} is there", type="expect_column_values_to_not_be_null", kwargs=kwargs)
    for name, column in table.columns.items():
        declared = _bounds(column)
        if bounds := _finite(column) | declared:
            finite = "finite" if getattr(column, "size", 0) else "a finite number"
            what = "in range" if declared else finite
            yield Rule(name=f"{name} is {what}", type=BETWEEN, kwargs={"column": name, **bounds})
        if isinstance(column, Category) and column.values and "values" not in column.off:
            kwargs = {"column": name, "value_set": list(column.values)}
            yield Rule(name=f"{name} is a known value", type=IN_SET, kwargs=kwargs)
    if "range" not in table.columns[table.time].off:
        kwargs = {"column": MIDNIGHT, "min_value": 0, "max_value": 24, "strict_max": True}
        name = f"{table.time} is on the day of its partition"
        yield Rule(name=name, type=BETWEEN, kwargs=kwargs, column=table.time)
    if table.key:
        kwargs = {"column_list": list(table.key)}
        name = f"{' and '.join(table.key)} comes once"
        yield Rule(name=name, type="expect_compound_columns_to_be_unique", kwargs=kwargs, column=table.key[0])


def _finite(column: AnyColumn) -> dict[str, float]:
    """Returns the bounds of finite numbers, also of those in a vector: one that is not makes a loss NaN."""
    is_number = isinstance(column, Float) and "range" not in column.off
    return {"min_value": -LARGEST, "max_value": LARGEST} if is_number else {}


def _bounds(column: AnyColumn) -> dict[str, float]:
    if not isinstance(column, Float | Int) or "range" in column.off:
        return {}
    bounds = {"min_value": column.min, "max_value": column.max}
    return {key: value for key, value in bounds.items() if value is not None}


def schema_rules(table: Table) -> tuple[Rule, ...]:
    """Returns the rules on the types of a partition's columns, as text."""
    types = {field.name: str(field.type) for field in table.schema()}
    return (
        Rule(
            name="columns are those of the table",
            type="expect_table_columns_to_match_set",
            kwargs={"column_set": list(types)},
        ),
        *(
            Rule(name=f"{name} is {kind}", type=ALL_IN_SET, kwargs={"column": name, "value_set": [kind]})
            for name, kind in types.items()
        ),
    )


def rules_digest(suite: Suite, table: Table) -> str:
    """Returns the digest of what decides which rows are clean: the table, derived columns, rules on rows."""
    rules = rules_of(suite, table)
    functions = [
        *(imported_rule(rule.python, what=f"rule {rule.name!r}") for rule in rules if rule.python),
        *(
            imported_rule(column.ibis, what=f"the column {name!r}")
            for name, column in suite.columns.items()
            if isinstance(column, IbisFunction)
        ),
    ]
    code = [inspect.getsource(importlib.import_module(function.__module__)) for function in functions]
    columns = suite.model_dump()["columns"]
    parts = [records.dumps(table), columns, [rule.model_dump() for rule in rules], code]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def imported_rule(path: str, *, what: str) -> Callable[..., Any]:
    """Returns the function at `module:function` of a rule, column or figure; ParamsError if there is none."""
    module, _, name = path.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ParamsError(
            f"{what}: {path} cannot be imported: {error}; write module:function in the suite"
        ) from None
    return function


class Judge:
    """Judges frames by rules, with Great Expectations."""

    def __init__(self) -> None:
        os.environ["GX_ANALYTICS_ENABLED"] = "false"  # Great Expectations reads this on import
        import great_expectations as gx

        for name in ("great_expectations", "great_expectations.data_context.types.base"):
            logging.getLogger(name).setLevel(logging.WARNING)
        context: Any = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}
        asset = context.data_sources.add_pandas("data").add_dataframe_asset("lines")
        self._lines = asset.add_batch_definition_whole_dataframe("lines")

    def findings(self, rules: Sequence[Rule], frame: "DataFrame") -> list[RuleResult]:
        """Judges the frame by the rules; returns one finding per rule, in their order.

        Raises ParamsError if a rule does not exist, refuses its arguments, or cannot be judged.
        """
        import great_expectations as gx

        findings = []
        for block, names in _blocks(rules):
            part = frame if names is None else frame[[name for name in names if name in frame.columns]]
            suite = gx.ExpectationSuite(name="rules", expectations=[_expectation(rule) for rule in block])
            batch = self._lines.get_batch({"dataframe": part})
            results = batch.validate(suite, result_format=RESULT_FORMAT).results
            by_name = {result.expectation_config.meta["rule"]: result for result in results}
            findings += [_finding(rule, by_name[rule.name]) for rule in block]
        return findings


def _blocks(rules: Sequence[Rule]) -> Iterator[tuple[Sequence[Rule], Collection[str] | None]]:
    """Yields the rules in blocks, in order, with the columns that each block is judged on; None means all.

    For each rule Great Expectations looks up all columns of its frame, so that one frame for all rules would
    cost by the square of the columns.
    """
    for needs_all, alike in groupby(rules, key=_needs_all):
        of_kind = list(alike)
        for begin in range(0, len(of_kind), BLOCK):
            block = of_kind[begin : begin + BLOCK]
            names = dict.fromkeys(name for rule in block for name in rule.columns)
            yield block, None if needs_all else names


def _needs_all(rule: Rule) -> bool:
    """Returns whether a rule may need columns that the arguments do not name."""
    return not rule.columns or "row_condition" in rule.kwargs


def _expectation(rule: Rule) -> Any:
    from great_expectations.exceptions.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.registry import get_expectation_impl

    try:
        kind = get_expectation_impl(rule.type)
        return kind(**rule.kwargs, meta={"rule": rule.name})
    except ExpectationNotFoundError:
        raise ParamsError(
            f"rule {rule.name!r}: Great Expectations has no {rule.type}; fix its type in the suite"
        ) from None
    except (TypeError, ValueError) as error:  # pydantic's errors are ValueErrors
        message = " ".join(str(error).split())
        raise ParamsError(
            f"rule {rule.name!r} refuses its arguments: {message}; fix its kwargs in the suite"
        ) from None


def _finding(rule: Rule, result: Any) -> RuleResult:
    exceptions = result.exception_info or {}
    for info in [exceptions] if "raised_exception" in exceptions else exceptions.values():
        if info["raised_exception"]:
            raise ParamsError(
                f"rule {rule.name!r} cannot be judged: {info['exception_message']}; fix it in the suite"
            )
    return RuleResult(
        rule=rule,
        success=bool(result.success),
        details=result.result,
        rows=tuple(result.result.get("unexpected_index_list") or ()),
    )

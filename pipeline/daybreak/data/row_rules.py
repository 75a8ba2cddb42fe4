r"""Compiles rules on rows, by the names and arguments of Great Expectations, to predicates of SQL.

A predicate is true where a row fails. As in Great Expectations, a null fails no rule but that it be there.
Patterns are RE2's: `$` is the end of the text, not the place before a last line break, `\d` and `\w` are of
ASCII, and there is no looking around.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import date
from typing import Any

from daybreak.contract.errors import ParamsError

Kwargs = Mapping[str, Any]
RANGE = ("min_value", "max_value", "strict_min", "strict_max")


def failing(name: str, *, type: str, kwargs: Kwargs, vectors: Collection[str] = ()) -> str:
    """Returns the predicate of a rule; `vectors` are the columns whose values are lists of numbers.

    Raises ParamsError if the type is not known or its arguments are others.

    >>> failing("a", type="expect_column_values_to_be_between", kwargs={"column": "price", "min_value": 0})
    '("price" < 0)'
    """
    if type not in _TYPES:
        raise ParamsError(
            f"rule {name!r} is of type {type}, which is none of rows; use one of {', '.join(_TYPES)}, or "
            f"python: module:function"
        )
    compiled, required, optional = _TYPES[type]
    missing = [key for key in required if key not in kwargs]
    unknown = [key for key in kwargs if key not in (*required, *optional)]
    if missing or unknown:
        wrong = [*(f"{key} is missing" for key in missing), *(f"{key} is unknown" for key in unknown)]
        raise ParamsError(
            f"rule {name!r} refuses its arguments: {', '.join(wrong)}; fix its kwargs in the suite, which "
            f"may be {', '.join((*required, *optional))}"
        )
    try:
        if type == BETWEEN and kwargs["column"] in vectors:
            return _elements_outside(kwargs)
        return compiled(kwargs)
    except (TypeError, ValueError) as error:
        raise ParamsError(
            f"rule {name!r} refuses its arguments: {error}; fix its kwargs in the suite"
        ) from None


def quoted(name: str) -> str:
    """Returns a column's name as SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"'{value!r}'::DOUBLE"
    if isinstance(value, date):  # a datetime is one
        return f"'{value}'::TIMESTAMP"
    if isinstance(value, str):
        doubled = value.replace("'", "''")
        return f"'{doubled}'"
    raise TypeError(f"{value!r} is neither a number, text nor a day")


def _pattern(regex: str) -> str:
    return _literal(regex.replace("\0", r"\x00"))  # which SQL would end at


def _column(kwargs: Kwargs) -> str:
    return quoted(kwargs["column"])


def _null(kwargs: Kwargs) -> str:
    return f"({_column(kwargs)} IS NULL)"


def _not_null(kwargs: Kwargs) -> str:
    return f"({_column(kwargs)} IS NOT NULL)"


def _listed(kwargs: Kwargs) -> str:
    values = [_literal(value) for value in kwargs["value_set"] or () if value is not None]
    return f"({_column(kwargs)} IN ({', '.join(values)}))" if values else "FALSE"


def _not_listed(kwargs: Kwargs) -> str:
    listed = _listed(kwargs)
    return listed if listed == "FALSE" else f"(NOT {listed})"  # no set: Great Expectations lets all pass


def _outside(kwargs: Kwargs, value: str) -> str:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    sides = []
    if low is not None:
        sides.append(f"{value} {'<=' if kwargs.get('strict_min') else '<'} {_literal(low)}")
    if high is not None:
        sides.append(f"{value} {'>=' if kwargs.get('strict_max') else '>'} {_literal(high)}")
    if not sides:
        raise ValueError("min_value and max_value are both missing")
    return f"({' OR '.join(sides)})"


def _elements_outside(kwargs: Kwargs) -> str:
    elements = f"{_column(kwargs)}::DOUBLE[]"
    sides = []
    for side, least in (("min", "list_min"), ("max", "list_max")):
        bound = {key: kwargs[key] for key in (f"{side}_value", f"strict_{side}") if key in kwargs}
        if bound.get(f"{side}_value") is not None:
            sides.append(_outside(bound, f"{least}({elements})"))
    return f"({' OR '.join(sides)})"


def _matches(kwargs: Kwargs, regex: str) -> str:
    return f"regexp_matches({_column(kwargs)}::VARCHAR, {_pattern(regex)})"


def _matches_of_list(kwargs: Kwargs) -> str:
    word = {"any": " OR ", "all": " AND "}[kwargs.get("match_on") or "any"]
    return f"(NOT ({word.join(_matches(kwargs, regex) for regex in kwargs['regex_list'])}))"


def _length(kwargs: Kwargs) -> str:
    return f"length({_column(kwargs)}::VARCHAR)"


def _repeated(columns: Collection[str]) -> str:
    return f"count(*) OVER (PARTITION BY {', '.join(map(quoted, columns))}) > 1"


def _missing(columns: Collection[str], ignored: str) -> str:
    """Returns the condition under which a rule on several columns ignores a row."""
    word = {"all": " AND ", "both": " AND ", "any": " OR ", "either": " OR "}.get(ignored.partition("_")[0])
    return f"({word.join(f'{quoted(name)} IS NULL' for name in columns)})" if word else "FALSE"


def _repeated_together(kwargs: Kwargs) -> str:
    names = kwargs["column_list"]
    ignored = _missing(names, kwargs.get("ignore_row_if", "all_values_are_missing"))
    return f"({_repeated(names)} AND NOT {ignored})"


def _not_greater(kwargs: Kwargs) -> str:
    names = (kwargs["column_A"], kwargs["column_B"])
    sign = ">=" if kwargs.get("or_equal") else ">"
    greater = f"coalesce({quoted(names[0])} {sign} {quoted(names[1])}, FALSE)"
    return (
        f"(NOT {greater} AND NOT {_missing(names, kwargs.get('ignore_row_if', 'both_values_are_missing'))})"
    )


BETWEEN = "expect_column_values_to_be_between"
# Compiler of each type, with required and optional arguments.
_TYPES: dict[str, tuple[Callable[[Kwargs], str], tuple[str, ...], tuple[str, ...]]] = {
    "expect_column_values_to_not_be_null": (_null, ("column",), ()),
    "expect_column_values_to_be_null": (_not_null, ("column",), ()),
    "expect_column_values_to_be_in_set": (_not_listed, ("column", "value_set"), ()),
    "expect_column_values_to_not_be_in_set": (_listed, ("column", "value_set"), ()),
    BETWEEN: (lambda kwargs: _outside(kwargs, _column(kwargs)), ("column",), RANGE),
    "expect_column_values_to_match_regex": (
        lambda kwargs: f"(NOT {_matches(kwargs, kwargs['regex'])})",
        ("column", "regex"),
        (),
    ),
    "expect_column_values_to_not_match_regex": (
        lambda kwargs: f"({_matches(kwargs, kwargs['regex'])})",
        ("column", "regex"),
        (),
    ),
    "expect_column_values_to_match_regex_list": (_matches_of_list, ("column", "regex_list"), ("match_on",)),
    "expect_column_value_lengths_to_be_between": (
        lambda kwargs: _outside(kwargs, _length(kwargs)),
        ("column",),
        RANGE,
    ),
    "expect_column_value_lengths_to_equal": (
        lambda kwargs: f"({_length(kwargs)} <> {_literal(kwargs['value'])})",
        ("column", "value"),
        (),
    ),
    "expect_column_values_to_be_unique": (
        lambda kwargs: f"({_repeated([kwargs['column']])} AND {_column(kwargs)} IS NOT NULL)",
        ("column",),
        (),
    ),
    "expect_compound_columns_to_be_unique": (_repeated_together, ("column_list",), ("ignore_row_if",)),
    "expect_column_pair_values_a_to_be_greater_than_b": (
        _not_greater,
        ("column_A", "column_B"),
        ("or_equal", "ignore_row_if"),
    ),
}

r"""Says a query in DuckDB's SQL in that of another engine, with the same meaning.

sqlglot knows the grammars. What it leaves alone, as only the meaning differs, is written out here:

- a division by zero is infinite or NaN: Spark refuses it, BigQuery has `IEEE_DIVIDE`;
- a cast of a number with a fraction to a whole number rounds: Spark cuts it off;
- patterns are RE2's: Spark has Java's, where `$` is also the place before a last line break;
- NaN is greater than every number: in BigQuery it is not;
- BigQuery partitions a window neither by floats nor by arrays, and has no least element of an array.

On BigQuery a median is right to a thousandth of the rank (`APPROX_QUANTILES`): it has no exact aggregate.
"""

from collections.abc import Mapping
from typing import Any

from daybreak.contract.errors import ParamsError
from daybreak.data.patterns import in_java

DUCKDB = "duckdb"
DIALECTS = {"pyspark": "spark", "bigquery": "bigquery"}  # sqlglot's names of Ibis backends


def translated(query: str, *, engine: str, tables: Mapping[str, Mapping[str, str]]) -> str:
    """Returns a query of DuckDB in the SQL of an Ibis backend; `tables` are DuckDB's types of their columns.

    Raises ParamsError with the reason alone; the caller names the expression.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.optimizer.qualify import qualify

    dialect = DIALECTS[engine]
    schema: dict[str, object] = {name: dict(columns) for name, columns in tables.items()}
    try:
        tree = sqlglot.parse_one(query, read=DUCKDB)
        tree = qualify(tree, schema=schema, dialect=DUCKDB, validate_qualify_columns=False)
        tree = annotate_types(tree, schema=schema, dialect=DUCKDB)
        tree = _rewritten(tree, dialect)
        return str(tree.sql(dialect=dialect, unsupported_level=sqlglot.ErrorLevel.RAISE))
    except (SqlglotError, ValueError) as error:
        raise ParamsError(f"{engine} cannot compute it: {' '.join(str(error).split())}") from None


def _rewritten(tree: Any, dialect: str) -> Any:
    """Replaces what sqlglot would translate to something else, the innermost first."""
    from sqlglot import exp

    rewrites = {"spark": _SPARK, "bigquery": _BIGQUERY}[dialect]
    for node in reversed(list(tree.walk())):
        rewrite = rewrites.get(type(node).__name__)
        new = rewrite(node) if rewrite else None
        if new is None and isinstance(node, exp.Anonymous) and node.name.upper() not in _OWN:
            raise ValueError(f"there is no {node.name}")
        if new is None or new is node:
            continue
        if node is tree:
            tree = new
        else:
            node.replace(new)
    return tree


_OWN = ("IEEE_DIVIDE", "UNIX_MICROS", "RINT", "TO_JSON_STRING", "APPROX_QUANTILES", "IS_NAN")


def _sql(dialect: str, text: str, **parts: Any) -> Any:
    """An expression of a dialect with the parts in the places of the placeholders `:name`."""
    import sqlglot
    from sqlglot import exp

    tree = sqlglot.parse_one(text, read=dialect)
    return exp.replace_placeholders(tree, **{name: part.copy() for name, part in parts.items()})


def _is_nonzero(node: Any) -> bool:
    from sqlglot import exp

    return isinstance(node, exp.Literal) and not node.is_string and float(node.this) != 0


def _divided_by_spark(node: Any) -> Any:
    left, right = node.this, node.expression
    if _is_nonzero(right):
        return None
    return _sql(
        "spark",
        "(CASE WHEN CAST(:b AS DOUBLE) = 0 THEN CAST(:a AS DOUBLE) * "
        "(CASE WHEN :a = 0 THEN CAST('nan' AS DOUBLE) ELSE CAST('inf' AS DOUBLE) END) "
        "ELSE CAST(:a AS DOUBLE) / CAST(:b AS DOUBLE) END)",
        a=left,
        b=right,
    )


def _divided_by_bigquery(node: Any) -> Any:
    from sqlglot import exp

    if _is_nonzero(node.expression):
        return None
    return exp.Anonymous(this="IEEE_DIVIDE", expressions=[node.this.copy(), node.expression.copy()])


def _rounded(node: Any) -> Any:
    from sqlglot import exp

    if not node.to.is_type(*exp.DataType.INTEGER_TYPES):
        return None
    source = node.this.unnest()
    if source.is_type("double", "float"):
        function: Any = exp.Anonymous(this="RINT", expressions=[source.copy()])
    elif source.is_type("decimal"):
        function = exp.Round(this=source.copy())
    else:
        return None
    new = node.copy()
    new.set("this", function)
    return new


def _pattern(node: Any) -> str:
    """Returns the pattern that is matched, its flags within it."""
    from sqlglot import exp

    if not isinstance(node.expression, exp.Literal):
        raise ValueError("a pattern has to be a text that is written out")
    if isinstance(node, exp.RegexpFullMatch):
        return f"^(?:{node.expression.name})$"
    flags = node.args.get("flag")
    return (f"(?{flags.name})" if flags and flags.name else "") + str(node.expression.name)


def _matched_by_java(node: Any) -> Any:
    from sqlglot import exp

    return exp.RegexpLike(this=node.this.copy(), expression=exp.Literal.string(in_java(_pattern(node))))


def _matched_by_bigquery(node: Any) -> Any:
    from sqlglot import exp

    return exp.RegexpLike(this=node.this.copy(), expression=exp.Literal.string(_pattern(node)))


def _epoch(dialect: str) -> Any:
    def rewrite(node: Any) -> Any:
        if node.name.lower() != "epoch_us":
            return None
        return _sql(dialect, "UNIX_MICROS(CAST(:t AS TIMESTAMP))", t=node.expressions[0])

    return rewrite


def _least(function: str) -> Any:
    def rewrite(node: Any) -> Any:
        return _sql("bigquery", f"(SELECT {function}(element) FROM UNNEST(:v) AS element)", v=node.this)

    return rewrite


def _approximate(node: Any) -> Any:
    """The median of all values, or of those where a filter around it is true."""
    from sqlglot import exp

    if isinstance(node, exp.Median):
        inside = isinstance(node.parent, exp.Filter)
        return None if inside else _sql("bigquery", "APPROX_QUANTILES(:x, 1000)[OFFSET(500)]", x=node.this)
    if not isinstance(node.this, exp.Median):
        return None
    where = node.expression.this
    return _sql(
        "bigquery", "APPROX_QUANTILES(IF(:w, :x, NULL), 1000)[OFFSET(500)]", w=where, x=node.this.this
    )


def _grouped(node: Any) -> Any:
    from sqlglot import exp

    by = node.args.get("partition_by")
    if not by or isinstance(by[0], exp.Anonymous):
        return None
    new = node.copy()
    struct = exp.Struct(expressions=[part.copy() for part in by])
    new.set("partition_by", [exp.Anonymous(this="TO_JSON_STRING", expressions=[struct])])
    return new


def _greatest(side: str) -> Any:
    def rewrite(node: Any) -> Any:
        from sqlglot import exp

        value = node.args[side]
        if not value.is_type("double", "float") or value.find(exp.Column) is None:
            return None
        return _sql("bigquery", "(:c OR IS_NAN(:x))", c=node, x=value)

    return rewrite


_SPARK = {
    "Div": _divided_by_spark,
    "Cast": _rounded,
    "RegexpLike": _matched_by_java,
    "RegexpFullMatch": _matched_by_java,
    "Anonymous": _epoch("spark"),
}
_BIGQUERY = {
    "Div": _divided_by_bigquery,
    "RegexpLike": _matched_by_bigquery,
    "RegexpFullMatch": _matched_by_bigquery,
    "Anonymous": _epoch("bigquery"),
    "ArrayMin": _least("MIN"),
    "ArrayMax": _least("MAX"),
    "Median": _approximate,
    "Filter": _approximate,
    "Window": _grouped,
    "GT": _greatest("this"),
    "GTE": _greatest("this"),
    "LT": _greatest("expression"),
    "LTE": _greatest("expression"),
}

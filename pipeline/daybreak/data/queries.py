"""Compiles the rules and figures of a suite to the queries that an engine runs on the rows of a partition.

    given    the rows as engines.py gives them, and the derived columns by Ibis
    wide     given, and the derived columns by SQL
    rules    the numbers of the rows of `wide` that fail a rule, with the rules that fail
    figures  one line of aggregates over `wide`

For any engine, each expression is first computed alone on a row of nulls in DuckDB, so that an error names
the expression. SQL is then translated to the engine's dialect, and Ibis is compiled to it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Table
from daybreak.data.dialects import DUCKDB, translated
from daybreak.data.engines import AT_MIDNIGHT, NUMBER, ROWS, duckdb_connection
from daybreak.data.row_rules import quoted
from daybreak.data.suite import COPIES, HOUR, MIDNIGHT, IbisFunction, Rule, Suite, imported_rule

if TYPE_CHECKING:
    import ibis.expr.types as ir

GIVEN, WIDE = "given", "wide"


class Queries:
    """The queries of a suite for an engine, an Ibis backend by its name.

    Attributes:
        rules: finds the rows that fail a rule, "" where all rules are in Python; begins with `WITH`.
        figures: queries that find the figures of these names, in order.
    """

    def __init__(
        self, table: Table, suite: Suite, rules: Sequence[Rule], *, predicates: Mapping[int, str], engine: str
    ) -> None:
        self._engine = engine
        self._nothing = duckdb_connection()
        self._types: dict[str, dict[str, str]] = {}  # DuckDB's, of the columns of each table
        self._before = ""  # the queries of the tables so far, in the SQL of the engine
        self._register(table)
        self._add(GIVEN, self._with_ibis(suite), of=ROWS)
        self._add(WIDE, self._with_sql(table, suite, rules), of=GIVEN)
        self.figures = self._figures(suite)
        self._check({f"rule {rules[number].name!r}": sql for number, sql in predicates.items()}, of=WIDE)
        self.rules = self._ending("the rules", _failing(predicates)) if predicates else ""

    def _register(self, table: Table) -> None:
        """Makes a row of nulls the table of rows."""
        import pyarrow as pa

        schema = table.schema()
        row = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
        for name in (NUMBER, AT_MIDNIGHT):
            row = row.append_column(name, pa.array([0], pa.int64()))
        self._nothing.register(ROWS, row)
        self._types[ROWS] = self._described(ROWS)

    def _described(self, name: str) -> dict[str, str]:
        return dict(row[:2] for row in self._nothing.execute(f"DESCRIBE {name}").fetchall())

    def _with_ibis(self, suite: Suite) -> "str | ir.Table":
        """The rows with the derived columns by Ibis."""
        columns = {name: one for name, one in suite.columns.items() if isinstance(one, IbisFunction)}
        if not columns:
            return f"SELECT * FROM {ROWS}"
        rows = self._unbound(ROWS)
        values = []
        for name, column in columns.items():
            what = f"the column {name!r}"
            value = _expression(what, column, rows, kind="Value", wanted="a column of the rows").name(name)
            self._checked(what, rows.select(value), of=ROWS)
            values.append(value)
        return rows.mutate(*values)

    def _with_sql(self, table: Table, suite: Suite, rules: Sequence[Rule]) -> str:
        """The rows with the derived columns by SQL, and those of ours that a rule names."""
        columns = {name: f"({one})" for name, one in suite.columns.items() if isinstance(one, str)}
        self._check({f"the column {name!r}": sql for name, sql in columns.items()}, of=GIVEN)
        named = {name for rule in rules for name in rule.columns}
        hour = f"(epoch_us({quoted(table.time)}) - {AT_MIDNIGHT}) / 3.6e9"
        every = ", ".join(map(quoted, table.columns))
        copies = f"row_number() OVER (PARTITION BY {every} ORDER BY {NUMBER}) - 1"
        built_in = {MIDNIGHT: hour, HOUR: hour, COPIES: copies}
        taken = {name.lower() for name in table.columns}
        columns |= {name: sql for name, sql in built_in.items() if name in named and name not in taken}
        derived = "".join(f", {sql} AS {quoted(name)}" for name, sql in columns.items())
        return f"SELECT *{derived} FROM {GIVEN}"

    def _figures(self, suite: Suite) -> list[tuple[tuple[str, ...], str]]:
        in_sql = {name: one for name, one in suite.figures.items() if isinstance(one, str)}
        self._check({f"the figure {name!r}": sql for name, sql in in_sql.items()}, of=WIDE)
        queries = []
        if in_sql:
            columns = ", ".join(f"{sql} AS f{number}" for number, sql in enumerate(in_sql.values()))
            queries.append((tuple(in_sql), self._ending("the figures", f"SELECT {columns} FROM {WIDE}")))
        for name, one in suite.figures.items():
            if isinstance(one, IbisFunction):
                what, rows = f"the figure {name!r}", self._unbound(WIDE)
                value = _expression(what, one, rows, kind="Scalar", wanted="one number for all rows")
                queries.append(((name,), self._ending(what, rows.aggregate(f0=value))))
        return queries

    def _unbound(self, name: str) -> "ir.Table":
        """Returns a table by its name, as an expression."""
        import ibis

        schema = self._nothing.sql(f"SELECT * FROM {name}").to_arrow_table().schema
        return ibis.table(ibis.Schema.from_pyarrow(schema), name=name)

    def _add(self, name: str, query: "str | ir.Table", *, of: str) -> None:
        """Adds a table that later queries may name."""
        own = self._checked("the columns together", query, of=of)
        self._nothing.execute(f"CREATE VIEW {name} AS {_in_sql(query, DUCKDB)}")
        self._types[name] = self._described(name)
        self._before += f"{', ' if self._before else 'WITH '}{name} AS ({own})"

    def _ending(self, what: str, query: "str | ir.Table") -> str:
        return f"{self._before} {self._checked(what, query, of=WIDE)}"

    def _check(self, expressions: Mapping[str, str], *, of: str) -> None:
        """Computes expressions on the row of nulls; ParamsError names the first that is wrong.

        All are computed by one query, as each has to bind every column of the table; where it fails, by
        halves, so that the work does not grow by the square of the columns.
        """
        if not expressions:
            return
        try:
            self._nothing.execute(f"SELECT {', '.join(expressions.values())} FROM {of}").fetchall()
        except Exception as error:  # of DuckDB: an expression is wrong
            named = [*expressions.items()]
            if len(named) == 1:
                raise self._wrong(named[0][0], error) from error
            for part in (named[: len(named) // 2], named[len(named) // 2 :]):
                self._check(dict(part), of=of)
            raise self._wrong(f"{named[0][0]} and those after it", error) from error  # not in one query

    def _checked(self, what: str, query: "str | ir.Table", *, of: str) -> str:
        """Computes a query on the row of nulls, and returns it in the SQL of the engine."""
        try:
            self._nothing.execute(_in_sql(query, DUCKDB)).fetchall()
            if not isinstance(query, str):
                return _in_sql(query, self._engine)
            if self._engine == DUCKDB:
                return query
            return translated(query, engine=self._engine, tables={of: self._types[of]})
        except Exception as error:  # of DuckDB, of Ibis, or ours: the expression is wrong
            raise self._wrong(what, error) from error

    def _wrong(self, what: str, error: Exception) -> ParamsError:
        return ParamsError(f"{what} cannot be judged: {first_line(error)}; fix it in the suite")


def first_line(error: Exception) -> str:
    """Returns what an engine says first."""
    return str(error).strip().splitlines()[0].rstrip(".!") if str(error).strip() else type(error).__name__


def _in_sql(query: "str | ir.Table", engine: str) -> str:
    if isinstance(query, str):
        return query
    import ibis

    return str(ibis.to_sql(query, dialect=engine))


def _expression(what: str, function: IbisFunction, rows: "ir.Table", *, kind: str, wanted: str) -> Any:
    """Returns the Ibis expression that a function makes of the rows; ParamsError where it makes another."""
    import ibis.expr.types as ir
    from ibis.common.deferred import Deferred

    try:
        value = imported_rule(function.ibis, what=what)(rows)
        if isinstance(value, Deferred):  # of `ibis._`, say
            (value,) = rows.bind(value)
    except ParamsError:
        raise
    except Exception as error:  # whatever the team's code raises
        raise ParamsError(
            f"{what}: {function.ibis} fails: {type(error).__name__}: {first_line(error)}; fix it"
        ) from error
    if not isinstance(value, getattr(ir, kind)):
        raise ParamsError(
            f"{what}: {function.ibis} returns {type(value).__name__}; return {wanted}, as an Ibis expression"
        )
    return value


def _failing(predicates: Mapping[int, str]) -> str:
    columns = ", ".join(f"coalesce({sql}, FALSE) AS r{number}" for number, sql in predicates.items())
    some = " OR ".join(f"r{number}" for number in predicates)
    return f"SELECT * FROM (SELECT {NUMBER}, {columns} FROM {WIDE}) AS judged WHERE {some} ORDER BY {NUMBER}"

"""Scans a partition on an engine for rows that fail rules, and for the figures of the day.

The rules become one condition that the engine computes while reading, so only failing rows come back: their
numbers, and a truth value for each rule. Memory is that of one partition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Float, Table
from daybreak.data.bad_cells import AS_DELIVERED, texts_of
from daybreak.data.dialects import DUCKDB
from daybreak.data.engines import NUMBER, engine_of
from daybreak.data.partitions import part_of
from daybreak.data.queries import Queries, first_line
from daybreak.data.row_rules import failing
from daybreak.data.suite import NUM_ROWS, OF_TYPE, Rule, Suite, imported_rule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class PartitionFindings:
    """What the rules say of a partition."""

    num_rows: int
    bad: "NDArray[np.int64]"  # numbers of the rows that fail a rule, in order
    failed: "NDArray[np.bool_]"  # which rules each of them fails; shape [bad, rules]
    figures: dict[str, float]  # of the day; NaN where there is none

    def good(self) -> "NDArray[np.bool_]":
        """Returns which rows fail no rule; shape [rows]."""
        import numpy as np

        good = np.ones(self.num_rows, dtype=np.bool_)
        good[self.bad] = False
        return good


class PartitionScan:
    """The rules and figures of a table, compiled once; ParamsError names the one that is wrong."""

    def __init__(self, table: Table, suite: Suite, rules: Sequence[Rule], *, engine: str = DUCKDB) -> None:
        self._table, self._rules = table, rules
        vectors = {
            name for name, column in table.columns.items() if isinstance(column, Float) and column.size
        }
        self._predicates = {
            number: failing(rule.name, type=rule.type, kwargs=rule.kwargs, vectors=vectors)
            for number, rule in enumerate(rules)
            if rule.type not in ("", OF_TYPE)
        }
        self._python = {
            number: imported_rule(rule.python, what=f"rule {rule.name!r}")
            for number, rule in enumerate(rules)
            if rule.python
        }
        self._engine = engine_of(engine)  # first, as Ibis compiles for a backend by its options
        self.queries = Queries(table, suite, rules, predicates=self._predicates, engine=self._engine.name)

    def judge(self, day: date) -> PartitionFindings:
        """Returns which rows of the day's partition fail which rules, and the figures of the day."""
        import pyarrow.parquet as pq

        part = part_of(day)
        num_rows = int(pq.read_metadata(part).num_rows)
        try:
            self._engine.read(day)
            bad, failed = self._failed()
            results = [(names, self._engine.line(query)) for names, query in self.queries.figures]
        except Exception as error:  # whatever the engine raises
            raise ParamsError(
                f"the suite's rules, columns or figures cannot be computed on {day}: {first_line(error)}; "
                f"fix them in the suite (validate.suite)"
            ) from error
        figures = {
            name: _number(name, value)
            for names, values in results
            for name, value in zip(names, values, strict=True)
        }
        fails = self._of_types(part)
        if self._python:
            rows = pq.read_table(part, partitioning=None, page_checksum_verification=True).select(
                list(self._table.columns)
            )
            fails |= {
                number: ~_passes(self._rules[number], function(rows), num_rows=len(rows))
                for number, function in self._python.items()
            }
        if fails:
            bad, failed = self._with(fails, bad, failed)
        return PartitionFindings(
            num_rows=num_rows, bad=bad, failed=failed, figures={NUM_ROWS: num_rows} | figures
        )

    def _failed(self) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
        import numpy as np

        if not self.queries.rules:
            return np.zeros(0, dtype=np.int64), np.zeros((0, len(self._rules)), dtype=np.bool_)
        columns = self._engine.rows(self.queries.rules)
        failed = np.zeros((len(columns[NUMBER]), len(self._rules)), dtype=np.bool_)
        for number in self._predicates:
            failed[:, number] = columns[f"r{number}"]
        return np.asarray(columns[NUMBER], dtype=np.int64), failed

    def _of_types(self, part: Path) -> "dict[int, NDArray[np.bool_]]":
        """Returns by the number of a rule on a type which rows of a partition fail it, if any does."""
        import pyarrow.parquet as pq

        if AS_DELIVERED not in pq.read_schema(part).names:
            return {}
        rows = pq.read_table(part, columns=[AS_DELIVERED], partitioning=None, page_checksum_verification=True)
        texts = {
            number: texts_of(rows, str(rule.kwargs["column"]))
            for number, rule in enumerate(self._rules)
            if rule.type == OF_TYPE
        }
        return {
            number: of_rule.is_valid().to_numpy(zero_copy_only=False)
            for number, of_rule in texts.items()
            if of_rule is not None
        }

    def _with(
        self, fails: "Mapping[int, NDArray[np.bool_]]", bad: "NDArray[np.int64]", failed: "NDArray[np.bool_]"
    ) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
        """Adds the rows that fail rules which no query judges, by the numbers of the rules."""
        import numpy as np

        every = np.union1d(bad, np.flatnonzero(np.logical_or.reduce(list(fails.values()))))
        both = np.zeros((len(every), len(self._rules)), dtype=np.bool_)
        both[np.searchsorted(every, bad)] = failed
        for number, fail in fails.items():
            both[:, number] = fail[every]
        return every, both


def _passes(rule: Rule, returned: Any, *, num_rows: int) -> "NDArray[np.bool_]":
    import numpy as np

    passes = np.asarray(returned)
    if passes.dtype != np.bool_ or passes.shape != (num_rows,):
        raise ParamsError(
            f"rule {rule.name!r}: {rule.python} returns {passes.dtype} of shape {list(passes.shape)} for "
            f"{num_rows:,} rows; return an array of bools, True for each row that passes"
        )
    return passes


def _number(name: str, value: Any) -> float:
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError):
        raise ParamsError(f"the figure {name!r} is {value!r}, not a number; fix it in the suite") from None

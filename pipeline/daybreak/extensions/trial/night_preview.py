"""Predicts which rows and figures of a day a night would refuse, and whether its gate has enough samples.

`try` uses it for a day and the days before, and `init` for the home that it proposes, before a night has
trained for hours. Pure.
"""

from collections.abc import Mapping, Sequence
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract.formats import count, counted, days
from daybreak.contract.table import Bool, Int, Table
from daybreak.data import drift
from daybreak.data.suite import Suite

LEAST_LABELS = 10  # held-out samples of either label that a verdict needs


def refused_rows(*, num_bad: int, num_rows: int, failed: Mapping[str, int], limit: float) -> list[str]:
    """Returns why `validate` would stop for rows that fail rules; `failed` counts them by rule."""
    if num_bad <= limit * num_rows:
        return []
    worst = sorted(failed, key=lambda name: -failed[name])[:3]
    return [
        f"a night would stop, as {count(num_bad)} of {count(num_rows)} rows fail rules, more than "
        f"validate.max_quarantined ({limit:.0%}): "
        f"{', '.join(f'{name!r} {count(failed[name])}' for name in worst)}; "
        f"change these rules in the suite or the table, or have the rows delivered right"
    ]


def refused_figures(rules: Sequence[str]) -> list[str]:
    """Returns why `validate` would stop for rules of days that a day fails."""
    return (
        [f"a night would stop, as the day fails {', '.join(rules)}; change that in the suite"]
        if rules
        else []
    )


def drift_of(
    day: date, clean: Mapping[date, pa.Table], table: Table, suite: Suite, *, limit: float
) -> tuple[str, list[str]]:
    """Returns how far a day is from the same weekdays before it, and why `validate` would stop for that."""
    if suite.drift == "off":
        return "off", []
    before = [rows.column for other, rows in clean.items() if other != day]
    distances = drift.distances(clean[day].column, before, table, limits=suite.drift, limit=limit)
    if not distances:
        return f"{len(before)} of {drift.LEAST_WEEKDAYS} earlier {day:%A}s to compare with", []
    widest = max(distances, key=lambda one: one.value - one.limit)
    far = [one for one in distances if one.value > one.limit]
    shown = [f"{one.column} {one.value:.2f} (limit {one.limit:g})" for one in far or [widest]]
    text = f"from {len(before)} earlier {day:%A}s: {shown[0]}"
    if not far:
        return text, []
    return text, [
        f"a night would stop, as {day} is unlike the last {len(before)} {day:%A}s: {', '.join(shown)}; raise "
        f"the limit under drift in the suite, or set it off"
    ]


def held_out(parts: Mapping[date, pa.Table], table: Table, *, min_samples: int) -> tuple[str, list[str]]:
    """Returns what the held-out days have to judge by, and why the gate could not decide by it."""
    if not parts:
        return "no day whose labels are known", [
            "no night could decide, as the labels of no day up to this one are known yet; wait until they "
            "are, or name a later day"
        ]
    rows = pa.concat_tables(parts.values())
    label = table.label
    known = rows.filter(pc.is_valid(rows[label.column])) if label else rows
    num_units = pc.count_distinct(known[table.unit]).as_py() if table.unit else len(known)
    where = f"{counted(len(parts), 'held-out day')} ({days(parts)})"
    of_units = f" of {counted(num_units, 'unit')}" if table.unit else ""
    text, doubts = f"{counted(len(known), 'sample')}{of_units} on {days(parts)}", []
    if num_units < min_samples:
        what = f"{num_units} values of {table.unit}" if table.unit else counted(num_units, "sample")
        ways = ["leave the table's unit out (--unit of init)"] if table.unit else []
        ways += ["hold out more days (prepare.test_days)"] if _more_days_bring_more(parts, table) else []
        doubts.append(
            f"no night could decide, as {where} {_has(parts)} {what}, fewer than gate.min_samples "
            f"({min_samples}); {', '.join([*ways, 'or lower it'])}"
        )
    column = table.columns[label.column] if label else None
    of_two = isinstance(column, Bool) or (isinstance(column, Int) and (column.min, column.max) == (0, 1))
    if label and of_two:
        ones = int(pc.sum(known[label.column].cast(pa.int64())).as_py() or 0)
        for value, num in ((1, ones), (0, len(known) - ones)):
            if num < LEAST_LABELS:
                rows_of = f"only {counted(num, 'row')}" if num else "no row"
                doubts.append(
                    f"{where} {_has(parts)} {rows_of} whose {label.column} is {value}, too few to judge by; "
                    f"hold out more days (prepare.test_days)"
                )
        text += f", {count(ones)} of them with {label.column} = 1"
    return text, doubts


def _more_days_bring_more(parts: Mapping[date, pa.Table], table: Table) -> bool:
    """Returns whether older days had units that the newer half of the days has not."""
    if not table.unit or len(parts) < 2:
        return True
    units = [set(pc.unique(parts[day][table.unit].drop_null()).to_pylist()) for day in sorted(parts)]
    return bool(set().union(*units) - set().union(*units[len(units) // 2 :]))


def _has(parts: Mapping[date, pa.Table]) -> str:
    return "has" if len(parts) == 1 else "have"

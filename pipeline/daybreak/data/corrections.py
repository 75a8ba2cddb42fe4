"""Corrects the rows of a partition by those of later ones, as returns do with orders.

    reaches_back: timedelta                     how far
    corrected(rows, later) -> pa.Table          those of `rows` that stay, in their columns

`rows` are of one partition, `later` the rows of the partitions after it, no further than `reaches_back`, in
order of days and without the label. `corrected` is never given more than may be known:

    for `past`              days before that of the sample
    for a held-out sample   days until its label is ripe
    for a training sample   the same, and later training days, which are over before any held-out day

The features of a sample are made from the row as it was delivered, since no correction was known then; the
correction decides whether it is a sample, and its label. `arrays` gets whole corrected rows.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = "(place)"  # column with the place of a row in its partition, by which a corrected row is known


def corrects(workload: Any) -> bool:
    """Returns whether later rows correct earlier ones; ParamsError where it is not said how."""
    if hasattr(workload, "corrected"):
        return True
    if reach(workload):
        raise ParamsError(
            f"{type(workload).__name__} has reaches_back, but no corrected(self, rows, later); "
            f"return the rows as the later ones leave them"
        )
    return False


def reach(workload: Any) -> timedelta:
    """Returns how far back a row corrects others."""
    back: timedelta = getattr(workload, "reaches_back", timedelta())
    return back


def later_days(workload: Any, day: date, days: Iterable[date], *, last: date) -> list[date]:
    """Returns those of `days` whose rows correct the samples of a day; `last` is the last training day."""
    after = workload.table.label.ripe_after if workload.table.label else timedelta()
    ripe = day + timedelta(days=math.ceil(after / timedelta(days=1)))
    until = min(day + reach(workload), max(ripe, last))
    return sorted(other for other in days if day < other <= until)


def corrected(workload: Any, rows: "pa.Table", later: "Sequence[pa.Table]") -> "pa.Table":
    """Returns the rows that stay, as `later` leaves them, in their order, with the column PLACE.

    Raises ParamsError where `corrected` returns anything but rows that it was given.
    """
    import numpy as np
    import pyarrow as pa

    table: Table = workload.table
    name = f"{type(workload).__name__}.corrected"
    given = rows.select(list(table.columns)).append_column(PLACE, pa.array(range(len(rows)), pa.int64()))
    parts = later or [rows.slice(0, 0)]
    seen = pa.concat_tables([part.select(list(table.features)) for part in parts])
    try:
        made = workload.corrected(given, seen)
    except Exception as error:  # whatever the team's code raises
        raise ParamsError(f"{name} fails: {type(error).__name__}: {error}; fix it") from error
    if not isinstance(made, pa.Table) or not set(given.column_names) <= set(made.column_names):
        raise ParamsError(f"{name} returns no table with the columns of `rows`; filter it, or set columns")
    made = made.select(given.column_names).combine_chunks().sort_by(PLACE)
    if not made.schema.equals(given.schema):
        raise ParamsError(f"{name} returns columns of other types than those of `rows`; cast them back")
    places = made[PLACE].to_numpy()
    if len(np.setdiff1d(places, np.arange(len(rows)))) or (np.diff(places) == 0).any():
        raise ParamsError(f"{name} returns rows that it was not given; return those of `rows` that stay")
    return made


def sample_rows(workload: Any, rows: "pa.Table", later: "Sequence[pa.Table]") -> "pa.Table":
    """Returns the rows that stay as they were delivered, with the labels that the correction gives them."""
    made = corrected(workload, rows, later)
    kept = rows.select(list(workload.table.columns)).take(made[PLACE])
    for name in workload.table.labels:
        where = kept.schema.get_field_index(name)
        kept = kept.set_column(where, kept.schema.field(where), made[name])
    return kept

"""Measures how far tonight's day is from the same weekdays before it: a distance per column, from 0 to 1.

By the type of a column: numbers and times (by the minute of the day) by the two-sample Kolmogorov-Smirnov
statistic, the largest gap between the two distribution functions, and so the lengths of text and bytes, and
of vectors the means of their numbers; categories and bools by the Jensen-Shannon distance to base 2. Of a
column that may be null also the difference of the shares of nulls, which is all that is measured of an id.
(rows): 1 - the smaller count / the larger. Of a label that comes late nothing is measured, as tonight's are
not yet known. A distance says how far, not how sure: on thousands of rows every p-value is zero.

Each is a metric, so few values of a day are no farther from the days before than the whole day is, plus what
they are from their own day, which `by_chance` bounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import log, sqrt
from typing import TYPE_CHECKING, Literal

from daybreak.contract.formats import percents, quantity
from daybreak.contract.record_parts import Drift
from daybreak.contract.table import AnyColumn, Table
from daybreak.statistics.forecast_limits import exceeded

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Rows = Callable[[str], pa.ChunkedArray]  # the values of a column of a day

SAME_WEEKDAYS = 4
LEAST_WEEKDAYS = 2
ROWS = "(rows)"
KOLMOGOROV_SMIRNOV, JENSEN_SHANNON = "Kolmogorov-Smirnov", "Jensen-Shannon"
MISSING = "difference of missing shares"
NUM_DRAWS = 200


def distances(
    day: "Rows",
    before: "Sequence[Rows]",
    table: Table,
    *,
    limits: Mapping[str, float | Literal["off"]],
    limit: float,
) -> tuple[Drift, ...]:
    """Returns the distance of each column of `day` from the days `before` it, pooled.

    A day gives the values of a column by its name, so that one column is in memory at a time. `limits` are by
    column, or "off"; `limit` is for a column without its own. Returns an empty tuple if there are fewer than
    two days to compare with, or no rows.
    """
    if len(before) < LEAST_WEEKDAYS:
        return ()
    num_rows, num_before = len(day(table.time)), sum(len(rows(table.time)) for rows in before)
    if not num_rows or not num_before:
        return ()
    measured = list(_measured(day, before, table, off={name for name in limits if limits[name] == "off"}))
    mean = num_before / len(before)
    if limits.get(ROWS) != "off":
        value = 1 - min(num_rows, mean) / max(num_rows, mean)
        measured.append((ROWS, "1 - smaller / larger", value))
    return tuple(
        Drift(column=name, statistic=statistic, value=value, limit=float(limits.get(name, limit)))
        for name, statistic, value in measured
    )


def of_weeks(
    weeks: "Sequence[Rows]",
    reference: "Sequence[Rows]",
    table: Table,
    *,
    limits: Mapping[str, float | Literal["off"]],
    limit: float,
) -> list[str]:
    """Returns the columns of some weeks that are beyond their limits from those of others, in words.

    Arguments as of `distances`. Whole weeks lie nearer to each other than a day to its weekdays, so what is
    beyond the limits of a day is no chance. How many rows there are is left out: a table may grow.
    """
    newest = partial(_pooled, weeks)
    far = distances(newest, reference, table, limits={**limits, ROWS: "off"}, limit=limit)
    said = []
    for one in far:
        if one.value > one.limit:
            name = one.column if one.column in table.columns else one.column.removesuffix(" nulls")
            new, old = in_words(table.columns[name], one.statistic, newest(name), _pooled(reference, name))
            said.append(f"{name} {new}, not {old} ({one.value:.2f}, limit {one.limit:g})")
    return said


def _pooled(days: "Sequence[Rows]", column: str) -> "pa.ChunkedArray":
    import pyarrow as pa

    parts = [rows(column) for rows in days]
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=parts[0].type)


def _measured(
    day: "Rows", before: "Sequence[Rows]", table: Table, *, off: set[str]
) -> Iterator[tuple[str, str, float]]:
    """Yields name, statistic and distance of each column; nothing where one side has no value."""
    import pyarrow as pa

    label, late = table.label, {each.column for each in table.auxiliary}
    late |= {label.column} if label and label.ripe_after else set()
    for name, column in table.columns.items():
        is_label = label is not None and name == label.column
        if name in late:
            continue
        nulls = name if column.kind == "id" else f"{name} nulls"
        of_values = column.kind != "id" and "drift" not in column.off and name not in off
        of_nulls = column.nullable and not is_label and "null drift" not in column.off and nulls not in off
        if not of_values and not of_nulls:
            continue
        new = day(name)
        old = pa.chunked_array([chunk for rows in before for chunk in rows(name).chunks], type=new.type)
        if of_values and len(new) > new.null_count and len(old) > old.null_count:
            statistic = JENSEN_SHANNON if column.kind in ("category", "bool") else KOLMOGOROV_SMIRNOV
            yield name, statistic, distance(column, new.drop_null(), old.drop_null())
        if of_nulls:
            yield nulls, MISSING, abs(new.null_count / len(new) - old.null_count / len(old))


def distance(column: AnyColumn, new: "pa.ChunkedArray", old: "pa.ChunkedArray") -> float:
    """Returns the distance of values without nulls from earlier ones, by the kind of their column."""
    if column.kind in ("category", "bool"):
        return _divergence(new, old)
    return _gap(_numbers(column, new), _numbers(column, old))


def _gap(left: "NDArray[np.float64]", right: "NDArray[np.float64]") -> float:
    from scipy.stats import ks_2samp

    return float(ks_2samp(left, right, method="asymp").statistic)


def _numbers(column: AnyColumn, values: "pa.ChunkedArray") -> "NDArray[np.float64]":
    """A number for each value: itself, its length, its minute of the day; infinity for a vector with NaN."""
    import numpy as np
    import pyarrow.compute as pc

    if column.kind == "time":
        values = pc.add(pc.multiply(pc.hour(values), 60), pc.minute(values))
    elif column.kind == "bytes":
        values = pc.binary_length(values)
    elif column.kind == "text":
        values = pc.utf8_length(values)
    elif column.kind == "float" and column.size:
        flat = pc.list_flatten(values).to_numpy().reshape(-1, column.size)
        with np.errstate(invalid="ignore"):
            means = flat.mean(axis=1)
        # One NaN would make the whole distance NaN, which is beyond no limit.
        return np.where(np.isnan(means), np.inf, means).astype(np.float64)
    return np.asarray(values.to_numpy(), dtype=np.float64)


def _divergence(left: "pa.ChunkedArray", right: "pa.ChunkedArray") -> float:
    """The Jensen-Shannon distance of the shares of values."""
    import numpy as np
    from scipy.spatial.distance import jensenshannon

    counts = [
        dict(zip(side.field("values").to_pylist(), side.field("counts").to_pylist(), strict=True))
        for side in (left.value_counts(), right.value_counts())
    ]
    values = list(dict.fromkeys([*counts[0], *counts[1]]))
    shares = [np.array([count.get(value, 0) for value in values], dtype=np.float64) for count in counts]
    with np.errstate(invalid="ignore"):  # of nearly equal shares, the square may be rounded to below 0
        return float(np.nan_to_num(jensenshannon(shares[0], shares[1], base=2)))


def by_chance(statistic: str, values: "pa.ChunkedArray", *, num: int, chance: float) -> float:
    """Returns the distance that `num` values drawn from these exceed with that chance.

    Of numbers and of shares of nulls sqrt(ln(2 / chance) / (2 num)), whatever their distribution (Dvoretzky,
    Kiefer & Wolfowitz 1956, with the constant of Massart 1990; of a share it is Hoeffding's); of categories
    by the tail of NUM_DRAWS draws.
    """
    if statistic != JENSEN_SHANNON:
        return sqrt(log(2 / chance) / (2 * num))
    import numpy as np
    from scipy.spatial.distance import jensenshannon

    shares = values.drop_null().value_counts().field("counts").to_numpy() / (len(values) - values.null_count)
    draws = np.random.default_rng(0).multinomial(num, shares, size=NUM_DRAWS) / num
    return exceeded(jensenshannon(draws, np.broadcast_to(shares, draws.shape), base=2, axis=1), chance)


def in_words(
    column: AnyColumn, statistic: str, new: "pa.ChunkedArray", old: "pa.ChunkedArray"
) -> tuple[str, str]:
    """Returns what is measured of a column, in words, of new values and of old ones.

    It is the share of nulls, the median, or the share of the category whose share differs most. Of numbers
    with the same median it is the share up to where their distribution functions are farthest apart.
    """
    import numpy as np

    if statistic == MISSING:
        shares = percents(*(side.null_count / len(side) for side in (new, old)))
        return f"is missing in {shares[0]} of the rows", shares[1]
    if statistic == JENSEN_SHANNON:
        of_new, of_old = (_shares(side.drop_null()) for side in (new, old))
        value = max({**of_new, **of_old}, key=lambda one: abs(of_new.get(one, 0) - of_old.get(one, 0)))
        shares = percents(of_new.get(value, 0.0), of_old.get(value, 0.0))
        return f"is {value} in {shares[0]} of the rows", shares[1]
    numbers = [_numbers(column, side.drop_null()) for side in (new, old)]
    is_time, of = column.kind == "time", "length " if column.kind in ("text", "bytes") else ""

    def shown(value: float) -> str:
        return f"{int(value) // 60:02d}:{int(value) % 60:02d}" if is_time else quantity(float(value))

    medians = [shown(float(np.median(values))) for values in numbers]
    if medians[0] != medians[1]:
        return f"has the median {of}{medians[0]}", medians[1]
    from scipy.stats import ks_2samp

    place = float(ks_2samp(*numbers, method="asymp").statistic_location)
    shares = percents(*(float((values <= place).mean()) for values in numbers))
    return f"has a {of or 'value '}of at most {shown(place)} in {shares[0]} of the rows", shares[1]


def _shares(values: "pa.ChunkedArray") -> dict[str, float]:
    counts = values.value_counts()
    pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    return {str(value): count / len(values) for value, count in pairs}

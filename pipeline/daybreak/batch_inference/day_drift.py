"""Compares a day's predictions with those of days before, by samples of them that the home keeps.

The nearer of the day before and the same weekday counts, so that a Monday may differ from a Sunday. A sample
has the predictions alone, without whose they are; the measures are those of columns (daybreak/data/drift.py).
Of lists it has the items, whose shares are compared. Two samples of equal days differ by chance, which the
limit allows for: of lists of many items by more than `predict.max_drift` itself. A prediction that is not
finite is none: the share of such is compared by itself, and the others without them.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.record_parts import Drift
from daybreak.contract.table import AnyColumn, Category, Float
from daybreak.data.drift import JENSEN_SHANNON, KOLMOGOROV_SMIRNOV, MISSING, by_chance, distance
from daybreak.storage.home import Home

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ROWS = 100_000  # of a sample, on average
CHANCE = 0.001  # that a sample is farther from its day than is allowed for
DAYS_BACK = 7  # of which the newest and the oldest are compared with: the same weekday, after a week
SAMPLES = "predicted"  # folder in that of what is kept from night to night


def sample_of(files: Sequence[Path], *, without: Collection[str], whole: str = "") -> "pa.Table":
    """Returns random rows of the files of a day, without some columns.

    Rows of one value of the column `whole`, if it is named, are taken together, or none of them: the ranks of
    a list are to be there as often as in all lists.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random, parts = np.random.default_rng(0), []
    share = MOST_ROWS / max(1, sum(pq.read_metadata(path).num_rows for path in files))
    for path in files:
        names = [name for name in pq.read_schema(path).names if name not in without]
        rows = pq.read_table(path, columns=[*names, whole] if whole else names)
        if share < 1:
            places = np.arange(len(rows))
            if whole:
                places = rows[whole].combine_chunks().dictionary_encode().indices.to_numpy()
            rows = rows.filter(pa.array((random.random(len(rows)) < share)[places]))
        parts.append(rows.select(names))
    return pa.concat_tables(parts)


def distances(home: Home, day: date, sample: "pa.Table", *, limit: float) -> tuple[Drift, ...]:
    """Returns how far each prediction is from those of days before; none where none were kept."""
    days = (day - timedelta(days=back) for back in range(1, DAYS_BACK + 1))
    kept = [path for each in days if (path := _path(home, each)).exists()]
    nearest: dict[str, Drift] = {}
    for path in dict.fromkeys((kept[0], kept[-1])) if kept else ():
        for drift in _distances(sample, path, limit=limit):
            if drift.column not in nearest or drift.value < nearest[drift.column].value:
                nearest[drift.column] = drift
    return tuple(nearest.values())


def _distances(sample: "pa.Table", kept: Path, *, limit: float) -> Iterator[Drift]:
    import pyarrow.parquet as pq

    before = pq.read_table(kept)
    for name in sample.column_names:
        if name not in before.column_names or before.schema.field(name) != sample.schema.field(name):
            continue
        sides = sample[name].drop_null(), before[name].drop_null()
        if not all(map(len, sides)):
            continue
        column, (new, old) = _column(sides[0]), map(_finite, sides)
        lost = [1 - len(kept) / len(side) for kept, side in zip((new, old), sides, strict=True)]
        if any(lost):
            allowed = limit + sum(by_chance(MISSING, side, num=len(side), chance=CHANCE) for side in sides)
            yield Drift(
                column=f"{name} not finite", statistic=MISSING, value=abs(lost[0] - lost[1]), limit=allowed
            )
        if len(new) and len(old):
            statistic = JENSEN_SHANNON if column.kind == "category" else KOLMOGOROV_SMIRNOV
            allowed = limit + sum(
                by_chance(statistic, side, num=len(side), chance=CHANCE) for side in (new, old)
            )
            yield Drift(column=name, statistic=statistic, value=distance(column, new, old), limit=allowed)


def _finite(values: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Returns the predictions whose numbers are all finite; others than numbers are."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(values.type):
        return values.filter(pc.is_finite(values))
    if pa.types.is_list(values.type) and pa.types.is_floating(values.type.value_type):
        numbers = pc.list_flatten(values).to_numpy().reshape(len(values), -1)
        return values.filter(pa.array(np.isfinite(numbers).all(axis=1)))
    return values


def keep(home: Home, day: date, sample: "pa.Table") -> None:
    """Keeps the sample of a day, and of the last days before it that it may be compared with."""
    import pyarrow.parquet as pq

    from daybreak.contract import records

    records.replace_file(_path(home, day), lambda file: pq.write_table(sample, file, compression="zstd"))
    for path in _path(home, day).parent.glob("*.parquet"):
        if path.stem < str(day - timedelta(days=DAYS_BACK)):
            path.unlink()


def _path(home: Home, day: date) -> Path:
    return home.var / SAMPLES / f"{day}.parquet"


def _column(values: "pa.ChunkedArray") -> AnyColumn:
    """Returns a column of the kind that such values have."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_list(kind):
        return Float(size=len(values[0]))
    return Float() if pa.types.is_integer(kind) or pa.types.is_floating(kind) else Category()

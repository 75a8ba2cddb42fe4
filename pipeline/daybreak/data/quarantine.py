"""Splits the rows of a day into the clean ones and those in quarantine, and reads both again.

A bad row is kept with the name of the first rule that it failed. Clean + quarantined = rows in, always.
Partitions are replaced by a rename and never written to, since they may be links into a cache.
"""

import shutil
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract import records
from daybreak.contract.table import Table
from daybreak.data.bad_cells import AS_DELIVERED, without_texts
from daybreak.data.day_sample import hours_of
from daybreak.data.partition_scan import PartitionFindings
from daybreak.data.partitions import CLEAN, PART, QUARANTINE, RAW, part_of
from daybreak.data.suite import Rule

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from daybreak.data.drift import Rows

REFUSED = records.RUN / "bad_rows"  # those of a night that is stopped here
RULE = "(rule)"  # column of a bad row with the name of the first rule that it failed


def separate(judged: Mapping[date, PartitionFindings], table: Table, rules: Sequence[Rule]) -> None:
    """Writes the clean and the bad rows of each day."""
    for torn in (*CLEAN.glob(f"day=*/.{PART}"), *QUARANTINE.glob(f"day=*/.{PART}")):
        torn.unlink()  # left by a call that was killed while it wrote
    names = [rule.name for rule in rules]
    for day, one in judged.items():
        _split(day, one, table, names)


def keep_refused(judged: Mapping[date, PartitionFindings], table: Table, rules: Sequence[Rule]) -> None:
    """Writes the bad rows of days that stop the night, to be looked at (daybreak/report/bad_rows.py)."""
    names = [rule.name for rule in rules]
    for day, one in judged.items():
        _write_bad(_rows(day, table), one, names, part_of(day, REFUSED), key=table.key)


def clean_rows(day: date, judged: Mapping[date, PartitionFindings]) -> "Rows":
    """Returns the clean values of the day by column, also where they are not yet in `data/clean`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Opened once: the footer describes every column, so reading it for each column would cost quadratic time.
    part = pq.ParquetFile(part_of(day, RAW if day in judged else CLEAN), page_checksum_verification=True)
    good = pa.array(judged[day].good()) if day in judged else None

    def values(column: str) -> "pa.ChunkedArray":
        rows = part.read(columns=[column])[column]
        return rows if good is None else rows.filter(good)

    return values


def bad_hours(day: date, *, judged: Mapping[date, PartitionFindings], table: Table) -> "NDArray[np.float64]":
    """Returns the hour of each row of the day that is in quarantine, or will be."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = part_of(day, RAW if day in judged else QUARANTINE)
    if not part.exists():
        return np.zeros(0)
    times = pq.read_table(part, columns=[table.time], partitioning=None)[table.time]
    return hours_of(day, times.take(pa.array(judged[day].bad)) if day in judged else times)


def _split(day: date, judged: PartitionFindings, table: Table, names: Sequence[str]) -> None:
    """Writes the day's clean rows, and the others with the rule that they failed."""
    import pyarrow as pa

    rows = _rows(day, table)
    _replace(
        without_texts(rows).filter(pa.array(judged.good())),
        part_of(day, CLEAN),
        dictionaries=_repeated(without_texts(rows), table.key),
    )
    _write_bad(rows, judged, names, part_of(day, QUARANTINE), key=table.key)


def _rows(day: date, table: Table) -> "pa.Table":
    """Returns the rows of a day as they came in, with the texts of bad cells if there are any."""
    import pyarrow.parquet as pq

    rows = pq.read_table(part_of(day), partitioning=None, page_checksum_verification=True)
    names = [*table.columns, *([AS_DELIVERED] if AS_DELIVERED in rows.column_names else [])]
    return rows.select(names).combine_chunks()


def _write_bad(
    rows: "pa.Table", judged: PartitionFindings, names: Sequence[str], path: Path, *, key: tuple[str, ...]
) -> None:
    """Writes the day's bad rows, each with the first rule that it failed; where there is none, no file."""
    import pyarrow as pa

    if not len(judged.bad):
        shutil.rmtree(path.parent, ignore_errors=True)
        return
    first = pa.array([names[number] for number in judged.failed.argmax(axis=1)], pa.string())
    bad = rows.take(pa.array(judged.bad)).append_column(RULE, first)
    _replace(bad, path, dictionaries=[*_repeated(rows, key), RULE])


def _repeated(rows: "pa.Table", key: tuple[str, ...]) -> list[str]:
    """Returns the columns of texts that come again; a dictionary of others is only work for the writer."""
    return [name for name in rows.column_names if _is_text(rows, name) and (name,) != key]


def _is_text(rows: "pa.Table", name: str) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(rows.schema.field(name).type))


def _replace(table: "pa.Table", path: Path, *, dictionaries: list[str]) -> None:
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{PART}")
    pq.write_table(
        table, unfinished, compression="zstd", write_page_checksum=True, use_dictionary=dictionaries
    )
    unfinished.replace(path)

"""Predicts some clean rows of each of several days by a version's own code, in a process of its own.

The rows are evenly spaced over the day, and their features look back on the clean days before it, as in
training and in serving.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import DataError, without_password
from daybreak.contract.record_types import Release
from daybreak.data.partitions import part_of, partitions
from daybreak.registry import carried_code
from daybreak.registry.host import CodeHost, NoAnswer
from daybreak.registry.weights import load_rows
from daybreak.storage.home import Home
from daybreak.workloads.served_rows import conformed

if TYPE_CHECKING:
    import pyarrow as pa

ANSWER_S = 1800.0
MAX_ROWS = 2500  # of a day


def predictions(
    home: Home, release: Release, folder: Path, *, clean: Path, days: Sequence[date]
) -> "list[pa.Table]":
    """Returns the predictions of a version in a folder for rows of each day, with the time of the row.

    Raises DataError where the version's own code does not predict the rows.
    """
    import pyarrow.parquet as pq

    with CodeHost(__name__, answer_s=ANSWER_S, home=home, reads=(clean, folder)) as process:
        to = process.scratch / "predictions"
        try:
            process.ask(
                "predict", version=str(folder), clean=str(clean), days=list(map(str, days)), to=str(to)
            )
            tables = []
            for day in days:
                with process.reading(part_of(day, to)) as file:
                    tables.append(pq.read_table(file))
        except NoAnswer as error:
            raise DataError(
                f"version {release.version} does not predict rows of its training days: "
                f"{without_password(str(error))}"
            ) from None
        return tables


def _predict(*, version: str, clean: str, days: Sequence[str], to: str) -> dict[str, Any]:
    """Writes the predictions of some rows of each day."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, rows_in = Path(version), Path(clean)
    workload = carried_code.workload_of(folder)

    def read(day: date) -> "pa.Table":
        return pq.read_table(part_of(day, rows_in), partitioning=None, page_checksum_verification=True)

    served = replace(
        load_rows(workload, folder / carried_code.MODEL.parent), days=partitions(rows_in), read=read
    )
    for day in map(date.fromisoformat, days):
        rows = read(day)
        rows = rows.select([name for name in rows.column_names if name in workload.table.columns])
        some = rows.take(np.linspace(0, len(rows) - 1, min(MAX_ROWS, len(rows))).astype(int))
        columns: dict[str, Any] = {workload.table.time: some[workload.table.time]}
        for name, values in served.of(conformed(some, workload.table)).items():
            columns[name] = values if values.ndim == 1 else pa.array(values.tolist())
        path = part_of(day, Path(to))
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table(columns), path)
    return {}


VERBS = {"predict": _predict}

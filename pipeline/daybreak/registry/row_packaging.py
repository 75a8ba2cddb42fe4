"""Packs everything that a version needs to predict raw rows: past days, the signature, an example.

Any MLflow client can then call `mlflow.pyfunc.load_model(uri).predict(rows)`, rows as a table of pandas.
"""

import json
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract.table import AnyColumn, Table
from daybreak.data.features import read_clean
from daybreak.data.partitions import CLEAN, held_out_days, part_of, partitions
from daybreak.registry.weights import PAST
from daybreak.workloads.served_rows import as_records, conformed

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature
    from numpy.typing import NDArray

NUM_EXAMPLES = 5
REQUIRED = ("pandas", "pyarrow")


def past(workload: Any, folder: Path, *, day: date) -> Path | None:
    """Writes the clean rows that later days look back on to `folder/past`; None where they look on none.

    That begins with what the first held-out day looks back on, so that the version can be tested on it.
    """
    import pyarrow.parquet as pq

    back: timedelta = getattr(workload, "looks_back", timedelta())
    if not back:
        return None
    first = min([*held_out_days(), day]) - back
    for other in partitions(CLEAN):
        if first <= other <= day:
            path = part_of(other, folder / PAST)
            path.parent.mkdir(parents=True)
            pq.write_table(
                read_clean(other).select(list(workload.table.columns)),
                path,
                compression="zstd",
                write_page_checksum=True,
            )
    return folder / PAST


def example(table: Table) -> "pd.DataFrame":
    """Returns some clean rows of the newest held-out day, in types that MLflow writes as JSON.

    Columns that are null in all of them are left out, since MLflow knows no type of these.
    """
    import pandas as pd

    rows = as_records(conformed(read_clean(max(held_out_days())).slice(0, NUM_EXAMPLES), table))
    sent = pd.DataFrame(rows, dtype=object).dropna(axis=1, how="all")
    for name, column in table.features.items():
        if column.kind == "time" and name in sent:
            sent[name] = pd.to_datetime(sent[name], format="ISO8601")
    return sent


def read_example(version: Path) -> list[dict[str, Any]]:
    """Returns the rows of `example` that the version in this folder carries; none where it has none."""
    path = version / "input_example.json"
    if not path.exists():
        return []
    written = json.loads(path.read_text())
    return [dict(zip(written["columns"], row, strict=True)) for row in written["data"]]


def signature(table: Table, predicted: "Mapping[str, NDArray[Any]]") -> "ModelSignature":
    """Returns the signature: inputs from the table without the label, outputs as what a model predicted."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

    return ModelSignature(inputs=Schema(_inputs(table)), outputs=Schema(_outputs(predicted)))


def _inputs(table: Table) -> list[Any]:
    from mlflow.types import ColSpec

    return [
        ColSpec(_type(column), name, required=not column.nullable or name == table.time)
        for name, column in table.features.items()
    ]


def _type(column: AnyColumn) -> Any:
    """Returns the type in MLflow; any for those that pandas keeps in another where one is null."""
    from mlflow.types import DataType
    from mlflow.types.schema import AnyType, Array

    if column.kind == "float" and column.size:
        return Array(DataType.double)
    if column.nullable and column.kind in ("int", "bool"):
        return AnyType()  # type: ignore[no-untyped-call]
    types = {
        "float": DataType.double,
        "int": DataType.long,
        "bool": DataType.boolean,
        "time": DataType.datetime,
        "bytes": DataType.binary,
    }
    return types.get(column.kind, DataType.string)


def _outputs(predicted: "Mapping[str, NDArray[Any]]") -> list[Any]:
    from mlflow.types import ColSpec, DataType
    from mlflow.types.schema import Array

    specs = []
    for name, values in predicted.items():
        kind: Any = {"b": DataType.boolean, "f": DataType.float}.get(values.dtype.kind, DataType.long)
        kind = DataType.double if values.dtype == "float64" else kind
        for _ in range(values.ndim - 1):
            kind = Array(kind)
        specs.append(ColSpec(kind, name))
    return specs

"""Five weeks of the simulated shop that are validated in the current folder, and how their rows change."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from daybreak.contract.record_types import Batch, Night, Report
from daybreak.contract.sections import PrepareParams, ValidateParams
from daybreak.data.partitions import RAW, part_of
from daybreak.data.validator import validate
from daybreak.examples.shop.sold_lines import LINES
from tests.clones import home_here
from tests.minimal_records import minimal_night

REPOSITORY = Path(__file__).parents[2]
SUITE = REPOSITORY / "data/expectations.yaml"
TONIGHT = date(2025, 3, 14)

EDITED = """rows:
  - {name: quantity is in range, type: expect_column_values_to_be_between,
     kwargs: {column: quantity, min_value: -40, max_value: 40}}
"""
Change = Callable[[pd.DataFrame], pd.DataFrame | None]


def night(day: date) -> Night:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return minimal_night(now, day=day)


def sections(suite: Path, **params: Any) -> dict[str, Any]:
    return {"params": ValidateParams(suite=str(suite), **params), "prepare": PrepareParams()}


def judge(day: date, *late: date, **params: Any) -> Report:
    """Validate in the current folder, the day and late ones."""
    batch = Batch(day=day, num_rows=0, num_bytes=0, digest="", late_days=late)
    return validate(home_here(), night(day), batch, LINES, **sections(SUITE, **params))


def judged_by(folder: Path, text: str) -> Report:
    """Validate tonight by a suite of that text."""
    path = folder / "suite.yaml"
    path.write_text(text)
    batch = Batch(day=TONIGHT, num_rows=0, num_bytes=0, digest="", late_days=())
    return validate(home_here(), night(TONIGHT), batch, LINES, **sections(path, max_quarantined=0.2))


def rows_of(folder: Path, day: date) -> pd.DataFrame:
    path = part_of(day, folder)
    return pd.read_parquet(path, partitioning=None) if path.exists() else pd.DataFrame()


def change(change: Change, day: date = TONIGHT) -> None:
    """Apply the change to the raw rows of the day."""
    frame = rows_of(RAW, day)
    frame = frame if (changed := change(frame)) is None else changed
    part_of(day).unlink()
    rows = pa.Table.from_pandas(frame, preserve_index=False)
    texts = {"large_string": pa.string(), "null": pa.string()}  # as ingest writes them
    fields = [pa.field(field.name, texts.get(str(field.type), field.type)) for field in rows.schema]
    pq.write_table(rows.cast(pa.schema(fields)), part_of(day))


def some(frame: pd.DataFrame, share: float) -> "pd.Index[int]":
    """The same rows of the frame at each call, sales alone."""
    sales = frame[frame["quantity"] > 0]
    return sales.sample(min(len(sales), round(share * len(frame))), random_state=1).index


def put(column: str, value: Any, share: float) -> Change:
    def corrupt(frame: pd.DataFrame) -> None:
        frame.loc[some(frame, share), column] = value

    return corrupt

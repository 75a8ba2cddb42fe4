"""A small shop goes from lines to recommendations, by the functions that a night calls."""

import json
from datetime import date, timedelta
from pathlib import Path

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from daybreak import PART, Window, conform, rows_of
from daybreak.examples.shop.catalogue import Catalogue
from daybreak.examples.shop.recommender import Recommender
from daybreak.examples.shop.simulated_shop import Shop

pytestmark = pytest.mark.slow


def test_a_small_shop_goes_from_lines_to_recommendations(tmp_path: Path) -> None:
    shop = Shop(start="2026-01-05", today="2026-02-02", num_customers=60, num_items=40, orders_per_day=15)
    days = shop.days()
    for day in days:
        shop.fetch(day, tmp_path / str(day))
    workload = Recommender(num_candidates=30, num_rows=64)
    stay = [as_they_stand(workload, day, days, folder=tmp_path) for day in days]
    pq.write_table(pa.concat_tables(stay), tmp_path / "stay.parquet")
    engine = ibis.duckdb.connect()
    clean = engine.read_parquet(tmp_path / "stay.parquet")
    made = workload.arrays(clean, Window(train=tuple(days[:-1]), test=(days[-1],)))
    engine.disconnect()
    for name, array in made.arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    for name, table in made.tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    held_out = {"last_day": str(days[-1] - timedelta(1)), "test_days": [str(days[-1])]}
    (tmp_path / "meta.json").write_text(json.dumps({**made.facts, **held_out}))

    model = workload.model().eval()
    samples = workload.dataset(tmp_path, "test")
    batch = samples.__getitems__(range(len(samples)))
    with torch.inference_mode():
        assert torch.isfinite(workload.loss(model, batch)).all()
        assert workload.score(model, batch).mean() > workload.baselines(tmp_path)["popularity"].mean()
        tomorrow = workload.dataset(tmp_path, "serve")
        assert isinstance(tomorrow, Catalogue)
        customers = workload.likely(tomorrow, 3)
        assert [len(set(items)) for items in workload.recommend(model, tomorrow, customers, 5)] == [5, 5, 5]


def as_they_stand(workload: Recommender, day: date, days: list[date], *, folder: Path) -> pa.Table:
    """The lines of a day, as the cancellations of later days leave them."""

    def read(other: date) -> pa.Table:
        lines = pq.read_table(folder / str(other) / PART, partitioning=None)
        return conform(lines.filter(pc.greater(lines["price"], 0)), workload.table, origin=str(other))

    return rows_of(workload, day, days, last=days[-2], read=read)

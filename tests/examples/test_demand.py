"""Meters are deterministic, and last week's reading of a meter predicts the next one."""

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from ruamel.yaml import YAML

from daybreak.contract.errors import DataError
from daybreak.contract.sections import Plug
from daybreak.data.as_of import AsOf
from daybreak.data.features import past_of
from daybreak.data.partitions import part_of
from daybreak.examples.demand.demand import LAGS, Demand
from tests.examples.daily import learned, made, one_by_one, reader

ROOT = Path(__file__).parents[2]
TODAY = date(2025, 7, 1)
DAY = TODAY - timedelta(days=1)


def meters(*, start: date = TODAY - timedelta(days=60), today: date = TODAY) -> AsOf:
    """Twenty meters with the weather, by the example's params.yaml."""
    module, known = "daybreak.examples.demand.meters", {"start": start, "today": today}
    source = YAML(typ="safe").load((ROOT / "pipeline/daybreak/examples/demand/params.yaml").read_text())[
        "source"
    ]
    source["rows"] |= {"use": f"{module}:Meters", "num_meters": 20, **known}
    weather = source["tables"]["weather"]["rows"]
    weather |= {"use": f"{module}:Weather", **known, "start": start - timedelta(days=1)}
    made: AsOf = Plug.model_validate(source).make()
    return made


def test_lags_are_the_readings_of_the_same_meter_and_hour_before(tmp_path: Path) -> None:
    rows, _, samples = made(Demand(), meters(), DAY, tmp_path)
    assert rows.schema.equals(Demand.table.schema())
    read = {}
    for lag in LAGS:
        before = pq.read_table(part_of(DAY - timedelta(days=lag), tmp_path), partitioning=None)
        read |= {
            (row["meter"], row["time"] + timedelta(days=lag), lag): row["kwh"] for row in before.to_pylist()
        }
    wanted = np.array(
        [[read.get((row["meter"], row["time"], lag), np.nan) for lag in LAGS] for row in rows.to_pylist()]
    )
    assert np.array_equal(samples["known"], np.isfinite(wanted)) and not samples["known"].all()
    assert np.allclose(samples["lags"], np.nan_to_num(wanted))
    assert np.corrcoef(samples["lags"][:, 2], samples["kwh"])[0, 1] > 0.8


def test_features_of_one_reading_are_those_it_has_among_others(tmp_path: Path) -> None:
    workload, source = Demand(), meters()
    rows, state, _ = made(workload, source, DAY, tmp_path)
    past = past_of(workload, DAY, source.days(), read=reader(tmp_path))
    assert one_by_one(workload, rows, state, past, number=20)


def test_the_first_day_has_no_lags_and_can_be_predicted_all_the_same(tmp_path: Path) -> None:
    workload = Demand()
    _, state, samples = made(workload, meters(start=DAY), DAY, tmp_path)
    assert not samples["known"].any()
    batch = {name: torch.from_numpy(values) for name, values in samples.items() if name != "kwh"}
    predicted = workload.predict(workload.model(state), batch)["prediction"]
    assert predicted.shape == (len(samples["kwh"]), 3)
    assert (predicted.diff(dim=1) >= 0).all()


def test_a_few_updates_lower_the_loss(tmp_path: Path) -> None:
    workload = Demand()
    _, state, samples = made(workload, meters(), DAY, tmp_path)
    before, after = learned(workload, state, samples, updates=40)
    assert after < 0.8 * before


def test_a_day_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Meters has no rows of 2025-07-01; ask for a day of"):
        meters().fetch(TODAY, tmp_path)

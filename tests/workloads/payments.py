"""Clean rows of payments, and nights whose workload predicts frauds among them."""

import json
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from daybreak.contract import records
from daybreak.contract.record_types import Dataset, Night
from daybreak.contract.sections import Plug, PrepareParams
from daybreak.contract.workload import ARRAYS, STATE, make_model, read_state
from daybreak.data.partitions import CLEAN, part_of
from daybreak.data.prepare import prepare
from daybreak.registry.weights import MODEL
from daybreak.storage.home import Home
from tests.minimal_records import minimal_night, minimal_report
from tests.toy import nights  # noqa: F401 - puts its folder `own` on the path, as a team's
from tests.toy.own.card_payments import Payments

COUNTRIES, CODES = ("DE", "GB", "US"), ("4111", "5411", "5812")


def rows_of(day: date, number: int = 60) -> pa.Table:
    """Clean rows of a day."""
    rng = np.random.default_rng(day.toordinal())
    start = datetime.combine(day, datetime.min.time())
    seconds = np.sort(rng.integers(0, 86_400 * 10**6, number)).tolist()
    fraud = rng.random(number) < 0.3
    columns = {
        "ts": [start + timedelta(microseconds=one) for one in seconds],
        "account": [f"a{one}" for one in rng.integers(0, 9, number)],
        "amount": (np.exp(rng.normal(3, 1, number)) * (1 + fraud)).tolist(),
        "mcc": [CODES[one] for one in rng.integers(0, 3, number)],
        "country": [(*COUNTRIES, None)[one] for one in rng.integers(0, 4, number)],
        "retries": [None if one == 5 else int(one) for one in rng.integers(0, 6, number)],
        "is_fraud": [None if rng.random() < 0.1 else int(one) for one in fraud],
    }
    return pa.table(columns, schema=Payments.table.schema())


def write_clean(wanted: Iterable[date]) -> None:
    """Partitions of these days in data/clean of the current folder."""
    for day in wanted:
        path = part_of(day, CLEAN)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows_of(day), path)


def prepared(newest: date, num_days: int, use: str) -> Dataset:
    """Samples of these days in data/arrays of the current folder, two of them held out."""
    write_clean(newest - timedelta(days=back) for back in range(num_days))
    started = datetime.combine(newest, datetime.min.time(), UTC) + timedelta(hours=22)
    night = minimal_night(started, id=str(newest), day=newest, code_commit="c")
    report = minimal_report(num_rows=0, num_clean=0, digest=records.digest(CLEAN))
    params = PrepareParams(window_days=num_days, test_days=2)
    return prepare(Home(Path.cwd()), night, report, plug=Plug(use=use), params=params)


def samples(folder: Path, day: date) -> Any:
    """What `prepare` wrote of a day."""
    return np.load(folder / f"day={day}" / "samples.npy")


def trained(use: str, *, num_days: int = 8, seed: int = 0, bias: float = 0.0) -> Callable[[Path], str]:
    """What turns a night's folder into one of this workload, with the stages up to training done.

    The model was not trained in fact; `bias` is added to its last layer.
    """

    def alter(folder: Path) -> str:
        night = records.read(Night, folder / records.RUN)
        parameters = {"use": use}
        text = (folder / "params.yaml").read_text().replace('{use: "toy:Toy"}', json.dumps(parameters))
        (folder / "params.yaml").write_text(text)
        shutil.rmtree(ARRAYS)
        prepared(night.day, num_days, use)
        shutil.rmtree(MODEL)
        MODEL.mkdir()
        torch.manual_seed(seed)
        workload = Plug(use=use).make()
        weights = make_model(workload, read_state(ARRAYS)).state_dict()
        last = [name for name in weights if name.endswith("bias")][-1]
        save_file({**weights, last: weights[last] + bias}, MODEL / "model.safetensors")
        shutil.copytree(ARRAYS / STATE, MODEL / STATE)
        facts = {
            "workload": use,
            "arguments": {},
            "seen": 1,
            "data_digest": "d",
            "last_day": str(night.day - timedelta(days=4)),
        }
        (MODEL / "model.json").write_text(json.dumps(facts))
        records.write(workload.table, records.RUN)
        return records.digest(MODEL)

    return alter

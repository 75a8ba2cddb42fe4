"""What is served is what was trained on: features to the last bit, however the rows are sent."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from daybreak.contract.errors import DataError
from daybreak.contract.table import Bool, Bytes, Float, Id, Table, Text, Time
from daybreak.contract.workload import ARRAYS, make_model, read_state, serves_rows
from daybreak.data.casts import conform
from daybreak.data.features import read_clean
from daybreak.data.partitions import partitions
from daybreak.workloads.served_rows import ServedRows, as_records, conformed
from daybreak.workloads.table_workload import TableWorkload
from tests.toy.own.card_payments import PastPayments, Payments
from tests.workloads import payments

NEWEST = date(2025, 3, 31)  # the day after clocks went forward in Berlin
HELD_OUT = NEWEST - timedelta(days=2)


@pytest.fixture(params=[Payments, PastPayments])
def served(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedRows]:
    """A workload over the partitions of ten days, with a model of its state."""
    monkeypatch.chdir(tmp_path)
    kind = request.param
    payments.prepared(NEWEST, 10, f"card_payments:{kind.__name__}")
    state, workload = read_state(ARRAYS), kind()
    torch.manual_seed(0)
    model = make_model(workload, state).eval()
    days = tuple(partitions(Path("data/clean")))
    yield ServedRows(workload=workload, model=model, state=state, days=days, read=read_clean)


def labelled(day: date) -> pa.Table:
    rows = payments.rows_of(day)
    return rows.filter(pc.is_valid(rows["is_fraud"]))


def assert_same(made: dict[str, Any], trained: Any) -> None:
    assert set(made) == set(trained.dtype.names) - {"is_fraud", "(unit)"}
    for name, values in made.items():
        assert values.dtype == trained[name].dtype
        assert values.tobytes() == np.ascontiguousarray(trained[name]).tobytes(), name


def test_features_are_those_of_training_to_the_last_bit(served: ServedRows) -> None:
    trained, sent = payments.samples(ARRAYS, HELD_OUT), as_records(labelled(HELD_OUT).drop(["is_fraud"]))
    sent = json.loads(json.dumps(sent))
    assert len(sent) == len(trained) > 40
    table = served.workload.table
    assert_same(served.features(conformed(sent, table)), trained)
    for number, row in enumerate(sent):
        assert_same(served.features(conformed([row], table)), trained[number : number + 1])
    order = np.random.default_rng(0).permutation(len(sent))
    assert_same(served.features(conformed([sent[one] for one in order], table)), trained[order])
    assert_same(served.features(conformed(pd.DataFrame(sent), table)), trained)
    assert_same(served.features(conformed(labelled(HELD_OUT).to_pandas(), table)), trained)


def test_rows_of_several_days_come_back_in_their_order(served: ServedRows) -> None:
    both = [day for day in (HELD_OUT, HELD_OUT - timedelta(days=1))]
    trained = np.concatenate([payments.samples(ARRAYS, day) for day in both])
    rows = pa.concat_tables([labelled(day) for day in both])
    order = np.random.default_rng(1).permutation(len(rows))
    assert_same(served.features(conformed(rows.take(order), served.workload.table)), trained[order])


def test_predictions_do_not_depend_on_who_else_asks(served: ServedRows) -> None:
    rows = as_records(labelled(HELD_OUT))
    together = served.predict(rows)
    assert {name: values.shape for name, values in together.items()} == {
        "prediction": (len(rows),),
        "parts": (len(rows), 2),
    }
    alone = [served.predict([row]) for row in rows]
    for name, values in together.items():
        np.testing.assert_allclose(np.concatenate([one[name] for one in alone]), values, rtol=0, atol=1e-6)


def test_the_past_of_a_row_ends_before_its_day(served: ServedRows) -> None:
    if not isinstance(served.workload, PastPayments):
        return
    rows = conformed(labelled(HELD_OUT), served.workload.table)
    without = ServedRows(workload=served.workload, model=served.model, state=served.state)
    assert served.features(rows)["before"].any()
    assert not without.features(rows)["before"].any()


TABLE = Table(
    time="at",
    zone="Europe/Berlin",
    columns={
        "at": Time(),
        "account": Id(),
        "size": Float(),
        "note": Text(nullable=True),
        "vector": Float(size=2),
        "new": Bool(nullable=True),
        "image": Bytes(nullable=True),
    },
)
ROW = {"at": "2025-03-31T00:30:00", "account": "a1", "size": 2.5, "vector": [0.0, 0.5]}


def test_a_row_may_leave_out_what_may_be_null() -> None:
    rows = conformed([ROW, {**ROW, "note": "é", "vector": [1, 2.5], "new": True, "image": "AAE="}], TABLE)
    assert rows.schema == TABLE.schema()
    assert rows.to_pylist()[1] == {
        "at": datetime(2025, 3, 31, 0, 30),
        "account": "a1",
        "size": 2.5,
        "note": "é",
        "vector": [1.0, 2.5],
        "new": True,
        "image": b"\x00\x01",
    }
    assert rows.to_pylist()[0]["note"] is None
    assert as_records(rows)[1] == {
        **ROW,
        "note": "é",
        "vector": [1.0, 2.5],
        "new": True,
        "image": "AAE=",
    }


def test_an_id_of_a_request_is_as_those_of_training() -> None:
    table = Table(columns={"at": Time(), "account": Id()}, time="at")
    ids = ["17850.0", "17850", "v1.0", "17850.50"]
    rows = [{"at": datetime(2025, 3, 31), "account": each} for each in ids]
    trained = conform(pa.Table.from_pylist(rows), table, origin="x")
    assert conformed(rows, table).equals(trained)
    assert trained["account"].to_pylist() == ["17850", "17850", *ids[2:]]


def test_a_time_comes_in_every_form_into_the_zone_of_the_table() -> None:
    moment = datetime(2025, 3, 30, 22, 30, tzinfo=UTC)
    forms = [
        "2025-03-30T22:30:00Z",
        "2025-03-31 00:30:00+02:00",
        "2025-03-31T00:30:00",
        moment,
        moment.astimezone(ZoneInfo("Asia/Tokyo")),
        datetime(2025, 3, 31, 0, 30),
        moment.timestamp(),
        int(moment.timestamp()),
        pd.Timestamp(moment),
    ]
    for form in forms:
        (row,) = conformed([{**ROW, "at": form}], TABLE).to_pylist()
        assert row["at"] == datetime(2025, 3, 31, 0, 30), form
    frame = pd.DataFrame([{**ROW, "at": moment}])
    assert conformed(frame, TABLE)["at"].to_pylist() == [datetime(2025, 3, 31, 0, 30)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], ["there are no rows"]),
        ([{}], ["at is missing", "account is missing", "size is missing"]),
        (
            [{**ROW, "size": "2.5", "colour": 1, "at": "soon"}],
            ["size is to be a number (it is string)", "there is no column colour", "at is to be a time"],
        ),
        ([ROW, {**ROW, "size": None}], ["size is null in 1 of 2 rows"]),
        ([{**ROW, "size": float("nan")}], ["size is null in 1 of 1 rows"]),
        ([{**ROW, "size": True}], ["size is to be a number (it is bool)"]),
        ([{**ROW, "account": 1.5}], ["account is to be text (it is double)"]),
        ([{**ROW, "new": 1}], ["new is to be true or false"]),
        ([{**ROW, "vector": [1]}], ["vector is to be a number"]),
        ([{**ROW, "image": "?"}], ["image is to be bytes"]),
        ([{**ROW, "note": "\ud800"}], ["note is to be text"]),
        ([{**ROW, "at": 1.7e15}], ["at is to be a time"]),
        (
            [{**ROW, "at": "0001-01-01T00:00:00"}],
            ["at is to be a time", "is not of a year from 1900 to 2200"],
        ),
        ([ROW, {**ROW, "at": "9999-12-31"}], ["9999-12-31 00:00:00 is not of a year from 1900 to 2200"]),
        ([{**ROW, "size": [1]}, ROW], ["size is to be a number"]),
    ],
)
def test_what_is_not_a_row_is_refused_in_one_sentence(rows: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as refusal:
        conformed(rows, TABLE)
    for word in words:
        assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)
    if rows:
        wanted = (
            "at (time), account (id), size (float), note (text or null), vector (numbers), "
            "new (bool or null), image (bytes or null)"
        )
        assert str(refusal.value).endswith(f"; send {wanted}")


def test_only_a_workload_with_a_prediction_serves_rows() -> None:
    assert serves_rows(Payments())
    assert not serves_rows(TableWorkload())
    assert not serves_rows(object())


def test_rows_are_sent_in_the_types_that_json_has() -> None:
    rows = pa.table(
        {
            "day": [date(2025, 1, 1)],
            "clock": [time(9, 30)],
            "price": [Decimal("1.50")],
            "code": [Decimal("12345678901234567890")],
            "listed": [[Decimal("2.5"), None]],
        }
    )
    (row,) = as_records(rows)
    assert json.loads(json.dumps(row)) == {
        "day": "2025-01-01",
        "clock": "09:30:00",
        "price": 1.5,
        "code": 12345678901234567890,
        "listed": [2.5, None],
    }
    with pytest.raises(DataError, match="took has a timedelta, which no row that a client sends can have"):
        as_records(pa.table({"took": [timedelta(hours=1)]}))

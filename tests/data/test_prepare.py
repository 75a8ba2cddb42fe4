"""Samples by partition: the days that are prepared again, the limits of `past`, and refusals."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.record_types import Dataset
from daybreak.contract.sections import Plug, PrepareParams
from daybreak.contract.table import Bool, Category, Float, Id, Int, Label, Table, Time, days
from daybreak.contract.workload import ARRAYS, Prepared, Window, read_state
from daybreak.data.features import UNIT, labels_of
from daybreak.data.partitions import CLEAN
from daybreak.data.prepare import SAMPLES, prepare, remake
from daybreak.storage.home import Home
from daybreak.workloads.samples import Samples
from daybreak.workloads.table_workload import TableWorkload
from tests.minimal_records import minimal_night, minimal_report

pytestmark = pytest.mark.filterwarnings(  # of ibis 12, seen 2026-11
    "ignore:fetch_arrow_table:DeprecationWarning", "ignore:The 'future.infer_string' option"
)

FIRST = date(2026, 1, 5)
CALLS: list[tuple[date, int]] = []  # day of the rows, and how many earlier ones `past` had


class Payments(TableWorkload):
    """Card payments whose fraud is known two days later; `wrong` names what `features` gets wrong."""

    table = Table(
        time="ts",
        unit="account",
        columns={
            "ts": Time(),
            "account": Id(),
            "amount": Float(min=0),
            "mcc": Category(nullable=True),
            "fraud": Int(nullable=True),
        },
        label=Label("fraud", ripe_after=days(2)),
    )
    looks_back = timedelta(days=3)

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong

    def features(self, rows: pa.Table, state: Any, past: Any) -> dict[str, Any]:
        assert "fraud" not in rows.column_names
        before = past.rows()
        CALLS.append((past.day, len(before)))
        columns = {**super().features(rows, state, past), "seen": np.full(len(rows), float(len(before)))}
        known = before.filter(pa.compute.is_valid(before["fraud"]))
        assert all(time.date() <= past.day - timedelta(days=3) for time in known["ts"].to_pylist())
        if self.wrong == "length":
            columns["seen"] = columns["seen"][1:]
        if self.wrong == "kind":
            columns["seen"] = np.array(["a"] * len(rows))
        if self.wrong == "infinite":
            columns["seen"][0] = np.inf
        if self.wrong == "beyond float32":
            columns["seen"][0] = 1e39
        if self.wrong == "name":
            columns["fraud"] = columns["seen"]
        if self.wrong == "shape":
            columns["numbers"] = np.zeros((len(rows), 1 + past.day.day % 2))
        return {} if self.wrong == "nothing" else columns


class Several(TableWorkload):
    """Payments of which more is known later: whether they were refunded, and how much of them."""

    table = Table(
        time="ts",
        unit="account",
        columns={**Payments.table.columns, "refunded": Bool(), "refund": Float()},
        label=Label("fraud", ripe_after=days(2)),
        auxiliary=(Label("refunded", ripe_after=days(4)), Label("refund", ripe_after=days(1))),
    )
    looks_back = timedelta(days=6)

    def features(self, rows: pa.Table, state: Any, past: Any) -> dict[str, Any]:
        CALLS.append((past.day, len(past.rows())))
        assert not {"fraud", "refunded", "refund"} & set(rows.column_names)
        before = past.rows()
        for name, after in (("fraud", 2), ("refunded", 4), ("refund", 1)):
            known = before.filter(pa.compute.is_valid(before[name]))["ts"].to_pylist()
            assert all(time.date() <= past.day - timedelta(days=1 + after) for time in known)
        return {"amount": rows["amount"].to_numpy()}


class Amounts:
    """One sample a row by `arrays`; a row is corrected by the next day's first row of its account."""

    table, reaches_back = Payments.table, timedelta(days=1)

    def __init__(self, name: str = "amount", factor: float = 1.0, wrong: str = "") -> None:
        self.name, self.factor, self.facts = name, factor, {wrong: 1} if wrong else {}

    def corrected(self, rows: pa.Table, later: pa.Table) -> pa.Table:
        return rows if not len(later) else rows.slice(1)

    def arrays(self, rows: Any, window: Window) -> Prepared:
        table = rows.order_by(["ts", "account"]).to_pyarrow()
        day = table["ts"].cast(pa.date32()).to_pylist()
        num_train = sum(one <= window.train[-1] for one in day)
        values = table["amount"].to_numpy() * self.factor
        num_test = len(table) - num_train
        return Prepared(arrays={self.name: values}, num_train=num_train, num_test=num_test, facts=self.facts)


def rows_of(day: int, *, num: int = 40, fraud: int | None = None, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng([seed, day])
    time = [datetime(2026, 1, 5, 9) + timedelta(days=day, minutes=minute) for minute in range(num)]
    labels = [fraud if fraud is not None else int(one) for one in draw.random(num) < 0.3]
    return pa.table(
        {
            "ts": time,
            "account": [f"a{n % 7}" for n in range(num)],
            "amount": draw.exponential(20, num),
            "mcc": [None if n % 9 == 0 else f"m{n % 3}" for n in range(num)],
            "fraud": labels,
        },
        schema=Payments.table.schema(),
    )


def write(day: int, table: pa.Table) -> None:
    folder = CLEAN / f"day={FIRST + timedelta(days=day)}"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "part.parquet")


def run(day: int, *, use: str = "Payments", wrong: str = "", **params: Any) -> Dataset:
    now = datetime(2026, 2, 1, tzinfo=UTC)
    night = minimal_night(now, day=FIRST + timedelta(days=day))
    report = minimal_report(digest=records.digest(CLEAN))
    plug = Plug(use=f"{__name__}:{use}", **({"wrong": wrong} if wrong else {}))
    CALLS.clear()
    return prepare(Home(Path.cwd()), night, report, plug=plug, params=PrepareParams(**params))


def inode(day: int) -> int:
    return (ARRAYS / f"day={FIRST + timedelta(days=day)}" / SAMPLES).stat().st_ino


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for day in range(10):
        write(day, rows_of(day))
    return tmp_path


def test_days_whose_labels_are_not_known_yet_are_neither_trained_on_nor_judged() -> None:
    dataset = run(9)
    assert (dataset.first_day, dataset.last_day) == (FIRST, FIRST + timedelta(days=6))
    assert dataset.num_unripe_days == 2
    assert json.loads((ARRAYS / "meta.json").read_text())["test_days"] == [str(FIRST + timedelta(days=7))]
    assert (len(Samples(ARRAYS, "train")), len(Samples(ARRAYS, "test"))) == (7 * 40, 40)


def test_a_night_makes_its_new_and_restated_days_and_those_that_look_back_on_them() -> None:
    run(8)
    assert len(CALLS) == 7
    kept = inode(0)
    write(10, rows_of(10))
    run(9)
    assert [day for day, _ in CALLS] == [FIRST + timedelta(days=7)]
    write(4, rows_of(4, seed=1))
    run(9)
    assert [(day - FIRST).days for day, _ in CALLS] == [4, 5, 6, 7]
    assert inode(0) == kept
    run(9)
    assert CALLS == []


def test_the_state_is_fitted_again_when_it_is_old_or_the_arguments_are_others() -> None:
    run(8)
    fitted = records.digest(ARRAYS / "state")
    run(9, refit_days=2)
    assert len(CALLS) == 1
    run(9, refit_days=1)
    assert len(CALLS) == 8
    assert records.digest(ARRAYS / "state") != fitted
    run(9, refit_days=1, wrong="-")
    assert len(CALLS) == 8


def test_a_night_for_an_earlier_day_keeps_no_state_that_has_seen_its_held_out_days() -> None:
    run(9)
    of_later = records.digest(ARRAYS / "state")
    run(7)
    of_earlier = records.digest(ARRAYS / "state")
    assert of_earlier != of_later
    shutil.rmtree(ARRAYS)
    run(7)
    assert records.digest(ARRAYS / "state") == of_earlier


def test_further_labels_are_known_from_a_night_of_their_own_on_and_null_before() -> None:
    for day in range(10):
        rows = rows_of(day)
        more = {"refunded": [n % 2 == 0 for n in range(40)], "refund": [None, *np.arange(1.0, 40)]}
        columns = {name: rows[name] for name in rows.column_names} | more
        write(day, pa.table(columns, schema=Several.table.schema()))
    run(8, use="Several")
    samples = Samples(ARRAYS, "train")
    refunded = samples.column("refunded").reshape(-1, 40)
    assert [bool(np.isnan(day).all()) for day in refunded] == [False] * 5 + [True]
    assert refunded[0].tolist() == [1.0, 0.0] * 20
    assert np.isnan(samples.column("refund").reshape(-1, 40)).sum(1).tolist() == [1] * 6
    assert samples.column("refund").dtype == np.float32
    kept = inode(0)
    run(9, use="Several")
    assert [(day - FIRST).days for day, _ in CALLS] == [5, 7]  # whose refunds are known now, and the new one
    assert inode(0) == kept
    refunded = Samples(ARRAYS, "train").column("refunded").reshape(-1, 40)
    assert [bool(np.isnan(day).all()) for day in refunded] == [False] * 6 + [True]


def write_several(*, refunded: list[bool | None]) -> None:
    for day in range(10):
        rows = rows_of(day)
        more = {"refunded": refunded, "refund": np.arange(40.0)}
        columns = {name: rows[name] for name in rows.column_names} | more
        write(day, pa.table(columns, schema=Several.table.schema()))


def test_a_night_knows_until_when_further_labels_are_known(caplog: pytest.LogCaptureFixture) -> None:
    write_several(refunded=[None, True] * 20)
    known = {"refunded": str(FIRST + timedelta(days=5)), "refund": str(FIRST + timedelta(days=6))}
    assert run(9, use="Several").known_until == known
    assert not caplog.messages


@pytest.mark.parametrize(("known", "window_days"), [(None, 10), (True, 4)])
def test_a_further_label_that_no_training_sample_knows_is_told(
    known: bool | None, window_days: int, caplog: pytest.LogCaptureFixture
) -> None:
    write_several(refunded=[known] * 40)
    assert run(9, use="Several", window_days=window_days).known_until["refunded"] == ""
    assert caplog.messages == [
        f"no training sample has a value of the auxiliary label refunded, so nothing is learned by it; raise "
        f"prepare.window_days, which is {window_days}, above its ripe_after of 4 days, or look at the source"
    ]


class LaterAmounts(Amounts):
    table = replace(Several.table, auxiliary=(Label("refunded", ripe_after=days(4)),))


def test_a_further_label_that_is_known_later_is_refused_for_arrays() -> None:
    write_several(refunded=[True] * 40)
    with pytest.raises(ParamsError, match=r"refunded is known later than fraud, and LaterAmounts\.arrays"):
        run(9, use="LaterAmounts")


def test_a_further_label_beyond_what_a_float_counts_is_rounded() -> None:
    table = Table(
        time="ts",
        columns={"ts": Time(), "fraud": Bool(), "cents": Int()},
        label=Label("fraud"),
        auxiliary=(Label("cents"),),
    )
    rows = pa.table({"fraud": [True, False], "cents": pa.array([None, 2**60 + 1], pa.int64())})
    assert labels_of(table, rows)["cents"][1] == 2.0**60


def test_days_that_leave_the_window_take_their_samples_with_them() -> None:
    run(9)
    run(9, window_days=5)
    assert sorted(path.name for path in ARRAYS.glob("day=*")) == [
        f"day={FIRST + timedelta(days=day)}" for day in (5, 6, 7)
    ]


def test_past_has_the_days_before_and_labels_only_where_they_were_known() -> None:
    run(9)  # `features` asserts which labels it sees
    assert dict(CALLS)[FIRST] == 0
    assert dict(CALLS)[FIRST + timedelta(days=5)] == 3 * 40


def test_rows_whose_label_never_came_are_no_samples() -> None:
    table = rows_of(3)
    labels = [None, *table["fraud"].to_pylist()[1:]]
    write(3, table.set_column(4, "fraud", pa.array(labels, pa.int64())))
    assert run(9).num_samples == 7 * 40 - 1


def test_samples_come_in_the_order_that_is_asked_for_and_know_label_unit_and_state() -> None:
    run(9)
    samples = Samples(ARRAYS, "train")
    order = np.random.default_rng(0).permutation(len(samples))[:64]
    batch = samples.__getitems__(order)
    one_by_one = [samples[int(index)] for index in order]
    for name, values in batch.items():
        assert all(bool((values[n] == one[name]).all()) for n, one in enumerate(one_by_one)), name
    assert batch["fraud"].tolist() == samples.column("fraud")[order].tolist()
    assert len(set(samples.column(UNIT).tolist())) == 7
    assert set(samples.state) == {"edges", "values_mcc"} == set(read_state(ARRAYS))
    assert set(samples.state["values_mcc"].tolist()) == {"m0", "m1", "m2"}


def test_a_call_that_was_killed_before_its_end_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def restated(*, kill: bool) -> str:
        shutil.rmtree(ARRAYS, ignore_errors=True)
        write(5, rows_of(5))
        run(8)
        write(5, rows_of(5, seed=2))
        if kill:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr("daybreak.data.prepare._check_alike", killed)
                run(8)
        return run(8).digest

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    assert restated(kill=True) == restated(kill=False)


def test_what_a_killed_call_was_writing_is_no_part_of_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    whole = run(8).digest
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("daybreak.data.prepare.os.getpid", lambda: 1)  # another process than the next call's
        patch.setattr(Path, "replace", killed)
        write(5, rows_of(5, seed=2))
        run(8)
    assert [path.name for path in ARRAYS.glob("day=*/.*")] == [".1.npy"]
    write(5, rows_of(5))
    assert run(8).digest == whole


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("length", r"'seen' has shape \[39\]; return \[40, \.\.\.\], one a row"),
        ("kind", "'seen' is of <U1; return numbers or bools"),
        ("infinite", "'seen' has 1 values that are not finite"),
        ("beyond float32", "'seen' has 1 values that are not finite"),
        ("name", "an array named 'fraud', as the label is"),
        ("nothing", "return a dict of arrays by name, at least one"),
        ("shape", "return the same names, types and shapes for all rows"),
    ],
)
def test_wrong_arrays_are_refused_before_any_training(wrong: str, sentence: str) -> None:
    with pytest.raises(ParamsError, match=sentence):
        run(9, wrong=wrong)


def test_labels_that_are_all_the_same_are_refused() -> None:
    for day in range(10):
        write(day, rows_of(day, fraud=0))
    with pytest.raises(DataError, match="the label fraud is 0 in all training rows"):
        run(9)


def test_an_edited_workload_and_the_champions_each_make_arrays_of_the_same_rows(tmp_path: Path) -> None:
    """With `arrays`, the champion's class has names and values of its own."""
    made = run(9, use="Amounts", test_days=2)
    own = tmp_path / "own"
    own.mkdir()
    before = records.digest(ARRAYS)
    remake(Amounts(name="money", factor=2.0), tmp_path / "model", own)
    assert records.digest(ARRAYS) == before
    assert np.array_equal(np.load(own / "money.npy"), 2 * np.load(ARRAYS / "amount.npy"))
    meta = json.loads((own / "meta.json").read_text())
    assert meta == json.loads((ARRAYS / "meta.json").read_text())
    assert meta["num_samples_train"] == made.num_samples == 6 * 39


def test_a_fact_of_a_workload_replaces_none_of_ours() -> None:
    with pytest.raises(ParamsError, match="returns the fact 'test_days', as one of Daybreak's own"):
        run(9, use="Amounts", wrong="test_days")


def test_a_window_without_a_ripe_day_says_so() -> None:
    with pytest.raises(DataError, match="the labels of 2 are not yet known"):
        run(2)


def test_a_label_may_be_a_vector() -> None:
    table = Table(time="at", columns={"at": Time(), "answer": Float(size=2)}, label=Label("answer"))
    answers = [[1.0, 2.0], None, [3.0, 4.0], [5.0, 6.0]]
    rows = pa.table({"at": [datetime(2025, 1, 1)] * 4, "answer": answers}, schema=table.schema())
    known = rows.filter(pc.is_valid(rows["answer"]))
    assert labels_of(table, known.slice(1))["answer"].tolist() == [[3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize(("size", "bad"), [(0, float("inf")), (0, -1e39), (2, [1.0, float("inf")])])
def test_a_label_that_is_infinite_is_refused_before_any_training(size: int, bad: Any) -> None:
    """A suite may let it through, and a single row makes every loss NaN while in the window."""
    table = Table(time="at", columns={"at": Time(), "answer": Float(size=size)}, label=Label("answer"))
    sound = [1.0, float("nan")] if size else 1.0  # NaN may be what an element's mask is
    rows = {"at": [datetime(2025, 1, 1)] * 3, "answer": [sound] * 3}
    assert len(labels_of(table, pa.table(rows, schema=table.schema()))["answer"]) == 3
    rows["answer"][1] = bad
    with pytest.raises(DataError, match="the label answer has 1 values that are infinite as float32"):
        labels_of(table, pa.table(rows, schema=table.schema()))

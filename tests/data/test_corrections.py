"""Orders that later rows return: which days are made again, and what a sample may know of returns."""

import json
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from daybreak.contract import records
from daybreak.contract.errors import ParamsError
from daybreak.contract.record_types import Dataset
from daybreak.contract.sections import Plug, PrepareParams
from daybreak.contract.table import Id, Int, Label, Table, Time, days
from daybreak.contract.workload import ARRAYS
from daybreak.data.features import past_of, read_clean
from daybreak.data.partitions import CLEAN, partitions
from daybreak.data.prepare import SAMPLES, prepare, remake
from daybreak.storage.home import Home
from daybreak.workloads.samples import Samples
from daybreak.workloads.served_rows import ServedRows
from daybreak.workloads.table_workload import TableWorkload
from tests.minimal_records import minimal_night, minimal_report

pytestmark = pytest.mark.filterwarnings(  # of ibis 12, seen 2026-11
    "ignore:fetch_arrow_table:DeprecationWarning", "ignore:The 'future.infer_string' option"
)

FIRST = date(2026, 1, 5)
CALLS: list[int] = []  # days whose features were made
SEEN: list[tuple[int, list[int]]] = []  # a day that was corrected, and the days of `later`


def number(day: date) -> int:
    return (day - FIRST).days


class Orders(TableWorkload):
    """Orders whose pieces come back later, as rows with fewer than none; is anything left after two days?

    Its features are the pieces as ordered, and the pieces that orders of the same item in `past` have left.
    """

    table = Table(
        time="ts",
        columns={"ts": Time(), "order": Id(), "item": Id(), "pieces": Int(), "kept": Int(nullable=True)},
        label=Label("kept", ripe_after=days(2)),
    )
    looks_back = days(4)
    reaches_back = days(3)

    def fit(self, rows: Any) -> dict[str, Any]:
        return {}

    def corrected(self, rows: pa.Table, later: pa.Table) -> Any:
        ordered = rows.filter(pc.greater(rows["pieces"], 0))
        if len(ordered):
            SEEN.append((number(ordered["ts"][0].as_py().date()), days_of(later)))
        assert "kept" not in later.column_names
        back = dict.fromkeys(ordered["order"].to_pylist(), 0)
        for line in [*rows.to_pylist(), *later.to_pylist()]:
            back[line["order"]] = back.get(line["order"], 0) - min(line["pieces"], 0)
        left = [line["pieces"] - back[line["order"]] for line in ordered.to_pylist()]
        for name, values in (("pieces", left), ("kept", [int(pieces > 0) for pieces in left])):
            where = ordered.schema.get_field_index(name)
            ordered = ordered.set_column(where, ordered.schema.field(where), pa.array(values, pa.int64()))
        return ordered

    def features(self, rows: pa.Table, state: Any, past: Any) -> dict[str, Any]:
        CALLS.append(number(past.day))
        before = past.rows()
        assert all(day < number(past.day) for day in days_of(before))
        left = {item: 0 for item in rows["item"].to_pylist()}
        for line in before.to_pylist():
            left[line["item"]] = left.get(line["item"], 0) + line["pieces"]
        return {
            "pieces": rows["pieces"].to_numpy().astype(np.float32),
            "left": np.array([left[item] for item in rows["item"].to_pylist()], dtype=np.float32),
        }


class Wrongly(Orders):
    """Corrects as `how` says."""

    def __init__(self, how: str) -> None:
        self.how = how

    def corrected(self, rows: pa.Table, later: pa.Table) -> Any:
        if self.how == "twice":
            return pa.concat_tables([rows, rows])
        if self.how == "type":
            where = rows.schema.get_field_index("pieces")
            return rows.set_column(where, "pieces", rows["pieces"].cast(pa.float64()))
        return None if self.how == "nothing" else rows.select(list(self.table.columns))


class Unsaid(TableWorkload):
    """Reaches back, but has no `corrected`."""

    table = Orders.table
    reaches_back = days(3)


def days_of(rows: pa.Table) -> list[int]:
    return sorted({number(time.date()) for time in rows["ts"].to_pylist()})


def ordered(day: int, *returned: tuple[int, int]) -> None:
    """Write a day with orders of 1 to 4 pieces, and returns: of the order 2 of a day, how many pieces."""
    time = datetime.combine(FIRST + timedelta(days=day), datetime.min.time()) + timedelta(hours=9)
    rows = [(time, f"{day}/{pieces}", f"i{pieces}", pieces) for pieces in (1, 2, 3, 4)]
    rows += [(time, f"{of}/2", "i2", -pieces) for of, pieces in returned]
    columns = {
        name: [line[place] for line in rows] for place, name in enumerate(Orders.table.columns) if place < 4
    }
    folder = CLEAN / f"day={time.date()}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "part.parquet").unlink(missing_ok=True)
    table = pa.table({**columns, "kept": [None] * len(rows)}, schema=Orders.table.schema())
    pq.write_table(table, folder / "part.parquet")


def run(day: int, *, workload: str = "Orders", **options: Any) -> Dataset:
    now = datetime(2026, 2, 1, tzinfo=UTC)
    night = minimal_night(now, day=FIRST + timedelta(days=day))
    report = minimal_report(digest=records.digest(CLEAN))
    CALLS.clear()
    SEEN.clear()
    plug = Plug(use=f"{__name__}:{workload}", **options)
    return prepare(Home(Path.cwd()), night, report, plug=plug, params=PrepareParams())


def samples(day: int) -> dict[str, list[int]]:
    made = np.load(ARRAYS / f"day={FIRST + timedelta(days=day)}" / SAMPLES)
    return {name: made[name].astype(int).tolist() for name in made.dtype.names}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for day in range(10):
        ordered(day)
    ordered(5, (4, 2), (1, 2))  # the second is further back than returns reach
    ordered(6, (3, 2))


def test_a_return_changes_the_labels_of_the_days_that_it_reaches() -> None:
    run(9)
    kept = {day: samples(day)["kept"] for day in range(8)}
    assert [day for day, labels in kept.items() if labels != [1, 1, 1, 1]] == [3, 4]
    assert kept[4] == [1, 0, 1, 1]
    assert len(Samples(ARRAYS, "train")) == 7 * 4  # a return is no order


def test_features_see_a_row_as_it_was_delivered_and_the_past_as_it_stood_before_the_day() -> None:
    run(9)
    assert samples(4)["pieces"] == [1, 2, 3, 4]
    left = {
        day: samples(day)["left"][1] for day in range(8)
    }  # of orders of two pieces in the four days before
    assert left == {0: 0, 1: 2, 2: 4, 3: 6, 4: 8, 5: 8, 6: 6, 7: 4}


def test_a_night_makes_its_new_day_and_those_that_it_corrects() -> None:
    run(9)
    kept = {day: (ARRAYS / f"day={FIRST + timedelta(days=day)}" / SAMPLES).stat().st_ino for day in range(8)}
    ordered(10, (8, 2), (7, 1))
    run(10)
    assert CALLS == [8]
    run(10)
    assert (CALLS, SEEN) == ([], [])
    ordered(11)
    run(11)
    assert CALLS == [9]
    ordered(7, (5, 2))  # a restated day, whose return is new
    run(11)
    assert CALLS == [5, 7, 8, 9]
    for day in range(5):
        path = ARRAYS / f"day={FIRST + timedelta(days=day)}" / SAMPLES
        assert path.stat().st_ino == kept[day]


def test_the_same_rows_give_the_same_bytes_whatever_nights_came_before() -> None:
    for day in (7, 8):
        run(day)
    ordered(8, (7, 2))
    run(9)
    night_by_night = {path: path.read_bytes() for path in ARRAYS.glob("day=*/*")}
    shutil.rmtree(ARRAYS)
    run(9)
    assert {path: path.read_bytes() for path in ARRAYS.glob("day=*/*")} == night_by_night
    assert len(night_by_night) == 8 * 2


def test_no_correction_is_of_a_day_that_is_not_over_when_the_label_is_ripe() -> None:
    run(9)  # trains on days 0 to 6, judges on day 7
    of_samples = {day: max(later, default=day) for day, later in SEEN if later and max(later) > 6}
    assert of_samples == {5: 7, 6: 8, 7: 9}  # when their labels are ripe, and no later
    within = [(day, later) for day, later in SEEN if later]
    assert all(day < other <= day + 3 for day, later in within for other in later)


def test_a_champion_of_other_code_has_the_same_rows_corrected(tmp_path: Path) -> None:
    run(9)
    model = tmp_path / "model"
    model.mkdir()
    remake(Orders(), model, tmp_path / "theirs")
    made = np.load(tmp_path / "theirs" / f"day={FIRST + timedelta(days=7)}" / SAMPLES)
    assert made.tobytes() == np.load(ARRAYS / f"day={FIRST + timedelta(days=7)}" / SAMPLES).tobytes()


def test_rows_that_are_served_have_the_features_of_training() -> None:
    run(9)
    day = FIRST + timedelta(days=6)
    served = ServedRows(workload=Orders(), model=None, state={}, days=partitions(CLEAN))  # type: ignore[arg-type]
    features = served.features(read_clean(day).slice(0, 4).drop_columns("kept"))
    assert {name: values.astype(int).tolist() for name, values in features.items()} == {
        name: values for name, values in samples(6).items() if name != "kept"
    }


def test_the_past_reads_no_day_that_is_not_over() -> None:
    def read(day: date) -> pa.Table:
        assert number(day) < 5
        return read_clean(day)

    past = past_of(Orders(), FIRST + timedelta(days=5), partitions(CLEAN), read=read)
    assert days_of(past.rows()) == [1, 2, 3, 4]
    assert days_of(past.rows(days(2))) == [3, 4]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("nothing", "returns no table with the columns of `rows`"),
        ("place", "returns no table with the columns of `rows`"),
        ("twice", "returns rows that it was not given"),
        ("type", "returns columns of other types"),
    ],
)
def test_a_correction_that_is_not_one_is_refused(how: str, sentence: str) -> None:
    with pytest.raises(ParamsError, match=sentence):
        run(9, workload="Wrongly", how=how)


def test_to_reach_back_without_saying_how_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"no corrected\(self, rows, later\)"):
        run(9, workload="Unsaid")


def test_corrected_days_are_named_by_their_digests() -> None:
    run(9)
    keys = json.loads((ARRAYS / "keys.json").read_text())
    assert set(keys["rows"]) == set(keys["days"]) == {str(FIRST + timedelta(days=day)) for day in range(8)}

"""Days come in whole or not at all, once, late or restated, and never after the night's day."""

import logging
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.contract import records
from daybreak.contract.errors import DataError, JobError, NothingToDo, ParamsError
from daybreak.contract.record_types import Batch, Night
from daybreak.contract.sections import IngestParams
from daybreak.contract.table import Category, Int, Label, Table, Time
from daybreak.data.bad_cells import AS_DELIVERED
from daybreak.data.ingest import WORK, ingest
from daybreak.data.partitions import PART, RAW, part_of
from daybreak.data.source import Files, write_partition
from daybreak.examples.shop.simulated_shop import Shop
from daybreak.examples.shop.sold_lines import LINES
from daybreak.storage.home import Home
from tests.data.test_source import ONLINE_RETAIL, PAYMENTS, THEIRS, payments
from tests.minimal_records import minimal_night

pytestmark = pytest.mark.usefixtures("empty_home")
FIRST = date(2025, 3, 1)
ROOT = Path(__file__).parents[2]
Deliver = Callable[..., None]


def nth(number: int) -> date:
    return FIRST + timedelta(days=number)


def night(day: date, *, id: str = "") -> Night:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return minimal_night(now, id=id or str(day), day=day)


def rows(day: date, *, num_rows: int = 3, quantity: int = 1) -> pa.Table:
    lines = [
        {
            "invoice": str(500000 + n),
            "item": "71053",
            "description": "LANTERN",
            "quantity": quantity,
            "time": datetime(day.year, day.month, day.day, 9, n),
            "price": 3.39,
            "customer": "17850",
            "country": "EIRE",
        }
        for n in range(num_rows)
    ]
    return pa.Table.from_pylist(lines, schema=LINES.schema())


@pytest.fixture
def deliver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deliver:
    """Deliver days by their numbers to `../sales`, one file each; the current folder is a night's."""
    (tmp_path / "night").mkdir()
    (tmp_path / "sales").mkdir()
    monkeypatch.chdir(tmp_path / "night")

    def deliver(*numbers: int, num_rows: int = 3, quantity: int = 1) -> None:
        for number in numbers:
            table = rows(nth(number), num_rows=num_rows, quantity=quantity)
            pq.write_table(table, tmp_path / "sales" / f"{nth(number)}.parquet")

    return deliver


def run(number: int, *, id: str = "", history_days: int = 400, late_days: int = 7) -> Batch:
    params = IngestParams(history_days=history_days, late_days=late_days)
    return ingest(Home.here(), night(nth(number), id=id), Files("../sales/{day}.parquet"), LINES, params)


def here() -> list[date]:
    return sorted(date.fromisoformat(path.parent.name[4:]) for path in RAW.glob(f"day=*/{PART}"))


def test_the_first_night_brings_in_the_history(deliver: Deliver) -> None:
    deliver(*range(10))
    batch = run(8, history_days=5)
    assert here() == [nth(n) for n in range(3, 9)]
    assert batch.late_days == tuple(nth(n) for n in range(3, 8))
    assert batch.day == nth(8)
    assert batch.num_rows == 18
    assert batch.num_bytes == sum(path.stat().st_size for path in RAW.rglob(PART))
    assert batch.digest == records.digest(RAW)


def test_a_later_night_brings_in_its_day_alone(deliver: Deliver) -> None:
    deliver(*range(6))
    run(4)
    before = {path: path.stat().st_mtime_ns for path in RAW.rglob(PART)}
    batch = run(5)
    assert (batch.late_days, batch.num_rows) == ((), 3)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_late_day_comes_in_within_the_days_looked_back_at(deliver: Deliver) -> None:
    deliver(0, 1, 9, 10, 11)
    run(9)
    deliver(2, 5, 8)
    assert run(10, late_days=5).late_days == (nth(5), nth(8))
    assert run(11, late_days=5).late_days == ()


def test_a_restated_day_takes_the_place_of_the_old_one(deliver: Deliver) -> None:
    deliver(*range(5))
    run(3)
    deliver(1, 2, quantity=7)
    assert run(4, late_days=2).late_days == (nth(2),)
    assert pq.read_table(part_of(nth(2)))["quantity"].to_pylist() == [7, 7, 7]
    assert pq.read_table(part_of(nth(1)))["quantity"].to_pylist() == [1, 1, 1]


def test_a_day_that_was_only_written_differently_is_not_restated(deliver: Deliver) -> None:
    deliver(0, 1)
    run(0)
    part_of(nth(0)).unlink()
    pq.write_table(rows(nth(0)), part_of(nth(0)), compression="none")
    digest = records.digest(part_of(nth(0)))
    assert run(1).late_days == ()
    assert records.digest(part_of(nth(0))) == digest


def test_a_day_that_is_delivered_without_rows_is_restated_to_none(
    deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    deliver(0, 1, 2)
    run(1)
    deliver(1, num_rows=0)
    batch = run(2)
    assert (batch.late_days, batch.num_rows) == ((nth(1),), 3)
    assert pq.read_table(part_of(nth(1)), partitioning=None).equals(LINES.schema().empty_table())
    assert f"no rows for {nth(1)} by now; the 3 that came before are taken out" in caplog.text
    deliver(3)
    assert run(3).late_days == (), "it is restated once"


def test_a_night_whose_day_was_emptied_since_it_came_in_has_nothing_to_do(deliver: Deliver) -> None:
    deliver(0, 1)
    run(1)
    deliver(1, num_rows=0)
    with pytest.raises(NothingToDo, match=f"the source has no rows for {nth(1)}"):
        run(1, id="again")
    assert pq.read_metadata(part_of(nth(1))).num_rows == 3


def test_a_day_whose_file_is_away_keeps_its_rows_and_that_is_said(
    deliver: Deliver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deliver(0, 1, 2, 3)
    run(2)
    (tmp_path / "sales" / f"{nth(1)}.parquet").unlink()
    assert run(3).late_days == ()
    assert f"the source has {nth(1)} no more, and its 3 rows stay in training" in caplog.text


def test_a_day_between_others_without_rows_is_restated_to_none_where_days_are_cut_by_time(
    deliver: Deliver, tmp_path: Path
) -> None:
    def run_of(*days: int) -> Batch:
        pq.write_table(pa.concat_tables([rows(nth(day)) for day in days]), tmp_path / "all.parquet")
        source = Files("../all.parquet")
        return ingest(
            Home.here(), night(nth(days[-1])), source, LINES, IngestParams(history_days=9, late_days=7)
        )

    run_of(0, 1, 2)
    assert run_of(1, 3).late_days == (nth(2),), "days before the first one may have left the file"
    assert [pq.read_metadata(part_of(nth(n))).num_rows for n in range(4)] == [3, 3, 0, 3]


def test_a_file_in_the_cache_is_never_written_to(deliver: Deliver, tmp_path: Path) -> None:
    deliver(0, 1)
    run(0)
    cached = tmp_path / "cached"
    os.link(part_of(nth(0)), cached)
    cached.chmod(0o444)
    before = cached.read_bytes()
    deliver(0, quantity=9)
    assert run(1).late_days == (nth(0),)
    assert cached.read_bytes() == before
    assert part_of(nth(0)).read_bytes() != before


@pytest.mark.slow
def test_after_a_rollback_of_the_data_the_days_come_again(deliver: Deliver) -> None:
    deliver(*range(30))
    run(28)
    for number in range(10, 29):
        shutil.rmtree(part_of(nth(number)).parent)
    assert run(29, late_days=3).late_days == tuple(nth(n) for n in range(10, 29))


def test_days_after_the_nights_never_come_in(deliver: Deliver) -> None:
    deliver(*range(9))
    run(8)
    batch = run(4, id="again")
    assert (batch.day, batch.late_days, batch.num_rows) == (nth(4), (), 3)
    assert here()[-1] == nth(8)


def test_asked_again_a_night_has_the_same_batch(deliver: Deliver) -> None:
    deliver(*range(6))
    first = run(4)
    assert run(4) == first
    deliver(2, quantity=3)
    assert run(4).late_days == first.late_days
    deliver(5)
    late = run(5)
    assert late.late_days == (), "the other night's days are not this one's"


@pytest.mark.parametrize("num_rows", [None, 0])
def test_without_data_there_is_nothing_to_do_and_nothing_changes(
    num_rows: int | None, deliver: Deliver
) -> None:
    deliver(0, 1)
    run(1)
    deliver(0, quantity=5)
    if num_rows is not None:
        deliver(2, num_rows=num_rows)
    digest = records.digest(RAW)
    with pytest.raises(NothingToDo, match=f"no (data|rows) for {nth(2)}"):
        run(2)
    assert records.digest(RAW) == digest
    deliver(3)
    assert run(3).late_days == (nth(0),), "what was late comes in the next night"


def test_the_first_night_without_data_leaves_nothing(deliver: Deliver) -> None:
    with pytest.raises(DataError, match="matches no file"):
        run(0)
    deliver(5)
    with pytest.raises(NothingToDo, match="nor for any day before"):
        run(4)
    assert not RAW.exists()


def test_a_closed_day_of_the_shop_is_nothing_to_do(deliver: Deliver) -> None:
    sunday = date(2025, 3, 2)
    with pytest.raises(NothingToDo, match=f"no data for {sunday}, its newest before that is 2025-03-01"):
        ingest(
            Home.here(),
            night(sunday),
            Shop(start="2025-02-20", today="2025-04-01", late_days={}),
            LINES,
            IngestParams(),
        )


def test_a_day_in_the_future_is_refused(deliver: Deliver) -> None:
    with pytest.raises(ParamsError, match="is in the future, today is 2026-01-01 in UTC; ask"):
        ingest(Home.here(), night(date(2026, 1, 2)), Files("../sales/{day}.parquet"), LINES, IngestParams())


def test_a_broken_late_day_waits_and_a_broken_day_stops_the_night(
    deliver: Deliver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deliver(0, 1, 2, 3)
    run(1)
    broken = tmp_path / "sales" / f"{nth(2)}.parquet"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:100])
    with pytest.raises(DataError, match=f"{nth(2)}.parquet"):
        run(2)
    with caplog.at_level(logging.WARNING):
        assert run(3).late_days == ()
    assert f"{nth(2)} is left for the next night" in caplog.text
    broken.write_bytes(whole)
    deliver(4)
    assert run(4).late_days == (nth(2),)


def test_a_broken_day_of_the_history_leaves_nothing_half_written(deliver: Deliver, tmp_path: Path) -> None:
    deliver(*range(6))
    (tmp_path / "sales" / f"{nth(4)}.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=f"{nth(4)}.parquet.*; fix it"):
        run(5)
    assert not RAW.exists()
    assert list(WORK.rglob(PART)) == []


def test_a_full_disk_is_one_sentence_and_nothing_is_half_written(deliver: Deliver) -> None:
    deliver(0, 1, num_rows=50)
    run(0)
    deliver(0, num_rows=40)
    digest = records.digest(RAW)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (800, limits[1]))
    try:
        with pytest.raises(
            JobError, match=rf"{nth(1)} could not be fetched: .*File too large.*disk has room"
        ):
            run(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert records.digest(RAW) == digest
    assert list(WORK.rglob(PART)) == []
    assert run(1).late_days == (nth(0),)


KILLED = """
import os, signal, sys
from daybreak.data.ingest import ingest
from daybreak.data.source import Files
from daybreak.storage import known_digests
from daybreak.storage.home import Home
from daybreak.contract.sections import IngestParams
from daybreak.contract.record_types import Night
from daybreak.contract.records import loads
from daybreak.examples.shop.sold_lines import LINES

known_digests.SETTLED_S = float("inf")  # what is remembered, and so what is read, would depend on the time
source, left = Files("../sales/{day}.parquet"), int(sys.argv[1])
source.days()
home = Home.here()

def count(event, arguments):
    global left
    if event.startswith(("os.", "shutil.", "tempfile.")) or event == "open":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
ingest(home, loads(Night, sys.argv[2]), source, LINES, IngestParams(late_days=4))
print(left, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_the_same(deliver: Deliver, tmp_path: Path) -> None:
    deliver(0, 1, 2, 6)
    run(2)
    deliver(1, 5, quantity=2)  # one late, one too far back, one restated
    deliver(2, quantity=3)
    shutil.copytree(tmp_path / "night", tmp_path / "before")

    def ingest_killed(after: int) -> int:
        """Events until the end, or 0 if it was killed before."""
        for name in ("data", "var"):
            shutil.rmtree(tmp_path / "night" / name, ignore_errors=True)
        shutil.copytree(tmp_path / "before" / "data", tmp_path / "night" / "data")
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(after), records.dumps(night(nth(6)))],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert done.returncode in (0, -9), done.stderr
        return after - int(done.stdout) if done.returncode == 0 else 0

    ingest_killed(10**6)  # writes the bytecode of what is imported late: events that the next ones lack
    events = ingest_killed(10**6)
    whole = run(6, late_days=4)
    assert whole.late_days == (nth(2), nth(5))
    last = events - 1
    moves = [last - 3 * n for n in range(5)]  # the moves into place are among the last events
    places = sorted({*moves, *range(last // 5, last, last // 5)})
    num_killed = 0
    for after in places:
        num_killed += ingest_killed(after) == 0
        for path in RAW.rglob(PART):
            assert pq.read_table(path).num_rows == 3
        assert run(6, late_days=4) == whole
        assert list(WORK.rglob(PART)) == []
    assert num_killed >= len(places) - 2


@pytest.mark.slow
@settings(max_examples=15)
@given(
    calls=st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=4), st.booleans()),
        min_size=10,
        max_size=10,
    )
)
def test_after_each_night_the_days_looked_at_are_as_delivered(
    calls: list[tuple[list[tuple[int, int]], bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("nights")
    (home / "sales").mkdir()
    (home / "night").mkdir()
    before = Path.cwd()
    os.chdir(home / "night")
    try:
        sold: dict[int, int] = {}
        for number, (delivered, opened) in enumerate(calls):
            for other, quantity in [*delivered, *([(number, 1)] if opened else [])]:
                sold[other] = quantity
                pq.write_table(rows(nth(other), quantity=quantity), home / "sales" / f"{nth(other)}.parquet")
            if number not in sold:
                continue
            batch = run(number, late_days=3)
            assert nth(number) not in batch.late_days
            for other, quantity in sold.items():
                if number - 3 <= other <= number:
                    assert pq.read_table(part_of(nth(other)))["quantity"][0].as_py() == quantity
            assert all(day <= nth(number) for day in here())
    finally:
        os.chdir(before)


def test_a_source_of_ones_own_needs_two_methods(deliver: Deliver) -> None:
    class Two:
        def days(self) -> list[date]:
            return [nth(1), nth(0)]

        def fetch(self, day: date, folder: Path) -> None:
            write_partition(rows(day), folder)

    assert ingest(Home.here(), night(nth(1)), Two(), LINES, IngestParams()).late_days == (nth(0),)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.drop_columns("country"), "no country among its columns"),
        (lambda t: t.rename_columns({"price": "cost"}), "no price among its columns invoice, .*cost"),
        (
            lambda t: t.set_column(3, "quantity", pa.array(["1", "two", "three"])),
            "quantity is .*row 2 is 'two'",
        ),
        (lambda t: t.drop_columns("time"), "no time among its columns"),
    ],
    ids=["missing", "renamed", "of another type", "no time"],
)
def test_a_changed_schema_is_refused_at_ingest(
    change: Callable[[pa.Table], pa.Table], reason: str, deliver: Deliver, tmp_path: Path
) -> None:
    deliver(0)
    run(0)
    pq.write_table(change(rows(nth(1))), tmp_path / "sales" / f"{nth(1)}.parquet")
    digest = records.digest(RAW)
    with pytest.raises(
        DataError, match=rf"the source's {nth(1)} has another schema: {reason}.*; have it deliv"
    ):
        run(1)
    assert records.digest(RAW) == digest


def test_a_bad_cell_comes_in_with_its_row_and_is_no_news_again(deliver: Deliver, tmp_path: Path) -> None:
    deliver(0, 1, 2)
    bad = rows(nth(1)).set_column(3, "quantity", pa.array(["1", "two", "3"]))
    pq.write_table(bad, tmp_path / "sales" / f"{nth(1)}.parquet")
    assert run(1).num_rows == 6
    part = pq.read_table(part_of(nth(1)))
    assert part["quantity"].to_pylist() == [1, None, 3]
    assert part[AS_DELIVERED].to_pylist() == [None, '{"quantity": "two"}', None]
    assert run(2).late_days == ()
    deliver(1, 3)
    assert run(3).late_days == (nth(1),), "set right"
    assert AS_DELIVERED not in pq.read_schema(part_of(nth(1))).names


def test_a_schema_change_of_the_shop_is_refused(deliver: Deliver) -> None:
    day = date(2025, 3, 31)
    shop = Shop(start="2025-03-25", today="2025-04-01", late_days={}, schema_change=day)
    with pytest.raises(DataError, match=rf"source's {day} .*no price; no customer among"):
        ingest(Home.here(), night(day), shop, LINES, IngestParams())


def test_columns_that_the_table_does_not_declare_are_named_once(
    deliver: Deliver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        extra = rows(nth(number)).append_column("day", pa.array(["Friday"] * 3))
        pq.write_table(extra, tmp_path / "sales" / f"{nth(number)}.parquet")
    with caplog.at_level(logging.INFO):
        run(2)
    assert caplog.text.count("left out day, which the workload's table does not declare") == 1
    assert pq.read_schema(part_of(nth(2))).equals(LINES.schema())


def test_a_table_may_have_a_column_that_is_called_day(deliver: Deliver, tmp_path: Path) -> None:
    table = Table(time="time", columns=dict(LINES.columns) | {"day": Category()})
    for number in range(2):
        named = rows(nth(number)).append_column("day", pa.array(["Friday"] * 3))
        pq.write_table(named, tmp_path / "sales" / f"{nth(number)}.parquet")
        source = Files("../sales/{day}.parquet")
        assert ingest(Home.here(), night(nth(number)), source, table, IngestParams()).late_days == ()
    part_of(nth(0)).unlink()
    pq.write_table(named.slice(0, 2), part_of(nth(0)))
    assert ingest(Home.here(), night(nth(1)), source, table, IngestParams()).late_days == (nth(0),)


def test_a_column_that_the_table_gains_comes_in_for_all_days(deliver: Deliver, tmp_path: Path) -> None:
    deliver(0, 1, 2)
    run(2)
    for number in (1, 2, 3):  # day 0 is delivered as before, day 1 no longer at all
        table = rows(nth(number)).append_column("store", pa.array(["A"] * 3))
        pq.write_table(table, tmp_path / "sales" / f"{nth(number)}.parquet")
    (tmp_path / "sales" / f"{nth(1)}.parquet").unlink()
    wider = replace(LINES, columns={**LINES.columns, "store": Category(nullable=True)})
    batch = ingest(
        Home.here(), night(nth(3)), Files("../sales/{day}.parquet"), wider, IngestParams(late_days=1)
    )
    assert batch.late_days == (nth(0), nth(1), nth(2))
    stores = [pq.read_table(part_of(nth(n)), partitioning=None)["store"].to_pylist() for n in range(4)]
    assert stores == [[None] * 3, [None] * 3, ["A"] * 3, ["A"] * 3]
    again = ingest(
        Home.here(), night(nth(3), id="again"), Files("../sales/{day}.parquet"), wider, IngestParams()
    )
    assert again.late_days == ()
    needed = replace(LINES, columns={**LINES.columns, "store": Category()})
    with pytest.raises(DataError, match="no store among its columns"):
        deliver(4)
        ingest(Home.here(), night(nth(4)), Files("../sales/{day}.parquet"), needed, IngestParams())


def test_a_key_that_no_object_of_a_day_has_is_null_and_a_column_that_others_lack_is_missing(
    tmp_path: Path, deliver: Deliver
) -> None:
    table = Table(columns={"time": Time(), "coupon": Category(nullable=True)}, time="time")
    for suffix in ("jsonl", "csv"):
        lines = {"jsonl": '{"time": "2025-03-01 10:00:00"}\n', "csv": "time\n2025-03-01 10:00:00\n"}
        (tmp_path / "sales" / f"{nth(0)}.{suffix}").write_text(lines[suffix])
    ingest(Home.here(), night(nth(0)), Files("../sales/{day}.jsonl"), table, IngestParams())
    assert pq.read_table(part_of(nth(0)), partitioning=None)["coupon"].to_pylist() == [None]
    with pytest.raises(DataError, match="no coupon among its columns time"):
        ingest(Home.here(), night(nth(0), id="again"), Files("../sales/{day}.csv"), table, IngestParams())


def test_a_column_that_came_in_the_history_is_null_before_it_and_needed_tonight(
    deliver: Deliver, tmp_path: Path
) -> None:
    table = Table(time="time", columns={**LINES.columns, "coupon": Category(nullable=True)})

    def bring_in(day: int) -> Batch:
        return ingest(Home.here(), night(nth(day)), Files("../sales/{day}.parquet"), table, IngestParams())

    deliver(0, 1)
    for number in (1, 2):
        newer = rows(nth(number)).append_column("coupon", pa.array(["A"] * 3))
        pq.write_table(newer, tmp_path / "sales" / f"{nth(number)}.parquet")
    assert bring_in(1).late_days == (nth(0),)
    assert pq.read_table(part_of(nth(0)), partitioning=None)["coupon"].null_count == 3
    deliver(1, 3)
    assert bring_in(2).late_days == (), "a day that had the column is not restated without it"
    with pytest.raises(DataError, match="no coupon among its columns"):
        bring_in(3)


def test_numbers_of_days_that_are_no_longer_delivered_follow_their_classes(
    tmp_path: Path, deliver: Deliver
) -> None:
    def fields(*classes: str) -> Table:
        columns = {"time": Time(), "topic": Int(min=0, max=len(classes) - 1)}
        return Table(columns=columns, time="time", label=Label("topic", classes=classes))

    def come_in(number: int, table: Table, *topics: str) -> list[list[int]]:
        at = datetime.combine(nth(number), datetime.min.time())
        delivered = pa.table({"time": [at] * 2, "topic": topics or ["billing", "sales"]})
        pq.write_table(delivered, tmp_path / "sales" / f"{nth(number)}.parquet")
        ingest(
            Home.here(),
            night(nth(number)),
            Files("../sales/{day}.parquet"),
            table,
            IngestParams(late_days=0),
        )
        parts = [pq.read_table(part_of(nth(n)), partitioning=None) for n in range(number + 1)]
        return [part["topic"].to_pylist() for part in parts]

    assert come_in(0, fields("billing", "sales")) == [[0, 1]]
    (tmp_path / "sales" / f"{nth(0)}.parquet").unlink()
    assert come_in(1, fields("billing", "legal", "sales")) == [[0, 2], [0, 2]]
    renamed = fields("b", "l", "s")  # at the source, too: day 0 cannot follow, day 2 is as delivered
    assert come_in(2, fields("billing", "legal", "sales"))[2] == [0, 2]
    assert come_in(2, renamed, "b", "s") == [[-1, -1], [-1, -1], [0, 2]]


@pytest.mark.parametrize("is_auxiliary", [False, True])
def test_labels_that_come_late_are_looked_back_for_until_they_are_all_in(
    deliver: Deliver, is_auxiliary: bool
) -> None:
    """A label of `ripe_after` 14 days is known on the 15th day after its own; late_days are but 2."""
    table = PAYMENTS
    if is_auxiliary:
        assert PAYMENTS.label
        table = replace(PAYMENTS, label=Label("online"), auxiliary=(PAYMENTS.label,))

    class Bank:
        today = nth(0)

        def days(self) -> list[date]:
            return [nth(n) for n in range((self.today - FIRST).days + 1)]

        def fetch(self, day: date, folder: Path) -> None:
            known = (self.today - day).days > 14
            write_partition(payments(fraud=[1 if known else None] * 3, extra=["e"] * 3), folder)

    bank = Bank()
    for number in (0, 14, 15, 16):
        bank.today = nth(number)
        batch = ingest(Home.here(), night(nth(number)), bank, table, IngestParams(late_days=2))
        assert (nth(0) in batch.late_days) == (number == 15)
    assert pq.read_table(part_of(nth(1)), partitioning=None)["fraud"].to_pylist() == [1, 1, 1]
    assert pq.read_table(part_of(nth(2)), partitioning=None)["fraud"].to_pylist() == [None] * 3
    assert pq.read_schema(part_of(nth(2))).equals(PAYMENTS.schema())


@pytest.mark.slow
@pytest.mark.skipif(not ONLINE_RETAIL.exists(), reason="Online Retail is not here; set DAYBREAK_DATA")
def test_thirty_nights_of_online_retail(deliver: Deliver) -> None:
    source = Files(str(ONLINE_RETAIL), columns=THEIRS)
    days = [day for day in source.days() if day >= date(2011, 9, 1)][:31]
    first = ingest(Home.here(), night(days[0]), source, LINES, IngestParams())
    assert len(first.late_days) > 200
    total = first.num_rows
    for day in days[1:]:
        batch = ingest(Home.here(), night(day), source, LINES, IngestParams())
        assert batch.late_days == ()
        total += batch.num_rows
    assert here() == [day for day in source.days() if day <= days[-1]]
    assert total == sum(pq.read_metadata(path).num_rows for path in RAW.rglob(PART))
    with pytest.raises(NothingToDo, match="2011-09-24"):
        ingest(Home.here(), night(date(2011, 9, 24)), source, LINES, IngestParams())

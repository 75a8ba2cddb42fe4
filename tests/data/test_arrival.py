"""A night waits for its day while training can still be done in time, and takes no day that is not whole."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from fsspec.implementations.local import LocalFileSystem

from daybreak.contract import clock, records
from daybreak.contract.errors import NothingToDo, NotYet, ParamsError, SourceUnreachable
from daybreak.contract.record_parts import JobForecast, Placement, PlanReasons, Portion, Rental
from daybreak.contract.record_types import Batch, Night, Plan
from daybreak.contract.sections import IngestParams
from daybreak.data.database import Database
from daybreak.data.ingest import ingest
from daybreak.data.source import Files
from daybreak.examples.shop.sold_lines import LINES
from daybreak.storage.home import Home
from tests.data.test_ingest import nth, rows
from tests.minimal_records import minimal_night, minimal_training
from tests.rollout.ledgers import FIRST, close, make_home

pytestmark = pytest.mark.usefixtures("empty_home")
OPENED = datetime(2025, 3, 6, 3, tzinfo=UTC)
TONIGHT = nth(4)  # 2025-03-05


@dataclass
class Morning:
    """A folder of deliveries and a clock that the test sets."""

    sales: Path
    hours: float = 0.0  # since the opening
    params: dict[str, Any] = field(default_factory=lambda: {"wait_hours": 6})
    source: dict[str, Any] = field(default_factory=dict)
    url: str = "../sales/{day}.parquet"

    def deliver(self, *days: date, num_rows: int = 3, to: str = "{day}.parquet") -> None:
        for day in days:
            path = self.sales / to.format(day=day)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows(day, num_rows=num_rows), path)

    def look(self, *, at: float = 0.0, night: Night | None = None, source: Any = None) -> Batch:
        """Runs `ingest` so many hours after the opening."""
        self.hours = at
        tonight = night or minimal_night(
            OPENED,
            id=str(TONIGHT),
            day=TONIGHT,
            train_until=OPENED + timedelta(hours=18),
            decide_until=OPENED + timedelta(hours=24),
        )
        source = source or Files(self.url, **self.source)
        return ingest(Home.here(), tonight, source, LINES, IngestParams(**self.params))


@pytest.fixture
def morning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Morning:
    (tmp_path / "night").mkdir()
    monkeypatch.chdir(tmp_path / "night")
    made = Morning(sales=tmp_path / "sales")
    made.deliver(*map(nth, range(4)))
    now: Callable[[], float] = lambda: OPENED.timestamp() + made.hours * 3600  # noqa: E731
    monkeypatch.setattr(clock, "_CLOCK", clock.Clock(wall=now, passed=lambda: 0.0))
    monkeypatch.setattr(clock._CLOCK, "now", now)
    return made


def test_a_day_that_comes_late_is_waited_for(morning: Morning) -> None:
    for hours in (0, 3, 5.9):
        with pytest.raises(NotYet, match=r"no data for 2025-03-05.*waits until 2025-03-06 09:00 UTC"):
            morning.look(at=hours)
    morning.deliver(TONIGHT)
    batch = morning.look(at=5.95)
    assert batch.day == TONIGHT
    assert batch.waited_hours == pytest.approx(5.95)


def test_a_day_that_is_there_at_once_was_not_waited_for(morning: Morning) -> None:
    morning.deliver(TONIGHT)
    assert morning.look(at=2).waited_hours == 0


def test_a_day_that_never_comes_is_left_to_the_next_night_which_takes_both(morning: Morning) -> None:
    with pytest.raises(NotYet):
        morning.look()
    with pytest.raises(NothingToDo, match="the night waited 6 h for it, and the next one takes it if"):
        morning.look(at=6)
    morning.deliver(TONIGHT, nth(5))
    next_night = minimal_night(OPENED + timedelta(days=1), id=str(nth(5)), day=nth(5))
    assert morning.look(at=24, night=next_night).late_days == (*map(nth, range(4)), TONIGHT)


def test_a_scheduled_night_that_waited_in_vain_takes_the_newest_day_that_no_night_has_had(
    morning: Morning, caplog: pytest.LogCaptureFixture
) -> None:
    hours = {"train_until": OPENED + timedelta(hours=18), "decide_until": OPENED + timedelta(hours=24)}
    tonight = minimal_night(OPENED, id=str(TONIGHT), day=TONIGHT, trigger="schedule", **hours)
    with pytest.raises(NotYet):
        morning.look(night=tonight)
    batch = morning.look(at=6, night=tonight)
    assert (batch.day, batch.waited_hours) == (nth(3), 6)
    assert "the night is of 2025-03-04, the newest day that none has had" in caplog.text
    moved = records.read(Night, records.RUN)
    assert moved == replace(tonight, day=nth(3))
    assert morning.look(at=7, night=moved) == batch  # as after a kill
    again = minimal_night(OPENED, id="again", day=TONIGHT, trigger="schedule", **hours)
    with pytest.raises(NothingToDo, match="no data for 2025-03-05"):  # the night before had 2025-03-04
        morning.look(at=6, night=again)


def test_without_hours_to_wait_a_missing_day_is_left_at_once(morning: Morning) -> None:
    morning.params = {}
    with pytest.raises(NothingToDo, match=r"no data for 2025-03-05, its newest before that is 2025-03-04$"):
        morning.look()


def test_a_day_that_newer_ones_have_overtaken_is_not_waited_for(morning: Morning) -> None:
    morning.deliver(nth(5))
    with pytest.raises(NothingToDo, match="no data for 2025-03-05"):
        morning.look()


def test_a_source_that_does_not_answer_is_asked_again_while_the_night_waits(morning: Morning) -> None:
    class Away(Files):
        def days(self) -> list[date]:
            raise SourceUnreachable("the bucket does not answer")

    away = Away(morning.url)
    with pytest.raises(NotYet, match=r"the bucket does not answer; the night waits until 2025-03-06 09:00"):
        morning.look(source=away)
    with pytest.raises(SourceUnreachable):
        morning.look(at=6, source=away)
    morning.params = {}
    with pytest.raises(SourceUnreachable):
        morning.look(source=away)


def test_an_empty_landing_folder_is_waited_for(morning: Morning) -> None:
    shutil.rmtree(morning.sales)
    morning.sales.mkdir()
    with pytest.raises(NotYet, match="matches no file"):
        morning.look()
    morning.deliver(TONIGHT)
    assert morning.look(at=2).waited_hours == 2
    assert morning.look(at=5).waited_hours == 2  # the same, however often it is called


class CachingFiles(LocalFileSystem):
    """A file system that keeps listings for as long as it lives, as that of S3 does."""

    protocol = "caching"
    listings: ClassVar[dict[str, Any]] = {}

    def glob(self, path: str, **given: Any) -> Any:
        return self.listings.setdefault(path, super().glob(path, **given))

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listings.clear()


def test_a_file_system_that_keeps_listings_is_listed_anew_at_each_look(morning: Morning) -> None:
    fsspec.register_implementation("caching", CachingFiles, clobber=True)
    morning.url = f"caching://{morning.sales}/{{day}}.parquet"
    with pytest.raises(NotYet):
        morning.look()
    morning.deliver(TONIGHT)
    assert morning.look(at=1).day == TONIGHT


def test_a_day_without_rows_is_waited_for_like_one_without_a_file(morning: Morning) -> None:
    morning.deliver(TONIGHT, num_rows=0)
    with pytest.raises(NotYet, match="no rows for 2025-03-05"):
        morning.look()
    morning.deliver(TONIGHT)
    assert morning.look(at=1).waited_hours == 1


def test_a_day_that_is_still_written_is_taken_once_it_has_settled(morning: Morning) -> None:
    morning.params["settle_minutes"] = 30
    morning.deliver(TONIGHT, num_rows=1)
    with pytest.raises(NotYet, match=r"has not changed for 30 minutes, at 03:30 UTC"):
        morning.look()
    morning.deliver(TONIGHT, num_rows=2)
    with pytest.raises(NotYet, match=r"at 03:55 UTC"):
        morning.look(at=25 / 60)
    with pytest.raises(NotYet, match=r"at 03:55 UTC"):
        morning.look(at=50 / 60)
    assert morning.look(at=56 / 60).num_rows == 3 * 4 + 2


def test_a_day_that_never_settles_is_left_to_the_next_night(morning: Morning) -> None:
    morning.params["settle_minutes"] = 30
    for number in range(1, 13):
        morning.deliver(TONIGHT, num_rows=number)
        with pytest.raises(NotYet):
            morning.look(at=number * 0.49)
    morning.deliver(TONIGHT, num_rows=59)
    with pytest.raises(NothingToDo, match="takes it if it has come"):
        morning.look(at=6.1)


def test_settling_needs_a_source_that_tells_versions_and_hours_to_wait(morning: Morning) -> None:
    @dataclass
    class Bare:
        files: Files

        def days(self) -> list[date]:
            return self.files.days()

        def fetch(self, day: date, folder: Path) -> None:
            self.files.fetch(day, folder)

    morning.params["settle_minutes"] = 30
    morning.deliver(TONIGHT)
    with pytest.raises(ParamsError, match=r"Bare has no version\(day\)"):
        morning.look(source=Bare(Files(morning.url)))
    with pytest.raises(ValueError, match="raise wait_hours"):
        IngestParams(wait_hours=0.5, settle_minutes=30)


def test_a_newer_day_shows_that_a_day_is_whole(morning: Morning) -> None:
    morning.params["newer_day"] = True
    morning.deliver(TONIGHT)
    with pytest.raises(NotYet, match="newest day of the source, and may not be whole"):
        morning.look()
    morning.deliver(nth(5))
    assert morning.look(at=2).day == TONIGHT


@pytest.mark.parametrize(
    ("url", "to", "success_file", "written"),
    [
        ("../sales/{day}/*.parquet", "{day}/a.parquet", "_SUCCESS", "{day}/_SUCCESS"),
        ("../sales/day={day}/*/*.parquet", "day={day}/shop=1/a.parquet", "_SUCCESS", "day={day}/_SUCCESS"),
        ("../sales/{day}.parquet", "{day}.parquet", "{day}.done", "{day}.done"),
        ("../sales", "day={day}/hour=23/a.parquet", "_SUCCESS", "day={day}/hour=23/_SUCCESS"),
    ],
)
def test_a_file_beside_a_days_files_says_that_it_is_whole(
    morning: Morning, tmp_path: Path, url: str, to: str, success_file: str, written: str
) -> None:
    morning.sales, morning.url = tmp_path / "others" / "sales", url.replace("../", "../others/")
    morning.source = {"success_file": success_file}
    morning.deliver(*map(nth, range(5)), to=to)
    mark = morning.sales / written.format(day=nth(3))
    mark.touch()
    assert Files(morning.url, **morning.source).days()[-1] == nth(3)
    with pytest.raises(NotYet, match="no data for 2025-03-05, its newest before that is 2025-03-04"):
        morning.look()
    (morning.sales / written.format(day=TONIGHT)).touch()
    assert morning.look(at=1).day == TONIGHT


def test_a_mark_in_each_hour_waits_for_the_last_hour_and_one_of_the_table_marks_no_day(
    morning: Morning,
) -> None:
    for hour in range(24):
        morning.deliver(TONIGHT, to=f"all/day={{day}}/hour={hour:02}/a.parquet")
        (morning.sales / f"all/day={TONIGHT}/hour={hour:02}/_SUCCESS").touch()
        if hour:  # a single file has no day
            days = Files("../sales/all", success_file="_SUCCESS").days()
            assert days == ([TONIGHT] if hour == 23 else [])
    morning.deliver(nth(5), to="all/day={day}/hour=00/a.parquet")
    (morning.sales / "all" / "_SUCCESS").touch()  # as Spark leaves one of a whole table
    assert Files("../sales/all", success_file="_SUCCESS").days() == [TONIGHT]
    (morning.sales / f"all/day={nth(5)}/_SUCCESS").touch()  # of the day: hours without rows have no file
    assert Files("../sales/all", success_file="_SUCCESS").days() == [TONIGHT, nth(5)]


def test_hours_that_had_no_rows_do_not_keep_back_days_whose_other_hours_are_marked(morning: Morning) -> None:
    for number in range(4):
        for hour in set(range(24)) - {3 + number % 2}:  # the empty hour is another one each day
            morning.deliver(nth(number), to=f"all/day={{day}}/hour={hour:02}/a.parquet")
            (morning.sales / f"all/day={nth(number)}/hour={hour:02}/_SUCCESS").touch()
    # Of the newest day, the missing hour may still come.
    assert Files("../sales/all", success_file="_SUCCESS").days() == [*map(nth, range(3))]
    morning.deliver(TONIGHT, to="all/day={day}/hour=00/a.parquet")
    assert Files("../sales/all", success_file="_SUCCESS").days() == [*map(nth, range(4))]


def test_a_file_that_was_renamed_since_it_was_listed_is_another_version(morning: Morning) -> None:
    morning.deliver(TONIGHT)
    source = Files(morning.url)
    before = source.version(TONIGHT)
    (morning.sales / f"{TONIGHT}.parquet").rename(morning.sales / "elsewhere")
    assert source.version(TONIGHT) != before


def test_one_file_of_all_days_cannot_have_a_success_file(morning: Morning) -> None:
    morning.deliver(TONIGHT, to="all.parquet")
    with pytest.raises(ParamsError, match="needs files with a day in their names"):
        Files("../sales/all.parquet", success_file="_SUCCESS").days()


WATERMARKS = [
    ("2025-03-06 00:00:00", TONIGHT),
    ("2025-03-05 23:59:59", nth(3)),
    ("2025-03-05T23:00:00-05:00", nth(4)),
    ("2025-03-05", TONIGHT),
]


@pytest.mark.parametrize(("mark", "newest"), WATERMARKS)
def test_a_database_offers_days_up_to_its_watermark(tmp_path: Path, mark: str, newest: date) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("create table sales (time timestamp, price float)")
        connection.exec_driver_sql("create table loads (until text)")
        for number in range(6):
            connection.exec_driver_sql(f"insert into sales values ('{nth(number)} 09:00:00', 1.5)")
        connection.exec_driver_sql(f"insert into loads values ('{mark}')")
    source = Database(
        f"sqlite:///{tmp_path}/shop.db", table="sales", watermark="select max(until) from loads"
    )
    assert source.days()[-1] == newest
    before = source.version(TONIGHT)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"insert into sales values ('{TONIGHT} 10:00:00', 1.5)")
    assert (before, source.version(TONIGHT)) == ("1", "2")


def _trained(
    morning: Morning,
    *,
    planned_hours: float,
    fastest_hours: float | None,
    after_hours: float = 0.0,
    test_hours: float = 0.0,
    longest_hours: float | None = None,
) -> Night:
    """Returns a night that follows one in the ledger, whose job began after an hour."""
    started = FIRST + timedelta(days=1)
    trained_by = started + timedelta(hours=min(18, 24 - after_hours - test_hours))
    fastest = [
        Placement(
            rental=Rental(machine="h100"),
            expected_s=1.0,
            expected_usd=1.0,
            latest_start=trained_by - timedelta(hours=hours),
        )
        for hours in (fastest_hours,)
        if hours is not None
    ]
    plan = Plan(
        rental=Rental(machine="t4"),
        forecast=JobForecast(
            expected_s=1.0,
            interval=(1.0, planned_hours * 3600),
            expected_usd=1.0,
            longest_s=longest_hours and longest_hours * 3600,
        ),
        batch_size=1,
        micro_batch_size=1,
        num_samples=1,
        checkpoint_every_s=60.0,
        fallbacks=tuple(fastest),
        after=(
            Portion(name="gate", expected_s=after_hours * 3600, expected_usd=0.0),
            Portion(name="live test", expected_s=test_hours * 3600, expected_usd=0.0),
        ),
        reasons=PlanReasons(runner_up=""),
    )
    training = minimal_training(elapsed_s=1800.0, ended_at=started + timedelta(hours=3.5))
    batch = Batch(day=nth(3), num_rows=1, num_bytes=1, digest="", late_days=(), waited_hours=2.0)
    for record in (plan, training, batch):
        records.write(record, records.RUN)
    commit = close(
        1,
        after="",
        train_until=started + timedelta(hours=18),
        decide_until=started + timedelta(hours=24),
    )
    tonight = minimal_night(OPENED, id=str(TONIGHT), day=TONIGHT, previous=commit)
    return replace(
        tonight, train_until=OPENED + timedelta(hours=18), decide_until=OPENED + timedelta(hours=24)
    )


def test_a_night_waits_no_longer_than_the_fastest_machines_need(
    morning: Morning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path / "night", monkeypatch)
    morning.params["wait_hours"] = 20
    tonight = _trained(morning, planned_hours=12, fastest_hours=4)
    with pytest.raises(NotYet) as wait:
        morning.look(night=tonight)
    # The night before took an hour beside its job and its own wait, so 18 - 1 - 4 and 18 - 1 - 12 hours.
    assert str(wait.value).endswith(
        "the night waits until 2025-03-06 16:00 UTC, after which training would not be done in time; from "
        "2025-03-06 08:00 UTC on t4 is too slow, and faster machines are needed"
    )
    with pytest.raises(NothingToDo, match="takes it if it has come"):
        morning.look(night=tonight, at=13)


def test_a_night_waits_no_longer_than_its_own_plan_has_time_for_with_the_confidence_it_is_held_to(
    morning: Morning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path / "night", monkeypatch)
    morning.params["wait_hours"] = 20
    tonight = _trained(morning, planned_hours=4, longest_hours=5, fastest_hours=None)
    with pytest.raises(NotYet, match="waits until 2025-03-06 15:00 UTC, after which training"):
        morning.look(night=tonight)


@pytest.mark.parametrize(
    ("after_hours", "test_hours", "until"),
    [
        (8, 0, "17:00"),  # 24 - 8 - 1 - 1 hours: the last start is 8 h before the decision already
        (0, 12, "19:00"),  # 18 - 1 - 1 hours: a plan gives up the live test before the night
    ],
)
def test_what_follows_training_shortens_the_wait_once_and_a_live_test_not_at_all(
    morning: Morning,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    after_hours: float,
    test_hours: float,
    until: str,
) -> None:
    make_home(tmp_path / "night", monkeypatch)
    morning.params["wait_hours"] = 20
    tonight = _trained(
        morning, planned_hours=4, fastest_hours=1, after_hours=after_hours, test_hours=test_hours
    )
    with pytest.raises(NotYet, match=f"waits until 2025-03-06 {until} UTC, after which training"):
        morning.look(night=tonight)


def test_a_night_waits_no_longer_than_leaves_time_to_train_before_its_predictions_are_due(
    morning: Morning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path / "night", monkeypatch)
    morning.params["wait_hours"] = 20
    tonight = _trained(morning, planned_hours=4, fastest_hours=None, after_hours=2)
    tonight = replace(tonight, predict_from=OPENED + timedelta(hours=15))
    with pytest.raises(NotYet, match="waits until 2025-03-06 11:00 UTC, after which training"):
        morning.look(night=tonight)  # 15 - 2 - 1 - 4 hours


def test_a_first_night_waits_no_longer_than_until_its_training_has_to_end(morning: Morning) -> None:
    morning.params["wait_hours"] = 30
    with pytest.raises(NotYet, match=r"waits until 2025-03-06 21:00 UTC, after which training would not be"):
        morning.look()


@pytest.mark.parametrize(
    ("planned_hours", "after_hours", "until"),
    [
        (4, 0, "16:00"),  # 18 - 1 - 4
        (4, 8, "14:00"),  # evaluation and gate of 8 h have to end within 24 h
    ],
)
def test_on_one_machine_a_night_waits_no_longer_than_a_plan_has_time_for(
    morning: Morning,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    planned_hours: float,
    after_hours: float,
    until: str,
) -> None:
    make_home(tmp_path / "night", monkeypatch)
    morning.params["wait_hours"] = 20
    tonight = _trained(morning, planned_hours=planned_hours, fastest_hours=None, after_hours=after_hours)
    with pytest.raises(NotYet, match=f"waits until 2025-03-06 {until} UTC, after which training"):
        morning.look(night=tonight)

"""Other tables joined as of time: as brute force has it, without the future, and in the night's record."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract import records
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.record_types import Batch
from daybreak.contract.sections import IngestParams
from daybreak.contract.table import Float, Id, Table, Time
from daybreak.data.as_of import AsOf, OtherTable, partners_of
from daybreak.data.casts import conform
from daybreak.data.ingest import ingest
from daybreak.data.partitions import PART, part_of
from daybreak.storage.home import Home
from tests.data.test_ingest import night

pytestmark = pytest.mark.usefixtures("empty_home")
FILES, DATABASE = "daybreak:Files", "daybreak:Database"
BERLIN = ZoneInfo("Europe/Berlin")
DAY = date(2025, 10, 26)  # Berlin's clocks show the hour from two to three twice
START = datetime(2025, 10, 25, 23, tzinfo=UTC)
SALES = Table(
    time="at",
    zone="Europe/Berlin",
    columns={"at": Time(), "shop": Id(), "degrees": Float(nullable=True), "measured": Time(nullable=True)},
)
moment = st.none() | st.integers(0, 40).map(lambda n: START + timedelta(minutes=7.5 * n))
shop = st.sampled_from([None, "a", "b"])
forms = st.sampled_from(["zone", "offset", "clock"])
given_rows = st.lists(st.tuples(moment, shop), max_size=12)


def delivered(moments: list[datetime | None], form: str) -> pa.Array:
    """The same moments as a zone, an offset, or Berlin's clocks have them."""
    if form == "zone":
        return pa.array(moments, pa.timestamp("us", "America/New_York"))
    if form == "offset":
        return pa.array([m and m.astimezone(BERLIN).isoformat() for m in moments], pa.string())
    return pa.array([m and m.astimezone(BERLIN).replace(tzinfo=None) for m in moments], pa.timestamp("us"))


def read(moment: datetime | None, form: str, *, fold: int) -> datetime | None:
    """A moment as it can be known from what was delivered."""
    if moment is None or form != "clock":
        return moment
    shown = moment.astimezone(BERLIN).replace(tzinfo=None)
    return shown.replace(tzinfo=BERLIN, fold=fold).astimezone(UTC)


@given(
    given_rows,
    given_rows,
    forms,
    forms,
    st.integers(0, 8),
    st.integers(0, 30),
    st.booleans(),
)
def test_a_row_gets_what_brute_force_finds_and_nothing_of_the_future(
    rows: list[tuple[Any, Any]],
    others: list[tuple[Any, Any]],
    form: str,
    other_form: str,
    delay: int,
    more: int,
    by_shop: bool,
) -> None:
    """In steps of 7.5 minutes, as many ties and nulls as drawn."""
    step = timedelta(minutes=7.5)
    known_after, max_age = delay * step, (delay + more) * step
    ours = pa.table(
        {"at": delivered([at for at, _ in rows], form), "shop": pa.array([s for _, s in rows], pa.string())}
    )
    theirs = pa.table(
        {
            "time": delivered([at for at, _ in others], other_form),
            "place": pa.array([s for _, s in others], pa.string()),
        }
    )
    table = OtherTable(
        {"use": FILES, "url": "nowhere.csv"},
        columns=[],
        key={"shop": "place"} if by_shop else {},
        max_age_hours=max_age / timedelta(hours=1),
        known_after_hours=known_after / timedelta(hours=1),
    )
    partners = partners_of(ours, theirs, table, time="at", zone="Europe/Berlin").to_pylist()
    for (at, key), partner in zip(rows, partners, strict=True):
        now = read(at, form, fold=0)
        allowed = [
            (then, number)
            for number, (other, place) in enumerate(others)
            if now
            and (then := read(other, other_form, fold=1))
            and (not by_shop or (key is not None and key == place))
            and then + known_after <= now
            and now - then <= max_age
        ]
        assert partner == (max(allowed)[1] if allowed else None)
        if partner is not None:
            assert others[partner][0] + known_after <= at  # also where clocks showed a time twice


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "night").mkdir()
    monkeypatch.chdir(tmp_path / "night")
    return tmp_path


def sell(folder: Path, *days: date) -> None:
    """A sale at 8 and at 20 in Berlin, in each of two shops."""
    for day in days:
        lines = [
            f"{datetime(day.year, day.month, day.day, hour, tzinfo=BERLIN).isoformat()},{shop}"
            for hour in (8, 20)
            for shop in (1, 2)
        ]
        (folder / f"sales-{day}.csv").write_text("\n".join(["at,shop", *lines]) + "\n")


def measure(folder: Path, *hours: tuple[int, float], day: date = DAY) -> list[dict[str, Any]]:
    """Degrees of shop 1 at these hours UTC, as lines of JSON."""
    rows = [
        {
            "at": datetime(day.year, day.month, day.day, hour, tzinfo=UTC).isoformat(),
            "station": 1,
            "celsius": degrees,
        }
        for hour, degrees in hours
    ]
    (folder / f"weather-{day}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def joined(weather: dict[str, Any] | None = None, **more: Any) -> AsOf:
    weather = weather or {"use": FILES, "url": "../weather-{day}.jsonl"}
    table = {
        "rows": weather,
        "time": "at",
        "key": {"shop": "station"},
        "columns": {"degrees": "celsius", "measured": "at"},
        "max_age_hours": 6,
    }
    rows = {"use": FILES, "url": "../sales-{day}.csv"}
    return AsOf(rows, tables={"weather": table | more}, time="at", zone="Europe/Berlin")


def run(day: date, source: AsOf) -> Batch:
    return ingest(Home(Path.cwd()), night(day), source, SALES, IngestParams())


def degrees(day: date = DAY) -> list[Any]:
    return pq.read_table(part_of(day))["degrees"].to_pylist()


def test_files_and_a_database_give_the_same_rows(folder: Path) -> None:
    sell(folder, DAY)
    rows = measure(folder, (1, 3.5), (6, 4.0), (8, 9.0), (18, 7.5), (20, 6.0))
    batch = run(DAY, joined())
    assert degrees() == [4.0, None, 7.5, None]
    assert pq.read_table(part_of(DAY))["measured"].to_pylist()[0] == datetime(2025, 10, 26, 7)
    in_files = part_of(DAY).read_bytes()
    part_of(DAY).unlink()
    url = f"sqlite:///{folder}/weather.db"
    engine = sa.create_engine(url)
    kinds = {"at": sa.DateTime, "station": sa.Integer, "celsius": sa.Float}
    table = sa.Table("weather", sa.MetaData(), *(sa.Column(name, kind) for name, kind in kinds.items()))
    with engine.begin() as connection:
        table.create(connection)
        clocks = [datetime.fromisoformat(row["at"]).astimezone(BERLIN).replace(tzinfo=None) for row in rows]
        connection.execute(table.insert(), [row | {"at": at} for row, at in zip(rows, clocks, strict=True)])
    engine.dispose()
    again = run(DAY, joined({"use": DATABASE, "url": url, "table": "weather", "cut_by": "at"}))
    assert part_of(DAY).read_bytes() == in_files
    assert again.digest == batch.digest


def test_the_same_night_gives_the_same_bytes_although_the_other_table_has_grown(folder: Path) -> None:
    sell(folder, DAY, DAY + timedelta(days=1))
    measure(folder, (6, 4.0), (18, 7.5))
    batch, before = run(DAY, joined()), part_of(DAY).read_bytes()
    assert set(batch.joined) == {"weather"}
    part_of(DAY).unlink()
    measure(folder, (6, 4.0), (18, 7.5), (22, 5.0))  # after the last sale
    measure(folder, (6, 1.0), day=DAY + timedelta(days=1))
    assert (run(DAY, joined()), part_of(DAY).read_bytes()) == (batch, before)


def test_a_correction_that_comes_late_restates_its_days_alone(folder: Path) -> None:
    days = [DAY + timedelta(days=number) for number in range(3)]
    sell(folder, *days)
    for day in days:
        measure(folder, (6, 4.0), (18, 7.5), day=day)
    run(days[0], joined())
    first = run(days[1], joined())
    measure(folder, (6, 4.0), (18, 7.5), (18, 8.5), day=days[0])  # the last of a time counts
    batch = run(days[2], joined())
    assert (first.late_days, batch.late_days) == ((), (days[0],))
    assert (degrees(days[0]), degrees(days[1])) == ([4.0, None, 8.5, None], [4.0, None, 7.5, None])
    assert batch.joined != first.joined


def test_a_day_before_any_weather_has_none_and_a_file_of_tomorrow_may_be_broken(folder: Path) -> None:
    sell(folder, DAY)
    (folder / f"weather-{DAY + timedelta(days=1)}.jsonl").write_text('{"at": "2025-')
    assert run(DAY, joined()).joined == {}
    assert degrees() == [None] * 4
    assert records.digest(part_of(DAY))


def test_an_empty_file_of_either_table_is_a_day_without_rows(folder: Path) -> None:
    sell(folder, DAY)
    measure(folder, (18, 7.5), day=DAY - timedelta(days=1))
    (folder / f"weather-{DAY}.jsonl").write_text("")
    run(DAY, joined(max_age_hours=13))
    assert degrees() == [7.5, None, None, None]  # of 7:00 UTC in shop 1, which is 13 hours later
    (folder / "empty-2025-03-01.jsonl").write_text("\n")
    weather = {"rows": {"use": FILES, "url": "../weather-{day}.jsonl"}, "time": "at", "columns": ["celsius"]}
    rows = {"use": FILES, "url": "../empty-{day}.jsonl"}
    source = AsOf(rows, tables={"weather": weather | {"max_age_hours": 6}}, time="at")
    source.fetch(date(2025, 3, 1), folder / "out")
    assert pq.read_table(folder / "out" / "part.parquet").num_rows == 0


def test_what_cannot_be_joined_is_said(folder: Path) -> None:
    sell(folder, DAY)
    measure(folder, (6, 4.0))
    with pytest.raises(
        DataError, match=r"weather cannot be joined to the rows of .*: there is no column rain"
    ):
        run(DAY, joined(columns=["rain"]))
    with pytest.raises(DataError, match="a number is not a time"):
        run(DAY, joined(time="celsius"))
    with pytest.raises(ParamsError, match="have a column at of their own; name that of weather otherwise"):
        run(DAY, joined(columns=["at"]))
    with pytest.raises(ParamsError, match=r"tables.weather refuses its arguments: .*max_hours"):
        joined(max_hours=3)
    with pytest.raises(ParamsError, match="no row could be joined; raise max_age_hours"):
        joined(known_after_hours=24)
    with pytest.raises(ParamsError, match=r"max_age_hours is inf under source.tables; write a number"):
        joined(max_age_hours=float("inf"))
    with pytest.raises(ParamsError, match="rows is 'weather', which is not a valid source"):
        joined({"use": "weather"}, rows="weather")


def test_numbers_of_each_table_are_read_in_the_format_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("time,price\n2025-01-31 10:00,1.5\n")
    (tmp_path / "weather.csv").write_text("time;celsius\n2025-01-31 09:00;4,5\n")
    weather = {"use": FILES, "url": str(tmp_path / "weather.csv"), "delimiter": ";", "decimal": ","}
    source = AsOf(
        {"use": FILES, "url": str(tmp_path / "sales.csv")},
        tables={"weather": {"rows": weather, "columns": {"outside": "celsius"}, "max_age_hours": 5}},
    )
    source.fetch(date(2025, 1, 31), tmp_path)
    table = Table(columns={"time": Time(), "price": Float(), "outside": Float()}, time="time")
    rows = conform(pq.read_table(tmp_path / PART, partitioning=None), table, origin="x")
    assert rows.select(["price", "outside"]).to_pylist() == [{"price": 1.5, "outside": 4.5}]


def test_a_row_without_a_partner_has_no_vector_whatever_its_type(folder: Path) -> None:
    sell(folder, DAY)
    for kind in (pa.list_(pa.float32(), 2), pa.list_(pa.float32())):
        at = pa.array([datetime(DAY.year, DAY.month, DAY.day, 5)], pa.timestamp("us", "UTC"))
        vector = pa.array([[1.0, 2.0]], kind)
        pq.write_table(pa.table({"at": at, "station": ["1"], "wind": vector}), folder / f"wind-{DAY}.parquet")
        source = joined({"use": FILES, "url": "../wind-{day}.parquet"}, columns=["wind"], max_age_hours=12)
        source.fetch(DAY, folder / "day")
        assert pq.read_table(folder / "day" / PART)["wind"].to_pylist() == [[1.0, 2.0], None, None, None]

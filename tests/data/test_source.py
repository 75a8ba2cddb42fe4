"""Files as a source: any layout, any format, the same bytes, and one sentence when broken."""

import csv
import gzip
import json
import os
import re
import threading
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak import cli
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.records import digest
from daybreak.contract.table import Bool, Bytes, Category, Float, Id, Int, Label, Table, Text, Time, days
from daybreak.data import day_files
from daybreak.data import source as source_module
from daybreak.data.bad_cells import AS_DELIVERED
from daybreak.data.casts import conform
from daybreak.data.file_listing import left_out_in_words
from daybreak.data.partitions import PART
from daybreak.data.source import Files, write_partition
from daybreak.examples.shop.sold_lines import LINES
from tests import s3_storage

DATA = Path(os.environ.get("DAYBREAK_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
ONLINE_RETAIL = DATA / "online_retail" / "online_retail.parquet"
THEIRS = {
    "invoice": "InvoiceNo",
    "item": "StockCode",
    "description": "Description",
    "quantity": "Quantity",
    "time": "InvoiceDate",
    "price": "UnitPrice",
    "customer": "CustomerID",
    "country": "Country",
}
PAYMENTS = Table(
    time="at",
    unit="account",
    key=("id",),
    zone="Europe/London",
    label=Label("fraud", ripe_after=days(14)),
    columns={
        "id": Id(),
        "account": Id(),
        "amount": Float(min=0),
        "mcc": Category(),
        "at": Time(),
        "online": Bool(nullable=True),
        "embedding": Float(size=2),
        "receipt": Bytes(nullable=True),
        "fraud": Int(nullable=True),
    },
)
READINGS = Table(
    time="hour",
    unit="meter",
    key=("meter", "hour"),
    columns={"meter": Id(), "hour": Time(), "kwh": Float(min=0, nullable=True)},
)
LINES_OF_TEXT = Table(time="said", columns={"said": Time(), "text": Text(), "length": Int(min=0)})
CODES = Table(time="time", columns={"time": Time(), "code": Int()})
FIRST, SECOND = date(2025, 1, 30), date(2025, 1, 31)


def table(*times: datetime | None) -> pa.Table:
    rows = [
        {
            "invoice": str(100000 + n),
            "item": f"0{n}A",
            "description": None if n % 2 else "RED, MUG",
            "quantity": n + 1,
            "time": time,
            "price": 1.25,
            "customer": None if n % 3 else "17850",
            "country": "EIRE",
        }
        for n, time in enumerate(times)
    ]
    return pa.Table.from_pylist(rows, schema=LINES.schema())


TWO_DAYS = table(datetime(2025, 1, 30, 9), datetime(2025, 1, 31, 8), datetime(2025, 1, 30, 10))


def write_csv(path: Path, rows: pa.Table, *, time: str = "%Y-%m-%d %H:%M:%S") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows.column_names)
        for row in rows.to_pylist():
            row["time"] = row["time"].strftime(time) if row["time"] else ""
            writer.writerow(["" if value is None else value for value in row.values()])
    return path


def fetched(source: Files, day: date, folder: Path, of: Table = LINES) -> pa.Table:
    """The rows of a day as `ingest` writes them."""
    source.fetch(day, folder / str(day))
    rows = conform(pq.read_table(folder / str(day) / PART), of, origin=str(day))
    write_partition(rows, folder / str(day))
    return pq.read_table(folder / str(day) / PART)


def test_one_file_is_cut_into_days_in_its_order(tmp_path: Path) -> None:
    pq.write_table(TWO_DAYS, tmp_path / "sales.parquet")
    source = Files(str(tmp_path / "sales.parquet"))
    assert source.days() == [FIRST, SECOND]
    assert fetched(source, FIRST, tmp_path).equals(TWO_DAYS.take([0, 2]))


def test_every_format_of_the_same_rows_gives_the_same_bytes(tmp_path: Path) -> None:
    pq.write_table(TWO_DAYS, tmp_path / "sales.parquet")
    write_csv(tmp_path / "sales.csv", TWO_DAYS)
    lines = [json.dumps(row | {"time": row["time"].isoformat()}) + "\n" for row in TWO_DAYS.to_pylist()]
    (tmp_path / "sales.jsonl").write_text("".join(lines))
    for name in ("sales.csv", "sales.jsonl"):
        with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
            file.write((tmp_path / name).read_bytes())
    digests = set()
    for name in ("sales.parquet", "sales.csv", "sales.csv.gz", "sales.jsonl", "sales.jsonl.gz"):
        fetched(Files(str(tmp_path / name)), FIRST, tmp_path / "out" / name)
        digests.add(digest(tmp_path / "out" / name / str(FIRST) / PART))
    assert len(digests) == 1


def test_rows_come_as_delivered_and_csv_is_all_text(tmp_path: Path) -> None:
    (tmp_path / "2025-01-30.csv").write_text("a,b,c\n007,1.50,\n8,NaN,true\n")
    Files(f"{tmp_path}/{{day}}.csv", columns={"number": "a"}).fetch(FIRST, tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / PART)
    assert rows.schema == pa.schema([("number", pa.string()), ("b", pa.string()), ("c", pa.string())])
    assert rows.to_pylist() == [
        {"number": "007", "b": "1.50", "c": None},
        {"number": "8", "b": None, "c": "true"},
    ]


def test_a_renamed_column_takes_the_place_of_one_that_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "2025-01-30.csv").write_text("price,UnitPrice\n1,2\n")
    Files(f"{tmp_path}/{{day}}.csv", columns={"price": "UnitPrice"}).fetch(FIRST, tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / PART).to_pylist() == [{"price": "2"}]


def test_blanks_around_fields_and_names_of_csv_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "2025-01-30.csv").write_text("a, b , c,d\n1, 2.5 ,x y,0\n3, , NaN, 0\n")
    Files(f"{tmp_path}/{{day}}.csv", columns={"third": " c", "fourth": "d"}).fetch(FIRST, tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / PART).to_pylist() == [
        {"a": "1", "b": "2.5", "third": "x y", "fourth": "0"},
        {"a": "3", "b": None, "third": None, "fourth": "0"},
    ]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_one_name_are_numbered(suffix: str, tmp_path: Path) -> None:
    names, path = ["said", "text", "length", "length", "", ""], tmp_path / f"2025-01-31.{suffix}"
    if suffix == "csv":
        path.write_text(f"{','.join(names)}\n2025-01-31,a,1,2,,\n")
    else:
        pq.write_table(pa.Table.from_arrays([pa.array([name]) for name in names], names), path)
    with pytest.raises(DataError, match=r"no length among .*text, length \(1 of 2\), length \(2 of 2\)"):
        fetched(Files(f"{tmp_path}/{{day}}.{suffix}"), SECOND, tmp_path, LINES_OF_TEXT)
    chosen = Files(f"{tmp_path}/{{day}}.{suffix}", columns={"number": "length (2 of 2)"})
    assert "number" in chosen.sample(1).column_names
    (tmp_path / "a.csv").write_text("said,said\n2025-01-31,a\n")
    with pytest.raises(DataError, match=r"no column said to cut .* columns said \(1 of 2\), said \(2 of 2\)"):
        Files(f"{tmp_path}/a.csv", cut_by="said", time="%Y").days()


def test_json_text_that_looks_like_a_time_stays_text(tmp_path: Path) -> None:
    (tmp_path / "2025-01-30.jsonl").write_text('{"name": "2025-01-30"}\n{"name": "2025-01-31"}\n')
    Files(f"{tmp_path}/{{day}}.jsonl").fetch(FIRST, tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / PART)["name"].to_pylist() == ["2025-01-30", "2025-01-31"]


def test_undated_files_are_cut_by_any_column_in_the_zone_given(tmp_path: Path) -> None:
    times = ["2025-07-30T22:59:00Z", "", "2025-07-30T23:01:00Z"]
    rows = [f"m{n},{time},{n}.5\n" for n, time in enumerate(times)]
    (tmp_path / "readings.csv").write_text("meter,ts,kwh\n" + "".join(rows))
    source = Files(
        str(tmp_path / "readings.csv"), columns={"hour": "ts"}, cut_by="hour", zone="Europe/London"
    )
    assert source.days() == [date(2025, 7, 30), date(2025, 7, 31)]
    source.fetch(date(2025, 7, 30), tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / PART)["meter"].to_pylist() == ["m0", "m1"]


def test_without_the_column_of_the_time_a_file_cannot_be_cut(tmp_path: Path) -> None:
    (tmp_path / "readings.csv").write_text("meter,ts\nm0,2025-01-30\n")
    with pytest.raises(DataError, match=r"no column time to cut days by.*meter, ts; .*source\.cut_by"):
        Files(str(tmp_path / "readings.csv")).days()
    with pytest.raises(DataError, match=r"cannot be cut into days: meter is string.*'m0'; .*source\.time"):
        Files(str(tmp_path / "readings.csv"), cut_by="meter").days()


def test_files_of_a_day_with_other_columns_or_types_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a_20250130.csv").write_text("meter\na\n")
    (tmp_path / "b_20250130.csv").write_text("meter,kwh\na,1\n")
    with pytest.raises(DataError, match=r"b_20250130.* other columns than .*a_20250130.*: it has kwh"):
        Files(str(tmp_path)).fetch(FIRST, tmp_path / "out")


def test_files_of_json_may_omit_a_key_and_their_types_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a_20250130.jsonl").write_text('{"meter": "a"}\n')
    (tmp_path / "in" / "b_20250130.jsonl").write_text('{"meter": "a", "kwh": 1}\n')
    Files(str(tmp_path / "in")).fetch(FIRST, tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / PART, partitioning=None)["kwh"].to_pylist() == [None, 1]
    (tmp_path / "in" / "b_20250130.jsonl").write_text('{"meter": ["a"]}\n')
    with pytest.raises(DataError, match=r"columns of different types: .*; have all files delivered"):
        Files(str(tmp_path / "in")).fetch(FIRST, tmp_path / "out")


def test_text_beside_types_is_text_by_the_numbers_of_the_source(tmp_path: Path) -> None:
    """As where the morning comes as CSV of a spreadsheet and the rest of the day as Parquet."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a_20250130.csv").write_text("kwh;ok\n1,5;true\n2.000,25;false\n")
    rows = pa.table({"kwh": [3.25, float("nan")], "ok": [True, None]})
    pq.write_table(rows, tmp_path / "in" / "b_20250130.parquet")
    Files(str(tmp_path / "in"), delimiter=";", decimal=",", thousands=".").fetch(FIRST, tmp_path / "out")
    delivered = pq.read_table(tmp_path / "out" / PART, partitioning=None)
    declared: Any = Table(
        columns={"at": Time(nullable=True), "kwh": Float(nullable=True), "ok": Bool(nullable=True)}, time="at"
    )
    read = conform(delivered, declared, origin="a", absent_is_null=True).to_pydict()
    assert read["kwh"] == [1.5, 2000.25, 3.25, None]
    assert read["ok"] == [True, False, True, None]


@pytest.mark.slow
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_the_bytes_do_not_depend_on_how_the_rows_came(
    sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("chunks")
    chunks = [table(*[datetime(2025, 1, 30, n % 24) for n in range(size)]) for size in sizes]
    write_partition(pa.concat_tables(chunks), folder / "chunked")
    write_partition(pa.concat_tables(chunks).combine_chunks(), folder / "whole")
    assert digest(folder / "chunked") == digest(folder / "whole")


@pytest.mark.slow
@given(hours=st.lists(st.one_of(st.none(), st.integers(0, 24 * 40)), min_size=1, max_size=60))
def test_each_row_belongs_to_exactly_one_day(
    hours: list[int | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    times = [
        None if h is None else datetime(2025, 1 + h // 24 // 28, 1 + h // 24 % 28, h % 24) for h in hours
    ]
    pq.write_table(table(*times), folder / "sales.parquet")
    source = Files(str(folder / "sales.parquet"))
    rows = [row["invoice"] for day in source.days() for row in fetched(source, day, folder).to_pylist()]
    known = any(time is not None for time in times)
    assert sorted(rows) == (sorted(table(*times)["invoice"].to_pylist()) if known else [])


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("sales/{day:%Y/%m/%d}.parquet", ["2025/01/30.parquet", "2025/01/31.parquet", "notes.parquet"]),
        ("sales/{day}.parquet", ["2025-01-30.parquet", "2025-01-31.parquet", "notes.parquet"]),
        (
            "sales/{day:%Y}/{day:%m}/s{day:%Y%m%d}.parquet",
            ["2025/01/s20250130.parquet", "2025/01/s20250131.parquet"],
        ),
        ("sales", ["day=2025-01-30/part-0.parquet", "day=2025-01-31/part-0.parquet"]),
        ("sales/*.parquet", ["shop_20250130.parquet", "shop_20250131.parquet"]),
        ("sales/*/*.parquet", ["2025-01-30/a.parquet", "2025-01-31/a.parquet"]),
    ],
)
@pytest.mark.parametrize("scheme", ["memory://", "file://", ""])
def test_a_day_is_its_files_wherever_they_are(
    scheme: str, url: str, names: list[str], tmp_path: Path
) -> None:
    root = f"{scheme}{tmp_path}/"
    for number, name in enumerate(names):
        with fsspec.open(f"{root}sales/{name}", "wb", auto_mkdir=True) as file:
            pq.write_table(TWO_DAYS.slice(number, 1), file)
    source = Files(root + url)
    assert source.days() == [FIRST, SECOND]
    assert fetched(source, SECOND, tmp_path / "out").equals(TWO_DAYS.slice(1, 1))


@pytest.mark.slow  # the client takes seconds to import
def test_a_source_in_s3_offers_a_day_once_its_success_file_is_there_and_notices_a_change(
    tmp_path: Path,
) -> None:
    with s3_storage.served() as store, s3_storage.emulated(store):
        files = fsspec.filesystem("s3")

        def deliver(number: int, day: date) -> None:
            with files.open(f"bucket/sales/{day}/part.parquet", "wb") as file:
                pq.write_table(TWO_DAYS.slice(number, 1), file)

        source = Files("s3://bucket/sales/{day}/*.parquet", success_file="_SUCCESS")
        for number, day in enumerate((FIRST, SECOND)):
            deliver(number, day)
        files.touch(f"bucket/sales/{FIRST}/_SUCCESS")
        assert source.days() == [FIRST]
        files.touch(f"bucket/sales/{SECOND}/_SUCCESS")
        assert source.days() == [FIRST, SECOND]
        assert fetched(source, SECOND, tmp_path / "out").equals(TWO_DAYS.slice(1, 1))
        before = source.version(SECOND)
        deliver(0, SECOND)
        assert source.version(SECOND) != before
        files.rm_file(f"bucket/sales/{SECOND}/part.parquet")
        with pytest.raises(DataError, match=f"{SECOND}/part.parquet does not exist; check that it is"):
            source.fetch(SECOND, tmp_path / "again")


def test_several_files_of_one_day_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (1, 0):
        (tmp_path / f"day={FIRST}").mkdir(exist_ok=True)
        pq.write_table(TWO_DAYS.slice(number, 1), tmp_path / f"day={FIRST}" / f"{number}.parquet")
    assert fetched(Files(str(tmp_path)), FIRST, tmp_path / "out").equals(TWO_DAYS.slice(0, 2))


HOURS = {
    "{day}/{hour}.parquet": "{day}/{hour:02}.parquet",
    "{day:%Y/%m/%d}/{hour:%H}.parquet": "{day:%Y/%m/%d}/{hour:02}.parquet",
    "of-{day:%Y-%m-%dT%H}.parquet": "of-{day}T{hour:02}.parquet",
    "day={day}/hour={hour}/part.parquet": "day={day}/hour={hour:02}/part.parquet",
    "": "day={day}/hour={hour}/part.parquet",  # a folder; 9 comes before 10
}


def deliver_hour(folder: Path, path: str, day: date, hour: int, *, codes: int = 1) -> None:
    """Write the file of an hour, whose lines are numbered."""
    file = folder / path.format(day=day, hour=hour)
    file.parent.mkdir(parents=True, exist_ok=True)
    moment = datetime(day.year, day.month, day.day, hour)
    pq.write_table(table(*[moment + timedelta(minutes=n) for n in range(codes)]), file)


def test_a_day_that_is_missing_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / f"{FIRST}.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=f"{SECOND}.csv has nothing for {SECOND}"):
        Files(f"{tmp_path}/{{day}}.csv").fetch(SECOND, tmp_path / "out")


@pytest.mark.parametrize("url", HOURS)
def test_a_day_is_its_hours_in_order(tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture) -> None:
    for day in (SECOND, FIRST):
        for hour in reversed(range(24)):
            deliver_hour(tmp_path / "in", HOURS[url], day, hour, codes=2)
    source = Files(f"{tmp_path}/in/{url}")
    assert source.days() == [FIRST, SECOND]
    for day in (FIRST, SECOND):
        times = fetched(source, day, tmp_path)["time"].to_pylist()
        start = datetime(day.year, day.month, day.day)
        assert times == [start + timedelta(hours=n // 2, minutes=n % 2) for n in range(48)]
    assert caplog.text == ""


@pytest.mark.parametrize("url", HOURS)
def test_a_day_that_may_not_be_over_is_not_offered_and_missing_hours_are_named(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    for hour in set(range(24)) - {3, 11}:
        deliver_hour(tmp_path / "in", HOURS[url], FIRST, hour)
    deliver_hour(tmp_path / "in", HOURS[url], SECOND, 0)
    source = Files(f"{tmp_path}/in/{url}")
    assert source.days() == [FIRST]
    assert len(fetched(source, FIRST, tmp_path)) == 22
    assert f"has no hour 03, 11 of {FIRST}; the day is taken as it is" in caplog.text
    deliver_hour(tmp_path / "in", HOURS[url], SECOND, 23)
    assert Files(f"{tmp_path}/in/{url}").days() == [FIRST]
    for hour in set(range(24)) - {3, 11}:  # which the day before has not either, as a shop that is closed
        deliver_hour(tmp_path / "in", HOURS[url], SECOND, hour)
    assert Files(f"{tmp_path}/in/{url}").days() == [FIRST, SECOND]


def test_an_hour_that_clocks_leave_out_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{tmp_path}/in/{{day}}/{{hour}}.parquet"
    nuuk, paris = date(2025, 3, 29), date(2025, 3, 30)  # without 23, and without 2
    for hour in range(23):
        deliver_hour(tmp_path / "in", HOURS["{day}/{hour}.parquet"], nuuk, hour)
    assert Files(url, zone="America/Nuuk").days() == [nuuk]
    assert Files(url, zone="Europe/Paris").days() == []
    for hour in set(range(24)) - {2}:
        deliver_hour(tmp_path / "in", HOURS["{day}/{hour}.parquet"], paris, hour)
    Files(url, zone="Europe/Paris").fetch(paris, tmp_path / "out")
    assert not caplog.messages
    Files(url).fetch(paris, tmp_path / "out")
    assert f"has no hour 02 of {paris}" in caplog.text


IN_PARIS = Table(time="at", columns={"at": Time()}, zone="Europe/Paris")


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ("", ["2025-10-26T00:30:00Z", "2025-10-26T01:30:00+00:00", "2025-10-25T21:59:59-01:00"]),
        (
            "%d.%m.%Y %H:%M:%S %z",
            ["26.10.2025 00:30:00 Z", "26.10.2025 01:30:00 +0000", "25.10.2025 21:59:59 -01:00"],
        ),
        ("", ["2025-10-26 00:30:00 UTC", "2025-10-26 01:30:00.000 GMT", "2025-10-25 22:59:59 Z"]),
        (
            "%d-%b-%y %H.%M.%S.%f UTC",
            ["26-OCT-25 00.30.00.0 UTC", "26-Oct-25 01.30.00.00 UTC", "25-oct-25 22.59.59.000 UTC"],
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_times_with_an_offset_are_the_moments_that_they_are(
    tmp_path: Path, form: str, texts: list[str], suffix: str
) -> None:
    path = tmp_path / f"rows.{suffix}"
    lines = ["at", *texts] if suffix == "csv" else [json.dumps({"at": text}) for text in texts]
    path.write_text("\n".join(lines) + "\n")
    source = Files(str(path), cut_by="at", time=form, zone="Europe/Paris")
    (day,) = source.days()
    source.fetch(day, tmp_path / "out")
    rows = conform(pq.read_table(tmp_path / "out" / PART), IN_PARIS, origin="the rows")
    assert day == date(2025, 10, 26)
    repeated = datetime(2025, 10, 26, 2, 30)  # the hour that comes twice, once by each offset
    assert rows["at"].to_pylist() == [repeated, repeated, datetime(2025, 10, 26, 0, 59, 59)]


@pytest.mark.parametrize(
    ("form", "texts", "reason"),
    [
        (
            "",
            ["2025-01-30 09:00:00", None, "2025-01-30T09:00:00Z"],
            r"row 3 is '2025-01-30T09:00:00Z', with an offset, and row 1 is '2025-01-30 09:00:00', without",
        ),
        ("", ["2025-01-30 09:00:00 CST"], "row 1 is '2025-01-30 09:00:00 CST'"),
        ("", ["2025-02-29 09:00:00"], "row 1 is '2025-02-29 09:00:00'"),
        (
            "%d/%m/%Y %H:%M",
            ["28/2/2025 09:00", "29/2/2025 09:00"],
            "at of row 2 is '29/2/2025 09:00', not a time as",
        ),
    ],
)
def test_a_time_that_could_be_two_moments_or_none_is_refused(
    tmp_path: Path, form: str, texts: list[str | None], reason: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["at,n", *(f"{text or ''},1" for text in texts)]) + "\n")
    with pytest.raises(DataError, match=rf"{reason}.*; "):
        Files(str(path), cut_by="at", time=form).days()


def test_letters_of_a_zone_are_refused_as_they_stand_for_several() -> None:
    with pytest.raises(ParamsError, match=r"CST, stand for several zones; .* write %z"):
        Files("rows.csv", time="%d/%m/%Y %H:%M %Z")


def test_an_hour_that_comes_later_or_is_restated_changes_its_day_alone(tmp_path: Path) -> None:
    path = HOURS["{day}/{hour}.parquet"]
    url = f"{tmp_path}/in/{{day}}/{{hour}}.parquet"

    def digests() -> list[str]:
        source = Files(url)
        for day in source.days():
            source.fetch(day, tmp_path / str(day))
        return [digest(tmp_path / str(day) / PART) for day in source.days()]

    for day in (FIRST, SECOND):
        for hour in (0, 5, 23):
            deliver_hour(tmp_path / "in", path, day, hour)
    first, second = digests()
    assert digests() == [first, second]
    deliver_hour(tmp_path / "in", path, FIRST, 5, codes=2)
    restated, same = digests()
    assert restated != first and same == second
    deliver_hour(tmp_path / "in", path, FIRST, 6)
    assert digests()[0] != restated


def test_an_hour_without_a_day_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"has no complete date; write \{day\}"):
        Files(f"{tmp_path}/{{hour}}.parquet").days()


def test_files_without_a_day_in_their_names_are_cut_by_time(tmp_path: Path) -> None:
    for hour, name in enumerate(("a", "b"), 7):
        other = table(datetime(2025, 1, 30, hour), datetime(2025, 1, 31, hour))
        pq.write_table(other, tmp_path / f"{name}.parquet")
    assert fetched(Files(str(tmp_path)), SECOND, tmp_path / "out").num_rows == 2


@pytest.mark.parametrize("url", ["exported-2025-02-01/*.parquet", "exported-2025-02-01/[ab].parquet"])
def test_a_day_in_the_fixed_part_of_a_glob_is_not_that_of_its_rows(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "exported-2025-02-01"
    folder.mkdir()
    for number, name in enumerate(("a", "b")):
        pq.write_table(TWO_DAYS.slice(number, 2 - number), folder / f"{name}.parquet")
    assert Files(f"{tmp_path}/{url}").days() == [FIRST, SECOND]


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_a_file_of_json_without_a_line_is_a_day_without_rows(content: str, tmp_path: Path) -> None:
    for day, text in ((FIRST, '{"item": "a"}\n'), (SECOND, content)):
        (tmp_path / f"{day}.jsonl").write_text(text)
    source = Files(f"{tmp_path}/{{day}}.jsonl")
    assert source.days() == [FIRST, SECOND]
    for day, num_rows in ((FIRST, 1), (SECOND, 0)):
        source.fetch(day, tmp_path / "out")
        assert pq.read_table(tmp_path / "out" / PART).num_rows == num_rows


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig", "cp1251", "iso2022_jp"])
def test_letters_that_have_the_byte_of_a_quote_are_no_quotes(encoding: str, tmp_path: Path) -> None:
    text = "あ" if encoding == "iso2022_jp" else "Тверь"  # U+0422, and 0x22 within an escape of JIS
    lines = ["hour,meter,kwh", f'2025-01-30T09:00:00,"{text}, 1",2']
    (tmp_path / "a.csv").write_bytes("\n".join(lines).encode(encoding))
    rows = Files(str(tmp_path / "a.csv"), cut_by="hour", encoding=encoding).sample(9)
    assert rows.to_pylist() == [{"hour": "2025-01-30T09:00:00", "meter": f"{text}, 1", "kwh": "2"}]
    (tmp_path / "a.csv").write_bytes("\n".join([*lines, '2025-01-30T09:00:00,"open,2']).encode(encoding))
    with pytest.raises(DataError, match="line 3: a quote is opened and never closed"):
        Files(str(tmp_path / "a.csv"), cut_by="hour", encoding=encoding).sample(9)


def test_a_relative_path_is_found_from_a_folder_further_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(TWO_DAYS, tmp_path / "sales.parquet")
    night = tmp_path / "checkout" / "nights" / "one"
    night.mkdir(parents=True)
    monkeypatch.chdir(night)
    assert Files("../sales.parquet").days() == [FIRST, SECOND]
    monkeypatch.setenv("SALES", str(tmp_path))
    assert Files("$SALES/sales.parquet").days() == [FIRST, SECOND]


def test_codes_stay_text_and_numbers_become_codes(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", TWO_DAYS)
    assert fetched(Files(str(tmp_path / "a.csv")), FIRST, tmp_path)["item"].to_pylist() == ["00A", "02A"]
    for customers in ([17850.0, float("nan"), 13047.0], ["17850.0", None, "13047.0"], [17850, None, 13047]):
        changed = TWO_DAYS.set_column(6, "customer", pa.array(customers))
        assert conform(changed, LINES, origin="x")["customer"].to_pylist() == ["17850", None, "13047"]
    coded = TWO_DAYS.set_column(7, "country", TWO_DAYS["country"].dictionary_encode())
    assert conform(coded, LINES, origin="x").equals(TWO_DAYS)


def test_an_id_is_the_same_text_whatever_else_is_in_its_column() -> None:
    table = Table(
        columns={
            "at": Time(),
            "who": Id(nullable=True),
            "shelf": Category(nullable=True),
            "release": Category(values=("1.0", "1.1")),
            "note": Text(),
        },
        time="at",
    )
    others = {"shelf": ["-3.0", "3.5"], "release": ["1.0", "1.1"], "note": ["5.0", "v 2.0"]}
    for odd in ("17850", "guest", "17850.00", "v1.0", "1.5", None):
        rows = {"at": [datetime(2025, 7, 1)] * 2, "who": ["17850.0", odd], **others}
        made = conform(pa.table(rows), table, origin="x")
        assert made["who"].to_pylist() == ["17850", odd]
        assert made["shelf"].to_pylist() == ["-3", "3.5"]
        assert (made["release"].to_pylist(), made["note"].to_pylist()) == (others["release"], others["note"])
    of_floats = {"who": [123456789012.0, float("nan")], "shelf": pa.array([7.0, 0.5], pa.float32())}
    made = conform(pa.table(rows | of_floats), table, origin="x")
    assert made["who"].to_pylist() == ["123456789012", None]
    assert made["shelf"].to_pylist() == ["7", "0.5"]


def test_times_are_read_in_the_format_given_and_zones_become_that_of_the_table(tmp_path: Path) -> None:
    write_csv(tmp_path / "british.csv", TWO_DAYS, time="%d/%m/%Y %H:%M")
    source = Files(str(tmp_path / "british.csv"), time="%d/%m/%Y %H:%M")
    assert fetched(source, SECOND, tmp_path)["time"].to_pylist() == [datetime(2025, 1, 31, 8)]
    zoned = TWO_DAYS["time"].cast(pa.timestamp("us", tz="America/New_York"))
    assert conform(TWO_DAYS.set_column(4, "time", zoned), LINES, origin="x").equals(TWO_DAYS)
    readings = {"meter": ["a", "a"], "kwh": [1, 2]}
    summer = pa.table(readings | {"hour": ["2025-07-01T23:30:00Z", "2025-07-02T00:30:00+02:00"]})
    london = Table(columns=READINGS.columns, time="hour", zone="Europe/London")
    hours = conform(summer, london, origin="x")["hour"].to_pylist()
    assert hours == [datetime(2025, 7, 2, 0, 30), datetime(2025, 7, 1, 23, 30)]


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_times_since_1970_are_moments_of_the_zone(unit: str, per_s: int, suffix: str, tmp_path: Path) -> None:
    moments = [datetime(2025, 6, 30, 23, 30, tzinfo=UTC), datetime(2025, 7, 1, 0, 30, 0, 250_000, UTC)]
    milliseconds = [round(moment.timestamp() * 1000) for moment in moments]
    numbers = [each * per_s // 1000 if per_s >= 1000 else each / 1000 for each in milliseconds]
    path = tmp_path / f"a.{suffix}"
    if suffix == "csv":
        path.write_text("meter,hour,kwh\n" + "".join(f"a,{number},1\n" for number in numbers))
    else:
        pq.write_table(pa.table({"meter": ["a", "a"], "hour": numbers, "kwh": [1, 1]}), path)
    london = Table(columns=READINGS.columns, time="hour", zone="Europe/London")
    source = Files(str(path), cut_by="hour", time=unit, zone="Europe/London")
    assert source.days() == [date(2025, 7, 1)]
    hours = fetched(source, date(2025, 7, 1), tmp_path, of=london)["hour"].to_pylist()
    assert hours == [datetime(2025, 7, 1, 0, 30), datetime(2025, 7, 1, 1, 30, 0, 250_000)]


def test_a_number_that_is_too_large_for_a_unit_since_1970_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("meter,hour,kwh\na,1751326200,1\na,1751326200000,1\n")
    with pytest.raises(DataError, match=r"hour of row 2 is 1751326200000, not a time in s since 1970"):
        Files(str(path), cut_by="hour", time="s").days()


def test_classes_that_are_text_are_numbered_and_a_value_that_is_none_of_them_is_none() -> None:
    topics = Table(
        columns={"at": Time(), "topic": Int(min=0, max=1, nullable=True)},
        time="at",
        label=Label("topic", classes=("sales", "tech")),
    )
    at = [datetime(2025, 7, 1)] * 4
    for values in (["tech", "sales", "sails", None], [1, 0, -1, None]):
        rows = conform(pa.table({"at": at, "topic": values}), topics, origin="x")
        assert rows["topic"].to_pylist() == [1, 0, -1, None]  # -1 is below the least: to quarantine


def test_views_of_texts_are_read_as_texts(tmp_path: Path) -> None:
    at = [datetime(2025, 7, 1, 9), datetime(2025, 7, 2, 9)]
    rows = pa.table({"at": at, "text": pa.array(["a", "b"], pa.string_view())})
    pq.write_table(rows, tmp_path / "a.parquet")
    Files(str(tmp_path / "a.parquet"), cut_by="at").fetch(date(2025, 7, 2), tmp_path)
    assert pq.read_table(tmp_path / PART, partitioning=None)["text"].to_pylist() == ["b"]


def test_numbers_of_classes_become_those_of_the_classes_by_now() -> None:
    def topics(*classes: str) -> Table:
        return Table(
            columns={"at": Time(), "topic": Int(min=0, max=len(classes) - 1, nullable=True)},
            time="at",
            label=Label("topic", classes=classes),
        )

    at, before = [datetime(2025, 7, 1)] * 5, topics("billing", "sales", "tech")
    rows = conform(
        pa.table({"at": at, "topic": ["tech", "sales", "sails", None, "billing"]}), before, origin="x"
    )
    now = conform(rows, topics("billing", "legal", "tech"), origin="x")
    assert now["topic"].to_pylist() == [2, -1, -1, None, 0]
    assert conform(now, before, origin="x")["topic"].to_pylist() == [2, -1, -1, None, 0]


@pytest.mark.parametrize(
    ("auxiliary", "sentence"),
    [
        ("amount", "the auxiliary label amount is no single number; declare it Float"),
        ("vector", "the auxiliary label vector is no single number"),
        ("fraud", "fraud is an auxiliary label, and that is the table's for another use; name in label"),
        ("at", "at is an auxiliary label, and that is the table's for another use"),
        ("other", "the table's auxiliary label 1 is 'other', which is not among its columns"),
    ],
)
def test_an_auxiliary_label_is_another_column_of_numbers(auxiliary: str, sentence: str) -> None:
    columns = {"at": Time(), "amount": Category(), "vector": Float(size=2), "fraud": Int(), "late": Bool()}
    table = Table(time="at", columns=columns, label=Label("fraud"), auxiliary=(Label("late"),))
    assert list(table.labels) == ["fraud", "late"]
    assert list(table.features) == ["at", "amount", "vector"]
    with pytest.raises(ParamsError, match=sentence):
        replace(table, auxiliary=(Label(auxiliary),))
    with pytest.raises(ParamsError, match="late is an auxiliary label, and the table has no label"):
        replace(table, label=None)
    with pytest.raises(ParamsError, match="the auxiliary label late has classes, which only the label may"):
        replace(table, auxiliary=(Label("late", classes=("no", "yes")),))


def test_a_label_of_classes_is_their_number_or_a_value_that_is_none_of_them_would_be_trained_on() -> None:
    for column in (Int(), Int(min=0, max=2), Category()):
        with pytest.raises(ParamsError, match=r"'topic' has 2 classes; declare it Int\(min=0, max=1\)"):
            Table(
                columns={"at": Time(), "topic": column}, time="at", label=Label("topic", classes=("a", "b"))
            )


def payments(**columns: object) -> pa.Table:
    """Three card payments, as a CSV file or a data frame would have them, but for these columns."""
    plain = {
        "id": [1, 2, 3],
        "account": ["a", "b", "a"],
        "amount": ["1.5", None, "1e3"],
        "mcc": [5411, 5411, 4829],
        "at": ["2025-07-01 00:10:00+01:00", "2025-07-01 12:00:00+01:00", "2025-07-01T22:59:59Z"],
        "online": ["true", "0", None],
        "embedding": [[1, 2], [3, 4], [5, 6]],
        "receipt": ["x", None, "z"],
        "fraud": [1.0, float("nan"), 0.0],
    } | columns
    return pa.table({name: value for name, value in plain.items() if value is not None})


def test_each_type_of_a_table_is_cast_to() -> None:
    rows = conform(payments(), PAYMENTS, origin="x")
    assert rows.schema == PAYMENTS.schema()
    assert rows.drop_columns("at").to_pydict() == {
        "id": ["1", "2", "3"],
        "account": ["a", "b", "a"],
        "amount": [1.5, None, 1000],
        "mcc": ["5411", "5411", "4829"],
        "online": [True, False, None],
        "embedding": [[1, 2], [3, 4], [5, 6]],
        "receipt": [b"x", None, b"z"],
        "fraud": [1, None, 0],
    }
    assert rows["at"].to_pylist()[0] == datetime(2025, 7, 1, 0, 10)
    assert conform(rows, PAYMENTS, origin="x").equals(rows)


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [(["1.0", "", "-3.00"], [1, None, -3]), (["7", "0.0", "2.000"], [7, 0, 2])],
)
def test_whole_numbers_of_a_column_with_gaps_lose_their_point(
    texts: list[str], numbers: list[int | None], tmp_path: Path
) -> None:
    """As pandas writes them to CSV."""
    (tmp_path / "2025-01-31.csv").write_text(
        "said,text,length\n" + "".join(f"2025-01-31,a,{each}\n" for each in texts)
    )
    lines = Table(time="said", columns={"said": Time(), "text": Text(), "length": Int(nullable=True)})
    rows = fetched(Files(f"{tmp_path}/{{day}}.csv"), SECOND, tmp_path, lines)
    assert rows["length"].to_pylist() == numbers


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"amount": ["1", "2,5", "x"]}, "amount is string, not double: row 2 is '2,5'"),
        ({"amount": [datetime(2025, 7, 1)] * 3}, "amount is timestamp.*not double: a time is not a number"),
        ({"at": [1, 2, 3]}, r"at is int64, not timestamp\[us\]: a number is not a time"),
        ({"at": ["2025-07-01", "soon", None]}, "at is string, .*: row 2 is 'soon'"),
        ({"online": [0, 2, 3]}, "online is int64, not bool: a number other than 0 and 1"),
        ({"online": ["yes", None, None]}, "online is string, not bool: row 1 is 'yes'"),
        ({"fraud": ["1.0", "0.5", "x"]}, "fraud is string, not int64: row 2 is '0.5'"),
        ({"fraud": [0.5, 1.5, 0]}, "fraud is double, not int64: Float value 0.5"),
        ({"embedding": [[1, 2], [3], [4]]}, "embedding is list.*, not fixed_size_list"),
        ({"embedding": [[1, 2], None, None]}, "embedding is list.*: row 2 is null, and Parquet keeps no"),
        ({"account": [[1], [2], [3]]}, "account is list.*, not string"),
        (
            {"mcc": None, "online": None, "fraud": ["x", "y", "z"]},
            "no mcc; no online among .*; fraud is string",
        ),
        ({"at": None}, "no at among its columns id, account"),
    ],
)
def test_a_column_that_is_missing_or_of_another_type_is_named(
    columns: dict[str, object], reason: str
) -> None:
    with pytest.raises(DataError, match=rf"^x has another schema: {reason}.*; have it delivered in the old"):
        conform(payments(**columns), PAYMENTS, origin="x")


def test_columns_that_the_table_does_not_declare_are_left_out() -> None:
    rows = conform(payments(device=["d"] * 3, browser=["b"] * 3), PAYMENTS, origin="x")
    assert rows.equals(conform(payments(), PAYMENTS, origin="x"))


def test_lines_of_text_come_from_json_and_keep_their_order(tmp_path: Path) -> None:
    said = [datetime(2025, 1, 30, 9) + timedelta(hours=12 * n) for n in range(3)]
    lines = [{"said": str(time), "text": f"line {n}", "length": n} for n, time in enumerate(said)]
    (tmp_path / "chat.ndjson").write_text("\n".join(map(json.dumps, lines)))
    rows = fetched(Files(str(tmp_path / "chat.ndjson"), cut_by="said"), FIRST, tmp_path, LINES_OF_TEXT)
    assert rows.to_pylist() == [lines[n] | {"said": said[n]} for n in (0, 1)]
    (tmp_path / "chat.ndjson").write_text('{"said": "2025-01-30"}\n{"said": \n')
    with pytest.raises(DataError, match=r"chat\.ndjson: JSON parse error.*; fix it"):
        Files(str(tmp_path / "chat.ndjson"), cut_by="said").days()


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    for url in ("none.parquet", "none.csv", "none/{day}.csv", "none/*.csv", "$NOWHERE/none.csv"):
        with pytest.raises(DataError, match=r"none.*; check that"):
            Files(f"{tmp_path}/{url}").days()
    pq.write_table(TWO_DAYS, tmp_path / "sales.parquet")
    with pytest.raises(DataError, match="nothing for 2025-02-01; check that the day is delivered"):
        Files(str(tmp_path / "sales.parquet")).fetch(date(2025, 2, 1), tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("100003,3A,MUG,1\n", "Expected 8 columns, got 4"),
        ('100003,3A,"MUG,1,2025-01-30 09:00:00,1.25,,EIRE\n', "quote is opened and never closed"),
        ("100003,3A,M\xff,1,2025-01-30 09:00:00,1.25,,EIRE\n", "invalid UTF8"),
    ],
)
def test_a_broken_line_is_named_by_file_and_number(line: str, reason: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "sales.csv", TWO_DAYS)
    good = path.read_bytes()
    path.write_bytes(good + line.encode("latin-1") + good.splitlines(keepends=True)[1])
    with pytest.raises(DataError, match=rf"sales\.csv, line 5.*{reason}.*; fix it"):
        Files(str(path)).days()


def test_a_time_that_is_none_is_named_by_row_and_value(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "sales.csv", TWO_DAYS, time="%d/%m/%Y %H:%M")
    path.write_text(path.read_text() + "100003,3A,MUG,1,yesterday,1.25,,EIRE\n" * 3)
    with pytest.raises(
        DataError, match=r"sales\.csv: time of row 4 is 'yesterday', not a time as %d/%m/%Y.*;"
    ):
        Files(str(path), time="%d/%m/%Y %H:%M").days()
    with pytest.raises(
        DataError, match=r"sales\.csv cannot be cut .*row 1 is '30/01/2025 09:00'; .*source\.time"
    ):
        Files(str(path)).days()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 but not really PAR1"])
@pytest.mark.parametrize("name", ["sales.parquet", "sales.csv", "sales.csv.gz"])
def test_a_damaged_file_is_one_sentence(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}.*; "):
        Files(str(tmp_path / name)).days()


@pytest.mark.parametrize("write", [pq.write_table, lambda rows, path: write_csv(path, rows)])
def test_a_schema_change_names_all_columns_that_broke(write: object, tmp_path: Path) -> None:
    path = tmp_path / ("sales.parquet" if write is pq.write_table else "sales.csv")
    renamed = TWO_DAYS.rename_columns({"price": "unit_price", "customer": "client"})
    write(renamed, path) if write is pq.write_table else write_csv(path, renamed)
    with pytest.raises(DataError, match=r"no price; no customer among its columns .*unit_price, client.*;"):
        fetched(Files(str(path)), FIRST, tmp_path)


def test_columns_of_another_type_are_named_all(tmp_path: Path) -> None:
    changed = TWO_DAYS.set_column(3, "quantity", pa.array([1.5, 2.5, 3])).set_column(
        4, "time", pa.array([1, 2, 3])
    )
    with pytest.raises(DataError, match=r"quantity is double, not int64.*time is int64, not timestamp"):
        conform(changed, LINES, origin="x")


def test_wrong_params_name_the_key() -> None:
    with pytest.raises(ParamsError, match=r"source\.time is 'InvoiceDate'.*cut_by: InvoiceDate"):
        Files("sales.csv", time="InvoiceDate")
    with pytest.raises(ParamsError, match=r"source\.url nowhere://"):
        Files("nowhere://sales.csv")
    with pytest.raises(ParamsError, match="has no complete date"):
        Files("memory://s/{day:%d}.csv").days()


@pytest.mark.slow
def test_what_an_address_carries_is_in_no_log_and_no_record(
    repository: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    canary = "-".join(("canary", "4711"))
    text = (repository / "params.yaml").read_text().partition("\n")[2]
    url = f"http://shop:{canary}@127.0.0.1:9/sales-{{day}}.parquet?sig={canary}"
    source = f"source: {{use: 'daybreak:Files', url: '{url}'}}\n"
    (repository / "params.yaml").write_text(source + text)
    assert cli.main(["open"]) == 1
    cli.main(["check"])
    output = caplog.text + "".join(capfd.readouterr())
    assert "http://127.0.0.1:9/sales-{day}.parquet cannot be listed" in output
    (error,) = (repository / "nights").glob("*/data/run/open.error")
    output += error.read_text()
    assert canary not in output


def test_a_name_with_and_one_without_a_day_do_not_mix(tmp_path: Path) -> None:
    for name in ("2025-01-30", "notes"):
        pq.write_table(TWO_DAYS, tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"1 of 2 files have no day .*notes\.parquet"):
        Files(str(tmp_path)).days()


@pytest.mark.slow
@pytest.mark.skipif(not ONLINE_RETAIL.exists(), reason="Online Retail is not here; set DAYBREAK_DATA")
def test_online_retail_comes_in_whole_day_by_day(tmp_path: Path) -> None:
    source = Files(str(ONLINE_RETAIL), columns=THEIRS)
    days = source.days()
    assert (len(days), days[0], days[-1]) == (271, date(2010, 12, 1), date(2011, 10, 31))
    assert not any(day.weekday() == 5 or date(2010, 12, 24) <= day <= date(2011, 1, 3) for day in days)
    for day in days:
        fetched(source, day, tmp_path)
    parts = [tmp_path / str(day) / PART for day in days]
    assert sum(pq.read_metadata(part).num_rows for part in parts) == 431_673
    rows = pa.concat_tables(pq.read_table(part) for part in parts)
    assert 0.2 < rows["customer"].null_count / rows.num_rows < 0.3
    assert rows["customer"][0].as_py() == "17850"


def deliver_csv(path: Path, *days_of_rows: date, code: str = "7") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{day} {hour:02}:00:00,{code}" for day in days_of_rows for hour in (9, 10)]
    path.write_text("\n".join(["time,code", *lines]) + "\n")


def test_names_that_begin_with_a_dot_or_an_underscore_are_no_data(tmp_path: Path) -> None:
    for name in (
        "a_2025-01-30.csv",
        "b_2025-01-31.csv",
        ".a_2025-01-30.csv",
        ".ipynb_checkpoints/a_2025-01-30.csv",
        "_temporary/0/a_2025-01-30.csv",
        "x/_a_2025-01-30.csv",
    ):
        deliver_csv(tmp_path / name, FIRST)
    for url in (tmp_path, tmp_path / "**/*.csv"):
        source = Files(str(url))
        assert source.days() == [FIRST, SECOND]
        source.fetch(FIRST, tmp_path / "out")
        assert pq.read_metadata(tmp_path / "out" / PART).num_rows == 2


def test_every_file_below_a_folder_is_read_or_left_out_for_a_reason(tmp_path: Path) -> None:
    for name in ("2025-01-30.csv", "2025-01-31.csv", "2025-02-01.xlsx", "notes.txt", "_SUCCESS"):
        (tmp_path / name).write_text("time\n")
    left_out = Files(str(tmp_path)).left_out()
    assert {reason.split(",")[0]: paths for reason, paths in left_out.items()} == {
        "begins with . or _": ["_SUCCESS"],
        "is not a file of parquet": ["2025-02-01.xlsx", "notes.txt"],
    }
    words = r"3 files are left out: 2025-02-01\.xlsx and 1 more, as each is not a file of .*; _SUCCESS, as it"
    assert re.match(words, left_out_in_words(left_out))


def test_a_file_that_matches_a_pattern_but_for_its_day_is_left_out_for_a_reason(tmp_path: Path) -> None:
    for name in ("sales_2025-01-30.csv", "sales_latest.csv"):
        deliver_csv(tmp_path / name, FIRST)
    source = Files(f"{tmp_path}/sales_{{day}}.csv")
    assert source.days() == [FIRST]
    assert [*source.left_out().values()] == [["sales_latest.csv"]]


def test_keys_in_the_names_of_folders_are_columns_unless_the_file_has_them(tmp_path: Path) -> None:
    for shop in ("caf%C3%A9", "__HIVE_DEFAULT_PARTITION__"):
        deliver_csv(tmp_path / f"day={FIRST}/hour=07/shop={shop}/code=1/a.csv", FIRST)
    for url in (str(tmp_path), f"{tmp_path}/day={{day}}/hour={{hour}}/*/*/*.csv"):
        Files(url, days_by="name").fetch(FIRST, tmp_path / "out")
        rows = pq.read_table(tmp_path / "out" / PART).to_pylist()
        assert [(row["day"], row["hour"], row["shop"], row["code"]) for row in rows] == [
            *[(str(FIRST), "07", None, "7")] * 2,
            *[(str(FIRST), "07", "café", "7")] * 2,
        ]


@pytest.mark.parametrize(
    "path", ["2025/01/30/a.csv", "year=2025/month=1/day=30/a.csv", "a_2025_01_30.csv", "a.2025.01.30.csv"]
)
def test_a_day_is_known_in_the_ways_that_people_write_it(path: str) -> None:
    assert day_files.day_in(path) == FIRST


def test_a_copy_beside_its_file_is_refused_rather_than_counted_twice(tmp_path: Path) -> None:
    for name in ("a_2025-01-30.csv", "a_2025-01-30 (1).csv", "a_2025-01-31.csv"):
        deliver_csv(tmp_path / name, FIRST)
    with pytest.raises(DataError, match=r"\(1\)\.csv and .*a_2025-01-30\.csv hold the same 2 rows, which"):
        Files(str(tmp_path)).fetch(FIRST, tmp_path / "out")


def test_days_that_several_exports_hold_are_refused_rather_than_counted_twice(tmp_path: Path) -> None:
    for n in range(2):  # each has its day and the one before
        export = FIRST + timedelta(days=n)
        deliver_csv(tmp_path / f"{export}.csv", export - timedelta(days=1), export)
    with pytest.raises(DataError, match=r"01-30\.csv and .*01-31\.csv hold the same 2 rows of 2025-01-30"):
        Files(str(tmp_path), days_by="time").days()


def test_files_by_week_are_cut_by_the_times_of_their_rows(tmp_path: Path) -> None:
    for n in range(2):
        deliver_csv(
            tmp_path / f"{FIRST + timedelta(7 * n)}.csv", *[FIRST + timedelta(7 * n + k) for k in (0, 3)]
        )
    source = Files(str(tmp_path), days_by="time")
    assert source.days() == [FIRST + timedelta(days=n) for n in (0, 3, 7, 10)]
    assert source.cuts and not Files(str(tmp_path)).cuts


def test_of_several_files_the_one_with_other_columns_than_most_is_named(tmp_path: Path) -> None:
    for hour in range(3):
        deliver_csv(tmp_path / f"day={FIRST}/{hour}.csv", FIRST, code=str(hour))
    deliver_csv(tmp_path / f"day={SECOND}/0.csv", SECOND)
    odd = tmp_path / f"day={FIRST}/0.csv"
    odd.write_text(odd.read_text().replace("time,code", "TIME,code"))
    with pytest.raises(
        DataError, match=r"/0\.csv has other columns than .*/1\.csv: it has TIME and lacks time"
    ):
        Files(str(tmp_path)).fetch(FIRST, tmp_path / "out")


def test_a_time_that_is_none_keeps_its_row_on_the_day_of_the_row_before(tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("time,code\n30/01/2025 09:00,1\nsoon,2\n30/01/2025 10:00,3\n31/01/2025 09:00,4\n")
    rows = fetched(Files(str(path), time="%d/%m/%Y %H:%M"), FIRST, tmp_path, CODES)
    assert rows.to_pylist() == [
        {"time": datetime(2025, 1, 30, 9), "code": 1, AS_DELIVERED: None},
        {"time": None, "code": 2, AS_DELIVERED: '{"time": "soon"}'},
        {"time": datetime(2025, 1, 30, 10), "code": 3, AS_DELIVERED: None},
    ]


def test_what_follows_a_question_mark_on_the_web_is_asked_for_and_never_told(tmp_path: Path) -> None:
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_request(self, *_: Any) -> None:
            asked.append(self.path)

    with gzip.open(tmp_path / "rows.csv.gz", "wt") as file:
        file.write("time,x\n2025-01-01T09:00:00,1\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            source = Files(f"{address}/rows.csv.gz?sig=topsecret")
            assert source.days() == [date(2025, 1, 1)]
            source.fetch(date(2025, 1, 1), tmp_path / "day")
            assert source.version(date(2025, 1, 1))
            assert source.left_out() == {}
            with pytest.raises(DataError) as refused:
                Files(f"{address}/gone.csv?sig=topsecret").days()
        finally:
            server.shutdown()
    assert pq.read_table(tmp_path / "day" / PART, partitioning=None)["x"].to_pylist() == ["1"]
    assert asked and all(path.endswith("?sig=topsecret") for path in asked)
    assert "topsecret" not in source.url + str(source.listing.paths()) + str(refused.value)


def test_a_question_mark_beside_the_day_is_one_sign_and_what_is_no_such_sign_is_refused(
    tmp_path: Path,
) -> None:
    for name in ("2025-01-01-a.csv", "2025-01-02-ab.csv"):
        (tmp_path / name).write_text("time,x\n2025-01-01T00:00:00,1\n")
    assert Files(f"{tmp_path}/{{day}}-?.csv").days() == [date(2025, 1, 1)]
    for pattern in ("{day}-[ab].csv", "**/{day}-*.csv"):
        with pytest.raises(ParamsError, match="beside the place of a day; write"):
            Files(f"{tmp_path}/{pattern}").days()


class Counted:
    """A table that counts how often it is compared."""

    def __init__(self, rows: pa.Table, calls: list[int]) -> None:
        self.rows, self.calls = rows, calls

    def __len__(self) -> int:
        return len(self.rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rows, name)

    def equals(self, other: "Counted") -> bool:
        self.calls.append(1)
        return bool(self.rows.equals(other.rows))


def test_files_are_compared_only_where_they_may_be_the_same() -> None:
    calls: list[int] = []
    parts: list[Any] = [Counted(pa.table({"a": [n, n + 1]}), calls) for n in range(200)]
    source_module._expect_once([str(n) for n in range(200)], parts)
    assert not calls
    with pytest.raises(DataError, match="0 and 200 hold the same 2 rows"):
        source_module._expect_once([str(n) for n in range(201)], [*parts, parts[0]])
    assert len(calls) == 1

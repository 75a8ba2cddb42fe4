"""A table of a real PostgreSQL as a source, and what is sent to BigQuery."""

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from daybreak import cli
from daybreak.contract.errors import DataError, ParamsError, SourceUnreachable
from daybreak.data.database import Database, day_query, days_query, kind_of
from daybreak.data.partitions import PART
from daybreak.extensions.trial.rehearsal import rehearse
from tests.postgres import postgresql

FIRST, NUM_DAYS, PER_DAY = date(2025, 3, 20), 24, 60  # summer time begins on the 30th
BERLIN = ZoneInfo("Europe/Berlin")
TABLE = sa.Table(
    "payments",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger),
    sa.Column("at", sa.DateTime(timezone=True)),
    sa.Column("amount", sa.Numeric(12, 4)),
    sa.Column("rate", sa.Numeric),
    sa.Column("weight", sa.Double),
    sa.Column("retries", sa.Integer),
    sa.Column("online", sa.Boolean),
    sa.Column("shop", sa.Text),
    sa.Column("valid_until", sa.Date),
    sa.Column("more", JSONB),
    sa.Column("plain", sa.JSON),
    sa.Column("picture", sa.LargeBinary),
    sa.Column("key", sa.Uuid),
    sa.Column("is_fraud", sa.SmallInteger),
)


def put_in() -> list[dict[str, Any]]:
    """Returns rows of all types, every fifth with nulls; on the last day nullable columns are all null."""
    start = datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC)
    rows = []
    for number in range(NUM_DAYS * PER_DAY):
        at = start + timedelta(seconds=number * 86_400 / PER_DAY, microseconds=7)
        null = number % 5 == 0 or number >= (NUM_DAYS - 1) * PER_DAY
        rows.append(
            {
                "id": 2**40 + number,
                "at": at,
                "amount": Decimal(number * 10_001) / 10_000,
                "rate": None if null else Decimal(10) ** -(number % 7),
                "weight": None if null else number / 3,
                "retries": None if null else number % 4,
                "online": None if null else number % 3 == 0,
                "shop": None if null else f"Bäckerei {number % 6}",
                "valid_until": None if null else at.date(),
                "more": None if null else {"b": [1, None], "a": {}},
                "plain": {"n": number},
                "picture": None if null else bytes([0, number % 256]),
                "key": None,
                "is_fraud": int(number % 7 == 0),
            }
        )
    return rows


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a database whose sessions are in Kolkata's time."""
    with postgresql("shop") as folder:
        address = f"postgresql+psycopg2://airflow@/shop?host={folder}"
        engine = sa.create_engine(address)
        with engine.begin() as connection:
            TABLE.create(connection)
            connection.execute(sa.insert(TABLE), put_in())
            connection.execute(sa.text("ALTER DATABASE shop SET timezone TO 'Asia/Kolkata'"))
        engine.dispose()
        yield address


def fetched(source: Database, day: date, folder: Path) -> pa.Table:
    source.fetch(day, folder)
    return pq.read_table(folder / PART, partitioning=None)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_days_are_what_was_put_in(url: str, tmp_path: Path, zone: str) -> None:
    source = Database(url, table="public.payments", cut_by="at", zone=zone)
    expected: dict[date, list[dict[str, Any]]] = {}
    for row in put_in():
        as_found = {
            name: json.dumps(row[name], sort_keys=True) if row[name] else None for name in ("more", "plain")
        }
        expected.setdefault(row["at"].astimezone(ZoneInfo(zone)).date(), []).append({**row, **as_found})
    assert source.days() == sorted(expected)
    for day, rows in expected.items():
        assert fetched(source, day, tmp_path).to_pylist() == rows, day


@pytest.mark.slow
def test_types_are_those_of_the_columns_also_where_all_values_are_null(url: str, tmp_path: Path) -> None:
    source = Database(url, table="payments", cut_by="at")
    first, last = (fetched(source, day, tmp_path).schema for day in (FIRST, source.days()[-1]))
    differing = [field.name for field in first if field.type != last.field(field.name).type]
    assert differing == ["rate"]  # numeric without a precision: the values tell
    assert first.field("at").type == pa.timestamp("us", "UTC")
    assert first.field("amount").type == pa.decimal128(12, 4)
    assert (first.field("picture").type, first.field("key").type) == (pa.binary(), pa.string())


@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes_in_batches(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Database(url, table="payments", cut_by="at")
    fetched(source, FIRST, tmp_path / "one")
    monkeypatch.setattr("daybreak.data.database.NUM_ROWS", 7)
    fetched(source, FIRST, tmp_path / "two")
    assert (tmp_path / "one" / PART).read_bytes() == (tmp_path / "two" / PART).read_bytes()


@pytest.mark.slow
def test_a_column_of_days_cuts_by_days(url: str, tmp_path: Path) -> None:
    source = Database(url, table="payments", cut_by="valid_until")
    day = FIRST + timedelta(days=3)
    assert set(fetched(source, day, tmp_path)["valid_until"].to_pylist()) == {day}
    assert source.days() == [FIRST + timedelta(days=n) for n in range(NUM_DAYS - 1)]


@pytest.mark.slow
def test_what_is_not_there_is_a_sentence(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the database has no table nothing; fix source\.table"):
        Database(url, table="nothing").days()
    with pytest.raises(DataError, match="payments has no column time to cut days by, among id, at"):
        Database(url, table="payments").days()
    with pytest.raises(DataError, match="payments has nothing for 2020-01-01"):
        Database(url, table="payments", cut_by="at").fetch(date(2020, 1, 1), tmp_path)


@pytest.mark.slow
def test_init_and_try_begin_with_a_table_of_postgresql(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("DAYBREAK_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOP_URL", url)
    folder = tmp_path / "cards"
    words = ["--from", "$SHOP_URL#public.payments", "--label", "is_fraud", "--time", "at"]
    assert cli.main(["init", str(folder), *words]) == 0, capfd.readouterr()
    module = (folder / "cards.py").read_text()
    for line in (
        '"at": Time(),',
        '"amount": Float(off=("drift", "limits")),',
        '"online": Bool(nullable=True),',
        '"retries": Int(min=0, nullable=True),',
        '"shop": Category(nullable=True),',
        '"id": Id(),',
        '"valid_until": Time(nullable=True),',
        '"picture": Bytes(nullable=True),',
        '"is_fraud": Int(min=0, max=1),',
    ):
        assert line in module, module
    assert (
        url
        not in subprocess.run(
            ["git", "show", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
        ).stdout
    )
    rehearse(folder)
    assert "\nok " in capfd.readouterr().out


def sqlite_of(folder: Path, columns: str, rows: list[tuple[Any, ...]]) -> str:
    """Returns the url of a database with a table `sales` of these rows."""
    with sqlite3.connect(folder / "shop.db") as connection:
        connection.execute(f"CREATE TABLE sales ({columns})")
        connection.executemany(f"INSERT INTO sales VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.close()
    return f"sqlite:///{folder}/shop.db"


@pytest.mark.parametrize("kind", ["DATETIME", "TEXT"])
@pytest.mark.parametrize(
    "midnight", ["2025-01-02 00:00:00", "2025-01-02 00:00:00.000000", "2025-01-02T00:00:00", "2025-01-02"]
)
def test_midnight_in_sqlite_begins_its_day_however_it_is_written(
    tmp_path: Path, kind: str, midnight: str
) -> None:
    next_midnight = midnight.replace("-02", "-03")
    times = ["2025-01-01 23:59:59", midnight, "2025-01-02T23:59:59", next_midnight]
    url = sqlite_of(tmp_path, f"n INTEGER, time {kind}", list(enumerate(times)))
    source = Database(url, table="sales")
    numbers = {day.day: fetched(source, day, tmp_path)["n"].to_pylist() for day in source.days()}
    assert numbers == {1: [0], 2: [1, 2], 3: [3]}


def test_numbers_in_sqlite_are_refused_as_times(tmp_path: Path) -> None:
    url = sqlite_of(tmp_path, "time INTEGER", [(1_735_776_000,), (1_735_862_400,)])
    with pytest.raises(DataError, match="sales cannot be cut into days: time has values that are not times"):
        Database(url, table="sales").days()


def test_a_column_of_unlike_types_is_named_with_its_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite keeps any value in any column; those of a later batch are read after the earlier ones."""
    monkeypatch.setattr("daybreak.data.database.NUM_ROWS", 2)
    rows = [("2025-01-02", amount) for amount in (1, 2, "three", "four")]
    source = Database(sqlite_of(tmp_path, "time DATE, amount INTEGER", rows), table="sales")
    with pytest.raises(DataError, match=r"sales on 2025-01-02 has a column .* amount .*int64 vs string"):
        source.fetch(date(2025, 1, 2), tmp_path)


AS_ASKED = {
    sa.TIMESTAMP: (
        "EXTRACT(day FROM datetime(`payments`.`at`, %(datetime_1:STRING)s))",
        "TIMESTAMP",
        datetime(2025, 3, 29, 23, tzinfo=UTC),
        datetime(2025, 3, 30, 22, tzinfo=UTC),
    ),
    sa.DATETIME: (
        "EXTRACT(day FROM `payments`.`at`)",
        "DATETIME",
        datetime(2025, 3, 30),
        datetime(2025, 3, 31),
    ),
    sa.DATE: ("EXTRACT(day FROM `payments`.`at`)", "DATE", date(2025, 3, 30), date(2025, 3, 31)),
}


@pytest.mark.parametrize("kind", AS_ASKED)
def test_bigquery_is_asked_in_its_own_words_for_days_in_the_zone_of_the_table(kind: Any) -> None:
    bigquery = pytest.importorskip(
        "sqlalchemy_bigquery", reason="no BigQuery here; pip install sqlalchemy-bigquery"
    )
    dialect, (of_day, name, start, end) = bigquery.BigQueryDialect(paramstyle="pyformat"), AS_ASKED[kind]
    table = sa.Table(
        "payments",
        sa.MetaData(),
        sa.Column("at", kind),
        sa.Column("id", sa.Integer),
        sa.Column("more", sa.JSON),
        sa.Column("parts", bigquery.STRUCT(n=sa.Integer)),
        schema="shop",
    )
    days = str(days_query(table, "at", "bigquery", zone="Europe/Berlin").compile(dialect=dialect))
    assert days.startswith("SELECT DISTINCT EXTRACT(year FROM ")
    assert f"{of_day} AS" in days
    asked = day_query(table, "at", "bigquery", date(2025, 3, 30), zone="Europe/Berlin")
    query = asked.compile(dialect=dialect)
    assert " ".join(str(query).split()).endswith(
        f"FROM `shop`.`payments` WHERE `payments`.`at` >= %(at_1:{name})s AND `payments`.`at` < "
        f"%(at_2:{name})s ORDER BY `payments`.`at`, `payments`.`id`, to_json_string(`payments`.`more`), "
        f"to_json_string(`payments`.`parts`)"
    )
    assert query.params == {"at_1": start, "at_2": end}
    moment = pa.timestamp("us", "UTC") if kind is sa.TIMESTAMP else pa.timestamp("us")
    assert kind_of(table.columns["at"], "bigquery") == (pa.date32() if kind is sa.DATE else moment)


def test_a_database_that_does_not_answer_is_worth_another_try() -> None:
    with pytest.raises(SourceUnreachable, match=r"lines cannot be read: .*refused"):
        Database("postgresql+psycopg2://127.0.0.1:9/shop", table="lines").days()


@pytest.mark.parametrize("url", ["postgresql://u@host:54x/db", "postgresql//host/db", "nothing+at+all://h/d"])
def test_a_url_that_is_none_of_sqlalchemy_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(ParamsError, match=r"source\.url cannot be used: "):
        Database(url, table="t")

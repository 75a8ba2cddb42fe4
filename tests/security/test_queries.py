"""Names of tables, columns and people are quoted or bound in SQL: none of them is a part of a query."""

import sqlite3
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.contract.errors import DataError
from daybreak.contract.table import Category, Float, Table, Time
from daybreak.data.database import Database
from daybreak.data.partition_scan import PartitionScan
from daybreak.data.row_rules import failing
from daybreak.data.suite import Rule, Suite
from daybreak.storage.exposures import Exposure
from daybreak.storage.traffic_log import open_log

DROP = 'sales"; DROP TABLE sales; --'
DAY = date(2025, 1, 31)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A database whose table has a column of a hostile name."""
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as made:
        made.execute('CREATE TABLE sales (time TIMESTAMP, "a""; DROP TABLE sales; --" TEXT)')
        made.execute("INSERT INTO sales VALUES ('2025-01-31 10:00:00', ?)", ("x'); DROP TABLE sales; --",))
    return path


def num_sales(shop: Path) -> int:
    with sqlite3.connect(shop) as kept:
        (number,) = kept.execute("SELECT count(*) FROM sales").fetchone()
    return int(number)


@pytest.mark.parametrize("table", [DROP, "sales; DROP TABLE sales", "main.sales WHERE 1=1 --"])
def test_the_name_of_a_table_is_no_query(shop: Path, table: str) -> None:
    source = Database(f"sqlite:///{shop}", table=table)
    with pytest.raises(DataError, match=r"has no table|cannot be read"):
        source.days()
    assert num_sales(shop) == 1


def test_the_names_of_columns_and_what_they_hold_are_no_query(shop: Path, tmp_path: Path) -> None:
    source = Database(f"sqlite:///{shop}", table="sales")
    assert source.days() == [DAY]
    source.fetch(DAY, tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "part.parquet").column_names == [
        "time",
        'a"; DROP TABLE sales; --',
    ]
    with pytest.raises(DataError, match="has no column"):
        Database(f"sqlite:///{shop}", table="sales", cut_by='time" OR 1=1 --').days()
    assert num_sales(shop) == 1


HOSTILE = "\" IS NULL) OR (SELECT count(*) FROM read_csv('/etc/passwd')) > 0 OR (\""


def test_the_name_of_a_column_is_no_part_of_a_rule() -> None:
    made = failing("r", type="expect_column_values_to_be_between", kwargs={"column": HOSTILE, "min_value": 0})
    assert made == f'("{HOSTILE.replace(chr(34), chr(34) * 2)}" < 0)'
    values = failing(
        "r", type="expect_column_values_to_be_in_set", kwargs={"column": "a", "value_set": ["x') OR ('1'='1"]}
    )
    assert "'x'') OR (''1''=''1'" in values


def test_rules_judge_a_column_of_a_hostile_name_and_read_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "raw" / f"day={DAY}"
    folder.mkdir(parents=True)
    values = {"time": [datetime(2025, 1, 31, 1)] * 2, HOSTILE: [-1.0, 1.0], "kind": ["x' OR '1'='1", "b"]}
    pq.write_table(pa.table(values), folder / "part.parquet")
    table = Table(columns={"time": Time(), HOSTILE: Float(), "kind": Category()}, time="time")
    kwargs = {"column": HOSTILE, "min_value": 0}
    rules = (Rule(name=f"'; {HOSTILE}", type="expect_column_values_to_be_between", kwargs=kwargs),)
    judged = PartitionScan(table, Suite(), rules, engine="duckdb").judge(DAY)
    assert judged.num_rows == 2
    assert list(judged.bad) == [0]


def test_no_user_item_or_experiment_is_a_query_in_the_traffic_log(tmp_path: Path) -> None:
    log = open_log(f"sqlite:///{tmp_path / 'serving.db'}")
    evil = "x'); DELETE FROM exposures; DROP TABLE outcomes; --"
    shown = Exposure(
        id=evil,
        time=1.0,
        experiment=evil,
        unit=log.unit_of(evil),
        arm="champion",
        version=3,
        share=0.1,
        propensity=0.9,
        items=(evil,),
        latency_s=0.002,
        error=evil,
    )
    try:
        log.exposures.add(shown)
        assert log.exposures.add_outcome(evil, [evil])
        assert not log.exposures.add_outcome("' OR '1'='1", [])
        log.traffic.stop(evil, evil)
        assert log.traffic.why_stopped(evil) == evil
        assert list(log.exposures.of("' OR '1'='1")) == []
        [logged] = log.exposures.of(evil)
        assert replace(logged, taken=None, taken_at=None) == shown
        assert logged.taken == (evil,)
    finally:
        log.close()

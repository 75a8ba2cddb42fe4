"""Spark, where it is installed, fails the same rows as DuckDB, and finds the same figures."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from daybreak.contract.table import Float, Table, Time
from daybreak.data.engines import read_parts
from daybreak.data.partition_scan import PartitionFindings, PartitionScan
from daybreak.data.partitions import CLEAN, part_of
from daybreak.data.source import write_partition
from daybreak.data.suite import OF_TYPE, Rule, Suite, load, rules_of
from daybreak.examples.shop.sold_lines import LINES
from daybreak.workloads import columns
from tests.data import kinds, test_row_by_row
from tests.data.shop_weeks import SUITE

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Spark's, of pandas
rows = test_row_by_row.rows


@pytest.fixture(autouse=True)
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="no Spark here; pip install pyspark")
    if shutil.which("java") is None:
        pytest.skip("no Java here; install Debian's package default-jre-headless")
    monkeypatch.chdir(tmp_path)


def compare(one: PartitionFindings, other: PartitionFindings, rules: tuple[Rule, ...]) -> None:
    for number, rule in enumerate(rules):
        failed = one.bad[one.failed[:, number]].tolist()
        assert other.bad[other.failed[:, number]].tolist() == failed, rule.name
    assert one.num_rows == other.num_rows
    assert one.figures == pytest.approx(other.figures, nan_ok=True)


def test_spark_fails_the_rows_of_the_shop_that_duckdb_fails(rows: object) -> None:
    suite = load(SUITE)
    others = [
        Rule(name=f"rule {n}", type=kind, kwargs=kwargs)
        for n, (kind, kwargs) in enumerate(test_row_by_row.OTHERS)
    ]
    rules = (*rules_of(suite, LINES), *others)
    write_partition(rows, part_of(test_row_by_row.DAY).parent)
    scans = [PartitionScan(LINES, suite, rules, engine=engine) for engine in ("duckdb", "pyspark")]
    ours, theirs = [scan.judge(test_row_by_row.DAY) for scan in scans]
    assert len(ours.bad) > 1000
    compare(ours, theirs, rules)


def test_spark_reads_each_type_and_pattern_as_duckdb_does() -> None:
    suite: Suite = kinds.suite()
    rules = rules_of(suite, kinds.KINDS)
    write_partition(kinds.rows(), part_of(kinds.DAY).parent)
    ours, theirs = [
        PartitionScan(kinds.KINDS, suite, rules, engine=engine).judge(kinds.DAY)
        for engine in ("duckdb", "pyspark")
    ]
    compare(ours, theirs, rules)
    for rule, some in zip(rules, ours.failed.any(axis=0), strict=True):
        assert some or rule.type == OF_TYPE or rule.name.endswith("is there"), f"no row fails {rule.name}"


def test_fit_finds_the_same_on_spark() -> None:
    day = kinds.DAY
    write_partition(kinds.rows(), part_of(day, CLEAN).parent)
    states = [
        columns.fitted(read_parts({day: part_of(day, CLEAN)}, engine=engine), kinds.KINDS)
        for engine in ("duckdb", "pyspark")
    ]
    assert states[0].keys() == states[1].keys()
    for name, values in states[0].items():
        assert np.array_equal(values, states[1][name]), name


def test_the_part_that_fit_looks_at_is_a_fair_one_on_either_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_NUMBERS", 200_000)
    num_rows = 200_000
    times = np.datetime64(kinds.DAY, "us") + np.arange(num_rows) * np.timedelta64(400, "ms")
    rows = pa.table({"at": times, "amount": np.arange(num_rows) / num_rows})
    write_partition(rows.append_column("more", rows["amount"]), part_of(kinds.DAY, CLEAN).parent)
    table = Table(time="at", columns={"at": Time(), "amount": Float(), "more": Float()})
    for engine in ("duckdb", "pyspark"):
        edges = columns.fitted(read_parts({kinds.DAY: part_of(kinds.DAY, CLEAN)}, engine=engine), table)[
            "edges"
        ]
        assert edges[0] == pytest.approx(np.linspace(0, 1, columns.NUM_EDGES), abs=0.01)

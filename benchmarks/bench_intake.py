"""How does intake scale? 10^6 to 10^8 rows in 400 partitions: ingest, validate and prepare as processes.

Each stage runs as `daybreak STAGE`, alone in its process, which is charged its CPU time from the
start, imports included; validation also with no limits of days. Beside it the same predicates in bare
DuckDB: one process reads one file after the other, counts the rows that fail a predicate, and writes nothing.
Then a day more of 10^6 rows. Memory is the peak of what a process has resident. Where pyspark is installed,
Spark judges that day too.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import chdir
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import frame
from daybreak.contract import records
from daybreak.contract.table import Bool, Category, Float, Id, Int, Label, Table, Text, Time, days
from daybreak.data import suite
from daybreak.data.engines import AT_MIDNIGHT, ROWS, midnight
from daybreak.data.partition_scan import PartitionScan
from daybreak.data.partitions import part_of
from daybreak.data.queries import Queries
from daybreak.data.row_rules import failing
from daybreak.workloads.table_workload import TableWorkload

SIZES = (100_000,) if frame.QUICK else (10**6, 10**7, 10**8)
NUM_DAYS = 20 if frame.QUICK else 400
NEW_ROWS = 10_000 if frame.QUICK else 10**6
FIRST = date(2025, 1, 1)
STAGES = ("ingest", "validate", "prepare")
WORDS = ["card", "shop", "paid", "late", "refund", "gift", "order", "food", "train", "hotel", "book", "fuel"]
PARAMS = f"""\
source: {{use: "daybreak:Files", url: "source/{{day}}.parquet"}}
workload: benchmarks.bench_intake:Payments
backend: daybreak:Local
validate: {{suite: suite.yaml, unusual_day: warn}}
ingest: {{history_days: {NUM_DAYS}}}
prepare: {{window_days: {NUM_DAYS}}}
"""
SUITE = """\
columns: {per_item: amount / items}
figures:
  accounts: count(DISTINCT account)
  online: avg(online::INT)
  median_amount: median(amount) FILTER (NOT online)
days:
  - {name: there are accounts, type: expect_column_values_to_be_between,
     kwargs: {column: accounts, min_value: 5}}
rows:
  - {name: payment is a number, type: expect_column_values_to_match_regex,
     kwargs: {column: payment, regex: "^p[0-9]{1,20}$"}}
  - {name: note is words, type: expect_column_values_to_match_regex,
     kwargs: {column: note, regex: "^[a-z]+( [a-z]+)*$"}}
  - {name: an item is affordable, type: expect_column_values_to_be_between, column: amount,
     kwargs: {column: per_item, max_value: 5000}}
drift: {(rows): off}  # the day after is larger
"""


class Payments(TableWorkload):
    """Payments, with the features that follow from their types."""

    table = Table(
        time="time",
        unit="account",
        key=("payment",),
        label=Label("is_fraud", ripe_after=days(1)),
        columns={
            "payment": Id(),
            "account": Id(),
            "amount": Float(min=0),
            "items": Int(min=1, max=1000),
            "shop": Category(),
            "online": Bool(),
            "note": Text(nullable=True),
            "time": Time(),
            "is_fraud": Int(min=0, max=1, nullable=True),
        },
    )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a process took."""

    cpu_s: float
    wall_s: float
    peak_bytes: int


def main() -> None:
    """Run all sizes, then hold the largest against the targets."""
    figures: dict[str, float] = {}
    lines: list[dict[str, object]] = []
    for num_rows in SIZES:
        with tempfile.TemporaryDirectory(prefix="daybreak-") as name, chdir(name):
            lay_out(num_rows)
            first = {"ingest": ran("ingest")}
            unlimited = validated_without_limits()
            first |= {stage: ran(stage) for stage in STAGES[1:]}
            bare = {threads: scanned(threads) for threads in (1, 2)}
            (Path("source") / f"{day_of(NUM_DAYS)}.parquet").hardlink_to(Path("new.parquet"))
            begin(day_of(NUM_DAYS))
            new = {stage: ran(stage) for stage in STAGES}
            both = first["validate"].cpu_s + first["prepare"].cpu_s
            both_unlimited = unlimited.cpu_s + first["prepare"].cpu_s
            size = f"10^{len(str(num_rows)) - 1}"
            figures |= {
                f"{size}: rows a CPU second, validate": num_rows / first["validate"].cpu_s,
                f"{size}: rows a CPU second, prepare": num_rows / first["prepare"].cpu_s,
                f"{size}: rows a CPU second, bare scan": num_rows / bare[1].cpu_s,
                f"{size}: validate / bare scan": bare[1].cpu_s / first["validate"].cpu_s,
                f"{size}: both / bare scan": bare[1].cpu_s / both,
                f"{size}: both / bare scan, without limits of days": bare[1].cpu_s / both_unlimited,
                f"{size}: both / bare scan, 2 threads": bare[2].cpu_s / both,
                f"{size}: peak GiB": max(cost.peak_bytes for cost in first.values()) / 2**30,
                f"{size}: a day more s": sum(cost.wall_s for cost in new.values()),
                f"{size}: a day more / first run": sum(cost.wall_s for cost in new.values())
                / sum(cost.wall_s for cost in first.values()),
            }
            named = {
                **first,
                "validate without limits": unlimited,
                "bare, 1 thread": bare[1],
                "bare, 2 threads": bare[2],
            }
            named |= {f"{stage}, a day more": cost for stage, cost in new.items()}
            lines += [
                {
                    "rows": size,
                    "process": stage,
                    "CPU s": cost.cpu_s,
                    "s": cost.wall_s,
                    "peak GiB": cost.peak_bytes / 2**30,
                }
                for stage, cost in named.items()
            ]
            frame.table(lines)
            if num_rows == SIZES[0] and find_spec("pyspark"):
                figures |= on_spark(day_of(NUM_DAYS))
    show_bigquery()
    largest = f"10^{len(str(SIZES[-1])) - 1}"
    targets: dict[str, frame.Target] = {f"{largest}: peak GiB": ("<=", 2)}
    if not frame.QUICK:  # starting the processes is most of it
        targets[f"{largest}: both / bare scan"] = (">=", 0.25)
        targets[f"{largest}: a day more / first run"] = ("<=", 0.05)
    frame.finish("intake", figures, targets)


def day_of(number: int) -> date:
    """The day of a partition."""
    return FIRST + timedelta(days=number)


def lay_out(num_rows: int) -> None:
    """Deliver the rows, and a day more aside; the folder becomes that of the night of the last day."""
    subprocess.run(["git", "init", "--quiet"], check=True)
    Path("params.yaml").write_text(PARAMS)
    Path("suite.yaml").write_text(SUITE)
    Path("source").mkdir()
    for number in range(NUM_DAYS):
        rows = made(number, num_rows // NUM_DAYS)
        pq.write_table(rows, f"source/{day_of(number)}.parquet", compression="zstd")
    pq.write_table(made(NUM_DAYS, NEW_ROWS), "new.parquet", compression="zstd")
    records.RUN.mkdir(parents=True)
    begin(day_of(NUM_DAYS - 1))
    os.sync()


def begin(day: date) -> None:
    """Open the night of a day."""
    records.write(frame.night(day), records.RUN)
    records.write(Payments.table, records.RUN)


def made(number: int, size: int) -> pa.Table:
    """The rows of a day, a function of its number; one in 500 breaks a rule."""
    rng = np.random.default_rng(number)

    def picked(values: list[str]) -> pa.Array:
        places = rng.integers(0, len(values), size, dtype=np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(values)).cast(pa.string())

    serial = np.arange(number * 10**7, number * 10**7 + size, dtype=np.uint64)
    scattered = (serial * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)  # odd: no two are the same
    amount = np.round(rng.lognormal(3, 1.2, size), 2)
    amount[rng.random(size) < 0.001] *= -1
    note = pc.binary_join_element_wise(picked(WORDS), picked(WORDS), picked(WORDS), " ")
    time_of = np.datetime64(day_of(number), "us") + rng.integers(0, 86_400_000_000, size).astype("m8[us]")
    time_of = np.sort(time_of)
    time_of[rng.random(size) < 0.001] += np.timedelta64(1, "D")
    return pa.table(
        {
            "payment": pc.binary_join_element_wise(
                "p", pa.array(scattered.view(np.int64)).cast(pa.string()), ""
            ),
            "account": picked([f"account-{n}" for n in range(50_000)]),
            "amount": amount,
            "items": pa.array(rng.poisson(2, size) + 1, pa.int64()),
            "shop": picked([f"shop{n:03d}" for n in range(300)]),
            "online": rng.random(size) < 0.4,
            "note": pc.if_else(pa.array(rng.random(size) < 0.3), pa.scalar(None, pa.string()), note),
            "time": pa.array(time_of),
            "is_fraud": pa.array((rng.random(size) < 0.02).astype(np.int64)),
        }
    )


def ran(stage: str) -> Cost:
    """Run a stage of the night in this folder."""
    return measured("-m", "daybreak", stage)


def validated_without_limits() -> Cost:
    """Validate a copy of this folder, with no limits of days."""
    with tempfile.TemporaryDirectory(prefix="daybreak-", dir=Path.cwd().parent) as name:
        shutil.copytree(".", name, copy_function=os.link, dirs_exist_ok=True)
        with chdir(name):
            records.replace_text(
                Path("params.yaml"), PARAMS.replace("warn", "warn, false_alarms_per_year: 0")
            )
            return ran("validate")


def scanned(num_threads: int) -> Cost:
    """Count the rows that fail a predicate in each partition, in DuckDB alone."""
    source = "read_parquet('FILE', file_row_number = true, hive_partitioning = false)"
    Path("scan.sql").write_text(
        f"WITH {ROWS} AS (SELECT *, MIDNIGHT AS {AT_MIDNIGHT} FROM {source}) "
        f"SELECT count(*) FROM ({compiled('duckdb').rules})"
    )
    code = (
        "import duckdb, sys\n"
        f"connection = duckdb.connect(config={{'threads': {num_threads}}})\n"
        "query = open('scan.sql').read()\n"
        "for word in sys.argv[1:]:\n"
        "    file, _, at = word.partition(' ')\n"
        "    connection.execute(query.replace('FILE', file).replace('MIDNIGHT', at)).fetchall()\n"
    )
    words = [f"{part_of(day_of(n))} {midnight(day_of(n))}" for n in range(NUM_DAYS)]
    return measured("-c", code, *words)


def compiled(engine: str) -> Queries:
    """The queries of the suite for an engine."""
    read = suite.load(Path("suite.yaml"))
    rules = suite.rules_of(read, Payments.table)
    predicates = {n: failing(rule.name, type=rule.type, kwargs=rule.kwargs) for n, rule in enumerate(rules)}
    return Queries(Payments.table, read, rules, predicates=predicates, engine=engine)


def on_spark(day: date) -> dict[str, float]:
    """Seconds of the scan of a day, once Spark has started, on Spark and on DuckDB, which find the same."""
    read = suite.load(Path("suite.yaml"))
    rules = suite.rules_of(read, Payments.table)
    seconds, judgements = {}, []
    for engine in ("duckdb", "pyspark"):
        scan = PartitionScan(Payments.table, read, rules, engine=engine)
        scan.judge(day_of(0))
        began = time.monotonic()
        judgements.append(scan.judge(day))
        seconds[engine] = time.monotonic() - began
    same = all(
        np.array_equal(getattr(judgements[0], key), getattr(judgements[1], key)) for key in ("bad", "failed")
    )
    return {
        "a day more, scan on DuckDB s": seconds["duckdb"],
        "a day more, scan on Spark s": seconds["pyspark"],
        "Spark fails the same rows": float(same),
    }


def show_bigquery() -> None:
    """Print what BigQuery would be asked."""
    import sqlglot

    with tempfile.TemporaryDirectory() as name, chdir(name):
        Path("suite.yaml").write_text(SUITE)
        queries = compiled("bigquery")
    for query in (queries.rules, *(query for _, query in queries.figures)):
        print(sqlglot.transpile(query, read="bigquery", write="bigquery", pretty=True)[0], end="\n\n")


def measured(*words: str) -> Cost:
    """Run python in this folder; raises RuntimeError unless it ends well."""
    environment = {**frame.environment(Path.cwd()), "PYTHONPATH": str(frame.ROOT)}
    with Path("out.txt").open("w+") as out:
        began = time.monotonic()
        process = subprocess.Popen([sys.executable, *words], env=environment, stdout=out, stderr=out)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output = Path("out.txt").read_text()
            raise RuntimeError(f"{' '.join(words[:3])} ended with {process.returncode}:\n{output}")
    return Cost(cpu_s=used.ru_utime + used.ru_stime, wall_s=wall_s, peak_bytes=used.ru_maxrss * 1024)


if __name__ == "__main__":
    main()

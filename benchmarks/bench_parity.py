"""Training and serving give the same: predictions by three entry points, and features bit for bit.

One night of each example, with few days. Then 1,000 of its held-out rows go through the router by HTTP, those
of a unit in a request; through MLflow's pyfunc, as a table of pandas in a process without this checkout; and
through `daybreak predict`. Features of the same rows, as training read them, are compared with
those that the version makes of a client's rows, with the past that it carries.

The shop answers users: its router is compared with the version asked directly, all users at once, its pyfunc
with the held-out scores of the night, and what a customer's sample looks like on the held-out day with what
serving makes of the same arrays without that day. QUICK=1 takes one example of rows, and 100 rows.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import requests

from benchmarks import frame
from daybreak.contract import records
from daybreak.contract.record_types import Version
from daybreak.contract.workload import ARRAYS
from daybreak.data.partitions import part_of
from daybreak.evaluation.scores import read_scores
from daybreak.examples.shop.recommender import Recommender
from daybreak.registry import carried_code
from daybreak.registry.weights import load_model, load_rows
from daybreak.workloads.served_rows import as_records, conformed
from tests.dags.servers import IDENTITY

NUM_ROWS = 100 if frame.QUICK else 1000
DAYS = {"fraud": 24, "demand": 16, "language": 10}  # of history; fraud is known after two weeks
SHOP = [*frame.SMALL, "source.num_customers=1500", "source.orders_per_day=150"]
# In a sample of the shop.
OF_THE_ANSWER = ("bought", "num_bought", "num_first", "home", "repeated", "popular")
BY_MLFLOW = """
import sys, mlflow, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
params = {"folder": sys.argv[4], "split": "test"} if len(sys.argv) > 4 else None
predicted = model.predict(pandas.read_parquet(sys.argv[2]), params=params)
pandas.DataFrame(predicted).rename(columns=str).to_parquet(sys.argv[3])
"""
Columns = dict[str, np.ndarray]


def main() -> None:
    """Run the nights and compare."""
    os.environ["PYTHONPATH"] = str(frame.ROOT)  # a home of its own does not hold the package
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    figures: dict[str, float] = {}
    for name in list(DAYS)[: 1 if frame.QUICK else None]:
        figures |= of_rows(name)
    figures |= of_lists()
    worst = {
        "largest difference of predictions": max(v for k, v in figures.items() if "difference" in k),
        "bits of features that differ": sum(v for k, v in figures.items() if "bits" in k),
        "lists that differ": figures["shop: lists that differ"],
    }
    targets = {
        "largest difference of predictions": ("<=", 1e-6),
        "bits of features that differ": ("==", 0.0),
        "lists that differ": ("==", 0.0),
    }
    frame.finish("parity", figures | worst, targets)


def of_rows(name: str) -> dict[str, float]:
    """Figures of an example that predicts rows."""
    with tempfile.TemporaryDirectory(prefix="daybreak-") as scratch:
        home = Path(scratch) / name
        text = (frame.ROOT / "pipeline/daybreak/examples" / name / "README.md").read_text()
        begin = re.findall(r"```sh\n(.*?)```", text, re.S)[0].replace("~/", f"{scratch}/")
        begin = begin.replace("git commit", f"git {shlex.join(IDENTITY)} commit")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(
            ["bash", "-ec", begin],
            cwd=frame.ROOT,
            env={**os.environ, "PATH": path},
            check=True,
            capture_output=True,
        )
        few = [f"ingest.history_days={DAYS[name]}", "profile.batch_sizes=[64]", "train.epochs=1"]
        frame.pipeline(home, "night", "--night", "one", *frame.sets(few))
        return compared(name, home, Path(scratch))


def compared(name: str, home: Path, scratch: Path) -> dict[str, float]:
    """Figures of a home with a night of rows."""
    night = home / "nights/one"
    day = date.fromisoformat(json.loads((night / ARRAYS / "meta.json").read_text())["test_days"][-1])
    version = fetched(home, night, scratch / "version")
    workload = carried_code.workload_of(version)
    served = load_rows(workload, version / carried_code.MODEL.parent)
    clean = pq.read_table(part_of(day, night / "data/clean"), partitioning=None)
    label = workload.table.label.column if workload.table.label else None
    known = np.flatnonzero(pc.is_valid(clean[label])) if label else np.arange(len(clean))
    taken = known[:NUM_ROWS]
    rows = clean.take(taken).drop([label] if label else [])
    groups = of_units(rows, workload.table.unit)
    frame.pipeline(home, "predict", "--night", "one", "--day", str(day), "--to", f"{scratch}/batch.parquet")
    batch = columns_of(pq.read_table(f"{scratch}/batch.parquet").take(taken))
    online = by_router(home, rows, groups)
    by_mlflow = by_pyfunc(home, night, scratch, rows)
    made = [served.features(conformed(as_records(rows.take(one)), workload.table)) for one in groups]
    trained = np.load(night / ARRAYS / f"day={day}/samples.npy")[: len(taken)]
    order = np.argsort(np.concatenate(groups))
    return {
        f"{name}: rows": float(len(taken)),
        f"{name}: difference of router and batch": largest(online, batch),
        f"{name}: difference of pyfunc and batch": largest(by_mlflow, batch),
        f"{name}: features": float(len(made[0])),
        f"{name}: bits of features that differ": float(
            sum(bits(np.concatenate([one[key] for one in made])[order], trained[key]) for key in made[0])
        ),
    }


def of_lists() -> dict[str, float]:
    """Figures of the shop."""
    with frame.home() as home:
        frame.pipeline(home, "night", "--night", "one", *frame.sets(SHOP))
        night = home / "nights/one"
        scratch = home.parent
        version = fetched(home, night, scratch / "version")
        workload = carried_code.workload_of(version)
        model = load_model(workload, version / carried_code.MODEL)
        samples = workload.dataset(night / ARRAYS, "serve")
        users = list(samples.customers)[:NUM_ROWS]
        wanted = workload.recommend(model, samples, users, 20)
        shown = []
        with served_by(home) as url:
            for user in users:
                answer = requests.post(f"{url}/recommend", json={"user": user, "top": 20}, timeout=60)
                shown.append(answer.json()["items"])
        scores = read_scores(night / "data/run/scores.npy")
        assert scores is not None
        num = min(NUM_ROWS, len(scores["challenger"]))
        by_mlflow = by_pyfunc(home, night, scratch, pa.table({"sample": np.arange(num)}), str(night / ARRAYS))
        differ, compared = shop_features(workload, night / ARRAYS, scratch / "before")
    return {
        "shop: users": float(len(users)),
        "shop: lists that differ": float(sum(a != b for a, b in zip(shown, wanted, strict=True))),
        "shop: held-out samples": float(num),
        "shop: difference of pyfunc and held-out scores": largest(
            {"0": by_mlflow["0"]}, {"0": scores["challenger"][:num]}
        ),
        "shop: customers of the held-out day": float(compared),
        "shop: bits of features that differ": float(differ),
    }


def shop_features(workload: Recommender, arrays: Path, before: Path) -> tuple[int, int]:
    """How many bits of the samples of the last held-out day differ from what serving makes the day before.

    Also the number of these samples.
    """
    from daybreak.examples.shop.item_tables import to_number

    offline = workload.dataset(arrays, "test")
    last = to_number(json.loads((arrays / "meta.json").read_text())["test_days"][-1])
    of_day = [n for n, s in enumerate(offline.samples) if offline.lines.samples_day[s] == last][:NUM_ROWS]
    cut(arrays, before, last)
    online = workload.dataset(before, "serve")
    ours = offline.__getitems__(of_day)
    theirs = online.__getitems__([int(offline.lines.samples_customer[offline.samples[n]]) for n in of_day])
    names = [name for name in ours if name not in OF_THE_ANSWER]
    return sum(bits(theirs[name].numpy(), ours[name].numpy()) for name in names), len(of_day)


def cut(arrays: Path, to: Path, day: int) -> None:
    """Write the shop's arrays as they were before a day; codes stay."""
    shutil.copytree(arrays, to)
    days, meta = np.load(arrays / "day.npy"), json.loads((arrays / "meta.json").read_text())
    num_lines = int(np.searchsorted(days, day))
    for path in to.glob("*.npy"):
        values = np.load(path)
        if len(values) == len(days) and path.stem != "by_customer":
            save(path, values[:num_lines])
    of_samples = np.load(arrays / "samples_day.npy") < day
    for name in ("samples_day", "samples_customer"):
        save(to / f"{name}.npy", np.load(arrays / f"{name}.npy")[of_samples])
    by_customer = np.load(arrays / "by_customer.npy")
    by_customer = by_customer[by_customer < num_lines]
    save(to / "by_customer.npy", by_customer)
    starts = np.searchsorted(np.load(to / "customer.npy")[by_customer], np.arange(meta["num_customers"] + 1))
    save(to / "customer_start.npy", starts)
    records.replace_text(to / "meta.json", json.dumps(meta | {"num_lines": num_lines}))


def save(path: Path, values: np.ndarray) -> None:
    """Write an array; the file before may be a link that is not to be written to."""
    path.unlink()
    np.save(path, values)


def of_units(rows: pa.Table, unit: str) -> list[np.ndarray]:
    """The row numbers of each unit, in the order of their first rows."""
    if not unit:
        return [np.arange(len(rows))]
    _, first, of = np.unique(np.array(rows[unit].to_pylist()), return_index=True, return_inverse=True)
    return [np.flatnonzero(of == number) for number in np.argsort(first)]


def by_router(home: Path, rows: pa.Table, groups: list[np.ndarray]) -> Columns:
    """What a router predicts of the rows, a request for each group."""
    answers: dict[int, dict[str, Any]] = {}
    with served_by(home) as url:
        for group in groups:
            body = {"rows": as_records(rows.take(group))}
            answer = requests.post(f"{url}/predict", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            answers |= dict(zip(group.tolist(), answer.json()["predictions"], strict=True))
    names = next(iter(answers.values()))
    return {name: np.array([answers[place][name] for place in range(len(rows))]) for name in names}


def by_pyfunc(home: Path, night: Path, scratch: Path, rows: pa.Table, *words: str) -> Columns:
    """What the champion predicts as a pyfunc, in a process without this checkout."""
    pq.write_table(rows, scratch / "rows.parquet")
    name = records.read(Version, night / records.RUN).name
    environment = {k: v for k, v in frame.environment(home).items() if k != "PYTHONPATH"}
    arguments = [f"models:/{name}@champion", scratch / "rows.parquet", scratch / "found.parquet", *words]
    done = subprocess.run(
        [sys.executable, "-P", "-c", BY_MLFLOW, *map(str, arguments)],
        cwd=scratch,
        check=False,
        env={**environment, "MLFLOW_TRACKING_URI": f"sqlite:///{home}/var/mlflow.db"},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return columns_of(pq.read_table(scratch / "found.parquet"))


@contextmanager
def served_by(home: Path) -> Iterator[str]:
    """`daybreak serve` for that home, once it answers, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "daybreak", "serve", "--port", "0"],
        cwd=home,
        env=frame.environment(home),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = re.search(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
        assert address
        while requests.get(f"{address[0]}/health", timeout=60).status_code != 200:
            assert process.poll() is None
        yield address[0]
    finally:
        process.kill()
        process.communicate()


def fetched(home: Path, night: Path, to: Path) -> Path:
    """The files of the night's version."""
    import mlflow

    version = records.read(Version, night / records.RUN)
    mlflow.set_tracking_uri(f"sqlite:///{home}/var/mlflow.db")
    uri = f"models:/{version.name}/{version.number}"
    return Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(to)))


def columns_of(table: pa.Table) -> Columns:
    """The columns of a table of predictions."""
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def largest(actual: Columns, wanted: Columns) -> float:
    """The largest difference, over all predictions."""
    return max(float(np.abs(actual[name].astype(float) - wanted[name]).max()) for name in actual)


def bits(actual: np.ndarray, wanted: np.ndarray) -> int:
    """How many bits of two arrays differ; all where they are of other types or shapes."""
    if (actual.dtype, actual.shape) != (wanted.dtype, wanted.shape):
        return 8 * max(actual.nbytes, 1)
    both = [np.frombuffer(np.ascontiguousarray(one).tobytes(), dtype=np.uint8) for one in (actual, wanted)]
    return int(np.unpackbits(both[0] ^ both[1]).sum())


if __name__ == "__main__":
    main()

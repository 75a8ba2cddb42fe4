"""Predictions by daybreak: nights of every ending, then one of many rows beside a bare loop of the model.

Endings: small nights with real versions, whose stages but `promote` and `predict` are not run: what they
leave behind is written instead. Nights are promoted, refused, failed in each stage, still train when their
time to train is over, wait for a person's answer, in a terminal or in Airflow, when predictions are due, or
have `predict` and all it started killed by SIGKILL, and called again. What failed in a stage has no record of
it nor of later ones, and no clean rows of its day before these were judged; what cannot be opened is a whole
`daybreak night` with a backend that is not there. In half of the nights the rows come from a source of their
own; the others predict clean rows, of the day before where their own has none. Each night has to have fresh
predictions of each row once, by the version that serves by the ledger, before their deadline.

Many rows: `daybreak predict` on one day of payments, with the peak of resident memory of all its processes
together, looked at twice a second. The bare loop reads the same rows, predicts them by the same model in
batches of 8,192, and writes one file, in one process that may take all cores. QUICK=1 takes 9 nights and
400,000 rows, else 100 and 10^7.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import chdir, suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import frame
from daybreak import runner, stages
from daybreak.contract import records
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.record_types import Night, Predictions, Training
from daybreak.contract.workload import ARRAYS
from daybreak.data.partitions import CLEAN, part_of
from daybreak.registry.weights import load_rows
from daybreak.serving.version_worker import predict_rows
from daybreak.storage import branch, checkout, ledger, mlflow_client
from daybreak.storage.home import Home
from tests.conftest import make_repository
from tests.extensions.router.homes import add_version
from tests.fakes import ScriptedBackend
from tests.minimal_records import promotion
from tests.toy.nights import FIRST, OWN, PARAMS, make_night
from tests.toy.own.card_payments import Payments
from tests.workloads.payments import rows_of, trained

USE = "card_payments:Payments"
NUM_NIGHTS = 9 if frame.QUICK else 100
NUM_ROWS = 400_000 if frame.QUICK else 10_000_000
BEFORE = [name for name in stages.CHAIN if name not in ("predict", "close")]
WITHOUT_ROWS = ("failed in open", "failed in ingest", "failed in validate")  # of their own day
# What predictions come ahead of.
AHEAD = {"waited": "promote", "waited in Airflow": "review"}
WITH_VERSION = ("promoted", "refused", "killed", "waited", "waited in Airflow")
ENDINGS = [*WITH_VERSION, "late", *(f"failed in {name}" for name in BEFORE)]
if frame.QUICK:
    ENDINGS = [*WITH_VERSION, "late", "failed in open", "failed in ingest", "failed in train"]


class StillTrains(ScriptedBackend):
    """Backend whose jobs run for ever."""

    def __init__(self) -> None:
        super().__init__("running")


def main() -> None:
    """Run the nights and the many rows, and hold them against their targets."""
    os.environ["PYTHONPATH"] = str(frame.ROOT)  # for the source of the nights
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        home = made(Path(name))
        rows = nights(home)
        figures = {
            "nights": float(len(rows)),
            "nights that predicted rows of the day before": float(sum(row["older"] for row in rows)),
            "fresh %": 100 * sum(row["fresh"] for row in rows) / len(rows),
            "of the newest rows that were there %": 100 * sum(row["newest"] for row in rows) / len(rows),
            "each row once %": 100 * sum(row["once"] for row in rows) / len(rows),
            "by the version that serves %": 100 * sum(row["by serving"] for row in rows) / len(rows),
            "in the ledger %": 100 * sum(row["in ledger"] for row in rows) / len(rows),
            "ahead of what was late %": 100 * sum(row["as it ended"] for row in rows) / len(rows),
            **many(home),
        }
    frame.finish(
        "predictions",
        figures,
        {
            "fresh %": ("==", 100),
            "of the newest rows that were there %": ("==", 100),
            "each row once %": ("==", 100),
            "by the version that serves %": ("==", 100),
            "in the ledger %": ("==", 100),
            "ahead of what was late %": ("==", 100),
            "peak memory GiB": ("<=", 2),
        },
    )


def made(folder: Path) -> Path:
    """A home whose version 1 serves."""
    os.environ["DAYBREAK_HOME"] = str(folder / "store")
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    mlflow_client.create(Home.here())
    os.environ["DAYBREAK_HOME"] = str(folder / "home")
    os.environ.pop("MLFLOW_TRACKING_URI", None)  # which MLflow sets
    home = make_repository(folder / "home", store=folder / "store" / "var" / "mlflow.db")
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{home / 'var' / 'mlflow.db'}"
    (home / "params.yaml").write_text(PARAMS)
    with chdir(home):
        add_version(home, 0, alter=trained(USE, seed=0))
    return home


def nights(home: Path) -> list[dict[str, Any]]:
    """Ends nights in each way in turn, and says of each what its predictions are."""
    rows = []
    for number in range(1, NUM_NIGHTS + 1):
        ending = ENDINGS[(number - 1) % len(ENDINGS)]
        with chdir(home):
            row = ended(home, number, ending)
        rows.append(row)
        print(f"night {number}, {ending}: {row}", flush=True)
    return rows


def ended(home: Path, number: int, ending: str) -> dict[str, bool]:
    """Ends one night, and returns whether its predictions are what they have to be."""
    here, day = Home.here(), FIRST + timedelta(days=number)
    by_source = (number + (number - 1) // len(ENDINGS)) % 2 == 0
    given = {"to": "var/out/{day}", "rows_per_file": 10}
    if by_source:
        given["source"] = {"use": "daybreak:Files", "url": str(home / "var" / "{day}.parquet")}
        pq.write_table(rows_of(day), home / "var" / f"{day}.parquet")
    keys = f"predict: {json.dumps(given)}\n"
    if ending == "failed in open":
        not_opened(home, day, keys)
    else:
        opened(home, number, ending, keys)
    entry = next(one for one in ledger.history(here, limit=3) if one.night.id == str(day))
    serving, written = ledger.champion_at(here, branch.ledger_tip(here)), entry.predictions
    out = home / "var" / "out" / str(day)
    if written is None or not (out / "_SUCCESS").exists():
        return dict.fromkeys(("fresh", "older", "newest", "as it ended", "once", "by serving"), False) | {
            "in ledger": written is not None
        }
    facts = json.loads((out / "_SUCCESS").read_text())
    rows = pa.concat_tables(pq.read_table(path) for path in sorted(out.glob("part-*.parquet")))
    newest = day - timedelta(days=1) if ending in WITHOUT_ROWS and not by_source else day
    return {
        "fresh": written.day == day and not written.is_late and facts["night"] == str(day),
        "older": written.older is not None,
        "newest": (written.older or day) == newest,
        "as it ended": written.ahead_of == AHEAD.get(ending, ""),
        "once": rows["ts"].to_pylist() == rows_of(newest)["ts"].to_pylist(),
        "by serving": serving is not None and {serving.version} == {*rows["daybreak_version"].to_pylist()},
        "in ledger": written.digest == facts["digest"],
    }


def not_opened(home: Path, day: date, keys: str) -> None:
    """Runs a night that cannot be opened, whose params.yaml is the commit's."""
    kept = "night: {keep: 9999, keep_days: 9999}\n"  # folders and data, which `close` would prune
    (home / "params.yaml").write_text(PARAMS + kept + keys)
    checkout.git("commit", "--quiet", "--all", "--message=Write predictions", folder=home)
    words = ["night", "--day", str(day), "--trigger", "schedule", "--set", "backend=nowhere:Backend"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "daybreak", *words],
        cwd=home,
        env=os.environ | {"PYTHONPATH": f"{frame.ROOT}{os.pathsep}{OWN}"},
        stdin=subprocess.DEVNULL,  # of a terminal, a person sees it, and the night is not kept
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode, done.stderr
    assert "nowhere:Backend does not import" in done.stderr, done.stderr


def opened(home: Path, number: int, ending: str, keys: str) -> None:
    """Ends a night that was opened, and writes it to the ledger."""
    here, day = Home.here(), FIRST + timedelta(days=number)
    folder, alter = home / "nights" / str(day), trained(USE, seed=number)
    champion = ledger.champion_at(here, branch.ledger_tip(here))
    if ending in WITH_VERSION:
        add_version(home, number, promoted=ending == "promoted", alter=alter)
    else:
        with chdir(make_night(home, number, weight=1.0)):
            alter(folder)
    records.write(champion, folder / records.RUN)  # as `open` does
    with (folder / "params.yaml").open("a") as file:
        file.write(keys)
    with chdir(folder):
        now = datetime.now(UTC).replace(microsecond=0)
        until = now + timedelta(minutes=10)
        night = replace(
            records.read(Night, records.RUN),
            started_at=now,
            train_until=now if ending == "late" else until,
            decide_until=until,
            predict_until=until,
            predict_from=now if ending in AHEAD else until,
        )
        records.write(night, records.RUN)
        stop(night, ending)
        if ending in WITHOUT_ROWS:
            part_of(night.day, CLEAN).unlink()
        made = runner.run(here, "predict")  # as the night's last stage but one, however it ended
        assert isinstance(made, Predictions)
        ledger.commit_night(here, night, message=ending)


def stop(night: Night, ending: str) -> None:
    """Leaves the folder of a night as an ending does; kills `predict` in one of them."""
    here = Home.here()
    if ending == "refused":
        verdict = promotion(champion=1, challenger=2)
        records.write(replace(verdict, action="reject", reason="worse"), records.RUN)
    if ending.startswith("waited"):
        records.write(promotion(champion=1, challenger=2, approve_until=night.decide_until), records.RUN)
    if ending == "waited in Airflow":
        runner.predict_ahead(here)
    if ending == "late":
        text, ours = Path("params.yaml").read_text(), "benchmarks.bench_predictions:StillTrains"
        Path("params.yaml").write_text(text.replace("tests.fakes:ScriptedBackend", ours))
        records.path_of(Training, records.RUN).unlink()
        shutil.rmtree(records.RUN / "model")
        with suppress(JobError):  # its time is over, and it has no checkpoint
            runner.run(here, "train")
        assert (records.RUN / "train.error").exists()
    if ending == "waited":
        with suppress(NotYet):
            runner.run(here, "promote")
    if ending.startswith("failed in "):
        fail(ending.removeprefix("failed in "))
    if ending == "killed":
        words = [sys.executable, "-P", "-m", "daybreak", "predict"]
        running = subprocess.Popen(words, start_new_session=True)
        while not list(Path("data/work/predict/files").glob("part-*.parquet")):
            assert running.poll() is None
            time.sleep(0.005)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        assert records.find(Predictions, records.RUN) is None


def fail(stage: str) -> None:
    """Leaves the folder of a night as a failed stage does: without its record, and those of later ones."""
    later = stages.CHAIN[stages.CHAIN.index(stage) :]
    for kind in filter(None, map(runner.written_by, later)):
        records.path_of(kind, records.RUN).unlink(missing_ok=True)
    for made_by, left in (("prepare", ARRAYS), ("train", records.RUN / "model")):
        if made_by in later:
            shutil.rmtree(left)
    records.replace_text(records.RUN / f"{stage}.error", "it failed\n")


def many(home: Path) -> dict[str, float]:
    """Speed and memory of one day of many rows, beside a bare loop over the same model."""
    folder = home / "nights" / str(FIRST)  # whose version was the first champion
    rows, size = part_of(FIRST, folder / "data" / "clean"), 200_000
    some = rows_of(FIRST, size)
    with pq.ParquetWriter(rows, some.schema) as file:
        for _ in range(NUM_ROWS // size):
            file.write_table(some)
    with (folder / "params.yaml").open("a") as file:
        file.write("predict: {to: var/out/many}\n")
    words = [sys.executable, "-P", "-m", "daybreak", "predict", "--to", "var/out/many"]
    began = time.monotonic()
    running, peak = psutil.Popen(words, cwd=folder, stderr=subprocess.PIPE), 0
    while running.poll() is None:
        peak = max(peak, resident(running))
        time.sleep(0.5)  # reading it costs tens of milliseconds of a core
    took_s = time.monotonic() - began
    assert running.returncode == 0, running.stderr.read()
    facts = json.loads((home / "var" / "out" / "many" / "_SUCCESS").read_text())
    assert facts["num_rows"] == NUM_ROWS
    bare_s, read_s = bare(folder, rows, home / "var" / "bare.parquet")
    return {
        "rows": float(NUM_ROWS),
        "rows a second": NUM_ROWS / took_s,
        "rows a second by a bare loop": NUM_ROWS / bare_s,
        "speed / a bare loop, start and all": bare_s / took_s,
        "reading and writing, of a bare loop %": 100 * read_s / bare_s,
        "peak memory GiB": peak / 2**30,
    }


def resident(process: psutil.Process) -> int:
    """Bytes of memory of a process and all that it started, each page shared among them counted once."""
    total = 0
    for each in (process, *process.children(recursive=True)):
        try:
            total += each.memory_full_info().pss
        except psutil.Error:
            continue  # it has just ended
    return total


def bare(folder: Path, rows: Path, to: Path) -> tuple[float, float]:
    """Seconds of a loop over the model of a night's folder, and of its reads and writes alone."""
    carried = folder.with_name("bare")
    shutil.copytree(folder / "data" / "run" / "model", carried / "model")
    served = load_rows(Payments(), carried, model=carried / "model")
    began = time.monotonic()
    with pq.ParquetFile(rows) as source:
        writer, model_s = None, 0.0
        for batch in source.iter_batches(200_000):
            at = time.monotonic()
            made = predict_rows(served, pa.Table.from_batches([batch]), folder / "data" / "clean")
            model_s += time.monotonic() - at
            writer = writer or pq.ParquetWriter(to, made.schema, compression="zstd")
            writer.write_table(made)
    assert writer
    writer.close()
    took_s = time.monotonic() - began
    return took_s, took_s - model_s


if __name__ == "__main__":
    main()

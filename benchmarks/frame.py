"""What all benchmarks share: a home of their own to run nights in, a table, a JSON line, a record.

make bench NAME=nights            the whole of it
make bench NAME=nights QUICK=1    less work, the same checks
make bench NAME=nights RECORD=1   and writes its figures into results.csv
"""

import json
import logging
import operator
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import psutil

from benchmarks import results
from daybreak.contract.record_types import Night
from tests.clones import ROOT, clone

DATA = Path(os.environ.get("DAYBREAK_DATA", ROOT.parent / "shared" / "data"))
QUICK = bool(os.environ.get("QUICK"))
BURN = "n = 0\nwhile True: n += 1"
MARGIN = 0.03  # as gate.margin in params.yaml

Target = tuple[str, float]
HOLDS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}

# A small shop: a night of it takes seconds where one of the default takes a minute.
SMALL = [
    "source.start=2026-01-01",
    "source.today=2026-03-05",
    "source.num_customers=150",
    "source.num_items=80",
    "source.orders_per_day=25",
    "ingest.history_days=40",
    "train.epochs=1",
]


def sets(assignments: list[str]) -> list[str]:
    """`--set` for each assignment."""
    return [word for assignment in assignments for word in ("--set", assignment)]


@contextmanager
def home(within: Path | None = None) -> Iterator[Path]:
    """A clone of this checkout at HEAD, in a folder that is removed afterwards; it is made in `within`."""
    folder = Path(tempfile.mkdtemp(prefix="daybreak-", dir=within))
    try:
        yield clone(ROOT, folder / "home")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def burning() -> Iterator[None]:
    """One process a core that burns it."""
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def lend_environment(folder: Path) -> None:
    """Let a home use this virtual environment instead of installing one."""
    (folder / ".venv").symlink_to(Path(sys.prefix))
    (folder / ".venv" / "ready").touch()


def environment(folder: Path) -> dict[str, str]:
    """The environment of a command that runs in that home, by the code that the home holds."""
    unset = ("DAYBREAK_HOME", "MLFLOW_TRACKING_URI", "DVC_STAGE", "DVC_ROOT")
    kept = {key: value for key, value in os.environ.items() if key not in unset}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    sources = os.pathsep.join(filter(None, [str(folder / "pipeline"), os.environ.get("PYTHONPATH")]))
    return {**kept, "DAYBREAK_HOME": str(folder), "PATH": path, "PYTHONPATH": sources}


@contextmanager
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: for thousands of small files, each brought to disk; no logs."""
    logging.disable(logging.CRITICAL)
    os.environ["MLFLOW_TRACKING_URI"] = ""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.exists() else None) as folder:
        yield Path(folder)


def night(day: date, **given: Any) -> Night:
    """Returns the record of a night that nothing limits, opened as its day ends."""
    at = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    unlimited = {"started_at": at, "train_until": at, "decide_until": at, "budget_usd": 0}
    named = {"id": str(day), "day": day, "trigger": "bench", "code_commit": "", "previous": ""}
    return Night(**unlimited | named | given)


def pipeline(folder: Path, *words: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run `daybreak` in a home; fails loudly unless it ends as expected."""
    done = subprocess.run(
        [sys.executable, "-m", "daybreak", *words],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    if expect is not None and done.returncode != expect:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done


def tested(*words: str) -> list[ElementTree.Element]:
    """Runs pytest with these words, and returns its cases, as the report for JUnit has them."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        environment = {name: value for name, value in os.environ.items() if name != "RECORD"}
        call = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junitxml={report}"]
        subprocess.run([*call, *words], cwd=ROOT, env=environment, check=False)
        return list(ElementTree.parse(report).iter("testcase"))


def champion_of(home: Path) -> int:
    """Version that the alias `champion` is on in the MLflow of a home; 0 where there is none."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(f"sqlite:///{home / 'var' / 'mlflow.db'}")
    try:
        return int(client.get_model_version_by_alias("daybreak", "champion").version)
    except MlflowException:
        return 0


def table(rows: list[Mapping[str, object]]) -> None:
    """Print rows under their keys."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(*rows[0], box=None, header_style="bold")
    for row in rows:
        shown.add_row(*(f"{v:,.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=150).print(shown)


def finish(name: str, figures: Mapping[str, float], targets: Mapping[str, Target]) -> NoReturn:
    """Print figures against targets and the JSON line, record them if asked, exit 0 only if all hold."""
    held = {key: HOLDS[sign](figures[key], value) for key, (sign, value) in targets.items()}
    table(
        [
            {
                "figure": key,
                "value": value,
                "target": " ".join(map(str, targets[key])) if key in targets else "",
                "ok": {True: "yes", False: "NO", None: ""}[held.get(key)],
            }
            for key, value in figures.items()
        ]
    )
    ok = all(held.values())
    if os.environ.get("RECORD"):
        record(name, figures, targets, held)
    print(json.dumps({"name": name, "figures": figures, "targets": targets, "ok": ok}))
    sys.exit(not ok)


def record(
    name: str, figures: Mapping[str, float], targets: Mapping[str, Target], held: Mapping[str, bool]
) -> None:
    """Write the figures into results.csv, with what they ran on."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    memory = psutil.virtual_memory().total / 2**30
    ran = {
        "bench": name,
        "date": str(datetime.now(UTC).date()),
        "commit": commit,
        "machine": f"{psutil.cpu_count()} cores {memory:.0f} GiB {platform.machine()}",
        "quick": "yes" if QUICK else "",
    }
    rows = []
    for key, value in figures.items():
        figure, unit = results.split_unit(key)
        sign, limit = targets.get(key, ("", 0.0))
        rows.append(
            {
                **ran,
                "figure": figure,
                "unit": unit,
                "value": f"{value:.4g}",
                "target": f"{sign} {limit:g}" if sign else "",
                "met": {True: "yes", False: "no", None: ""}[held.get(key)],
            }
        )
    results.add(rows)

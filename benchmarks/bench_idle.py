"""What grows while all that `make up` starts has 48 hours without a night?

The scheduler, the DAG processor, the triggerer, the API server, MLflow, a router and the pages, under their
supervisor, with stages that are played by a stand-in (tests/dags/stand_in.py). The hourly DAG `watch` runs
as often as in that time, one run after the other. What goes by the time itself passes as far as the bench
takes: the DAG processor reads DAG files, and heartbeats are written.

Airflow's database and the logs of tasks may grow with runs; `make up` deletes logs after 30 days. Processes,
their threads, descriptors and memory may not in the later half, beyond the noise that LATER names.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks import frame
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from tests.dags.servers import Standalone, all_supervised, stand_in
from tests.extensions.router.running import until

HOURS = 12 if frame.QUICK else 48
# What may come on top between the middle and the end of the hours, as a mean of three hours each.
LATER = {"MB": 40.0, "descriptors": 2.0, "threads": 1.0, "processes": 0.5}
# What an hour may add, in kB: in a day 6 MB of logs and 3 MB of the database, which a person cleans.
HOURLY = {"logs": 250.0, "airflow.db": 125.0}
RUNS = "/api/v2/dags/watch/dagRuns"


def main() -> None:
    """Lets the hours pass, and holds what grew against the targets."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        seen = hours(Path(name))
    middle, end = (
        {kind: sum(one[kind] for one in some) / 3 for kind in LATER}
        for some in (seen[HOURS // 2 - 3 : HOURS // 2], seen[-3:])
    )
    figures = {f"{kind}, hour 1": value for kind, value in seen[0].items()}
    figures |= {f"{kind}, hour {HOURS}": value for kind, value in seen[-1].items()}
    figures |= {f"{kind}, later hours": end[kind] - middle[kind] for kind in LATER}
    for place in (*HOURLY, "files of logs"):
        unit = "" if place == "files of logs" else " kB"
        grew = seen[-1][f"{place}{unit}"] - seen[HOURS // 2 - 1][f"{place}{unit}"]
        figures[f"an hour adds to {place}{unit}"] = grew / (HOURS - HOURS // 2)
    figures["hours took s"] = time.monotonic() - began
    targets: dict[str, frame.Target] = {
        **{f"{kind}, later hours": ("<=", most) for kind, most in LATER.items()},
        **{f"an hour adds to {place} kB": ("<=", most) for place, most in HOURLY.items()},
    }
    frame.finish("idle", figures, targets)


def hours(folder: Path) -> list[dict[str, float]]:
    """Returns what the processes held after each hour, and how much Airflow had written."""
    home, up, seen = stand_in(folder / "home"), folder / "up", list[dict[str, float]]()
    up.mkdir()
    (home / "endings.json").write_text("{}")
    shutil.copy(frame.ROOT / "params.yaml", home)
    for variable in ("MLFLOW_TRACKING_URI", "DAYBREAK_LOG", "DAYBREAK_TOKEN"):
        os.environ.pop(variable, None)
    os.environ["DAYBREAK_HOME"] = str(home)
    mlflow_client.create(Home.here())
    with all_supervised(up, home=home, dags=frame.ROOT / "dags") as airflow:
        supervisor = psutil.Process(int((home / "var" / "supervisord.pid").read_text()))
        for hour in range(HOURS):
            watch(airflow)
            until(lambda: is_quiet(supervisor))
            seen.append(held(supervisor) | written(up / "airflow"))
            print(json.dumps({"hour": hour + 1} | seen[-1]), file=sys.stderr, flush=True)
    return seen


def watch(airflow: Standalone) -> None:
    """Runs the hourly DAG to its end."""
    status, run = airflow.ask("POST", RUNS, {"logical_date": None})
    if status != 200:
        raise RuntimeError(f"watch was not started: {run}")
    path = f"{RUNS}/{run['dag_run_id']}"
    state = airflow.until(
        lambda: (now := airflow.ask("GET", path)[1]["state"]) in ("success", "failed") and now
    )
    if state != "success":
        raise RuntimeError(f"watch ended as {state}")


def family(supervisor: psutil.Process) -> list[psutil.Process]:
    """Returns the supervisor and all that runs under it."""
    return [supervisor, *supervisor.children(recursive=True)]


def is_quiet(supervisor: psutil.Process) -> bool:
    """Whether no process comes or goes for two seconds, as those of tasks do."""
    before = {each.pid for each in family(supervisor)}
    time.sleep(2)
    return before == {each.pid for each in family(supervisor)}


def held(supervisor: psutil.Process) -> dict[str, float]:
    """Returns what the processes hold together."""
    sums = dict.fromkeys(LATER, 0.0)
    for each in family(supervisor):
        with contextlib.suppress(psutil.NoSuchProcess):  # the DAG processor starts one for each file
            values = (each.memory_info().rss / 1e6, each.num_fds(), each.num_threads(), 1)
            sums = {kind: sums[kind] + value for kind, value in zip(LATER, values, strict=True)}
    return sums


def written(airflow: Path) -> dict[str, float]:
    """Returns the size of Airflow's database, and of its logs with their number."""
    logs = [path for path in (airflow / "logs").rglob("*") if path.is_file() and not path.is_symlink()]
    return {
        "airflow.db kB": (airflow / "airflow.db").stat().st_size / 1e3,
        "logs kB": sum(path.stat().st_size for path in logs) / 1e3,
        "files of logs": float(len(logs)),
    }


if __name__ == "__main__":
    main()

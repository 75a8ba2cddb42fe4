"""Nights in the Airflow that a team has: other versions, each in an environment without Daybreak.

All run in one home, one after another, by the file that `daybreak dags` writes. The environments come from
the package registry, resolved as on a day soon after the release: Airflow's constraint files are not there.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from daybreak.contract import params, records
from daybreak.contract.record_types import Night, Predictions
from tests.dags.servers import (
    IDENTITY,
    ROOT,
    Standalone,
    environment,
    free_port,
    server,
    settings,
    stand_in,
)
from tests.dags.test_interface import VERDICT, calls
from tests.package_registry import uv
from tests.test_example_nights import begun
from tests.test_own_data import SMALL

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

# Airflow's alert of a late night; here it does not wait for the hours of `night.decide_hours`.
INTERVAL, AT_ONCE = "timedelta(hours=hours) + OPENED_WITHIN", "timedelta(seconds=1)"
RELEASES = {"3.0.6": "2025-09-05", "3.1.3": "2025-11-25", "3.2.1": "2026-05-05", "3.3.2": "2026-11-25"}
LACKS = {
    "3.0.6": ["nobody is asked to approve", "no alert of Airflow's", "recorded as started by hand"],
    "3.1.3": ["no alert of Airflow's", "recorded as started by hand"],
    "3.2.1": ["no alert of Airflow's", "recorded as started by hand"],
    "3.3.2": [],
}
SKIPPED = {"review", "approve", "refit", "predict", "predict_ahead"}
RUNS = "/api/v2/dags/retrain.fraud/dagRuns"


ASSETS = ("champion", "predictions")
# A team's own, which starts whenever another version serves, or predictions are written, and says which.
DOWNSTREAM = f"""
from airflow.sdk import DAG, Asset, task
for what in {ASSETS}:
    with DAG(f"after_{{what}}", schedule=[Asset(name=f"fraud {{what}}", uri=f"daybreak://fraud/{{what}}")]):
        @task
        def heard(triggering_asset_events=None):
            return [event.extra for events in triggering_asset_events.values() for event in events]
        heard()
"""
CLUSTER = ["apache-airflow-providers-celery", "redis", "psycopg2-binary", "asyncpg"]


def airflow_of(version: str, folder: Path, *more: str) -> Path:
    """The commands of an environment with this Airflow and nothing of ours."""
    uv("venv", "--quiet", "--python", sys.executable, str(folder))
    install = ["pip", "install", "--quiet", "--python", str(folder / "bin/python")]
    uv(*install, "--exclude-newer", RELEASES[version], f"apache-airflow=={version}", *more)
    return folder / "bin"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, furnish: Callable[[Path], Path]) -> Path:
    folder = begun("fraud", tmp_path_factory.mktemp("homes"))
    told = 'notify.command=cat >> "${TOLD:-/dev/null}"'
    keys = ["ingest.history_days=45", *SMALL, "train.epochs=1", "predict.to='var/predictions/{day}'", told]
    params.override(folder, keys, into=folder)
    commit = ["git", *IDENTITY, "commit", "--all", "--quiet", "--message", "train less"]
    subprocess.run(commit, cwd=folder, check=True)
    (folder / "var").mkdir()
    return furnish(folder)


def test_the_oldest_airflow_reads_the_file(tmp_path: Path) -> None:
    commands, home = airflow_of("3.0.6", tmp_path / "airflow"), tmp_path / "home"
    home.mkdir()
    params.override(ROOT, ["register.name=fraud"], into=home)
    subprocess.run(["daybreak", "--home", str(home), "dags", str(tmp_path)], check=True)
    code = "import runpy, sys; print(sorted(runpy.run_path(sys.argv[1])['DAGS']))"
    given = environment(tmp_path) | {"PATH": os.defpath}
    call = [str(commands / "python"), "-c", code, str(tmp_path / "nights_fraud.py")]
    read = subprocess.run(call, env=given, capture_output=True, text=True, check=False)
    names = [f"{name}.fraud" for name in ("audit", "drill", "retrain", "rollback", "watch")]
    assert read.stdout.splitlines()[-1:] == [str(names)], read.stdout + read.stderr
    assert [sentence for sentence in LACKS["3.0.6"] if sentence not in read.stdout + read.stderr] == []


@pytest.mark.matrix
@pytest.mark.parametrize("version", RELEASES)
def test_a_night_runs_in_an_airflow_that_has_no_daybreak(version: str, home: Path, tmp_path: Path) -> None:
    commands, dags = airflow_of(version, tmp_path / "airflow"), tmp_path / "dags"
    dags.mkdir()
    subprocess.run(["daybreak", "--home", str(home), "dags", str(dags)], check=True)
    (file,) = dags.iterdir()
    # `airflow dags test` of 3.2 and 3.3 cannot look an alert up, and ends the night with an error.
    file.write_text(file.read_text().replace("\ndags(HOME)\n", "\ndags(HOME, deadline=[])\n"))
    given = environment(tmp_path) | {
        "PATH": f"{commands}{os.pathsep}{os.defpath}",
        "AIRFLOW_HOME": str(tmp_path / "of_airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
    }
    del given["DAYBREAK_HOME"], given["AIRFLOW__CORE__PLUGINS_FOLDER"]

    def run(*words: str) -> str:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(words, env=given, cwd=tmp_path, text=True, check=False, **pipes)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    assert "False" in run(
        "python", "-c", "from importlib import util; print(bool(util.find_spec('daybreak')))"
    )
    run("airflow", "db", "migrate")
    parsed = run("airflow", "dags", "reserialize")
    assert "No data found" in run("airflow", "dags", "list-import-errors")
    said = [sentence for sentence in LACKS["3.0.6"] if sentence in parsed]
    assert said == LACKS[version]
    run("airflow", "dags", "test", "retrain.fraud", "--conf", f'{{"reason": "Airflow {version}"}}')
    with sqlite3.connect(tmp_path / "of_airflow" / "airflow.db") as database:
        ended = dict(database.execute("SELECT task_id, state FROM task_instance"))
    assert {task for task, state in ended.items() if state == "failed"} == set()
    assert {task for task, state in ended.items() if state == "skipped"} <= {*SKIPPED, "promote", "verdict"}
    assert ended["done"] == "success"
    nights = [records.read(Night, folder / records.RUN) for folder in (home / "nights").iterdir()]
    (night,) = (night for night in nights if night.trigger == f"manual: Airflow {version}")
    assert night.airflow_run.startswith("retrain.fraud/")


@contextmanager
def running(
    commands: Path, folder: Path, *, home: Path, programs: dict[str, list[str]], **more: str
) -> Iterator[Standalone]:
    """An Airflow of an environment, of these programs, once it has read the DAG of the nights of `home`."""
    airflow = Standalone(f"http://127.0.0.1:{free_port()}", home, asks_for_token=True)
    given = settings(folder, airflow.url, home=home, dags=folder / "dags") | more
    given |= {
        "PATH": f"{commands}{os.pathsep}{os.defpath}",
        "AIRFLOW_HOME": str(folder / "of_airflow"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of this test, of 32 bytes",
    }
    del given["DAYBREAK_HOME"], given["AIRFLOW__CORE__PLUGINS_FOLDER"]
    subprocess.run(["airflow", "db", "migrate"], env=given, check=True, capture_output=True)

    def is_read() -> bool:
        with suppress(OSError, HTTPException):
            return airflow.ask("GET", "/api/v2/dags/retrain.fraud")[0] == 200
        return False

    last = ["airflow", "dag-processor"]
    with ExitStack() as servers:
        for name, call in (programs | {"dag-processor": last}).items():
            (folder / name).mkdir()
            up = is_read if call == last else lambda: True
            servers.enter_context(server(call, given=given, folder=folder / name, up=up))
        yield airflow


def ended(airflow: Standalone, run: str) -> tuple[str, dict[str, str]]:
    """The state in which a run of the nights ends, and those of its tasks."""
    path = f"{RUNS}/{run}"
    state = airflow.until(
        lambda: (now := airflow.ask("GET", path)[1]["state"]) in ("success", "failed") and now
    )
    tasks = airflow.ask("GET", f"{path}/taskInstances")[1]["task_instances"]
    return state, {task["task_id"]: task["state"] for task in tasks}


def trigger(airflow: Standalone, run: str) -> None:
    """Starts a night that was due now, so that the alert of a late one counts from now."""
    body = {"dag_run_id": run, "logical_date": datetime.now(UTC).isoformat(), "conf": {"reason": run}}
    assert airflow.ask("POST", RUNS, body)[0] == 200


def told_downstream(airflow: Standalone, what: str) -> dict[str, object] | None:
    """What the DAG that an asset starts has heard of it, once a run of it has ended well."""
    path = f"/api/v2/dags/after_{what}/dagRuns"
    runs = airflow.ask("GET", f"{path}?state=success")[1]["dag_runs"]
    if not runs:
        return None
    value = f"{path}/{runs[0]['dag_run_id']}/taskInstances/heard/xcomEntries/return_value"
    (event,) = json.loads(json.dumps(airflow.ask("GET", value)[1]["value"]))
    return dict(event)


def pause(airflow: Standalone, paused: bool) -> None:
    assert airflow.ask("PATCH", "/api/v2/dags/retrain.fraud", {"is_paused": paused})[0] == 200


SERVERS = {
    "scheduler": ["airflow", "scheduler", "--skip-serve-logs"],
    "api-server": ["airflow", "api-server"],
}


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["3.1.3", "3.2.1"])
def test_a_person_answers_the_form(version: str, tmp_path: Path) -> None:
    """The stages are played by a stand-in: only the form depends on the version."""
    commands, home = airflow_of(version, tmp_path / "airflow"), stand_in(tmp_path / "home")
    played = (home / "pipeline" / "daybreak" / "__main__.py").read_text()
    program = home / "program"
    program.write_text(f"#!{sys.executable}\n{played}")
    program.chmod(0o755)
    params.override(ROOT, ["register.name=fraud"], into=home)
    until = datetime.now(UTC) + timedelta(hours=1)
    records = {"verdict": VERDICT | {"approve_until": until.isoformat()}}
    (home / "endings.json").write_text(json.dumps({"records": records}))
    (dags := tmp_path / "dags").mkdir()
    write = ["daybreak", "--home", str(home), "dags", str(dags), "--command", str(program)]
    subprocess.run(write, check=True)
    programs = {**SERVERS, "triggerer": ["airflow", "triggerer", "--skip-serve-logs"]}
    review = f"{RUNS}/night/taskInstances/review"
    with running(commands, tmp_path, home=home, programs=programs) as airflow:
        trigger(airflow, "night")

        def answer(form: dict[str, str]) -> bool:
            detail = airflow.ask("GET", f"{review}/-1/hitlDetails")[1]
            if detail.get("response_received") is not False:
                return False
            body = {"chosen_options": ["Approve"], "params_input": form}
            return bool(airflow.ask("PATCH", f"{review}/-1/hitlDetails", body)[0] == 200)

        airflow.until(lambda: answer({"approval_reason": ""}))
        airflow.until(lambda: answer({"approval_reason": "seen"}))
        state, tasks = ended(airflow, "night")
    assert (state, tasks["review"], tasks["approve"]) == ("success", "success", "success")
    (approval,) = [call for call in calls(airflow) if call[0] == "approve"]
    assert approval[:3] == ["approve", "--reason", "seen"]


EXECUTORS = [pytest.param("LocalExecutor", marks=pytest.mark.matrix), "CeleryExecutor"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_night_runs_on_postgresql_by_one_scheduler_or_two_celery_workers_and_starts_what_is_downstream(
    executor: str, home: Path, postgres: str, tmp_path: Path
) -> None:
    """The LocalExecutor of the pinned Airflow has a night in test_night.py, on PostgreSQL as well."""
    if shutil.which("redis-server") is None:
        pytest.skip("no Redis here; install Debian's package redis-server")
    commands, dags = airflow_of("3.3.2", tmp_path / "airflow", *CLUSTER), tmp_path / "dags"
    dags.mkdir()
    subprocess.run(["daybreak", "--home", str(home), "dags", str(dags)], check=True)
    (file,) = dags.iterdir()
    assert INTERVAL in file.read_text()
    file.write_text(file.read_text().replace(INTERVAL, AT_ONCE))
    (dags / "downstream.py").write_text(DOWNSTREAM)
    redis, told, is_first = free_port(), tmp_path / "told", not any((home / "nights").glob("*"))
    database = f"postgresql+psycopg2://airflow@/{executor.lower()}?host={postgres}"
    subprocess.run(["createdb", "--host", postgres, "--username=airflow", executor.lower()], check=True)
    workers = ["one", "two"] if executor == "CeleryExecutor" else []
    own = ["--concurrency", "1", "--skip-serve-logs", "--celery-hostname"]
    programs = {
        "redis": ["redis-server", "--bind", "127.0.0.1", "--port", str(redis)],
        **{name: ["airflow", "celery", "worker", *own, f"{name}@%h"] for name in workers},
        **SERVERS,
    }
    given = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__CORE__EXECUTOR": executor,
        "AIRFLOW__CELERY__BROKER_URL": f"redis://127.0.0.1:{redis}/0",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
        "TOLD": str(told),
    }
    with running(commands, tmp_path, home=home, programs=programs, **given) as airflow:
        pause(airflow, True)  # so that the alert comes before the night is opened
        trigger(airflow, executor)
        airflow.until(told.exists)
        pause(airflow, False)
        state, tasks = ended(airflow, executor)
        assert state == "success", tasks
        promoted = tasks["promote"] == "success"
        assert promoted or not is_first
        heard = {
            what: airflow.until(lambda what=what: told_downstream(airflow, what))
            for what in ASSETS
            if promoted or what == "predictions"
        }
    assert f"run {executor} of retrain.fraud has opened no night" in told.read_text()
    night = records.read(Night, home / "nights" / executor / records.RUN)
    assert night.airflow_run == f"retrain.fraud/{executor}"
    for name in workers:  # both took part
        assert "succeeded in" in (tmp_path / name / "airflow.log").read_text()
    made = records.read(Predictions, home / "nights" / executor / records.RUN)
    facts = {"day": str(made.day), "version": made.version, "num_rows": made.num_rows, "to": made.to}
    assert heard["predictions"].items() >= {"event": "predictions", **facts}.items()
    rows = [pq.read_metadata(path).num_rows for path in (home / made.to).glob("part-*.parquet")]
    assert sum(rows) == made.num_rows > 0
    if promoted:
        assert heard["champion"].items() >= {"event": "champion", "version": made.version}.items()

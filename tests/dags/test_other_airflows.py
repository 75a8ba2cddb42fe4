"""Nights in the Airflow that a team has: other versions, each in an environment without Daybreak.

All run in one home, one after another, by the file that `daybreak dags` writes. The environments come from
the package registry, resolved as on a day soon after the release: Airflow's constraint files are not there.
"""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from daybreak.contract import params, records
from daybreak.contract.record_types import Night
from tests.dags.servers import IDENTITY, ROOT, Standalone, environment, free_port, server, settings
from tests.test_example_nights import begun
from tests.test_own_data import SMALL

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

RELEASES = {"3.0.6": "2025-09-05", "3.1.3": "2025-11-25", "3.2.1": "2026-05-05", "3.3.2": "2026-11-25"}
LACKS = {
    "3.0.6": ["nobody is asked to approve", "no alert of Airflow's", "recorded as started by hand"],
    "3.1.3": ["no alert of Airflow's", "recorded as started by hand"],
    "3.2.1": ["recorded as started by hand"],
    "3.3.2": [],
}
SKIPPED = {"review", "approve", "refit"}


CLUSTER = ["apache-airflow-providers-celery", "redis", "psycopg2-binary", "asyncpg"]


def airflow_of(version: str, folder: Path, *more: str) -> Path:
    """The commands of an environment with this Airflow and nothing of ours."""
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    install = ["uv", "pip", "install", "--quiet", "--python", str(folder / "bin/python")]
    install += ["--exclude-newer", RELEASES[version], f"apache-airflow=={version}", *more]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if "Failed to fetch" in done.stderr:
        pytest.skip(f"Airflow {version} is not at hand, and the package registry cannot be reached")
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, furnish: Callable[[Path], Path]) -> Path:
    folder = begun("fraud", tmp_path_factory.mktemp("homes"))
    params.override(folder, ["ingest.history_days=45", *SMALL, "train.epochs=1"], into=folder)
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


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.matrix
@pytest.mark.parametrize("executor", ["LocalExecutor", "CeleryExecutor"])
def test_a_night_runs_on_postgresql_by_one_scheduler_or_two_celery_workers(
    executor: str, home: Path, postgres: str, tmp_path: Path
) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("no Redis here; install Debian's package redis-server")
    commands, dags = airflow_of("3.3.2", tmp_path / "airflow", *CLUSTER), tmp_path / "dags"
    dags.mkdir()
    subprocess.run(["daybreak", "--home", str(home), "dags", str(dags)], check=True)
    airflow, redis = Standalone(f"http://127.0.0.1:{free_port()}", home), free_port()
    database = f"postgresql+psycopg2://airflow@/{executor.lower()}?host={postgres}"
    subprocess.run(["createdb", "--host", postgres, "--username=airflow", executor.lower()], check=True)
    given = settings(tmp_path, airflow.url, home=home, dags=dags) | {
        "PATH": f"{commands}{os.pathsep}{os.defpath}",
        "AIRFLOW_HOME": str(tmp_path / "of_airflow"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__CORE__EXECUTOR": executor,
        "AIRFLOW__CELERY__BROKER_URL": f"redis://127.0.0.1:{redis}/0",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of this test, of 32 bytes",
    }
    del given["DAYBREAK_HOME"], given["AIRFLOW__CORE__PLUGINS_FOLDER"]
    subprocess.run(["airflow", "db", "migrate"], env=given, check=True, capture_output=True)
    workers = ["one", "two"] if executor == "CeleryExecutor" else []
    runs = "/api/v2/dags/retrain.fraud/dagRuns"

    def is_read() -> bool:
        with suppress(OSError):
            return airflow.ask("GET", "/api/v2/dags/retrain.fraud")[0] == 200
        return False

    with ExitStack() as servers:

        def start(name: str, *call: str, up: Callable[[], bool] = lambda: True) -> None:
            (tmp_path / name).mkdir()
            servers.enter_context(server([*call], given=given, folder=tmp_path / name, up=up))

        start("redis", "redis-server", "--bind", "127.0.0.1", "--port", str(redis), up=lambda: listens(redis))
        for name in workers:
            own = ["--celery-hostname", f"{name}@%h", "--concurrency", "1", "--skip-serve-logs"]
            start(name, "airflow", "celery", "worker", *own)
        start("scheduler", "airflow", "scheduler", "--skip-serve-logs")
        start("api-server", "airflow", "api-server")
        start("dag-processor", "airflow", "dag-processor", up=is_read)
        body = {"dag_run_id": executor, "logical_date": None, "conf": {"reason": executor}}
        assert airflow.ask("POST", runs, body)[0] == 200
        ended = airflow.until(
            lambda: (
                (state := airflow.ask("GET", f"{runs}/{executor}")[1]["state"]) in ("success", "failed")
                and state
            )
        )
        tasks = airflow.ask("GET", f"{runs}/{executor}/taskInstances")[1]["task_instances"]
    assert ended == "success", {task["task_id"]: task["state"] for task in tasks}
    night = records.read(Night, home / "nights" / executor / records.RUN)
    assert night.airflow_run == f"retrain.fraud/{executor}"
    for name in workers:  # both took part
        assert "succeeded in" in (tmp_path / name / "airflow.log").read_text()

"""Real servers on loopback for the tests: Airflow, MLflow, PostgreSQL."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0  # of each wait, on a machine that is busy with others
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IDENTITY = ["-c", "user.name=A Test", "-c", "user.email=test@example.org"]


def environment(folder: Path) -> dict[str, str]:
    """What the Makefile sets, for an Airflow that lives in `folder`."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "MLFLOW"))}
    return given | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DAYBREAK_HOME": str(folder / "home"),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "dags" / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    }


def stand_in(home: Path) -> Path:
    """Let stand_in.py play the stages that are run in `home`; returns `home`."""
    package = home / "pipeline" / "daybreak"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()  # without it, another of that name on PYTHONPATH would be run
    shutil.copy(Path(__file__).with_name("stand_in.py"), package / "__main__.py")
    return home


@dataclass(frozen=True)
class Standalone:
    """A running Airflow and the DAYBREAK_HOME that its stages run in."""

    url: str
    home: Path
    asks_for_token: bool = False  # as older ones do where all are admins

    def up(self) -> bool:
        """Whether the DAG files have been read and triggers are answered.

        The first trigger can fail while the DAG is still being written; so one that starts nothing, a form
        with a wrong entry, is asked for until it is refused.
        """
        wrong = {"logical_date": None, "conf": {"train_hours": 0}}
        with contextlib.suppress(OSError, http.client.HTTPException):
            if self.ask("GET", "/api/v2/dags/retrain")[0] == 200:
                return self.ask("POST", "/api/v2/dags/retrain/dagRuns", wrong)[0] == 400
        return False

    def process(self, program: str) -> int:
        """Newest process of a program that supervisord runs."""
        log = (self.home / "var" / "supervisord.log").read_text()
        return int(re.findall(rf"spawned: '{program}' with pid (\d+)", log)[-1])

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer of a call of the REST interface.

        Airflow on SQLite can answer late, or 500 where another of its processes writes; so it is asked again.
        """
        end = time.monotonic() + LIMIT_S
        while True:
            is_last = time.monotonic() > end
            try:
                status, answer = self._ask(method, path, body)
                if status < 500 or is_last:
                    return status, answer
            except TimeoutError:
                if is_last:
                    raise
            time.sleep(1)

    def _ask(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.asks_for_token:
            with urllib.request.urlopen(f"{self.url}/auth/token", timeout=60) as answer:
                headers["Authorization"] = f"Bearer {json.loads(answer.read())['access_token']}"
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            body_of_error = error.read()
            return error.code, json.loads(body_of_error) if body_of_error.startswith(
                (b"{", b"[")
            ) else body_of_error.decode()

    def until(self, condition: Callable[[], Any], *, seconds: float = LIMIT_S) -> Any:
        """What `condition` returns once it is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if answer := condition():
                return answer
            time.sleep(1)
        raise AssertionError(f"not within {seconds} s")

    def trigger(self, conf: dict[str, Any], *, logical_date: datetime | None = None) -> str:
        """Start a manual run of `retrain`; returns its name.

        A run that an attempt has made although its answer was an error is then a conflict.
        """
        name = f"manual__{datetime.now(UTC).isoformat()}"
        date = None if logical_date is None else logical_date.isoformat()
        body = {"dag_run_id": name, "logical_date": date, "conf": conf}
        status, answer = self.ask("POST", "/api/v2/dags/retrain/dagRuns", body)
        assert status in (200, 409), answer
        return name

    def run_to_the_end(self, run: str, *, seconds: float = LIMIT_S) -> str:
        """Returns the state in which a run ends; an error names the states and tries of the tasks."""
        path = f"/api/v2/dags/retrain/dagRuns/{run}"
        ended = ("success", "failed")
        try:
            return str(
                self.until(lambda: (s := self.ask("GET", path)[1]["state"]) in ended and s, seconds=seconds)
            )
        except AssertionError as error:
            tasks = self.ask("GET", f"{path}/taskInstances")[1]["task_instances"]
            error.add_note(str([(task["task_id"], task["state"], task["try_number"]) for task in tasks]))
            raise


def keep(shown: Any, name: str, **how: Any) -> None:
    """Keep a picture of a page or a part of it in the folder $SCREENSHOTS, where somebody asked for it."""
    page = getattr(shown, "page", shown)
    if "/#/" in page.url and (close := page.get_by_label("Close").first).is_visible():
        close.click()  # MLflow's assistant, which covers part of the page
    if folder := os.environ.get("SCREENSHOTS"):
        shown.screenshot(path=Path(folder) / f"{name}.png", **how)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def server(
    call: list[str], *, given: dict[str, str], folder: Path, up: Callable[[], bool]
) -> Iterator["subprocess.Popen[bytes]"]:
    """A server in a session of its own, from when it is up to the end of the block."""
    log = folder / f"{call[0]}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            call, env=given, cwd=folder, stdout=out, stderr=out, start_new_session=True
        )
    end = time.monotonic() + LIMIT_S
    try:
        while not up():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.5)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(90)  # it ends what it has started first
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def settings(folder: Path, url: str, *, home: Path, dags: Path) -> dict[str, str]:
    """What the Makefile sets, for an Airflow that answers at `url` and whose stages run in `home`."""
    return environment(folder) | {
        "DAYBREAK_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": url.rpartition(":")[2],
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",  # a second is waited between any two tasks
        "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",  # who is asked for a second is waited for
    }


@contextlib.contextmanager
def airflow_standalone(folder: Path, *, home: Path, dags: Path, **more: str) -> Iterator[Standalone]:
    """Airflow with scheduler and interface on loopback, whose stages run in `home`."""
    airflow = Standalone(f"http://127.0.0.1:{free_port()}", home)
    given = settings(folder, airflow.url, home=home, dags=dags) | more
    with server(["airflow", "standalone"], given=given, folder=folder, up=airflow.up):
        yield airflow


@contextlib.contextmanager
def all_supervised(folder: Path, *, home: Path, dags: Path) -> Iterator[Standalone]:
    """All that `make up` starts, under its supervisor: Airflow, MLflow and the router of `home`."""
    airflow = Standalone(f"http://127.0.0.1:{free_port()}", home)
    given = settings(folder, airflow.url, home=home, dags=dags) | {
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",  # a file that was touched is read at once
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",  # and what was read, is known at once
        "DAYBREAK_UP": str(home),
        "ARTIFACTS": str(folder / "artifacts"),
        "MLFLOW_PORT": str(free_port()),
        "SERVING_PORT": str(free_port()),
        "PAGES_PORT": str(free_port()),
        "NIGHTS_UI": "http://127.0.0.1:8010",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    subprocess.run(["airflow", "db", "migrate"], env=given, cwd=folder, check=True, capture_output=True)
    call = ["supervisord", "--nodaemon", "--configuration", str(ROOT / "supervisord.conf")]
    with server(call, given=given, folder=folder, up=airflow.up):
        yield airflow

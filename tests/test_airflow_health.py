"""Heartbeats of Airflow: what is said of one that is old, and nothing where no Airflow runs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daybreak import airflow_health
from daybreak.contract.errors import NothingToDo
from daybreak.extensions.pages.commands import status
from daybreak.storage.home import Home
from tests.loopback import Quiet, served


@pytest.fixture
def interface() -> Iterator[tuple[str, dict[str, float]]]:
    """URL of an interface of Airflow, and the ages of the heartbeats that it tells, in seconds."""
    ages = dict.fromkeys(airflow_health.PROCESSES, 1.0)

    class Health(Quiet):
        def do_GET(self) -> None:
            now = datetime.now(UTC)
            health = {"metadatabase": {"status": "healthy"}} | {
                name: {
                    "status": "healthy" if age < 30 else "unhealthy",
                    f"latest_{name}_heartbeat": (now - timedelta(seconds=age)).isoformat(),
                }
                for name, age in ages.items()
            }
            self.send_response(200 if self.path == "/api/v2/monitor/health" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(health).encode())

    with served(Health) as address:
        yield f"http://{address}", ages


def test_nothing_is_said_where_all_are_alive(interface: tuple[str, dict[str, float]]) -> None:
    assert airflow_health.late(interface[0]) == []


def test_an_old_heartbeat_is_told_with_its_age_and_what_to_do(
    interface: tuple[str, dict[str, float]],
) -> None:
    url, ages = interface
    ages["dag_processor"] = 190
    (said,) = airflow_health.wait(url, timeout_s=0)
    assert "dag_processor is 3 min old" in said
    assert "look at var/dag-processor.log, then make down and make up" in said


def test_an_interface_that_does_not_answer_is_told() -> None:
    (said,) = airflow_health.late("http://127.0.0.1:9")
    assert "http://127.0.0.1:9 does not answer" in said


def supervisor(home: Path, **marks: str) -> subprocess.Popen[bytes]:
    """A process that stands where the supervisor of `make up` would."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | marks,
    )
    assert process.stdout
    process.stdout.readline()  # before it runs Python, its environment may look empty
    (home / "var").mkdir(exist_ok=True)
    (home / "var" / "supervisord.pid").write_text(f"{process.pid}\n")
    return process


def test_only_the_airflow_of_this_home_is_looked_at(
    repository: Path, interface: tuple[str, dict[str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    url, ages = interface
    ages["scheduler"] = 45
    assert airflow_health.address(Home.here()) == ""  # none was started
    for home, expected in ((str(repository), url), ("/elsewhere", "")):
        with supervisor(repository, DAYBREAK_UP=home, AIRFLOW__API__BASE_URL=url) as process:
            assert airflow_health.address(Home.here()) == expected
            with pytest.raises(NothingToDo):
                status(Home.here())
            process.communicate(b"\n")
    assert airflow_health.address(Home.here()) == ""  # it has ended
    assert [record.message.count("scheduler is 45 s old") for record in caplog.records] == [1]

"""The command, in a process of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from daybreak import cli
from daybreak.extensions.router import server
from daybreak.storage.traffic_log import open_log
from tests.evaluation.test_smoke_test import places_of
from tests.extensions.router.running import until
from tests.toy.nights import OWN

ROOT = Path(__file__).parents[3]
CANARY = "-".join(("canary", "1701", "router"))  # in no file: a version carries the code of its tests


@contextmanager
def started(
    home: Path, *, host: str = "127.0.0.1", **more: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`daybreak serve` for that home, once it answers users, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "daybreak", "serve", "--host", host, "--port", "0"],
        cwd=ROOT,
        env={
            **os.environ,
            "DAYBREAK_HOME": str(home),
            "PYTHONPATH": str(OWN),
            "OMP_NUM_THREADS": "1",
            **more,
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = re.search(r"http://\S+:\d+", process.stderr.readline())
        assert address
        until(lambda: requests.get(f"{address[0]}/health", timeout=300).status_code == 200)
        yield process, address[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_what_was_acknowledged_outlives_a_kill(home: Path) -> None:
    def post(url: str, path: str, body: object) -> requests.Response:
        return requests.post(f"{url}/{path}", json=body, timeout=300)

    with started(home, host="::1") as (process, url):  # as a machine without IPv4 does
        shown = [post(url, "recommend", {"user": f"u{number}"}).json()["exposure"] for number in range(20)]
        for number, exposure in enumerate(shown):
            outcome = {"exposure": exposure, "user": f"u{number}", "items": ["one"]}
            assert post(url, "outcomes", outcome).status_code == 200
        process.send_signal(signal.SIGKILL)
        process.wait()
    log = open_log(f"sqlite:///{home / 'var' / 'serving.db'}")
    kept = {shown_.id: shown_.taken for shown_ in log.exposures.of("")}
    assert [kept[exposure] for exposure in shown] == [("one",)] * 20
    log.close()


@pytest.mark.slow
def test_no_secret_of_the_router_is_in_its_answers_its_log_or_its_home(home: Path) -> None:
    names = ("DAYBREAK_TOKEN", "MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY", "POSTGRES_PASSWORD")
    with started(home, **dict.fromkeys(names, CANARY)) as (process, url):
        said = [requests.get(f"{url}/health", timeout=300).text]
        for token in (CANARY, "wrong"):
            options: dict[str, Any] = {"headers": {"Authorization": f"Bearer {token}"}, "timeout": 30}
            said += [
                requests.get(f"{url}/{path}", **options).text for path in ("metrics", "docs", "openapi.json")
            ]
            for body in ({"user": "u1"}, {"user": "u13"}, {"rows": [{}]}, {"user": 7}):
                for path in ("recommend", "predict", "outcomes", "assignment"):
                    said.append(requests.post(f"{url}/{path}", json=body, **options).text)
        process.send_signal(signal.SIGINT)
        log = process.communicate(timeout=300)[1]
    assert CANARY not in "".join(said) + log
    assert places_of(CANARY, home) == []


def test_a_workload_that_does_not_serve_online_is_refused_in_a_sentence(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main(["serve"]) == 1
    assert "Nothing does not serve users online: it has no recommend and no popular" in caplog.text


def test_a_port_that_is_taken_is_said_in_a_sentence() -> None:
    with (
        server.listen("127.0.0.1", 0) as taken,
        pytest.raises(server.JobError, match="choose another by --port"),
    ):
        server.listen("127.0.0.1", taken.getsockname()[1])

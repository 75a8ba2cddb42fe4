"""Where a process goes that was started with a proxy: not through it to this machine."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import httpx
import pytest
import requests

from daybreak import cli
from daybreak.contract import environment as own
from tests.conftest import ROOT
from tests.loopback import Quiet, served

NOWHERE = "http://127.0.0.1:9"


class Answer(Quiet):
    """Handler that answers."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_command_reaches_what_is_on_this_machine_though_a_proxy_is_set(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "intra.example")
    monkeypatch.setenv(variable, NOWHERE)
    monkeypatch.chdir(tmp_path)
    with served(Answer) as address:
        url = f"http://{address}"
        with pytest.raises(requests.ConnectionError):
            requests.get(url, timeout=300)
        assert cli.main(["show", "weather"]) == 78
        assert requests.get(url, timeout=300).status_code == 200
        assert httpx.get(url, timeout=300).status_code == 200  # Airflow's tasks ask its server so
        assert urllib.request.build_opener().open(url, timeout=300).status == 200
        words = [sys.executable, "-c", f"import urllib.request as u; u.urlopen({url!r})"]
        subprocess.run(words, check=True, timeout=300)
    with pytest.raises(requests.ConnectionError):
        requests.get("http://elsewhere.example", timeout=300)


def test_services_of_a_network_of_containers_are_asked_without_it_and_those_of_a_domain_with_it() -> None:
    environment = {
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "a.example, b.example",
        "MLFLOW_TRACKING_URI": "http://user:secret@mlflow:5000",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg2://postgres:p@postgres/airflow",
        "ELSEWHERE": "https://mlflow.example/api",
        "CODE": "https://token:x-oauth-basic@git.example/x",  # no part of a login is a name
        "DATA": "s3://bucket/key postgresql://app:p@db.example/x",
    }
    own.spare_loopback(environment)
    expected = "a.example,b.example,localhost,127.0.0.1,::1,mlflow,postgres"
    assert (environment["no_proxy"], environment["NO_PROXY"]) == (expected, expected)
    off = {"HTTP_PROXY": "http://proxy:3128", "no_proxy": "*"}
    own.spare_loopback(off)
    assert off["no_proxy"] == "*"
    untouched: dict[str, str] = {"no_proxy": "a.example", "HTTP_PROXY": ""}
    own.spare_loopback(untouched)
    assert untouched == {"no_proxy": "a.example", "HTTP_PROXY": ""}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "a.example"}, "a.example,localhost,127.0.0.1,::1"),
        ({"no_proxy": "a.example,b.example"}, "a.example,b.example,localhost,127.0.0.1,::1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_what_make_starts_asks_no_proxy_for_this_machine(given: dict[str, str], expected: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    asked = 'asked: ; @echo "$$no_proxy" "$$NO_PROXY"'
    done = subprocess.run(
        ["make", "--silent", f"--eval={asked}", "asked"],
        cwd=ROOT,
        env=variables | given,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout == f"{expected} {expected}\n"

"""Homes that lie oddly: by a link, with the cache on another disk, read-only, without IPv4."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from daybreak.contract import records
from daybreak.contract.record_types import Release
from tests.backends.fake.processes import free_port
from tests.bad_disks import in_memory, read_only
from tests.extensions.router.conftest import home, home_of_all
from tests.extensions.router.test_server import started
from tests.test_full_disk import NIGHT, home_at
from tests.toy.nights import OWN

__all__ = ["home", "home_of_all"]

ROOT = Path(__file__).parents[1]
WITHOUT_IPV4 = 'ip link set lo up && ip address delete 127.0.0.1/8 dev lo && exec "$@"'
READ_ONLY = f'mount --bind {ROOT} {ROOT} && mount -o remount,bind,ro {ROOT} && cd {ROOT} && exec "$@"'
ASK = """
import sys, requests; from pathlib import Path; from tests.extensions.router.test_server import started
with started(Path(sys.argv[1]), host="::1") as (_, url):
    print(requests.post(f"{url}/recommend", json={"user": "u1"}, timeout=300).json()["version"])
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.getuid() != 0, reason="only root mounts disks and makes networks"),
]


def daybreak(
    home: Path, *words: str, by: tuple[str, ...] = (), **more: str
) -> "subprocess.CompletedProcess[str]":
    """A command on a home, which ends without a traceback."""
    kept = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        [*by, sys.executable, "-m", "daybreak", *words],
        cwd=home,
        env={**kept, "DAYBREAK_HOME": str(home), "PYTHONPATH": f"{ROOT}{os.pathsep}{OWN}", **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_a_night_by_a_link_with_its_cache_on_another_disk_goes_on_while_git_collects_garbage(
    tmp_path: Path, empty_store: Path, furnish: Callable[[Path], Path]
) -> None:
    own, link = tmp_path / "own", tmp_path / "link"
    furnish(home_at(own, empty_store))
    link.symlink_to(own)
    (own / ".dvc" / "cache").mkdir(exist_ok=True)
    ended, collected = threading.Event(), list[int]()

    def collect() -> None:
        while not ended.wait(0.2):
            collected.append(subprocess.run(["git", "gc", "--quiet"], cwd=own, check=False).returncode)

    with in_memory("size=200m", at=own / ".dvc" / "cache"):
        thread = threading.Thread(target=collect)
        thread.start()
        try:
            night = daybreak(link, "night", "--day", NIGHT)
        finally:
            ended.set()
            thread.join()
        assert night.returncode == 0, night.stderr
        assert len(collected) > 10 and not any(collected)
        assert records.read(Release, own / "nights" / NIGHT / records.RUN).version == 1
        assert subprocess.run(["git", "fsck"], cwd=own, check=False).returncode == 0
        for words in (("audit", "--deep"), ("status",), ("why", "1")):
            assert daybreak(link, *words).returncode == 0
        assert daybreak(own, "status").stdout == daybreak(link, "status").stdout


def test_a_home_that_may_not_be_written_to_is_shown_and_served_where_the_log_is_elsewhere(
    home: Path, tmp_path: Path
) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'serving.db'}"
    with read_only(home):
        with started(home, DAYBREAK_LOG=elsewhere) as (_, url):
            answer = requests.post(f"{url}/recommend", json={"user": "u1"}, timeout=300).json()
            assert answer["version"] == 2
        for words in (("status",), ("why", "2"), ("check",)):
            done = daybreak(home, *words)
            assert done.returncode in (0, 1), done.stderr
        refused = daybreak(home, "serve", "--port", "0")
    assert refused.returncode == 1
    assert f"is read-only, or {home} is; make it writable" in refused.stderr


def test_a_checkout_that_may_not_be_written_to_runs_the_nights_of_a_home_elsewhere(
    tmp_path: Path, empty_store: Path, furnish: Callable[[Path], Path]
) -> None:
    home = furnish(home_at(tmp_path / "home", empty_store))
    by = ("unshare", "--mount", "bash", "-c", READ_ONLY, "bash")
    words = ["make", "--silent", "setup", "--assume-new=hashes.txt"]
    stale = subprocess.run([*by, *words], capture_output=True, text=True, check=False)
    assert stale.returncode
    assert f"{ROOT} may not be written to, and its .venv is missing or older than" in stale.stdout
    words = ["make", "--silent", "night", "--old-file=.venv/ready", f"DAYBREAK_HOME={home}", f"DAY={NIGHT}"]
    kept = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}

    def night(airflow: Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*by, *words, f"AIRFLOW_PORT={free_port()}", f"AIRFLOW_HOME={airflow}"],
            env={**kept, "PYTHONPATH": str(OWN)},
            capture_output=True,
            text=True,
            check=False,
        )

    (tmp_path / "airflow" / "airflow.db").mkdir(parents=True)
    (tmp_path / "airflow" / "ready").touch()
    failed = night(tmp_path / "airflow")
    assert failed.returncode == 2
    assert "unable to open database file" in failed.stdout  # the reason, though no stage came to say it
    done = night(home / "var" / "airflow")
    assert done.returncode == 0, done.stdout
    (folder,) = home.glob("nights/*")
    assert records.read(Release, folder / records.RUN).version == 1


def test_a_machine_without_ipv4_serves_and_says_what_does_not_go_there(home: Path, tmp_path: Path) -> None:
    by = ("unshare", "--net", "bash", "-c", WITHOUT_IPV4, "bash")
    served = subprocess.run(
        [*by, sys.executable, "-c", ASK, str(home)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{OWN}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert served.stdout == "2\n", served.stderr
    said = daybreak(home, "check", by=by).stdout
    assert "127.0.0.1 is no address of this machine, and make up listens there" in said
    refused = daybreak(home, "pages", by=by)
    assert refused.returncode == 1
    assert "127.0.0.1 is no address of this machine; name another by --host" in refused.stderr
    words = ["make", "--silent", "up", f"DAYBREAK_HOME={tmp_path}", f"AIRFLOW_HOME={tmp_path / 'airflow'}"]
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "ready").touch()  # the databases of Airflow and MLflow need no address
    up = subprocess.run([*by, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert up.returncode and "127.0.0.1 is no address of this machine, and make up listens" in up.stdout

"""Homes that lie oddly: by a link, with the cache on another disk, read-only, root's, without IPv4."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from daybreak.contract import records
from daybreak.contract.errors import NothingToDo
from daybreak.contract.record_types import Release
from daybreak.storage import address
from tests.backends.fake.processes import free_port
from tests.bad_disks import STRANGER, in_memory, read_only
from tests.extensions.router.conftest import home, home_of_all
from tests.extensions.router.test_server import started
from tests.test_full_disk import NIGHT, home_at
from tests.toy.nights import OWN

__all__ = ["home", "home_of_all"]

ROOT = Path(__file__).parents[1]
WITHOUT_IPV4 = (
    "ip link set lo up && ip address delete 127.0.0.1/8 dev lo && "
    'mount --bind "$0" /etc/hosts && exec "$@"'  # the names of this machine, by the file that is $0
)
READ_ONLY = f'mount --bind {ROOT} {ROOT} && mount -o remount,bind,ro {ROOT} && cd {ROOT} && exec "$@"'
ASK = """
import sys, requests; from pathlib import Path; from tests.extensions.router.test_server import started
with started(Path(sys.argv[1]), host="::1") as (_, url):
    print(requests.post(f"{url}/recommend", json={"user": "u1"}, timeout=300).json()["version"])
"""
LOOK = """
import re, subprocess, sys, requests
words = [sys.executable, "-m", "daybreak", "pages", "--host", "::1", "--port", "0"]
with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as pages:
    try:
        address = next(found for line in pages.stderr if (found := re.search(r"http://\\S+/nights", line)))
        print(requests.get(address[0], timeout=300).status_code)
    finally:
        pages.terminate()
"""

# What a user runs on a home.
COMMANDS = (
    ("status",),
    ("why", "2"),
    ("check",),
    ("audit",),
    ("report",),
    ("watch",),
    ("reap",),
    ("due",),
    ("prune",),
    ("rollback", "--reason=worse", "--yes"),
    ("night", "--day", NIGHT),
)
NOT_THEIRS = "git config --global --add safe.directory|change its owner \\(chown\\)"

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
    address.settle(home)  # as the first night does
    elsewhere = f"sqlite:///{tmp_path / 'serving.db'}"
    with read_only(home):
        with started(home, DAYBREAK_LOG=elsewhere) as (_, url):
            answer = requests.post(f"{url}/recommend", json={"user": "u1"}, timeout=300).json()
            assert answer["version"] == 2
        for words in (("status",), ("why", "2"), ("check",)):
            done = daybreak(home, *words)
            assert done.returncode in (0, 1), done.stderr
        assert "source: " in done.stdout
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


def test_a_copy_that_may_not_be_written_to_is_examined_to_the_end(home: Path, tmp_path: Path) -> None:
    address.settle(home)
    shutil.copytree(home, tmp_path / "copy", symlinks=True)
    with read_only(tmp_path / "copy"):
        done = daybreak(tmp_path / "copy", "check")
    assert done.returncode == 1
    assert re.search(r"home: .* is read-only, or .* is; make it writable", done.stdout)
    assert "source: " in done.stdout


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users may look into, as they may not into pytest's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("settings", [{}, {"GIT_CONFIG_GLOBAL": os.devnull}], ids=["allowed", "git refuses"])
def test_a_home_that_root_made_is_shown_to_another_user_and_not_changed(
    home: Path, open_to_all: Path, settings: dict[str, str]
) -> None:
    """The user may read all; git does so for an owner alone, unless `safe.directory` says otherwise."""
    may_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # also Python, if root's
    by = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", *may_read)
    (open_to_all / "user").mkdir()
    os.chown(open_to_all / "user", STRANGER, STRANGER)
    shutil.copytree(home, open_to_all / "home", symlinks=True)
    home = open_to_all / "home"
    address.settle(home)

    def kept() -> dict[Path, tuple[int, int, int, int]]:
        facts = {path: path.lstat() for path in home.rglob("*")}
        return {path: (one.st_uid, one.st_mode, one.st_size, one.st_mtime_ns) for path, one in facts.items()}

    before = kept()
    for words in COMMANDS:
        done = daybreak(home, *words, by=by, HOME=str(open_to_all / "user"), **settings)
        assert done.returncode in (0, 1, 78, NothingToDo.exit_status), (words, done.stdout, done.stderr)
        if done.returncode not in (0, NothingToDo.exit_status):
            assert re.search(NOT_THEIRS, done.stdout + done.stderr), (words, done.stdout, done.stderr)
        if words == ("check",) and not settings:
            assert "source: " in done.stdout
        assert kept() == before, words


def test_a_machine_without_ipv4_serves_and_says_what_does_not_go_there(home: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    by = without_ipv4(tmp_path / "hosts")
    for script, says in ((ASK, "2\n"), (LOOK, "200\n")):
        served = subprocess.run(
            [*by, sys.executable, "-c", script, str(home)],
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{OWN}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert served.stdout == says, served.stderr
    said = daybreak(home, "check", by=by).stdout
    assert "127.0.0.1 is no address of this machine, and make up listens there" in said
    assert "connects its processes at localhost, which is no name of this machine; add the line ::1" in said
    refused = daybreak(home, "pages", by=by)
    assert refused.returncode == 1
    assert "127.0.0.1 is no address of this machine; name another by --host" in refused.stderr
    words = [
        "make",
        "--silent",
        "up",
        "--old-file=.venv/ready",
        f"DAYBREAK_HOME={tmp_path}",
        f"AIRFLOW_HOME={tmp_path / 'airflow'}",
    ]
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "ready").touch()  # the databases of Airflow and MLflow need no address
    up = subprocess.run([*by, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert up.returncode and "127.0.0.1 is no address of this machine, and make up listens" in up.stdout


def test_a_night_runs_on_a_machine_without_ipv4(
    tmp_path: Path, empty_store: Path, furnish: Callable[[Path], Path]
) -> None:
    home = furnish(home_at(tmp_path / "home", empty_store))
    (tmp_path / "hosts").write_text("::1 localhost\n")
    by = without_ipv4(tmp_path / "hosts")
    assert "localhost" not in daybreak(home, "check", by=by).stdout.replace("localhost,", "")
    night = daybreak(home, "night", "--day", NIGHT, by=by)
    assert night.returncode == 0, night.stderr
    assert records.read(Release, home / "nights" / NIGHT / records.RUN).version == 1


def without_ipv4(hosts: Path) -> tuple[str, ...]:
    """What runs a command where ::1 is the only address, and names are those of a file."""
    return ("unshare", "--net", "--mount", "bash", "-c", WITHOUT_IPV4, str(hosts))

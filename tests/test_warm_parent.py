"""Commands run in forks of a process that only imported libraries."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from daybreak import warm_parent
from daybreak.registry import confined

pytestmark = pytest.mark.slow

# A night's own code: it says what it finds, and ends as its second word says.
MAIN = """
import json, os, resource, sys, time
from pathlib import Path
name, status, *rest = sys.argv[1:]
said = {"pid": os.getpid(), "monitor": os.getppid(), "folder": os.getcwd(), "has": "colorsys" in sys.modules,
        "name": Path("/proc/self/comm").read_text().strip(), "main": __name__, "mood": os.environ.get("MOOD"),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
Path(f"{name}.json").write_text(json.dumps(said))
print("out")
print("err", file=sys.stderr)
time.sleep(float(rest[0]) if rest else 0)
if int(status) < 0:
    os.kill(os.getpid(), -int(status))
Path(f"{name}.done").touch()
sys.exit(int(status))
"""
ASK = (
    "import sys; from pathlib import Path; from daybreak import warm_parent\n"
    "folder, *words = sys.argv[1:]\n"
    "try:\n"
    "    ended = warm_parent.run(words, folder=Path(folder), libraries=['colorsys'])\n"
    "except KeyboardInterrupt:\n"
    "    sys.exit(130)\n"
    "sys.exit(ended.status)"
)  # as `daybreak STAGE` does


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipeline" / "daybreak").mkdir(parents=True)
    (tmp_path / "pipeline/daybreak/__init__.py").touch()
    (tmp_path / "pipeline/daybreak/__main__.py").write_text(MAIN)
    return tmp_path


def parents() -> list[psutil.Process]:
    """The warm parents that this process has started, which may have other children, also ended ones."""
    running = []
    for each in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is told as one of these
            running += [each] if warm_parent.__file__ in each.cmdline() else []
    return running


@pytest.fixture
def parent(folder: Path) -> Iterator[psutil.Process]:
    with warm_parent.running(folder):
        until = time.monotonic() + 300  # it may not be that program yet
        while not (running := parents()) and time.monotonic() < until:
            time.sleep(0.01)
        yield running[0]


def said(folder: Path, name: str) -> dict[str, object]:
    message: dict[str, object] = json.loads((folder / f"{name}.json").read_text())
    return message


def wait_for(path: Path) -> None:
    until = time.monotonic() + 300
    while not path.exists() or not path.read_text():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.01)


def process(folder: Path, name: str, key: str = "pid") -> psutil.Process:
    return psutil.Process(int(str(said(folder, name)[key])))


def ask(folder: Path, *words: str, before: str = "", **options: Any) -> "subprocess.Popen[str]":
    """Starts a process that asks for a command, with a session of its own as a task of Airflow has."""
    command = [sys.executable, "-c", before + ASK, str(folder), *words]
    return subprocess.Popen(command, text=True, start_new_session=True, **options)


@pytest.mark.parametrize("status", [0, 1, 75, 99, -9])
def test_a_command_ends_as_it_would_by_itself(parent: psutil.Process, folder: Path, status: int) -> None:
    ended = warm_parent.run(["train", str(status)], folder=folder, libraries=[])
    assert ended.status == (status if status >= 0 else 128 - status)
    assert said(folder, "train")["monitor"] != os.getpid()


def test_each_command_is_a_process_of_its_own_with_the_code_of_its_folder(
    parent: psutil.Process, folder: Path
) -> None:
    for name in ("validate", "prepare"):
        assert warm_parent.run([name, "0"], folder=folder, libraries=["colorsys"]).status == 0
    first, second = said(folder, "validate"), said(folder, "prepare")
    assert len({first["pid"], second["pid"], parent.pid, os.getpid()}) == 4
    assert (first["name"], first["folder"]) == ("validate", str(folder))
    assert (first["main"], first["has"]) == ("__main__", True)


def test_a_command_has_the_files_the_environment_and_the_limits_of_who_asked_for_it(
    parent: psutil.Process, folder: Path
) -> None:
    def fewer_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "MOOD": "calm"}
    with ask(folder, "gate", "75", env=environment, preexec_fn=fewer_files, **pipes) as asked:
        assert asked.communicate() == ("out\n", "err\n")
    assert asked.returncode == 75
    assert (said(folder, "gate")["mood"], said(folder, "gate")["files"]) == ("calm", 99)


def test_a_library_that_cannot_be_imported_is_left_to_the_command(
    parent: psutil.Process, folder: Path
) -> None:
    assert warm_parent.run(["gate", "0"], folder=folder, libraries=["no_such_library"]).status == 0


@pytest.mark.skipif(sys.platform != "linux", reason="nothing confines a process here")
def test_a_process_that_may_gain_no_privileges_has_no_command_run_by_the_parent(
    parent: psutil.Process, folder: Path
) -> None:
    """A version's code is barred so, and its command is left to itself."""
    before = f"import ctypes; ctypes.CDLL(None).prctl({confined.NO_NEW_PRIVILEGES}, 1, 0, 0, 0)\n"
    for name, barred, has in (("gate", before, False), ("close", "", True)):
        with ask(folder, name, "0", before=barred) as asked:
            assert asked.wait(300) == 0
        assert (said(folder, name)["monitor"] == asked.pid, said(folder, name)["has"]) == (not has, has)


def test_where_the_parent_was_killed_a_command_runs_alone(parent: psutil.Process, folder: Path) -> None:
    warm_parent.run(["ingest", "0"], folder=folder, libraries=["colorsys"])
    parent.kill()
    parent.wait(10)
    assert warm_parent.run(["plan", "75"], folder=folder, libraries=["colorsys"]).status == 75
    assert (said(folder, "plan")["has"], said(folder, "plan")["monitor"]) == (False, os.getpid())


def test_a_command_outlives_a_parent_that_is_killed(parent: psutil.Process, folder: Path) -> None:
    with ask(folder, "close", "0", "2") as asked:
        wait_for(folder / "close.json")
        before = said(folder, "close")
        parent.kill()
        assert asked.wait(30) == 0
    assert said(folder, "close") == before


def test_where_the_monitor_is_killed_the_command_ends_and_runs_again_alone(
    parent: psutil.Process, folder: Path
) -> None:
    """As two copies of a stage at once would be one too many."""
    with ask(folder, "close", "0", "2") as asked:
        wait_for(folder / "close.json")
        before = psutil.Process(int(str(said(folder, "close")["pid"])))
        process(folder, "close", "monitor").kill()
        assert asked.wait(30) == 0
    assert said(folder, "close")["pid"] != before.pid
    with contextlib.suppress(psutil.NoSuchProcess):  # in a container, nobody may reap it
        assert before.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_ends_with_who_asked_for_it(
    parent: psutil.Process, folder: Path, number: signal.Signals
) -> None:
    with ask(folder, "train", "0", "60") as asked:
        wait_for(folder / "train.json")
        command = process(folder, "train")
        os.killpg(asked.pid, number)  # as Airflow ends a task
    command.wait(10)
    assert not (folder / "train.done").exists()
    assert warm_parent.run(["plan", "0"], folder=folder, libraries=["colorsys"]).status == 0
    assert said(folder, "plan")["has"]


@pytest.mark.parametrize("before", ["", "import signal; signal.siginterrupt(signal.SIGINT, False)\n"])
def test_ctrl_c_ends_the_command_and_not_the_parent(
    parent: psutil.Process, folder: Path, before: str
) -> None:
    """Also where a library, as polars, has made the system restart calls that a signal interrupts."""
    with ask(folder, "train", "0", "60", before=before, stderr=subprocess.DEVNULL) as asked:
        wait_for(folder / "train.json")
        command = process(folder, "train")
        os.killpg(asked.pid, signal.SIGINT)
        assert asked.wait(30) == 130
    assert not command.is_running()
    assert not (folder / "train.done").exists()
    assert parent.is_running()


def test_the_parent_ends_with_its_note_and_leaves_nothing(folder: Path) -> None:
    with warm_parent.running(folder):
        address = Path((folder / warm_parent.NOTE).read_text())
        assert address.parent.stat().st_mode & 0o077 == 0  # nobody else may have code run
        warm_parent.run(["ingest", "0"], folder=folder, libraries=[])
        (parent,) = parents()
    assert not parent.is_running()
    assert not (folder / warm_parent.NOTE).exists()
    assert not address.parent.exists()


def test_a_second_parent_takes_the_place_of_the_first(folder: Path) -> None:
    first = warm_parent.start(folder)
    assert first
    with warm_parent.running(folder):
        assert first.wait(30) == 0
        assert warm_parent.run(["plan", "0"], folder=folder, libraries=["colorsys"]).status == 0
        assert said(folder, "plan")["has"]


def test_where_there_is_no_place_for_a_socket_commands_run_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = folder / ("x" * 100)
    far.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    with warm_parent.running(folder):
        assert warm_parent.run(["plan", "75"], folder=folder, libraries=[]).status == 75
    assert said(folder, "plan")["monitor"] == os.getpid()
    assert not list(far.iterdir())

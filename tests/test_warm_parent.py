"""Commands run in forks of a process that only imported libraries."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.warm_parent import WarmParent

pytestmark = pytest.mark.slow

# A night's own code: it says what it finds, and ends as its second word says.
MAIN = """
import json, os, sys, time
from pathlib import Path
name, status, *rest = sys.argv[1:]
said = {"pid": os.getpid(), "parent": os.getppid(), "folder": os.getcwd(), "has": "colorsys" in sys.modules,
        "name": Path("/proc/self/comm").read_text().strip(), "main": __name__}
Path(f"{name}.json").write_text(json.dumps(said))
print("is dropped")
time.sleep(float(rest[0]) if rest else 0)
if int(status) < 0:
    os.kill(os.getpid(), -int(status))
Path(f"{name}.done").touch()
sys.exit(int(status))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__init__.py").touch()
    (tmp_path / "pipeline/__main__.py").write_text(MAIN)
    return tmp_path


@pytest.fixture
def parent() -> Iterator[WarmParent]:
    with WarmParent() as parent:
        yield parent


def said(folder: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / f"{name}.json").read_text())
    return found


def wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists() or not path.read_text():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.01)


@pytest.mark.parametrize("status", [0, 1, 75, 99, -9])
def test_a_command_ends_as_it_would_by_itself(parent: WarmParent, folder: Path, status: int) -> None:
    ended = parent.run(["train", str(status)], folder=folder, libraries=[])
    assert ended.status == (status if status >= 0 else 128 - status)


def test_each_command_is_a_process_of_its_own_with_the_code_of_its_folder(
    parent: WarmParent, folder: Path
) -> None:
    for name in ("validate", "prepare"):
        assert parent.run([name, "0"], folder=folder, libraries=["colorsys"]).status == 0
    first, second = said(folder, "validate"), said(folder, "prepare")
    assert first["pid"] != second["pid"]
    assert first["parent"] == second["parent"] != os.getpid()
    assert (first["name"], first["folder"]) == ("validate", str(folder))
    assert (first["main"], first["has"]) == ("__main__", True)


def test_a_library_that_cannot_be_imported_is_left_to_the_command(parent: WarmParent, folder: Path) -> None:
    assert parent.run(["gate", "0"], folder=folder, libraries=["no_such_library"]).status == 0


def test_where_the_parent_was_killed_a_command_runs_alone(parent: WarmParent, folder: Path) -> None:
    parent.run(["ingest", "0"], folder=folder, libraries=["colorsys"])
    killed = psutil.Process(int(str(said(folder, "ingest")["parent"])))
    killed.kill()
    killed.wait(10)
    assert parent.run(["plan", "75"], folder=folder, libraries=["colorsys"]).status == 75
    assert (said(folder, "plan")["has"], said(folder, "plan")["parent"]) == (False, os.getpid())


def test_where_the_parent_is_killed_its_command_ends_and_runs_again_alone(folder: Path) -> None:
    """As two copies of a stage at once would be one too many."""
    script = (
        "import sys; from pathlib import Path; from pipeline.warm_parent import WarmParent\n"
        "with WarmParent() as parent:\n"
        "    ended = parent.run(['close', '0', '2'], folder=Path(sys.argv[1]), libraries=[])\n"
        "sys.exit(ended.status)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(folder)]) as night:
        wait_for(folder / "close.json")
        before = said(folder, "close")
        psutil.Process(int(str(before["parent"]))).kill()
        assert night.wait(30) == 0
    assert said(folder, "close")["pid"] != before["pid"]
    assert not psutil.pid_exists(int(str(before["pid"])))


def test_ctrl_c_ends_the_command_and_the_parent(folder: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from pipeline.warm_parent import WarmParent\n"
        "try:\n"
        "    with WarmParent() as parent:\n"
        "        parent.run(['train', '0', '60'], folder=Path(sys.argv[1]), libraries=[])\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)"
    )
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as night:
        wait_for(folder / "train.json")
        found = [psutil.Process(int(str(said(folder, "train")[key]))) for key in ("pid", "parent")]
        os.killpg(night.pid, signal.SIGINT)
        assert night.wait(30) == 130
    assert not any(process.is_running() for process in found)
    assert not (folder / "train.done").exists()

"""What code of a version sees and reaches, seen from a script that runs as it does."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from daybreak.contract.code_path import PASSED_ON
from daybreak.registry import confined
from tests.conftest import ROOT
from tests.extensions.router.running import has_ended, until

SCRIPT = """\
import json, os, socket, sys, tempfile

def outcome(call):
    try:
        return repr(call())
    except OSError as error:
        return type(error).__name__

parent, port, scratch, home = sys.argv[1:]
seen = {
    "environment": dict(os.environ),
    "user": os.getuid(),
    "own_file": outcome(lambda: open(__file__).close()),
    "own_folder": outcome(lambda: tempfile.TemporaryFile(dir=scratch).close()),
    "of_parent": outcome(lambda: open(f"/proc/{parent}/environ").read()),
    "network": outcome(lambda: socket.create_connection(("127.0.0.1", int(port)), 5).close()),
    **{name: outcome(lambda: open(f"{home}/{name}").read()) for name in (".ssh", ".git", "var")},
    "written": outcome(lambda: open(f"{home}/code.py", "w").close()),
}
print(json.dumps(seen))
"""
# The parent holds a secret since it began, as a router or a stage does.
PARENT = """\
import os, subprocess, sys
from pathlib import Path
from daybreak.registry import carried_code
script, _, scratch, _ = map(Path, sys.argv[1:])
words = str(os.getpid()), *sys.argv[2:]
command = carried_code.command(None, script, *words, scratch=scratch, reads=(script,))
subprocess.run(command, env=carried_code.environment(scratch), check=True)
"""
# A container has no namespaces to give: here, one that has none left.
NO_NAMESPACES = """\
import ctypes, os
from pathlib import Path
user = os.getuid()
if ctypes.CDLL(None).unshare(0x10000000):
    raise SystemExit("no namespaces")
Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
Path("/proc/sys/user/max_user_namespaces").write_text("0")
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", NO_NAMESPACES], ids=["namespaces", "Landlock alone"])
def test_code_of_a_version_sees_no_secret_of_its_parent_and_reaches_no_network(
    before: str, tmp_path: Path
) -> None:
    """No secret is in variables or files; the code has its own variables, and writes to its own folder."""
    script, scratch, home = tmp_path / "script.py", tmp_path / "scratch", tmp_path / "home"
    script.write_text(SCRIPT)
    for folder in (scratch, home):
        folder.mkdir()
    for name in (".ssh", ".git", "var"):
        (home / name).write_text("canary")
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [str(script), str(server.getsockname()[1]), str(scratch), str(home)]
        done = subprocess.run(
            [sys.executable, "-c", before + PARENT, *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SECRET": "canary", "HOME": str(home), "DAYBREAK_HOME": str(home)},
        )
    if "no namespaces" in done.stderr or ("permit user namespaces" in done.stderr and not before):
        pytest.skip(f"this machine confines no process: {done.stderr}")
    seen: dict[str, Any] = json.loads(done.stdout)
    assert set(seen.pop("environment")) <= {*PASSED_ON, "HOME", "TMPDIR", "LC_CTYPE"}
    assert [seen.pop(name) for name in ("user", "own_file", "own_folder")] == [os.getuid(), "None", "None"]
    if "files of this user" in done.stderr:
        pytest.skip(f"this machine has no Landlock: {done.stderr}")
    assert seen.pop("network") in ("PermissionError", "OSError")  # by Landlock, or for lack of a network
    assert seen.pop("of_parent") in ("PermissionError", "FileNotFoundError")  # it sees no such process
    assert set(seen.values()) == {"PermissionError"}, seen


def test_packages_of_a_user_are_read_though_their_folder_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = "/home/somebody/.local/lib/python3.11/site-packages"
    monkeypatch.setattr(sys, "path", [*sys.path, packages])
    folders = next(word for word in confined.command("a.module") if word.startswith("{"))
    assert packages in json.loads(folders)["reads"]


def test_all_but_what_is_hidden_may_be_read(tmp_path: Path) -> None:
    home = tmp_path / "shop"
    for name in (".git/objects", ".dvc/cache", "data", "var"):
        (home / name).mkdir(parents=True)
    (home / ".dvc/config.local").write_text("a key of the remote")
    (home / "out").symlink_to(home / "var")
    hidden = {home / name for name in (".git", ".dvc/config.local", "var")}
    assert {*confined._shown(tmp_path, hidden)} == {home / "data", home / ".dvc/cache"}


@pytest.mark.slow
def test_a_confined_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint(flush=True)\ntime.sleep(600)\n")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(script), "0", str(tmp_path), ""], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent:
        parent.stdout.readline()
        processes = [each.pid for each in psutil.Process(parent.pid).children(recursive=True)]
        parent.send_signal(signal.SIGKILL)
    assert processes
    until(lambda: all(has_ended(each) for each in processes))


FORBIDDEN = (
    NO_NAMESPACES
    + """\
import logging
from daybreak.registry import confined
logging.basicConfig(format="%(message)s")
for _ in range(2):
    confined.command("a.module")
"""
)


@pytest.mark.slow
def test_a_machine_that_confines_nothing_is_named_once() -> None:
    if os.name != "posix" or not os.access("/proc/sys/user/max_user_namespaces", os.F_OK):
        pytest.skip("this platform has no user namespaces")
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, check=False, timeout=300
    )
    if "no namespaces" in done.stderr:
        pytest.skip("this machine confines no process")
    assert done.stderr == (
        "the code of versions is not kept from limits of other processes of this user, and from leaving "
        "processes and shared memory behind: No space left on device; permit user namespaces and Landlock, "
        "or run what starts it in a container of its own\n"
    )


CHECKED = (
    NO_NAMESPACES
    + """\
from daybreak.check import findings
from daybreak.storage.home import Home
print(*(finding.text for finding in findings(Home.here()) if finding.what == "confinement"))
"""
)


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/sys/user/max_user_namespaces", os.F_OK), reason="no namespaces")
def test_check_says_what_a_machine_does_not_confine(repository: Path) -> None:
    (repository / "params.yaml").write_text(
        "source: tests.fakes:TwoDays\nworkload: tests.fakes:Nothing\nbackend: tests.fakes:ScriptedBackend\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", CHECKED],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if "no namespaces" in done.stderr:
        pytest.skip("this machine confines no process")
    assert "the code of versions is not kept from limits of other processes of this user" in done.stdout
    assert "; permit user namespaces and Landlock" in done.stdout

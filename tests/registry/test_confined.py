"""What code of a version sees and reaches, seen from a script that runs as it does."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.registry import carried_code
from tests.serving.running import until

SCRIPT = """\
import json, os, socket, sys

def outcome(call):
    try:
        return repr(call())
    except OSError as error:
        return type(error).__name__

seen = {
    "environment": dict(os.environ),
    "of_parent": outcome(lambda: open(f"/proc/{sys.argv[1]}/environ").read()),
    "network": outcome(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[2])), 5).close()),
    "user": os.getuid(),
    "own_file": outcome(lambda: open(__file__).close()),
}
print(json.dumps(seen))
"""
# The parent holds a secret since it began, as a router or a stage does.
PARENT = """\
import os, subprocess, sys
from pathlib import Path
from pipeline.registry import carried_code, confined
command = confined.command(Path(sys.argv[1]), str(os.getpid()), sys.argv[2], flags=["-I"])
subprocess.run(command, env=carried_code.environment(), check=True)
"""


@pytest.mark.slow
def test_code_of_a_version_sees_no_secret_of_its_parent_and_reaches_no_network(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [sys.executable, "-c", PARENT, str(script), str(server.getsockname()[1])]
        done = subprocess.run(
            words, env={**os.environ, "SECRET": "canary"}, capture_output=True, text=True, check=True
        )
    seen: dict[str, Any] = json.loads(done.stdout)
    assert set(seen["environment"]) <= {*carried_code.PASSED_ON, "LC_CTYPE"}
    assert (seen["user"], seen["own_file"]) == (os.getuid(), "None")
    if "permit user namespaces" in done.stderr:
        pytest.skip(f"this machine confines no process: {done.stderr}")
    assert "canary" not in done.stdout
    assert (seen["of_parent"], seen["network"]) == ("PermissionError", "OSError")


@pytest.mark.slow
def test_a_confined_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(script), "0"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent:
        process = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)

    def is_gone() -> bool:
        status = Path(f"/proc/{process}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"

    until(is_gone)


FORBIDDEN = """\
import logging
from pathlib import Path
from pipeline.registry import confined
logging.basicConfig(format="%(message)s")
assert not confined.confine()
Path("/proc/sys/user/max_user_namespaces").write_text("0")  # in the namespace that this process now has
for _ in range(2):
    confined.command("a.module")
"""


@pytest.mark.slow
def test_a_machine_that_confines_nothing_is_named_once() -> None:
    if os.name != "posix" or not os.access("/proc/sys/user/max_user_namespaces", os.F_OK):
        pytest.skip("this platform has no user namespaces")
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, check=False, timeout=60
    )
    if "AssertionError" in done.stderr:
        pytest.skip("this machine confines no process")
    assert done.stderr == (
        "the code of versions is not kept from the network and from other processes of this user: No space "
        "left on device; permit user namespaces, or run what starts it in a container of its own\n"
    )

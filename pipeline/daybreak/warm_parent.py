"""Runs `daybreak STAGE` in forks of one process that has imported the libraries stages need.

    with warm_parent.running(folder):
        ended = warm_parent.run(["validate"], folder=folder, libraries=["great_expectations"])

Most of a night's CPU time outside training went into imports, the same ones in ten interpreters. The parent
imports libraries and does nothing else: it makes no pool, client or connection, and touches no device. So a
fork is as good as a new interpreter, and a stage stays a separate process, which may be killed at any line.
The parent imports nothing of ours, since a night runs its own code.

A process that runs a stage connects to the parent at the address in a note in the folder of the night, and
passes its arguments, environment, limits and open files. A monitor, a fork as well, starts the stage, waits
for it, and ends it when the calling process is gone. Without a parent, a stage runs in a separate
interpreter. Run as a script, this file is the parent.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

NOTE = Path("data/run/warm_parent.txt")  # address of the parent of a night, in the folder of the night
ASKED = "DAYBREAK_STAGE_WAS_ASKED_FOR"  # environment variable of a stage that `run` runs
GRACE_S = 10.0  # for a stage to end by itself after Ctrl-C, or when its caller is gone
IDLE_S = 900.0  # without a stage, after which the parent ends by itself
TICK_S = 2.0
KEPT_FROM = ("NoNewPrivs:", "Seccomp:", "Seccomp_filters:")  # lines of /proc/PID/status
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    status: int  # exit status; 128 + the signal that killed it
    cpu_s: float  # of the command and what it waited for


def start(folder: Path) -> "subprocess.Popen[bytes] | None":
    """Starts the parent of the night in `folder`; it ends when its note is gone, or after IDLE_S unused.

    Returns None where the system has no such socket, as where the path of its temporary folder is too long.
    """
    address = Path(tempfile.mkdtemp(prefix="daybreak-")) / "parent"  # a folder that only this user may enter
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            listening.bind(str(address))
        except OSError:
            address.parent.rmdir()
            return None
        listening.listen()
        note = folder.absolute() / NOTE
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(str(address))
        command = [sys.executable, "-P", __file__, str(listening.fileno()), str(note)]
        return subprocess.Popen(
            command,
            pass_fds=[listening.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@contextlib.contextmanager
def running(folder: Path) -> Iterator[None]:
    """Keeps a parent for the night in `folder` until the end of the `with`."""
    parent = start(folder)
    try:
        yield
    finally:
        end(folder)
        if parent:
            parent.wait()


def end(folder: Path) -> None:
    """Ends the parent of the night in `folder`, within seconds, once no stage uses it."""
    (folder / NOTE).unlink(missing_ok=True)


def run(words: Sequence[str], *, folder: Path, libraries: Sequence[str], stdout: int = 1) -> Ended:
    """Runs a command in a folder, with the code that is there, once the parent has imported `libraries`.

    Ctrl-C is passed on, and raised again when the command has ended. What the command prints goes to the file
    descriptor `stdout`, and to standard error.
    """
    signal.siginterrupt(signal.SIGINT, True)  # polars, which MLflow imports, has waiting calls begin again
    with socket.socket(socket.AF_UNIX) as connection:
        command = 0
        try:
            connection.connect((folder / NOTE).read_text())
            request = {
                "words": [*words],
                "folder": str(folder.absolute()),
                "libraries": [*libraries],
                "environment": _environment(folder),
                "nice": os.nice(0),
                "limits": [resource.getrlimit(limit) for limit in LIMITS],
            }
            socket.send_fds(connection, [b"\n"], [0, stdout, 2])
            connection.sendall(json.dumps(request).encode() + b"\n")
            replies = connection.makefile()
            command = int(replies.readline())
            try:
                return Ended(**json.loads(replies.readline()))
            except KeyboardInterrupt:
                with contextlib.suppress(
                    OSError
                ):  # the monitor may be gone, which is no reason to run it again
                    connection.sendall(bytes([signal.SIGINT]))
                    replies.readline()
                raise
        except (OSError, ValueError):  # there is no parent, or it is gone, or the monitor
            _kill(command)
            return _alone(words, folder, stdout)


def _kill(command: int) -> None:
    """Kills a command, so that it does not run twice at once."""
    with contextlib.suppress(ProcessLookupError):
        if command:
            os.killpg(command, signal.SIGKILL)
        until = time.monotonic() + GRACE_S  # in a container, nobody may reap it
        while command and time.monotonic() < until:
            os.kill(command, 0)
            time.sleep(0.01)


def _alone(words: Sequence[str], folder: Path, stdout: int) -> Ended:
    before = _children_s()
    command = [sys.executable, "-P", "-m", "daybreak", *words]
    done = subprocess.run(command, cwd=folder, stdout=stdout, env=_environment(folder), check=False)
    return Ended(status=_exit_status(done.returncode), cpu_s=_children_s() - before)


def _environment(folder: Path) -> dict[str, str]:
    """Returns the variables of a stage in `folder`."""
    from daybreak.contract import code_path  # the parent, which is this file too, imports nothing of ours

    return {**os.environ, **code_path.environment(folder), ASKED: "1"}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _exit_status(code: int) -> int:
    return code if code >= 0 else 128 - code


def _serve(listening: socket.socket, note: Path) -> dict[str, Any] | None:
    """Forks for each request; returns the request in the fork of it, None at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    address, used_at, monitors = listening.getsockname(), time.monotonic(), 0
    try:
        while _says(note, address) and time.monotonic() - used_at < IDLE_S:
            ready, _, _ = select.select([listening], [], [], TICK_S)
            monitors -= _reaped(monitors)
            if ready:
                connection, _ = listening.accept()
                with connection:
                    request, files = _read(connection) if _is_one_of_us(connection) else ({}, [])
                    if request:
                        _import(request["libraries"])
                    if request and os.fork() == 0:
                        listening.close()
                        return _keep(connection, request, files)
                    for file in files:
                        os.close(file)
                monitors += bool(request)
            if monitors:
                used_at = time.monotonic()
    finally:
        if listening.fileno() >= 0:  # in the parent
            _reaped(monitors)  # so that what they used counts as used by the parent
            shutil.rmtree(Path(address).parent, ignore_errors=True)
            if _says(note, address):
                note.unlink()
    return None


def _is_one_of_us(connection: socket.socket) -> bool:
    """Returns whether a process of this user connects that has what this one has.

    The code of a version runs as the same user, in namespaces of its own or barred from new privileges
    (registry/confined.py). It could ask for a stage here, which would have neither.
    """
    if sys.platform != "linux":
        return True  # where nothing confines
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with contextlib.suppress(OSError):
        return user == os.getuid() and _place_of(process) == _place_of(os.getpid())
    return False


def _place_of(process: int) -> tuple[Path, list[str]]:
    """Returns the user namespace of a process, and what the kernel keeps it from."""
    facts = Path(f"/proc/{process}")
    kept = [line for line in (facts / "status").read_text().splitlines() if line.startswith(KEPT_FROM)]
    return (facts / "ns" / "user").readlink(), kept


def _reaped(most: int) -> int:
    """Returns how many monitors have ended since the last call."""
    num = 0
    while num < most and os.waitpid(-1, os.WNOHANG)[0]:
        num += 1
    return num


def _says(note: Path, address: str) -> bool:
    with contextlib.suppress(OSError):
        return note.read_text() == address
    return False


def _read(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns a request and the files that came with it; an empty one where the client has disconnected."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as lines:
        text = lines.readline()
    return (json.loads(text) if text.endswith("\n") and len(files) == 3 else {}), files


def _import(libraries: Sequence[str]) -> None:
    for name in libraries:
        with contextlib.suppress(Exception):  # the command that needs it says so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first collection of a fork copies all that it shares with the parent


def _keep(connection: socket.socket, request: dict[str, Any], files: Sequence[int]) -> dict[str, Any]:
    """Forks once more, and returns the request in the command; the monitor itself ends with the command."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    command = os.fork()
    if command == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setpgid(0, 0)
        for number, file in enumerate(files):
            os.dup2(file, number)
        for file in (*files, woken, wake, connection.detach()):
            os.close(file)
        return request
    with contextlib.suppress(OSError):  # the command has done it
        os.setpgid(command, command)
    try:
        _wait(command, connection, woken)
    finally:
        os._exit(0)


def _wait(command: int, connection: socket.socket, woken: int) -> None:
    """Waits for the end of the command, and passes on signals; the end of the connection ends it."""
    listened, kill_at = [woken, connection.fileno()], float("inf")
    with contextlib.suppress(OSError):
        connection.sendall(b"%d\n" % command)
    while True:
        heard, _, _ = select.select(listened, [], [], TICK_S)
        ended, code, used = os.wait4(command, os.WNOHANG)
        if ended:
            break
        if woken in heard:
            os.read(woken, 16)
        if connection.fileno() in heard:
            signals = _signals(connection)
            if not signals:  # the caller is gone
                listened.remove(connection.fileno())
            for number in signals or [signal.SIGTERM]:
                os.killpg(command, number)
            kill_at = time.monotonic() + GRACE_S
        if time.monotonic() > kill_at:
            os.killpg(command, signal.SIGKILL)
    status = _exit_status(os.waitstatus_to_exitcode(code))
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps({"status": status, "cpu_s": used.ru_utime + used.ru_stime}).encode())
        connection.sendall(b"\n")


def _signals(connection: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return connection.recv(16)
    return b""


def _become(request: dict[str, Any]) -> NoReturn:
    """Goes on as `daybreak` in that folder would, and ends.

    At the end it skips the teardown of an interpreter, which takes a second with so many libraries.
    """
    status = 1
    try:
        os.environ.clear()
        os.environ.update(request["environment"])
        for limit, values in zip(LIMITS, request["limits"], strict=True):
            with contextlib.suppress(ValueError, OSError):  # one that this process may not raise
                resource.setrlimit(limit, values)
        os.nice(max(request["nice"] - os.nice(0), 0))
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(request["words"][0])  # what `ps` and `top` show
        os.chdir(request["folder"])
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # the parent's is /dev/null
        paths = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in paths if path]
        sys.argv = ["daybreak", *request["words"]]
        runpy.run_module("daybreak", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, an interpreter would print it
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined] # waits for threads
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # a pipe whose reader is gone
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    asked = _serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
    if asked:
        _become(asked)

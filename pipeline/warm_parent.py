"""Runs `python -m pipeline STAGE` in forks of one process that has imported the libraries stages need.

    with WarmParent() as parent:
        ended = parent.run(["validate"], folder=night, libraries=["great_expectations"])

Most of a night's CPU time outside training went into imports, the same ones in ten interpreters. The parent
imports libraries and does nothing else: it makes no pool, client or connection, and touches no device. So a
fork of it is as good as a new interpreter, and a stage stays a process of its own, which may be killed at any
line. It imports nothing of ours, since a night runs its own code. Run as a script, this file is the parent.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

GRACE_S = 10.0  # for a stage to end by itself after Ctrl-C


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    status: int  # exit status; 128 + the signal that killed it
    cpu_s: float  # of the command and what it waited for


class WarmParent:
    """The parent, for the length of a `with`; where it dies, commands run in interpreters of their own."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", __file__]
        self._parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the parent, and a command that Ctrl-C did not end within seconds."""
        assert self._parent.stdin and self._parent.stdout
        with contextlib.suppress(BrokenPipeError):
            self._parent.stdin.close()
        try:
            self._parent.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._kill_command()
            self._parent.kill()
            self._parent.wait()
        self._parent.stdout.close()

    def run(self, words: Sequence[str], *, folder: Path, libraries: Sequence[str]) -> Ended:
        """Runs a command in a folder, with the code that is there, once the parent has imported `libraries`.

        What it prints on standard output is dropped: its record is a file.
        """
        assert self._parent.stdin and self._parent.stdout
        request = {"words": [*words], "folder": str(folder), "libraries": [*libraries]}
        self._command = 0
        try:
            self._parent.stdin.write(json.dumps(request) + "\n")
            self._parent.stdin.flush()
            self._command = json.loads(self._parent.stdout.readline())
            return Ended(**json.loads(self._parent.stdout.readline()))
        except (BrokenPipeError, json.JSONDecodeError):  # the parent is gone
            self._kill_command()
            return _alone(words, folder)

    def _kill_command(self) -> None:
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            if self._command:
                command = psutil.Process(self._command)
                command.kill()
                command.wait(GRACE_S)


def _alone(words: Sequence[str], folder: Path) -> Ended:
    before = _children_s()
    command = [sys.executable, "-m", "pipeline", *words]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
    return Ended(status=_exit_status(done.returncode), cpu_s=_children_s() - before)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _exit_status(code: int) -> int:
    return code if code >= 0 else 128 - code


def _serve() -> dict[str, Any] | None:
    """Forks for each request on standard input; returns the request in the fork, None at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for line in requests:
        request: dict[str, Any] = json.loads(line)
        for name in request["libraries"]:
            with contextlib.suppress(Exception):  # the command that needs it says so
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # else the first collection of a fork copies all that it shares with the parent
        number = os.fork()
        if number == 0:
            os.close(requests.fileno())
            os.close(replies.fileno())
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return request
        print(number, file=replies, flush=True)
        _, code, used = os.wait4(number, 0)
        status = _exit_status(os.waitstatus_to_exitcode(code))
        print(
            json.dumps({"status": status, "cpu_s": used.ru_utime + used.ru_stime}), file=replies, flush=True
        )
    return None


def _become(words: Sequence[str], folder: str) -> NoReturn:
    """Goes on as `python -m pipeline` in that folder would, and ends.

    At the end it does what an interpreter does but take itself apart, which takes a second with so many
    libraries.
    """
    status = 1
    try:
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(words[0])  # what `ps` and `top` show
        os.chdir(folder)
        sys.path.insert(0, folder)
        sys.argv = ["pipeline", *words]
        runpy.run_module("pipeline", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, an interpreter would print it
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined] # waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    asked = _serve()
    if asked:
        _become(asked["words"], asked["folder"])

"""Containers as processes of this machine."""

import contextlib
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_all(members: Iterable[psutil.Process]) -> None:
    """Kill them, those that still live."""
    for one in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def family(pid: int) -> list[psutil.Process]:
    """The process and all that it started."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def start(
    command: Sequence[str], *, environment: Mapping[str, str], disk: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Starts a container's process in its own group; it writes to the end of `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=disk,
            start_new_session=True,
        )

"""Containers as processes of this machine."""

import contextlib
import socket
from collections.abc import Iterable

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

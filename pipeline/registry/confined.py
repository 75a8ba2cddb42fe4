"""Confines the process that it runs in, then runs there what runs a version's code: a module or a script.

    python -m pipeline.registry.confined MODULE [WORD ...]
    python -I pipeline/registry/confined.py SCRIPT.py [WORD ...]

Whoever starts it gives it no secret (`carried_code.environment`). On Linux the process then enters a user and
a network namespace of its own: it reaches no network, and may read neither memory nor environment of other
processes of its user, where those have the secrets. It gains no privileges, writes no core, takes no more
memory than the machine has, ends with the thread that started it, and is the first to go where memory is
short. What the platform does not permit is left out, and the log says so once. The file imports nothing of
the pipeline, since the process is to import the version's own.
"""

import contextlib
import ctypes
import functools
import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # linux/sched.h
DEATH_SIGNAL, DUMPABLE, NO_NEW_PRIVILEGES = 1, 4, 38  # linux/prctl.h
SIGKILL = 9
OUT_OF_MEMORY = 500  # added to the badness of the process, of 1000


def command(target: str | Path, *words: str, flags: Sequence[str] = ()) -> list[str]:
    """Returns the command that runs a module, or the script of a path, confined."""
    say_once()
    itself = [__file__] if isinstance(target, Path) else ["-m", __name__]
    return [sys.executable, *flags, *itself, str(target), *words]


@functools.cache
def say_once() -> None:
    """Warns, at its first call, where this machine lets no process be confined.

    This process then hides its own memory and environment from others of its user, as a second best.
    """
    words = [sys.executable, "-I", __file__]
    done = subprocess.run(words, env={}, capture_output=True, text=True, check=False)
    if why := (done.stdout or done.stderr).strip():
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DUMPABLE, 0, 0, 0, 0)
        log.warning(
            "the code of versions is not kept from the network and from other processes of this user: %s; "
            "permit user namespaces, or run what starts it in a container of its own",
            why,
        )


def confine() -> str:
    """Confines this process, which must have one thread; returns why it could not, "" where it could."""
    if sys.platform != "linux":
        return f"{sys.platform} has no namespaces"
    import resource

    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    alone = libc.unshare(NEW_USER | NEW_NETWORK) == 0
    why = "" if alone else os.strerror(ctypes.get_errno())
    try:
        if alone:  # user and group have the same names as outside
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as error:
        why = str(error)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(DEATH_SIGNAL, SIGKILL, 0, 0, 0)  # last, since a new user namespace forgets it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(ValueError, OSError):  # a lower limit stands already
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OUT_OF_MEMORY))
    return why


def main(words: list[str]) -> None:
    """Confines this process and runs what the words name; without words, says why it cannot be confined."""
    why = confine()
    if not words:
        sys.stdout.write(why)
        return
    sys.argv = words
    if words[0].endswith(".py"):
        runpy.run_path(words[0], run_name="__main__")
    else:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Confines the process that it runs in, then runs there what runs a version's code: a module or a script.

    python -P -m daybreak.registry.confined FOLDERS MODULE [WORD ...]
    python -I daybreak/registry/confined.py FOLDERS SCRIPT.py [WORD ...]

The process gets no secrets from its starter (`carried_code.environment`). On Linux it then enters namespaces
of its own: it reaches no network, sees no process but those that it starts, which end with it, and shares no
memory. Landlock keeps it from files: it may write to named folders only, and may not read where secrets lie:
/run, /var, /tmp, hidden files of the user, and further named paths. A filter of system calls
(system_calls.py) keeps it from sockets of the host and from modes of files. Without namespaces, as in many
containers, Landlock also keeps it from other processes and from TCP. The process has no privileges, writes no
core, keeps no more private memory than the machine has, queues a bounded number of signals, starts a bounded
number of processes, and ends with the thread that started it. Memory that it shares among its own processes
has no bound; where the machine has none left, the kernel prefers to kill it, which only root's cannot undo.
Measures that the platform does not permit are left out, and the log says so once. The file imports nothing of
the pipeline, since the process is to import the version's own code.
"""

import contextlib
import ctypes
import functools
import json
import logging
import os
import re
import runpy
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # linux/sched.h
NEW_PROCESSES, NEW_MOUNTS, NEW_IPC = 0x20000000, 0x20000, 0x08000000
NO_SET_USER, NO_DEVICES, NO_RUNNING = 2, 4, 8  # linux/mount.h
DEATH_SIGNAL, DUMPABLE, NO_NEW_PRIVILEGES = 1, 4, 38  # linux/prctl.h
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITIES = 0x20080522  # linux/capability.h: the version of the interface
OUT_OF_MEMORY = 500  # added to the badness of the process, of 1000
MAX_SIGNALS = 1024  # that wait, timers among them, of which a user has a bounded number for all processes
MAX_TASKS = max(1024, 16 * (os.cpu_count() or 1))  # processes and threads
ENDING = signal.valid_signals() - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
# Of Linux, which counts a user's processes by user namespace, and then has a highest number by namespace.
COUNTED_SINCE, NUMBERED_SINCE = (5, 14), (6, 14)
# linux/landlock.h; a version of the interface has all that those before it have.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
READ = 0b1101  # execute and read files, and list folders
WRITE = 0b100_0000_0000_0010  # write and truncate files
OF_FILES = 0b100_0000_0000_0111  # execute, write, read, truncate
# All kinds of access to files by the version that brought them: 13, then renaming, then truncating.
ACCESS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
TCP, TCP_SINCE = 0b11, 4  # to bind and to connect
SCOPES, SCOPES_SINCE = 0b11, 6  # abstract sockets and signals of others
PERMIT = "permit user namespaces and Landlock, or run what starts it in a container of its own"
SYSTEM_HIDES = ("/run", "/var", "/tmp", "/dev")
DEVICES = (
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "shm",
    "nvidia*",
    "nvidia-caps/*",
    "dri/*",
    "kfd",
    "accel*",
    "vfio/*",
    "dxg",
    "nvmap",
    "nvhost*",
    "nvgpu*",
    "neuron*",
    "davinci*",
    "hl*",
)


def command(
    target: str | Path,
    *words: str,
    reads: Iterable[Path] = (),
    writes: Iterable[Path] = (),
    hides: Iterable[Path] = (),
) -> list[str]:
    """Returns the command that runs a module, or the script of a path, confined.

    Neither finds modules in the current folder, which is a team's; a script, none of PYTHONPATH either.

    Args:
        target: the module's name or the script's path.
        words: arguments of the program.
        reads: paths that the process may read although they are hidden.
        writes: folders that the process may write to.
        hides: paths to hide, besides hidden files of this user and paths hidden from every process.
    """
    say_once()
    itself = ["-I", __file__] if isinstance(target, Path) else ["-P", "-m", __name__]
    with contextlib.suppress(OSError, RuntimeError):  # a user without a home
        hides = (*hides, *Path.home().glob(".*"))
    packages = [Path(each) for each in sys.path if each.endswith(("site-packages", "dist-packages"))]
    named = {"reads": (*reads, *packages), "writes": writes, "hides": hides}
    folders = json.dumps({name: [str(path.absolute()) for path in paths] for name, paths in named.items()})
    return [sys.executable, *itself, folders, str(target), *words]


@functools.cache
def lacking() -> str:
    """Returns what this machine does not keep the code of versions from, and why; "" where it is kept."""
    words = [sys.executable, "-I", __file__]
    done = subprocess.run(words, env={}, capture_output=True, text=True, check=False)
    why = (done.stdout or done.stderr).strip()
    return f"the code of versions is not kept from {why}; {PERMIT}" if why else ""


@functools.cache
def say_once() -> None:
    """Warns, at its first call, where this machine lets no process be confined.

    This process then hides its own memory and environment from others of its user, as a second best.
    """
    if why := lacking():
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(DUMPABLE, 0, 0, 0, 0)
        log.warning("%s", why)


def confine(*, reads: Iterable[str] = (), writes: Iterable[str] = (), hides: Iterable[str] = ()) -> str:
    """Confines this process, which must have one thread; returns the gaps of the confinement, and why.

    With namespaces, it returns in a grandchild, and this process waits for that and ends as it does.
    """
    if sys.platform != "linux":
        return f"the network, other processes and files of this user: {sys.platform} has no namespaces"
    import resource

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(ValueError, OSError):  # a lower limit stands already
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (MAX_SIGNALS, MAX_SIGNALS))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OUT_OF_MEMORY))
    with contextlib.suppress(PermissionError):  # it leads a group already
        os.setsid()  # so that it has no terminal, which would give it signals and take what it types
    why = _separate(libc)
    _drop_capabilities(libc)
    kept = _keep_from_files(libc, reads=reads, writes=writes, hides=hides)
    lacking = [] if kept else [f"files of this user: {os.strerror(ctypes.get_errno())}"]
    neighbour = runpy.run_path(str(Path(__file__).with_name("system_calls.py")))
    if unfiltered := neighbour["restrict"](libc):
        lacking.append(f"sockets of the host and modes of files: {unfiltered}")
        if why:
            lacking.append(f"the network{', TCP aside' * (kept >= TCP_SINCE)}")
    if why:
        others = "limits" if kept >= SCOPES_SINCE else "signals to, and limits" if kept else "memory"
        lacking.append(
            f"{others} of other processes of this user, and from leaving processes and shared memory behind: "
            f"{why}"
        )
    elif not _counted():
        lacking.append(f"starting any number of processes: Linux {os.uname().release} does not count them")
    return " and from ".join(lacking)


def _separate(libc: Any) -> str:
    """Goes on in a process that has namespaces of its own; returns why it cannot.

    The first process of a namespace takes no signal that it does not handle, so that it is not the one that
    goes on: it waits, and its end is the end of all others there.
    """
    probe = os.fork()
    if probe == 0:
        os._exit(_unshare(libc) or _mount_processes(libc, in_child=True))
    refused = os.waitstatus_to_exitcode(os.waitpid(probe, 0)[1])
    if not refused:
        refused = _unshare(libc)
    libc.prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # after it, since a new user namespace forgets it
    if refused:
        return os.strerror(refused)
    _go_on_in_a_child(libc)
    _mount_processes(libc)
    libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", NO_SET_USER | NO_DEVICES, b"size=25%,mode=1777")
    if _release() >= NUMBERED_SINCE:  # before, root would set the number of the whole machine
        with contextlib.suppress(OSError):
            Path("/proc/sys/kernel/pid_max").write_text(str(MAX_TASKS))
    _go_on_in_a_child(libc)
    return ""


def _unshare(libc: Any) -> int:
    """Enters namespaces in which user and group have the same names; returns the error, or 0."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_USER | NEW_NETWORK | NEW_PROCESSES | NEW_MOUNTS | NEW_IPC):
        return ctypes.get_errno()
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as error:
        return error.errno or 1
    return 0


def _mount_processes(libc: Any, *, in_child: bool = False) -> int:
    """Mounts a /proc with the processes of this namespace; returns the error, 0 if there is none.

    A container may forbid it. The one of outside would then have others under the numbers of these.
    """
    if in_child and (child := os.fork()):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    done = libc.mount(b"proc", b"/proc", b"proc", NO_SET_USER | NO_DEVICES | NO_RUNNING, None)
    error = ctypes.get_errno() if done else 0
    if in_child:
        os._exit(error)
    return error


def _go_on_in_a_child(libc: Any) -> None:
    """Forks and returns in the child; this process waits for it, and ends as it does."""
    files = [int(path.name) for path in Path("/proc/self/fd").iterdir()]  # the child may mount another /proc
    child = os.fork()
    if child == 0:
        libc.prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        return
    # Killed at once, the namespace might outlive whoever removes its files: this process ends after it.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    for file in files:
        if file > 2:  # so that the other side sees when the child closes its socket
            with contextlib.suppress(OSError):  # it was that of the listing
                os.close(file)
    while (ended := os.wait())[0] != child:  # the first process of a namespace inherits orphans
        pass
    status = os.waitstatus_to_exitcode(ended[1])
    if status < 0:
        status = 128 - status  # as a shell says it; its own signals do not end the first of a namespace
    if status - 128 in ENDING:
        with contextlib.suppress(OSError):  # SIGKILL has no other handler
            signal.signal(status - 128, signal.SIG_DFL)
        os.kill(os.getpid(), status - 128)
    os._exit(status)


def _drop_capabilities(libc: Any) -> None:
    """Gives up what root may do, also the root of a new user namespace."""
    header, none = struct.pack("=Ii", CAPABILITIES, 0), bytes(24)
    libc.syscall(CAPSET.get(os.uname().machine, -1), header, none)


def _counted() -> bool:
    """Whether the number of processes of this namespace is bounded; bounds it where a limit of a user does.

    No such limit holds for root.
    """
    import resource

    with contextlib.suppress(OSError):
        highest = int(Path("/proc/sys/kernel/pid_max").read_text())
        if _release() >= NUMBERED_SINCE and highest <= MAX_TASKS:
            return True
    if _release() < COUNTED_SINCE or os.getuid() == 0:
        return False
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = MAX_TASKS if hard == resource.RLIM_INFINITY else min(MAX_TASKS, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    return True


def _release() -> tuple[int, ...]:
    """Returns the version of Linux."""
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def _keep_from_files(libc: Any, *, reads: Iterable[str], writes: Iterable[str], hides: Iterable[str]) -> int:
    """Restricts this process by Landlock; returns the version of its interface, 0 where there is none."""
    version = int(libc.syscall(CREATE_RULESET, None, 0, 1))
    if version < 1:
        return 0
    every = ACCESS[min(version, max(ACCESS))]
    handled = struct.pack("=Q", every)
    handled += struct.pack("=Q", TCP) if version >= TCP_SINCE else b""
    handled += struct.pack("=Q", SCOPES) if version >= SCOPES_SINCE else b""
    rules = libc.syscall(CREATE_RULESET, handled, len(handled), 0)
    if rules < 0:
        return 0

    def allow(path: str | Path, access: int) -> None:
        with contextlib.suppress(OSError):  # it is not there, or is not this user's to open
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                access &= every if Path(path).is_dir() else every & OF_FILES
                rule = struct.pack("=Qi", access, opened)
                libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0)
            finally:
                os.close(opened)

    for path in _shown(Path("/"), {Path(path).resolve() for path in (*SYSTEM_HIDES, *hides)}):
        allow(path, READ)
    libraries = (path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path)
    for each in (sys.prefix, sys.base_prefix, *libraries, str(Path(__file__).parents[1]), *reads):
        allow(each, READ)
    for pattern in DEVICES:
        for path in Path("/dev").glob(pattern):
            allow(path, every)
    allow("/proc/self/task", WRITE)  # CUDA gives its threads names there, or does not start
    for each in writes:
        allow(each, every)
    restricted = libc.syscall(RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return version if restricted else 0


def _shown(folder: Path, hidden: set[Path]) -> Iterator[Path]:
    """Yields what may be read below a folder, in as few paths as there can be."""
    with contextlib.suppress(OSError):  # this user may not list it
        for path in folder.iterdir():
            if path in hidden or path.is_symlink():  # what a link leads to is judged by where that is
                continue
            if any(each.is_relative_to(path) for each in hidden):
                yield from _shown(path, hidden)
            else:
                yield path


def main(words: list[str]) -> None:
    """Confines this process and runs the program in `words`; without a program, prints the gaps."""
    folders, *words = words or ["{}"]
    lacking = confine(**json.loads(folders))
    if not words:
        sys.stdout.write(lacking)
        return
    # What is printed would otherwise wait for a full block, and go nowhere when a signal ends this process.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = words
    if words[0].endswith(".py"):
        runpy.run_path(words[0], run_name="__main__")
    else:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])

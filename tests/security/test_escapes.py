"""Ways out of the confinement of a version's code, each tried by a process that is confined as it is."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from daybreak.registry import carried_code, confined, system_calls

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="this platform confines no process"),
]

TRIES = """\
import ctypes, fcntl, json, os, platform, signal, socket, struct, subprocess, sys, time
from pathlib import Path

folder, calls, column = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
mine = folder / "own file"
mine.write_text("mine")
own = mine.open()
read = Path(sys.argv[0])  # which it may read, as it may the home
theirs = folder.parent / "home" / "id"
path = str(folder.parent / "home" / "service").encode()

def call(name, *arguments):
    number = calls[name][column]
    if number < 0:
        raise OSError(1, "this machine has no such call")
    done = libc.syscall(number, *arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), name)
    return done

def connect(made, to=path):
    made.connect(to)
    return "connected"

def pair(kind):
    return socket.socketpair(socket.AF_UNIX, kind)[0]

def changed(change, path):
    seen = lambda: [(os.stat(path).st_mode, os.stat(path).st_mtime_ns, os.listxattr(path))]
    before = seen()
    change()
    return "changed" if seen() != before else None

def newest_mode():
    return changed(lambda: call("fchmodat2", -100, str(theirs).encode(), 0o666, 0), theirs)

def control(number):
    with read.open() as file:
        return libc.ioctl(file.fileno(), number, bytes(8)) and os.strerror(ctypes.get_errno())

def locked(path, how, lock):
    with path.open(how) as one, path.open(how) as other:
        lock(one)
        lock(other)  # fails where the first one keeps others out

def whole_lock(file):
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

def write_lock(file):
    fcntl.fcntl(file, 37, struct.pack("hhqqi0q", fcntl.F_WRLCK, 0, 0, 0, 0))

def dead_child(does):
    child = os.fork()
    if child == 0:
        does()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return signal.Signals(-status).name if status < 0 else status

def x32():
    libc.syscall(0x40000000 + 39)

def i386():
    # int 0x80 with eax = 20, getpid of i386
    import mmap
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()

def many():
    pids = []
    try:
        while len(pids) < int(sys.argv[5]):
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            pids.append(child)
        return len(pids)
    except OSError:
        return "stopped"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)

def shared_memory():
    (Path("/dev/shm") / "left").write_text("x" * 1000)
    return [each.name for each in Path("/dev/shm").iterdir()]

def timers():
    for num in range(int(sys.argv[7]) + 1):
        if libc.syscall(222 if column == 0 else 107, 1, None, ctypes.byref(ctypes.c_int())):
            return "stopped" if num > 100 else os.strerror(ctypes.get_errno())
    return num

def processes():
    return [int(each) for each in os.listdir("/proc") if each.isdigit()]

def left_alone():
    child = "import os, time; os.setsid(); time.sleep(600)  # lives on"
    subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return "started"

ways = {
    "a service's socket": lambda: connect(socket.socket(socket.AF_UNIX)),
    "a name without a file": lambda: connect(socket.socket(socket.AF_UNIX), b"\\0service"),
    "a datagram pair": lambda: connect(pair(socket.SOCK_DGRAM), path + b".datagrams"),
    "a pair of packets": lambda: connect(pair(socket.SOCK_SEQPACKET)),
    "the hypervisor": lambda: socket.socket(40, socket.SOCK_STREAM) and "made",
    "the kernel's ciphers": lambda: socket.socket(38, socket.SOCK_SEQPACKET) and "made",
    "the network": lambda: socket.create_connection(("127.0.0.1", int(sys.argv[6])), 5) and "connected",
    "a datagram": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "rings of calls": lambda: call("io_uring_setup", 8, ctypes.create_string_buffer(120)),
    "calls of x32": lambda: dead_child(x32),
    "calls of i386": lambda: dead_child(i386),
    "a new namespace": lambda: call("unshare", 0x10000000),
    "a child in a new namespace": lambda: call("clone", 0x10000000 | 17, 0, 0, 0, 0),
    "another's namespace": lambda: call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0),
    "tracing": lambda: call("ptrace", 16, 1, 0, 0),
    "memory of others": lambda: call("process_vm_readv", 1, 0, 0, 0, 0, 0),
    "files of others": lambda: call("pidfd_getfd", 0, 0, 0),
    "all watches of files": lambda: call("inotify_init1", 0) and "made",
    "all watches of file systems": lambda: call("fanotify_init", 0x200, 0) and "made",
    "all queues of the disk": lambda: call("io_setup", 8, ctypes.create_string_buffer(8)) or "made",
    "descriptors on their way": lambda: socket.send_fds(pair(socket.SOCK_STREAM), [b"x"], [0] * 200),
    "all queued signals": timers,
    "keys": lambda: call("keyctl", 0, -3, 1),
    "faults of pages": lambda: call("userfaultfd", 1),
    "programs of the kernel": lambda: call("bpf", 0, ctypes.create_string_buffer(64), 64),
    "typing into the terminal": lambda: libc.ioctl(2, 0x5412, b"x") and os.strerror(ctypes.get_errno()),
    "the mode of a user's file": lambda: changed(lambda: os.chmod(theirs, 0o666), theirs),
    "the mode of a file that runs as its owner": lambda: changed(lambda: os.chmod(mine, 0o4777), mine),
    "the mode of an open file": lambda: changed(lambda: os.chmod(own.fileno(), 0o606), mine),
    "the mode by the newest call": newest_mode,
    "the times": lambda: changed(lambda: os.utime(theirs, (0, 0)), theirs),
    "an attribute": lambda: changed(lambda: os.setxattr(theirs, "user.mark", b"1"), theirs),
    "the length of a user's file": lambda: os.truncate(theirs, 0),
    "emptying a file that is opened to be read": lambda: os.open(theirs, os.O_TRUNC),
    "emptying a file that is opened for nothing": lambda: os.open(theirs, 3 | os.O_TRUNC),
    "a new file that runs as its owner": lambda: os.open(folder / "s", os.O_CREAT | os.O_WRONLY, 0o4777),
    "a new file that runs as its group": lambda: call("creat", str(folder / "g").encode(), 0o2777),
    "a node that runs as its owner": lambda: os.mknod(folder / "n", 0o104777),
    "a nameless file that runs as its owner": lambda: os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o4777),
    "opening by the newest call": lambda: call("openat2", -100, str(mine).encode(), bytes(24), 24),
    "flags of a file": lambda: control(0x40086602),
    "the generation of a file": lambda: control(0x40087602),
    "what Btrfs does with a file": lambda: control(0x9408),
    "a lock of a file": lambda: locked(read, "r", whole_lock),
    "a lock of a part of a file": lambda: locked(mine, "r+", write_lock),
    "a lease of a file": lambda: fcntl.fcntl(read.open(), 1024, fcntl.F_RDLCK),
    "capabilities": lambda: next(
        line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line
    ),
    "processes of others": lambda: len(processes()),
    "names of files of others": lambda: len(os.listdir("/tmp")),
    "a user's file": lambda: theirs.read_text(),
    "another folder to write to": lambda: (folder.parent / "home" / "new").write_text("x"),
    "signals to the parent": lambda: os.kill(int(sys.argv[4]), 0),
    "any number of processes": many,
    "memory that stays": shared_memory,
    "a child that lives on": left_alone,
}

seen = {}
for name, way in ways.items():
    try:
        seen[name] = way()
    except OSError as error:
        seen[name] = os.strerror(error.errno) if error.errno else str(error)
print(json.dumps(seen), flush=True)
"""
REFUSED, DENIED = "Operation not permitted", "Permission denied"
# Ways that end otherwise than refused.
ENDS: dict[str, Any] = {
    "calls of x32": "SIGSYS",
    "calls of i386": "SIGSYS",
    "the mode of a user's file": None,
    "the mode of a file that runs as its owner": None,
    "the mode of an open file": None,
    "the mode by the newest call": None,
    "the times": None,
    "an attribute": None,
    "a lock of a file": None,
    "a lock of a part of a file": None,
    "opening by the newest call": "Function not implemented",
    "names of files of others": DENIED,
    "a user's file": DENIED,
    "another folder to write to": DENIED,
    "capabilities": "0000000000000000",
    "processes of others": 2,  # the first of its namespace, and itself
    "signals to the parent": "No such process",
    "any number of processes": "stopped",
    "all queued signals": "stopped",
    "memory that stays": ["left"],
    "a child that lives on": "started",
}
WAYS = [line.split('"')[1] for line in TRIES.splitlines() if line.startswith('    "') and '": ' in line]


@contextmanager
def home_of_a_user(base: Path) -> Iterator[Path]:
    """A folder with the script, its scratch, and a home whose services listen."""
    (base / "script.py").write_text(TRIES)
    for name in ("scratch", "home"):
        (base / name).mkdir()
    (base / "home" / "id").write_text("canary")
    (base / "home" / "id").chmod(0o600)
    with (
        socket.socket(socket.AF_UNIX) as service,
        socket.socket(socket.AF_UNIX) as unnamed,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        service.bind(str(base / "home" / "service"))
        unnamed.bind(b"\0service")
        datagrams.bind(str(base / "home" / "service.datagrams"))
        for listening in (service, unnamed):
            listening.listen()
        (base / "port").write_text(str(server.getsockname()[1]))
        yield base


def words_of(base: Path) -> list[str]:
    """What the script is told."""
    column = system_calls.MACHINES[os.uname().machine][1]
    calls = json.dumps(system_calls.EXAMINED | system_calls.IGNORED | system_calls.REFUSED)
    limits = confined.MAX_TASKS, (base / "port").read_text(), confined.MAX_SIGNALS
    numbers = (column, os.getpid(), *limits)
    return [str(base / "scratch"), calls, *map(str, numbers)]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each way in the second of two processes, one after the other."""
    with home_of_a_user(tmp_path_factory.mktemp("escapes")) as base:
        script, scratch = base / "script.py", base / "scratch"
        for _ in range(2):
            done = subprocess.run(
                carried_code.command(None, script, *words_of(base), scratch=scratch, reads=(script,)),
                env=carried_code.environment(scratch),
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen | {"mode": stat.filemode((base / "home" / "id").stat().st_mode)}


@pytest.mark.promise
@pytest.mark.parametrize("way", WAYS)
def test_no_way_leads_out_of_the_process_of_a_version(tried: dict[str, Any], way: str) -> None:
    if os.uname().machine != "x86_64" and way in ("calls of x32", "calls of i386"):
        pytest.skip("this machine has no such calls")
    assert tried[way] == ENDS.get(way, REFUSED)
    assert tried["mode"] == "-rw-------"


def test_nothing_that_a_version_started_lives_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "for _ in range(2):\n"
        "    if os.fork():\n"
        "        print(flush=True)\n"
        "        time.sleep(0.5)\n"
        "        os._exit(0)\n"
        "    os.setsid()\n"
        "time.sleep(600)\n"
    )
    command = carried_code.command(None, script, scratch=tmp_path, reads=(script,))
    with subprocess.Popen(
        command, env=carried_code.environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 3
        process.send_signal(signal.SIGTERM)
        process.wait()
    assert not [each for each in started if each.is_running()]


def test_the_end_of_a_version_is_told_as_it_was(tmp_path: Path) -> None:
    ends = {"os.abort()": -signal.SIGABRT, "os.kill(os.getpid(), 9)": -signal.SIGKILL, "os._exit(3)": 3}
    ends |= {"os._exit(147)": 147, "os._exit(255)": 255}  # 147 would be SIGSTOP
    for does, status in ends.items():
        (tmp_path / "script.py").write_text(f"import os\n{does}\n")
        script = tmp_path / "script.py"
        command = carried_code.command(None, script, scratch=tmp_path, reads=(script,))
        done = subprocess.run(command, env=carried_code.environment(tmp_path), check=False, timeout=300)
        assert done.returncode == status


EMPTIES = """
import os, sys
for way in (lambda: os.truncate(sys.argv[1], 0), lambda: os.open(sys.argv[1], os.O_TRUNC),
            lambda: os.open(sys.argv[1], 3 | os.O_TRUNC)):
    try:
        way()
    except OSError as error:
        print(error.strerror, flush=True)
"""


def test_a_file_keeps_its_length_where_landlock_has_no_say_in_it(tmp_path: Path) -> None:
    """Before Linux 6.2, its interface has no right to truncate."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "script.py").write_text(EMPTIES)
    (tmp_path / "file").write_text("canary")
    command = carried_code.command(
        None,
        tmp_path / "script.py",
        str(tmp_path / "file"),
        scratch=tmp_path / "scratch",
        reads=(tmp_path / "script.py", tmp_path / "file"),
    )
    program = (
        "import sys; from daybreak.registry import confined; del confined.ACCESS[3]; "
        "confined.main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command[3:]],
        env=carried_code.environment(tmp_path / "scratch"),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.splitlines() == [REFUSED] * 3
    assert (tmp_path / "file").read_text() == "canary"

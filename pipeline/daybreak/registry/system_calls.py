"""A filter of system calls for the process that it is installed in, and for all that this one starts.

Landlock and namespaces leave ways out: a socket of the host is reached by its path, and so are services that
take commands (a container engine, D-Bus, ssh-agent, a database that trusts its own users); modes, owners and
times of files change without being written to, before Linux 6.2 their lengths too; who may only read a file
may lock it; new interfaces of the
kernel have had most of its faults.
The filter is a program of classic BPF, which the kernel runs at each call (seccomp(2)). A refused call fails
with EPERM. One that would change a mode, an owner or a time does nothing and says that it is done, since
`shutil.copy` and much else sets modes which nobody needs; so does one that would lock a file, since who may
only read one could lock it for ever, and no other process writes to a version's own. A call by another
architecture's numbers (i386, x32) would mean something else, and ends the process. The numbers are of Linux
(arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).

The file imports nothing of the pipeline (confined.py runs it).
"""

import ctypes
import os
import platform
import struct
from typing import Any

SET_SECCOMP, FILTER = 22, 2  # linux/prctl.h, linux/seccomp.h
ALLOW, REFUSE, END = 0x7FFF0000, 0x00050000, 0x80000000  # REFUSE carries the error in its lower bits
EPERM, ENOSYS = 1, 38
# struct seccomp_data: the call's number, the architecture, and the lower halves of its arguments
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, (16, 24, 32, 40)
LOAD, AND, RETURN = 0x20, 0x54, 0x06  # linux/bpf_common.h: a word of the data, the constant
IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x15, 0x35, 0x45
X32 = 0x40000000  # the bit in a number that marks a call of x32
STREAM, KIND_OF_SOCKET = 1, 0xF  # the kind is below the flags of a type
NAMESPACES = 0x7E020080  # CLONE_NEW*: a new user namespace would give capabilities again
# TIOCSTI and TIOCLINUX type into the terminal that the log is shown in. FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS,
# FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY, FS_IOC_SETVERSION, FS_IOC32_SETVERSION and EXT4_IOC_SETVERSION_OLD
# change a file that is open for reading alone.
CONTROLS = (
    *(0x5412, 0x541C, 0x40086602, 0x40046602, 0x401C5820, 0x40806685),
    *(0x40087602, 0x40047602, 0x40086604),
)
KIND_OF_CONTROL, BTRFS = 0xFF00, 0x9400  # linux/btrfs.h: snapshots, subvolumes, and what else a folder takes
# linux/fcntl.h. F_SETLEASE: who opens the file waits. F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
LEASE, LOCKS = 1024, (6, 7, 37, 38)
# Of opening a file (include/uapi/asm-generic/fcntl.h)
KIND_OF_ACCESS, WRITE, READ_WRITE, TRUNCATE, MAKES = 3, 1, 2, 0o1000, 0o100 | 0o20000000
RUNS_AS_OWNER = 0o6000  # S_ISUID and S_ISGID

Instruction = tuple[int, int, int, int]  # operation, steps if so, steps if not, constant

# Per machine: AUDIT_ARCH_* (linux/audit.h), and the column of the tables below that has its calls.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# A number is -1 where the machine does not have the call.
EXAMINED = {
    "socketpair": (53, 199),
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "open": (2, -1),
    "openat": (257, 56),
    "openat2": (437, 437),
    "creat": (85, -1),
    "mknod": (133, -1),
    "mknodat": (259, 33),
}
# Modes, owners, times, attributes and locks, which Landlock does not cover
IGNORED = {
    "flock": (73, 32),
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "utime": (132, -1),
    "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
REFUSED = {
    "socket": (41, 198),
    "truncate": (76, 45),  # by a path, which Landlock covers since Linux 6.2; that of an open file is enough
    # Descriptors on their way to another process: a user may have a bounded number, above which no process of
    # theirs sends any (a stage sends the files that it has read); and their garbage collector has had faults.
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # other namespaces
    "unshare": (272, 97),
    "setns": (308, 268),
    # of which a user, or the machine, has a bounded number for all processes
    "inotify_init": (253, -1),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "io_setup": (206, 0),
    # kernel interfaces that no model needs; io_uring would make the calls that are refused here
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "syslog": (103, 116),
}


def restrict(libc: Any) -> str:
    """Installs the filter in this process, which must have one thread and gain no privileges.

    `libc` is the C library, with its errors kept. Returns why it was not installed; "" if it was.
    """
    machine = platform.machine()
    if machine not in MACHINES:
        return f"no filter of system calls is known for {machine}"
    filter_ = b"".join(struct.pack("=HBBI", *one) for one in program(machine))
    held = ctypes.create_string_buffer(filter_, len(filter_))
    described = struct.pack("@HP", len(filter_) // 8, ctypes.addressof(held))  # struct sock_fprog
    if libc.prctl(SET_SECCOMP, FILTER, described, 0, 0):
        return os.strerror(ctypes.get_errno())
    return ""


def program(machine: str) -> list[Instruction]:
    """Returns the filter's instructions for a machine."""
    architecture, column = MACHINES[machine]
    refuse, ignore, absent = _returns(REFUSE | EPERM), _returns(REFUSE), _returns(REFUSE | ENOSYS)
    examined = {name: numbers[column] for name, numbers in EXAMINED.items()}
    always = [(numbers[column], ignore) for numbers in IGNORED.values()]
    always += [(numbers[column], refuse) for numbers in REFUSED.values()]
    return [
        _load(ARCHITECTURE),
        (IF_EQUAL, 1, 0, architecture),
        _returns(END),
        _load(NUMBER),
        *([(IF_AT_LEAST, 0, 1, X32), _returns(END)] if machine == "x86_64" else ()),
        # A stream pair stays what it is; a datagram socket of a pair can be connected to a path.
        *_call(
            examined["socketpair"],
            [
                _load(ARGUMENTS[1]),
                (AND, 0, 0, KIND_OF_SOCKET),
                *_any_of((STREAM,), _returns(ALLOW)),
                refuse,
            ],
        ),
        *_call(
            examined["clone"],
            [_load(ARGUMENTS[0]), (IF_ANY_BIT, 0, 1, NAMESPACES), refuse, _returns(ALLOW)],
        ),
        # Their flags are in memory, which no filter reads; who asks then uses clone, or openat.
        *(step for name in ("clone3", "openat2") for step in _call(examined[name], [absent])),
        *_call(
            examined["ioctl"],
            [
                _load(ARGUMENTS[1]),
                *_any_of(CONTROLS, refuse),
                (AND, 0, 0, KIND_OF_CONTROL),
                *_any_of((BTRFS,), refuse),
                _returns(ALLOW),
            ],
        ),
        *_call(
            examined["fcntl"],
            [_load(ARGUMENTS[1]), *_any_of((LEASE,), refuse), *_any_of(LOCKS, ignore), _returns(ALLOW)],
        ),
        *(step for name, flags in (("open", 1), ("openat", 2)) for step in _opens(examined[name], flags)),
        *(
            step
            for name, mode in (("creat", 1), ("mknod", 1), ("mknodat", 2))
            for step in _call(examined[name], [*_unless_as_owner(mode), _returns(ALLOW)])
        ),
        *(step for number, does in always for step in _call(number, [does])),
        _returns(ALLOW),
    ]


def _load(offset: int) -> Instruction:
    return LOAD, 0, 0, offset


def _returns(value: int) -> Instruction:
    return RETURN, 0, 0, value


def _call(number: int, then: list[Instruction]) -> list[Instruction]:
    """Returns the steps for one call, the last of which returns; other calls go on after them.

    A call that the machine does not have has no steps.
    """
    return [] if number < 0 else [(IF_EQUAL, 0, len(then), number), *then]


def _opens(number: int, flags: int) -> list[Instruction]:
    """Returns the steps for a call that opens a file, whose argument `flags` is followed by its mode.

    Before Linux 6.2, Landlock has no say where a file that may be read is emptied by opening it, unless it is
    opened for writing.
    """
    return _call(
        number,
        [
            _load(ARGUMENTS[flags]),
            (IF_ANY_BIT, 0, 4, TRUNCATE),
            (AND, 0, 0, KIND_OF_ACCESS),
            (IF_EQUAL, 2, 0, WRITE),
            (IF_EQUAL, 1, 0, READ_WRITE),
            _returns(REFUSE | EPERM),
            _load(ARGUMENTS[flags]),
            (IF_ANY_BIT, 0, 3, MAKES),  # else the mode is no argument
            *_unless_as_owner(flags + 1),
            _returns(ALLOW),
        ],
    )


def _unless_as_owner(mode: int) -> list[Instruction]:
    """Returns the three steps that refuse to make a file which would run as its owner."""
    return [_load(ARGUMENTS[mode]), (IF_ANY_BIT, 0, 1, RUNS_AS_OWNER), _returns(REFUSE | EPERM)]


def _any_of(values: tuple[int, ...], then: Instruction) -> list[Instruction]:
    return [instruction for value in values for instruction in ((IF_EQUAL, 0, 1, value), then)]

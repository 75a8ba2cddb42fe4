"""What the filter of system calls does with every number of a call, of both machines.

The numbers are written anew, from arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h of Linux 6.18, and the filter is run as the kernel runs it.
"""

import struct
from collections.abc import Sequence

import pytest

from daybreak.registry.system_calls import Instruction, program

ALLOWED, ENDED = 0x7FFF0000, 0x80000000  # SECCOMP_RET_ALLOW and SECCOMP_RET_KILL_PROCESS
SAID_DONE, REFUSED, MISSING = 0x50000, 0x50001, 0x50026  # SECCOMP_RET_ERRNO with 0, EPERM and ENOSYS
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
OTHERS = {"i386": 0x40000003, "arm": 0x40000028, "riscv64": 0xC00000F3, "aarch64, big endian": 0x800000B7}
COLUMNS = {"x86_64": 0, "aarch64": 1}
HIGHEST = 600  # above all numbers of Linux 6.18
# By what comes of a call whose arguments are all 0. None: the machine has no such call.
Numbers = dict[str, tuple[int | None, int | None]]
CALLS: dict[int, Numbers] = {
    SAID_DONE: {
        "flock": (73, 32),
        "chmod": (90, None),
        "fchmod": (91, 52),
        "chown": (92, None),
        "fchown": (93, 55),
        "lchown": (94, None),
        "utime": (132, None),
        "setxattr": (188, 5),
        "lsetxattr": (189, 6),
        "fsetxattr": (190, 7),
        "removexattr": (197, 14),
        "lremovexattr": (198, 15),
        "fremovexattr": (199, 16),
        "utimes": (235, None),
        "fchownat": (260, 54),
        "futimesat": (261, None),
        "fchmodat": (268, 53),
        "utimensat": (280, 88),
        "fchmodat2": (452, 452),
        "setxattrat": (463, 463),
        "removexattrat": (466, 466),
        "file_setattr": (469, 469),
    },
    REFUSED: {
        "socket": (41, 198),
        "sendmsg": (46, 211),
        "socketpair": (53, 199),
        "truncate": (76, 45),
        "ptrace": (101, 117),
        "syslog": (103, 116),
        "io_setup": (206, 0),
        "add_key": (248, 217),
        "request_key": (249, 218),
        "keyctl": (250, 219),
        "inotify_init": (253, None),
        "unshare": (272, 97),
        "inotify_init1": (294, 26),
        "perf_event_open": (298, 241),
        "fanotify_init": (300, 262),
        "open_by_handle_at": (304, 265),
        "setns": (308, 268),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "sendmmsg": (307, 269),
        "kcmp": (312, 272),
        "bpf": (321, 280),
        "userfaultfd": (323, 282),
        "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427),
        "pidfd_getfd": (438, 438),
        "process_madvise": (440, 440),
    },
    MISSING: {"clone3": (435, 435), "openat2": (437, 437)},
}
DENIED = {name: (numbers, then) for then, calls in CALLS.items() for name, numbers in calls.items()}


def outcome(steps: Sequence[Instruction], number: int, *arguments: int, architecture: int) -> int:
    """What a program of classic BPF returns for a call: the operations of linux/bpf_common.h that it has."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    at = held = 0
    while True:
        operation, if_so, if_not, constant = steps[at]
        at += 1
        match operation:
            case 0x20:  # load a word of the data
                (held,) = struct.unpack_from("=I", data, constant)
            case 0x54:  # and
                held &= constant
            case 0x06:  # return
                return constant
            case 0x15:  # jump if equal
                at += if_so if held == constant else if_not
            case 0x35:  # jump if at least
                at += if_so if held >= constant else if_not
            case 0x45:  # jump if any bit is set
                at += if_so if held & constant else if_not
            case _:
                raise AssertionError(f"{operation:#x} is no operation that the filter needs")


def asked(machine: str, number: int, *arguments: int) -> int:
    return outcome(program(machine), number, *arguments, architecture=ARCHITECTURES[machine])


@pytest.mark.parametrize("name", DENIED)
def test_a_call_is_denied_on_both_machines_whatever_its_arguments_are(name: str) -> None:
    numbers, then = DENIED[name]
    assert numbers[COLUMNS["x86_64"]] is not None
    for machine, column in COLUMNS.items():
        number = numbers[column]
        if number is not None:  # ARM64 has none of the calls that newer ones replaced
            assert asked(machine, number) == then
            assert asked(machine, number, *[0xFFFFFFFE] * 6) == then


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_other_number_is_allowed(machine: str) -> None:
    denied = {numbers[COLUMNS[machine]]: then for numbers, then in DENIED.values()}
    assert {number: asked(machine, number) for number in range(HIGHEST)} == {
        number: denied.get(number, ALLOWED) for number in range(HIGHEST)
    }


STREAM, DATAGRAM, PACKETS, CLOSES = 1, 2, 5, 0o2000000
READ, WRITE, BOTH, NEITHER = range(4)
TRUNCATES, CREATES, NAMELESS = 0o1000, 0o100, 0o20200000
AT_HERE = 2**64 - 100  # AT_FDCWD
EXAMINED = [
    ("socketpair", (53, 199), (1, STREAM), ALLOWED),
    ("socketpair", (53, 199), (1, STREAM | CLOSES), ALLOWED),
    ("socketpair", (53, 199), (1, DATAGRAM), REFUSED),
    ("socketpair", (53, 199), (1, PACKETS | CLOSES), REFUSED),
    ("clone", (56, 220), (17,), ALLOWED),  # SIGCHLD: fork
    ("clone", (56, 220), (0x3D0F00,), ALLOWED),  # a thread
    *(
        ("clone", (56, 220), (space | 17,), REFUSED)  # CLONE_NEW* of linux/sched.h
        for space in (1 << 7, 1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30)
    ),
    ("ioctl", (16, 29), (1, 0x5401), ALLOWED),  # TCGETS
    *(
        ("ioctl", (16, 29), (1, control), REFUSED)
        for control in (
            *(0x5412, 0x541C),  # TIOCSTI, TIOCLINUX
            *(0x40086602, 0x40046602, 0x401C5820, 0x40806685),  # flags of files, verity
            *(0x40087602, 0x40047602, 0x40086604),  # generations of files
            *(0x50009401, 0xC0109428),  # BTRFS_IOC_SNAP_CREATE, BTRFS_IOC_QUOTA_CTL
        )
    ),
    ("ioctl", (16, 29), (1, 1 << 32 | 0x5412), REFUSED),  # the kernel reads the lower half alone
    ("fcntl", (72, 25), (3, 1), ALLOWED),  # F_GETFD
    ("fcntl", (72, 25), (3, 1024), REFUSED),  # F_SETLEASE
    *(("fcntl", (72, 25), (3, lock), SAID_DONE) for lock in (6, 7, 37, 38)),
    *(
        step
        for name, numbers, before in (("open", (2, None), (0,)), ("openat", (257, 56), (AT_HERE, 0)))
        for step in (
            (name, numbers, (*before, READ), ALLOWED),
            (name, numbers, (*before, READ, 0o4777), ALLOWED),  # the mode is no argument
            (name, numbers, (*before, READ | TRUNCATES), REFUSED),
            (name, numbers, (*before, NEITHER | TRUNCATES), REFUSED),
            (name, numbers, (*before, WRITE | TRUNCATES | CREATES, 0o666), ALLOWED),
            (name, numbers, (*before, BOTH | TRUNCATES), ALLOWED),
            (name, numbers, (*before, WRITE | TRUNCATES | CREATES, 0o4755), REFUSED),
            (name, numbers, (*before, WRITE | CREATES, 0o2755), REFUSED),
            (name, numbers, (*before, BOTH | NAMELESS, 0o4755), REFUSED),
        )
    ),
    ("creat", (85, None), (0, 0o644), ALLOWED),
    ("creat", (85, None), (0, 0o4644), REFUSED),
    ("mknod", (133, None), (0, 0o100644), ALLOWED),
    ("mknod", (133, None), (0, 0o102644), REFUSED),
    ("mknodat", (259, 33), (AT_HERE, 0, 0o100644), ALLOWED),
    ("mknodat", (259, 33), (AT_HERE, 0, 0o104644), REFUSED),
]


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(("name", "numbers", "arguments", "then"), EXAMINED)
def test_a_call_is_judged_by_its_arguments(
    name: str, numbers: tuple[int, int | None], arguments: tuple[int, ...], then: int, machine: str
) -> None:
    number = numbers[COLUMNS[machine]]
    if number is not None:
        assert asked(machine, number, *arguments) == then


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_by_the_numbers_of_another_architecture_end_the_process(machine: str) -> None:
    others = {**OTHERS, **{name: number for name, number in ARCHITECTURES.items() if name != machine}}
    for architecture in others.values():
        for number in (0, 1, 20, 41, 198, 435, HIGHEST):
            assert outcome(program(machine), number, architecture=architecture) == ENDED


def test_calls_of_x32_end_the_process() -> None:
    for number in range(HIGHEST):
        assert asked("x86_64", 1 << 30 | number) == ENDED
    assert asked("x86_64", 0xFFFFFFFF) == ENDED


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_kernel_takes_a_program_of_this_length_and_each_way_through_it_returns(machine: str) -> None:
    steps = program(machine)
    assert len(steps) <= 4096  # BPF_MAXINSNS
    for at, (operation, if_so, if_not, _) in enumerate(steps):
        assert operation == 0x06 or at + 1 + max(if_so, if_not) < len(steps)
        assert 0 <= if_so < 256 and 0 <= if_not < 256
    assert steps[-1][0] == 0x06

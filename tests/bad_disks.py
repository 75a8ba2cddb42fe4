"""Disks that take nothing any more: full, without inodes, read-only, over a quota, or another user's.

Each is made of a file system of its own, which only root may mount, and is repaired at the end of the `with`.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

NUM_FILES = 100_000
STRANGER = 12345  # a user who owns files of the night


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Leaves 4 KiB of a disk free, or less where others write to it meanwhile."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        while (num_bytes := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 4096) > 0:
            with suppress(OSError):  # others have written since
                os.posix_fallocate(file.fileno(), ballast.stat().st_size, num_bytes)
    yield
    ballast.unlink()


@contextmanager
def without_inodes(disk: Path) -> Iterator[None]:
    """Leaves no room for another file on a file system in memory."""
    state = os.statvfs(disk)
    shell(f"mount -o remount,nr_inodes={state.f_files - state.f_ffree} {disk}")
    yield
    shell(f"mount -o remount,nr_inodes={NUM_FILES} {disk}")


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Covers a disk by itself, read-only, since one with files that are open cannot be made so.

    A process in a folder of the disk still writes to what is covered.
    """
    shell(f"mount --bind {disk} {disk}; mount -o remount,bind,ro {disk}")
    try:
        yield
    finally:
        shell(f"umount --lazy {disk}")


@contextmanager
def over_quota(disk: Path) -> Iterator[None]:
    """Limits the subvolume `home` of a disk `with_quotas`, asking by way of the disk, which may write."""
    shell(f"btrfs qgroup limit 64K 0/256 {disk}")
    yield
    shell(f"btrfs qgroup limit none 0/256 {disk}")


@contextmanager
def of_a_stranger(folder: Path) -> Iterator[None]:
    """Gives a folder to another user, who binds those without the capabilities of root."""
    shell(f"chown --recursive {STRANGER} {folder}")
    yield
    shell(f"chown --recursive 0 {folder}")


# What may be wrong with a disk, and the sentence that says so.
TROUBLES: dict[str, tuple[Callable[[Path], AbstractContextManager[None]], str]] = {
    "full": (full, r"the disk {} is full \(.* free\); free some space"),
    "files": (without_inodes, r"the disk {} has no room for another file \(.* free\); delete some files"),
    "read-only": (read_only, r"the disk {} is read-only, or /\S+ is; make it writable"),
    "quota": (over_quota, r"the quota of user 0 on the disk {} is used up; free some space, or raise it"),
    "owner": (of_a_stranger, rf"user 0 may not write {{}}/\S+, which is user {STRANGER}'s; change its owner"),
}


@contextmanager
def in_memory(options: str, *, at: Path | None = None) -> Iterator[Path]:
    """Yields the folder of a file system in memory, which `at` is, or a new one."""
    with mounted(f"-t tmpfs -o {options} tmpfs", at=at) as disk:
        yield disk


@contextmanager
def with_quotas() -> Iterator[Path]:
    """Yields the folder of a btrfs in a file, of which `home` has quotas that bind root too."""
    if not shutil.which("mkfs.btrfs"):
        pytest.skip("no quotas here; install Debian's package btrfs-progs")
    with tempfile.NamedTemporaryFile(prefix="daybreak-image-") as image:
        image.truncate(2 << 30)
        shell(f"mkfs.btrfs --quiet {image.name}")
        with mounted(f"-t btrfs -o loop {image.name}") as disk:
            shell(f"btrfs quota enable {disk}; btrfs subvolume create {disk}/home")
            yield disk


@contextmanager
def mounted(words: str, *, at: Path | None = None) -> Iterator[Path]:
    """Mounts by the words of `mount` at a folder, or at a new one."""
    folder = at or Path(tempfile.mkdtemp(prefix="daybreak-disk-"))
    folder.chmod(0o755)
    try:
        try:
            shell(f"mount {words} {folder}")
        except subprocess.CalledProcessError:
            pytest.skip("only who may mount a file system can fill it (root, outside of most containers)")
        try:
            yield folder
        finally:
            shell(f"umount --lazy {folder}")
    finally:
        if not at:
            folder.rmdir()


def shell(commands: str) -> None:
    """Runs commands, of which each must end well."""
    subprocess.run(["bash", "-euc", commands], check=True, capture_output=True)

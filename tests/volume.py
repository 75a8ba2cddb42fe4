"""A file system whose power can fail: all that was not synced is lost, whichever program wrote it.

It is ext4 in a file. The kernel's shutdown of it stops all writes at once, also those of its journal, as
a power cut does; then it is mounted again, which replays what of the journal is on the disk. Two habits are
off by which ext4 also saves programs that do not sync: writing a file out when it is renamed over another,
and committing the journal every five seconds.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPTIONS = "loop,noauto_da_alloc,commit=3600"
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, of linux/ext4.h
NO_FLUSH = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH: neither data nor journal is written any more
UNMOUNT_S = 120


class Volume:
    """The file system, mounted at `folder`."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.folder, self._image = folder, image
        self._mount()

    def sync(self) -> None:
        """Brings all to the disk, as it would be a while later."""
        subprocess.run(["sync", "--file-system", str(self.folder)], check=True)

    def fail(self) -> None:
        """Cuts the power: from now on every read and write of what is not in memory fails."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", NO_FLUSH))
        finally:
            os.close(handle)

    def restart(self) -> None:
        """Mounts what is left; no process may use the folder."""
        until = time.monotonic() + UNMOUNT_S
        while subprocess.run(["umount", str(self.folder)], capture_output=True, check=False).returncode:
            assert time.monotonic() < until, f"{self.folder} is in use"
            time.sleep(0.1)
        # Another process' mount namespace may still hold the one that failed, and would share it.
        self._image = Path(shutil.copyfile(self._image, self._image.with_suffix(f".{time.monotonic_ns()}")))
        self._mount()

    def _mount(self) -> None:
        words = ["mount", "-t", "ext4", "-o", OPTIONS, str(self._image), str(self.folder)]
        subprocess.run(words, check=True, capture_output=True)


@contextmanager
def volume(folder: Path, *, num_bytes: int) -> Iterator[Volume | None]:
    """Yields an empty one at `folder`, which is made; None where this process may not mount any."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="daybreak-volume-") as scratch:
        image = Path(scratch) / "image"
        with image.open("wb") as file:
            file.truncate(num_bytes)
        made = None
        if shutil.which("mkfs.ext4") and os.getuid() == 0:
            subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
            try:
                made = Volume(image, folder)
                (folder / "lost+found").rmdir()
            except subprocess.CalledProcessError:
                made = None
        try:
            yield made
        finally:
            if made:
                subprocess.run(["umount", "--lazy", str(folder)], check=True)

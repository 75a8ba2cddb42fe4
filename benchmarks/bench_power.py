"""Does a night end the same whenever the power fails? Cuts below the process, in each stage and command.

The home is on a file system of its own, which the kernel shuts down at a random moment: what no process had
synced by then is lost, whichever program wrote it (tests/volume.py). Then all processes are killed, the file
system is mounted again, which replays its journal, and the command is run again; interruptions.py says of
which nights. Needs root, to mount. MINUTES=60 cuts nothing more after an hour. QUICK=1 does one round of two
cuts a command, in the shop alone.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import interruptions
from benchmarks.interruptions import Machine
from tests.volume import Volume, volume

NUM_BYTES = 4 << 30  # that the file system may take; of its image only what is used lies on the disk


class MachineWithoutPower(Machine):
    """A machine whose disk loses what was not synced."""

    def __init__(self, disk: Volume) -> None:
        self.folder, self._disk = disk.folder, disk

    def interrupt(self, pid: int, home: Path) -> None:
        """Cut the power, and start the machine again."""
        self._disk.fail()
        super().interrupt(pid, home)
        self._disk.restart()


@contextmanager
def machine() -> Iterator[Machine]:
    """A machine with an empty disk."""
    with (
        tempfile.TemporaryDirectory(prefix="daybreak-power-") as name,
        volume(Path(name) / "disk", num_bytes=NUM_BYTES) as disk,
    ):
        if disk is None:
            raise RuntimeError("only who may mount a file system can let its power fail; run this as root")
        yield MachineWithoutPower(disk)


def main() -> None:
    """Cut the power of the nights of both examples."""
    interruptions.finish("power", "cuts", machine)


if __name__ == "__main__":
    main()

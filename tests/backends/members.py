"""A worker of a job whose machines come and go: the first of them notes who there is, until it may finish."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main(folder: Path, machine: int) -> None:
    """Sum who there is again and again, as an update does; all see that they may finish at once."""
    dist.init_process_group("gloo")
    try:
        note_until_finish(folder, machine)
        wait_for_the_worst(folder, machine)
    finally:
        dist.destroy_process_group()  # else a thread of gloo may abort the process, and others wait for it


def note_until_finish(folder: Path, machine: int) -> None:
    """Note the members until all have seen that they may finish."""
    while True:
        there = torch.zeros(4)
        there[machine] = 1
        there[3] = float((folder / "finish").exists())
        dist.all_reduce(there)
        if dist.get_rank() == 0:
            fresh = folder / f".members-{machine}"
            fresh.write_text(str([number for number in range(3) if there[number]]))
            fresh.rename(folder / "members")
        if there[3] == dist.get_world_size():
            return
        time.sleep(0.1)


def wait_for_the_worst(folder: Path, machine: int) -> None:
    """Crash once after the last sum, or wait to be lost, where the test wants that of this machine."""
    if (folder / f"crash-{machine}").exists():
        (folder / f"crash-{machine}").unlink()
        os.abort()
    while (folder / f"wait-{machine}").exists():
        (folder / f"waits-{machine}").touch()
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

"""Is a copy of a checkpoint ever torn or lost in a bucket? Two writers race, and are killed now and then.

Cloud Storage is an emulator on loopback that honours ifGenerationMatch (tests/cloud_storage.py); the same
races on one that ignores it show that this is what keeps copies. What is counted: tests/training/racing.py.
QUICK=1 runs a tenth of the rounds. It takes about ten minutes on two cores, QUICK=1 one or two.
"""

import json
import subprocess
import sys

from benchmarks import frame

ROUNDS = 20 if frame.QUICK else 200
TARGETS = {
    "copies torn": ("==", 0.0),
    "copies lost": ("==", 0.0),
    "races": (">=", float(ROUNDS)),
    "lost or torn without preconditions": (">=", 1.0),
}


def race(*words: str) -> dict[str, int]:
    """What was seen in so many rounds."""
    command = [sys.executable, "-m", "tests.training.racing", *words]
    done = subprocess.run(command, cwd=frame.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


def main() -> None:
    """Race, and say how it went."""
    seen = race(str(ROUNDS), "1")
    careless = race(str(max(20, ROUNDS // 4)), "1", "careless")
    figures = {
        "races": seen["rounds"],
        "copies that writers said were there": seen["commits"],
        "writers killed": seen["kills"],
        "heads that another had made": seen["refused"],
        "looks of a reader meanwhile": seen["looks"],
        "copies torn": seen["torn"],
        "copies lost": seen["lost"],
        "lost or torn without preconditions": careless["lost"] + careless["torn"],
    }
    frame.finish("bucket", {name: float(value) for name, value in figures.items()}, TARGETS)


if __name__ == "__main__":
    main()

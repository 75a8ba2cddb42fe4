"""Is a copy of a checkpoint ever torn or lost in a bucket? Two writers race, and are killed now and then.

Cloud Storage is an emulator on loopback that honours ifGenerationMatch (tests/cloud_storage.py), S3 is moto's
server, whose requests to write are answered one after the other (tests/s3_storage.py); the same races on ones
that ignore preconditions show that these are what keeps copies. What is counted: tests/training/racing.py.
QUICK=1 runs a tenth of the rounds. It takes about twenty minutes on two cores, QUICK=1 two or three.
"""

import json
import subprocess
import sys

from benchmarks import frame

ROUNDS = 20 if frame.QUICK else 200
TARGETS = {
    f"{name}{suffix}": target
    for suffix in ("", " in S3")
    for name, target in {
        "copies torn": ("==", 0.0),
        "copies lost": ("==", 0.0),
        "races": (">=", float(ROUNDS)),
        "heads that another had made": (">=", 1.0),
        "lost or torn without preconditions": (">=", 1.0),
    }.items()
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
    figures: dict[str, int] = {}
    for storage, suffix in (("gs", ""), ("s3", " in S3")):
        seen = race(storage, str(ROUNDS), "1")
        careless = race(storage, str(max(20, ROUNDS // 4)), "1", "careless")
        of_storage = {
            "races": seen["rounds"],
            "copies that writers said were there": seen["commits"],
            "writers killed": seen["kills"],
            "heads that another had made": seen["refused"],
            "looks of a reader meanwhile": seen["looks"],
            "copies torn": seen["torn"],
            "copies lost": seen["lost"],
            "lost or torn without preconditions": careless["lost"] + careless["torn"],
        }
        figures |= {f"{name}{suffix}": value for name, value in of_storage.items()}
    frame.finish("bucket", {name: float(value) for name, value in figures.items()}, TARGETS)


if __name__ == "__main__":
    main()

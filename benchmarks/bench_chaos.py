"""Kills workers 500 times, at random instants and during saves, and compares the ends of the jobs.

Jobs on one worker and on two over gloo, in turn, of about a second; SIGKILL to one worker or to all. Half of
the kills wait for a checkpoint to be written, and strike within 10 ms. After three starts in ten, the newest
one is cut or changed, as by a disk that lost its power. See tests/training/forked.py for how.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks import frame
from tests.training.forked import EVERY_S

KILLS = 50 if frame.QUICK else 500


def main() -> None:
    """Kill, and hold what was seen against the promises."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="daybreak-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.training.chaos", folder, str(KILLS), "1"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=frame.ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    seen = json.loads(done.stdout)
    frame.finish(
        "chaos",
        {
            "kills": seen["kills"],
            "of them within a save, torn": seen["in_a_save"],
            "checkpoints damaged afterwards": seen["damaged"],
            "jobs": seen["jobs"],
            "starts that trained": seen["went_on"],
            "from a checkpoint": seen["resumed"],
            "from another than the newest whole checkpoint": seen["from_another"],
            "checkpoints lost by a kill, at most": seen["saves_lost"],
            "lost without a checkpoint begun, at most, intervals": seen["unsaved_s"] / EVERY_S,
            "jobs not bit-equal": seen["not_bit_equal"],
            "weights apart on 1, 2, 4, 3, 1 workers": seen["resized_apart"],
            "took s": time.monotonic() - began,
        },
        {
            "kills": (">=", KILLS),
            "of them within a save, torn": (">=", KILLS / 10),
            "checkpoints damaged afterwards": (">=", 1),
            "from a checkpoint": (">=", KILLS / 4),
            "from another than the newest whole checkpoint": ("==", 0),
            "checkpoints lost by a kill, at most": ("<=", 1),
            "jobs not bit-equal": ("==", 0),
            "weights apart on 1, 2, 4, 3, 1 workers": ("<=", 1e-6),
            "took s": ("<=", 60 if frame.QUICK else 600),
        },
    )


if __name__ == "__main__":
    main()

"""Is the plan the best there is, and soon found? Random catalogs searched exhaustively, and one of 140,000.

The exhaustive search is written out here in the plainest way, from the definition, and knows nothing of ours:
every machine, count, batch size and strategy is estimated, kept if it is in time and in budget, and compared
with the best so far. Time is that of a whole plan, from records to record, with more than 140,000 ways to run
the job, by the processor's time, since other work may run beside; the best of three. Memory and import (the
median) are those of fresh processes.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from statistics import median

from benchmarks import frame
from benchmarks.catalogs import agreement

CATALOGS = 10 if frame.QUICK else 200
ROUNDS = 3 if frame.QUICK else 11

IMPORT = """
import time
began = time.perf_counter()
import daybreak.planning.planner
print(time.perf_counter() - began)
"""
SEARCH = """
import json, resource, time
from daybreak.planning import planner
from benchmarks import catalogs
job = catalogs.large()
times = []
for _ in range(3):
    began = time.process_time()
    made = planner.plan(**job)
    times.append(time.process_time() - began)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
number, weighed = (sum(1 for _ in catalogs.candidates_of(job, dominated=every)) for every in (True, False))
print(json.dumps({"number": number, "weighed": weighed, "seconds": min(times), "peak": peak}))
"""


def main() -> None:
    """Compare, time, and hold the figures against their targets."""
    rows = [agreement(seed) for seed in range(CATALOGS)]
    imports = sorted(float(run(IMPORT)) for _ in range(ROUNDS))
    searched = json.loads(run(SEARCH))
    frame.table(
        [
            {
                "objective": objective,
                "catalogs": len(of_objective),
                "feasible": sum(row.feasible for row in of_objective),
                "equal to exhaustive": sum(row.equal for row in of_objective),
            }
            for objective in ("cost", "time", "knee")
            for of_objective in [[row for row in rows if row.objective == objective]]
        ]
    )
    frame.finish(
        "search",
        {
            "catalogs": len(rows),
            "of them feasible": sum(row.feasible for row in rows),
            "equal to exhaustive %": 100 * sum(row.equal for row in rows) / len(rows),
            "least relaxations equal %": 100
            * share([row.relaxed for row in rows if row.relaxed is not None]),
            "candidates": searched["number"],
            "of them not dominated": searched["weighed"],
            "plan, CPU s": searched["seconds"],
            "peak memory MB": searched["peak"],
            "import s": median(imports),
        },
        {
            "equal to exhaustive %": ("==", 100),
            "least relaxations equal %": ("==", 100),
            "candidates": (">=", 140_000),
            "plan, CPU s": ("<=", 2),
            "peak memory MB": ("<=", 150),
            "import s": ("<=", 0.3),
        },
    )


def share(held: Sequence[bool]) -> float:
    """Of how many it is true."""
    return sum(held) / len(held) if held else 1.0


def run(code: str) -> str:
    """What the code prints in a fresh process."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=frame.ROOT
    ).stdout.strip()


if __name__ == "__main__":
    main()

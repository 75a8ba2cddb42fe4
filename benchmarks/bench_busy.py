"""Does other work on the machine fool a profile? Ten jobs, alone and beside processes that burn all cores.

The jobs are every third of those whose bound is known by how they are made (jobs.py). Each is profiled twice,
in a process of its own: alone, and beside one process a core that does nothing but count. The ceilings are
those of a quiet hour, as in a home; how far off new ones would have been is measured as well. A profile that
others disturbed says so, holds for a night, and replaces no undisturbed one.
"""

import os
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from daybreak.contract.workload import ARRAYS
from daybreak.storage.home import Home

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from benchmarks import frame, jobs
from benchmarks.bench_bounds import profiled
from daybreak.contract import records
from daybreak.machines import contention, this_machine
from daybreak.profiling import roofline

EVERY = 9 if frame.QUICK else 3


def main() -> None:
    """Profile the jobs alone and beside others, and compare."""
    names = list(jobs.JOBS)[::EVERY]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DAYBREAK_HOME"] = folder
        os.chdir(folder)
        jobs.write(ARRAYS)
        quiet = roofline.ceilings(Home.here(), ARRAYS)
        alone = [profiled(name) for name in names]
        with frame.burning():
            fresh = roofline.measure(ARRAYS)
            make_old()
            used = roofline.ceilings(Home.here(), ARRAYS)
            beside = [profiled(name) for name in names]
    frame.table(
        [
            {
                "job": one["job"],
                "bound": one["bound"],
                "alone": one["verdict"],
                "beside others": other["verdict"],
                "mixed alone": one["mixed"],
                "mixed beside": other["mixed"],
                "contention alone": one["contention"],
                "contention beside": other["contention"],
            }
            for one, other in zip(alone, beside, strict=True)
        ]
    )
    rates = ("float32_flops_per_s", "copy_bytes_per_s", "fresh_bytes_per_s", "warm_bytes_per_s")
    figures = {
        "jobs": float(len(names)),
        "the same verdict": float(
            sum(a["verdict"] == b["verdict"] for a, b in zip(alone, beside, strict=True))
        ),
        "right alone": float(sum(row["verdict"] == row["bound"] for row in alone)),
        "right beside others": float(sum(row["verdict"] == row["bound"] for row in beside)),
        "seen as disturbed, alone": float(sum(row["contention"] > contention.MOST for row in alone)),
        "seen as disturbed, beside others": float(sum(row["contention"] > contention.MOST for row in beside)),
        "least contention beside others": min(row["contention"] for row in beside),
        "ceilings used are the quiet ones": float(used.measured_at < fresh.measured_at),
        "contention of new ceilings": fresh.contention,
        **{f"new / quiet, {rate}": getattr(fresh, rate) / getattr(quiet, rate) for rate in rates},
    }
    targets: dict[str, frame.Target] = {
        "the same verdict": ("==", len(names)),
        "seen as disturbed, beside others": ("==", len(names)),
        "seen as disturbed, alone": ("==", 0),
        "ceilings used are the quiet ones": ("==", 1),
    }
    frame.finish("busy", figures, targets)


def make_old() -> None:
    """Have the kept ceilings be of a month ago, so that they are due."""
    (path,) = Path("var/machines").glob("*.json")
    kept = records.loads(roofline.Ceilings, path.read_text(), source=str(path))
    old = datetime.now(UTC) - 4 * this_machine.KEPT
    records.replace_text(path, records.dumps(replace(kept, measured_at=old)))


if __name__ == "__main__":
    main()

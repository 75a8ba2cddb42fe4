"""Is the verdict right? Thirty jobs whose bound is known by how they are made, profiled three times.

Each job is diagnosed in a process of its own, on one thread; those that have not the memory they need are
under a limit that the kernel enforces. QUICK=1 takes three jobs of each bound, once.
"""

import os
import resource
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from daybreak.contract.workload import ARRAYS
from daybreak.storage.home import Home

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from benchmarks import frame, jobs
from daybreak.contract.sections import ProfileParams, TrainParams
from daybreak.machines import contention, this_machine
from daybreak.profiling import roofline
from daybreak.profiling.diagnosis import diagnose

RUNS = 1 if frame.QUICK else 3
LIMIT_S = 120.0


def main() -> None:
    """Profile all jobs and hold the verdicts against what they were made for."""
    kinds = (jobs.IO, jobs.COMPUTE, jobs.MEMORY)
    names = [name for kind in kinds for name in list(kind)[:: 4 if frame.QUICK else 1]]
    right = [0] * RUNS
    seconds, mixed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DAYBREAK_HOME"] = folder  # ceilings are measured once
        os.chdir(folder)
        jobs.write(ARRAYS)
        roofline.ceilings(Home.here(), ARRAYS)
        for run in range(RUNS):
            rows = [profiled(name) for name in names]
            right[run] = sum(row["verdict"] == row["bound"] for row in rows)
            mixed += sum(bool(row["mixed"]) for row in rows)
            seconds += [row["s"] for row in rows]
            frame.table(rows)
    frame.finish(
        "bounds",
        {
            "jobs": len(names),
            **{f"right in run {run + 1}": count for run, count in enumerate(right)},
            "called mixed": mixed,
            "seconds per profile": sum(seconds) / len(seconds),
        },
        {f"right in run {run + 1}": (">=", len(names) - (0 if frame.QUICK else 1)) for run in range(RUNS)},
    )


def profiled(name: str) -> dict[str, Any]:
    """What the profile of a job says, in a process of its own."""
    fork = get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=profile, args=(there, name))
    process.start()
    there.close()
    try:
        row: dict[str, Any] = here.recv() if here.poll(LIMIT_S) else {"verdict": "none in time"}
    except EOFError:
        row = {"verdict": "died"}
    process.kill()
    process.join()
    nothing = {
        "kind": "",
        "io": 0.0,
        "compute": 0.0,
        "memory": 0.0,
        "mixed": "",
        "gains": "",
        "contention": 0.0,
        "s": LIMIT_S,
    }
    return {"job": name, "bound": jobs.JOBS[name].bound, **nothing, **row}


def profile(to: Connection, name: str) -> None:
    """Profile a job under its limit, and tell."""
    job = jobs.JOBS[name]
    if job.room_bytes is not None:
        limit = this_machine.status()["VmData"] + job.room_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    begin = time.perf_counter()
    with contention.measured() as seen:
        diagnosis = diagnose(
            Home.here(),
            jobs.Constructed(name),
            ProfileParams(batch_sizes=jobs.sizes(job.batch_size), steps=3),
            TrainParams(batch_size=job.batch_size),
        )
    evidence = diagnosis.evidence
    to.send(
        {
            "verdict": diagnosis.verdict.bound,
            "kind": evidence["memory"]["kind"],
            "io": evidence["load_share"],
            "compute": evidence["compute_share"],
            "memory": evidence["memory_share"],
            "mixed": " ".join(diagnosis.verdict.mixed),
            "gains": " ".join(
                f"{diagnosis.verdict.gains[bound]:.2f}" for bound in ("io", "compute", "memory")
            ),
            "contention": seen.share,
            "s": time.perf_counter() - begin,
        }
    )


if __name__ == "__main__":
    main()

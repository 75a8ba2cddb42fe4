"""The night killed in each stage, then run again: the same end as undisturbed, one job, nothing lost.

Each time SIGKILL goes to all processes of the night, the training job and its workers among them, as soon as
the stage has begun to work. The night that is run again must end with the same model, verdict and data.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks import frame
from daybreak import stages
from daybreak.contract import records
from daybreak.contract.record_types import Training, Verdict
from daybreak.storage import ledger
from daybreak.storage.home import Home

KILLED_IN = ("validate", "train", "promote") if frame.QUICK else stages.CHAIN
DAY = "2026-03-04"
SETS = frame.sets([*frame.SMALL, "profile.steps=2", "profile.batch_sizes=[32,64]", "gate.min_samples=5"])
NIGHT = ["night", "--day", DAY, *SETS]
INTO_TRAINING = 500  # samples trained on when the job is killed


def main() -> None:
    """Kill a night in each stage and hold its end against that of an undisturbed one."""
    with frame.home() as home:
        frame.pipeline(home, *NIGHT)
        undisturbed = outcome(home)
    rows = []
    for name in KILLED_IN:
        with frame.home() as home:
            kill_in(home, name)
            began = time.monotonic()
            frame.pipeline(home, *NIGHT)
            again_s = time.monotonic() - began
            end = outcome(home)
            rows.append({"killed in": name, "same end": end == undisturbed, "run again s": again_s, **end})
            print(f"killed in {name}: {'same end' if end == undisturbed else f'{end} is not {undisturbed}'}")
    frame.table(rows)
    frame.finish(
        "interrupted",
        {
            "stages killed": len(rows),
            "same end": sum(bool(row["same end"]) for row in rows),
            "most jobs a night": max(int(row["jobs"]) for row in rows),
            "most ledger commits": max(int(row["commits"]) for row in rows),
        },
        {
            "same end": ("==", len(rows)),
            "most jobs a night": ("==", 1),
            "most ledger commits": ("==", 1),
        },
    )


def kill_in(home: Path, name: str) -> None:
    """Start the night and kill all of it once `name` works."""
    command = [sys.executable, "-m", "daybreak", *NIGHT]
    night = subprocess.Popen(
        command,
        cwd=home,
        env=frame.environment(home),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not works(home, name):
        if night.poll() is not None:
            raise RuntimeError(f"the night ended with {night.returncode} before {name} was seen to work")
        time.sleep(0.05)
    time.sleep(0.3)  # into the stage's own work
    for process in processes_in(home):
        process.send_signal(signal.SIGKILL)
    night.wait()


def works(home: Path, name: str) -> bool:
    """Is the stage at work? For train: has the job trained on some samples?"""
    if name == "train":
        lines = [p.read_text() for p in home.glob("nights/*/data/work/jobs/*/progress.jsonl")]
        last = [json.loads(text.splitlines()[-1]) for text in lines if text.endswith("\n")]
        return any(line["seen"] >= INTO_TRAINING for line in last)
    if name == "open":
        return (home / "nights").exists()
    return name in map(name_of, processes_in(home))


def name_of(process: psutil.Process) -> str:
    """The name of its stage, or of its program; none where it ended meanwhile."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def processes_in(home: Path) -> list[psutil.Process]:
    """All processes that run in that home, also those of a session of their own."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(home):
                process.cmdline()
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def outcome(home: Path) -> dict[str, object]:
    """What the night came to."""
    os.environ["DAYBREAK_HOME"] = str(home)
    [folder] = (home / "nights").glob("*")
    entries = ledger.history(Home.here())
    verdict = records.read(Verdict, folder / records.RUN)
    alias = frame.champion_of(home)
    return {
        "commits": len(entries),
        "verdict": verdict.action,
        "effect": round(verdict.effect.mean if verdict.effect else 0, 6),
        "model": records.read(Training, folder / records.RUN).model_digest[:8],
        "raw": records.digest(folder / "data/raw")[:8],
        "clean": records.digest(folder / "data/clean")[:8],
        "alias": alias,
        "jobs": len(list((folder / "data/work/jobs").glob("*/job.json"))),
    }


if __name__ == "__main__":
    main()

"""`make night` as a newcomer has it: a fresh clone, an empty home, then a second night; peak memory.

Airflow's overhead is the second night through Airflow less a third one, equally warm, by the command line.
Of that third night it counts the CPU time of all stages, too; training runs as a job of its own beside them.
It also counts the processes that the night starts, of those that live for a hundredth of a second, and the
CPU time of all of them together. The same third night by the release before comes next, in a home of its own,
with the parameters that it came with. QUICK=1 keeps this environment instead of installing one.
"""

import os
import re
import resource
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psutil

from benchmarks import frame
from daybreak.storage import ledger
from daybreak.storage.home import Home

BEFORE = "02042c7"  # the release before


def main() -> None:
    """Set up, run three nights, and hold them against the targets."""
    today = datetime.now(UTC).date()
    days = [day for day in (today - timedelta(days=n) for n in range(6, 0, -1)) if day.isoweekday() != 7][-3:]
    with frame.home() as home:
        user = home.parent / "user"
        user.mkdir()
        if frame.QUICK:
            frame.lend_environment(home)
        setup_s, _ = timed(home, user, "setup")
        first_s, first_bytes = timed(home, user, "night", f"DAY={days[0]}")
        second_s, second_bytes = timed(home, user, "night", f"DAY={days[1]}")
        began = time.monotonic()
        now, log = night(home, days[2])
        plain_s = time.monotonic() - began
        stages = re.findall(r"^(\w+) +([\d.]+) s, +([\d.]+) s of CPU", log, re.MULTILINE)
        frame.table([{"stage": name, "s": float(s), "CPU s": float(cpu)} for name, s, cpu in stages])
        frame.table([{"program": name, "processes": number} for name, number in now.programs.most_common()])
        os.environ["DAYBREAK_HOME"] = str(home)
        entries = ledger.history(Home.here())
        judged = sum(entry.evaluation is not None for entry in entries)
    with frame.home() as home:
        subprocess.run(["git", "checkout", "--quiet", "-B", "main", BEFORE], cwd=home, check=True)
        for day in days[:2]:
            frame.pipeline(home, "night", "--day", str(day))
        before, _ = night(home, days[2])
    frame.finish(
        "night",
        {
            "set-up s": setup_s,
            "first night s": first_s,
            "second night s": second_s,
            "night without Airflow s": plain_s,
            "Airflow's overhead s": second_s - plain_s,
            "night without Airflow, CPU s outside training": now.outside_s,
            "CPU s outside training / of the release before": now.outside_s / before.outside_s,
            "night without Airflow, CPU s with training": now.total_s,
            "CPU s with training / of the release before": now.total_s / before.total_s,
            "night without Airflow, processes": float(now.programs.total()),
            "processes / of the release before": now.programs.total() / before.programs.total(),
            "night without Airflow, of them Python's": float(
                sum(number for name, number in now.programs.items() if name.startswith("python"))
            ),
            "nights judged": judged,
            "peak memory GiB": max(first_bytes, second_bytes) / 2**30,
        },
        {
            "first night s": ("<=", 180),
            "second night s": ("<=", 120),
            "nights judged": ("==", 3),
            "night without Airflow, CPU s outside training": ("<=", 60),
            "CPU s with training / of the release before": ("<=", 1.1),
        },
    )


def cpu_s() -> float:
    """CPU seconds of the processes that this one waited for; a training is a process of its own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass
class Used:
    """What a night used: CPU seconds, and processes by the name of their program."""

    programs: Counter[str] = field(default_factory=Counter)
    outside_s: float = 0.0  # of training
    total_s: float = 0.0


def night(home: Path, day: date) -> tuple[Used, str]:
    """Runs a night by the command line; returns the resources used and the text on stderr."""
    used, before_s = Used(), cpu_s()
    with watched(home, used):
        log = frame.pipeline(home, "night", "--day", str(day)).stderr
    used.outside_s = cpu_s() - before_s
    print(*log.splitlines()[-1:])  # its verdict: a night that promotes does more than one that does not
    return used, log


@contextmanager
def watched(home: Path, used: Used) -> Iterator[None]:
    """Adds to `used` the processes that begin to work in the home meanwhile, but for their last moments."""
    seconds: dict[int, float] = {}
    over = threading.Event()

    def look() -> None:
        seen = set(psutil.pids())
        ours: dict[int, psutil.Process] = {}
        while not over.wait(0.01):
            now = set(psutil.pids())
            for pid in now - seen:
                with suppress(psutil.Error, OSError):
                    process = psutil.Process(pid)
                    if Path(process.cwd()).is_relative_to(home):
                        used.programs[process.name()] += 1
                        ours[pid] = process
            for pid in ours.keys() & now:
                with suppress(psutil.Error, OSError):
                    times = ours[pid].cpu_times()
                    seconds[pid] = times.user + times.system
            seen = now

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        used.total_s = sum(seconds.values())


def timed(home: Path, user: Path, *words: str) -> tuple[float, int]:
    """Seconds of a make target, and the most memory that its processes had together, in bytes."""
    ours = ("DAYBREAK_HOME", "VIRTUAL_ENV", "AIRFLOW_HOME")  # of the make that runs this
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    environment |= {"HOME": str(user), "AIRFLOW_PORT": "18081", "MLFLOW_PORT": "15001"}
    began = time.monotonic()
    process = subprocess.Popen(["make", *words], cwd=home, env=environment)
    peak = [0]
    watcher = threading.Thread(target=watch, args=(process, home, peak), daemon=True)
    watcher.start()
    if process.wait():
        raise RuntimeError(f"make {' '.join(words)} ended with {process.returncode}")
    return time.monotonic() - began, peak[0]


def watch(process: "subprocess.Popen[bytes]", home: Path, peak: list[int]) -> None:
    """Keep the largest sum of the proportional memory of all processes at work in the home."""
    while process.poll() is None:
        total = 0
        for each in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if Path(each.cwd()).is_relative_to(home):
                    total += each.memory_full_info().pss
        peak[0] = max(peak[0], total)
        time.sleep(0.5)


if __name__ == "__main__":
    main()

"""Reads how many cores are free for a run that takes and gives up cores as they come and go.

Three limits, each read again and again: the cores that this process may use at all (its affinity, the quotas
of its cgroups); what other processes take of them, by the kernel's counters; and what other runs like this
one want. Runs say so in a folder that all of a user's runs share, in a file each, which is locked while the
run lives. The cores are divided evenly, unless a run wants fewer (max-min fairness): all read the same files,
so all come to the same division without asking each other.
"""

import fcntl
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from daybreak.machines import this_machine

PROC = Path("/proc")
LEAST_S = 0.25  # between measurements: the kernel counts in hundredths of a second
FADING = 0.7  # weight of the earlier estimate, when a measurement shows more free cores
IDLE = (3, 4)  # fields of a core in /proc/stat: idle, and waiting for a disk


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The quota of a cgroup, and the CPU seconds that all its processes have used."""

    num_cores: float
    used_s: float


@dataclass(frozen=True, kw_only=True)
class Counters:
    """CPU seconds so far: of all processes on the cores of this one, of some processes, of cgroups."""

    busy_s: float = 0.0
    processes_s: dict[int, float] = field(default_factory=dict)
    quotas: tuple[Quota, ...] = ()


def fair_share(num_cores: int, wants: Mapping[str, int], own: str) -> int:
    """Returns the cores of run `own` among all that want some, one at least.

    What even shares leave over goes to the first by name.

    >>> [fair_share(4, {"a": 8, "b": 1, "c": 8}, name) for name in "abc"]
    [2, 1, 1]
    """
    left, shares = num_cores, dict.fromkeys(sorted(wants), 0)
    while left > 0 and shares != dict(wants):
        for name in shares:
            if left > 0 and shares[name] < wants[name]:
                shares[name] += 1
                left -= 1
    return max(1, shares[own])


def used_and_free(
    before: Counters, now: Counters, *, passed_s: float, num_cores: int, runs: float
) -> tuple[float, float]:
    """Returns the cores that this run's processes used since `before`, and those that were free for runs.

    `runs` are the cores used by other runs, as they report.
    """
    own = sum(each - before.processes_s.get(pid, 0.0) for pid, each in now.processes_s.items()) / passed_s
    ours = own + runs
    free = num_cores - max(0.0, (now.busy_s - before.busy_s) / passed_s - ours)
    for quota, earlier in zip(now.quotas, before.quotas, strict=False):
        used = (quota.used_s - earlier.used_s) / passed_s
        free = min(free, quota.num_cores - max(0.0, used - ours))
    return own, free


class FreeCores:
    """Cores that are free for one run."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        counters: "Callable[[Sequence[int]], Counters] | None" = None,
    ) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"daybreak-cores-{os.getuid()}"
        self._clock, self._read = clock, counters or read_counters
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._before, self._read_at = self._read(()), clock()
        self._num_cores = this_machine.num_cores()
        quotas = [quota.num_cores for quota in self._before.quotas]
        self.limit = max(1, math.floor(min([self._num_cores, *quotas])))
        self._free, self._used = float(self.limit), 0.0
        self._name, self._file = self._claimed()
        self._claim(1)

    def free(self, *, pids: Sequence[int], wants: int) -> float:
        """Returns the cores that this run, with the processes `pids`, may use now: one at least."""
        runs = self._runs()
        now = self._clock()
        if now >= self._read_at + LEAST_S:
            counters = self._read((os.getpid(), *pids))
            self._used, free = used_and_free(
                self._before,
                counters,
                passed_s=now - self._read_at,
                num_cores=self._num_cores,
                runs=sum(used for _, used in runs.values()),
            )
            # A core is given up at once, and taken once it has been free for a second or two.
            self._free = min(free, FADING * self._free + (1 - FADING) * free)
            self._before, self._read_at = counters, now
        self._claim(wants)
        if not runs:
            return max(1.0, self._free)
        most = {self._name: wants} | {name: each for name, (each, _) in runs.items()}
        return float(fair_share(round(self._free), most, self._name))

    def close(self) -> None:
        """Ends the claim; the kernel does so where the process is killed."""
        with suppress(FileNotFoundError):
            (self._folder / self._name).unlink()
        os.close(self._file)

    def _claimed(self) -> tuple[str, int]:
        """Returns name and descriptor of a file of our own, locked."""
        while True:
            name = f"{os.getpid()}-{time.monotonic_ns()}"
            file = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if (self._folder / name).exists():  # nobody removed it as a dead run's before it was locked
                return name, file
            os.close(file)

    def _claim(self, wants: int) -> None:
        os.pwrite(self._file, f"{wants:6d} {self._used:9.3f}\n".encode(), 0)

    def _runs(self) -> dict[str, tuple[int, float]]:
        """Returns most wanted and used cores of each other run, by file; removes files of dead runs."""
        runs = {}
        for path in self._folder.iterdir():
            if path.name == self._name:
                continue
            with suppress(FileNotFoundError, ValueError), path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    wants, used = file.read().split()
                    runs[path.name] = int(wants), float(used)
                else:
                    path.unlink()
        return runs


def read_counters(pids: Sequence[int]) -> Counters:
    """Returns the kernel's counters; those of processes that have ended are left out."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = 0
    for line in (PROC / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name in cores:
            busy += sum(int(each) for n, each in enumerate(fields[:8]) if n not in IDLE)
    processes = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            processes[pid] = (int(fields[11]) + int(fields[12])) * tick_s
    return Counters(busy_s=busy * tick_s, processes_s=processes, quotas=tuple(_quotas()))


def _quotas() -> Iterator[Quota]:
    """Yields the quotas of this process's cgroup and its parents, in versions 2 and 1."""
    for folder, version in this_machine.own_cgroups("cpu"):
        with suppress(FileNotFoundError, ValueError):
            yield (_quota_1 if version == 1 else _quota_2)(folder)


def _quota_2(folder: Path) -> Quota:
    """Returns the quota in `cpu.max`; ValueError where there is none."""
    quota, period = folder.joinpath("cpu.max").read_text().split()
    usage = dict(line.split() for line in folder.joinpath("cpu.stat").read_text().splitlines())
    return Quota(num_cores=int(quota) / int(period), used_s=int(usage["usage_usec"]) / 1e6)


def _quota_1(folder: Path) -> Quota:
    """Returns the quota of version 1; ValueError where there is none."""
    quota, period = (int(folder.joinpath(f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    if quota <= 0:
        raise ValueError("no quota")
    usage = Path(str(folder).replace(f"{this_machine.CGROUPS}/cpu", f"{this_machine.CGROUPS}/cpuacct", 1))
    return Quota(num_cores=quota / period, used_s=int(usage.joinpath("cpuacct.usage").read_text()) / 1e9)

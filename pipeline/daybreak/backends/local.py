"""Runs a job on this machine: torchrun in a separate session, so that it outlives the submitter.

A job is its folder. A supervisor (this module, run with the night's code) starts torchrun, waits, and writes
the exit status. `alive` is locked by the supervisor and by torchrun, which inherits the lock: the kernel
releases the lock when both are dead, from any cause, so the lock shows whether the job runs.

    folder/alive      locked while the job runs       folder/pid    process group of the job
    folder/attempt    token of the newest start       folder/exit   exit status of that start
    folder/log.txt    output of all starts            folder/asking locked while the job is looked at
"""

import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from daybreak.backends import torchrun
from daybreak.contract.backend import Backend, Job, JobState
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import LOCAL, Rental
from daybreak.contract.records import replace_text
from daybreak.machines import own_machines
from daybreak.machines.catalog import AT_HAND
from daybreak.storage.home import Home
from daybreak.storage.journal import alone

LOG = "log.txt"
SETTINGS = "supervisor.json"  # of the newest start
STOP_S = 30.0  # from SIGTERM to SIGKILL; torchrun ends its workers meanwhile


class Local(Backend):
    """This machine."""

    def __init__(self, *, machines: str = "", home: Home | None = None) -> None:
        """Takes the price of this machine from line `local` of the team's file; "" for a free machine."""
        self._file, self._home = machines, home

    def submit(self, job: Job) -> str:
        """Starts the job unless it runs, or one of its name has succeeded; returns its handle.

        That is its folder below the home: so a copy of the home looks at its own job, and never ends the
        original's.

        Raises JobError for a job that is meant for another machine: its result here would be mistaken for one
        from there. Raises ParamsError in a pod that Airflow made for one task: no other sees its processes.
        """
        if os.environ.get("AIRFLOW_IS_K8S_EXECUTOR_POD"):
            raise ParamsError(
                "Airflow's KubernetesExecutor runs this stage in a pod of its own, whose processes no other "
                "stage sees, so nothing is trained here; set backend.use to a place that has machines, such "
                "as Kubernetes (docs/kubernetes.md)"
            )
        if replace(job.rental, backend="") != Rental(machine=LOCAL):
            raise JobError(
                f"job {job.name} is for {job.rental}, but backend Local has only the machine at hand; "
                f"set plan.machines (or profile.machine) to {LOCAL}, or backend to one that rents"
            )
        folder = Path(job.folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        handle = str(self._home.below(folder) if self._home else folder)
        with alone(folder / "asking"), (folder / "alive").open("ab") as alive:
            if not _locked(alive) or (_exit_status(folder) == 0 and _settings(folder).get("job") == job.name):
                return handle
            for name in ("pid", "exit"):
                (folder / name).unlink(missing_ok=True)
            token = secrets.token_hex(8)
            replace_text(folder / "attempt", token)
            command = torchrun.command(job.module, job.arguments, num_workers=job.num_workers)
            settings = {"job": job.name, "command": command, "timeout_s": job.timeout_s}
            replace_text(folder / SETTINGS, json.dumps(settings))
            threads = torchrun.threads(job.num_workers)
            environment = {**os.environ, **threads, **job.environment, "DAYBREAK_ATTEMPT": token}
            supervisor = [sys.executable, "-m", "daybreak.backends.local", str(folder), str(alive.fileno())]
            with (folder / LOG).open("ab") as output:
                process = subprocess.Popen(
                    supervisor,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[alive.fileno()],
                    start_new_session=True,
                )
            threading.Thread(
                target=process.wait, daemon=True
            ).start()  # so that no zombie is left while we live
        return handle

    def state(self, handle: str) -> JobState:
        """Returns what the job is doing; preempted if it was killed rather than failed."""
        folder = self._folder_of(handle)
        if not folder.exists():
            return "preempted"
        if _runs(folder):
            return "running"
        status = _exit_status(folder)
        if status == 0:
            return "succeeded"
        return "preempted" if status is None or status < 0 or status > 128 else "failed"

    def cancel(self, handle: str) -> None:
        """Ends the job with SIGTERM, and with SIGKILL after half a minute; returns when it is dead."""
        folder = self._folder_of(handle)
        began = time.monotonic()
        number: signal.Signals = signal.SIGTERM
        sent = False
        while folder.exists() and _runs(folder):
            if time.monotonic() > began + STOP_S and number is not signal.SIGKILL:
                number, sent = signal.SIGKILL, False
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):  # just started, or just gone
                group = int((folder / "pid").read_text())
                if not sent:
                    os.killpg(group, number)
                    sent = True
            time.sleep(0.05)

    def machines(self) -> Sequence[Machine]:
        """Returns the machine at hand; ParamsError where the file has no line for it."""
        if not self._file:
            return (AT_HAND,)
        own = [each.machine for each in own_machines.read(Path(self._file)) if each.machine.is_local]
        if not own:
            raise ParamsError(
                f"{self._file} has no machine {LOCAL}, which this machine is called; add a line of that "
                f"name, or leave backend.machines out"
            )
        return (replace(own[0], spot=False, spot_usd_per_hour=None),)

    def _folder_of(self, handle: str) -> Path:
        return self._home.at(handle) if self._home else Path(handle)

    def logs(self, handle: str) -> str:
        """Returns the file that all starts write to."""
        return str(self._folder_of(handle) / LOG)


def _locked(file: BinaryIO) -> bool:
    """Takes the lock if nobody holds it, and returns whether it did."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _runs(folder: Path) -> bool:
    with alone(folder / "asking"), (folder / "alive").open("ab") as file:
        return not _locked(file)


def _exit_status(folder: Path) -> int | None:
    """Returns the status of the newest start, negative for a signal; None if its supervisor was killed."""
    try:
        return int((folder / "exit").read_text())
    except FileNotFoundError:
        return None


def _settings(folder: Path) -> dict[str, Any]:
    """Returns which job the newest start belongs to, its command, and its time limit."""
    settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())
    return settings


def supervise(folder: Path, alive: int) -> None:
    """Runs the job's command, ends it after the time limit, and writes the exit status."""
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))  # torchrun gets it too
    replace_text(folder / "pid", str(os.getpid()))
    settings = _settings(folder)
    process = subprocess.Popen(settings["command"], pass_fds=[alive])
    try:
        status = process.wait(settings["timeout_s"])
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            status = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
    replace_text(folder / "exit", str(-signals[0] if status and signals else status))


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), int(sys.argv[2]))

"""How does a job run on this machine? torchrun in a session of its own, which outlives who asked for it.

A job is its folder. A supervisor (this module, run with the night's code) starts torchrun, waits, and writes
the exit status. `alive` is locked by the supervisor and by torchrun, which inherits the lock: the kernel lets
go of it when the last of them is dead, however they died, so it is the truth on whether the job runs.

    folder/alive      locked while the job runs       folder/pid    process group of the job
    folder/attempt    token of the newest start       folder/exit   how that one ended
    folder/log.txt    output of all starts
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pipeline.backends import torchrun
from pipeline.contract.backend import Backend, Job, State
from pipeline.contract.errors import JobError
from pipeline.contract.machine import Machine
from pipeline.contract.records import LOCAL, Rental, replace_text
from pipeline.machines.catalog import AT_HAND

LOG = "log.txt"
STOP_S = 30.0  # from the request to end to the kill; torchrun asks its workers meanwhile


class Local(Backend):
    """This machine."""

    def submit(self, job: Job) -> str:
        """Start the job unless it runs or has succeeded; its folder is the handle.

        Raises JobError for a job that is meant for another machine: run here, it would pass for that one.
        """
        if job.rental != Rental(machine=LOCAL):
            raise JobError(
                f"job {job.name} is for {job.rental}, but backend Local has only the machine at hand; "
                f"set plan.machines (or profile.machine) to {LOCAL}, or backend to one that rents"
            )
        folder = Path(job.folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with _asking(folder), (folder / "alive").open("ab") as alive:
            if not _locked(alive) or _exit_status(folder) == 0:
                return str(folder)
            for name in ("pid", "exit"):
                (folder / name).unlink(missing_ok=True)
            token = secrets.token_hex(8)
            replace_text(folder / "attempt", token)
            command = torchrun.command(job.module, job.arguments, num_workers=job.num_workers)
            order = {"command": command, "timeout_s": job.timeout_s}
            replace_text(folder / "supervisor.json", json.dumps(order))
            threads = torchrun.threads(job.num_workers)
            environment = {**os.environ, **threads, **job.environment, "PIPELINE_ATTEMPT": token}
            supervisor = [sys.executable, "-m", "pipeline.backends.local", str(folder), str(alive.fileno())]
            with (folder / LOG).open("ab") as output:
                process = subprocess.Popen(
                    supervisor, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    pass_fds=[alive.fileno()], start_new_session=True,
                )  # fmt: skip
            threading.Thread(target=process.wait, daemon=True).start()  # no zombie, if we live on
        return str(folder)

    def state(self, handle: str) -> State:
        """What the job is doing; preempted if it was killed rather than failed."""
        folder = Path(handle)
        if not folder.exists():
            return "preempted"
        if _runs(folder):
            return "running"
        status = _exit_status(folder)
        if status == 0:
            return "succeeded"
        return "preempted" if status is None or status < 0 or status > 128 else "failed"

    def cancel(self, handle: str) -> None:
        """Ask the job to end, kill it if it does not within half a minute; returns when it is dead."""
        folder = Path(handle)
        asked = time.monotonic()
        number: signal.Signals = signal.SIGTERM
        sent = False
        while folder.exists() and _runs(folder):
            if time.monotonic() > asked + STOP_S and number is not signal.SIGKILL:
                number, sent = signal.SIGKILL, False
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):  # just started, or just gone
                group = int((folder / "pid").read_text())
                if not sent:
                    os.killpg(group, number)
                    sent = True
            time.sleep(0.05)

    def machines(self) -> Sequence[Machine]:
        """The machine at hand."""
        return (AT_HAND,)

    def logs(self, handle: str) -> str:
        """The file that all starts write to."""
        return str(Path(handle) / LOG)


@contextmanager
def _asking(folder: Path) -> Iterator[None]:
    """Only one looks at or changes the job at a time."""
    with (folder / "asking").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _locked(file: BinaryIO) -> bool:
    """Take the lock if nobody has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _runs(folder: Path) -> bool:
    with _asking(folder), (folder / "alive").open("ab") as file:
        return not _locked(file)


def _exit_status(folder: Path) -> int | None:
    """Status of the newest start, negative for a signal; None if nobody lived to write it."""
    try:
        return int((folder / "exit").read_text())
    except FileNotFoundError:
        return None


def supervise(folder: Path, alive: int) -> None:
    """Run the command of the job, end it after its time, and write how it ended."""
    told_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told_to_end.append(number))  # torchrun gets it too
    replace_text(folder / "pid", str(os.getpid()))
    told = json.loads((folder / "supervisor.json").read_text())
    process = subprocess.Popen(told["command"], pass_fds=[alive])
    try:
        status = process.wait(told["timeout_s"])
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            status = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
    replace_text(folder / "exit", str(-told_to_end[0] if status and told_to_end else status))


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), int(sys.argv[2]))

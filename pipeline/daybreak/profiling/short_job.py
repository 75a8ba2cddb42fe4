"""Runs one short job through a backend and waits for it: a profile, or a try of a rented machine.

The job is its folder: its process reads and writes records there, and leaves errors in errors.jsonl as a
training worker does.
"""

import time
from pathlib import Path

from daybreak.contract import code_path
from daybreak.contract.backend import Backend, Job
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.storage.home import Home
from daybreak.training import gpus, worker_errors

POLL_S = 0.5


def job_of(
    home: Home, folder: Path, rental: Rental, *, module: str, machine: Machine, timeout_s: float
) -> Job:
    """Returns the job that runs `module` on `folder`, as one process without torchrun."""
    place = str(folder.resolve())
    return Job(
        name=folder.name,
        module=module,
        arguments=(place,),
        rental=rental,
        folder=place,
        timeout_s=timeout_s,
        environment={
            **code_path.environment(home.tonight),
            **gpus.environment(machine.name, machine.gpus),
        },
    )


def run(job: Job, backend: Backend, *, what: str, otherwise: str) -> str:
    """Submits the job, or attaches to a running one, waits for the end, and returns the handle.

    A job that lost its machine is submitted again.

    Args:
        job: whose `timeout_s` also bounds the wait for a machine.
        backend: where it runs.
        what: what the job is for, `the profile`, in errors.
        otherwise: what a person can do instead, in errors.

    Raises:
        JobError: it did not end in time, and is cancelled.
    """
    until = time.monotonic() + job.timeout_s
    handle = _submitted(job, backend, until=until, otherwise=otherwise)
    try:
        while (state := backend.state(handle)) not in ("succeeded", "failed", "refused"):
            if time.monotonic() > until:
                raise JobError(
                    f"{what} on {job.rental.machine} was {state} after {job.timeout_s:.0f} s; look at "
                    f"{backend.logs(handle)}, or {otherwise}"
                )
            if state == "preempted":
                handle = _submitted(job, backend, until=until, otherwise=otherwise)
            time.sleep(POLL_S)
    except (JobError, KeyboardInterrupt):
        backend.cancel(handle)
        raise
    return handle


def _submitted(job: Job, backend: Backend, *, until: float, otherwise: str) -> str:
    """Returns the handle of the job; raises JobError where the backend does not take it in time."""
    while True:
        try:
            return backend.submit(job)
        except NotYet as error:
            if time.monotonic() > until:
                raise JobError(f"{error}; run it again, or {otherwise}") from error
            time.sleep(POLL_S)


def failure(folder: Path, *, what: str, logs: str) -> str:
    """Returns why the job's process ended without a result, and deletes all its errors for the next run."""
    if not (folder / worker_errors.FILE).exists():
        return f"{what} of job {folder.name} ended without a word; look at {logs}, run it again"
    why = worker_errors.reason(folder)
    worker_errors.forget(folder)
    return why

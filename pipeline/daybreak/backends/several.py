"""Runs jobs on several backends, each the fallback of the others: `backend` in params.yaml as a list.

A backend is named by its class in lower case, with a number behind for a second backend of a class. Machines
and rentals carry the name of their backend; a handle is that name, a colon, and the backend's own handle. The
plan chooses among the machines of all backends, and its fallbacks may be on other backends.

A job that moves goes on from its newest checkpoint, which the next machines have to reach. Its cost is
computed from the journal in its folder, in which all renting backends keep their submissions.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from daybreak.backends import submission_journal
from daybreak.contract.backend import Backend, Job, JobState, LiveJob
from daybreak.contract.errors import JobError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.contract.sections import Plug
from daybreak.storage.bucket import is_here
from daybreak.storage.home import Home

log = logging.getLogger(__name__)


class Several(Backend):
    """Several backends as one."""

    def __init__(self, *, backends: Sequence[Mapping[str, Any]], home: Home | None = None) -> None:
        """Makes the backends, in the order of params.yaml."""
        self.backends: dict[str, Backend] = {}
        for plug in backends:
            made = Plug.model_validate(plug).make(home)
            word = type(made).__name__.lower()
            number = 1 + sum(type(each) is type(made) for each in self.backends.values())
            self.backends[word if number == 1 else f"{word}-{number}"] = made

    def submit(self, job: Job) -> str:
        """Starts the job on the backend of its rental, or attaches to it; JobError for an unknown backend."""
        name = job.rental.backend or next(iter(self.backends))
        if name not in self.backends:
            raise JobError(
                f"job {job.name} is for {job.rental}, and backend in params.yaml names "
                f"{', '.join(self.backends)}; add it again, or plan anew"
            )
        return f"{name}:{self.backends[name].submit(job)}"

    def state(self, handle: str) -> JobState:
        """Returns what the job is doing."""
        backend, own = self._of(handle)
        return backend.state(own)

    def cancel(self, handle: str) -> None:
        """Ends the job."""
        backend, own = self._of(handle)
        backend.cancel(own)

    def machines(self) -> Sequence[Machine]:
        """Returns the machines of all backends that answer; raises JobError where none does."""
        machines: list[Machine] = []
        away: list[str] = []
        for name, backend in self.backends.items():
            try:
                machines += [replace(machine, backend=name) for machine in backend.machines()]
            except JobError as error:
                log.warning("the machines of backend %s are left out: %s", name, error)
                away.append(str(error))
        if away and not machines:
            raise JobError("; ".join(away))
        return tuple(machines)

    def logs(self, handle: str) -> str:
        """Returns where a person reads what the job has printed."""
        backend, own = self._of(handle)
        return backend.logs(own)

    def usd(self, folder: Path) -> float | None:
        """Returns what the job in `folder` has cost so far on all backends; None without a price."""
        return submission_journal.usd(folder, self.machines)

    def parts(self) -> Sequence[Backend]:
        """Returns the backends."""
        return tuple(self.backends.values())

    def part_for(self, rental: Rental) -> Backend:
        """Returns the backend that a rental names, the first where it names none."""
        return self.backends.get(rental.backend) or next(iter(self.backends.values()))

    def live(self) -> Sequence[LiveJob]:
        """Returns the live jobs of all backends."""
        return [
            replace(job, handle=f"{name}:{job.handle}")
            for name, backend in self.backends.items()
            for job in backend.live()
        ]

    def live_in(self, regions: Sequence[str]) -> Sequence[LiveJob]:
        """Returns the live jobs of all backends, in these regions where a backend has any."""
        return [
            replace(job, handle=f"{name}:{job.handle}")
            for name, backend in self.backends.items()
            for job in backend.live_in(regions)
        ]

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """Yields what a job needs on each backend."""
        for name, backend in self.backends.items():
            for what, well, text in backend.preflight(regions):
                yield f"{name}: {what}", well, text

    def cannot_move(self, checkpoints: str) -> str:
        """Says why a job could not resume on another backend from its checkpoints; "" if it can.

        Args:
            checkpoints: the folder of `train.checkpoints`.
        """
        if len(self.backends) < 2 or all(each.shares_disk for each in self.backends.values()):
            return ""
        if not is_here(checkpoints):
            return ""
        return (
            f"backend names {' and '.join(self.backends)}, and a job that moves between them goes on from "
            f"train.checkpoints, which is {checkpoints or 'empty'}; set it to a folder that all machines "
            f"reach, such as gs://my-bucket/checkpoints"
        )

    def _of(self, handle: str) -> tuple[Backend, str]:
        """Returns the backend of a handle, and its own handle; the first for one without a backend's name."""
        name, colon, own = handle.partition(":")
        if colon and name in self.backends:
            return self.backends[name], own
        return next(iter(self.backends.values())), handle

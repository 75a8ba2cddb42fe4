"""Names the jobs of a recipe, one for each placement, and keeps one where several are alive.

Another host with this home may have submitted a job on another placement, with that placement's name. All
hosts keep the same job; of several jobs with one name, the backend keeps one.
"""

import logging
from dataclasses import replace
from pathlib import Path

from daybreak.contract.backend import Backend, Job, LiveJob, label
from daybreak.contract.errors import PipelineError
from daybreak.contract.record_parts import Placement, Rental
from daybreak.contract.record_types import Plan
from daybreak.jobs.backend_job import job_of
from daybreak.jobs.submissions import JobAttempts
from daybreak.storage.home import Home

log = logging.getLogger(__name__)


class PlacementJobs:
    """The jobs by which a plan may be carried out, one for each placement."""

    def __init__(
        self,
        plan: Plan,
        *,
        first: Placement,
        home: Home,
        folder: Path,
        backend: Backend,
        num_workers: int,
        until: float,
        attempts: JobAttempts,
    ) -> None:
        self._attempts = attempts
        self.placements = (first, *plan.fallbacks, *plan.cheaper)
        self._home, self._folder, self._backend = home, folder, backend
        self._num_workers, self._until = num_workers, until  # seconds since 1970, when a job is ended

    def job(self, placement: Placement, now: float = 0.0) -> Job:
        """Returns the job on a placement, as it is submitted now; its name is the same at any time.

        It gets another name only where a job of that name ended well, and its result is not whole: a backend
        runs no such job again.
        """
        job = job_of(
            self._home,
            self._folder,
            placement,
            planned=placement.rental == self.placements[0].rental,
            num_workers=self._workers_on(placement.rental),
            timeout_s=self._until - now,
        )
        number = self._attempts.num_without_result
        return replace(job, name=f"{job.name}-again-{number}") if number else job

    def names(self) -> list[str]:
        """Returns the names of the job on all placements."""
        return [self.job(placement).name for placement in self.placements]

    def placement_of(self, job: LiveJob) -> Placement | None:
        """Returns the placement whose job that is."""
        return next(
            (placement for placement in self.placements if label(self.job(placement).name) == label(job.job)),
            None,
        )

    def older(self, name: str) -> LiveJob | None:
        """Returns the oldest live job if it has another name than that, and ends all others."""
        if len(self.placements) == 1:
            return None
        regions = [placement.rental.region for placement in self.placements]
        try:
            jobs = [j for j in self._backend.live_in(regions) if j.job.startswith(self._folder.name)]
        except PipelineError as error:
            log.warning("whether job %s lives elsewhere, too, is not known: %s", self._folder.name, error)
            return None
        if not jobs:
            return None
        kept = min(jobs, key=lambda job: (job.created_at, job.handle))
        for job in jobs:
            if job.job != kept.job:
                log.warning("job %s lives twice; ending %s, %s stays", self._folder.name, job.job, kept.job)
                self._backend.cancel(job.handle)
        return kept if label(kept.job) != label(name) else None

    def _workers_on(self, rental: Rental) -> int:
        """Returns the number of processes on a machine: by its hardware, or by params on this machine."""
        names = (rental.machine, rental.backend)
        machine = next((m for m in self._backend.machines() if (m.name, m.backend) == names), None)
        return self._num_workers if rental.is_local or machine is None else machine.num_processes

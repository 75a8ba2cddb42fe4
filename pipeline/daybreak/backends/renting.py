"""A base for any place that bills for machines or queues for them.

A place implements `make`, `find`, `get`, `end`, `owns`, `log_of` and `machines`, whose prices are those that
a job pays, and lists in `faults` the causes by which a job may end (place.py). The rest is here: one job at
most, however often it is submitted (submitter.py), its state and the cause of its end (job_recorder.py),
results in a bucket, and the cost. A handle is the place's name of the job, a space, and the folder of the
job.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from daybreak.backends import ownership, submission_journal
from daybreak.backends.faults import CANCELLED
from daybreak.backends.job_recorder import REFUSED, JobRecorder
from daybreak.backends.place import Refused, RentalPlace, Unreachable, machines_of
from daybreak.backends.submission_journal import SubmissionJournal
from daybreak.backends.submitter import Submitter
from daybreak.contract.backend import LIVE, Backend, Job, JobState, LiveJob
from daybreak.contract.errors import NotYet

log = logging.getLogger(__name__)


class Renting(RentalPlace, Backend):
    """Jobs at a place that bills or queues."""

    def submit(self, job: Job) -> str:
        """Submits the job, unless it is alive, done, or on its way from a submission without a reply.

        Returns its handle. Raises JobError if it cannot be rented that way, OutOfTime if training has to end
        before it could run, and NotYet if the place does not answer: a retry goes on from the journal.
        """
        rental = job.rental if job.rental.region else replace(job.rental, region=self.region)
        job = replace(ownership.completed(job), rental=rental)
        try:
            machines = machines_of(job, known=self.machines(), place=self.place)
            folder = Path(job.folder).resolve()
            recorder = JobRecorder(self, SubmissionJournal(folder))
            rented = Submitter(recorder).submit(job, machines)
            return f"{rented} {self.home.below(folder) if self.home else folder}"
        except Unreachable as error:
            raise NotYet(f"job {job.name} is not known to be taken: {error}") from error

    def state(self, handle: str) -> JobState:
        """Returns what the job is doing.

        If the place does not answer, it is the last known state, or `running` if none is known.
        """
        name, recorder = self._parted(handle)
        submission = recorder.journal.of(name)
        if submission:
            return recorder.state(submission)
        if name.startswith(REFUSED):
            return "refused"
        try:
            rented = self.get(name)
        except (Unreachable, Refused) as error:
            log.warning("%s; the last known state of job %s is running", error, name)
            return "running"  # so that no second one is submitted
        return rented.state if rented and rented.state != "ended" else "preempted"

    def cancel(self, handle: str) -> None:
        """Cancels the job, and returns when it has ended or soon will; no error if it has, or never existed.

        If the place or the bucket does not answer, `state` goes on to report the job as it was last known;
        the hourly `reap` ends one that is still alive.
        """
        name, recorder = self._parted(handle)
        submission = recorder.journal.of(name)
        if name.startswith(REFUSED) or (submission and submission.state not in LIVE):
            return
        if submission and recorder.is_others(submission):
            log.warning("job %s is of the home that this one is a copy of, and goes on", name)
            return
        try:
            rented = self.end_and_wait(name)
            if submission:
                recorder.record(submission, rented, cause=CANCELLED if rented is None else "")
        except (Unreachable, Refused) as error:
            log.warning("whether %s was cancelled is not known: %s", name, error)

    def live(self) -> list[LiveJob]:
        """Returns the jobs of this home that are queued or running, in all regions; JobError if not known."""
        return self.live_in([machine.region for machine in self.machines()])

    def live_in(self, regions: Sequence[str]) -> list[LiveJob]:
        """Returns live jobs in these regions and in the home's own; JobError if they are not known."""
        return [
            LiveJob(
                handle=f"{job.name} {job.folder}",
                job=job.job,
                night=job.night,
                state="running" if job.state == "running" else "queued",
                created_at=job.created_at,
            )
            for job in self.find(dict.fromkeys([self.region, *filter(None, regions)]))
            if job.is_alive
        ]

    @property
    def shares_disk(self) -> bool:
        """Returns whether its machines see the folders of the nights; not by default, as they are rented."""
        return False

    @property
    def bucket_url(self) -> str:
        """Returns the URL for staging."""
        return self.bucket.url if self.bucket else ""

    def usd(self, folder: Path) -> float | None:
        """Returns what the job in `folder` has cost so far; None without a submission or a price."""
        return submission_journal.usd(folder, self.machines)

    def logs(self, handle: str) -> str:
        """Returns where a person reads what the job has printed; the journal where it was refused."""
        name, recorder = self._parted(handle)
        return recorder.logs(name)

    def _parted(self, handle: str) -> tuple[str, JobRecorder]:
        """Returns the place's name of a job, and the recorder of its folder."""
        name, _, folder = handle.partition(" ")
        if not name.startswith(REFUSED):
            self.expect_own(name)
        journal = SubmissionJournal(self.home.at(folder) if self.home else Path(folder))
        return name, JobRecorder(self, journal)

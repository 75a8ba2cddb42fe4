"""What backends of a team's own cluster share: its machines are a file, its submissions a journal."""

import logging
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pipeline.backends import billing, ownership
from pipeline.backends.submission_journal import Submission, SubmissionJournal, stretches
from pipeline.contract.backend import LIVE, Backend, Job, OutOfTime, State
from pipeline.contract.errors import JobError, NotYet
from pipeline.contract.machine import Machine
from pipeline.machines import own_machines
from pipeline.machines.own_machines import OwnMachine
from pipeline.storage import jsonl

log = logging.getLogger(__name__)

REFUSED = "refused"  # instead of the cluster's name of a job, for a request that did not become one
SLACK_S = 120.0  # after the end of training, for a job to save and end by itself


class ClusterUnreachable(Exception):
    """The cluster does not answer now."""


class ClusterRefused(Exception):
    """The cluster answers, and does not do what it was asked for; the text is its own."""


class Cluster(Backend):
    """Jobs on a cluster; a handle is the cluster's name of the job, a space, and the folder of the job."""

    def __init__(self, *, machines: str) -> None:
        """Keeps the file of the team's machines."""
        self.file = Path(machines)

    def submit(self, job: Job) -> str:
        """Submits the job, unless it is alive or has succeeded, and returns its handle.

        Raises JobError for a machine that the team's file does not have, OutOfTime if training has to end
        before it could run, and NotYet if the cluster does not answer.
        """
        machine = self._machine_of(job)
        job = ownership.completed(job)
        journal = SubmissionJournal(Path(job.folder).resolve())
        try:
            with journal.alone():
                return f"{self.submitted(job, machine, journal)} {journal.folder}"
        except ClusterUnreachable as error:
            raise NotYet(
                f"job {job.name} is not known to be taken: the cluster does not answer: {error}"
            ) from None

    @abstractmethod
    def submitted(self, job: Job, machine: OwnMachine, journal: SubmissionJournal) -> str:
        """Submits the job unless it stands, and returns the cluster's name of it; the journal is locked."""

    @abstractmethod
    def looked(self, journal: SubmissionJournal, submission: Submission) -> State:
        """Returns the state of a submission that was live at the last look, and records it with its times.

        Raises ClusterUnreachable or ClusterRefused where the cluster does not say.
        """

    def refuse(self, journal: SubmissionJournal, submission: Submission, why: str) -> str:
        """Records that the cluster does not take the job, and returns a name that says so."""
        text = f"{why}; the plan's next machine is asked for"
        name = f"{REFUSED}/{submission.attempt}"
        journal.put(submission)
        journal.change(submission.attempt, resource=name, state="refused", reason=text)
        leave(journal, submission.attempt, text)
        return name

    def state(self, handle: str) -> State:
        """Returns what the job is doing; the last known state if the cluster does not answer."""
        name, journal = self.parted(handle)
        submission = journal.of(name)
        return self.known(journal, submission) if submission else "preempted"

    def known(self, journal: SubmissionJournal, submission: Submission) -> State:
        """Returns the state of a submission, asking the cluster where that may have changed."""
        if submission.state not in LIVE:
            return submission.state
        try:
            return self.looked(journal, submission)
        except (ClusterUnreachable, ClusterRefused) as error:
            log.warning("%s; the last known state of job %s is %s", error, submission.job, submission.state)
            return submission.state

    def machines(self) -> Sequence[Machine]:
        """Returns the machines of the team's file."""
        return tuple(each.machine for each in own_machines.read(self.file))

    def usd(self, folder: Path) -> float | None:
        """Returns what the job in `folder` has cost so far, by the prices of the team's file."""
        rented = stretches(folder)
        return billing.usd(rented, now=datetime.now(UTC), known=self.machines()) if rented else None

    def parted(self, handle: str) -> tuple[str, SubmissionJournal]:
        """Returns the cluster's name of a job, and the journal in its folder."""
        name, _, folder = handle.partition(" ")
        if not (self.is_own(name) or name.startswith(REFUSED)):
            raise JobError(
                f"{handle!r} is not a job of {type(self).__name__}; a backend was changed in params.yaml "
                f"while a job ran: set backend back until the night is over"
            )
        return name, SubmissionJournal(Path(folder))

    @abstractmethod
    def is_own(self, name: str) -> bool:
        """Returns whether a job of this kind of cluster may have that name."""

    def _machine_of(self, job: Job) -> OwnMachine:
        rental = job.rental
        for each in own_machines.read(self.file):
            if each.machine.name == rental.machine and (each.machine.spot or not rental.is_spot):
                return each
        raise JobError(
            f"job {job.name} is for {rental}, which {self.file} does not have; name one of its machines in "
            f"plan.machines, or add a line for it"
        )


def left_s(job: Job, now: datetime) -> float:
    """Returns for how many seconds the job may run; OutOfTime where none is left."""
    left = job.timeout_s if job.until is None else (job.until - now).total_seconds() + SLACK_S
    if left <= 0:
        raise OutOfTime(f"training had to end at {job.until:%H:%M:%S} UTC, before job {job.name} was taken")
    return min(job.timeout_s, left)


def leave(journal: SubmissionJournal, attempt: str, text: str, *, final: bool = False) -> None:
    """Leaves why an attempt ended where the launcher looks for reasons."""
    line = {"attempt": attempt, "rank": -1, "error": text, "final": final}
    jsonl.append(journal.folder / "errors.jsonl", line)

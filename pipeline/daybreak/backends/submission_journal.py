"""Journal of what was submitted to a service that rents: `orders.json` in the folder of the job.

A submission is written before the service gets the request, so that a process restarted after a kill knows
that a job may exist. It finds the job by the submission's token, which is a label of the job. The bill is
computed from the submissions, too.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from daybreak.backends import billing
from daybreak.backends.billing import Stretch
from daybreak.contract import clock
from daybreak.contract.backend import JobState
from daybreak.contract.errors import PipelineError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.storage import jsonl
from daybreak.storage.request_journal import Request, RequestJournal

log = logging.getLogger(__name__)

FILE = "orders.json"


@dataclass(frozen=True, kw_only=True)
class Submission(Request):
    """One request for machines.

    Its name is a token, which is a label of the job; a second job of the token has a space and a number
    behind it. The handle is the service's name of the job.
    """

    job: str
    rental: Rental
    asked_at: str  # ISO; of the last request
    until: str = ""  # ISO; when it ends by itself; "" of a job that is known from its place only
    state: JobState = "queued"
    there_at: str = ""  # when its machines were there, where the place says so
    started_at: str = ""
    ended_at: str = ""
    waits: str = ""  # what it waits for, in the words of the place
    in_vain: str = ""  # the cause for which it was ended while it waited
    reason: str = ""  # why it ended
    home: str = ""  # token of the home that asked for it: a copy of that home has the journal too

    @property
    def token(self) -> str:
        """The name as the job and its workers know it."""
        return self.name.partition(" ")[0]

    @property
    def stretch(self) -> Stretch:
        """The time that machines were rented for, and is paid for."""
        return Stretch(
            rental=self.rental,
            asked=moment(self.asked_at),
            started=moment(self.started_at),
            ended=moment(self.ended_at),
            there=moment(self.there_at),
        )


class SubmissionJournal(RequestJournal[Submission]):
    """The submissions of a job, oldest first; under its lock, one process at a time submits the job."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE, Submission)
        self.folder = folder

    def submissions(self) -> list[Submission]:
        """Returns all submissions."""
        return list(self.read().values())

    def adopt(self, handle: str, submission: Submission) -> Submission:
        """Records the job of the service that the submission became, and returns it as it is recorded.

        A request whose reply was lost may become a second job beside that of the retry: it is recorded as a
        separate submission, since it costs extra money.
        """
        if known := self.of(handle):
            return known
        before = self.read().get(submission.name, submission)
        if not before.handle:
            return self.put(replace(before, handle=handle))
        name = f"{submission.name} {handle.rpartition('/')[2]}"
        return self.put(replace(submission, name=name, handle=handle))

    def pending(self, job: str) -> Submission | None:
        """Returns the newest submission of the job if its outcome is unknown, else None."""
        mine = [each for each in self.submissions() if each.job == job]
        return mine[-1] if mine and not mine[-1].handle else None

    def of(self, handle: str) -> Submission | None:
        """Returns the submission that became that job of the service."""
        return next((each for each in self.submissions() if each.handle == handle), None)


def stretches(folder: Path) -> list[Stretch]:
    """Returns what was rented for the job in `folder`, in all attempts.

    Where the place does not say when the machines were there, the first worker has: when its machine booted.
    """
    booted: dict[str, str] = {}
    for line in jsonl.whole(folder / "starts.jsonl"):
        booted.setdefault(line["attempt"], line["booted_at"])
    submissions = SubmissionJournal(folder).submissions()
    return [
        replace(each, there_at=each.there_at or booted.get(each.name, "")).stretch for each in submissions
    ]


def usd(folder: Path, machines: Callable[[], Sequence[Machine]]) -> float | None:
    """Returns what the job in `folder` has cost so far; None without a submission or a known price."""
    rented = stretches(folder)
    try:
        return billing.usd(rented, now=clock.utc(), known=machines()) if rented else None
    except PipelineError as error:  # a price is missing, or a place that does not answer has it
        log.warning("%s; until then the cost of job %s is an estimate", error, folder.name)
        return None


def moment(text: str) -> datetime | None:
    """Returns a time of a submission; None where it is not known."""
    return datetime.fromisoformat(text) if text else None

"""Journal of what was submitted to a service that rents: `orders.json` in the folder of the job.

A submission is written before the service gets the request, so that a process restarted after a kill knows
that a job may exist. It finds the job by the submission's token, which is a label of the job. The bill is
computed from the submissions, too.
"""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from daybreak.backends import billing
from daybreak.backends.billing import Stretch
from daybreak.contract import clock, records
from daybreak.contract.backend import JobState
from daybreak.contract.errors import ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_types import Record, Rental
from daybreak.storage import jsonl
from daybreak.storage.journal import Journal, alone

log = logging.getLogger(__name__)

FILE = "orders.json"


@dataclass(frozen=True, kw_only=True)
class Submission(Record):
    """One request for machines."""

    attempt: str  # token, a label of the job; a space and a number behind it for a second job of the token
    job: str
    rental: Rental
    asked_at: str  # ISO; of the last request
    resource: str = ""  # the service's name of the job; "" while that is not known
    state: JobState = "queued"
    there_at: str = ""  # when its machines were there, where the place says so
    started_at: str = ""
    ended_at: str = ""
    waits: str = ""  # what it waits for, in the words of the place
    reason: str = ""  # why it ended
    home: str = ""  # token of the home that asked for it: a copy of that home has the journal too

    @property
    def token(self) -> str:
        """The attempt as the job and its workers know it."""
        return self.attempt.partition(" ")[0]

    @property
    def stretch(self) -> Stretch:
        """The time that machines were rented for, and is paid for."""
        return Stretch(
            rental=self.rental,
            asked=_time(self.asked_at),
            started=_time(self.started_at),
            ended=_time(self.ended_at),
            there=_time(self.there_at),
        )


class SubmissionJournal:
    """The submissions of a job, oldest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._journal = Journal(folder / FILE, empty=[])

    def alone(self) -> AbstractContextManager[object]:
        """Returns a lock, to be held by `with`, so that one process at a time submits the job."""
        return alone(self.folder / "ordering")

    def submissions(self) -> list[Submission]:
        """Returns all submissions."""
        source = str(self._journal.path)
        return [records.loads(Submission, json.dumps(each), source=source) for each in self._journal.read()]

    def put(self, submission: Submission) -> Submission:
        """Adds the submission, or replaces the one of the same attempt."""
        kept = self.submissions()
        places = [number for number, other in enumerate(kept) if other.attempt == submission.attempt]
        if places:
            kept[places[0]] = submission
        else:
            kept.append(submission)
        self._journal.write([asdict(each) for each in kept])
        return submission

    def change(self, attempt: str, **changes: str) -> Submission | None:
        """Changes the submission of an attempt and returns it; None if the attempt is not in the journal."""
        before = next((each for each in self.submissions() if each.attempt == attempt), None)
        if before is None:
            return None
        changed = replace(before, **changes)  # type: ignore[arg-type]
        return changed if changed == before else self.put(changed)

    def adopt(self, resource: str, submission: Submission) -> Submission:
        """Records the job of the service that the submission became, and returns it as it is recorded.

        A request whose reply was lost may become a second job beside that of the retry: it is recorded as a
        separate submission, since it costs extra money.
        """
        if known := self.of(resource):
            return known
        before = next((each for each in self.submissions() if each.attempt == submission.attempt), submission)
        if not before.resource:
            return self.put(replace(before, resource=resource))
        attempt = f"{submission.attempt} {resource.rpartition('/')[2]}"
        return self.put(replace(submission, attempt=attempt, resource=resource))

    def pending(self, job: str) -> Submission | None:
        """Returns the newest submission of the job if its outcome is unknown, else None."""
        mine = [each for each in self.submissions() if each.job == job]
        return mine[-1] if mine and not mine[-1].resource else None

    def of(self, resource: str) -> Submission | None:
        """Returns the submission that became that job of the service."""
        return next((each for each in self.submissions() if each.resource == resource), None)


def stretches(folder: Path) -> list[Stretch]:
    """Returns what was rented for the job in `folder`, in all attempts.

    Where the place does not say when the machines were there, the first worker has: when its machine booted.
    """
    booted: dict[str, str] = {}
    for line in jsonl.whole(folder / "starts.jsonl"):
        booted.setdefault(line["attempt"], line["booted_at"])
    submissions = SubmissionJournal(folder).submissions()
    return [
        replace(each, there_at=each.there_at or booted.get(each.attempt, "")).stretch for each in submissions
    ]


def usd(folder: Path, machines: Callable[[], Sequence[Machine]]) -> float | None:
    """Returns what the job in `folder` has cost so far; None without a submission or a price."""
    rented = stretches(folder)
    try:
        return billing.usd(rented, now=clock.utc(), known=machines()) if rented else None
    except ParamsError as error:
        log.warning("%s; until then the cost of job %s is an estimate", error, folder.name)
        return None


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None

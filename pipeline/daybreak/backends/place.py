"""What a place that rents machines does, and the messages to and from it: request, observed job, refusals."""

import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from daybreak.backends import ownership
from daybreak.backends.faults import COMMON, GONE, NOT_TAKEN, Fault
from daybreak.backends.submission_journal import Submission
from daybreak.contract.backend import LIVE, Job, OutOfTime
from daybreak.contract.errors import JobError
from daybreak.contract.machine import Machine
from daybreak.storage.bucket import BucketFolder
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

SLACK_S = 120.0  # after the end of training, for a job to save and end by itself


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Deadlines of calls, and how long to retry."""

    call_s: float = 30.0  # deadline of one call
    first_pause_s: float = 1.0  # between two calls; twice as long each time, up to 32 times
    give_up_s: float = 240.0  # of retrying
    settle_s: float = 60.0  # until a request whose reply was lost has made its job, or never will
    error_s: float = 90.0  # until a job that has ended says why
    cancel_s: float = 60.0  # at most, until a cancelled job has ended

    def pauses(self) -> Iterator[float]:
        """Yields the seconds to wait before each retry, with a jitter of a fifth, until giving up."""
        until = time.monotonic() + self.give_up_s
        pause_s = self.first_pause_s
        while time.monotonic() + pause_s < until:
            yield pause_s * random.uniform(0.8, 1.2)
            pause_s = min(2 * pause_s, 32 * self.first_pause_s)


AT_ONCE = RetryPolicy(
    first_pause_s=0.4, give_up_s=0.0, settle_s=0.0
)  # a place whose requests take effect at once


class Unreachable(JobError):
    """The place did not answer, or not in time; it may have carried out the request all the same."""


class NotDone(Unreachable):
    """The place refused the request for now and has done nothing: by its rate limit, or ABORTED."""


class Refused(JobError):
    """The place answered and refused the request; the text is the place's own."""

    def __init__(self, text: str, *, cause: str = NOT_TAKEN) -> None:
        super().__init__(text)
        self.cause = cause  # of `faults`


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A request to a place: the job, the machines, the time limit, and labels to find the job again."""

    job: Job
    machines: Sequence[Machine]  # one for each of the pools of its rental
    attempt: str  # token, one of the labels
    labels: Mapping[str, str]  # daybreak (the home of the nights), night, model, job, attempt
    folder: Path  # of the job; its name is that in the bucket
    now: datetime
    left_s: float  # until it has to have ended

    @property
    def run_s(self) -> float:
        """For how long it may run, in seconds."""
        return min(self.job.timeout_s, self.left_s)

    @property
    def until(self) -> float:
        """When it ends by itself, in seconds since 1970."""
        return self.now.timestamp() + self.run_s


@dataclass(frozen=True, kw_only=True)
class Rented:
    """A job as its place has it."""

    name: str  # the place's
    state: Literal["queued", "running", "succeeded", "ended"]
    created_at: datetime
    attempt: str  # of its labels, as the next two
    job: str = ""
    night: str = ""
    folder: str = ""  # of the job, where the place knows it
    cause: str = ""  # of `faults`: why it ended or waits
    since: datetime | None = None  # when the present wait began
    said: str = ""  # the place's own words
    status: int | None = None  # exit status of a machine that failed
    there_at: datetime | None = None  # when its machines were there, where the place says so
    started_at: datetime | None = None  # when its command began
    ended_at: datetime | None = None
    evidence: Any = None  # the place's own object

    @property
    def is_alive(self) -> bool:
        """Whether it waits or runs."""
        return self.state in LIVE

    @property
    def times(self) -> dict[str, str]:
        """The known times as ISO 8601, as the journal keeps them."""
        known = {"there_at": self.there_at, "started_at": self.started_at, "ended_at": self.ended_at}
        return {name: moment.isoformat() for name, moment in known.items() if moment}


class RentalPlace(ABC):
    """A place that bills or queues for machines, and takes jobs one by one."""

    place = "the service"  # in sentences
    faults: Mapping[str, Fault] = COMMON

    def __init__(
        self, *, region: str = "", bucket: str = "", retry: RetryPolicy = AT_ONCE, home: Home | None = None
    ) -> None:
        """Keeps the region of jobs that name none, the URL for staging, how long to retry, and the home.

        A team's class may take no home; its jobs are those of this process's home all the same, since jobs
        of two homes would have the same names otherwise.
        """
        self.region, self.retry, self.home = region, retry, home or Home.here_or_none()
        self.bucket = BucketFolder(url=bucket) if bucket else None

    @abstractmethod
    def make(self, request: JobRequest) -> Rented:
        """Creates the job and returns it.

        Raises Unreachable where it is not known whether there will be a job, NotDone where there will be
        none, and Refused where another machine may be had.
        """

    @abstractmethod
    def find(self, regions: Iterable[str], **labels: str) -> Sequence[Rented]:
        """Returns the jobs of this home with these labels (job, attempt), in any state; or Unreachable."""

    @abstractmethod
    def get(self, name: str) -> Rented | None:
        """Returns the job of that name; None if there is none. Raises Unreachable."""

    @abstractmethod
    def end(self, name: str) -> None:
        """Asks for the end of a job; no error if it has ended, or never was. Raises Unreachable."""

    @abstractmethod
    def owns(self, name: str) -> bool:
        """Returns whether a job of this place may have that name."""

    def expect_own(self, name: str) -> None:
        """Raises JobError where a job of that name cannot be of this place."""
        if not self.owns(name):
            raise JobError(
                f"{name!r} is not a job of {self.place}; a backend was changed in params.yaml while a job "
                f"ran: set backend back until the night is over"
            )

    def attached(self, rented: Rented, job: Job) -> None:  # noqa: B027 - a choice of the place
        """Makes what a job that was made or adopted needs beside itself; nothing by default."""

    def explained(self, rented: Rented | None, submission: Submission, folder: Path) -> Rented:
        """Returns a job that has ended, or that the place does not have any more, with why it did."""
        if rented:
            return rented
        asked_at = datetime.fromisoformat(submission.asked_at)
        return Rented(
            name=submission.handle, state="ended", created_at=asked_at, attempt=submission.token, cause=GONE
        )

    @abstractmethod
    def log_of(self, name: str, folder: Path) -> str:
        """Returns where a person reads what a job has printed: a path, an address, a command."""

    @cached_property
    def home_token(self) -> str:
        """The token of the home of the nights."""
        return ownership.home_token(self.home)

    def end_and_wait(self, name: str) -> Rented | None:
        """Ends a job and returns it, ended in most cases; None if there is none."""
        until = time.monotonic() + self.retry.cancel_s
        self.end(name)
        pause_s = self.retry.first_pause_s / 4
        while (rented := self.get(name)) and rented.is_alive:
            if time.monotonic() > until:
                log.warning("job %s was cancelled, and has not ended yet", name)
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 8.0)
        return rented

    def keep_oldest(self, name: str, regions: Iterable[str]) -> tuple[Rented | None, list[Rented]]:
        """Returns the job of that name that has succeeded, or else the oldest that is alive, and the others.

        The others were alive, and are ended: there are some where a lost request became a job late, or two
        hosts submitted at once. All who look keep the same one.
        """
        jobs = sorted(self.find(regions, job=name), key=age)
        alive = [job for job in jobs if job.is_alive]
        kept = next(iter([*(job for job in jobs if job.state == "succeeded"), *alive]), None)
        ended = []
        for extra in alive:
            if extra is not kept:
                log.warning("job %s exists twice; ending %s", name, extra.name)
                ended.append(self.end_and_wait(extra.name) or extra)
        return kept, ended


def age(rented: Rented) -> tuple[datetime, str]:
    """Returns a key that sorts jobs from the oldest to the newest, alike for all who look."""
    return rented.created_at, rented.name


def machines_of(job: Job, *, known: Sequence[Machine], place: str) -> tuple[Machine, ...]:
    """Returns the machine of each of the job's pools; JobError if the place does not rent them that way."""
    rental = job.rental
    machines = tuple(_machine(pool.machine, job, known=known, place=place) for pool in rental.pools)
    if rental.others and (rental.is_queued or not all(machine.joins for machine in machines)):
        raise JobError(
            f"job {job.name} is for {rental}, and such a job on {place} has machines of one kind; "
            f"name one of them in plan.machines"
        )
    if machines[0].is_tpu and rental.is_spot and rental.num_machines > 1:
        raise JobError(
            f"job {job.name} is for {rental.num_machines} x {rental.machine} as spot, but TPU machines that "
            f"are joined are not rented as spot; set plan.spot to false, or plan.max_machines to 1"
        )
    return machines


def _machine(name: str, job: Job, *, known: Sequence[Machine], place: str) -> Machine:
    region, strategy = job.rental.region, job.rental.strategy
    named = [machine for machine in known if machine.name == name]
    if not named:
        raise JobError(
            f"job {job.name} is for machine {name}, which {place} does not have; name one in "
            f"plan.machines (daybreak prices lists them)"
        )
    machine = next((machine for machine in named if machine.region == region), None)
    if machine is None:
        raise JobError(
            f"{name} is not offered in {region}; "
            f"set plan.regions to {' or '.join(sorted({m.region for m in named}))}"
        )
    if (strategy == "spot" and not machine.spot) or (strategy == "flex-start" and not machine.flex):
        raise JobError(
            f"{name} is not rented as {strategy} by {place}; "
            f"set plan.{'spot' if strategy == 'spot' else 'flex_wait_hours'} to "
            f"{'false' if strategy == 'spot' else '0'}, or name another machine in plan.machines"
        )
    return machine


def left_s(job: Job, now: datetime) -> float:
    """Returns the seconds until the job has to have ended; OutOfTime where none is left."""
    if job.until is None:
        return job.timeout_s
    left = (job.until - now).total_seconds() + SLACK_S
    if left < 1:
        raise OutOfTime(
            f"training had to end at {job.until:%H:%M:%S} UTC, before job {job.name} was taken; allow more "
            f"by night.train_hours"
        )
    return left

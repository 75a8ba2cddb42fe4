"""A base for any place that bills for machines or queues for them: one job at most, however often submitted.

A submission is written down before the place gets the request (submission_journal.py), with a token that the
job carries as a label. A retry, after a kill or a lost reply, first looks for the job by its labels and
attaches to it. A request may still become a job after its retry did, and two hosts may submit at once: each
look at a job looks for others of its name, and ends all but the oldest. A handle is the place's name of the
job, a space, and the folder of the job.

While the place does not answer, the journal gives the last known state, so that a night goes on and ends.

A place implements `make`, `find`, `get`, `end`, `owns`, `log_of` and `machines`, whose prices are those that
a job pays, and lists in `faults` the causes by which a job may end. The rest is here: requests, ownership and
state of jobs, results in a bucket, the cause of an end, and the cost.
"""

import logging
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from daybreak.backends import ownership, staging, submission_journal
from daybreak.backends.faults import CANCELLED, COMMON, GONE, Fault, fault_sentence
from daybreak.backends.place import (
    AT_ONCE,
    JobRequest,
    NotDone,
    Refused,
    Rented,
    RetryPolicy,
    Unreachable,
    left_s,
    machines_of,
)
from daybreak.backends.submission_journal import Submission, SubmissionJournal
from daybreak.contract import clock
from daybreak.contract.backend import LIVE, Backend, Job, JobState, LiveJob
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.contract.records import replace_text
from daybreak.storage.bucket import BucketFolder
from daybreak.storage.home import Home
from daybreak.training import worker_errors

log = logging.getLogger(__name__)

REFUSED = "refused"  # instead of the place's name of a job, for a request that did not become one


class Renting(Backend):
    """Jobs at a place that bills or queues."""

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

    # What a place does

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

    def attached(self, rented: Rented, job: Job) -> None:
        """Makes what a job that was made or adopted needs beside itself; nothing by default."""

    def explained(self, rented: Rented | None, submission: Submission, folder: Path) -> Rented:
        """Returns a job that has ended, or that the place does not have any more, with why it did."""
        if rented:
            return rented
        asked_at = datetime.fromisoformat(submission.asked_at)
        return Rented(
            name=submission.handle, state="ended", created_at=asked_at, attempt=submission.token, cause=GONE
        )

    # What a backend is

    def submit(self, job: Job) -> str:
        """Submits the job, unless it is alive, done, or on its way from a submission without a reply.

        Returns its handle. Raises JobError if it cannot be rented that way, OutOfTime if training has to end
        before it could run, and NotYet if the place does not answer: a retry goes on from the journal.
        """
        rental = job.rental if job.rental.region else replace(job.rental, region=self.region)
        job = replace(ownership.completed(job), rental=rental)
        try:
            machines = machines_of(job, known=self.machines(), place=self.place)
            journal = SubmissionJournal(Path(job.folder).resolve())
            with journal.alone():
                rented = self._standing(job, journal) or self._made(job, machines, journal)
                return f"{rented} {self.home.below(journal.folder) if self.home else journal.folder}"
        except Unreachable as error:
            raise NotYet(f"job {job.name} is not known to be taken: {error}") from error

    def _standing(self, job: Job, journal: SubmissionJournal) -> str:
        """Returns the place's name of the job that is alive or has succeeded; "" if there is none."""
        before = journal.pending(job.name)
        regions = {job.rental.region, *([before.rental.region] if before else [])}
        kept, ended = self._alone(job.name, regions)
        if kept is None and before:
            kept = self._arrived(before)
        if kept is None:
            mine = [each for each in journal.submissions() if each.job == job.name and each.handle]
            return next((each.handle for each in mine if self._known(journal, each) == "succeeded"), "")
        adopted = _adopt(journal, kept, job=job.name, rental=job.rental)
        replace_text(journal.folder / "attempt", adopted.token)  # another host may have submitted it
        for extra in ended:
            _record_extra(journal, extra, job=job.name, rental=job.rental)
        self.attached(kept, job)
        return kept.name

    def _made(self, job: Job, machines: Sequence[Machine], journal: SubmissionJournal) -> str:
        """Makes the job and returns the place's name of it."""
        before, now = journal.pending(job.name), clock.utc()
        attempt = before.name if before else secrets.token_hex(8)
        labels = {
            "daybreak": self.home_token,
            "night": job.night,
            "model": job.model,
            "job": job.name,
            "attempt": attempt,
        }
        request = JobRequest(
            job=job,
            machines=machines,
            attempt=attempt,
            labels=labels,
            folder=journal.folder,
            now=now,
            left_s=left_s(job, now),
        )
        submission = Submission(
            name=attempt, job=job.name, rental=job.rental, asked_at=now.isoformat(), home=self.home_token
        )
        replace_text(journal.folder / "attempt", attempt)
        if self.bucket and (journal.folder / "job.json").exists():
            staging.pack(self.bucket, journal.folder.name, journal.folder, night=Path())
        journal.put(submission)
        try:
            made = self._make(request, submission)
        except Refused as refused:
            name = f"{REFUSED}/{attempt}"
            journal.change(attempt, handle=name)
            self._explain(journal, replace(submission, handle=name), refused.cause, said=str(refused))
            return name
        _adopt(journal, made, job=job.name, rental=job.rental)
        self.attached(made, job)
        return made.name

    def _make(self, request: JobRequest, submission: Submission) -> Rented:
        """Makes the job once: a request whose reply was lost is given time to become one before the next."""
        pauses = self.retry.pauses()
        while True:
            try:
                return self.make(request)
            except Unreachable as error:
                late = replace(submission, asked_at=clock.utc().isoformat())
                if not isinstance(error, NotDone) and (job := self._arrived(late)):
                    return job
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                log.info("%s; retrying in %.1f s", error, pause_s)
                time.sleep(pause_s)

    def _arrived(self, submission: Submission) -> Rented | None:
        """Returns the job that the submission became, once it is certain whether there is one; else None."""
        settled = datetime.fromisoformat(submission.asked_at).timestamp() + self.retry.settle_s
        settled = min(settled, clock.now() + self.retry.settle_s)  # the clock may have been set back
        pause_s = self.retry.first_pause_s / 4
        while True:
            over = clock.now() >= settled  # before the search, which sees all that has arrived by then
            if jobs := self.find([submission.rental.region], attempt=submission.token):
                return min(jobs, key=_age)
            if over:
                return None
            time.sleep(min(pause_s, max(0.0, settled - clock.now())))
            pause_s *= 2

    def _alone(self, name: str, regions: Iterable[str]) -> tuple[Rented | None, list[Rented]]:
        """Returns the job of that name that has succeeded, or else the oldest that is alive, and the others.

        The others were alive, and are ended: there are some where a lost request became a job late, or two
        hosts submitted at once. All who look keep the same one.
        """
        jobs = sorted(self.find(regions, job=name), key=_age)
        alive = [job for job in jobs if job.is_alive]
        kept = next(iter([*(job for job in jobs if job.state == "succeeded"), *alive]), None)
        ended = []
        for extra in alive:
            if extra is not kept:
                log.warning("job %s exists twice; ending %s", name, extra.name)
                ended.append(self._ended(extra.name) or extra)
        return kept, ended

    def _ended(self, name: str) -> Rented | None:
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

    def state(self, handle: str) -> JobState:
        """Returns what the job is doing.

        If the place does not answer, it is the last known state, or `running` if none is known.
        """
        name, journal = self._parted(handle)
        submission = journal.of(name)
        if submission:
            return self._known(journal, submission)
        if name.startswith(REFUSED):
            return "refused"
        try:
            rented = self.get(name)
        except (Unreachable, Refused) as error:
            log.warning("%s; the last known state of job %s is running", error, name)
            return "running"  # so that no second one is submitted
        return rented.state if rented and rented.state != "ended" else "preempted"

    def _known(self, journal: SubmissionJournal, submission: Submission) -> JobState:
        """Returns the state of a submission, asking the place where that may have changed."""
        if submission.state not in LIVE:
            return submission.state
        if self._is_others(submission):
            return "preempted"
        try:
            rented = self.get(submission.handle)
            if rented and rented.is_alive:
                rented = self._still_alone(journal, submission, rented)
            return self._record(journal, submission, rented)
        except (Unreachable, Refused) as error:
            log.warning("%s; the last known state of job %s is %s", error, submission.job, submission.state)
            return submission.state

    def _still_alone(self, journal: SubmissionJournal, submission: Submission, rented: Rented) -> Rented:
        """Ends all live jobs of that name but the oldest; returns the job, ended or not."""
        regions = {each.rental.region for each in journal.submissions() if each.job == submission.job}
        try:
            _, ended = self._alone(submission.job, regions)
        except (Unreachable, Refused) as error:
            log.warning("whether job %s exists twice is not known: %s", submission.job, error)
            return rented
        for extra in ended:
            if extra.name != rented.name:
                _record_extra(journal, extra, job=submission.job, rental=submission.rental)
        return next((extra for extra in ended if extra.name == rented.name), rented)

    def cancel(self, handle: str) -> None:
        """Cancels the job, and returns when it has ended or soon will; no error if it has, or never existed.

        If the place or the bucket does not answer, `state` goes on to report the job as it was last known;
        the hourly `reap` ends one that is still alive.
        """
        name, journal = self._parted(handle)
        submission = journal.of(name)
        if name.startswith(REFUSED) or (submission and submission.state not in LIVE):
            return
        if submission and self._is_others(submission):
            log.warning("job %s is of the home that this one is a copy of, and goes on", name)
            return
        try:
            rented = self._ended(name)
            if submission:
                self._record(journal, submission, rented, cause=CANCELLED if rented is None else "")
        except (Unreachable, Refused) as error:
            log.warning("whether %s was cancelled is not known: %s", name, error)

    def _record(
        self, journal: SubmissionJournal, submission: Submission, rented: Rented | None, *, cause: str = ""
    ) -> JobState:
        """Records the state of a job with its times, or why the job ended, and returns the state."""
        if rented and rented.is_alive and self._waits_in_vain(rented, submission):
            cause, said = rented.cause, rented.said
            rented = replace(self._ended(rented.name) or rented, said=said)
        alive = rented and rented.is_alive and not cause
        self._exchange(journal, alive=bool(alive))
        if rented and alive:
            state: JobState = "running" if rented.state == "running" else "queued"
            waits = " ".join(rented.said.split())[:300] if state == "queued" else ""
            journal.change(submission.name, state=state, waits=waits, **rented.times)
            return state
        ended = self.explained(rented, submission, journal.folder)
        times = {"ended_at": clock.utc().isoformat(), **ended.times}
        if ended.state == "succeeded":
            journal.change(submission.name, state="succeeded", **times)
            return "succeeded"
        journal.change(submission.name, **times)
        why = cause or ended.cause
        return self._explain(journal, submission, why, said=ended.said, status=ended.status)

    def _waits_in_vain(self, rented: Rented, submission: Submission) -> bool:
        """Returns whether a job waits for what does not come."""
        fault = self.faults.get(rented.cause)
        if fault is None or rented.since is None:
            return False
        waited_s = (clock.utc() - rented.since).total_seconds()
        most_s = submission.rental.max_wait_s if fault.state == "refused" else 0.0
        return waited_s > (most_s or fault.patience_s)

    def _explain(
        self,
        journal: SubmissionJournal,
        submission: Submission,
        cause: str,
        *,
        said: str = "",
        status: int | None = None,
    ) -> JobState:
        """Records why a job ended, in its submission and where the launcher looks for reasons."""
        fault = self.faults[cause]
        logs = self.logs(f"{submission.handle} {journal.folder}")
        text = fault_sentence(
            fault,
            job=submission.job,
            rental=submission.rental,
            place=self.place,
            said=said,
            logs=logs,
            status=status,
        )
        log.warning("%s", text)
        if cause != CANCELLED:
            worker_errors.explain(
                journal.folder,
                text,
                attempt=submission.token,
                final=fault.final,
                refused=submission.job if fault.state == "refused" else "",
            )
        journal.change(submission.name, state=fault.state, reason=text)
        return fault.state

    def _exchange(self, journal: SubmissionJournal, *, alive: bool) -> None:
        """Fetches the job's results from the bucket, and sends updates to a live job."""
        name = journal.folder.name
        if not self.bucket or not name:
            return
        try:
            if alive:
                staging.push_updates(self.bucket, name, journal.folder)
            staging.pull_results(self.bucket, name, journal.folder)
        except Exception as error:  # each filesystem has its own
            if not alive:
                raise Unreachable(
                    f"what job {name} left is in {self.bucket.url}, which does not answer "
                    f"({type(error).__name__}: {error}); try again"
                ) from error
            log.warning("%s does not answer: %s; the next look fetches it", self.bucket.url, error)

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
        name, journal = self._parted(handle)
        if name.startswith(REFUSED):
            return str(journal.folder / submission_journal.FILE)
        return self.log_of(name, journal.folder)

    @abstractmethod
    def log_of(self, name: str, folder: Path) -> str:
        """Returns where a person reads what a job has printed: a path, an address, a command."""

    @cached_property
    def home_token(self) -> str:
        """The token of the home of the nights."""
        return ownership.home_token(self.home)

    def _is_others(self, submission: Submission) -> bool:
        """Returns whether the home that this one was copied from asked for the job."""
        return bool(submission.home) and submission.home != self.home_token

    def _parted(self, handle: str) -> tuple[str, SubmissionJournal]:
        """Returns the place's name of a job, and the journal in its folder."""
        name, _, folder = handle.partition(" ")
        if not (self.owns(name) or name.startswith(REFUSED)):
            raise JobError(
                f"{handle!r} is not a job of {self.place}; a backend was changed in params.yaml while a job "
                f"ran: set backend back until the night is over"
            )
        return name, SubmissionJournal(self.home.at(folder) if self.home else Path(folder))


def _adopt(journal: SubmissionJournal, rented: Rented, *, job: str, rental: Rental) -> Submission:
    asked_at = rented.created_at.isoformat()
    submission = Submission(name=rented.attempt, job=job, rental=rental, asked_at=asked_at)
    return journal.adopt(rented.name, submission)


def _record_extra(journal: SubmissionJournal, extra: Rented, *, job: str, rental: Rental) -> None:
    """Records a second job of the same name, which was ended, so that its cost is counted."""
    submission = _adopt(journal, extra, job=job, rental=rental)
    times = {"ended_at": clock.utc().isoformat(), **extra.times}
    journal.change(submission.name, state="preempted", **times)


def _age(rented: Rented) -> tuple[datetime, str]:
    return rented.created_at, rented.name

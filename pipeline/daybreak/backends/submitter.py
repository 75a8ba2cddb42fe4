"""Submits a job to a place that rents machines: one job at most, however often it is submitted.

A submission is written down before the place gets the request (submission_journal.py), with a token that the
job carries as a label. A retry, after a kill or a lost reply, first looks for the job by its labels and
attaches to it. A request may still become a job after its retry did, and two hosts may submit at once: each
look at a job looks for others of its name, and ends all but the oldest.
"""

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from daybreak.backends import staging
from daybreak.backends.job_recorder import REFUSED, JobRecorder
from daybreak.backends.place import JobRequest, NotDone, Refused, Rented, Unreachable, age, left_s
from daybreak.backends.submission_journal import Submission
from daybreak.contract import clock
from daybreak.contract.backend import Job
from daybreak.contract.machine import Machine
from daybreak.contract.records import replace_text

log = logging.getLogger(__name__)


class Submitter:
    """Makes the jobs of one folder, at most one at a time."""

    def __init__(self, recorder: JobRecorder) -> None:
        self.recorder, self.place = recorder, recorder.place

    def submit(self, job: Job, machines: Sequence[Machine]) -> str:
        """Returns the place's name of the job; makes the job unless one is alive, done, or on the way."""
        with self.recorder.journal.alone():
            return self._standing(job) or self._made(job, machines)

    def _standing(self, job: Job) -> str:
        """Returns the place's name of the job that is alive or has succeeded; "" if there is none."""
        journal, recorder = self.recorder.journal, self.recorder
        before = journal.pending(job.name)
        regions = {job.rental.region, *([before.rental.region] if before else [])}
        kept, ended = self.place.keep_oldest(job.name, regions)
        if kept is None and before:
            kept = self._arrived(before)
        if kept is None:
            mine = [each for each in journal.submissions() if each.job == job.name and each.handle]
            return next((each.handle for each in mine if recorder.state(each) == "succeeded"), "")
        adopted = recorder.adopt(kept, job=job.name, rental=job.rental)
        replace_text(journal.folder / "attempt", adopted.token)  # another host may have submitted it
        for extra in ended:
            recorder.record_extra(extra, job=job.name, rental=job.rental)
        self.place.attached(kept, job)
        return kept.name

    def _made(self, job: Job, machines: Sequence[Machine]) -> str:
        """Makes the job and returns the place's name of it."""
        place, journal = self.place, self.recorder.journal
        before, now = journal.pending(job.name), clock.utc()
        attempt = before.name if before else secrets.token_hex(8)
        labels = {
            "daybreak": place.home_token,
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
            name=attempt,
            job=job.name,
            rental=job.rental,
            asked_at=now.isoformat(),
            until=datetime.fromtimestamp(request.until, UTC).isoformat(),
            home=place.home_token,
        )
        replace_text(journal.folder / "attempt", attempt)
        if place.bucket and (journal.folder / "job.json").exists():
            staging.pack(place.bucket, journal.folder.name, journal.folder, night=Path())
        journal.put(submission)
        try:
            made = self._make(request, submission)
        except Refused as refused:
            name = f"{REFUSED}/{attempt}"
            journal.change(attempt, handle=name)
            self.recorder.explain(replace(submission, handle=name), refused.cause, said=str(refused))
            return name
        self.recorder.adopt(made, job=job.name, rental=job.rental)
        place.attached(made, job)
        return made.name

    def _make(self, request: JobRequest, submission: Submission) -> Rented:
        """Makes the job once: a request whose reply was lost is given time to become one before the next."""
        pauses = self.place.retry.pauses()
        while True:
            try:
                return self.place.make(request)
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
        retry = self.place.retry
        settled = datetime.fromisoformat(submission.asked_at).timestamp() + retry.settle_s
        settled = min(settled, clock.now() + retry.settle_s)  # the clock may have been set back
        pause_s = retry.first_pause_s / 4
        while True:
            over = clock.now() >= settled  # before the search, which sees all that has arrived by then
            if jobs := self.place.find([submission.rental.region], attempt=submission.token):
                return min(jobs, key=age)
            if over:
                return None
            time.sleep(min(pause_s, max(0.0, settled - clock.now())))
            pause_s *= 2

"""Records in a job's journal the state, times and cause of the end that the place reports.

While the place does not answer, the journal gives the last known state, so that a night goes on and ends.
"""

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from daybreak.backends import staging, submission_journal
from daybreak.backends.faults import CANCELLED, KILLED, OVERTIME, fault_sentence
from daybreak.backends.place import Refused, RentalPlace, Rented, Unreachable
from daybreak.backends.submission_journal import Submission, SubmissionJournal
from daybreak.contract import clock
from daybreak.contract.backend import LIVE, JobState
from daybreak.contract.record_parts import Rental
from daybreak.training import worker_errors

log = logging.getLogger(__name__)

CLOCKS = timedelta(seconds=30)  # by which the clocks of a machine and of its place may differ
REFUSED = "refused"  # instead of the place's name of a job, for a request that did not become one


class JobRecorder:
    """What became of the submissions of one job."""

    def __init__(self, place: RentalPlace, journal: SubmissionJournal) -> None:
        self.place, self.journal = place, journal

    def state(self, submission: Submission) -> JobState:
        """Returns the state of a submission, asking the place where that may have changed."""
        if submission.state not in LIVE:
            return submission.state
        if self.is_others(submission):  # who pays for all of it
            self.journal.change(submission.name, state="preempted", ended_at=submission.asked_at)
            return "preempted"
        if submission.handle:  # that of another place is not gone because this one does not have it
            self.place.expect_own(submission.handle)
        try:
            rented = self.place.get(submission.handle)
            if rented and rented.is_alive:
                rented = self._still_alone(submission, rented)
            return self.record(submission, rented)
        except (Unreachable, Refused) as error:
            log.warning("%s; the last known state of job %s is %s", error, submission.job, submission.state)
            return submission.state

    def _still_alone(self, submission: Submission, rented: Rented) -> Rented:
        """Ends all live jobs of that name but the oldest; returns the job, ended or not."""
        regions = {each.rental.region for each in self.journal.submissions() if each.job == submission.job}
        try:
            _, ended = self.place.keep_oldest(submission.job, regions)
        except (Unreachable, Refused) as error:
            log.warning("whether job %s exists twice is not known: %s", submission.job, error)
            return rented
        for extra in ended:
            if extra.name != rented.name:
                self.record_extra(extra, job=submission.job, rental=submission.rental)
        return next((extra for extra in ended if extra.name == rented.name), rented)

    def record(self, submission: Submission, rented: Rented | None, *, cause: str = "") -> JobState:
        """Records the state of a job with its times, or why the job ended, and returns the state."""
        if rented and rented.is_alive and self._waits_in_vain(rented, submission):
            submission = self.journal.change(submission.name, in_vain=rented.cause) or submission
            last = self.place.end_and_wait(rented.name) or replace(rented, state="ended")
            rented = replace(last, said=rented.said)  # alive, it is looked at again
        alive = rented and rented.is_alive and not cause
        self._exchange(alive=bool(alive))
        if rented and alive:
            state: JobState = "running" if rented.state == "running" else "queued"
            waits = " ".join(rented.said.split())[:300] if state == "queued" else ""
            in_vain = submission.in_vain if state == "queued" else ""
            times = _times(rented, submission)
            self.journal.change(submission.name, state=state, waits=waits, in_vain=in_vain, **times)
            return state
        ended = self.place.explained(rented, submission, self.journal.folder)
        times = {"ended_at": clock.utc().isoformat(), **_times(ended, submission)}
        if ended.state == "succeeded":
            self.journal.change(submission.name, state="succeeded", **times)
            return "succeeded"
        self.journal.change(submission.name, **times)
        why = cause or submission.in_vain or ended.cause
        if why == KILLED and _is_after_its_time(ended, submission):
            why = OVERTIME
        return self.explain(submission, why, said=ended.said, status=ended.status)

    def _waits_in_vain(self, rented: Rented, submission: Submission) -> bool:
        """Returns whether a job waits for what does not come."""
        fault = self.place.faults.get(rented.cause)
        if fault is None or rented.since is None:
            return False
        waited_s = (clock.utc() - rented.since).total_seconds()
        most_s = submission.rental.max_wait_s if fault.state == "refused" else 0.0
        return waited_s > (most_s or fault.patience_s)

    def explain(
        self, submission: Submission, cause: str, *, said: str = "", status: int | None = None
    ) -> JobState:
        """Records why a job ended, in its submission and where the launcher looks for reasons."""
        fault = self.place.faults[cause]
        logs = self.logs(submission.handle)
        text = fault_sentence(
            fault,
            job=submission.job,
            rental=submission.rental,
            place=self.place.place,
            said=said,
            logs=logs,
            status=status,
        )
        log.warning("%s", text)
        if cause != CANCELLED:
            worker_errors.explain(
                self.journal.folder,
                text,
                attempt=submission.token,
                final=fault.final,
                refused=submission.job if fault.state == "refused" else "",
            )
        self.journal.change(submission.name, state=fault.state, reason=text)
        return fault.state

    def _exchange(self, *, alive: bool) -> None:
        """Fetches the job's results from the bucket, and sends updates to a live job."""
        name, bucket = self.journal.folder.name, self.place.bucket
        if not bucket or not name:
            return
        try:
            if alive:
                staging.push_updates(bucket, name, self.journal.folder)
            staging.pull_results(bucket, name, self.journal.folder)
        except Exception as error:  # each filesystem has its own
            if not alive:
                raise Unreachable(
                    f"what job {name} left is in {bucket.url}, which does not answer "
                    f"({type(error).__name__}: {error}); try again"
                ) from error
            log.warning("%s does not answer: %s; the next look fetches it", bucket.url, error)

    def adopt(self, rented: Rented, *, job: str, rental: Rental) -> Submission:
        """Records a job of the place as a submission of ours, and returns it as it is recorded."""
        asked_at = rented.created_at.isoformat()
        submission = Submission(
            name=rented.attempt, job=job, rental=rental, asked_at=asked_at, home=self.place.home_token
        )
        return self.journal.adopt(rented.name, submission)

    def record_extra(self, extra: Rented, *, job: str, rental: Rental) -> None:
        """Records a second job of the same name, which was ended, so that its cost is counted."""
        submission = self.adopt(extra, job=job, rental=rental)
        times = {"ended_at": clock.utc().isoformat(), **extra.times}
        self.journal.change(submission.name, state="preempted", **times)

    def logs(self, name: str) -> str:
        """Returns where a person reads what the job has printed; the journal where it was refused."""
        if name.startswith(REFUSED):
            return str(self.journal.folder / submission_journal.FILE)
        return self.place.log_of(name, self.journal.folder)

    def is_others(self, submission: Submission) -> bool:
        """Returns whether the home that this one was copied from asked for the job."""
        return bool(submission.home) and submission.home != self.place.home_token


def _times(rented: Rented, submission: Submission) -> dict[str, str]:
    """Returns the times of a job, none of which moves forward where machines are lost and come again.

    What the machines cost until then is owed all the same.
    """
    times = rented.times
    for name in {"there_at", "started_at"} & times.keys():
        times[name] = min(filter(None, (getattr(submission, name), times[name])), key=datetime.fromisoformat)
    return times


def _is_after_its_time(ended: Rented, submission: Submission) -> bool:
    """Returns whether a job ended when its time was over.

    A machine ends its module by the same signal as whoever ends the job from outside (node.py), so that the
    exit status does not tell the two apart.
    """
    until = submission_journal.moment(submission.until)
    return bool(ended.ended_at and until and ended.ended_at > until - CLOCKS)

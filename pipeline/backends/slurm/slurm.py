"""Runs a job on a team's Slurm cluster, one at most, however often it is submitted.

The folder of nights is on a file system that the nodes share, as is usual on a cluster, and the virtual
environment of this process is there, too. A submission is written down before Slurm gets it, with a token
that is part of the job's comment; after a kill or a lost reply the job is found by its name and adopted.

Why a job ended is Slurm's word for its state, then the exit status that its first node has written: Slurm
itself forgets a job some minutes after its end.
"""

import json
import logging
import os
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import ceil
from pathlib import Path

from pipeline.backends import ownership
from pipeline.backends.cluster import (
    SLACK_S,
    Cluster,
    ClusterRefused,
    ClusterUnreachable,
    leave,
    left_s,
)
from pipeline.backends.slurm import slurm_client as client
from pipeline.backends.slurm.slurm_client import Listed
from pipeline.backends.submission_journal import Submission, SubmissionJournal
from pipeline.contract.backend import LIVE, Job, LiveJob, State, label
from pipeline.contract.errors import JobError
from pipeline.contract.records import replace_text
from pipeline.machines import own_machines
from pipeline.machines.own_machines import OwnMachine

log = logging.getLogger(__name__)

LOG = "log.txt"
ENTRYPOINT = "pipeline.backends.slurm.slurm_node"
END_S, POLL_S = 60.0, 0.2  # in which a cancelled job has ended
# Words of Slurm for why a job waits that waiting does not help.
NEVER = frozenset(
    ("BadConstraints", "PartitionTimeLimit", "PartitionNodeLimit", "AccountNotAllowed", "QOSNotAllowed",
     "InvalidAccount", "InvalidQOS", "DependencyNeverSatisfied")
)  # fmt: skip
# What a state of Slurm that ended a job means. FAILED: by its exit status.
ENDS: dict[str, State] = {
    "COMPLETED": "succeeded", "PREEMPTED": "preempted", "NODE_FAIL": "preempted", "BOOT_FAIL": "preempted",
    "REVOKED": "preempted", "CANCELLED": "preempted", "TIMEOUT": "preempted", "OUT_OF_MEMORY": "failed",
    "DEADLINE": "refused",
}  # fmt: skip


class Slurm(Cluster):
    """Batch jobs of Slurm."""

    def __init__(self, *, machines: str = "machines.csv", options: Sequence[str] = ()) -> None:
        """Keeps the file of the team's machines, and options that each job has, such as an account."""
        super().__init__(machines=machines)
        self._options = tuple(options)

    def submitted(self, job: Job, machine: OwnMachine, journal: SubmissionJournal) -> str:
        """Submits the job unless it stands, and returns Slurm's id of it."""
        name = _name(job.name)
        jobs = client.listed(name=name)
        self._adopt(jobs, journal, job)
        alive = [each for each in jobs if each.phase != "over"]
        if alive:
            _end_others(jobs, alive[0])
        mine = [each for each in journal.submissions() if each.job == job.name and each.resource]
        done = [each.resource for each in mine if self.known(journal, each) == "succeeded"]
        if standing := [*(each.id for each in alive[:1]), *done]:
            return standing[0]
        pending = journal.pending(job.name)
        attempt = pending.attempt if pending else secrets.token_hex(8)
        now = datetime.now(UTC)
        submission = Submission(attempt=attempt, job=job.name, rental=job.rental, asked_at=now.isoformat())
        options = self._options_of(job, machine, attempt=attempt, name=name, folder=journal.folder)
        script = _script(job, attempt=attempt, folder=journal.folder, now=now)
        replace_text(journal.folder / "attempt", attempt)
        journal.put(submission)
        try:
            id = client.submit(options, script, environment=_environment(job, attempt=attempt))
        except ClusterRefused as refused:
            why = f"Slurm does not take job {job.name} on {job.rental} ({refused}); look at the options of "
            return self.refuse(journal, submission, f"{why}{job.rental.machine} in {self.file}")
        journal.change(attempt, resource=id)
        return id

    def _adopt(self, jobs: Sequence[Listed], journal: SubmissionJournal, job: Job) -> None:
        """Records jobs of that name whose submission was not answered, or whose journal was lost."""
        for each in jobs:
            attempt = _facts(each).get("attempt", "")
            known = journal.change(attempt, resource=each.id) or journal.of(each.id)
            if known is None and attempt:
                asked = each.submitted_at or datetime.now(UTC)
                journal.put(
                    Submission(
                        attempt=attempt, job=job.name, rental=job.rental, asked_at=asked.isoformat(),
                        resource=each.id,
                    )
                )  # fmt: skip

    def looked(self, journal: SubmissionJournal, submission: Submission) -> State:
        """Returns the state of a submission, and records it with its times."""
        jobs = client.listed(name=_name(submission.job))
        status = _status(journal.folder, submission.attempt)
        job = next((each for each in jobs if each.id == submission.resource), None)
        if job and job.phase != "over":  # of a request that was killed, another may have come since
            _end_others(jobs, job)
        if job and job.phase == "waits" and job.reason in NEVER:
            client.cancel(job.id)
            return self._end(journal, submission, "refused", word=job.reason)
        times = {"started_at": _iso(job.started_at)} if job and job.phase != "waits" else {}
        if job and job.phase != "over":
            state: State = "queued" if job.phase == "waits" else "running"
            journal.change(submission.attempt, state=state, **times)
            return state
        ended = (job.ended_at if job else None) or _written(journal.folder, submission.attempt)
        journal.change(submission.attempt, ended_at=_iso(ended or datetime.now(UTC)), **times)
        word = job.state if job else "FAILED"
        if word not in ENDS:
            word = "FAILED"
        by_status: State = "preempted" if status is None or status > 128 else "failed"
        state = "succeeded" if status == 0 else ENDS.get(word, by_status)
        return self._end(journal, submission, state, word=word, status=status)

    def _end(
        self, journal: SubmissionJournal, submission: Submission, state: State, *, word: str,
        status: int | None = None,
    ) -> State:  # fmt: skip
        """Records the end, and why, where the launcher looks for reasons."""
        text = "" if state == "succeeded" else _sentence(submission, word, status, file=self.file)
        if text:
            log.warning("%s", text)
            leave(journal, submission.attempt, text, final=word == "OUT_OF_MEMORY")
        journal.change(submission.attempt, state=state, reason=text)
        return state

    def cancel(self, handle: str) -> None:
        """Ends the job and returns when it has ended; no error if it has, or never existed."""
        id, journal = self.parted(handle)
        submission = journal.of(id)
        if submission is None or submission.state not in LIVE:
            return
        try:
            client.cancel(id)
            until = time.monotonic() + END_S
            while self.looked(journal, submission) in LIVE and time.monotonic() < until:
                time.sleep(POLL_S)
        except (ClusterUnreachable, ClusterRefused) as error:
            log.warning("whether job %s was cancelled is not known: %s", submission.job, error)

    def live(self) -> list[LiveJob]:
        """Returns the jobs of this home that wait or run."""
        try:
            jobs = client.listed()
        except ClusterUnreachable as error:
            raise JobError(f"Slurm does not list its jobs: {error}; try again") from None
        mine = ownership.home_token()
        return [
            LiveJob(
                handle=f"{each.id} {facts.get('folder', '')}", job=facts.get("job", ""),
                night=facts.get("night", ""), state="queued" if each.phase == "waits" else "running",
                created_at=each.submitted_at or datetime.now(UTC),
            )
            for each in jobs
            if each.phase != "over" and (facts := _facts(each)).get("daybreak") == mine
        ]  # fmt: skip

    def logs(self, handle: str) -> str:
        """Returns the file that all attempts write to."""
        return str(self.parted(handle)[1].folder / LOG)

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """Yields whether Slurm answers, and whether it would take a job on each machine of the file."""
        try:
            for each in own_machines.read(self.file):
                words = [*self._options, *each.options]
                why = client.would_take([*words, "--nodes=1"])
                text = f"{each.machine.name}: {why or 'Slurm would take a job'}"
                if why:
                    text += f"; fix its options in {self.file}"
                yield "Slurm", not why, text
        except ClusterUnreachable as error:
            yield "Slurm", False, f"does not answer: {error}; run this where sbatch works"

    def is_own(self, name: str) -> bool:
        """Returns whether it is a number, as ids of Slurm are."""
        return name.isdigit()

    def _options_of(
        self, job: Job, machine: OwnMachine, *, attempt: str, name: str, folder: Path
    ) -> list[str]:
        facts = {
            "daybreak": ownership.home_token(), "night": label(job.night), "job": job.name,
            "attempt": attempt, "folder": str(folder),
        }  # fmt: skip
        minutes = max(1, ceil((left_s(job, datetime.now(UTC)) + SLACK_S) / 60))
        return [
            *self._options, *machine.words(job.rental.strategy), f"--job-name={name}",
            f"--nodes={job.rental.num_machines}", "--no-requeue", f"--time={minutes}", "--open-mode=append",
            f"--output={folder / LOG}", f"--chdir={Path.cwd()}", "--export=ALL",
            f"--comment={json.dumps(facts)}",
        ]  # fmt: skip


def _end_others(jobs: Sequence[Listed], kept: Listed) -> None:
    """Ends all other live jobs of the same name."""
    for other in jobs:
        if other.phase != "over" and other.id != kept.id:
            log.warning("%s lives twice; ending job %s, job %s stays", kept.name, other.id, kept.id)
            client.cancel(other.id)


def _name(job: str) -> str:
    return f"daybreak-{ownership.home_token()}-{job}"


def _script(job: Job, *, attempt: str, folder: Path, now: datetime) -> str:
    """Returns the batch script: the entry point on the first node, or by srun on each."""
    ended = _ended(folder, attempt)
    words = [
        sys.executable, "-m", ENTRYPOINT, "--until", str(now.timestamp() + left_s(job, now)), "--workers",
        str(job.num_workers), "--ended", str(ended), "--", job.module, *job.arguments,
    ]  # fmt: skip
    if job.rental.num_machines > 1:
        words = ["srun", "--kill-on-bad-exit=1", "--ntasks-per-node=1", *words]
    return f"#!/bin/sh\nexec {shlex.join(words)}\n"


def _environment(job: Job, *, attempt: str) -> dict[str, str]:
    """Returns the environment of sbatch, which is that of the job: what it says itself comes first."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_JOB")}
    return {**own, **job.environment, "PIPELINE_ATTEMPT": attempt}


def _facts(job: Listed) -> dict[str, str]:
    """Returns what the job's comment says of it; nothing for a job that is not of a home of nights."""
    try:
        facts = json.loads(job.comment)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _ended(folder: Path, attempt: str) -> Path:
    return folder / "ended" / attempt


def _status(folder: Path, attempt: str) -> int | None:
    """Returns the exit status that the first node has written; None where it was killed before."""
    path = _ended(folder, attempt)
    return int(path.read_text()) if path.exists() else None


def _written(folder: Path, attempt: str) -> datetime | None:
    path = _ended(folder, attempt)
    return datetime.fromtimestamp(path.stat().st_mtime, UTC) if path.exists() else None


def _sentence(submission: Submission, word: str, status: int | None, *, file: Path) -> str:
    """Returns why a job ended without a model, and what to do."""
    job, machine = submission.job, submission.rental.machine
    goes_on = "it goes on from its last checkpoint"
    if word in NEVER:
        return (
            f"Slurm says that job {job} can never run on {machine} ({word}); fix its options in {file}; "
            f"the plan's next machine is asked for"
        )
    return {
        "PREEMPTED": f"job {job} was preempted on {machine}; {goes_on}",
        "NODE_FAIL": f"a node of job {job} failed; {goes_on}",
        "BOOT_FAIL": f"a node for job {job} did not boot; {goes_on}",
        "REVOKED": f"job {job} was revoked by the cluster that it was sent from; {goes_on}",
        "CANCELLED": f"job {job} was cancelled; {goes_on} if submitted",
        "TIMEOUT": f"job {job} was ended after its time; its last checkpoint is what the night has; allow "
        f"more by night.train_hours",
        "OUT_OF_MEMORY": f"job {job} ran out of the memory that Slurm gives it on {machine}; ask for more by "
        f"--mem in its options in {file}, or lower train.batch_size",
        "DEADLINE": f"job {job} could not have ended in time on {machine}; the plan's next machine is asked "
        f"for",
        "FAILED": f"job {job} was killed on {machine}; {goes_on}"
        if status is None or status > 128
        else f"job {job} ended with status {status}, an error of its own code; look at {LOG} in its folder, "
        f"fix the workload, and run train again",
    }[word]


def _iso(moment: datetime | None) -> str:
    return moment.isoformat() if moment else ""

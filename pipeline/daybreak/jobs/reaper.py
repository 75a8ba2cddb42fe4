"""Ends jobs that cost money though no open night needs them: at `close`, and by `reap` each hour.

A night has one job of a name: if a lost reply or two hosts have made two, the younger is ended, even if
nobody looks after the jobs. A job belongs to an open night: its folder is here, its deadline to decide has
not passed, and it has not been closed since the job was made. (A closed night may be resumed, with new jobs.)
The hook `jobs` lists other owners of jobs, such as bags. All other jobs are orphans: of a process that was
killed before it recorded the submission, of a night whose `close` could not reach the service, of a folder
that was removed.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from daybreak import hooks
from daybreak.contract import clock, records
from daybreak.contract.backend import Backend, LiveJob, label
from daybreak.contract.errors import DataError, JobError, PipelineError
from daybreak.contract.record_types import Night
from daybreak.contract.sections import Plug
from daybreak.storage import ledger
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

YOUNG = timedelta(minutes=5)  # clocks differ, and a night is opened before its jobs are made


@dataclass(frozen=True, kw_only=True)
class JobOwner:
    """The facts that decide whether a night, or what an extension has instead, may have jobs."""

    is_over: bool = False  # by the night's own clock
    closed_at: datetime | None = None


def orphans(jobs: Iterable[LiveJob], nights: Mapping[str, JobOwner], *, now: datetime) -> list[LiveJob]:
    """Returns the jobs that belong to no open night, and all but the oldest of a name; `nights` by labels."""
    oldest: set[tuple[str, str]] = set()
    lost = []
    for job in sorted(jobs, key=lambda job: (job.created_at, job.handle)):
        if (job.night, job.job) in oldest or not _wanted(job, nights.get(label(job.night)), now=now):
            lost.append(job)
        else:
            oldest.add((job.night, job.job))
    return lost


def _wanted(job: LiveJob, night: JobOwner | None, *, now: datetime) -> bool:
    if night is None:
        return now - job.created_at < YOUNG
    if night.is_over:
        return False
    return night.closed_at is None or job.created_at > night.closed_at


def reap(home: Home, *, backend: Backend) -> None:
    """Ends the jobs that belong to no open night.

    Raises JobError if a service cannot list its jobs or end one, once all others are ended.
    """
    away: list[str] = []
    for part in backend.parts():
        try:
            _end(orphans(part.live(), standings(home), now=datetime.now(UTC)), part)
        except PipelineError as error:
            away.append(str(error))
    if away:
        raise JobError("; ".join(away))


def end_night(home: Home, night: Night, plug: Plug) -> None:
    """Ends all jobs of a night that is being closed.

    A service that does not answer, or a backend that cannot be made, does not keep a night open: the hourly
    `reap` ends what is left.
    """
    try:
        backend: Backend = plug.make(home)
    except PipelineError as error:
        log.warning("whether a job of night %s still runs is not known: %s", night.id, error)
        return
    for part in backend.parts():
        try:
            _end([job for job in part.live() if label(job.night) == label(night.id)], part)
        except PipelineError as error:
            log.warning("whether a job of night %s still runs is not known: %s", night.id, error)


def _end(jobs: Iterable[LiveJob], backend: Backend) -> None:
    """Ends each of the jobs; raises JobError if some could not be ended, once it has tried all."""
    left: list[str] = []
    for job in jobs:
        log.warning("job %s of night %s belongs to no open night; ending it", job.job, job.night)
        try:
            backend.cancel(job.handle)
        except PipelineError as error:
            left.append(f"job {job.job} of night {job.night} may still run: {error}")
    if left:
        raise JobError("; ".join(left))


def standings(home: Home) -> dict[str, JobOwner]:
    """Returns the owners of jobs, nights and runs of extensions, by the label that their jobs carry.

    A night whose record cannot be read counts as open until it is closed.
    """
    closed: dict[str, datetime] = {}
    for commit in ledger.commits(home):
        if not commit.rollback:
            closed.setdefault(commit.night, datetime.fromtimestamp(commit.time, UTC))
    nights = {}
    for folder in [home.folder, *_folders(home.nights)]:
        try:
            night = records.find(Night, folder / records.RUN)
        except DataError as error:  # it may be open: its jobs stay, and those of others do not
            log.warning("the jobs of the night in %s are left alone: %s", folder, error)
            nights[label(folder.name)] = JobOwner(closed_at=closed.get(folder.name))
            continue
        if night:
            is_over = clock.utc_of(night) > night.decide_until
            nights[label(night.id)] = JobOwner(is_over=is_over, closed_at=closed.get(night.id))
    for standings_of in hooks.functions("jobs"):
        nights |= standings_of(home)
    return nights


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.exists() else []

"""Which job is tonight's, and is it alone? Stage train: a reconciler, called until training is done.

Each call looks at the job and takes the one next action (`reconciler`). Killed at any line and called again,
it comes to the same end. All it knows is in files: `data/work/jobs/NAME/`, and the name of the job is a
digest of all that goes in.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Literal

from pipeline.contract.backend import LIVE, Backend
from pipeline.contract.errors import JobError, NotYet
from pipeline.contract.params import TrainSections
from pipeline.contract.records import Champion, Dataset, Night, Plan, Training
from pipeline.contract.source_code import source_digest
from pipeline.contract.units import HOUR_S
from pipeline.jobs import escalation, submissions
from pipeline.jobs.backend_job import job_of
from pipeline.jobs.cost_tracker import CostTracker
from pipeline.jobs.reconciler import Reconciler
from pipeline.jobs.submissions import Attempt, Attempts
from pipeline.spot.preemptions import mean_time_to_loss_s
from pipeline.spot.steering import TICK_S, usd_per_hour
from pipeline.storage.journal import Timeout, alone
from pipeline.training.recipe import CHAMPION, Recipe, course, name_of

log = logging.getLogger(__name__)

JOBS = Path("data/work/jobs")


def train(
    night: Night,
    dataset: Dataset,
    plan: Plan,
    champion: Champion | None,
    *,
    backend: Backend,
    params: TrainSections,
) -> Training:
    """Train by the plan and return what came back; the model is in data/run/model.

    Raises NotYet while the job runs, and JobError if it cannot be brought to an end with a model.
    """
    return look_after(night, dataset, plan, champion, backend=backend, params=params, clock=time.time)


def look_after(
    night: Night,
    dataset: Dataset,
    plan: Plan,
    champion: Champion | None,
    *,
    backend: Backend,
    params: TrainSections,
    clock: Callable[[], float],
) -> Training:
    """`train` by another clock, in seconds since 1970."""
    recipe = recipe_of(night, dataset, plan, champion, params)
    workers, confidence = params.train.num_workers, params.plan.confidence
    first = escalation.first(plan, train_until=recipe.train_until, confidence=confidence)
    name = name_of(recipe, plan.rental, num_workers=workers)
    folder = JOBS / name
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(name):
        alive = end_jobs(backend, but=name, clock=clock)
        if alive:
            raise NotYet(f"job {name}: waits for the end of {', '.join(alive)}")
        return Reconciler(
            recipe,
            folder=folder,
            plan=plan,
            first=first,
            backend=backend,
            num_workers=workers,
            confidence=confidence,
            budget_usd=night.budget_usd,
            clock=clock,
        ).act()


def recipe_of(
    night: Night, dataset: Dataset, plan: Plan, champion: Champion | None, params: TrainSections
) -> Recipe:
    """What is to be trained tonight: from the champion, or cold every `train.cold_every` nights."""
    told = params.train
    arguments = params.workload.model_extra or {}
    tonight = course(night, dataset, champion, params)
    return Recipe(
        night=night.id,
        code_commit=night.code_commit,
        workload=params.workload.use,
        arguments=arguments,
        arrays="data/arrays",
        data_digest=dataset.digest,
        last_day=dataset.last_day,
        warm_from=str(CHAMPION) if tonight.warm else "",
        warm_digest=champion.model_digest if champion and tonight.warm else "",
        seed=told.seed,
        first_sample=tonight.first_sample,
        num_samples=plan.num_samples,
        batch_size=plan.batch_size,
        micro_batch_size=plan.micro_batch_size,
        tuning=plan.tuning,
        batching=_batching(told.batching, num_machines=plan.rental.num_machines),
        rate=tonight.rate,
        base_batch_size=told.batch_size,
        base_samples=tonight.num_samples,
        scaling=told.scaling,
        sync_every=told.sync_every if told.sync == "every_h_updates" else 1,
        sizes=plan.sizes,
        warmup=told.warmup,
        decay=told.decay,
        checkpoint_every_s=told.checkpoint_every_s or plan.checkpoint_every_s,
        hang_after_s=told.hang_after_s,
        mean_time_to_loss_s=None
        if told.checkpoint_every_s
        else plan.mean_time_to_loss_s or mean_time_to_loss_s(plan.rental),
        checkpoints_s=() if told.checkpoint_every_s else plan.checkpoints_s,
        train_until=_until(night, plan),
        checkpoints=told.checkpoints,
        source_digest=source_digest(params.workload.use),
    )


def _until(night: Night, plan: Plan) -> datetime:
    """When training has to be done: earlier than the night says, where what follows needs that to decide."""
    after_s = sum(portion.expected_s for portion in plan.after)
    return min(night.train_until, night.decide_until - timedelta(seconds=ceil(after_s)))


def _batching(told: Literal["auto", "by_speed", "even"], *, num_machines: int) -> Literal["by_speed", "even"]:
    if told == "auto":
        return "by_speed" if num_machines > 1 else "even"
    return told


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """One call at a time looks after the jobs of a night."""
    lock = alone(JOBS / "lock", wait=False)
    try:
        lock.acquire()
    except Timeout:
        raise NotYet(f"job {name}: another call looks after it") from None
    with lock:
        yield


def _attached(backend: Backend, folder: Path, asked: Attempts, *, now: float) -> Attempt | None:
    """The newest attempt with its handle, where the one who asked was killed before it had that.

    Asking again tells, as a backend attaches to a job of the same name; if none is there, one begins, to be
    ended at once. None where the backend refuses: nobody can tell.
    """
    last = asked.last
    assert last
    planned = last.name == folder.name
    job = job_of(folder, last.rung, planned=planned, num_workers=1, timeout_s=TICK_S)
    try:
        asked.submit(now, handle=backend.submit(job))
    except JobError as error:
        log.warning("job %s was asked for, and whether it is there is not known: %s", last.name, error)
        return None
    return asked.last


def end_jobs(backend: Backend, *, but: str = "", clock: Callable[[], float] = time.time) -> list[str]:
    """End the jobs of the night in this folder, except the one named; what they saved is kept.

    Returns the names of those that were told to end and have not yet.
    """
    alive = []
    for path in JOBS.glob(f"*/{submissions.FILE}"):
        folder, asked = path.parent, Attempts(path.parent)
        last = asked.last
        if folder.name == but or last is None or not last.live:
            continue
        if not last.handle:
            last = _attached(backend, folder, asked, now=clock())
        if last is None:
            continue
        if backend.state(last.handle) in LIVE:
            why = "plan or params were changed" if but else "interrupted"
            log.warning("job %s is ended: %s", folder.name, why)
            backend.cancel(last.handle)
        state = backend.state(last.handle)
        CostTracker(folder).move(clock(), usd_per_s=usd_per_hour(last.rung) / HOUR_S)
        if state in LIVE:
            alive.append(folder.name)
            continue
        if not last.leaving:
            asked.leave(clock(), "told")
        asked.end(clock(), state=state)
    return alive

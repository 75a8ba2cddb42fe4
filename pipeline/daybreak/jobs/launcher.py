"""Stage train: makes sure that tonight's job runs, and runs alone; it is called until training is done.

Each call looks at the job and takes the one next action (`reconciler`). If it is killed at any line and
called again, the outcome is the same. Its whole state is in files, `data/work/jobs/NAME/`, and the name of
the job is a digest of all its inputs.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Literal

from daybreak.contract import clock as night_clock
from daybreak.contract import trigger_lines
from daybreak.contract.backend import LIVE, TICK_S, Backend, JobState
from daybreak.contract.errors import JobError, NotYet, PipelineError
from daybreak.contract.formats import duration
from daybreak.contract.record_types import Champion, Dataset, Night, Plan, Training
from daybreak.contract.sections import PlanParams, TrainParams, WorkloadPlug
from daybreak.contract.units import HOUR_S
from daybreak.jobs import collector, observed_job, submissions
from daybreak.jobs.backend_job import job_of
from daybreak.jobs.cost_tracker import JOBS, CostTracker, usd_per_hour
from daybreak.jobs.reconciler import Reconciler
from daybreak.jobs.submissions import JobAttempt, JobAttempts
from daybreak.machines.losses import mean_time_to_loss_s
from daybreak.machines.startup import start_s
from daybreak.prediction.scorecard import alike, first_run, has_moved
from daybreak.storage.home import Home
from daybreak.storage.journal import Timeout, alone
from daybreak.storage.source_code import frame_digest, source_digest
from daybreak.training.recipe import (
    CHAMPION,
    Averaging,
    Clipping,
    LearningRate,
    Recipe,
    SaveTimes,
    Validation,
    WarmStart,
    course,
    last_trained_day,
    name_of,
)
from daybreak.training.validation import validation_of

log = logging.getLogger(__name__)

LOCK = JOBS / "lock"  # of all jobs of a night
REFITTED = collector.MODEL.parent / "refitted" / collector.MODEL.name


def train(
    home: Home,
    night: Night,
    dataset: Dataset,
    plan: Plan,
    champion: Champion | None,
    *,
    backend: Backend,
    workload: WorkloadPlug,
    train: TrainParams,
    limits: PlanParams,
) -> Training:
    """Trains by the plan and returns the record of it; the model is in data/run/model.

    Raises NotYet while the job runs, and JobError if it cannot end with a model.
    """
    return look_after(
        home,
        night,
        dataset,
        plan,
        champion,
        backend=backend,
        workload=workload,
        train=train,
        limits=limits,
        clock=night_clock.now,
        awake=night_clock.awake,
    )


def look_after(
    home: Home,
    night: Night,
    dataset: Dataset,
    plan: Plan,
    champion: Champion | None,
    *,
    backend: Backend,
    workload: WorkloadPlug,
    train: TrainParams,
    limits: PlanParams,
    clock: Callable[[], float],
    awake: Callable[[], float] | None = None,
) -> Training:
    """Does what `train` does, by a given clock (seconds since 1970) and seconds that the machine was awake.

    Without the latter, the machine never sleeps.
    """
    recipe = recipe_of(night, dataset, plan, champion, workload=workload, train=train)
    return _act(
        home,
        recipe,
        night,
        plan,
        backend=backend,
        num_workers=train.num_workers,
        limits=limits,
        clock=clock,
        awake=awake or clock,
    )


def refit(
    home: Home,
    night: Night,
    dataset: Dataset,
    plan: Plan,
    training: Training,
    *,
    num_samples: int,
    last_day: date,
    backend: Backend,
    workload: WorkloadPlug,
    train: TrainParams,
    limits: PlanParams,
) -> Training:
    """Trains tonight's model on held-out samples, as `train` does; the result is in `REFITTED`.

    Raises JobError where the time until the decision does not suffice; a job that runs already goes on.

    Args:
        home: whose nights these are.
        night: tonight's.
        dataset: of the training split.
        plan: by which the model was trained, whose machines are taken again.
        training: that of the model, by which the time is estimated.
        num_samples: to train on, all passes together.
        last_day: the last held-out day.
        backend: runs the job.
        workload: what is trained.
        train: how.
        limits: `plan.confidence` and `plan.objective`, by which the job is looked after.
    """
    shorter = _plan_of_refit(plan, training, num_samples)
    cold = recipe_of(night, dataset, shorter, None, workload=workload, train=train)
    recipe = replace(
        cold,
        split="test",
        last_day=last_day,
        warm_start=WarmStart(folder=str(collector.MODEL), digest=training.model_digest),
        first_sample=0,
        last_trained_day=None,
        validation=Validation(),
        rate=replace(cold.rate, peak=train.warm_rate, base_samples=num_samples),
        train_until=night.decide_until,
    )
    if not (JOBS / name_of(recipe, plan.rental, num_workers=train.num_workers)).exists():
        _expect_in_time(shorter, night)
    return _act(
        home,
        recipe,
        night,
        shorter,
        backend=backend,
        num_workers=train.num_workers,
        limits=limits,
        clock=night_clock.now,
        awake=night_clock.awake,
        into=REFITTED,
    )


def _plan_of_refit(plan: Plan, training: Training, num_samples: int) -> Plan:
    """Returns the plan of a job as the one before, but of so many samples, at the pace that was measured."""
    pace_s = training.elapsed_s / max(training.num_samples, 1)
    if has_moved(plan, training):  # the refit has the plan's machines
        pace_s = (plan.forecast.expected_s - start_s(plan)) / max(plan.num_samples, 1)
        first = first_run(plan, training)
        if first and alike(first.rental, plan.rental) and not plan.sizes:
            pace_s = first.elapsed_s / (first.num_updates * plan.batch_size)
    expected_s = start_s(plan) + num_samples * pace_s
    return replace(
        plan,
        num_samples=num_samples,
        batch_size=min(plan.batch_size, num_samples),
        micro_batch_size=min(plan.micro_batch_size, num_samples),
        forecast=plan.forecast.lasting(expected_s),
        fallbacks=(),
        cheaper=(),
        sizes=(),
        tuning=replace(plan.tuning, in_memory=False),  # which keeps samples of the training split
    )


def _expect_in_time(refit: Plan, night: Night) -> None:
    left_s, expected_s = night.decide_until.timestamp() - night_clock.now(), refit.forecast.expected_s
    if left_s < expected_s:
        raise JobError(
            f"a refit on {refit.num_samples:,} samples takes about {duration(expected_s)}, and "
            f"{duration(max(left_s, 0.0))} are left for it before the decision; raise night.decide_hours"
        )


def _act(
    home: Home,
    recipe: Recipe,
    night: Night,
    plan: Plan,
    *,
    backend: Backend,
    num_workers: int,
    limits: PlanParams,
    clock: Callable[[], float],
    awake: Callable[[], float],
    into: Path = collector.MODEL,
) -> Training:
    """Takes the next action for the job of a recipe, and returns its record once it has ended."""
    first = observed_job.first(plan, train_until=recipe.train_until, confidence=limits.confidence)
    name = name_of(recipe, plan.rental, num_workers=num_workers)
    folder = JOBS / name
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(name):
        alive = end_jobs(home, backend, but=name, clock=clock)
        if alive:
            raise NotYet(f"job {name}: waits for the end of {', '.join(alive)}")
        return Reconciler(
            recipe,
            home=home,
            folder=folder,
            plan=plan,
            first=first,
            backend=backend,
            num_workers=num_workers,
            confidence=limits.confidence,
            budget_usd=night.budget_usd,
            to_save=limits.ranking == "cost",
            triggers=tuple(map(trigger_lines.parse, limits.triggers)),
            clock=clock,
            awake=awake,
            into=into,
        ).act()


def recipe_of(
    night: Night,
    dataset: Dataset,
    plan: Plan,
    champion: Champion | None,
    *,
    workload: WorkloadPlug,
    train: TrainParams,
) -> Recipe:
    """Returns what to train tonight: from the champion, or cold every `train.cold_every` nights."""
    arguments = workload.model_extra or {}
    tonight = course(night, dataset, champion, workload, train)
    if plan.num_left_out:
        tonight = tonight.without_missed()
    sync = train.fixed_sync or plan.sync
    return Recipe(
        night=night.id,
        code_commit=night.code_commit,
        workload=workload.use,
        arguments=arguments,
        arrays="data/arrays",
        data_digest=dataset.digest,
        last_day=max(dataset.last_day, _last_day(CHAMPION)) if tonight.warm else dataset.last_day,
        last_trained_day=last_trained_day(dataset, tonight.num_validated) if tonight.num_validated else None,
        warm_start=WarmStart(folder=str(CHAMPION), digest=champion.model_digest if champion else "")
        if tonight.warm
        else None,
        seed=train.seed,
        first_sample=tonight.first_sample,
        num_samples=plan.num_samples,
        batch_size=plan.batch_size,
        batch_by=train.batch_by,
        micro_batch_size=plan.micro_batch_size,
        tuning=replace(plan.tuning, precision="float16") if train.precision == "float16" else plan.tuning,
        batching=_batching(train.batching, num_machines=plan.rental.num_machines),
        rate=LearningRate(
            peak=tonight.rate,
            warmup=train.warmup,
            decay=train.decay,
            schedule=train.schedule,
            scaling=train.scaling,
            base_batch_size=train.batch_size,
            base_samples=plan.base_samples or tonight.num_samples,
        ),
        clipping=Clipping(norm=train.clip_norm or 0.0, value=train.clip_value or 0.0),
        validation=validation_of(
            tonight.num_validated, num_samples=plan.num_samples, patience=train.patience or 0
        ),
        averaging=Averaging(ema=train.ema or 0.0, last=train.average_last),
        carries_optimizer=train.carry_optimizer,
        sync=sync,
        sync_is_tried=train.fixed_sync is None and sync.every > 1,
        threads=train.threads,
        follow_memory=train.follow_memory,
        sizes=plan.sizes,
        saves=_saves(plan, train),
        hang_after_s=train.hang_after_s,
        train_until=_until(night, plan),
        source_digest=source_digest(workload.use),
        frame_digest=frame_digest(),
    )


def _saves(plan: Plan, train: TrainParams) -> SaveTimes:
    """Returns when the job saves: as the user says, else by how long its machines last."""
    if train.checkpoint_every_s:
        return SaveTimes(every_s=train.checkpoint_every_s, copies=train.checkpoints)
    spot = plan.spot
    return SaveTimes(
        every_s=plan.checkpoint_every_s,
        mean_time_to_loss_s=spot.mean_time_to_loss_s if spot else mean_time_to_loss_s(plan.rental),
        schedule_s=spot.checkpoints_s if spot else (),
        copies=train.checkpoints,
    )


def _last_day(model: Path) -> date:
    """Returns the last day that a model has seen."""
    return date.fromisoformat(json.loads((model / "model.json").read_text())["last_day"])


def _until(night: Night, plan: Plan) -> datetime:
    """Returns when training has to end: earlier than the night says if the later stages need the time."""
    return min(night.train_until, _decision(night, plan))


def _decision(night: Night, plan: Plan) -> datetime:
    """Returns when a model has to be there, so that it can be evaluated before the decision is due."""
    after_s = sum(portion.expected_s for portion in plan.after)
    return night.decide_until - timedelta(seconds=ceil(after_s))


def _batching(
    wanted: Literal["auto", "by_speed", "even"], *, num_machines: int
) -> Literal["by_speed", "even"]:
    if wanted == "auto":
        return "by_speed" if num_machines > 1 else "even"
    return wanted


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Holds the lock of the jobs of a night; NotYet if another call holds it."""
    lock = alone(LOCK, wait=False)
    try:
        lock.acquire()
    except Timeout:
        raise NotYet(f"job {name}: another call looks after it") from None
    with lock:
        yield


def _attached(home: Home, backend: Backend, folder: Path, attempts: JobAttempts) -> JobAttempt | None:
    """Returns the newest attempt with a handle, which is missing if a kill came before the backend's reply.

    A second submission gets the handle, since a backend attaches to a job of the same name; if there is no
    such job, one starts, and is ended at once. None if the backend refuses, so that nobody can know.
    """
    last = attempts.last
    assert last
    job = job_of(home, folder, last.placement, planned=True, num_workers=1, timeout_s=TICK_S)
    try:
        attempts.change(handle=backend.submit(replace(job, name=last.job)))
    except JobError as error:
        log.warning("job %s was submitted, and whether it exists is not known: %s", last.job, error)
        return None
    return attempts.last


def end_jobs(
    home: Home, backend: Backend, *, but: str = "", clock: Callable[[], float] = night_clock.now
) -> list[str]:
    """Ends the jobs of the night in this folder, except the job named `but`; checkpoints are kept.

    Returns the names of jobs that were cancelled and have not ended yet. Raises, after trying all, JobError
    if some could not be ended, else NotYet if a place does not yet say whether it has a job.
    """
    alive, left, unknown = [], [], []
    for path in JOBS.glob(f"*/{submissions.FILE}"):
        folder, attempts = path.parent, JobAttempts(path.parent)
        last = attempts.last
        if folder.name == but or last is None or not last.live:
            continue
        why = "plan or params were changed" if but else "interrupted"
        try:
            if not last.handle:
                last = _attached(home, backend, folder, attempts)
            if last and _cancelled(backend, folder, attempts, why=why, clock=clock) in LIVE:
                alive.append(folder.name)
        except PipelineError as error:
            left.append(f"job {folder.name} may still run: {error}")
        except NotYet as error:
            unknown.append(f"job {folder.name} may still run: {error}")
    if left:
        raise JobError("; ".join([*left, *unknown]))
    if unknown:
        raise NotYet("; ".join(unknown))
    return alive


def _cancelled(
    backend: Backend, folder: Path, attempts: JobAttempts, *, why: str, clock: Callable[[], float]
) -> JobState:
    """Cancels the newest job if it is alive, records its cost and its end, and returns its state."""
    last = attempts.last
    assert last
    before = state = backend.state(last.handle)
    if before in LIVE:
        log.warning("ending job %s: %s", folder.name, why)
        backend.cancel(last.handle)
        state = backend.state(last.handle)
    usd_per_s = usd_per_hour(last.placement) / HOUR_S if last.holds_machines(before) else 0.0
    CostTracker(folder).move(clock(), usd_per_s=usd_per_s, billed_usd=backend.usd(folder))
    if state not in LIVE:
        if not last.leaving:
            attempts.change(leaving=True)
        attempts.change(ended=state, ended_at=clock())
    return state

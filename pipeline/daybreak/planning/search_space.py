"""Prepares the search for a plan: the job as tonight would run it, and the machines that it may have.

The job is the profile with the remedies that pay for so many samples, in the batch that they leave, as noisy
as the nights like it were. The machines are those that params.yaml names and that have a price.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from daybreak.contract.errors import PlanError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import EVERY_UPDATE, Sync, Tuning
from daybreak.contract.record_types import Dataset, Night, Profile
from daybreak.machines import catalog
from daybreak.planning.candidates import TrainingTask, Way, allowed, candidates, everything, hindrance
from daybreak.planning.search import Candidate
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.efficiency import Efficiency, alike
from daybreak.profiling import remedies
from daybreak.training.recipe import Course
from daybreak.training.worker_keys import WHOLE, expect_allowed

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from daybreak.contract.sections import PlanParams, PlanSections

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a night is planned from, however many samples it trains on."""

    night: Night
    dataset: Dataset
    profile: Profile
    params: "PlanSections"
    available: Sequence[Machine]  # what the backend has
    listed: Sequence[Machine] = ()  # weighed so that the plan can name them, and never chosen
    known: CostCalibration | None = None  # what earlier nights taught
    left_usd: float = 0.0  # of plan.explore_usd
    waited_s: float = 0.0  # that is no time to train


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """A job, the machines that may run it, and how many of each are worth weighing."""

    course: Course
    job: TrainingTask
    tuning: Tuning
    params: "PlanParams"
    machines: tuple[Machine, ...]  # that params name, available or not
    available: frozenset[Machine]
    dominated: bool  # also numbers of machines that another number beats in every way

    def candidates(self, num_samples: int, among: Collection[Way] | None = None) -> list[Candidate]:
        """Returns the ways to train on so many samples, in batches of the job's own size; of some lines."""
        return list(
            candidates(
                self.job,
                self.machines,
                self.params,
                available=self.available,
                num_samples=num_samples,
                among=among,
                dominated=self.dominated,
            )
        )

    @property
    def usable(self) -> list[Machine]:
        """The machines that may be chosen."""
        return [machine for machine in self.machines if not hindrance(machine, self.available)]

    def agreeing(self, sync: Sync) -> "SearchSpace":
        """Returns the space of jobs whose workers agree as often as that."""
        return replace(self, job=replace(self.job, sync=sync))


def search_space(problem: Problem, course: Course) -> SearchSpace:
    """Returns what the plan of a course is searched in.

    Raises PlanError if no machine that params name has a price, or if none is available.
    """
    params, night = problem.params, problem.night
    here = next((machine for machine in problem.available if machine.is_local), catalog.AT_HAND)
    at_hand = catalog.local(problem.profile, today=night.day, own=here)
    available = tuple(
        replace(at_hand, backend=machine.backend) if machine.is_local else machine
        for machine in problem.available
    )
    machines = allowed(everything(available, (at_hand, *problem.listed)), params.plan, available=available)
    if problem.profile.is_estimator:
        machines = _with_cpus_alone(machines, available)
    machines = _with_what_class_wants(machines, problem, available)
    obtainable = frozenset(available)
    profile, tuning = remedies.apply_kept(
        problem.profile,
        epochs=course.epochs,
        num_samples=course.num_samples,
        at_hand=all(machine.is_local for machine in machines if machine in obtainable),
    )
    if tuning.sharded_weights and _wants_whole(problem):
        raise PlanError(
            f"one sample needs weights that are divided among workers, which {WHOLE} does not allow; name a "
            f"machine with more memory in plan.machines, or train a smaller model"
        )
    return SearchSpace(
        course=course,
        job=_job(replace(problem, profile=profile), course, at_hand),
        tuning=tuning,
        params=params.plan,
        machines=machines,
        available=obtainable,
        # Numbers of machines that seem dominated are what exploring finds out about.
        dominated=problem.left_usd > 0,
    )


def _job(problem: Problem, course: Course, at_hand: Machine) -> TrainingTask:
    """Returns the job of a course, by a profile with its remedies."""
    profile, training, known = problem.profile, problem.params.train, problem.known
    batch_size = training.batch_size
    if profile.is_estimator:  # a tree needs all samples, and a course has as many epochs as trees
        batch_size = round(course.num_samples / course.epochs)
    elif any(remedy.name == remedies.SMALLER_BATCH and remedy.kept for remedy in profile.remedies):
        batch_size = max(1, batch_size // 2)
    _warn_of_one_update(batch_size, course)
    nights = alike(
        known.reached if known else (),
        profile=profile,
        num_samples=course.num_samples,
        batch_size=batch_size,
    )
    return TrainingTask(
        profile=profile,
        at_hand=replace(at_hand, dated=problem.dataset.last_day),
        dataset=problem.dataset,
        batch_size=batch_size,
        num_workers=training.num_workers,
        known=known,
        sync=EVERY_UPDATE if _wants_whole(problem) else training.fixed_sync,
        grows=training.batch_growth == "goodput",
        # Gradients are noisier towards the end of training than where a profile looks, at its beginning.
        efficiency=Efficiency(noise_scale=(nights[-1] if nights else profile).noise_scale, nights=nights),
    )


def _with_cpus_alone(machines: tuple[Machine, ...], available: Collection[Machine]) -> tuple[Machine, ...]:
    """Returns the machines that an estimator may have; PlanError where each has devices it would not use."""
    kept = tuple(machine for machine in machines if machine.is_local or not machine.num_devices)
    _expect_one(
        kept,
        available,
        of=machines,
        why="have GPUs or TPUs, and an estimator trains on CPUs; name a machine without them, or local",
    )
    return kept


def _expect_one(
    kept: Iterable[Machine], available: Collection[Machine], *, of: Iterable[Machine], why: str
) -> None:
    """Raises PlanError where none of the machines that are kept is available."""
    if not any(machine in available for machine in kept):
        names = ", ".join(dict.fromkeys(machine.name for machine in of))
        raise PlanError(f"plan.machines names {names}, which {why}")


def _wants_whole(problem: Problem) -> bool:
    """Returns whether each worker needs the whole model, and all agree at every update."""
    profile = problem.profile
    is_float16 = problem.params.train.precision == "float16"
    return profile.wants_whole or profile.wants_one_worker or is_float16


def _with_what_class_wants(
    machines: tuple[Machine, ...], problem: Problem, available: Collection[Machine]
) -> tuple[Machine, ...]:
    """Returns the machines whose workers can train the class.

    Raises ParamsError where params.yaml asks for what it does not allow, PlanError where no machine is left.
    """
    if not _wants_whole(problem):
        return machines
    one_worker = problem.profile.wants_one_worker
    expect_allowed(problem.params.train, whole=True, one_worker=one_worker)
    kept = tuple(machine for machine in machines if not machine.is_tpu)
    if one_worker:
        kept = tuple(machine for machine in kept if machine.is_local or machine.num_workers == 1)
    _expect_one(
        kept,
        available,
        of=machines,
        why=f"have TPUs or, where the class has state_dict or whole_batch, several devices, and {WHOLE} does "
        f"not train on these; name a machine with one GPU, or local",
    )
    return kept


def _warn_of_one_update(batch_size: int, course: Course) -> None:
    """Says that a batch is larger than all samples to train on."""
    if batch_size > course.num_samples:
        log.warning(
            "a batch of %s samples (train.batch_size) is larger than the %s to train on, so that training is "
            "one update of these; lower train.batch_size, or raise the epochs",
            f"{batch_size:,}",
            f"{course.num_samples:,}",
        )

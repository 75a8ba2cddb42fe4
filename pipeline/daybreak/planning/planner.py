"""Plans the night: the cheapest machine that is done in time, and why not the next best.

Candidates are all machines, regions, counts, batch sizes and strategies (on-demand, spot, flex-start) that
params.yaml allows and whose memory suffices (`costs.estimate`); `search.search` picks one that is done by
`night.train_until` with a chance of at least `plan.confidence` for at most `night.budget_usd`. Time counts
from `night.started_at`, less what other stages take (time_budget.py), so that the same records give the same
plan whenever it is made.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from daybreak import hooks
from daybreak.contract.errors import DataError, PlanError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import JobForecast, PlanReasons, Portion
from daybreak.contract.record_types import Champion, Dataset, Night, Plan, Profile
from daybreak.planning import fallback
from daybreak.planning.batch_growth import sizes
from daybreak.planning.candidates import way_of
from daybreak.planning.considered import basis, options, portions
from daybreak.planning.infeasible import (
    epochs_that_help,
    infeasible,
    nothing_at_once,
    nothing_runs,
    of_epochs,
)
from daybreak.planning.search import Candidate, Objective, PlanChoice, PlanLimits, relax, search
from daybreak.planning.search_space import Problem, SearchSpace, search_space
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.time_budget import NightWindow, window, windows
from daybreak.training.estimator_keys import expect_applicable
from daybreak.training.recipe import Course, course

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from daybreak.contract.sections import PlanSections

log = logging.getLogger(__name__)


def plan(
    night: Night,
    dataset: Dataset,
    profile: Profile,
    champion: Champion | None,
    params: "PlanSections",
    *,
    available: Sequence[Machine],
    listed: Sequence[Machine] = (),
    known: CostCalibration | None = None,
    explored_usd: float = 0.0,
    waited_s: float = 0.0,
) -> Plan:
    """Returns the plan of the night on the available machines, given what earlier nights taught.

    `available` is what the backend has; machines that are only `listed` are weighed so that the plan can
    name them, and never chosen.
    `explored_usd` is what the last nights spent of `plan.explore_usd`, `waited_s` what the night waited
    before it was planned. Raises PlanError with the least that helps if nothing is feasible.
    """
    if profile.is_estimator:
        expect_applicable(params)
    recipe = _course(night, dataset, champion, params)
    problem = Problem(
        night=night,
        dataset=dataset,
        profile=profile,
        params=params,
        available=available,
        listed=listed,
        known=known,
        left_usd=params.plan.explore_usd - explored_usd,
        waited_s=waited_s,
    )
    made, recipe = _with_what_fits(problem, recipe)
    longer = partial(_longer, problem, recipe, num_left_out=made.num_left_out)
    for lengthened in hooks.functions("length"):
        made = lengthened(
            made,
            longer,
            recipe=recipe,
            profile=profile,
            known=known,
            params=params,
            left_usd=problem.left_usd,
        )
    return made


def _longer(problem: Problem, recipe: Course, length: float, *, num_left_out: int) -> Plan | None:
    """Returns the plan of a course `length` times as long; None where it is too late or too dear."""
    tonight = replace(recipe, epochs=length * recipe.epochs, num_samples=round(length * recipe.num_samples))
    try:
        made = _planned(problem, tonight, shorten=False)
    except PlanError:
        return None
    return replace(made, base_samples=tonight.num_samples, num_left_out=num_left_out)


def _with_what_fits(problem: Problem, recipe: Course) -> tuple[Plan, Course]:
    """Returns the plan and its course of training, without missed nights where their samples are too many."""
    try:
        return _planned(problem, recipe), recipe
    except PlanError as error:
        if not recipe.num_missed:
            raise
        log.warning(
            "%s; instead, %s samples of missed nights, which no version was trained on, are left out",
            error,
            f"{recipe.num_missed:,}",
        )
    tonight = recipe.without_missed()
    return replace(_planned(problem, tonight), num_left_out=recipe.num_missed), tonight


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Candidates, and the limits of a window that one of them is to keep."""

    offered: list[Candidate]
    window: NightWindow
    limits: PlanLimits
    objective: Objective

    @cached_property
    def choice(self) -> PlanChoice | None:
        """The best that keeps the limits; None where nothing does."""
        return search(self.offered, limits=self.limits, objective=self.objective)


def _planned(problem: Problem, tonight: Course, *, shorten: bool = True) -> Plan:
    """Returns the plan for a course; for fewer epochs where only these are feasible, if `shorten`."""
    space = search_space(problem, tonight)
    weighed = _with_others(space, _beside_live_test(problem, space), problem.params)
    epochs = None
    if weighed.choice is None and shorten:
        epochs = epochs_that_help(space.candidates, tonight, weighed.limits)
        weighed = _shortened(space, weighed, epochs, problem.params)
    if weighed.choice is None:
        relaxation = relax(weighed.offered, limits=weighed.limits)
        raise PlanError(infeasible(problem.night, tonight, weighed.window, relaxation, epochs))
    choice, explore_usd = _explored(weighed, weighed.choice, space, left_usd=problem.left_usd)
    made = replace(_written(problem, space, weighed, choice), explore_usd=explore_usd)
    for on_spot in hooks.functions("on_spot") if made.rental.is_spot else ():
        made = on_spot(
            made,
            choice.best,
            space.job.profile,
            problem.known,
            until_s=weighed.window.until_s,
            budget_usd=problem.night.budget_usd,
        )
    return made


def _beside_live_test(problem: Problem, space: SearchSpace) -> _Search:
    """Returns the search in the window beside the most of the live test that leaves time for some candidate.

    Where none does, the window reserves nothing for the test. Raises PlanError where the later stages alone
    do not fit, and where no machine could run the job at once, however late.
    """
    night, params = problem.night, problem.params
    whole = window(
        night,
        problem.dataset,
        space.job.profile,
        test_days=params.prepare.test_days,
        confidence=space.params.confidence,
        decided=problem.known.decided if problem.known else (),
        refit_epochs=params.gate.refit_epochs,
        waited_s=problem.waited_s,
    )
    offered = space.candidates(space.course.num_samples)
    _expect_runnable(space, offered)
    for there in windows(night, whole):
        limits = PlanLimits(
            deadline_s=there.deadline_s,
            budget_usd=night.budget_usd,
            confidence=space.params.confidence,
            usd_per_hour_saved=space.params.usd_per_hour_saved,
        )
        beside = _Search(offered=offered, window=there, limits=limits, objective=space.params.ranking)
        if beside.choice:
            break
    return beside


def _expect_runnable(space: SearchSpace, offered: Sequence[Candidate]) -> None:
    """Raises PlanError where no candidate can run, or where each has to be waited for."""
    runnable = [candidate for candidate in offered if not candidate.hindrance]
    if not runnable:
        sizes = space.params.batch_sizes or (space.job.batch_size,)
        raise PlanError(
            nothing_runs(
                space.job,
                space.usable,
                sizes,
                num_samples=space.course.num_samples,
                others=[machine for machine in space.available if machine.region in space.params.regions],
            )
        )
    if all(candidate.rental.is_queued for candidate in runnable):
        raise PlanError(nothing_at_once(runnable))


def _with_others(space: SearchSpace, weighed: _Search, params: "PlanSections") -> _Search:
    """Returns the search with the candidates that extensions have, such as machines of two kinds."""
    further = [
        each
        for candidates_of in hooks.functions("candidates")
        for each in candidates_of(
            space.job,
            space.machines,
            params,
            available=space.available,
            num_samples=space.course.num_samples,
            limits=weighed.limits,
            than=weighed.choice,
        )
    ]
    return replace(weighed, offered=[*weighed.offered, *further]) if further else weighed


def _shortened(space: SearchSpace, weighed: _Search, epochs: float | None, params: "PlanSections") -> _Search:
    """Returns the search with so few epochs, where some number helps and params allow it."""
    if epochs is None or space.job.profile.is_estimator or params.profile.quality_remedies != "allow":
        return weighed
    tonight = space.course
    log.warning("%g epochs instead of %g, as profile.quality_remedies allows", epochs, tonight.epochs)
    return replace(weighed, offered=space.candidates(of_epochs(epochs, tonight)))


def _explored(
    weighed: _Search, choice: PlanChoice, space: SearchSpace, *, left_usd: float
) -> tuple[PlanChoice, float]:
    """Returns the choice with the way for tonight as its best, and the extra dollars of exploring."""
    more_usd = 0.0
    for explored in hooks.functions("choice") if left_usd > 0 else ():
        choice, more_usd = explored(
            choice, weighed.offered, weighed.limits, space.params, job=space.job, left_usd=left_usd
        )
    return choice, more_usd


def _written(problem: Problem, space: SearchSpace, weighed: _Search, choice: PlanChoice) -> Plan:
    """Returns the record of a choice: the rental, its fallbacks and the reason."""
    night, job, there, limits = problem.night, space.job, weighed.window, weighed.limits
    best, estimate, tuning = choice.best, choice.best.estimate, space.tuning
    if not best.rental.is_local:  # on other machines the useful number of loaders is predicted, not measured
        tuning = replace(tuning, num_loaders=estimate.num_loaders)
    successors = _successors(space, weighed, best)
    fallbacks = fallback.select(choice, successors, limits)
    slower = fallback.cheaper(best, successors, limits) if space.params.ranking == "cost" else []
    return Plan(
        rental=best.rental,
        usd_per_hour=estimate.usd_per_hour,
        gpus=best.machine.gpus,
        forecast=JobForecast(
            expected_s=best.expected_s,
            interval=best.interval,
            expected_usd=best.expected_usd,
            chance=best.chance(limits.deadline_s),
            widened=estimate.widened,
            portions=portions(best),
            longest_s=best.time_s(limits.confidence),
        ),
        after=tuple(
            Portion(name=part.name, expected_s=part.seconds, expected_usd=0.0) for part in there.after
        ),
        batch_size=estimate.batch_size,
        micro_batch_size=estimate.micro_batch_size,
        sizes=sizes(job, best),
        tuning=tuning,
        sync=estimate.sync,
        num_samples=best.num_samples,
        checkpoint_every_s=problem.params.train.checkpoint_every_s or estimate.checkpoint_every_s,
        waited_s=problem.waited_s,
        fallbacks=fallback.placements(fallbacks, job, night, limits, there),
        cheaper=fallback.placements(slower, job, night, limits, there),
        reasons=PlanReasons(
            runner_up=choice.runner_up,
            options=options(weighed.offered, choice=choice, limits=limits, objective=weighed.objective),
            basis=basis(best, job=job, offered=weighed.offered),
            price=best.machine.price_source(best.rental.strategy),
        ),
    )


def _successors(space: SearchSpace, weighed: _Search, best: Candidate) -> list[Candidate]:
    """Returns what may go on from a checkpoint of the best: only jobs whose workers agree as often."""
    sync = best.estimate.sync
    if space.job.sync is not None or sync.every == 1:
        return weighed.offered
    num_samples = space.course.num_samples
    times = best.num_samples / space.job.samples(num_samples, best.estimate.batch_size)
    again = space.agreeing(sync).candidates(round(times * num_samples))
    return [each for each in again if way_of(each) != way_of(best)]


def _course(night: Night, dataset: Dataset, champion: Champion | None, params: "PlanSections") -> Course:
    """Returns how far tonight trains.

    Raises PlanError if the deadline has passed, and DataError if there is no sample to train on.
    """
    if night.train_until <= night.started_at:
        raise PlanError(
            f"the deadline {night.train_until:%Y-%m-%d %H:%M} UTC had passed when the night began at "
            f"{night.started_at:%H:%M}; raise night.train_hours and open the night again"
        )
    tonight = course(night, dataset, champion, params.workload, params.train)
    if tonight.num_samples < 1:
        raise DataError(
            f"{tonight.epochs:g} epochs over {dataset.num_samples} samples are none to train on; "
            f"look at prepare.window_days and train.epochs"
        )
    if tonight.num_missed:
        log.info(
            "the warm start trains on %s samples more than train.warm_share, of nights that were missed",
            f"{tonight.num_missed:,}",
        )
    return tonight

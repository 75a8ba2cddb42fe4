"""Plans the night: the cheapest machine that is done in time, and why not the next best.

Candidates are all machines, regions, counts, batch sizes and strategies (on-demand, spot, flex-start) that
params.yaml allows and whose memory suffices (`costs.estimate`); `search.search` picks one that is done by
`night.train_until` with a chance of at least `plan.confidence` for at most `night.budget_usd`. Time counts
from `night.started_at`, less what other stages take (time_budget.py), so that the same records give the same
plan whenever it is made.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from daybreak import hooks
from daybreak.contract.errors import DataError, PlanError
from daybreak.contract.machine import Machine
from daybreak.contract.records import Champion, Dataset, Night, Plan, Portion, Profile, Rung, Tuning
from daybreak.machines import catalog
from daybreak.planning import fallback
from daybreak.planning.batch_growth import sizes
from daybreak.planning.candidates import Job, Way, allowed, candidates, everything, hindrance, way_of
from daybreak.planning.considered import basis, options, portions
from daybreak.planning.infeasible import (
    epochs_that_help,
    infeasible,
    nothing_at_once,
    nothing_runs,
    of_epochs,
)
from daybreak.planning.search import Candidate, Choice, Limits, relax, search
from daybreak.prediction.calibration import Calibration
from daybreak.prediction.efficiency import Efficiency, alike, complete
from daybreak.prediction.time_budget import Window, window, windows
from daybreak.profiling import remedies
from daybreak.training.recipe import Course, course

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from daybreak.contract.params import PlanParams, PlanSections

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
    known: Calibration | None = None,
    explored_usd: float = 0.0,
) -> Plan:
    """Returns the plan of the night on the available machines, given what earlier nights taught.

    `available` is what the backend has; machines that are only `listed` are weighed so that the plan can
    name them, and never chosen.
    `explored_usd` is what the last nights spent of `plan.explore_usd`. Raises PlanError with the least that
    helps if nothing is feasible.
    """
    recipe = _course(night, dataset, champion, params)
    chosen, choices = night.chosen, params.plan.quality_choices
    if known and chosen:  # other days are other samples, and another model learns otherwise
        reached = [each for each in known.reached if complete(each.values, choices) == chosen.values]
        known = replace(known, reached=reached)
    if chosen and chosen.tried:  # tonight finds out about nothing else
        explored_usd = max(explored_usd, params.plan.explore_usd)

    def planned(tonight: Course, *, shorten: bool) -> Plan:
        return _planned(
            tonight,
            night,
            dataset,
            profile,
            params,
            available=available,
            listed=listed,
            known=known,
            explored_usd=explored_usd,
            shorten=shorten,
        )

    num_left_out = 0
    try:
        made = planned(recipe, shorten=True)
    except PlanError as error:
        if not recipe.num_missed:
            raise
        log.warning(
            "%s; instead, %s samples of missed nights, which no version was trained on, are left out",
            error,
            f"{recipe.num_missed:,}",
        )
        num_left_out, recipe = recipe.num_missed, recipe.without_missed()
        made = replace(planned(recipe, shorten=True), num_left_out=num_left_out)

    def longer(length: float) -> Plan | None:
        tonight = replace(
            recipe, epochs=length * recipe.epochs, num_samples=round(length * recipe.num_samples)
        )
        try:
            return replace(
                planned(tonight, shorten=False), base_samples=tonight.num_samples, num_left_out=num_left_out
            )
        except PlanError:  # nothing is in time and within the budget with so many
            return None

    for lengthened in hooks.functions("length"):
        made = lengthened(
            made,
            longer,
            night=night,
            recipe=recipe,
            profile=profile,
            known=known,
            params=params,
            left_usd=params.plan.explore_usd - explored_usd,
        )
    return made


def _warn_of_one_update(batch_size: int, tonight: Course) -> None:
    """Says that a batch is larger than all samples to train on."""
    if batch_size > tonight.num_samples:
        log.warning(
            "a batch of %s samples (train.batch_size) is larger than the %s to train on, so that training is "
            "one update of these; lower train.batch_size, or raise the epochs",
            f"{batch_size:,}",
            f"{tonight.num_samples:,}",
        )


def _planned(
    tonight: Course,
    night: Night,
    dataset: Dataset,
    profile: Profile,
    params: "PlanSections",
    *,
    available: Sequence[Machine],
    listed: Sequence[Machine],
    known: Calibration | None,
    explored_usd: float,
    shorten: bool,
) -> Plan:
    """Returns the plan for a course; for fewer epochs where only these are feasible, if `shorten`."""
    planning, training = params.plan, params.train
    here = next((machine for machine in available if machine.is_local), catalog.AT_HAND)
    at_hand = catalog.local(profile, today=night.day, own=here)
    available = tuple(
        replace(at_hand, backend=machine.backend) if machine.is_local else machine for machine in available
    )
    machines = allowed(everything(available, (at_hand, *listed)), planning, available=available)
    obtainable = frozenset(available)
    profile, tuning = remedies.apply_kept(
        profile,
        epochs=tonight.epochs,
        num_samples=tonight.num_samples,
        at_hand=all(machine.is_local for machine in machines if machine in obtainable),
    )
    batch_size = training.batch_size
    if any(remedy.name == remedies.SMALLER_BATCH and remedy.kept for remedy in profile.remedies):
        batch_size = max(1, batch_size // 2)
    _warn_of_one_update(batch_size, tonight)
    whole = window(
        night,
        dataset,
        profile,
        test_days=params.prepare.test_days,
        confidence=planning.confidence,
        decided=known.decided if known else (),
        refit_epochs=params.gate.refit_epochs,
    )
    nights = alike(
        known.reached if known else (),
        profile=profile,
        num_samples=tonight.num_samples,
        batch_size=batch_size,
    )
    job = Job(
        profile=profile,
        at_hand=replace(at_hand, dated=dataset.last_day),
        dataset=dataset,
        batch_size=batch_size,
        num_workers=training.num_workers,
        known=known,
        sync=training.fixed_sync,
        grows=training.batch_growth == "goodput",
        # Gradients are noisier towards the end of training than where a profile looks, at its beginning.
        efficiency=Efficiency(noise_scale=(nights[-1] if nights else profile).noise_scale, nights=nights),
    )

    left_usd = planning.explore_usd - explored_usd

    def candidates_for(count: int, among: Collection[Way] | None = None, job: Job = job) -> list[Candidate]:
        return list(
            candidates(
                job,
                machines,
                planning,
                available=obtainable,
                num_samples=count,
                among=among,
                # Numbers of machines that seem dominated are what exploring finds out about.
                dominated=left_usd > 0,
            )
        )

    offered = candidates_for(tonight.num_samples)
    runnable = [candidate for candidate in offered if not candidate.hindrance]
    if not runnable:
        usable = [machine for machine in machines if not hindrance(machine, obtainable)]
        raise PlanError(nothing_runs(job, usable, planning.batch_sizes or (batch_size,)))
    if all(candidate.rental.is_queued for candidate in runnable):
        raise PlanError(nothing_at_once(runnable))
    there, limits, choice = _split(windows(night, whole), offered, night, planning)
    further = [
        each
        for candidates_of in hooks.functions("candidates")
        for each in candidates_of(
            job,
            machines,
            params,
            available=obtainable,
            num_samples=tonight.num_samples,
            limits=limits,
            than=choice,
        )
    ]
    if further:
        offered += further
        choice = search(offered, limits=limits, objective=planning.ranking)
    if choice is None:
        epochs = epochs_that_help(candidates_for, tonight, limits) if shorten else None
        if epochs is not None and params.profile.quality_remedies == "allow":
            log.warning("%g epochs instead of %g, as profile.quality_remedies allows", epochs, tonight.epochs)
            offered = candidates_for(of_epochs(epochs, tonight))
            choice = search(offered, limits=limits, objective=planning.ranking)
        if choice is None:
            raise PlanError(infeasible(night, tonight, there, relax(offered, limits=limits), epochs))
    choice, explore_usd = _explored(choice, offered, limits, planning, job=job, left_usd=left_usd)
    rest = offered
    if (
        job.sync is None and choice.best.estimate.sync.every > 1
    ):  # a checkpoint only fits jobs that agree alike
        times = choice.best.num_samples / job.samples(tonight.num_samples, choice.best.estimate.batch_size)
        again = candidates_for(
            round(times * tonight.num_samples), job=replace(job, sync=choice.best.estimate.sync)
        )
        rest = [each for each in again if way_of(each) != way_of(choice.best)]
    rungs = fallback.rungs(fallback.ladder(choice, rest, limits), job, night, limits, there)
    slower = fallback.cheaper(choice.best, rest, limits) if planning.ranking == "cost" else []
    made = _plan(choice, limits, rungs, tuning, checkpoint_every_s=training.checkpoint_every_s)
    portioned = replace(made, portions=portions(choice.best))
    spot = fallback.on_spot(
        portioned, choice.best, profile, known, until_s=there.until_s, budget_usd=night.budget_usd
    )
    return replace(
        spot,
        options=options(offered, choice=choice, limits=limits, objective=planning.ranking),
        after=tuple(
            Portion(name=part.name, expected_s=part.seconds, expected_usd=0.0) for part in there.after
        ),
        basis=basis(choice.best, job=job, offered=offered),
        sync=choice.best.estimate.sync,
        sizes=sizes(job, choice.best),
        explore_usd=explore_usd,
        cheaper=fallback.rungs(slower, job, night, limits, there),
    )


def _split(
    splits: Iterable[Window], offered: Sequence[Candidate], night: Night, params: "PlanParams"
) -> tuple[Window, Limits, Choice | None]:
    """Returns the first of these windows, beside the most of the live test, that a way is in time for.

    Where there is none it returns the last one, with no choice.
    """
    for there in splits:
        limits = Limits(
            deadline_s=there.deadline_s,
            budget_usd=night.budget_usd,
            confidence=params.confidence,
            usd_per_hour_saved=params.usd_per_hour_saved,
        )
        choice = search(offered, limits=limits, objective=params.ranking)
        if choice:
            break
    return there, limits, choice


def _explored(
    choice: Choice,
    offered: Sequence[Candidate],
    limits: Limits,
    params: "PlanParams",
    *,
    job: Job,
    left_usd: float,
) -> tuple[Choice, float]:
    """Returns the choice with the way for tonight as its best, and the extra dollars of exploring."""
    more_usd = 0.0
    for explored in hooks.functions("choice") if left_usd > 0 else ():
        choice, more_usd = explored(choice, offered, limits, params, job=job, left_usd=left_usd)
    return choice, more_usd


def _plan(
    choice: Choice,
    limits: Limits,
    rungs: tuple[Rung, ...],
    tuning: Tuning,
    *,
    checkpoint_every_s: float | None,
) -> Plan:
    best, estimate = choice.best, choice.best.estimate
    source, dated = best.machine.price_source(best.rental.strategy)
    if not best.rental.is_local:  # on other machines the useful number of loaders is predicted, not measured
        tuning = replace(tuning, num_loaders=estimate.num_loaders)
    return Plan(
        rental=best.rental,
        batch_size=estimate.batch_size,
        micro_batch_size=estimate.micro_batch_size,
        num_samples=best.num_samples,
        checkpoint_every_s=checkpoint_every_s or estimate.checkpoint_every_s,
        expected_s=best.expected_s,
        expected_usd=best.expected_usd,
        interval=best.interval,
        ladder=rungs,
        runner_up=choice.runner_up,
        tuning=tuning,
        chance=best.chance(limits.deadline_s),
        usd_per_hour=estimate.usd_per_hour,
        price_source=source,
        price_dated=dated,
        widened=estimate.widened,
        gpus=best.machine.gpus,
    )


def _course(night: Night, dataset: Dataset, champion: Champion | None, params: "PlanSections") -> Course:
    """Returns how far tonight trains.

    Raises PlanError if the deadline has passed, and DataError if there is no sample to train on.
    """
    if night.train_until <= night.started_at:
        raise PlanError(
            f"the deadline {night.train_until:%Y-%m-%d %H:%M} UTC had passed when the night began at "
            f"{night.started_at:%H:%M}; raise night.train_hours and open the night again"
        )
    tonight = course(night, dataset, champion, params)
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

"""Which machine is the cheapest that is done in time, and why not the next best?

Candidates are all machines, regions, counts, batch sizes and strategies (on-demand, spot, flex-start) that
params.yaml allows and whose memory suffices (`costs.estimate`); `search.search` picks one that is done by
`night.train_until` with a chance of at least `plan.confidence` for at most `night.budget_usd`. Time counts
from `night.started_at`, less a share for the stages before training, so that the same records give the same
plan whenever it is made.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from math import ceil, floor
from typing import TYPE_CHECKING

from pipeline.errors import DataError, PlanError
from pipeline.planning import catalog
from pipeline.planning.candidates import Job, Way, allowed, candidates, way_of
from pipeline.planning.catalog import LOCAL, Machine
from pipeline.planning.costs import HEADROOM
from pipeline.planning.growth import sizes
from pipeline.planning.history import Known
from pipeline.planning.options import basis, options, portions
from pipeline.planning.search import Candidate, Choice, Limits, Relaxation, by_cost, feasible, relax, search
from pipeline.profiling import remedies
from pipeline.records import Champion, Dataset, Night, Plan, Profile, Rung, Tuning
from pipeline.training.recipe import Course, course

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from pipeline.params import Params, PlanParams

log = logging.getLogger(__name__)

BEFORE_TRAINING = 0.05  # share of the time from the start to train_until that other stages take
NUM_RUNGS = 5
MUCH_LATER = 0.9  # of the time of the rung before; less is no other plan, only a dearer one


def plan(
    night: Night,
    dataset: Dataset,
    profile: Profile,
    champion: Champion | None,
    params: "Params",
    *,
    rented: Sequence[Machine] | None = None,
    known: Known | None = None,
    explored_usd: float = 0.0,
) -> Plan:
    """The plan of the night on what can be rented, by what is known of earlier nights.

    `explored_usd` is what the last nights spent of `plan.explore_usd`. Raises PlanError with the least that
    helps if nothing is feasible.
    """
    told, training = params.plan, params.train
    at_hand = catalog.local(profile, today=night.day)
    machines = allowed((at_hand, *(catalog.rented() if rented is None else rented)), params)
    tonight = _course(night, dataset, champion, params)
    profile, tuning = remedies.taken(profile, epochs=tonight.epochs, num_samples=tonight.num_samples)
    batch_size = training.batch_size
    if any(remedy.name == remedies.SMALLER_BATCH and remedy.kept for remedy in profile.remedies):
        batch_size = max(1, batch_size // 2)
    window_s = (night.train_until - night.started_at).total_seconds()
    limits = Limits(
        deadline_s=window_s * (1 - BEFORE_TRAINING),
        budget_usd=night.budget_usd,
        confidence=told.confidence,
    )
    job = Job(
        profile=profile,
        at_hand=replace(at_hand, dated=dataset.last_day),
        dataset=dataset,
        batch_size=batch_size,
        num_workers=training.num_workers,
        known=known,
    )

    def candidates_for(count: int, among: Collection[Way] | None = None) -> list[Candidate]:
        found = candidates(job, machines, told, backend=params.backend.use, num_samples=count, among=among)
        return list(found)

    offered = candidates_for(tonight.num_samples)
    if not offered:
        raise PlanError(_too_little_memory(profile, machines))
    choice = search(offered, limits=limits, objective=told.objective)
    if choice is None:
        epochs = _epochs_that_help(candidates_for, tonight, limits)
        if epochs is not None and params.profile.quality_remedies == "allow":
            log.warning("%g epochs instead of %g, as profile.quality_remedies allows", epochs, tonight.epochs)
            offered = candidates_for(_of_epochs(epochs, tonight))
            choice = search(offered, limits=limits, objective=told.objective)
        if choice is None:
            raise PlanError(_infeasible(night, tonight, relax(offered, limits=limits), epochs))
    choice, explore_usd = _tried(choice, told, left_usd=told.explore_usd - explored_usd)
    made = _plan(night, choice, limits, tuning, checkpoint_every_s=training.checkpoint_every_s)
    return replace(
        made,
        options=options(offered, choice=choice, limits=limits, objective=told.objective),
        portions=portions(choice.best),
        basis=basis(choice.best, job=job),
        sizes=sizes(job, choice.best) if training.batch_growth == "goodput" else (),
        explore_usd=explore_usd,
    )


def _tried(choice: Choice, params: "PlanParams", *, left_usd: float) -> tuple[Choice, float]:
    """The choice with what is worth trying tonight as its best, and what that costs beyond the best known."""
    if params.objective == "knee" or left_usd <= 0:
        return choice, 0.0
    from pipeline.planning.exploration import worth_trying

    found = worth_trying(choice.ranked, objective=params.objective, explore_usd=left_usd)
    if found is None:
        return choice, 0.0
    taken, price_usd, why = found
    rest = (each for each in choice.ranked if each is not taken)
    told = f"{choice.best.name} is the best that is known, but this {why}"
    return replace(choice, best=taken, ranked=(taken, *rest), runner_up=told), price_usd


def _plan(
    night: Night, choice: Choice, limits: Limits, tuning: Tuning, *, checkpoint_every_s: float | None
) -> Plan:
    best, found = choice.best, choice.best.estimate
    source, dated = best.machine.told(best.strategy)
    if best.machine.name != LOCAL:  # how many loaders help is not known of other machines, so it is predicted
        tuning = replace(tuning, num_loaders=found.num_loaders)
    return Plan(
        machine=best.machine.name,
        num_machines=found.num_machines,
        spot=found.spot,
        batch_size=found.batch_size,
        micro_batch_size=found.micro_batch_size,
        num_samples=best.num_samples,
        checkpoint_every_s=checkpoint_every_s or found.checkpoint_every_s,
        expected_s=best.expected_s,
        expected_usd=best.expected_usd,
        interval=best.interval,
        ladder=_ladder(night, choice, limits),
        runner_up=choice.runner_up,
        tuning=tuning,
        region=best.machine.region,
        wait_s=best.wait_s,
        chance=best.chance(limits.deadline_s),
        usd_per_hour=best.machine.price(spot=found.spot),
        price_source=source,
        price_dated=dated,
        widened=found.widened,
    )


def _ladder(night: Night, choice: Choice, limits: Limits) -> tuple[Rung, ...]:
    """What to fall back on, cheapest first: on-demand after the others, then what can start much later.

    The plan's own machines on demand come first: that is what the launcher goes on with where spot fails.
    """
    best = choice.best
    machine, region, strategy, batch_size, num_machines = way_of(best)
    bought = (machine, region, "on-demand", batch_size, num_machines)
    rungs = [c for c in choice.ranked if strategy != "on-demand" and way_of(c) == bought]
    least_s = min(each.time_s(limits.confidence) for each in (best, *rungs))
    safe = strategy == "on-demand" or bool(rungs)
    for candidate in sorted(choice.ranked, key=by_cost):
        time_s = candidate.time_s(limits.confidence)
        safer = not safe and candidate.strategy == "on-demand"
        if time_s >= least_s * (1 if safer else MUCH_LATER):
            continue
        least_s, safe = time_s, safe or candidate.strategy == "on-demand"
        rungs.append(candidate)
    if len(rungs) > NUM_RUNGS:  # the last one can wait longest, so it stays
        rungs = [*rungs[: NUM_RUNGS - 1], rungs[-1]]
    return tuple(_rung(each, night, limits) for each in rungs)


def _rung(candidate: Candidate, night: Night, limits: Limits) -> Rung:
    return Rung(
        machine=candidate.machine.name,
        num_machines=candidate.estimate.num_machines,
        spot=candidate.estimate.spot,
        expected_s=candidate.expected_s,
        expected_usd=candidate.expected_usd,
        latest_start=night.train_until - timedelta(seconds=ceil(candidate.time_s(limits.confidence))),
        region=candidate.machine.region,
        wait_s=candidate.wait_s,
        usd_per_hour=candidate.machine.price(spot=candidate.estimate.spot),
    )


def _course(night: Night, dataset: Dataset, champion: Champion | None, params: "Params") -> Course:
    """How far tonight's training goes; PlanError or DataError where it cannot go anywhere."""
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
    return tonight


def _too_little_memory(profile: Profile, machines: Sequence[Machine]) -> str:
    largest = max(machines, key=lambda machine: machine.device_memory_bytes)
    there = largest.device_memory_bytes * (1 - HEADROOM)
    return (
        f"one sample needs {profile.memory_bytes(1) / 1e9:.2f} GB on a device and the most that "
        f"plan.machines has is {there / 1e9:.2f} GB ({largest.name}, less {HEADROOM:.0%}); "
        f"name a machine with more memory in plan.machines, or train a smaller model"
    )


def _epochs_that_help(
    candidates_for: Callable[[int, Collection[Way] | None], list[Candidate]], tonight: Course, limits: Limits
) -> float | None:
    """Most epochs, to 0.01, with which some candidate is feasible; None if one update is too many.

    More samples take longer and cost more, so only what was feasible with fewer is tried with more.
    """

    def ways(hundredths: int, among: Collection[Way] | None) -> set[Way]:
        found = candidates_for(_of_epochs(hundredths / 100, tonight), among)
        return {way_of(candidate) for candidate in feasible(found, limits)}

    low, high = 0, floor(tonight.epochs * 100)
    among: set[Way] | None = None
    while high - low > 1:
        middle = (low + high) // 2 if low else 1
        held = ways(middle, among)
        if not held and middle == 1:
            return None
        low, high, among = (middle, high, held) if held else (low, middle, among)
    return low / 100 if low else None


def _of_epochs(epochs: float, tonight: Course) -> int:
    """Samples of so many epochs of tonight's course."""
    return max(1, round(epochs * tonight.num_samples / tonight.epochs))


def _infeasible(night: Night, tonight: Course, relaxation: Relaxation, epochs: float | None) -> str:
    ways = []
    if relaxation.budget_usd is not None:
        ways.append(f"night.budget_usd {_usd(relaxation.budget_usd):.2f}")
    if relaxation.deadline_s is not None:
        ways.append(f"night.train_hours {_hours(relaxation.deadline_s):g}")
    if epochs is not None:
        fewer = _of_epochs(epochs, tonight)
        ways.append(f"train.{'warm_' if tonight.warm else ''}epochs {epochs:g} ({fewer:,} samples)")
    if not ways:
        deadline_s, budget_usd = relaxation.both
        ways = [f"night.train_hours {_hours(deadline_s):g} with night.budget_usd {_usd(budget_usd):.2f}"]
    return (
        f"no machine of plan.machines trains on {tonight.num_samples:,} samples by "
        f"{night.train_until:%H:%M} UTC for ${night.budget_usd:.2f}; "
        f"the least that helps: {', or '.join(ways)}"
    )


def _usd(dollars: float) -> float:
    return ceil(dollars * 100) / 100


def _hours(deadline_s: float) -> float:
    """Hours from the start to train_until that leave so many seconds to training, rounded up."""
    hours = deadline_s / (1 - BEFORE_TRAINING) / 3600
    return ceil(hours * 10) / 10 if hours >= 1 else ceil(hours * 1000) / 1000

"""Which machine is the cheapest that is done in time, and why not the next best?

Candidates are all machines, counts and spot or on-demand that params.yaml allows and whose memory suffices
(`costs.estimate`); `search.search` picks one that is done by `night.train_until` with a chance of at least
`plan.confidence` for at most `night.budget_usd`. Time counts from `night.started_at`, less a share for the
stages before training, so that the same records give the same plan whenever it is made.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from math import ceil, floor

from pipeline.errors import DataError, PlanError
from pipeline.params import Params, PlanParams, TrainParams
from pipeline.planning import catalog, past, remedies
from pipeline.planning.catalog import LOCAL, Machine
from pipeline.planning.costs import HEADROOM, Estimate, estimate
from pipeline.planning.history import Known
from pipeline.planning.search import Choice, Limits, Relaxation, by_cost, name, relax, search
from pipeline.records import Champion, Dataset, Night, Plan, Profile, Rung, Tuning
from pipeline.training.recipe import Course, course

log = logging.getLogger(__name__)

BEFORE_TRAINING = 0.05  # share of the time from the start to train_until that other stages take
NUM_RUNGS = 5
MUCH_LATER = 0.9  # of the time of the rung before; less is no other plan, only a dearer one


def plan(night: Night, dataset: Dataset, profile: Profile, champion: Champion | None, params: Params) -> Plan:
    """The plan of the night; PlanError with the least that helps if nothing is feasible."""
    told, training = params.plan, params.train
    machines = _machines(night, profile, told)
    window_s = (night.train_until - night.started_at).total_seconds()
    if window_s <= 0:
        raise PlanError(
            f"the deadline {night.train_until:%Y-%m-%d %H:%M} UTC had passed when the night began at "
            f"{night.started_at:%H:%M}; raise night.train_hours and open the night again"
        )
    tonight = course(night, dataset, champion, params)
    num_samples = tonight.num_samples
    if num_samples < 1:
        raise DataError(
            f"{tonight.epochs:g} epochs over {dataset.num_samples} samples are none to train on; "
            f"look at prepare.window_days and train.epochs"
        )
    profile, tuning = remedies.taken(profile, epochs=tonight.epochs, num_samples=num_samples)
    if any(remedy.name == remedies.SMALLER_BATCH and remedy.kept for remedy in profile.remedies):
        training = training.model_copy(update={"batch_size": max(1, training.batch_size // 2)})
    limits = Limits(
        deadline_s=window_s * (1 - BEFORE_TRAINING),
        budget_usd=night.budget_usd,
        confidence=told.confidence,
    )

    entries = past.before(night)
    known = past.known(entries, num_workers=training.num_workers)

    def candidates_for(count: int) -> list[Estimate]:
        return list(candidates(profile, machines, dataset, told, training, num_samples=count, known=known))

    offered = candidates_for(num_samples)
    if not offered:
        raise PlanError(_too_little_memory(profile, machines))
    choice = search(offered, limits=limits, objective=told.objective)
    if choice is None:
        epochs = _epochs_that_help(candidates_for, tonight, limits)
        if epochs is not None and params.profile.quality_remedies == "allow":
            log.warning("%g epochs instead of %g, as profile.quality_remedies allows", epochs, tonight.epochs)
            num_samples = _of_epochs(epochs, tonight)
            choice = search(candidates_for(num_samples), limits=limits, objective=told.objective)
        if choice is None:
            raise PlanError(_infeasible(night, tonight, relax(offered, limits=limits), epochs))
    choice, explore_usd = _tried(choice, told, left_usd=told.explore_usd - past.explored_usd(entries))
    made = _plan(night, choice, limits, tuning, training, num_samples=num_samples)
    return replace(made, explore_usd=explore_usd)


def _tried(choice: Choice, params: PlanParams, *, left_usd: float) -> tuple[Choice, float]:
    """The choice with what is worth trying tonight as its best, and what that costs beyond the best known."""
    if params.objective == "knee" or left_usd <= 0:
        return choice, 0.0
    from pipeline.planning.exploration import worth_trying

    found = worth_trying(choice.ranked, objective=params.objective, explore_usd=left_usd)
    if found is None:
        return choice, 0.0
    taken, price_usd, why = found
    rest = (each for each in choice.ranked if each is not taken)
    told = f"{name(choice.best)} is the best that is known, but this {why}"
    return replace(choice, best=taken, ranked=(taken, *rest), runner_up=told), price_usd


def candidates(
    profile: Profile,
    machines: Sequence[Machine],
    dataset: Dataset,
    params: PlanParams,
    training: TrainParams,
    *,
    num_samples: int,
    known: Known | None = None,
) -> Iterator[Estimate]:
    """Every way to train on `num_samples` that has a price and fits the memory."""
    measured = catalog.local(profile, today=dataset.last_day)
    for machine in machines:
        for spot in (False, True) if params.spot else (False,):
            if machine.price(spot=spot) is None:
                continue
            alone = machine.name == LOCAL or (spot and machine.is_tpu)
            for num_machines in range(1, 1 + (1 if alone else params.max_machines)):
                local = machine.name == LOCAL
                num_workers = training.num_workers if local else machine.num_workers
                if num_workers * num_machines > training.batch_size:
                    break
                found = estimate(
                    profile,
                    measured if local else machine,
                    measured=measured,
                    num_machines=num_machines,
                    spot=spot,
                    batch_size=training.batch_size,
                    num_workers=num_workers,
                    num_samples=num_samples,
                    num_bytes=dataset.num_bytes,
                    known=known,
                )
                if found is not None:
                    yield found


def _plan(
    night: Night,
    choice: Choice,
    limits: Limits,
    tuning: Tuning,
    training: TrainParams,
    *,
    num_samples: int,
) -> Plan:
    best = choice.best
    if best.machine.name != LOCAL:  # how many loaders help is not known of other machines, so it is predicted
        tuning = replace(tuning, num_loaders=best.num_loaders)
    return Plan(
        machine=best.machine.name,
        num_machines=best.num_machines,
        spot=best.spot,
        batch_size=best.batch_size,
        micro_batch_size=best.micro_batch_size,
        num_samples=num_samples,
        checkpoint_every_s=training.checkpoint_every_s or best.checkpoint_every_s,
        expected_s=best.expected_s,
        expected_usd=best.expected_usd,
        interval=best.interval,
        ladder=_ladder(night, choice, limits),
        runner_up=choice.runner_up,
        tuning=tuning,
        widened=best.widened,
    )


def _ladder(night: Night, choice: Choice, limits: Limits) -> tuple[Rung, ...]:
    """What to fall back on, cheapest first: on-demand after spot, then what can start much later."""
    rungs: list[Rung] = []
    least_s, spot = choice.best.time_s(limits.confidence), choice.best.spot
    for candidate in sorted(choice.ranked, key=by_cost):
        time_s = candidate.time_s(limits.confidence)
        safer = spot and not candidate.spot
        if candidate is choice.best or time_s >= least_s * (1 if safer else MUCH_LATER):
            continue
        least_s, spot = time_s, spot and candidate.spot
        rungs.append(
            Rung(
                machine=candidate.machine.name,
                num_machines=candidate.num_machines,
                spot=candidate.spot,
                expected_s=candidate.expected_s,
                expected_usd=candidate.expected_usd,
                latest_start=night.train_until - timedelta(seconds=ceil(time_s)),
            )
        )
    # The last rung is the one that can wait longest, so it stays.
    return tuple(rungs if len(rungs) <= NUM_RUNGS else [*rungs[: NUM_RUNGS - 1], rungs[-1]])


def _machines(night: Night, profile: Profile, params: PlanParams) -> tuple[Machine, ...]:
    local = catalog.local(profile, today=night.day)
    machines = catalog.choose(params.machines, region=params.region, machines=(local, *catalog.rented()))
    priced = tuple(m for m in machines if any(m.price(spot=s) is not None for s in (False, params.spot)))
    if not priced:
        raise PlanError(
            f"plan.machines names {', '.join(m.name for m in machines)}, for which there is no "
            f"{'' if params.spot else 'on-demand '}price in {params.region}; name another machine"
            f"{'' if params.spot else ', or allow plan.spot'}"
        )
    return priced


def _too_little_memory(profile: Profile, machines: Sequence[Machine]) -> str:
    largest = max(machines, key=lambda machine: machine.device_memory_bytes)
    there = largest.device_memory_bytes * (1 - HEADROOM)
    return (
        f"one sample needs {profile.memory_bytes(1) / 1e9:.2f} GB on a device and the most that "
        f"plan.machines has is {there / 1e9:.2f} GB ({largest.name}, less {HEADROOM:.0%}); "
        f"name a machine with more memory in plan.machines, or train a smaller model"
    )


def _epochs_that_help(
    candidates_for: Callable[[int], list[Estimate]], tonight: Course, limits: Limits
) -> float | None:
    """Most epochs, to 0.01, with which some candidate is feasible; None if one update is too many."""

    def feasible(hundredths: int) -> bool:
        offered = candidates_for(_of_epochs(hundredths / 100, tonight))
        return any(limits.in_budget(c) and limits.in_time(c) for c in offered)

    low, high = 0, floor(tonight.epochs * 100)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if feasible(middle) else (low, middle)
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
        ways.append(f"train.{'warm_' if tonight.warm else ''}epochs {epochs:g}")
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

"""Random catalogs and jobs, and the plain exhaustive search that ours is held against."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from daybreak.contract.errors import PlanError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import LOCAL, Rental
from daybreak.contract.record_types import BEFORE_TRAINING, Night, Plan
from daybreak.contract.sections import Params, PlanParams, TrainParams
from daybreak.machines import catalog
from daybreak.machines.catalog import rented
from daybreak.planning import planner
from daybreak.planning.candidates import TrainingTask, candidates
from daybreak.planning.search import Candidate, PlanLimits, relax
from daybreak.prediction.costs import Estimate, least_extra_s, predict
from daybreak.prediction.efficiency import Efficiency
from tests.planning.jobs import DATASET, night, profile, with_speeds

PLUGS = dict.fromkeys(("source", "workload", "backend"), "some.module:Class")
CONFIDENCE = 0.99


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to run the job by the exhaustive search: all that is compared."""

    rental: Rental
    batch_size: int
    usd: float
    seconds: float
    late_s: float  # in which it is done with the confidence asked for
    estimate: Estimate


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Whether both found the same for one random catalog."""

    objective: str
    feasible: bool
    equal: bool
    relaxed: bool | None  # None where nothing had to be relaxed


def random_job(seed: int) -> dict[str, Any]:
    """Arguments of a plan: some machines with random prices and speeds, a random night and job."""
    chance = random.Random(seed)
    machines = []
    for number in range(chance.randint(2, 9)):
        listed = chance.choice(rented())
        usd = chance.choice([None, 10 ** chance.uniform(-1, 2)])
        spot = chance.choice([None, 10 ** chance.uniform(-1.3, 1.5)])
        if usd is None and spot is None:
            usd = 1.0
        machines.append(
            with_speeds(
                listed,
                name=f"m{number}-{chance.randint(0, 3)}",
                region=chance.choice(["us-central1", "us-east4"]),
                flops_per_s=listed.speeds.flops_per_s * 10 ** chance.uniform(-1, 1),
                usd_per_hour=usd,
                spot_usd_per_hour=spot,
                flex=chance.random() < 0.5,
                flex_usd_per_hour=chance.choice([None, 10 ** chance.uniform(-1, 1.5)]),
            )
        )
    regions = tuple(sorted({machine.region for machine in machines}))
    plan = PlanParams(
        objective=chance.choice(["cost", "time", "knee"]),
        confidence=CONFIDENCE,
        machines=("*",),
        regions=regions,
        spot=chance.random() < 0.8,
        flex_wait_hours=chance.choice([0, 0.5, 3]),
        max_machines=chance.choice([1, 2, 3, 4, 6, 16]),
        batch_sizes=chance.choice([(), (64, 256), (128, 512, 1024)]),
    )
    return {
        "night": night(hours=10 ** chance.uniform(-0.8, 1.4), budget_usd=10 ** chance.uniform(-2, 2.5)),
        "dataset": replace(DATASET, num_samples=chance.randint(10_000, 3_000_000)),
        "profile": profile(step_s=10 ** chance.uniform(-4, -1), sample_bytes=10 ** chance.uniform(4, 8)),
        "champion": None,
        "params": Params(**PLUGS, plan=plan, train=TrainParams(epochs=1, batch_size=256)),
        "available": [catalog.AT_HAND, *machines],
    }


def exhaustive(job: dict[str, Any], *, epochs: float = 1.0) -> list[Way]:
    """Every way there is, by nothing but loops."""
    data = job["dataset"]
    job = job | {"dataset": replace(data, num_samples=max(1, round(epochs * data.num_samples)))}
    limits, data, train = job["params"].plan, job["dataset"], job["params"].train
    here = replace(catalog.local(job["profile"], today=date(2011, 9, 1)), dated=data.last_day)
    ways = []
    for machine in [here, *job["available"][1:]]:
        for strategy in ("on-demand", "spot", "flex-start"):
            for batch_size in limits.batch_sizes or [train.batch_size]:
                for number in range(1, limits.max_machines + 1):
                    way = _way(job, here, machine, strategy, batch_size, number)
                    if way is not None:
                        ways.append(way)
    return ways


def _way(
    job: dict[str, Any], here: Machine, machine: Machine, strategy: str, batch_size: int, number: int
) -> Way | None:
    limits, train, measured = job["params"].plan, job["params"].train, job["profile"]
    is_here = machine.name == LOCAL
    if strategy == "spot" and not (limits.spot and machine.spot):
        return None
    if strategy == "flex-start" and not (limits.flex_wait_hours and machine.flex):
        return None
    usd_per_hour = {
        "on-demand": machine.usd_per_hour,
        "spot": machine.spot_usd_per_hour,
        "flex-start": machine.flex_usd_per_hour,
    }[strategy]
    workers = train.num_workers if is_here else max(1, machine.num_devices)
    alone = is_here or machine.device.startswith("TPU")
    if usd_per_hour is None or (number > 1 and alone) or workers * number > batch_size:
        return None
    samples = job["dataset"].num_samples
    if batch_size != train.batch_size:
        samples = round(
            samples * (measured.noise_scale + batch_size) / (measured.noise_scale + train.batch_size)
        )
    rental = Rental(
        machine=machine.name,
        num_machines=number,
        region=machine.region,
        strategy=strategy,
        max_wait_s=limits.flex_wait_hours * 3600 if strategy == "flex-start" else 0.0,
    )
    done = predict(
        measured,
        machine,
        measured=here,
        rental=rental,
        batch_size=batch_size,
        num_workers=workers,
        num_samples=samples,
        num_bytes=job["dataset"].num_bytes,
    )
    if done is None:
        return None
    return Way(
        rental=rental,
        batch_size=batch_size,
        usd=sum(p.seconds for p in done.parts if p.name != "queue") / 3600 * number * usd_per_hour,
        seconds=rental.max_wait_s + done.expected_s,
        late_s=rental.max_wait_s + done.time_s(limits.confidence),
        estimate=done,
    )


def possible(ways: list[Way], deadline_s: float, budget_usd: float) -> list[Way]:
    """Those in time and in budget; what waits only if another could begin after the wait."""
    kept = [way for way in ways if way.late_s <= deadline_s and way.usd <= budget_usd]
    at_once = [way for way in kept if not way.rental.is_queued]
    return [
        way
        for way in kept
        if not way.rental.is_queued
        or any(way.rental.max_wait_s + other.late_s <= deadline_s for other in at_once)
    ]


def best(ways: list[Way], objective: str) -> tuple[float, float] | None:
    """Dollars and seconds of the best: of each two, the one that the definition prefers."""
    if not ways:
        return None
    if objective == "cost":
        return min((way.usd, way.seconds) for way in ways)
    if objective == "time":
        # Of what is surely slower than nothing else, the cheapest.
        return min((way.usd, way.seconds) for way in ways if not any(_is_slower(way, o) for o in ways))
    # The knee: of what nothing beats in both, the least dollars times seconds, a cent at least.
    curve = sorted(
        {
            (way.usd, way.seconds)
            for way in ways
            if not any(
                (o.usd <= way.usd and o.seconds < way.seconds)
                or (o.usd < way.usd and o.seconds <= way.seconds)
                for o in ways
            )
        }
    )
    return min(curve, key=lambda point: max(point[0], 0.01) * point[1])


def _is_slower(way: Way, other: Way) -> bool:
    """Whether the error of both forecasts leaves no doubt that it takes longer, the waits in full."""
    waits_s = way.rental.max_wait_s - other.rental.max_wait_s
    return waits_s + least_extra_s(way.estimate, other.estimate) > 0


def deadline_of(night: Night) -> float:
    """Seconds that are left to training."""
    return (night.train_until - night.started_at).total_seconds() * (1 - BEFORE_TRAINING)


def agreement(seed: int) -> Agreement:
    """Plan one random job both ways."""
    job = random_job(seed)
    night: Night = job["night"]
    deadline_s = deadline_of(night)
    ways = exhaustive(job)
    expected = best(possible(ways, deadline_s, night.budget_usd), job["params"].plan.objective)
    made: Plan | None
    said = ""
    try:
        made = planner.plan(**job)
    except PlanError as error:
        made, said = None, str(error)
    relaxed = None
    if expected is None and ways:
        relaxed = _least(ways, deadline_s, night.budget_usd) == _ours(job, deadline_s)
        relaxed = relaxed and _fewest(job, said, deadline_s)
    if expected is None or made is None:
        equal = expected is None and made is None
    else:
        equal = _near(made.forecast.expected_usd, expected[0]) and _near(
            made.forecast.expected_s, expected[1]
        )
    return Agreement(
        objective=job["params"].plan.objective, feasible=expected is not None, equal=equal, relaxed=relaxed
    )


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def _least(ways: list[Way], deadline_s: float, budget_usd: float) -> tuple[float | None, float | None]:
    """The smallest deadline and the smallest budget that help alone, by trying those of every way."""
    deadlines = sorted(d for way in ways for d in (way.late_s,) if possible(ways, d, budget_usd))
    budgets = sorted(way.usd for way in ways if possible(ways, deadline_s, way.usd))
    return (deadlines[0] if deadlines else None, budgets[0] if budgets else None)


def _fewest(job: dict[str, Any], said: str, deadline_s: float) -> bool:
    """Are the epochs that the refusal says enough, and 0.01 more too many?"""
    budget_usd = job["night"].budget_usd
    match = re.search(r"train\.epochs ([\d.]+)", said)
    epochs = float(match[1]) if match else 0.0
    enough = not match or possible(exhaustive(job, epochs=epochs), deadline_s, budget_usd)
    return bool(enough) and not possible(exhaustive(job, epochs=epochs + 0.01), deadline_s, budget_usd)


def _ours(job: dict[str, Any], deadline_s: float) -> tuple[float | None, float | None]:
    limits = PlanLimits(deadline_s=deadline_s, budget_usd=job["night"].budget_usd, confidence=CONFIDENCE)
    least = relax(list(candidates_of(job)), limits=limits)
    return least.deadline_s, least.budget_usd


def candidates_of(job: dict[str, Any], *, dominated: bool = False) -> Iterator[Candidate]:
    """What the planner weighs, or all that there is."""
    here = replace(catalog.local(job["profile"], today=date(2011, 9, 1)), dated=job["dataset"].last_day)
    sections: Params = job["params"]
    whole = TrainingTask(
        profile=job["profile"],
        at_hand=here,
        dataset=job["dataset"],
        batch_size=sections.train.batch_size,
        num_workers=sections.train.num_workers,
        efficiency=Efficiency(noise_scale=job["profile"].noise_scale),
    )
    machines = [here, *(m for m in job["available"] if m.region in sections.plan.regions)]
    return candidates(
        whole,
        machines,
        sections.plan,
        available=frozenset(machines),
        num_samples=job["dataset"].num_samples,
        dominated=dominated,
    )


def large() -> dict[str, Any]:
    """A job of more than 140,000 ways: the whole catalog, up to 164 machines of each, two batch sizes."""
    regions = tuple(sorted({machine.region for machine in rented()}))
    plan = PlanParams(
        machines=("*",), regions=regions, max_machines=164, batch_sizes=(4096, 8192), flex_wait_hours=1
    )
    return {
        "night": night(hours=6, budget_usd=200),
        "dataset": replace(DATASET, num_samples=5_000_000),
        "profile": profile(step_s=1e-2),
        "champion": None,
        "params": Params(**PLUGS, plan=plan, train=TrainParams(epochs=1, batch_size=4096)),
        "available": (catalog.AT_HAND, *rented()),
    }

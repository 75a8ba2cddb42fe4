"""Fifty evenings of three to eight models on shared machines: divided, one after the other, all at once.

The machines are one to four each of two to four kinds. Each model has a drawn job (300,000 to 100 million
samples, gradients of 10 MB to 2 GB), a deadline and a value; its ways are what the real planner makes of the
shared machines, one kind and number at a time. What a job really takes is drawn from its plan's interval, the
same factor in all its ways. They differ in who gets what when:

- divided: `sharing.divide`, anew whenever a job ends, early or late;
- one after the other: by deadline, each in its fastest way, with all machines to choose from;
- all at once: each plans as if it were alone, for `plan.objective: cost`, the default; jobs that want the
  same machines share their time, without any loss by it, and all in memory at once, whether or not they fit.
  The same for `plan.objective: time` is shown beside, without a target.

    make bench NAME=fleet
"""

import random
from dataclasses import dataclass, replace
from statistics import mean, median

from benchmarks.catalogs import CONFIDENCE, PLUGS
from benchmarks.frame import QUICK, Target, finish
from daybreak.contract.sections import Params, PlanParams, TrainParams
from daybreak.extensions.fleets import evening
from daybreak.extensions.fleets.sharing import EveningDemand, Share, Way, divide
from daybreak.machines.catalog import rented
from daybreak.planning import planner
from tests.planning.jobs import DATASET, line, night, profile

NUM_EVENINGS = 8 if QUICK else 50
REGION = "us-central1"
KINDS = (
    "n2-standard-8",
    "g2-standard-4",
    "g2-standard-8",
    "g2-standard-24",
    "a2-highgpu-1g",
    "n1-standard-8-t4",
)


@dataclass(frozen=True, kw_only=True)
class Evening:
    """A drawn evening: the machines, the models' demands, each model's true time by the expected one."""

    machines: dict[str, int]
    demands: list[EveningDemand]
    factors: dict[str, float]


def drawn(seed: int) -> Evening:
    """An evening; its ways are made by the planner."""
    chance = random.Random(seed)
    known = [machine for machine in rented() if machine.region == REGION]
    names = [name for name in KINDS if any(machine.name == name for machine in known)]
    machines = {name: chance.randint(1, 4) for name in chance.sample(names, chance.randint(2, 4))}
    available = [machine for machine in known if machine.name in machines]
    demands, factors = [], {}
    for number in range(chance.randint(3, 8)):
        job = {
            "night": night(hours=200, budget_usd=10_000),
            "dataset": replace(DATASET, num_samples=round(10 ** chance.uniform(5.5, 8))),
            "profile": replace(
                profile(step_s=10 ** chance.uniform(-3.5, -1.5), sample_bytes=10 ** chance.uniform(4, 7)),
                sync_bytes=line(10 ** chance.uniform(7, 9.3), 0),
            ),
            "champion": None,
            "params": Params(
                **PLUGS,
                train=TrainParams(epochs=1, batch_size=512),
                plan=PlanParams(
                    objective="time",
                    confidence=CONFIDENCE,
                    machines=("*",),
                    regions=(REGION,),
                    spot=False,
                    max_machines=8,
                ),
            ),
        }
        ways = evening.ways(
            lambda there, job=job: planner.plan(**job, available=there),
            job["profile"],
            available=available,
            machines=machines,
            confidence=CONFIDENCE,
            most=8,
        )
        if ways:
            demands.append(
                EveningDemand(model=f"m{number}", ways=ways, deadline_s=0.0, value=chance.choice([1, 1, 2]))
            )
            spread = max(way.late_s / way.seconds for way in ways) ** (1 / 2.33)
            factors[f"m{number}"] = min(spread, 1.5) ** chance.gauss(0, 1)
    whole = sum(fastest(demand).seconds for demand in demands)
    deadlines = {
        demand.model: max(1.5 * fastest(demand).seconds, chance.uniform(0.4, 1.2) * whole)
        for demand in demands
    }
    demands = [replace(demand, deadline_s=deadlines[demand.model]) for demand in demands]
    return Evening(machines=machines, demands=demands, factors=factors)


def fastest(demand: EveningDemand) -> Way:
    return min(demand.ways, key=lambda way: (way.seconds, way.usd))


def divided(of: Evening) -> dict[str, float]:
    """When each model is done, if what waits is divided anew whenever a job ends."""
    now, waiting, running, ends = 0.0, list(of.demands), {}, {}
    while waiting or running:
        still = []
        for model, (way, since) in running.items():
            left_s = max(since + way.seconds - now, 0.05 * way.seconds)
            still.append(Share(model=model, way=replace(way, seconds=left_s), start_s=0.0))
        left = [replace(demand, deadline_s=demand.deadline_s - now) for demand in waiting]
        for share in divide(left, machines=of.machines, running=still).shares:
            if share.start_s <= 1.0:
                running[share.model] = (share.way, now)
                ends[share.model] = now + share.way.seconds * of.factors[share.model]
        waiting = [demand for demand in waiting if demand.model not in running]
        if not running:
            break  # starved
        first = min(running, key=ends.__getitem__)
        now = ends[first]
        del running[first]
    return ends


def one_after_the_other(of: Evening) -> dict[str, float]:
    now, ends = 0.0, {}
    for demand in sorted(of.demands, key=lambda demand: demand.deadline_s):
        now += fastest(demand).seconds * of.factors[demand.model]
        ends[demand.model] = now
    return ends


def all_at_once(of: Evening, *, cheapest: bool) -> dict[str, float]:
    ways = {
        demand.model: min(demand.ways, key=lambda w: (w.usd, w.seconds)) if cheapest else fastest(demand)
        for demand in of.demands
    }
    left = {model: way.seconds * of.factors[model] for model, way in ways.items()}
    now, ends = 0.0, {}
    while left:
        wanted = {
            name: sum(ways[m].num_machines for m in left if ways[m].machine == name) for name in of.machines
        }
        rate = {m: min(1.0, of.machines[ways[m].machine] / wanted[ways[m].machine]) for m in left}
        step = min(left[m] / rate[m] for m in left)
        now += step
        left = {m: seconds - step * rate[m] for m, seconds in left.items()}
        for model in [m for m, seconds in left.items() if seconds <= 1e-6]:
            ends[model] = now
            del left[model]
    return ends


def in_time(of: Evening, ends: dict[str, float]) -> int:
    return sum(ends.get(demand.model, float("inf")) <= demand.deadline_s for demand in of.demands)


def main() -> None:
    num_models = starved = 0
    names = ("divided", "one after the other", "all at once, cheapest", "all at once, fastest")
    met = dict.fromkeys(names, 0)
    of_better, of_fastest = [], []
    for seed in range(NUM_EVENINGS):
        of = drawn(seed)
        at_once = [all_at_once(of, cheapest=cheapest) for cheapest in (True, False)]
        ends = dict(zip(names, [divided(of), one_after_the_other(of), *at_once], strict=True))
        num_models += len(of.demands)
        starved += sum(demand.model not in ends["divided"] for demand in of.demands)
        for name in names:
            met[name] += in_time(of, ends[name])
        ours, serial, cheapest, quickest = (max(ends[name].values()) for name in names)
        of_better.append(ours / min(serial, cheapest))
        of_fastest.append(ours / min(serial, cheapest, quickest))
    figures = {
        "evenings": NUM_EVENINGS,
        "models": num_models,
        "starved": starved,
        "last decision, of the better's time": mean(of_better),
        "of that, median": median(of_better),
        "of that, worst evening": max(of_better),
        "last decision, of the best of three": mean(of_fastest),
        **{f"deadlines met %, {name}": 100 * number / num_models for name, number in met.items()},
    }
    others = max(figures[f"deadlines met %, {name}"] for name in names[1:])
    targets: dict[str, Target] = {
        "last decision, of the better's time": ("<=", 0.8),
        "starved": ("==", 0),
        "deadlines met %, divided": (">=", others),
    }
    finish("fleet", figures, targets)


if __name__ == "__main__":
    main()

"""How much faster and cheaper is the plan than an arbitrary configuration? On published grids.

Four networks, each on machines of T4 and of A100 as Google rents them on demand: step times by Pollux
(OSDI'21) and Sia (SOSP'23), samples to equal progress for each batch size by Pollux's own runs of the whole
training, prices of the catalog. RTX 2080 Ti, which Sia measured too, are not for rent there. A configuration
is a machine, a number of them and a batch size that all were measured; it is feasible if its training is done
within 18 hours, start-up included, as measured. The plan is the search's among all of them, by `predict`:
from a profile on one T4, with priors that never saw the network, on the first night, and after three nights
that ran what the plan said (with QUICK after one). Start-up is the prediction's, for all alike.

Of 1,000 arbitrary feasible configurations, 250 are of each network: a kind of device, how many of them, how
many on a machine, and a batch size, each drawn uniformly. The common defaults are one A100, and eight T4 on
two machines, with the batch of Pollux's smallest run on each device. Last, Scavenger's own grid
(bench_grid.py): its sixteen scales against the one that the search takes after four corners.
"""

import csv
import gzip
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, geometric_mean, median
from typing import Literal

import numpy as np

from benchmarks import bench_grid, bench_throughput, frame
from benchmarks.fit_priors import without
from benchmarks.step_times import APPS, DEVICES, steps
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.machines.catalog import rented
from daybreak.machines.startup import StartupPart
from daybreak.planning.candidates import TrainingTask
from daybreak.planning.search import Candidate, Objective, PlanLimits, search
from daybreak.prediction.calibration import PastUpdateTime
from daybreak.prediction.costs import Estimate, predict_counts
from daybreak.prediction.efficiency import Efficiency, Reached
from daybreak.prediction.measurements import StepSetting
from daybreak.prediction.priors import Priors
from daybreak.prediction.update_time import at, by_profile
from tests.planning.jobs import DATASET, with_speeds

NAMES = {
    "t4": {1: "n1-standard-8-t4-1", 2: "n1-standard-16-t4-2", 4: "n1-standard-32-t4-4"},
    "dgx": {1: "a2-highgpu-1g", 2: "a2-highgpu-2g", 4: "a2-highgpu-4g", 8: "a2-highgpu-8g"},
}
REGION = "us-central1"
DEADLINE_S = 18 * 3600.0
CONFIDENCE = 0.9
ARBITRARY = 1_000
AT_ANY_PRICE_USD = 1e9  # an hour
NIGHTS = 1 if frame.QUICK else 3
OBJECTIVES: tuple[Objective, ...] = ("cost", "time", "knee")
DEFAULTS = {"one A100": (NAMES["dgx"][1], 1), "eight T4": (NAMES["t4"][4], 2)}

Way = tuple[str, int, int]  # machine, how many, batch size


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a configuration takes and costs, as measured."""

    seconds: float
    usd: float


@cache
def machines() -> dict[str, tuple[str, Machine]]:
    """Machines for rent by name, with their cluster, whose links and network they have."""
    listed = {machine.name: machine for machine in rented() if machine.region == REGION}
    return {
        name: (
            cluster,
            with_speeds(
                listed[name],
                link_bytes_per_s=DEVICES[cluster].link_bytes_per_s,
                network_bytes_per_s=DEVICES[cluster].network_bytes_per_s,
            ),
        )
        for cluster, names in NAMES.items()
        for name in names.values()
    }


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Runs of a network to equal progress, by batch size, as Pollux published them."""

    samples: Mapping[int, float]
    first_noise: float  # noise scale in samples, in the first epoch, where a profile looks
    noise: float  # of all epochs

    @property
    def base(self) -> int:
        """The smallest batch, which the others are compared with."""
        return min(self.samples)

    def num_samples(self, batch_size: int) -> float:
        """Samples that a batch size takes, between those of the published ones."""
        sizes = sorted(self.samples)
        known = [np.log(self.samples[size]) for size in sizes]
        return float(np.exp(np.interp(np.log(batch_size), np.log(sizes), known)))


@cache
def trained(app: str) -> Trained:
    """The published runs of a network."""
    rows: dict[int, list[dict[str, str]]] = defaultdict(list)
    with gzip.open(frame.DATA / "throughput" / "pollux_osdi21_validation.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["app"] == app:
                rows[int(row["batch_size"])].append(row)
    base = min(rows)
    # Variances are per batch of the smallest run.
    noises = [base * float(row["grad_var"]) / float(row["grad_sqr"]) for row in rows[base]]
    return Trained(
        samples={size: size * max(float(row["iteration"]) for row in rows[size]) for size in rows},
        first_noise=noises[0],
        noise=median(noises),
    )


@cache
def measured(app: str) -> dict[Way, float]:
    """Seconds of an update of each configuration that was measured, with equal workers on all machines."""
    took: dict[Way, list[float]] = defaultdict(list)
    sizes = trained(app).samples
    for cluster, names in NAMES.items():
        for row in steps()[app, cluster]:
            batch_size = round(row.micro_batch_size) * row.num_workers
            each = set(row.workers)
            if len(each) == 1 and each <= set(names) and min(sizes) <= batch_size <= max(sizes):
                took[names[each.pop()], len(row.workers), batch_size].append(row.step_s)
    return {way: geometric_mean(seconds) for way, seconds in took.items()}


def outcome(app: str, candidate: Candidate) -> Outcome:
    """What a configuration takes: start-up as predicted, and as many updates as measured, each so long."""
    way = way_of(candidate)
    training_s = measured(app)[way] * trained(app).num_samples(way[2]) / way[2]
    before = [part for part in candidate.estimate.parts if part.name in ("queue", "start-up", "data")]
    parts = (*before, StartupPart(seconds=training_s, spread=0.0))
    return Outcome(seconds=sum(part.seconds for part in parts), usd=candidate.estimate.usd(parts))


def way_of(candidate: Candidate) -> Way:
    """A candidate as a key of what was measured."""
    return candidate.machine.name, candidate.rental.num_machines, candidate.estimate.batch_size


class Planner:
    """Plans nights of a network, and learns from what each took."""

    def __init__(self, app: str, priors: Priors) -> None:
        self.app, self.priors = app, priors
        self.runs = trained(app)
        self.at_hand = machines()[NAMES["t4"][1]][1]
        self.profile = replace(bench_throughput.profile((app, "t4")), noise_scale=self.runs.first_noise)
        self.past: list[PastUpdateTime] = []
        self.reached: list[Reached] = []

    def offered(self) -> Iterator[Candidate]:
        """Yields all configurations that were measured, as the planner predicts them tonight."""
        known = bench_throughput.after(self.past, self.priors)
        nights = tuple(self.reached)
        job = TrainingTask(
            profile=self.profile,
            at_hand=self.at_hand,
            dataset=replace(DATASET, num_bytes=10**9),
            batch_size=self.runs.base,
            num_workers=1,
            known=known,
            efficiency=Efficiency(
                noise_scale=(nights[-1] if nights else self.profile).noise_scale, nights=nights
            ),
        )
        counts: dict[tuple[str, int], list[int]] = defaultdict(list)
        for name, count, batch_size in sorted(measured(self.app)):
            counts[name, batch_size].append(count)
        for (name, batch_size), numbers in counts.items():
            machine = machines()[name][1]
            num_samples = job.samples(round(self.runs.num_samples(self.runs.base)), batch_size)
            rentals = [Rental(machine=name, region=REGION)]
            for estimates in predict_counts(
                self.profile,
                machine,
                measured=self.at_hand,
                rentals=rentals,
                counts=numbers,
                batch_size=batch_size,
                num_workers=machine.num_workers,
                num_samples=num_samples,
                num_bytes=job.dataset.num_bytes,
                known=known,
            ):
                for estimate in estimates.of(range(len(numbers))):
                    yield Candidate(estimate=estimate, num_samples=num_samples)

    def learn(self, candidate: Candidate) -> None:
        """Takes up what a night on that configuration took and reached."""
        name, count, batch_size = way = way_of(candidate)
        machine = self.at_hand if name == self.at_hand.name else machines()[name][1]
        num_workers = machine.num_workers * count
        setting = StepSetting(
            workers=(machine.num_workers,) * count, micro_batch_size=batch_size / num_workers, num_passes=1
        )
        before = bench_throughput.after((), self.priors)
        plain_s = at(self.profile, machine, measured=self.at_hand, setting=setting, known=before).seconds
        roofline = self.priors.roofline
        self.past.append(
            PastUpdateTime(
                machine=name,
                device=machine.device,
                measured_here=machine is self.at_hand,
                setting=setting,
                update=by_profile(self.profile, machine, measured=self.at_hand, roofline=roofline),
                ratio=measured(self.app)[way] / plain_s,
            )
        )
        self.reached.append(
            Reached(
                batch_size=batch_size,
                num_samples=round(self.runs.num_samples(batch_size)),
                noise_scale=self.runs.noise,
                score=1.0,
                size=1.0,
                flops_per_sample=0.0,
            )
        )


def best(offered: Sequence[Candidate], objective: Objective) -> Candidate:
    """The plan of a night; for `time` the least expected time, whatever a second costs."""
    limits = PlanLimits(
        deadline_s=DEADLINE_S,
        budget_usd=float("inf"),
        confidence=CONFIDENCE,
        usd_per_hour_saved=AT_ANY_PRICE_USD if objective == "time" else None,
    )
    choice = search(offered, limits=limits, objective=objective)
    assert choice
    return choice.best


def drawn(ways: Sequence[Way], chance: random.Random) -> Way:
    """An arbitrary configuration: kind and number of devices, machine and batch size, each by chance."""
    for key in (_cluster, _num_devices, lambda way: way[0], lambda way: way[2]):
        kept = chance.choice(sorted({key(way) for way in ways}))
        ways = [way for way in ways if key(way) == kept]
    return chance.choice(ways)


def _cluster(way: Way) -> str:
    return machines()[way[0]][0]


def _num_devices(way: Way) -> int:
    return machines()[way[0]][1].num_devices * way[1]


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The plan beside another configuration."""

    faster: float
    cheaper: float  # times

    @property
    def is_beaten(self) -> bool:
        """Whether the other is both faster and cheaper than the plan."""
        return self.faster < 1 and self.cheaper < 1


def beside(plan: Outcome, other: Outcome) -> Beside:
    """The plan beside another one."""
    return Beside(faster=other.seconds / plan.seconds, cheaper=other.usd / plan.usd)


def summed_up(compared: Sequence[Beside]) -> dict[str, float]:
    """Geometric mean of the times faster, mean saving, and how many beat the plan in both."""
    return {
        "times faster": geometric_mean([each.faster for each in compared]),
        "cheaper %": 100 * fmean(1 - 1 / each.cheaper for each in compared),
        "faster and cheaper than the plan %": 100 * fmean(each.is_beaten for each in compared),
    }


def value(objective: Objective) -> Callable[[Outcome], float]:
    """What an objective minimizes."""
    return {
        "cost": lambda each: each.usd,
        "time": lambda each: each.seconds,
        "knee": lambda each: each.usd * each.seconds,
    }[objective]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A plan against others."""

    app: str
    objective: Objective
    nights: int
    arbitrary: list[Beside]
    defaults: dict[str, Beside]
    late: bool
    regret: float


def judged(app: str) -> list[Found]:
    """The plans of a network on the first night and after some, by each objective."""
    priors, comparisons = without(app=app), []
    chance = random.Random(f"arbitrary {app}")
    on_the_first = list(Planner(app, priors).offered())
    everything = {way_of(each): outcome(app, each) for each in on_the_first}
    feasible = {way: each for way, each in everything.items() if each.seconds <= DEADLINE_S}
    arbitrary = [feasible[drawn(list(feasible), chance)] for _ in range(ARBITRARY // len(APPS))]
    base = min(trained(app).samples)
    defaults = {}
    for name, (machine, count) in DEFAULTS.items():
        num_devices = machines()[machine][1].num_devices * count
        nearest = min(
            (way for way in everything if way[:2] == (machine, count)),
            key=lambda way: abs(np.log(way[2] / (base * num_devices))),
        )
        defaults[name] = everything[nearest]
    for objective in OBJECTIVES:
        planner = Planner(app, priors)
        for night in range(NIGHTS + 1):
            chosen = best(list(planner.offered()) if night else on_the_first, objective)
            plan = outcome(app, chosen)
            if night in (0, NIGHTS):
                print(app, objective, night, way_of(chosen), f"{plan.seconds / 3600:.2f} h ${plan.usd:.2f}")
                least = min(map(value(objective), feasible.values()))
                comparisons.append(
                    Found(
                        app=app,
                        objective=objective,
                        nights=night,
                        arbitrary=[beside(plan, each) for each in arbitrary],
                        defaults={name: beside(plan, each) for name, each in defaults.items()},
                        late=plan.seconds > DEADLINE_S,
                        regret=value(objective)(plan) / least - 1,
                    )
                )
            planner.learn(chosen)
    return comparisons


def scavenger(model: Literal["resnet18", "resnet50"], objective: Objective) -> tuple[list[Beside], float]:
    """The scale that the search takes after four corners, beside all of Scavenger's grid; and its regret."""
    runs = bench_grid.grid(model)
    first = next(run for run in runs if (run.batch_size, run.workers) == bench_grid.FIRST)
    nights = bench_grid.Nights(model, bench_grid.corners(runs), first)
    offered = []
    for run in runs:
        forecast = nights.forecast(run)
        offered.append(
            Candidate(
                estimate=Estimate(
                    machine=replace(bench_grid.WORKER, usd_per_hour=bench_grid.USD, disk=None),
                    rental=Rental(machine="worker", num_machines=run.workers),
                    batch_size=run.batch_size,
                    micro_batch_size=1,
                    num_loaders=0,
                    checkpoint_every_s=600.0,
                    parts=(StartupPart(seconds=3600 * forecast.hours, spread=forecast.late),),
                    deviation_s=0.0,
                )
            )
        )
    limits = PlanLimits(deadline_s=float("inf"), budget_usd=float("inf"), confidence=CONFIDENCE)
    choice = search(offered, limits=limits, objective=objective)
    assert choice
    actual = [Outcome(seconds=3600 * run.hours, usd=run.hours * run.workers * bench_grid.USD) for run in runs]
    plan = actual[offered.index(choice.best)]
    regret = value(objective)(plan) / min(map(value(objective), actual)) - 1
    return [beside(plan, each) for each in actual], regret


def main() -> None:
    """Plan each network, hold the plans against others, and the figures against Scavenger's."""
    comparisons = [each for app in APPS for each in judged(app)]
    frame.table(
        [
            {"network": each.app, "least": each.objective, "nights": each.nights}
            | {"regret %": 100 * each.regret}
            | summed_up(each.arbitrary)
            | {
                f"than {name}": f"{than.faster:.2f}x faster, {than.cheaper:.2f}x cheaper"
                for name, than in each.defaults.items()
            }
            for each in comparisons
        ]
    )
    figures: dict[str, float] = {"arbitrary configurations": len(comparisons[0].arbitrary) * len(APPS)}
    for objective in OBJECTIVES:
        for nights in (0, NIGHTS):
            alike = [each for each in comparisons if (each.objective, each.nights) == (objective, nights)]
            where = f"least {objective}, {nights} nights"
            every = [than for each in alike for than in each.arbitrary]
            figures |= {f"{where}: {key}": number for key, number in summed_up(every).items()}
            figures[f"{where}: regret, mean %"] = 100 * fmean(each.regret for each in alike)
            for name in DEFAULTS:
                of_default = summed_up([each.defaults[name] for each in alike])
                figures |= {
                    f"{where}: than {name}, {key}": of_default[key] for key in ("times faster", "cheaper %")
                }
    figures["late"] = sum(each.late for each in comparisons)
    for objective in OBJECTIVES:
        where = f"Scavenger's grid, least {objective}"
        both = scavenger("resnet18", objective), scavenger("resnet50", objective)
        scales = summed_up([than for grid, _ in both for than in grid])
        figures |= {f"{where}: {key}": number for key, number in scales.items()}
        figures[f"{where}: regret, mean %"] = 100 * fmean(regret for _, regret in both)
    targets: dict[str, frame.Target] = {
        "arbitrary configurations": (">=", 1_000),
        "late": ("==", 0),
    }
    for where in (*(f"least {{}}, {nights} nights" for nights in (0, NIGHTS)), "Scavenger's grid, least {}"):
        targets[f"{where.format('time')}: times faster"] = (">=", 2)
        targets[f"{where.format('cost')}: cheaper %"] = (">=", 50)
    frame.finish("arbitrary", figures, targets)


if __name__ == "__main__":
    main()

"""How well do four corners predict the other twelve? On Scavenger's grid (CCGrid'23), as nights.

Hours of training to a quality for ResNet-18 and ResNet-50, four batch sizes by four sizes of a cluster, read
off its figures with the epochs that they took. A run is a night: how many samples it trained on, in which
batches, for how long. The forecast of another run is the night's: samples by efficiency.py, the time of an
update by update_time.py, with priors (priors.json) fitted to neither grid. The profile says little, as the
paper has none: half of an update of the first corner is the device's, give or take a factor of e.

The corners are forecast again, too: as the samples of each are its own, what that is off by is the time of an
update, of which a night that differs from others by `assumed.night` (priors.json) is believed in part.

Regret: cost of the scale that the forecast says is the cheapest by a deadline that half, or a quarter, of the
scales meet, over that of the cheapest which meets it; a scale that is late costs as if billed at twice its
price.
"""

import csv
import gzip
import json
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, median

import numpy as np

from benchmarks import frame
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Line
from daybreak.contract.record_types import Profile
from daybreak.machines.catalog import rented
from daybreak.prediction.calibration import CostCalibration, PastUpdateTime
from daybreak.prediction.efficiency import Efficiency, Reached
from daybreak.prediction.measurements import StepSetting
from daybreak.prediction.update_time import at, by_profile
from tests.planning.jobs import with_speeds

Z90 = 1.6449
USD = 0.13402  # per worker and hour, the paper's
SAMPLES = 50_000  # of CIFAR-10 and of CIFAR-100
PARAMETERS = {"resnet18": 11.2e6, "resnet50": 23.7e6}
FIRST = (384, 8)  # the corner that sets the profile's level
LATE = 2.0
FIRST_BATCH = (
    128  # of ResNet-18 on CIFAR-10 in Pollux's validation file, whose variances are per batch of that
)
NETWORK_BYTES_PER_S = 1.25e9  # of virtual machines with 10 Gbit/s


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that reached the quality."""

    batch_size: int
    workers: int
    hours: float
    epochs: float

    @property
    def num_samples(self) -> float:
        """Samples that it trained on."""
        return self.epochs * SAMPLES

    @property
    def update_s(self) -> float:
        """Seconds of one of its updates."""
        return self.hours * 3600 / (self.num_samples / self.batch_size)

    @property
    def setting(self) -> StepSetting:
        """How its updates were taken: a worker a machine."""
        return StepSetting(workers=(1,) * self.workers, micro_batch_size=self.batch_size / self.workers)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Hours of a run, with deviations of their logarithm."""

    hours: float
    late: float  # by the time of an update, which a plan's deadline takes into account
    doubt: float  # by the samples that the quality needs, which exploring takes into account

    @property
    def spread(self) -> float:
        """Deviation by both."""
        return float(np.hypot(self.late, self.doubt))

    def time_s(self, chance: float) -> float:
        """Seconds within which the samples are trained on with this chance."""
        return self.hours * 3600 * float(np.exp(NormalDist().inv_cdf(chance) * self.late))


def grid(model: str) -> list[Run]:
    """The runs of a model; epochs are means over the sizes of the cluster that the paper shows them for."""
    published = json.loads((frame.DATA / "papers" / "scavenger_grid.json").read_text())
    epochs = np.mean(list(published["epochs"][model].values()), axis=0)
    return [
        Run(batch_size=int(batch), workers=workers, hours=hours, epochs=float(epochs[place]))
        for place, (batch, row) in enumerate(published["T_hours"][model].items())
        for workers, hours in zip(published["K"], row, strict=True)
    ]


@cache
def noise_scale() -> float:
    """Noise scale of ResNet-18 on CIFAR-10 in samples: the median over Pollux's validation runs."""
    with gzip.open(frame.DATA / "throughput" / "pollux_osdi21_validation.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["app"] == "cifar10"]
    return FIRST_BATCH * median(float(row["grad_var"]) / float(row["grad_sqr"]) for row in rows)


def corners(runs: list[Run]) -> list[Run]:
    """The runs with the smallest or largest batch on the smallest or largest cluster."""
    batches, workers = ([getattr(run, name) for run in runs] for name in ("batch_size", "workers"))
    ends = ({min(batches), max(batches)}, {min(workers), max(workers)})
    return [run for run in runs if run.batch_size in ends[0] and run.workers in ends[1]]


def machine(name: str = "worker", **speeds: float) -> Machine:
    """A machine of the paper's cluster, or the one that was profiled."""
    plain = next(each for each in rented() if each.name == "n2-standard-4")
    return with_speeds(plain, name=name, device=name, **{"network_bytes_per_s": NETWORK_BYTES_PER_S} | speeds)


PROFILED, WORKER = machine("profiled"), machine()


def profile(model: str, first: Run) -> Profile:
    """Returns the profile: half of an update of the run, and the rest by the rate of the network."""
    nothing = Line(fixed=0.0, per_sample=0.0, fixed_error=0.0, per_sample_error=0.0)
    per_sample = first.update_s / 2 / first.setting.micro_batch_size
    return Profile(
        device="profiled",
        load_s=nothing,
        memory_bytes=nothing,
        step_s=Line(
            fixed=0.1 * first.update_s,
            per_sample=per_sample,
            fixed_error=0.2 * first.update_s,
            per_sample_error=2 * per_sample,
        ),
        sync_bytes=Line(fixed=4 * PARAMETERS[model], per_sample=0.0, fixed_error=0.0, per_sample_error=0.0),
        flops_per_sample=0.0,
        noise_scale=noise_scale(),
        bound="compute",
        evidence={},
        remedies=(),
    )


class Nights:
    """What is known of a model after some runs, and what that says of others."""

    def __init__(self, model: str, runs: list[Run], first: Run) -> None:
        self.runs = runs
        self.profile = profile(model, first)
        plain = by_profile(self.profile, WORKER, measured=PROFILED)
        nothing = CostCalibration()
        self.known = CostCalibration(
            past=[
                PastUpdateTime(
                    machine=WORKER.name,
                    device=WORKER.device,
                    measured_here=False,
                    setting=run.setting,
                    update=plain,
                    ratio=run.update_s / self.timed(run.setting, nothing)[0],
                )
                for run in runs
            ]
        )
        self.efficiency = Efficiency(
            noise_scale=noise_scale(),
            nights=tuple(
                Reached(
                    batch_size=run.batch_size,
                    num_samples=round(run.num_samples),
                    noise_scale=noise_scale(),
                    score=1.0,
                    size=1.0,
                    flops_per_sample=0.0,
                )
                for run in runs
            ),
        )

    def timed(self, setting: StepSetting, known: CostCalibration) -> tuple[float, float]:
        """Seconds of an update and the deviation of their logarithm."""
        forecast = at(self.profile, WORKER, measured=PROFILED, setting=setting, known=known)
        high = sum(part.seconds * np.exp(Z90 * part.spread) for part in forecast.parts)
        return forecast.seconds, float(np.log(high / forecast.seconds)) / Z90

    def forecast(self, run: Run) -> Forecast:
        """The forecast of a run at its scale."""
        seconds, spread = self.timed(run.setting, self.known)
        bases = self.bases(run)
        weights = np.array([1 / max(abs(np.log(base.batch_size / run.batch_size)), 1e-9) for base in bases])
        weights /= weights.sum()
        samples, doubts = np.array(
            [
                (
                    base.num_samples * self.efficiency.ratio(run.batch_size, base.batch_size),
                    self.efficiency.spread(run.batch_size, base.batch_size),
                )
                for base in bases
            ]
        ).T
        num_updates = float(np.exp(weights @ np.log(samples))) / run.batch_size
        return Forecast(hours=num_updates * seconds / 3600, late=spread, doubt=float(weights @ doubts))

    def bases(self, run: Run) -> list[Run]:
        """The runs with the nearest batch sizes, at most one on either side: what a run's samples go by."""
        smaller = [each for each in self.runs if each.batch_size <= run.batch_size]
        larger = [each for each in self.runs if each.batch_size >= run.batch_size]
        return [
            *([max(smaller, key=lambda each: each.batch_size)] if smaller else []),
            *([min(larger, key=lambda each: each.batch_size)] if larger else []),
        ]


def regret(runs: list[Run], forecasts: list[Forecast], deadline_hours: float) -> float:
    """How much more the scale costs that the forecasts say is the cheapest by the deadline."""
    usd = [run.hours * run.workers * USD for run in runs]
    expected = [
        f.hours * r.workers * USD if f.hours <= deadline_hours else np.inf
        for f, r in zip(forecasts, runs, strict=True)
    ]
    taken = int(np.argmin(expected))
    oracle = min(u for u, run in zip(usd, runs, strict=True) if run.hours <= deadline_hours)
    return usd[taken] / oracle * (1 if runs[taken].hours <= deadline_hours else LATE) - 1


def main() -> None:
    """Predict twelve from four for both models, and hold the errors against their targets."""
    figures: dict[str, float] = {}
    targets: dict[str, frame.Target] = {}
    for model in ("resnet18", "resnet50"):
        runs = grid(model)
        first = next(run for run in runs if (run.batch_size, run.workers) == FIRST)
        known = corners(runs)
        nights = Nights(model, known, first)
        forecasts = [nights.forecast(run) for run in runs]
        rest = [(f, run) for f, run in zip(forecasts, runs, strict=True) if run not in known]
        errors = np.array([abs(f.hours / run.hours - 1) for f, run in rest])
        held = np.mean([abs(np.log(run.hours / f.hours)) <= Z90 * f.spread for f, run in rest])
        again = [(f, run) for f, run in zip(forecasts, runs, strict=True) if run in known]
        own = np.array([abs(f.hours / run.hours - 1) for f, run in again])
        within = np.mean([abs(np.log(run.hours / f.hours)) <= Z90 * f.spread for f, run in again])
        hours = sorted(run.hours for run in runs)
        regrets = [regret(runs, forecasts, 1.02 * hours[place]) for place in (7, 3)]
        print(
            model,
            [
                f"{run.batch_size}/{run.workers}: {f.hours / run.hours - 1:+.3f} ({f.spread:.3f})"
                for f, run in rest
            ],
        )
        figures |= {
            f"{model} mean %": 100 * errors.mean(),
            f"{model} worst %": 100 * errors.max(),
            f"{model} coverage %": 100 * float(held),
            f"{model} own corners, mean %": 100 * own.mean(),
            f"{model} own corners, worst %": 100 * own.max(),
            f"{model} own corners, coverage %": 100 * float(within),
            f"{model} regret under a deadline %": 100 * max(regrets),
        }
        targets |= {
            f"{model} mean %": ("<=", 4),
            f"{model} worst %": ("<=", 10),
            f"{model} coverage %": (">=", 80),
            f"{model} own corners, worst %": ("<=", 2),
            f"{model} regret under a deadline %": ("<=", 3),
        }
    frame.finish("grid", figures, targets)


if __name__ == "__main__":
    main()

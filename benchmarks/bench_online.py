"""Judges the scale after five nights, and the cost of finding it, on Scavenger's grid, one point a night.

Each of the sixteen scales is the user's first choice once, for ResNet-18 and ResNet-50; for least dollars,
least hours, and least dollars by a deadline that half, or a quarter, of the scales meet. Nights are those of
bench_grid.py: the forecast of all scales, the choice, and whether to explore are the planner's. Regret: how
much worse than the oracle's is the scale that is thought best after five nights; without bound if it is late.
Exploration: what nights cost beyond the scale thought best then, as a share of all dollars of a month; the
cap is 4 % of a month at the best scale run so far. A night may try a scale that is in time more likely than
not; if it is late, it changes to the scale that the trial names, as the launcher would, and may not end late.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from benchmarks import frame
from benchmarks.bench_grid import USD, WORKER, Forecast, Nights, Run, grid
from daybreak.contract.units import HOUR_S
from daybreak.extensions.exploration.exploration import Objective, next_step, of_ways
from daybreak.extensions.exploration.trials import Trial, trial_of
from daybreak.machines.startup import wait
from daybreak.planning.fallback import LOOK_S, SPARE_S

MONTH, NIGHTS = 30, 5
CAP = 0.04  # less than the target, since the best so far may be dearer than the best
CONFIDENCE = 0.9
NUM_BYTES = 614e6  # of the samples, 50,000 images of 32 by 32 by 3 floats
SETTLED = 3  # nights in a row at the best, after which the rest of the month is taken to be there, too


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What to minimize, and the hours available."""

    objective: Objective = "cost"
    deadline_hours: float = float("inf")


@dataclass(frozen=True, kw_only=True)
class Way:
    """A scale with its forecast, as the planner weighs it."""

    run: Run
    forecast: Forecast
    start_s: float = 0.0  # the paper's hours are of training; a scale that a night changes to has to start

    @property
    def expected_s(self) -> float:
        return self.start_s + self.forecast.hours * HOUR_S

    @property
    def expected_usd(self) -> float:
        return self.expected_s / HOUR_S * self.run.workers * USD

    def time_s(self, chance: float) -> float:
        return self.start_s + self.forecast.time_s(chance)

    def chance(self, seconds: float) -> float:
        return float(
            ndtr(np.log((seconds - self.start_s) / HOUR_S / self.forecast.hours) / self.forecast.late)
        )


def usd(run: Run) -> float:
    """What a run costs."""
    return run.hours * run.workers * USD


def starting(way: Way) -> Way:
    """A scale with the time that its workers take to start."""
    return replace(way, start_s=wait(WORKER, num_bytes=NUM_BYTES, num_machines=way.run.workers).seconds)


def weighed(runs: Sequence[Run], known: list[Run], name: str, aim: Aim) -> tuple[list[Way], list[Trial[Way]]]:
    """The scales that are in time, best first, and those that may be tried; else the fastest alone."""
    nights = Nights(name, known, known[0])
    ways = [Way(run=run, forecast=nights.forecast(run)) for run in runs]
    in_time = [way for way in ways if way.time_s(CONFIDENCE) <= aim.deadline_hours * HOUR_S]
    if not in_time:
        return [min(ways, key=lambda way: way.time_s(CONFIDENCE))], []
    ranked = sorted(in_time, key=lambda way: way.expected_usd if aim.objective == "cost" else way.expected_s)
    trials = [
        trial_of(
            way,
            [starting(other) for other in ranked if other.run.batch_size == way.run.batch_size],
            deadline_s=aim.deadline_hours * HOUR_S,
            confidence=CONFIDENCE,
        )
        for way in ways
        if way not in in_time
    ]
    return ranked, [trial for trial in trials if trial]


def tried(trial: Trial[Way]) -> tuple[float, bool | None]:
    """Dollars of a night that tries a scale; if the launcher changes to the other one, whether that is late.

    It changes as late as the rest would be in time at the other's longest time, longer still by what the
    trial takes longer than planned, and after `LOOK_S` at the earliest.
    """
    way, rescue = trial.way.run, trial.rescue.run
    took_s = way.hours * HOUR_S
    if took_s <= trial.deadline_s:
        return usd(way), None
    start_s = trial.rescue.start_s
    most_s = (trial.rescue.time_s(CONFIDENCE) - start_s) * max(1.0, took_s / trial.way.expected_s)
    change_s = (trial.deadline_s - SPARE_S - start_s - most_s) / (1 - most_s / took_s)
    change_s = max(LOOK_S, change_s) if most_s < took_s else LOOK_S
    rest_s = start_s + (1 - change_s / took_s) * rescue.hours * HOUR_S
    dollars = (change_s * way.workers + rest_s * rescue.workers) / HOUR_S * USD
    return dollars, change_s + rest_s > trial.deadline_s


@dataclass(frozen=True, kw_only=True)
class Month:
    """How a month went from a first choice."""

    regret: float  # after five nights
    share: float  # of its dollars that exploring cost
    trials: tuple[bool | None, ...]  # nights that tried a scale which might be late, as `tried` says


def month(name: str, runs: Sequence[Run], first: int, aim: Aim) -> Month:
    """Go through the nights of a month from a first choice."""

    def value(run: Run) -> float:
        return usd(run) if aim.objective == "cost" else run.hours

    known, spent, explored, stayed = [runs[first]], usd(runs[first]), 0.0, 0
    regret, late = 0.0, float("inf")
    outcomes: list[bool | None] = []
    for night in range(2, MONTH + 1):
        left = CAP * MONTH * min(map(usd, known)) - explored
        ranked, trials = weighed(runs, known, name, aim)
        ways = [*ranked, *(trial.way for trial in trials)]
        prospects = of_ways(
            ranked,
            names=[f"a batch of {way.run.batch_size} on {way.run.workers} workers" for way in ways],
            doubts=[way.forecast.doubt for way in ways],
            num_nights=[known.count(way.run) for way in ways],
            budget_usd=float("inf"),
            trials=trials,
        )
        step = next_step(prospects, objective=aim.objective, explore_usd=left)
        run, best = ways[step.taken].run, ways[step.best].run
        if night == NIGHTS + 1:
            oracle = min(value(run) for run in runs if run.hours <= aim.deadline_hours)
            regret = value(best) / oracle - 1 if best.hours <= aim.deadline_hours else late
        cost = usd(run)
        if step.taken >= len(ranked):
            cost, is_late = tried(trials[step.taken - len(ranked)])
            outcomes.append(is_late)
        explored, spent = explored + (max(0.0, cost - usd(best)) if run is not best else 0.0), spent + cost
        known.append(run)
        stayed = stayed + 1 if run is best else 0
        if night > NIGHTS and stayed >= SETTLED:
            spent += (MONTH - night) * usd(run)
            break
    return Month(regret=regret, share=explored / spent, trials=tuple(outcomes))


def main() -> None:
    """Search from each first choice, and hold regret and exploration against their targets."""
    rows: list[dict[str, object]] = []
    all_months: list[Month] = []
    for name in ("resnet18", "resnet50"):
        runs = grid(name)
        hours = sorted(run.hours for run in runs)
        aims = {
            "dollars": Aim(),
            "hours": Aim(objective="time"),
            "dollars by a deadline": Aim(deadline_hours=1.02 * hours[7]),
            "dollars by a near one": Aim(deadline_hours=1.02 * hours[3]),
        }
        for objective, aim in aims.items():
            starts = range(0, len(runs), 4 if frame.QUICK else 1)
            months = [month(name, runs, first, aim) for first in starts]
            regrets, shares = (np.array([getattr(m, key) for m in months]) for key in ("regret", "share"))
            on_time = regrets[np.isfinite(regrets)]
            rows.append(
                {
                    "model": name,
                    "least": objective,
                    "late": len(months) - len(on_time),
                    "regret %": 100 * on_time.mean(),
                    "worst regret %": 100 * regrets.max(),
                    "exploration %": 100 * shares.mean(),
                    "most exploration %": 100 * shares.max(),
                    "trials": sum(len(each.trials) for each in months),
                }
            )
            all_months += months
    frame.table(rows)
    regrets, shares = (np.array([getattr(m, key) for m in all_months]) for key in ("regret", "share"))
    on_time = regrets[np.isfinite(regrets)]
    trials = [outcome for each in all_months for outcome in each.trials]
    frame.finish(
        "online",
        {
            "starts whose best is late %": 100 * float((~np.isfinite(regrets)).mean()),
            "regret after 5 nights %": 100 * on_time.mean(),
            "worst regret %": 100 * on_time.max(),
            "within 2 % of the oracle, % of starts": 100 * float((regrets <= 0.02).mean()),
            "exploration %": 100 * shares.mean(),
            "most exploration %": 100 * shares.max(),
            "nights that tried what may be late": len(trials),
            "of them saved": trials.count(False),
            "of them late": trials.count(True),
        },
        {
            "of them late": ("==", 0),
            "starts whose best is late %": ("==", 0),
            "worst regret %": ("<=", 2),
            "most exploration %": ("<=", 5),
        },
    )


if __name__ == "__main__":
    main()

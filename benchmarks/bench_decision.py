"""Does the plan split a night between training and the live test as well as the best fixed split would?

A night decides after 24 hours. How long its job takes, how many users come in an hour and how much they score
apart are drawn, in six cells of little, some and much traffic and of short and long training. Planned: the
hours of the test by `forecast.hours_needed`, from the traffic of the days before, and the plan by the planner
with them. Fixed: `night.train_hours` is the same each night, as a team would set it by hand, and the planner
knows of no test. Training then takes what is drawn from the plan's own interval and is cut off at its
deadline; the test has the rest of the night. Its users come as the traffic of tonight, which differs from the
days before, and its evidence is drawn as a Brownian motion on their clock, stopped by the bounds that the
gate uses, at a true effect of one margin.

The power counts up to the 80 % that is asked for, as more is not worth a dearer machine; uncapped it stands
beside. The best fixed split of a cell is the one of most power among those that train as whole as the plan.
Nights whose test would hardly show the margin in 24 hours get none planned, and are counted apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from benchmarks import frame
from daybreak.contract.errors import PlanError
from daybreak.contract.record_types import BEFORE_TRAINING
from daybreak.contract.sections import Params, PlanParams, TrainParams
from daybreak.contract.units import HOUR_S
from daybreak.extensions.live_test import forecast, looks
from daybreak.extensions.live_test.ramp import Pace, clock_by
from daybreak.planning import planner
from daybreak.prediction.time_budget import TEST
from daybreak.statistics.sequential import group_bounds, spend
from tests.planning.jobs import DATASET, EVERYTHING, night, profile

NUM_NIGHTS = 12 if frame.QUICK else 60  # a cell
DECIDE_H = 24.0
FIXED_H = (4, 8, 12, 16, 20, 23)
TRAFFIC = {"little": 700.0, "some": 1500.0, "much": 6000.0}  # users an hour
TRAINING = {"short": 3.0, "long": 18.0}  # hours on the machine at hand
PACE = Pace(shares=(0.01, 0.05, 0.25, 0.5), units=100, hours=0.25)
MARGIN, SD, ALPHA = 0.01, 0.25, 0.05
ASKED = 0.8
OUTCOME_H = 0.5
PATHS = 2000
NINETY = 1.645  # standard deviations to either end of an interval of 90 %
RENTED = ("n1-standard-4-t4-1", "g2-standard-4", "g2-standard-24", "a2-highgpu-1g", "a3-highgpu-1g")
AVAILABLE = [m for m in EVERYTHING if m.is_local or (m.name in RENTED and m.region == "us-central1")]
PARAMS = Params(
    **dict.fromkeys(("source", "workload", "backend"), "some.module:Class"),  # type: ignore[arg-type]
    plan=PlanParams(machines=("local", *RENTED), regions=("us-central1",), max_machines=2),
    train=TrainParams(epochs=1, batch_size=256),
)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A night: hours of training on the machine at hand, users an hour before and tonight, their spread."""

    local_h: float
    before: forecast.Volume
    users_per_hour: float
    luck: float  # of the time of training, in standard deviations


@dataclass(frozen=True, kw_only=True)
class End:
    """How a night ends."""

    power: float
    trained: float  # share of the samples
    usd: float


def main() -> None:
    """Draw the nights, split each in all ways, and hold the planned split against the fixed ones."""
    rng = np.random.default_rng(9)
    rows: list[dict[str, object]] = []
    short_of, raw, untrained, hopeless, spared = [], [], [], 0, []
    for traffic, users in TRAFFIC.items():
        for length, local_h in TRAINING.items():
            draws = [draw(rng, users=users, local_h=local_h) for _ in range(NUM_NIGHTS)]
            needs = [needed(each) for each in draws]
            hopeless += needs.count(0.0)
            kept = [(each, need) for each, need in zip(draws, needs, strict=True) if need]
            if not kept:
                continue
            planned = [end(each, train_h=DECIDE_H, test_hours=need, rng=rng) for each, need in kept]
            fixed = {hours: [end(each, train_h=hours, rng=rng) for each, _ in kept] for hours in FIXED_H}
            whole = {
                hours: ends
                for hours, ends in fixed.items()
                if mean(ends, "trained") >= mean(planned, "trained") - 0.005
            }
            best_h, best = max(whole.items() or [(0, planned)], key=lambda one: asked(one[1]))
            _, most = max(whole.items() or [(0, planned)], key=lambda one: mean(one[1], "power"))
            short_of.append(100 * (asked(best) - asked(planned)))
            raw.append(100 * (mean(most, "power") - mean(planned, "power")))
            untrained.append(1 - mean(planned, "trained"))
            spared.append(mean(planned, "usd") / max(mean(best, "usd"), 0.01))
            rows.append(
                {
                    "traffic": traffic,
                    "training": length,
                    "nights": len(kept),
                    "hours needed": float(np.median([need for _, need in kept])),
                    "power": mean(planned, "power"),
                    "of 80 %": asked(planned),
                    "usd": mean(planned, "usd"),
                    "best fixed h": best_h,
                    "its power": mean(best, "power"),
                    "its of 80 %": asked(best),
                    "its usd": mean(best, "usd"),
                    "18 h: of 80 %": asked([end(each, train_h=18, rng=rng) for each, _ in kept]),
                }
            )
    frame.table(rows)
    frame.finish(
        "decision",
        {
            "nights": len(TRAFFIC) * len(TRAINING) * NUM_NIGHTS,
            "of them without a test that is planned for": hopeless,
            "points of the power asked for below the best fixed split, at most": max(short_of),
            "points of power below the best fixed split, at most": max(raw),
            "share of samples not trained, at most": max(untrained),
            "dollars / those of the best fixed split, at most": max(spared),
        },
        {
            "points of the power asked for below the best fixed split, at most": ("<=", 2),
            "share of samples not trained, at most": ("<=", 0.01),
        },
    )


def mean(ends: Sequence[End], name: str) -> float:
    """Returns the mean of a figure over nights."""
    return float(np.mean([getattr(each, name) for each in ends]))


def asked(ends: Sequence[End]) -> float:
    """Returns the mean power, of which no night has more than was asked for."""
    return float(np.mean([min(each.power, ASKED) for each in ends]))


def draw(rng: np.random.Generator, *, users: float, local_h: float) -> Draw:
    """Draws a night of a cell."""
    usual = users * rng.lognormal(0, 0.25)
    return Draw(
        local_h=local_h * rng.lognormal(0, 0.25),
        before=forecast.Volume(users_per_hour=usual, sd=SD * rng.lognormal(0, 0.05), days=7.0),
        users_per_hour=usual * rng.lognormal(0, 0.1),
        luck=rng.normal(),
    )


def needed(each: Draw) -> float:
    """Returns the hours that a night records for its test, outcomes included."""
    hours = forecast.hours_needed(
        each.before, pace=PACE, alpha=ALPHA, margin=MARGIN, longest=DECIDE_H - OUTCOME_H
    )
    return hours + OUTCOME_H if hours else 0.0


def end(each: Draw, *, train_h: float, test_hours: float = 0.0, rng: np.random.Generator) -> End:
    """Plans a night, trains it, and lets users judge it."""
    plain = night(hours=train_h, budget_usd=50)
    tonight = replace(plain, decide_until=plain.started_at + timedelta(hours=DECIDE_H), test_hours=test_hours)
    job = profile(step_s=each.local_h * HOUR_S / DATASET.num_samples)
    try:
        plan = planner.plan(tonight, DATASET, job, None, PARAMS, available=AVAILABLE)
    except PlanError:
        return End(power=0.0, trained=0.0, usd=0.0)
    until_s = min(train_h, DECIDE_H - sum(part.expected_s for part in plan.after) / HOUR_S) * HOUR_S
    began_s = BEFORE_TRAINING * until_s
    expected_s, (_, high_s) = plan.forecast.expected_s, plan.forecast.interval
    takes_s = expected_s * (high_s / expected_s) ** (each.luck / NINETY)
    share = min(1.0, (until_s - began_s) / takes_s)
    after_s = sum(part.expected_s for part in plan.after if part.name != TEST)
    hours = DECIDE_H - (began_s + share * takes_s + after_s) / HOUR_S - OUTCOME_H
    return End(
        power=power(each, hours=hours, rng=rng),
        trained=share,
        usd=plan.forecast.expected_usd * share * takes_s / expected_s,
    )


def power(each: Draw, *, hours: float, rng: np.random.Generator) -> float:
    """Returns how often looks at a true effect of one margin prove it, among PATHS draws."""
    if hours <= 0:
        return 0.0
    shares = np.arange(1, looks.NUM_LOOKS + 1) / looks.NUM_LOOKS
    clocks = np.array(
        [clock_by(PACE, units_per_hour=each.users_per_hour, hours=hours * share) for share in shares]
    )
    known = np.flatnonzero(np.diff(clocks, prepend=0.0) > 0)
    if not len(known):
        return 0.0
    clocks = clocks[known]
    bounds = group_bounds(clocks, spend(shares[known], alpha=ALPHA, power=looks.POWER_OF_HOURS), sides=1)
    steps = np.diff(clocks, prepend=0.0)
    noise = rng.normal(size=(PATHS, len(clocks))) * np.sqrt(steps)
    z = (np.cumsum(noise, axis=1) + clocks * MARGIN / SD) / np.sqrt(clocks)
    return float((z > np.asarray(bounds)).any(axis=1).mean())


if __name__ == "__main__":
    main()

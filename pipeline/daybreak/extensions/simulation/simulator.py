"""Simulates a year of nights: each is replayed under our policy, under the baselines, and under the optimum.

A night begins at a random tick of the traces. Its throughput is off the plan by up to `OFF`, and noisy from
tick to tick; the time of a start is random (the job's `restart_s` is its 95th percentile); spot is lost
without notice, on-demand machines fail as `MEAN_TIME_TO_FAILURE_S` says. All policies meet the same luck.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import exp
from typing import TYPE_CHECKING

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.units import HOUR_S
from daybreak.extensions.simulation.baselines import BASELINES
from daybreak.extensions.simulation.optimum import optimum_usd
from daybreak.extensions.simulation.replay import Luck, SimulatedJob, replay
from daybreak.extensions.simulation.traces import Trace
from daybreak.extensions.spot.policies import decide
from daybreak.extensions.spot.states import Policy
from daybreak.jobs.outlook import DOUBT
from daybreak.machines.losses import (
    MEAN_TIME_TO_FAILURE_S,
    MEAN_TIME_TO_PREEMPTION_S,
    checkpoint_interval_s,
)
from daybreak.machines.startup import TWICE

if TYPE_CHECKING:
    import numpy as np

OURS = "ours"
OPTIMUM = "optimum"
POLICIES: dict[str, Policy] = {OURS: decide, **BASELINES}

OFF = 0.2  # the throughput of a night is within this share of the plan
NOISE = 0.05  # standard deviation of the logarithm of a tick's throughput
RESTART_S = 600.0  # 95th percentile of a start, twice the median (startup.py, a machine with GPUs)
SAVE_S = 15.0
CHUNK = 8  # nights given to a process at a time


@dataclass(frozen=True, kw_only=True)
class PolicyNight:
    """The result of one policy on one night. For the optimum, losses, moves and waits are not known."""

    night: int
    policy: str
    missed: bool
    usd: float
    spare_s: float = 0.0  # between the end of the work and the deadline
    num_losses: int = 0
    num_moves: int = 0
    on_demand_s: float = 0.0
    waited_s: float = 0.0


def nightly_job(*, work_hours: float, deadline_hours: float) -> SimulatedJob:
    """Returns the job of a night; ParamsError if it could never be done in time."""
    if not 0 < work_hours < deadline_hours:
        raise ParamsError(
            f"--work-hours {work_hours:g} does not fit between 0 and --deadline-hours {deadline_hours:g}; "
            f"raise --deadline-hours or lower --work-hours"
        )
    return SimulatedJob(
        work_s=work_hours * HOUR_S,
        deadline_s=deadline_hours * HOUR_S,
        restart_s=RESTART_S,
        checkpoint_every_s=checkpoint_interval_s(
            save_s=SAVE_S, mean_time_to_preemption_s=MEAN_TIME_TO_PREEMPTION_S
        ),
        notice=False,
        doubt=DOUBT,
    )


def simulate(
    job: SimulatedJob,
    traces: Sequence[Trace],
    *,
    num_nights: int,
    seed: int = 0,
    num_processes: int | None = None,
) -> Iterator[list[PolicyNight]]:
    """Yields the results of all policies and of the optimum, night by night. The seed decides the year."""
    num_ticks = int(job.deadline_s / traces[0].tick_s)
    if num_nights < 1:
        raise ParamsError(f"--nights {num_nights} is below 1; give 1 or more nights")
    if num_ticks < 1 or len(traces[0].up) < num_ticks:
        raise DataError(
            f"the traces last {len(traces[0].up) * traces[0].tick_s / HOUR_S:.1f} hours, a night "
            f"{job.deadline_s / HOUR_S:.1f}; give longer traces, or lower --deadline-hours"
        )
    around = tuple(trace.around(num_ticks) for trace in traces)
    play = partial(one_night, job, around, seed=seed, num_starts=len(traces[0].up))
    processes = num_processes or os.cpu_count() or 1
    if processes == 1 or num_nights <= CHUNK:
        yield from map(play, range(num_nights))
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(play, range(num_nights), chunksize=CHUNK)


def one_night(
    job: SimulatedJob, traces: Sequence[Trace], night: int, *, seed: int, num_starts: int
) -> list[PolicyNight]:
    """Returns the results of all policies and of the optimum on night `night`, drawn by `seed`."""
    import numpy as np

    rng = np.random.default_rng([seed, night])
    start = int(rng.integers(num_starts))
    luck = draw_luck(rng, num_ticks=int(job.deadline_s / traces[0].tick_s), tick_s=traces[0].tick_s, job=job)
    policy_nights = []
    for name, policy in POLICIES.items():
        outcome = replay(policy, job, traces, start=start, luck=luck)
        spare_s = 0.0 if outcome.finished_s is None else job.deadline_s - outcome.finished_s
        policy_nights.append(
            PolicyNight(
                night=night,
                policy=name,
                missed=outcome.missed,
                usd=outcome.usd,
                spare_s=spare_s,
                num_losses=outcome.num_losses,
                num_moves=outcome.num_moves,
                on_demand_s=outcome.on_demand_s,
                waited_s=outcome.waited_s,
            )
        )
    usd = optimum_usd(
        job,
        traces,
        start=start,
        throughput=float(np.mean(luck.throughput)),
        restart_s=float(np.median(luck.restart_s)),
    )
    # The optimum costs no more than any policy; the program knows a night's luck by its mean only.
    usd = min(usd, *(each.usd for each in policy_nights if not each.missed), float("inf"))
    missed = usd == float("inf")
    return [
        *policy_nights,
        PolicyNight(night=night, policy=OPTIMUM, missed=missed, usd=0.0 if missed else usd),
    ]


def draw_luck(
    rng: "np.random.Generator", *, num_ticks: int, tick_s: float, job: SimulatedJob, off: float | None = None
) -> Luck:
    """Draws the random events of a night; `off` is the share of the planned throughput, drawn if left out."""
    import numpy as np

    median_s = job.restart_s / 2
    bias = rng.uniform(1 - OFF, 1 + OFF) if off is None else off
    return Luck(
        throughput=tuple((bias * np.exp(rng.normal(-(NOISE**2) / 2, NOISE, num_ticks))).tolist()),
        restart_s=tuple((median_s * np.exp(rng.normal(0.0, TWICE, num_ticks))).tolist()),
        lost_at=tuple(rng.random(num_ticks).tolist()),
        failed=tuple((rng.random(num_ticks) < 1 - exp(-tick_s / MEAN_TIME_TO_FAILURE_S)).tolist()),
    )

"""Computes what a night would have cost with the future known: the optimum, by a dynamic program.

The program goes over ticks. Its value is the least cost of having done k units of work while on spot or on
demand in a zone (and for how many ticks, as long as that machine is still starting), or while waiting with
the checkpoint in a zone. The rules are those of `replay` to within a unit of work, with one throughput and
one start-up time for the night.
"""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from daybreak.contract.units import HOUR_S
from daybreak.extensions.simulation.replay import SimulatedJob
from daybreak.extensions.simulation.traces import Trace
from daybreak.extensions.spot.states import egress_usd

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNIT_S = 120.0


def optimum_usd(
    job: SimulatedJob,
    traces: Sequence[Trace],
    *,
    start: int = 0,
    throughput: float = 1.0,
    restart_s: float | None = None,
) -> float:
    """Returns the least cost of the job from tick `start` of the traces on; infinite if it cannot finish."""
    import numpy as np

    tick_s = traces[0].tick_s
    units = max(1, round(tick_s / UNIT_S))  # per tick
    unit_s = tick_s / units
    total = ceil(job.work_s / throughput / unit_s - 1e-6)
    starting = round((job.restart_s if restart_s is None else restart_s) / unit_s)
    young = max(1, ceil(starting / units))  # ticks until a machine works through a whole tick
    gain = [min(units, max(0, units * (age + 1) - starting)) for age in range(young)] + [units]
    num_ticks = int(job.deadline_s / tick_s + 1e-9)
    zones = len(traces)
    names = [trace.zone for trace in traces]
    usd, between = job.egress_usd, job.egress_between
    egress = np.array([[egress_usd(a, b, usd=usd, between=between) for b in names] for a in names])
    up = np.array([trace.up[start : start + num_ticks] for trace in traces])
    spot = (
        np.array([trace.spot_usd_per_hour[start : start + num_ticks] for trace in traces]) * tick_s / HOUR_S
    )
    bought = np.array([[trace.on_demand_usd_per_hour * tick_s / HOUR_S] for trace in traces])
    never = np.full(total + 1, np.inf)
    never[0] = 0.0
    idle = np.full((zones, total + 1), np.inf)
    held = np.full((2, zones, young + 1, total + 1), np.inf)  # spot and on demand, by ticks since the start
    best = np.inf
    for tick in range(num_ticks):
        here = np.minimum(idle, held.min(axis=(0, 2)))
        fresh = np.minimum(never, (here[:, None, :] + egress[:, :, None]).min(axis=0))
        before = held
        held = np.full_like(before, np.inf)
        for age in range(young + 1):
            source = np.stack([fresh, fresh]) if age == 0 else before[:, :, age]
            into = min(age + 1, young)
            held[:, :, into] = np.minimum(held[:, :, into], _ahead(source, gain[age]))
        held[0] += np.where(up[:, tick], spot[:, tick], np.inf)[:, None, None]
        held[1] += bought[:, :, None]
        best = min(best, float(held[..., total].min()))
        held[..., total] = np.inf  # done: nothing follows
        idle = here
    return best


def _ahead(cost: "NDArray[np.float64]", by: int) -> "NDArray[np.float64]":
    """Costs by work done, after `by` more units of it; the last entry is all work done."""
    import numpy as np

    if not by:
        return cost
    moved = np.full_like(cost, np.inf)
    moved[..., by:] = cost[..., :-by]
    moved[..., -1] = cost[..., -1 - by :].min(axis=-1)
    return moved

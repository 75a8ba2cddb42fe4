"""Computes what a plan on spot may cost in the worst case, by running its own policy against losses.

Spot works as planned until a share of the work is done, and is lost again and again from then on: it is paid
for without progress, until the policy (`steering.place`) buys the same machines on demand. The rest then
takes as long as the doubt about the throughput allows, or until the deadline. The worst case is the maximum
over shares. Machines that would exceed the budget are not bought, so the budget allows the fallback only once
a certain share of the work is done.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from daybreak.contract.backend import TICK_S
from daybreak.contract.record_types import Plan
from daybreak.contract.units import HOUR_S
from daybreak.extensions.spot.steering import place
from daybreak.jobs import observed_job
from daybreak.jobs.observed_job import ObservedJob
from daybreak.jobs.outlook import DOUBT
from daybreak.jobs.submissions import JobAttempt
from daybreak.machines.startup import restart_s

NUM_SHARES, NUM_TICKS = 20, 100


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """Dollars in the worst case, and the share of work done from which on buying the rest fits the budget."""

    worst_usd: float
    paid_from: float  # 0: always; 1: never


def worst_case(plan: Plan, *, bought_usd_per_hour: float, until_s: float, budget_usd: float) -> WorstCase:
    """Returns the worst case of a plan on spot whose fallback costs `bought_usd_per_hour` in total."""
    usd = [
        _usd(plan, number / NUM_SHARES, bought_usd_per_hour=bought_usd_per_hour, until_s=until_s)
        for number in range(NUM_SHARES)
    ]
    over_budget = [number for number, each in enumerate(usd) if each > budget_usd]
    return WorstCase(
        worst_usd=min(max(usd), budget_usd),
        paid_from=(over_budget[-1] + 1) / NUM_SHARES if over_budget else 0.0,
    )


def _usd(plan: Plan, share: float, *, bought_usd_per_hour: float, until_s: float) -> float:
    """Dollars if spot does that share of the work and no more."""
    tick_s = max(TICK_S, until_s / NUM_TICKS)
    spot_usd_per_hour = (plan.usd_per_hour or 0.0) * plan.rental.num_machines
    now = share * plan.forecast.expected_s
    paid_s = now
    first = observed_job.first(plan, train_until=datetime.fromtimestamp(until_s, UTC), confidence=0.5)
    lost = ObservedJob(
        plan=plan,
        now=now,
        deadline=until_s,
        confidence=0.5,
        left_usd=0.0,
        decay=0.0,
        placement=first,
        state="none",
        since=0.0,
        seen=round(share * plan.num_samples),
        attempts=(JobAttempt(name="", job="", placement=first, at=0.0, run_at=TICK_S),),
    )
    while now < until_s:
        chosen = place(plan, replace(lost, now=now))
        if chosen is not None and not chosen.spot:
            break
        now += tick_s
        paid_s += tick_s if chosen is not None else 0.0
    rest_s = (1 - share) * plan.forecast.expected_s / (1 - DOUBT) + restart_s(plan)
    rest_s = min(rest_s, max(0.0, until_s - now))
    return paid_s / HOUR_S * spot_usd_per_hour + rest_s / HOUR_S * bought_usd_per_hour

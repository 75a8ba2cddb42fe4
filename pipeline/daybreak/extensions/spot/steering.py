"""Decides whether tonight's job goes to spot now, to on-demand machines, or waits.

It translates what the launcher knows of the job into the state that `policies.decide` takes. Every region in
which the plan or its fallbacks have the same machines on spot is a zone; buying means their on-demand
fallback in one of the zones. A job that waits in the queue for spot counts as a zone without capacity, and so
do zones that refused it. A running spot machine is given up for on demand once the deadline could not be met
after its loss, and never for another zone. A job on demand stays there: spot capacity cannot be seen without
giving up the machine in use.
"""

from dataclasses import dataclass, replace
from math import inf

from daybreak.contract.backend import TICK_S
from daybreak.contract.record_parts import Placement, Rental
from daybreak.contract.record_types import Plan
from daybreak.contract.units import HOUR_S
from daybreak.extensions.spot.policies import decide
from daybreak.extensions.spot.states import CapacityHistory, Place, SpotState, Zone
from daybreak.jobs import observed_job
from daybreak.jobs.cost_tracker import usd_per_hour
from daybreak.jobs.escalation import is_fresh
from daybreak.jobs.observed_job import ObservedJob, placements, plan_with
from daybreak.jobs.remaining_work import keeps, remaining_usd
from daybreak.machines.startup import restart_s


@dataclass(frozen=True)
class Steering:
    """Chooses for a job that is planned on spot: spot machines, the same machines on demand, or waiting."""

    job: ObservedJob

    def best(self) -> Placement | None:
        """Returns spot or the same machines on demand, if the plan has both; else the current placement.

        None: wait for spot.
        """
        job = self.job
        here, running = job.placement, job.state == "running"
        spot = here if here.rental.is_spot else self._same_on_spot()
        held = not here.rental.is_spot and job.state in ("running", "queued")  # and not left for spot
        if spot is None or held:
            return here
        there = plan_with(job, spot)
        if on_demand(there) is None:
            return here
        chosen = place(there, job)
        if chosen is None or (chosen.spot and job.state == "queued"):
            return here if job.state == "queued" else None
        at = self._placement_at(chosen, like=spot)
        if chosen.spot or remaining_usd(job, at) <= job.left_usd:
            return at
        # The budget cannot pay for the rest on demand: spot is used until it is time to spend what is left.
        lasts_s = job.left_usd / usd_per_hour(at) * HOUR_S + restart_s(job.plan) + observed_job.PATIENCE_S
        return spot if running or job.deadline - job.now > lasts_s else at

    def elsewhere(self) -> Placement | None:
        """Returns the cheapest spot placement that was not refused and the policy accepts; None without."""
        job = self.job
        on_spot = (placement for placement in placements(job) if placement.rental.is_spot)
        left = [
            placement
            for placement in on_spot
            if placement.rental not in job.refused and keeps(job, placement)
        ]
        for placement in sorted(left, key=lambda placement: remaining_usd(job, placement)):
            chosen = place(plan_with(job, placement), replace(job, state="none"))
            if chosen and chosen.spot:
                return placement
        return None

    def _same_on_spot(self) -> Placement | None:
        """Returns the placement of the same machines on spot."""
        rental = replace(self.job.placement.rental.on_demand, strategy="spot")
        return next((placement for placement in placements(self.job) if placement.rental == rental), None)

    def _placement_at(self, chosen: Place, *, like: Placement) -> Placement:
        """Returns the placement of the same machines in that zone, on spot or on demand."""
        return next(
            placement
            for placement in (like, *placements(self.job))  # a job that stepped down is beside these
            if placement.rental.is_spot == chosen.spot
            and placement.rental.num_machines == like.rental.num_machines
            and zone_of(placement.rental) == chosen.zone
        )


def place(plan: Plan, job: ObservedJob) -> Place | None:
    """Returns where a job that is planned on spot is to run; None: nowhere, or in the queue that it is in.

    Whether another zone has capacity cannot be seen without giving up the machine that is held, and what was
    bought here is bought elsewhere before other zones are asked for spot.
    """
    here, own = zone_of(plan.rental), on_demand(plan)
    fresh = [rental for rental in job.refused if is_fresh(job, rental)]
    running, queued = job.state == "running", job.state in ("queued", "refused") or plan.rental in fresh
    if not plan.rental.is_spot or own is None:
        return None if queued else Place(here, spot=plan.rental.is_spot)
    held = running or not job.placement.rental.is_spot
    away = [placement.rental for placement in placements(job)] if held else fresh
    alike = _anywhere(plan.rental)
    others = [
        placement
        for placement in plan.fallbacks
        if _anywhere(placement.rental) == alike and placement.rental != plan.rental
    ]
    ways: list[tuple[Plan | Placement, Placement | None]] = [(plan, own)]
    ways += [(placement, on_demand(plan, of=placement)) for placement in others]
    zones = tuple(
        Zone(
            name=zone_of(way.rental),
            spot_usd_per_hour=usd_per_hour(way),
            on_demand_usd_per_hour=usd_per_hour(bought) if bought else inf,
            capacity=_capacity(job, zone_of(way.rental), queued=queued),
        )
        for way, bought in ways
    )
    # What a lost machine had saved is not known here: the work since a whole interval counts as lost.
    unsaved_s = 0.0 if running else plan.checkpoint_every_s
    planned = plan.num_samples / plan.forecast.expected_s
    work_s = job.num_samples / planned
    done_s = max(0.0, job.seen / planned - unsaved_s)
    return decide(
        SpotState(
            now_s=job.now,
            deadline_s=job.deadline,
            tick_s=TICK_S,
            work_s=work_s,
            done_s=done_s,
            zones=zones,
            place=Place(here, spot=True) if running else None,
            starting_s=job.starting_s,
            home=here,
            refused=frozenset(
                (
                    *((here,) if queued else ()),
                    *(zone_of(each) for each in away if each.is_spot and each != plan.rental),
                )
            ),
            ran_s=done_s * planned / job.rate.samples_per_s if job.rate else 0.0,
            made_s=done_s if job.rate else 0.0,
            restart_s=restart_s(plan),
            at_risk_s=plan.checkpoint_every_s + TICK_S,
        )
    )


def _anywhere(rental: Rental) -> tuple[object, ...]:
    """Returns what is rented and how, wherever it is; `replace` takes ten times as long."""
    return rental.machine, rental.num_machines, rental.strategy, rental.max_wait_s, rental.others


def zone_of(rental: Rental) -> str:
    """Returns the name of the zone of a rental: machine and region, without number and strategy.

    >>> zone_of(Rental(machine="g2-standard-8", num_machines=2, region="us-east4", strategy="spot"))
    'g2-standard-8, in us-east4'
    """
    return str(rental.on_demand.one)


def on_demand(plan: Plan, *, of: Placement | None = None) -> Placement | None:
    """Returns the fallback to the same machines on demand, or to those of a placement; None without one."""
    bought = (of or plan).rental.on_demand
    return next((placement for placement in plan.fallbacks if placement.rental == bought), None)


def _capacity(job: ObservedJob, zone: str, *, queued: bool) -> CapacityHistory:
    """Derives the history of spot capacity in a zone from the attempts there.

    If another attempt follows one that got its machines, these were lost. An attempt that got no machines, or
    is queued, means no capacity.
    """
    seen = CapacityHistory()
    rentals = ((each, each.placement.rental) for each in job.attempts)
    asked = [each for each, rental in rentals if rental.is_spot and zone_of(rental) == zone]
    for number, attempt in enumerate(asked):
        if number:
            seen = seen.look(up=False, now_s=attempt.at)
        waits = queued and attempt is job.attempts[-1]
        seen = seen.look(up=bool(attempt.run_at) and not waits, now_s=attempt.at)
    return seen

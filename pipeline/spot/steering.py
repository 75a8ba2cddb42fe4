"""Decides whether tonight's job goes to spot now, to on-demand machines, or waits.

It puts what the launcher knows into the state that `policies.decide` takes. The plan names one machine of one
region, so there is one zone; buying means the ladder's rung of the same machines on demand. A job that waits
in the queue for spot counts as a zone without capacity. A running spot machine is given up for on demand once
the deadline could not be met after its loss. A job on demand is left where it is: whether there is spot
capacity cannot be seen without giving up the machine that is held.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.contract.records import Plan, Rung, Strategy
from pipeline.contract.units import HOUR_S
from pipeline.machines.startup import BEFORE_WORK
from pipeline.spot.policies import decide
from pipeline.spot.states import Place, Sightings, State, Zone

TICK_S = 120.0  # the launcher decides at least this often
RESTART_S = (
    840.0  # 95th percentile of a start: twice the median of the slowest kind (startup.py), without data
)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One submission of the job."""

    at: float
    strategy: Strategy


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How far the job is, and what became of its submissions."""

    now: float  # all times in seconds since the same moment
    deadline: float
    seen: int  # samples trained on, as last reported
    samples_per_s: float | None  # as trained so far
    attempts: Sequence[Attempt]
    queued: bool  # the last of them is not running yet
    running: bool = False  # on spot
    starting_s: float = 0.0  # remaining time of its start


def place(plan: Plan, facts: Facts) -> Place | None:
    """Returns where the job should run; None: nowhere yet, or in the queue for spot that it is in."""
    bought = on_demand(plan)
    if not plan.rental.is_spot or bought is None:
        return None if facts.queued else Place(plan.rental.machine, spot=plan.rental.is_spot)
    zone = Zone(
        name=plan.rental.machine,
        spot_usd_per_hour=usd_per_hour(plan),
        on_demand_usd_per_hour=usd_per_hour(bought),
        sightings=_sightings(facts),
    )
    # What a lost machine had saved is not known here: the work since a whole interval counts as lost.
    unsaved_s = 0.0 if facts.running else plan.checkpoint_every_s
    done_s = max(0.0, facts.seen / plan.num_samples * plan.expected_s - unsaved_s)
    planned = plan.num_samples / plan.expected_s
    return decide(
        State(
            now_s=facts.now,
            deadline_s=facts.deadline,
            tick_s=TICK_S,
            work_s=plan.expected_s,
            done_s=done_s,
            zones=(zone,),
            place=Place(zone.name, spot=True) if facts.running else None,
            starting_s=facts.starting_s,
            home=zone.name,
            refused=frozenset((zone.name,)) if facts.queued else frozenset(),
            ran_s=done_s * planned / facts.samples_per_s if facts.samples_per_s else 0.0,
            made_s=done_s if facts.samples_per_s else 0.0,
            restart_s=restart_s(plan),
            at_risk_s=plan.checkpoint_every_s + TICK_S,
        )
    )


def restart_s(plan: Plan) -> float:
    """Returns the 95th percentile of seconds from a start until work resumes, fetching the data included."""
    median_s = sum(portion.expected_s for portion in plan.portions if portion.name in BEFORE_WORK)
    return max(RESTART_S, 2 * median_s)


def on_demand(plan: Plan) -> Rung | None:
    """Returns the ladder's rung of the same machines on demand; None where it has none."""
    bought = plan.rental.on_demand
    return next((rung for rung in plan.ladder if rung.rental == bought), None)


def usd_per_hour(way: Plan | Rung) -> float:
    """Returns the price per hour of all machines.

    Plans of earlier nights do not record it; their cost covers all of their time, so it follows from both.
    """
    if way.usd_per_hour is not None:
        return way.usd_per_hour * way.rental.num_machines
    return way.expected_usd / way.expected_s * HOUR_S if way.expected_s else 0.0


def _sightings(facts: Facts) -> Sightings:
    """Derives sightings from the spot attempts: a new attempt means a loss, a queued one no capacity."""
    seen = Sightings()
    asked = [attempt for attempt in facts.attempts if attempt.strategy == "spot"]
    for number, attempt in enumerate(asked):
        if number:
            seen = seen.look(up=False, now_s=attempt.at)
        last = number == len(asked) - 1
        seen = seen.look(up=not (last and facts.queued), now_s=attempt.at)
    return seen

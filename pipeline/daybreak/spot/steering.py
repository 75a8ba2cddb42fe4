"""Decides whether tonight's job goes to spot now, to on-demand machines, or waits.

It translates the launcher's facts into the state that `policies.decide` takes. Every region in which plan or
ladder have the same machines on spot is a zone; buying means their on-demand fallback in one of the zones. A
job that waits in the queue for spot counts as a zone without capacity, and so do zones that refused it. A
running spot machine is given up for on demand once the deadline could not be met after its loss, and never
for another zone. A job on demand stays there: spot capacity cannot be seen without giving up the machine in
use.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from daybreak.contract.record_types import Plan, Rental, Rung, Strategy
from daybreak.contract.units import HOUR_S
from daybreak.machines.startup import BEFORE_WORK
from daybreak.spot.policies import decide
from daybreak.spot.states import Place, Sightings, SpotState, Zone

TICK_S = 120.0  # the launcher decides at least this often
RESTART_S = (
    840.0  # 95th percentile of a start: twice the median of the slowest kind (startup.py), without data
)


@dataclass(frozen=True, kw_only=True)
class SpotAttempt:
    """One submission of the job."""

    at: float
    strategy: Strategy
    zone: str = ""  # "": where the plan is
    came: bool = True  # machines were there


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How far the job is, and what became of its submissions."""

    now: float  # all times in seconds since the same moment
    deadline: float
    seen: int  # samples trained on, as last reported
    samples_per_s: float | None  # as trained so far
    attempts: Sequence[SpotAttempt]
    queued: bool  # the last of them is not running yet
    running: bool = False  # on spot
    starting_s: float = 0.0  # remaining time of its start
    refused: Collection[str] = ()  # other zones without capacity now


def place(plan: Plan, facts: Facts) -> Place | None:
    """Returns where the job should run; None: nowhere yet, or in the queue for spot that it is in."""
    here, own = zone_of(plan.rental), on_demand(plan)
    if not plan.rental.is_spot or own is None:
        return None if facts.queued else Place(here, spot=plan.rental.is_spot)
    alike = _anywhere(plan.rental)
    others = [rung for rung in plan.ladder if _anywhere(rung.rental) == alike and rung.rental != plan.rental]
    ways: list[tuple[Plan | Rung, Rung | None]] = [(plan, own)]
    ways += [(rung, on_demand(plan, of=rung)) for rung in others]
    zones = tuple(
        Zone(
            name=zone_of(way.rental),
            spot_usd_per_hour=usd_per_hour(way),
            on_demand_usd_per_hour=usd_per_hour(bought) if bought else inf,
            sightings=_sightings(facts, zone_of(way.rental), here=here),
        )
        for way, bought in ways
    )
    # What a lost machine had saved is not known here: the work since a whole interval counts as lost.
    unsaved_s = 0.0 if facts.running else plan.checkpoint_every_s
    done_s = max(0.0, facts.seen / plan.num_samples * plan.expected_s - unsaved_s)
    planned = plan.num_samples / plan.expected_s
    return decide(
        SpotState(
            now_s=facts.now,
            deadline_s=facts.deadline,
            tick_s=TICK_S,
            work_s=plan.expected_s,
            done_s=done_s,
            zones=zones,
            place=Place(here, spot=True) if facts.running else None,
            starting_s=facts.starting_s,
            home=here,
            refused=frozenset((*((here,) if facts.queued else ()), *facts.refused)),
            ran_s=done_s * planned / facts.samples_per_s if facts.samples_per_s else 0.0,
            made_s=done_s if facts.samples_per_s else 0.0,
            restart_s=restart_s(plan),
            at_risk_s=plan.checkpoint_every_s + TICK_S,
        )
    )


def _anywhere(rental: Rental) -> tuple[object, ...]:
    """Returns what is rented and how, wherever it is; `replace` takes ten times as long."""
    return rental.machine, rental.num_machines, rental.strategy, rental.max_wait_s, rental.others


def restart_s(plan: Plan) -> float:
    """Returns the 95th percentile of seconds from a start until work resumes, fetching the data included."""
    median_s = sum(portion.expected_s for portion in plan.portions if portion.name in BEFORE_WORK)
    return max(RESTART_S, 2 * median_s)


def zone_of(rental: Rental) -> str:
    """Returns the name of the zone of a rental: machine and region, without number and strategy.

    >>> zone_of(Rental(machine="g2-standard-8", num_machines=2, region="us-east4", strategy="spot"))
    'g2-standard-8, in us-east4'
    """
    return str(rental.on_demand.one)


def on_demand(plan: Plan, *, of: Rung | None = None) -> Rung | None:
    """Returns the ladder's rung of the same machines on demand, or of those of a rung; None without one."""
    bought = (of or plan).rental.on_demand
    return next((rung for rung in plan.ladder if rung.rental == bought), None)


def usd_per_hour(way: Plan | Rung) -> float:
    """Returns the price per hour of all machines.

    Earlier plans do not record the price; it follows from their cost and time.
    """
    if way.usd_per_hour is not None:
        return way.usd_per_hour * way.rental.num_machines
    return way.expected_usd / way.expected_s * HOUR_S if way.expected_s else 0.0


def _sightings(facts: Facts, zone: str, *, here: str) -> Sightings:
    """Derives sightings from the spot attempts in a zone.

    If another attempt follows one that got its machines, these were lost. An attempt that got no machines, or
    is queued, means no capacity.
    """
    seen = Sightings()
    asked = [each for each in facts.attempts if each.strategy == "spot" and (each.zone or here) == zone]
    for number, attempt in enumerate(asked):
        if number:
            seen = seen.look(up=False, now_s=attempt.at)
        waits = facts.queued and attempt is facts.attempts[-1]
        seen = seen.look(up=attempt.came and not waits, now_s=attempt.at)
    return seen

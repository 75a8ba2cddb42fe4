"""Shall tonight's job go to spot now, be bought, or wait? What the launcher knows, as a state to decide on.

The plan names one machine of one region, so there is one zone; buying means the ladder's rung of the same
machines on demand. A job that waits in the queue for spot has found no capacity. A running machine is left
where it is: going to spot was only allowed where its loss could be borne.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.planning.policies import decide
from pipeline.planning.states import HOUR_S, Place, Sightings, State, Zone
from pipeline.records import Plan

TICK_S = 120.0  # the launcher is asked at least so often
RESTART_S = 840.0  # 95th percentile of a start: twice the median of the slowest kind (costs.START_S)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One time the job was submitted, in seconds after the first."""

    at_s: float
    spot: bool


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How far the job is, and what became of asking for machines."""

    now_s: float  # after the first submission, as the deadline is
    deadline_s: float
    seen: int  # samples that a checkpoint may hold
    samples_per_s: float | None  # as trained so far
    attempts: Sequence[Attempt]
    queued: bool  # the last of them is not running yet


def place(plan: Plan, facts: Facts) -> Place | None:
    """Where the job shall be submitted; None: nowhere yet, or in the queue for spot that it is in."""
    bought = next(
        (rung for rung in plan.ladder
         if not rung.spot and (rung.machine, rung.num_machines) == (plan.machine, plan.num_machines)),
        None,
    )  # fmt: skip
    if not plan.spot or bought is None:
        return None if facts.queued else Place(plan.machine, spot=plan.spot)
    zone = Zone(
        name=plan.machine,
        spot_usd_per_hour=plan.expected_usd / plan.expected_s * HOUR_S,
        on_demand_usd_per_hour=bought.expected_usd / bought.expected_s * HOUR_S,
        sightings=_sightings(facts),
    )
    done_s = facts.seen / plan.num_samples * plan.expected_s
    planned = plan.num_samples / plan.expected_s
    return decide(
        State(
            now_s=facts.now_s,
            deadline_s=facts.deadline_s,
            tick_s=TICK_S,
            work_s=plan.expected_s,
            done_s=done_s,
            zones=(zone,),
            home=zone.name,
            refused=frozenset((zone.name,)) if facts.queued else frozenset(),
            ran_s=done_s * planned / facts.samples_per_s if facts.samples_per_s else 0.0,
            made_s=done_s if facts.samples_per_s else 0.0,
            restart_s=RESTART_S,
            at_risk_s=plan.checkpoint_every_s + TICK_S,
        )
    )


def _sightings(facts: Facts) -> Sightings:
    """A spot machine that was asked for again had been lost; one that is queued for is not there."""
    seen = Sightings()
    asked = [attempt for attempt in facts.attempts if attempt.spot]
    for number, attempt in enumerate(asked):
        if number:
            seen = seen.look(up=False, now_s=attempt.at_s)
        last = number == len(asked) - 1
        seen = seen.look(up=not (last and facts.queued), now_s=attempt.at_s)
    return seen

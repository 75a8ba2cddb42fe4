"""Shall tonight's job go to spot now, be bought, or wait? What the launcher knows, as a state to decide on.

The plan names one machine of one region, so there is one zone; buying means the ladder's rung of the same
machines on demand. A job that waits in the queue for spot has found no capacity. A running machine is left
where it is: going to spot was only allowed where its loss could be borne.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.planning.startup import BEFORE_WORK
from pipeline.records import Plan, Rung
from pipeline.spot.curves import HOUR_S
from pipeline.spot.policies import decide
from pipeline.spot.states import Place, Sightings, State, Zone

TICK_S = 120.0  # the launcher is asked at least so often
RESTART_S = (
    840.0  # 95th percentile of a start: twice the median of the slowest kind (startup.py), without data
)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One time the job was submitted."""

    at: float
    spot: bool


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How far the job is, and what became of asking for machines."""

    now: float  # all times in seconds since the same moment
    deadline: float
    seen: int  # samples trained on, as last heard
    samples_per_s: float | None  # as trained so far
    attempts: Sequence[Attempt]
    queued: bool  # the last of them is not running yet


def place(plan: Plan, facts: Facts) -> Place | None:
    """Where the job shall be submitted; None: nowhere yet, or in the queue for spot that it is in."""
    bought = on_demand(plan)
    if not plan.spot or bought is None:
        return None if facts.queued else Place(plan.machine, spot=plan.spot)
    zone = Zone(
        name=plan.machine,
        spot_usd_per_hour=_usd_per_hour(plan),
        on_demand_usd_per_hour=_usd_per_hour(bought),
        sightings=_sightings(facts),
    )
    # What a lost machine had saved is not known here: the work of an interval is taken as gone.
    done_s = max(0.0, facts.seen / plan.num_samples * plan.expected_s - plan.checkpoint_every_s)
    planned = plan.num_samples / plan.expected_s
    return decide(
        State(
            now_s=facts.now,
            deadline_s=facts.deadline,
            tick_s=TICK_S,
            work_s=plan.expected_s,
            done_s=done_s,
            zones=(zone,),
            home=zone.name,
            refused=frozenset((zone.name,)) if facts.queued else frozenset(),
            ran_s=done_s * planned / facts.samples_per_s if facts.samples_per_s else 0.0,
            made_s=done_s if facts.samples_per_s else 0.0,
            restart_s=restart_s(plan),
            at_risk_s=plan.checkpoint_every_s + TICK_S,
        )
    )


def restart_s(plan: Plan) -> float:
    """95th percentile of what a start takes until work goes on: the data is brought anew, too."""
    median_s = sum(portion.expected_s for portion in plan.portions if portion.name in BEFORE_WORK)
    return max(RESTART_S, 2 * median_s)


def attempts(plan: Plan, lines: Sequence[Mapping[str, Any]]) -> list[Attempt]:
    """The lines of submissions.jsonl as attempts, without those that say that a queue was left."""
    return [
        Attempt(at=line["time"], spot=line.get("spot", plan.spot)) for line in lines if not line.get("left")
    ]


def usd(plan: Plan, tried: Sequence[Attempt], *, elapsed_s: float, ended: float) -> float:
    """What `elapsed_s` of the job have cost; what was bought though the plan was spot at its own price."""
    per_s, bought = _usd_per_hour(plan) / HOUR_S, on_demand(plan)
    bought_per_s = _usd_per_hour(bought) / HOUR_S if plan.spot and bought else per_s
    ends = [*(attempt.at for attempt in tried[1:]), ended]
    bought_s = sum(max(0.0, end - one.at) for one, end in zip(tried, ends, strict=False) if not one.spot)
    bought_s = min(bought_s, elapsed_s)
    return (elapsed_s - bought_s) * per_s + bought_s * bought_per_s


def on_demand(plan: Plan) -> Rung | None:
    """The ladder's rung of the same machines on demand."""
    same = (plan.machine, plan.num_machines, plan.region)
    bought = (rung for rung in plan.ladder if not (rung.spot or rung.wait_s))
    return next((r for r in bought if (r.machine, r.num_machines, r.region) == same), None)


def _usd_per_hour(way: Plan | Rung) -> float:
    """What all machines cost; plans of earlier nights do not say, but billed all of their time."""
    if way.usd_per_hour is not None:
        return way.usd_per_hour * way.num_machines
    return way.expected_usd / way.expected_s * HOUR_S if way.expected_s else 0.0


def _sightings(facts: Facts) -> Sightings:
    """A spot machine that was asked for again had been lost; one that is queued for is not there."""
    seen = Sightings()
    asked = [attempt for attempt in facts.attempts if attempt.spot]
    for number, attempt in enumerate(asked):
        if number:
            seen = seen.look(up=False, now_s=attempt.at)
        last = number == len(asked) - 1
        seen = seen.look(up=not (last and facts.queued), now_s=attempt.at)
    return seen

"""Where shall the job be for the next tick: on spot, on demand, or nowhere? `decide(state) -> Place | None`.

A state is all that is known at a tick; the answer is the place to be in, or None: wait. Where a place has no
capacity, its zone goes into `refused` and the same question is asked again within the tick. The launcher asks
it, and the simulator replays it.

Two parts, and the first one rules. **The safety net** keeps S, the time that is left beyond the work that is
left, large enough for what may come, with restarts at their 95th percentile d and the throughput at the low
end of what is known of it: waiting a tick must leave 2 d, going to spot must survive its loss (2 d), staying
there too (d); else it is on demand to the end (Can't Be Late, NSDI'24).

**The value of work** chooses among what is safe, as in SkyNomad (NSDI'27): with price C, expected remaining
lifetime L and egress E a place is worth U = V (L - d)+ / L - C - E / L per hour, and waiting 0. Their V looks
back at the progress made; ours looks ahead, at what an hour of work will cost later: the price of spot, and
with a chance of pi what is dearer about on-demand. What the rest of the work loses to restarts and outages is
taken as exponential with mean m, so pi(S) = exp(-(S - 2 d) / m), and since a lost hour makes that likelier
for all W hours that are left, it costs W / m times as much (the derivative of W pi(S)).
"""

from dataclasses import dataclass
from math import exp

from pipeline.contract.units import HOUR_S
from pipeline.spot.states import Place, State, Zone

MARGIN = 0.006  # of the price of on-demand: what moving must gain at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """What the safety net allows."""

    spare_s: float  # S: time beyond the work that is left
    wait: bool
    launch: bool  # go to spot
    stay: bool  # on spot


def net(state: State) -> Net:
    """What still reaches the deadline, whatever comes."""
    d = state.restart_s
    # Time at the place is lost until work goes on there, so what is left of the start is no spare time.
    starting_s = state.starting_s if state.place else 0.0
    spare_s = state.left_s - starting_s - state.todo_s / state.low_throughput
    return Net(
        spare_s=spare_s,
        wait=spare_s - state.tick_s >= 2 * d,
        launch=spare_s - state.at_risk_s >= 2 * d,
        stay=spare_s - state.at_risk_s >= d,
    )


def decide(state: State) -> Place | None:
    """The place to be in for the next tick, or None to wait.

    >>> from dataclasses import replace
    >>> zone = Zone(name="us-east1-b", spot_usd_per_hour=1, on_demand_usd_per_hour=3)
    >>> state = State(
    ...     now_s=0, deadline_s=64_800, tick_s=600, work_s=43_200, done_s=0, zones=(zone,), restart_s=600,
    ...     doubt=0
    ... )
    >>> decide(state)
    Place(zone='us-east1-b', spot=True)
    >>> decide(replace(state, refused=frozenset({"us-east1-b"})))
    >>> decide(replace(state, refused=frozenset({"us-east1-b"}), now_s=19_200))
    Place(zone='us-east1-b', spot=False)
    """
    allowed, here = net(state), state.place
    bought = cheapest_on_demand(state)
    if here is not None and not (allowed.stay if here.spot else allowed.launch):
        return bought if here.spot else here
    value = value_of_work(state, spare_s=allowed.spare_s)
    options: dict[Place | None, float] = {bought: _worth_on_demand(state, bought, value=value)}
    if allowed.launch:
        for zone in state.zones:
            if zone.name not in state.refused:
                options[Place(zone.name, spot=True)] = worth(state, zone, value=value)
    # Spot that is held costs no start, so it is not left for waiting.
    if allowed.wait and not (here is not None and here.spot):
        options[None] = 0.0
    if here is not None:
        zone = state.zone(here.zone)
        price = zone.spot_usd_per_hour if here.spot else zone.on_demand_usd_per_hour
        options[here] = max(0.0, value - price) if here.spot else value - price
        options[here] += MARGIN * state.dear_usd_per_hour
    return max(options, key=options.__getitem__)


def value_of_work(state: State, *, spare_s: float) -> float:
    """What an hour of work done now saves later, in dollars."""
    dear = state.dear_usd_per_hour
    missing = 1.0
    price = 0.0
    for zone in sorted(state.zones, key=lambda zone: zone.spot_usd_per_hour):
        price += missing * zone.sightings.availability * zone.spot_usd_per_hour
        missing *= 1 - zone.sightings.availability
    price += missing * dear
    longest_s = max(zone.sightings.lifetime_s(now_s=state.now_s) for zone in state.zones)
    each_s = state.restart_s + state.at_risk_s / 2
    mean_s = missing * state.todo_s + each_s * (1 + state.todo_s / longest_s)
    chance = exp(-max(0.0, spare_s - state.at_risk_s - 2 * state.restart_s) / mean_s)
    return price + max(0.0, dear - price) * chance * max(1.0, state.todo_s / mean_s)


def worth(state: State, zone: Zone, *, value: float) -> float:
    """Dollars per hour that going to spot in a zone gains over waiting (SkyNomad's utility)."""
    life_s = min(zone.sightings.lifetime_s(now_s=state.now_s), state.todo_s + state.restart_s)
    share = _share(state, life_s)
    return value * share - zone.spot_usd_per_hour - state.egress(zone) / (life_s / HOUR_S)


def _share(state: State, life_s: float) -> float:
    """Share of a machine's life that is work; all of it where the job is nowhere and the machine outlives it.

    Such a job has to start once, whenever that is: that is no reason to wait.
    """
    if state.place is None and life_s >= state.todo_s + state.restart_s:
        return 1.0
    return max(0.0, life_s - state.restart_s) / life_s


def _worth_on_demand(state: State, place: Place, *, value: float) -> float:
    """The same of going on demand until the end."""
    zone, time_s = state.zone(place.zone), max(state.todo_s, state.restart_s)
    share = 1 - state.restart_s / time_s
    return value * share - zone.on_demand_usd_per_hour - state.egress(zone) / (time_s / HOUR_S)


def cheapest_on_demand(state: State) -> Place:
    """On demand where it is cheapest until the end; where it runs already, no start is paid."""

    def usd(zone: Zone) -> float:
        running = state.place == Place(zone.name, spot=False)
        time_s = state.todo_s + (0.0 if running else state.restart_s)
        return zone.on_demand_usd_per_hour * time_s / HOUR_S + state.egress(zone)

    return Place(min(state.zones, key=usd).name, spot=False)

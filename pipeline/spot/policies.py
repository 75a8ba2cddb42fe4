"""Decides where a job runs during the next tick: on spot, on demand, or nowhere.

`decide(state)` takes all that is known at a tick and returns the place to be in, or None to wait. Where a
place has no capacity, its zone is added to `refused` and `decide` is called again within the tick. The
launcher calls it, and the simulator replays it.

It has two parts, and the first takes precedence. **The safety margin** keeps S, the time left beyond the
remaining work, large enough for what may happen, with restarts at their 95th percentile d and the throughput
at the low end of its estimate: waiting a tick must leave 2 d, going to spot must survive its loss (2 d), and
so must staying there (d); otherwise the job runs on demand to the end (Can't Be Late, NSDI'24).

**The value of work** chooses among what is safe, as in SkyNomad (NSDI'27): with price C, expected remaining
lifetime L and egress E a place is worth U = V (L - d)+ / L - C - E / L per hour, and waiting 0. Their V looks
back at the progress made; ours looks ahead, at what an hour of work will cost later: the price of spot, plus,
with probability pi, the extra price of on-demand. What the rest of the work loses to restarts and outages is
modelled as exponential with mean m, so pi(S) = exp(-(S - 2 d) / m), and since a lost hour makes that more
likely for all W remaining hours, it costs W / m times as much (the derivative of W pi(S)).
"""

from dataclasses import dataclass
from math import exp

from pipeline.contract.units import HOUR_S
from pipeline.spot.states import Place, State, Zone

MARGIN = 0.006  # least gain that justifies a move, as a share of the on-demand price


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyMargin:
    """The moves that still reach the deadline."""

    spare_s: float  # S: time left beyond the remaining work
    wait: bool
    launch: bool  # go to spot
    stay: bool  # on spot


def safety_margin(state: State) -> SafetyMargin:
    """Returns which moves still reach the deadline, whatever happens."""
    d = state.restart_s
    # Time at the place is lost until work goes on there, so the rest of the start is not spare time.
    starting_s = state.starting_s if state.place else 0.0
    spare_s = state.left_s - starting_s - state.todo_s / state.low_throughput
    return SafetyMargin(
        spare_s=spare_s,
        wait=spare_s - state.tick_s >= 2 * d,
        launch=spare_s - state.at_risk_s >= 2 * d,
        stay=spare_s - state.at_risk_s >= d,
    )


def decide(state: State) -> Place | None:
    """Returns the place to be in for the next tick, or None to wait.

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
    allowed, here = safety_margin(state), state.place
    bought = cheapest_on_demand(state)
    if here is not None and not (allowed.stay if here.spot else allowed.launch):
        return bought if here.spot else here
    value = value_of_work(state, spare_s=allowed.spare_s)
    options: dict[Place | None, float] = {bought: _worth_on_demand(state, bought, value=value)}
    if allowed.launch:
        for zone in state.zones:
            if zone.name not in state.refused:
                options[Place(zone.name, spot=True)] = worth(state, zone, value=value)
    # A spot machine that is held needs no start, so it is not given up in order to wait.
    if allowed.wait and not (here is not None and here.spot):
        options[None] = 0.0
    if here is not None:
        zone = state.zone(here.zone)
        price = zone.spot_usd_per_hour if here.spot else zone.on_demand_usd_per_hour
        options[here] = max(0.0, value - price) if here.spot else value - price
        options[here] += MARGIN * state.on_demand_usd_per_hour
    return max(options, key=options.__getitem__)


def value_of_work(state: State, *, spare_s: float) -> float:
    """Returns what an hour of work done now saves later, in dollars."""
    on_demand_usd = state.on_demand_usd_per_hour
    missing = 1.0
    price = 0.0
    for zone in sorted(state.zones, key=lambda zone: zone.spot_usd_per_hour):
        price += missing * zone.sightings.availability * zone.spot_usd_per_hour
        missing *= 1 - zone.sightings.availability
    price += missing * on_demand_usd
    longest_s = max(zone.sightings.lifetime_s(now_s=state.now_s) for zone in state.zones)
    each_s = state.restart_s + state.at_risk_s / 2
    mean_s = missing * state.todo_s + each_s * (1 + state.todo_s / longest_s)
    chance = exp(-max(0.0, spare_s - state.at_risk_s - 2 * state.restart_s) / mean_s)
    return price + max(0.0, on_demand_usd - price) * chance * max(1.0, state.todo_s / mean_s)


def worth(state: State, zone: Zone, *, value: float) -> float:
    """Returns the dollars per hour that spot in a zone gains over waiting (SkyNomad's utility)."""
    life_s = min(zone.sightings.lifetime_s(now_s=state.now_s), state.todo_s + state.restart_s)
    share = _share(state, life_s)
    return value * share - zone.spot_usd_per_hour - state.egress(zone) / (life_s / HOUR_S)


def _share(state: State, life_s: float) -> float:
    """Returns the share of a machine's life that is work.

    It is 1 where the job runs nowhere yet and the machine outlives it: such a job has to start once, whenever
    that is, so the start is no reason to wait.
    """
    if state.place is None and life_s >= state.todo_s + state.restart_s:
        return 1.0
    return max(0.0, life_s - state.restart_s) / life_s


def _worth_on_demand(state: State, place: Place, *, value: float) -> float:
    """Returns the dollars per hour that running on demand until the end gains over waiting."""
    zone, time_s = state.zone(place.zone), max(state.todo_s, state.restart_s)
    share = 1 - state.restart_s / time_s
    return value * share - zone.on_demand_usd_per_hour - state.egress(zone) / (time_s / HOUR_S)


def cheapest_on_demand(state: State) -> Place:
    """Returns the cheapest on-demand place to the end; where the job runs already, no start is paid."""

    def usd(zone: Zone) -> float:
        running = state.place == Place(zone.name, spot=False)
        time_s = state.todo_s + (0.0 if running else state.restart_s)
        return zone.on_demand_usd_per_hour * time_s / HOUR_S + state.egress(zone)

    return Place(min(state.zones, key=usd).name, spot=False)

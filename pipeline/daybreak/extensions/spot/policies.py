"""Decides where a job runs during the next tick: on spot, on demand, or nowhere.

`decide(state)` takes all that is known at a tick and returns the place to be in, or None to wait. Where a
place has no capacity, its zone is added to `refused` and `decide` is called again within the tick. The
launcher calls it, and the simulator replays it.

It has two parts, and the first takes precedence. **The safety margin** keeps S, the time left beyond the
remaining work, large enough for losses to come, with restarts at their 95th percentile d and the throughput
at the low end of its estimate: waiting a tick must leave 2 d, going to spot must survive its loss (2 d), and
so must staying there (d); otherwise the job runs on demand to the end (Can't Be Late, NSDI'24).

**The value of waiting** chooses among safe moves. An hour of work costs g in the long run, restarts and moves
of later hours included, and an hour that passes without work costs t. A place with price C, egress E and
expected life L then costs, beyond the price of the same work elsewhere,

    E + d (C + t) + L (1 - exp(-W / L)) (C - g)

where W is the remaining work. The cheapest place is taken at once, unless zones out of stock that are cheaper
by D come back at a rate r, and the sum of r D over these zones is above t: then waiting is cheaper (optimal
stopping). D is at most the start and the difference of the prices for the life of the place. A place that is
held only until such a zone is back is held for a shorter time, followed by the cost of that zone. r falls
with the length of an outage.

g and t depend on each other, and are computed as a fixed point. g is the mean of the zones' prices, each with
d (C + t) for a restart and E for a move once a life, the cheapest zone that is there, and on-demand for the
outages of all zones that S does not last out. t is the larger of two prices: the rise of the expected extra
cost of on-demand when S is an hour less, (C_od - g) P W / m with P = exp(-(S - 2 d) / m) and m the mean time
that all later starts and all later outages of all zones take, (1 - a) / a hours for each hour of work where
spot is there in a share a of the time; and the saving of an hour's wait at a later loss, r(s) (E + d C), with
an equal share s of S for each loss. Outages of zones depend on each other, and 1 - a is the product of what
was seen of each zone: a zone that is not held is looked at when those cheaper have no capacity, so what was
seen of it is its share of such times, and the product holds the dependence.

r and the life of a place were chosen on small markets of a known law (test_policies.py), without traces; m
and the share that is bought among four forms without a constant, by six of eleven sets of traces.
docs/measured.md has the replays that judge the policy.

SkyNomad (NSDI'27) ranks places by U = V (L - d) / L - C - E / L with a V that looks back at the progress
made; with V = g + t this is the same sum by the hour, without the returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, expm1

from daybreak.contract.units import HOUR_S
from daybreak.extensions.spot.states import OUTAGE_S, Place, SpotState, Zone

MARGIN = 0.006  # least gain that justifies a move, as a share of the on-demand price


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyMargin:
    """The moves that still reach the deadline."""

    spare_s: float  # S: time left beyond the remaining work
    wait: bool
    launch: bool  # go to spot
    stay: bool  # on spot


def safety_margin(state: SpotState) -> SafetyMargin:
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


def decide(state: SpotState, *, outage_s: float = OUTAGE_S) -> Place | None:
    """Returns the place to be in for the next tick, or None to wait; `outage_s` is the median outage.

    >>> from dataclasses import replace
    >>> zone = Zone(name="us-east1-b", spot_usd_per_hour=1, on_demand_usd_per_hour=3)
    >>> state = SpotState(
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
    prices = long_run(state, spare_s=allowed.spare_s, outage_s=outage_s)
    offers = {Place(zone.name, spot=True): _offer(state, zone, prices) for zone in state.zones}
    gone = [zone for zone in state.zones if zone.name in state.refused]
    away = [offers[Place(zone.name, spot=True)] for zone in gone]
    rates = [
        zone.capacity.return_per_hour(now_s=state.now_s, tick_s=state.tick_s, outage_s=outage_s)
        for zone in gone
    ]
    returns = [(rate, offer.usd(prices)) for rate, offer in zip(rates, away, strict=True)]
    offers[bought] = _offer(state, state.zone(bought.zone), prices, spot=False)
    costs = {
        place: offer.usd(prices, returns=returns)
        for place, offer in offers.items()
        if not place.spot or (allowed.launch and place.zone not in state.refused)
    }
    if here is not None:
        held = replace(_offer(state, state.zone(here.zone), prices, spot=here.spot), start_usd=0.0)
        costs[here] = held.usd(prices, returns=returns) - MARGIN * state.on_demand_usd_per_hour
    best = min(costs, key=costs.__getitem__)
    # A spot machine that is held needs no start, so it is not given up in order to wait.
    if allowed.wait and best != here and not (here is not None and here.spot):
        saved_usd = (
            min(costs[best] - usd, offers[best].most_saved_usd(offer))
            for (_, usd), offer in zip(returns, away, strict=True)
        )
        saved = sum(rate * max(0.0, usd) for rate, usd in zip(rates, saved_usd, strict=True))
        if saved > prices.time_usd_per_hour:
            return None
    return best


@dataclass(frozen=True, slots=True)
class LongRun:
    """What an hour of work costs later, and an hour without work."""

    work_usd_per_hour: float
    time_usd_per_hour: float


def long_run(state: SpotState, *, spare_s: float, outage_s: float = OUTAGE_S) -> LongRun:
    """Returns the fixed point of the cost of later work and the cost of time."""
    on_demand_usd, work_h, start_h = (
        state.on_demand_usd_per_hour,
        state.todo_s / HOUR_S,
        state.restart_s / HOUR_S,
    )
    zones = sorted(state.zones, key=lambda zone: zone.spot_usd_per_hour)
    lives_h = [zone.capacity.lifetime_s(now_s=state.now_s) / HOUR_S for zone in zones]
    shares, missing = [], 1.0
    for zone in zones:
        shares.append(missing * zone.capacity.availability)
        missing *= 1 - zone.capacity.availability
    up = 1 - missing
    loss_h = max(1.0, state.restart_s + state.at_risk_s / 2) / HOUR_S
    losses_per_hour = sum(share / life_h for share, life_h in zip(shares, lives_h, strict=True)) / up
    num_starts = 1 + work_h * losses_per_hour
    mean_h = loss_h * num_starts + work_h * missing / up  # restarts, and outages of all zones
    free_h = max(0.0, spare_s - state.at_risk_s - 2 * state.restart_s) / HOUR_S
    chance, wait_h, outage_h = exp(-free_h / mean_h), free_h / num_starts, outage_s / HOUR_S
    egress_usd = state.egress_usd if len({zone.region for zone in zones}) > 1 else 0.0
    move_usd = egress_usd * outage_h / (outage_h + wait_h)  # the outage outlasts the wait
    saved_usd = egress_usd + start_h * zones[0].spot_usd_per_hour  # by not moving
    rush = chance * max(1.0, work_h / mean_h)  # of the extra price of on-demand, for an hour less
    bought = missing * chance  # share of later work: outages that the spare time does not last out
    work_usd, time_usd = 0.0, saved_usd / (wait_h + outage_h)
    # Dearer time makes work dearer, dearer work makes time cheaper, and they meet once. The difference is
    # convex, and linear but where a zone comes to cost as much as on-demand, so Newton's steps end there.
    for _ in range(len(zones) + 2):
        work_usd, slope = bought * on_demand_usd, 0.0
        for zone, share, life_h in zip(zones, shares, lives_h, strict=True):
            usd = zone.spot_usd_per_hour
            usd += (loss_h * (usd + time_usd) + move_usd) / life_h
            work_usd += (1 - bought) * share / up * min(on_demand_usd, usd)
            slope += (1 - bought) * share / up * loss_h / life_h * (usd < on_demand_usd)
        time_usd += max(0.0, rush * (on_demand_usd - work_usd) - time_usd) / (1 + rush * slope)
    return LongRun(work_usd, time_usd)


@dataclass(frozen=True, slots=True)
class PlaceOffer:
    """A place to be in: dollars until work goes on there and per hour, and hours until it is lost."""

    start_usd: float
    usd_per_hour: float
    life_h: float

    def usd(self, prices: LongRun, *, returns: Sequence[tuple[float, float]] = ()) -> float:
        """Returns the extra dollars of staying in this zone over doing the same work elsewhere.

        `returns` are zones out of stock: the rate per hour at which each comes back, and its extra dollars.
        The job leaves for a zone that comes back and costs less.
        """
        more_usd = self.usd_per_hour - prices.work_usd_per_hour
        alone_usd = self.start_usd + self.life_h * more_usd
        better = [(rate, usd) for rate, usd in returns if usd < alone_usd]
        held_h = 1 / (1 / self.life_h + sum(rate for rate, _ in better))
        return self.start_usd + held_h * (more_usd + sum(rate * usd for rate, usd in better))

    def most_saved_usd(self, other: "PlaceOffer") -> float:
        """Returns the most that waiting for another place saves: this start, and what an hour there saves.

        A job that does not wait still goes to the other place when this one is lost.
        """
        return self.start_usd + self.life_h * max(0.0, self.usd_per_hour - other.usd_per_hour)


def _offer(state: SpotState, zone: Zone, prices: LongRun, *, spot: bool = True) -> PlaceOffer:
    usd_per_hour = zone.spot_usd_per_hour if spot else zone.on_demand_usd_per_hour
    start_usd = state.restart_s / HOUR_S * (usd_per_hour + prices.time_usd_per_hour) + state.egress(zone)
    held_s = state.todo_s
    if spot:  # until it is lost or the work is done
        life_s = zone.capacity.lifetime_s(now_s=state.now_s)
        held_s = -life_s * expm1(-state.todo_s / life_s)
    return PlaceOffer(start_usd, usd_per_hour, max(held_s, 1.0) / HOUR_S)


def cheapest_on_demand(state: SpotState) -> Place:
    """Returns the cheapest on-demand place to the end; where the job runs already, no start is paid."""

    def usd(zone: Zone) -> float:
        running = state.place == Place(zone.name, spot=False)
        time_s = state.todo_s + (0.0 if running else state.restart_s)
        return zone.on_demand_usd_per_hour * time_s / HOUR_S + state.egress(zone)

    return Place(min(state.zones, key=usd).name, spot=False)

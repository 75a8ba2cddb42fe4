"""Where shall the job be for the next tick: on spot, on demand, or nowhere? `decide(state) -> Place | None`.

A state is all that is known at a tick; the answer is the place to be in, or None: wait. Where a place has no
capacity, its zone goes into `refused` and the same question is asked again within the tick. The launcher asks
it, and the simulator replays it.

Two parts, and the first one rules. **The safety net** keeps S, the time that is left beyond the work that is
left, large enough for what may come, with restarts at their 95th percentile d and the throughput at the low
end of what is known of it: waiting a tick must leave 2 d, going to spot must survive its loss (2 d), staying
there too (d); else it is on demand to the end (Can't Be Late, NSDI'24).

**The value of work** chooses among what is safe, as in SkyNomad (NSDI'27): a place is worth
U = V (L - d)+ / L - C - E / L per hour, with price C, expected remaining lifetime L and egress E; waiting is
worth 0. Their V looks back at the progress made; ours looks ahead, at what an hour of work will cost later: the
price of spot, and with a chance of pi what is dearer about on-demand. What the rest of the work loses to
restarts and outages is taken as exponential with mean m, so pi(S) = exp(-(S - 2 d) / m), and since a lost hour
makes that likelier for all W hours that are left, it costs W / m times as much (the derivative of W pi(S)).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp

from pipeline.planning.spot import MEAN_TIME_TO_PREEMPTION_S

HOUR_S = 3600.0
MEMORY_S = 6 * HOUR_S  # of losses: how fast a zone that was taken away often is trusted again
PRIOR_LOSSES = 0.2  # the mean time to preemption counts as much as having seen so many
PRIOR_S = 1 * HOUR_S  # as if capacity had been seen so long, and missed so long
HALF = 0.5  # the deviation of the lost time about its mean is less than an exponential one's
DEAR = 0.6  # of on-demand: spot at more than that is no alternative to it
MARGIN_USD_PER_HOUR = 0.5  # what moving must gain at least
DOUBT = 0.2  # of the throughput before any of it was measured


@dataclass(frozen=True, slots=True)
class Place:
    """A way to hold a machine."""

    zone: str
    spot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """What was seen of spot capacity in a zone. `recent_*` forget with `MEMORY_S`."""

    up: bool | None = None
    seen_at_s: float = 0.0
    up_s: float = 0.0
    down_s: float = 0.0
    num_losses: int = 0
    recent_up_s: float = 0.0
    recent_losses: float = 0.0

    def look(self, *, up: bool, now_s: float) -> "Sightings":
        """The same with one more look; between two looks all was as at the first."""
        between_s = now_s - self.seen_at_s if self.up is not None else 0.0
        kept = exp(-between_s / MEMORY_S)
        lost = bool(self.up) and not up
        return Sightings(
            up=up,
            seen_at_s=now_s,
            up_s=self.up_s + (between_s if self.up else 0.0),
            down_s=self.down_s + (0.0 if self.up else between_s),
            num_losses=self.num_losses + lost,
            recent_up_s=self.recent_up_s * kept + (MEMORY_S * (1 - kept) if self.up else 0.0),
            recent_losses=self.recent_losses * kept + lost,
        )

    def lifetime_s(self, *, now_s: float) -> float:
        """Expected time until capacity here is lost: time over losses, by a gamma prior and a short memory."""
        kept = exp(-(now_s - self.seen_at_s) / MEMORY_S)
        seen_s = self.recent_up_s * kept + PRIOR_LOSSES * MEAN_TIME_TO_PREEMPTION_S
        return seen_s / (self.recent_losses * kept + PRIOR_LOSSES)

    @property
    def availability(self) -> float:
        """Share of time with capacity, by a beta prior."""
        return (self.up_s + PRIOR_S) / (self.up_s + self.down_s + 2 * PRIOR_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """Prices of one machine in a zone now, and what was seen there."""

    name: str
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    sightings: Sightings = Sightings()

    @property
    def region(self) -> str:
        """The zone's name without its last part: within a region data moves for nothing."""
        return self.name.rpartition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that is known at a tick. Work is in seconds at the planned throughput."""

    now_s: float
    deadline_s: float
    tick_s: float
    work_s: float
    done_s: float  # if the job is told to save now
    zones: tuple[Zone, ...]
    place: Place | None = None
    starting_s: float = 0.0  # what is left of the start at `place`
    home: str = ""  # zone that holds the checkpoint
    refused: frozenset[str] = frozenset()  # zones without spot capacity at this tick
    ran_s: float = 0.0  # in which `made_s` of work came about: the measured throughput
    made_s: float = 0.0
    restart_s: float  # 95th percentile of what a start takes until work goes on
    at_risk_s: float = 0.0  # what a loss takes back at most: none with notice
    egress_usd: float = 0.0  # of the checkpoint, to another region
    doubt: float = DOUBT

    @property
    def left_s(self) -> float:
        """Time until the deadline."""
        return self.deadline_s - self.now_s

    @property
    def todo_s(self) -> float:
        """Work that is left."""
        return self.work_s - self.done_s

    @property
    def throughput(self) -> float:
        """Work per second: as measured, or as planned before there is anything to go by."""
        return self.made_s / self.ran_s if self.ran_s > self.tick_s / 2 and self.made_s else 1.0

    @property
    def low_throughput(self) -> float:
        """The least that it may be; the doubt falls with the root of the time measured."""
        return self.throughput * (1 - self.doubt * (self.tick_s / (self.tick_s + self.ran_s)) ** 0.5)

    def egress(self, zone: Zone) -> float:
        """Dollars for bringing the checkpoint to a zone."""
        region = self.home.rpartition("-")[0]
        return self.egress_usd if self.home and region != zone.region else 0.0

    def zone(self, name: str) -> Zone:
        """The zone of that name."""
        return next(zone for zone in self.zones if zone.name == name)


Policy = Callable[[State], Place | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """What the safety net allows."""

    spare_s: float  # S: time beyond the work that is left
    wait: bool
    launch: bool  # go to spot
    stay: bool  # on spot


def net(state: State) -> Net:
    """What still reaches the deadline, whatever comes.

    Where even the machine bought at once could be too slow, as far as is known, nothing is for sure: then the
    throughput is taken as measured, and time is not spent waiting until it is known better.
    """
    d = state.restart_s
    begun_s = state.starting_s if state.place else d
    spare_s = state.left_s - state.todo_s / state.low_throughput
    sure = spare_s >= begun_s
    if not sure:
        spare_s = state.left_s - state.todo_s / state.throughput
    # Time at the place is lost until work goes on there, so what is left of the start is no spare time.
    spare_s -= state.starting_s if state.place else 0.0
    return Net(
        spare_s=spare_s,
        wait=sure and spare_s - state.tick_s >= 2 * d,
        launch=spare_s - state.at_risk_s >= 2 * d,
        stay=spare_s - state.at_risk_s >= d,
    )


def decide(state: State) -> Place | None:
    """The place to be in for the next tick, or None to wait.

    >>> zone = Zone(name="us-east1-b", spot_usd_per_hour=1, on_demand_usd_per_hour=3)
    >>> state = State(now_s=0, deadline_s=64_800, tick_s=600, work_s=43_200, done_s=0, zones=(zone,), restart_s=600)
    >>> decide(state)
    Place(zone='us-east1-b', spot=True)
    >>> decide(replace(state, refused=frozenset({"us-east1-b"})))
    >>> decide(replace(state, refused=frozenset({"us-east1-b"}), now_s=18_000))
    Place(zone='us-east1-b', spot=False)
    """
    allowed, here = net(state), state.place
    bought = cheapest_on_demand(state)
    if here is not None and here.spot and not allowed.stay:
        return bought
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
        options[here] = (max(0.0, value - price) if here.spot else value - price) + MARGIN_USD_PER_HOUR
    return max(options, key=options.__getitem__)


def value_of_work(state: State, *, spare_s: float) -> float:
    """What an hour of work done now saves later, in dollars."""
    dear = min(zone.on_demand_usd_per_hour for zone in state.zones)
    good = [zone for zone in state.zones if zone.spot_usd_per_hour < DEAR * dear] or list(state.zones)
    missing = 1.0
    price = 0.0
    for zone in sorted(good, key=lambda zone: zone.spot_usd_per_hour):
        price += missing * zone.sightings.availability * zone.spot_usd_per_hour
        missing *= 1 - zone.sightings.availability
    price += missing * dear
    longest_s = max(zone.sightings.lifetime_s(now_s=state.now_s) for zone in good)
    each_s = state.restart_s + state.at_risk_s / 2
    mean_s = HALF * (missing * state.todo_s + each_s * (1 + state.todo_s / longest_s))
    chance = exp(-max(0.0, spare_s - state.at_risk_s - 2 * state.restart_s) / mean_s)
    return price + max(0.0, dear - price) * chance * max(1.0, HALF * state.todo_s / mean_s)


def worth(state: State, zone: Zone, *, value: float) -> float:
    """Dollars per hour that going to spot in a zone gains over waiting (SkyNomad's utility)."""
    life_s = min(zone.sightings.lifetime_s(now_s=state.now_s), state.todo_s + state.restart_s)
    share = max(0.0, life_s - state.restart_s) / life_s
    return value * share - zone.spot_usd_per_hour - state.egress(zone) / (life_s / HOUR_S)


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


def refuse(state: State, zone: str) -> State:
    """The state after it was found that a zone has no spot capacity now."""
    return replace(state, zones=look(state.zones, zone, up=False, now_s=state.now_s),
                   refused=state.refused | {zone})  # fmt: skip


def look(zones: Sequence[Zone], name: str, *, up: bool, now_s: float) -> tuple[Zone, ...]:
    """The zones with one more look at one of them."""
    return tuple(
        replace(zone, sightings=zone.sightings.look(up=up, now_s=now_s)) if zone.name == name else zone
        for zone in zones
    )

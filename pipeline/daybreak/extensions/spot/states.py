"""Defines the state that a spot policy decides on: what is known at a tick about a job and its zones."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, sqrt

from daybreak.contract.units import HOUR_S
from daybreak.jobs.outlook import DOUBT
from daybreak.machines.losses import MEAN_TIME_TO_PREEMPTION_S

MEMORY_S = 6 * HOUR_S  # of losses: how fast a zone with many preemptions is trusted again
PRIOR_LOSSES = 0.2  # the prior mean time to preemption weighs as much as this many losses
PRIOR_UP_S, PRIOR_DOWN_S = 3 * HOUR_S, 1 * HOUR_S  # as if capacity had been up and down for so long
# Median outage by maximum likelihood, from the lengths of 2,669 outages, not from what `decide` then costs:
# 783 of Google's H100 machines in 13 zones (14 days of October 2025, ticks of 600 s), and 1,886 of AWS V100
# machines in 9 zones (45 days, ticks of 195 s). Fitted on 2026-11-25 by `make bench NAME=spot`, which fits it
# again at each run, and judges `decide` on either kind by the outages of the other: 0.125 h and 0.571 h.
OUTAGE_S = 0.388 * HOUR_S
ZONE_LETTER = re.compile(r"(?<=\d)-?[a-z]$")  # us-central1-a of Google, us-east-1a of AWS


def region_of(zone: str) -> str:
    """Returns the region of a zone by its name; a name without a zone's letter is a region's.

    >>> [region_of(zone) for zone in ("us-central1-a", "us-east-1a", "g2-standard-8, in us-east4")]
    ['us-central1', 'us-east-1', 'g2-standard-8, in us-east4']
    """
    return ZONE_LETTER.sub("", zone)


def egress_usd(source: str, target: str, *, usd: float, between: Mapping[tuple[str, str], float]) -> float:
    """Returns the dollars for moving a checkpoint from a zone to another: `usd`, or as `between` regions.

    >>> [egress_usd("us-east-1a", zone, usd=1.0, between={("us-east-1", "us-east-2"): 0.5})
    ...  for zone in ("us-east-1b", "us-east-2a", "us-west-2a")]
    [0.0, 0.5, 1.0]
    """
    regions = region_of(source), region_of(target)
    return 0.0 if regions[0] == regions[1] else between.get(regions, usd)


@dataclass(frozen=True, slots=True)
class Place:
    """A way to hold a machine."""

    zone: str
    spot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityHistory:
    """What was seen of spot capacity in a zone. `recent_*` forget with `MEMORY_S`."""

    up: bool | None = None
    seen_at_s: float = 0.0
    since_s: float = 0.0  # when it was first seen so, without a change since
    up_s: float = 0.0
    down_s: float = 0.0
    num_losses: int = 0
    recent_up_s: float = 0.0
    recent_losses: float = 0.0

    def look(self, *, up: bool, now_s: float) -> "CapacityHistory":
        """Returns the history with one more look; capacity is taken as unchanged between two looks."""
        between_s = now_s - self.seen_at_s if self.up is not None else 0.0
        kept = exp(-between_s / MEMORY_S)
        lost = bool(self.up) and not up
        return CapacityHistory(
            up=up,
            seen_at_s=now_s,
            since_s=self.since_s if up == self.up else now_s,
            up_s=self.up_s + (between_s if self.up else 0.0),
            down_s=self.down_s + (0.0 if self.up else between_s),
            num_losses=self.num_losses + lost,
            recent_up_s=self.recent_up_s * kept + (MEMORY_S * (1 - kept) if self.up else 0.0),
            recent_losses=self.recent_losses * kept + lost,
        )

    def lifetime_s(self, *, now_s: float) -> float:
        """Returns the expected seconds until capacity is lost.

        It is time over losses, with a gamma prior and a short memory.
        """
        kept = exp(-(now_s - self.seen_at_s) / MEMORY_S)
        seen_s = self.recent_up_s * kept + PRIOR_LOSSES * MEAN_TIME_TO_PREEMPTION_S
        return seen_s / (self.recent_losses * kept + PRIOR_LOSSES)

    def return_per_hour(self, *, now_s: float, tick_s: float, outage_s: float = OUTAGE_S) -> float:
        """Returns the rate at which capacity that is gone is back at the next look, per hour.

        Most outages are short and a few last for a day: an outage outlasts t with probability s / (s + t),
        where s is the median (a Pareto distribution of shape 1), so the rate falls the longer it lasts.
        """
        gone_s = now_s - self.since_s if self.up is False else 0.0
        return HOUR_S / (gone_s + tick_s + outage_s)

    @property
    def availability(self) -> float:
        """Share of time with capacity, with a beta prior."""
        return (self.up_s + PRIOR_UP_S) / (self.up_s + self.down_s + PRIOR_UP_S + PRIOR_DOWN_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """Prices of one machine in a zone now, and what was seen there."""

    name: str
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    capacity: CapacityHistory = CapacityHistory()

    @property
    def region(self) -> str:
        """The region that the zone is in; data moves free of charge within a region."""
        return region_of(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotState:
    """All that is known at a tick. Work is in seconds at the planned throughput."""

    now_s: float
    deadline_s: float
    tick_s: float
    work_s: float
    done_s: float  # work that a checkpoint saved now would hold
    zones: tuple[Zone, ...]
    place: Place | None = None
    starting_s: float = 0.0  # remaining time of the start at `place`
    home: str = ""  # zone that holds the checkpoint
    refused: frozenset[str] = frozenset()  # zones without spot capacity at this tick
    ran_s: float = 0.0  # seconds in which `made_s` of work was done: the measured throughput
    made_s: float = 0.0
    restart_s: float  # 95th percentile of the time from a start until work resumes
    at_risk_s: float = 0.0  # most work that a preemption loses: none with notice
    egress_usd: float = 0.0  # for moving the checkpoint to another region
    egress_between: Mapping[tuple[str, str], float] = field(default_factory=dict)  # where it costs otherwise
    doubt: float = DOUBT

    @property
    def left_s(self) -> float:
        """Time until the deadline."""
        return self.deadline_s - self.now_s

    @property
    def todo_s(self) -> float:
        """Remaining work, in seconds at the planned throughput."""
        return self.work_s - self.done_s

    @property
    def throughput(self) -> float:
        """Work per second: as measured, or as planned before enough was measured."""
        return self.made_s / self.ran_s if self.ran_s > self.tick_s / 2 and self.made_s else 1.0

    @property
    def low_throughput(self) -> float:
        """Lower bound of the throughput: from the doubt alone, or from what was measured.

        The doubt falls with the root of the time measured; a tenth of it remains for the noise of ticks.
        """
        share = self.tick_s / (self.tick_s + self.ran_s)
        noise = self.doubt / 10
        measured = self.throughput * (1 - self.doubt * sqrt(share) - noise * share)
        return min(self.throughput, max((1 - self.doubt) * (1 - noise), measured))

    @property
    def on_demand_usd_per_hour(self) -> float:
        """Lowest on-demand price of all zones."""
        return min(zone.on_demand_usd_per_hour for zone in self.zones)

    def egress(self, zone: Zone) -> float:
        """Returns the dollars for moving the checkpoint to a zone."""
        if not self.home:
            return 0.0
        return egress_usd(self.home, zone.name, usd=self.egress_usd, between=self.egress_between)

    def zone(self, name: str) -> Zone:
        """Returns the zone of that name."""
        return next(zone for zone in self.zones if zone.name == name)


Policy = Callable[[SpotState], Place | None]


def refuse(state: SpotState, zone: str) -> SpotState:
    """Returns the state after a zone turned out to have no spot capacity now."""
    return replace(
        state, zones=look(state.zones, zone, up=False, now_s=state.now_s), refused=state.refused | {zone}
    )


def look(zones: Sequence[Zone], name: str, *, up: bool, now_s: float) -> tuple[Zone, ...]:
    """Returns the zones after one more look at zone `name`."""
    return tuple(
        replace(zone, capacity=zone.capacity.look(up=up, now_s=now_s)) if zone.name == name else zone
        for zone in zones
    )

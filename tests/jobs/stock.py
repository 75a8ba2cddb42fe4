"""Nights of stock-outs: when which place has machines, drawn by zone, by region and by machine.

A place is a machine in a region, on spot or on demand. A region has three zones, and a job goes to whichever
of them has the machine, as on Vertex AI. A zone has a machine for a while and then not; a region, and a kind
of machine, may be out for part of the night. The team's own cluster, dearer for the same work, is free for a
while and then not. What is drawn was fixed before the fallbacks of today were written.
"""

import random
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import inf
from typing import Any

from daybreak.contract import params
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.contract.sections import Params
from daybreak.contract.units import HOUR_S
from tests.jobs import plans
from tests.planning import jobs
from tests.training import nights

REGIONS = ("us-central1", "us-east4", "us-west1", "europe-west4")
DEARER = dict(zip(REGIONS, (1.0, 1.05, 1.1, 1.2), strict=True))
SPEEDS = {"a": 1.0, "b": 1.8, "c": 3.0, "own": 1.5}
PRICES = {"a": 3.0, "b": 6.0, "c": 11.0, "own": 7.0}
SPOT = 1 / 3  # of the price on demand
ZONES = 3
WINDOW_S = 6 * HOUR_S
SEVERITIES = {"mild": 0.4, "bad": 0.75, "severe": 0.93}  # share of the time that a zone is out
OUTAGE = 0.35  # chance that a region, or a kind of machine, is out for part of the night
SHOWN = ("at once", "late", "never")  # how a place that is out answers: refused, refused later, not at all
LATE_S = 180.0  # from a request to a late refusal


class Spells:
    """When something is up: from each even moment to the next odd one."""

    def __init__(self, moments: list[float]) -> None:
        self.moments = moments

    def up(self, at_s: float) -> bool:
        return bisect_right(self.moments, at_s) % 2 == 1

    def next_change(self, at_s: float) -> float:
        index = bisect_right(self.moments, at_s)
        return self.moments[index] if index < len(self.moments) else inf


@dataclass(frozen=True, kw_only=True)
class Stock:
    """What a night has; times in seconds from its beginning."""

    shown: str
    zones: dict[tuple[str, str, bool], list[Spells]]  # by machine, region, and whether on spot
    outages: dict[str, tuple[float, float]] = field(default_factory=dict)  # by machine or region

    def up(self, rental: Rental, at_s: float) -> bool:
        """Whether the place has a machine."""
        for name in (rental.machine, rental.region):
            low, high = self.outages.get(name, (inf, inf))
            if low <= at_s < high:
                return False
        return any(zone.up(at_s) for zone in self._zones(rental))

    def until(self, rental: Rental, at_s: float, *, up: bool) -> float:
        """When the place is next up, or next out; `inf`: not in this night."""
        while at_s < WINDOW_S and self.up(rental, at_s) != up:
            ends = [zone.next_change(at_s) for zone in self._zones(rental)]
            ends += [
                edge
                for name in (rental.machine, rental.region)
                for edge in self.outages.get(name, ())
                if edge > at_s
            ]
            at_s = min(ends, default=inf)
        return at_s if at_s < WINDOW_S else inf

    def _zones(self, rental: Rental) -> list[Spells]:
        return self.zones[rental.machine, rental.region, rental.is_spot]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A drawn night: the stock of machines, the strategy, and the budget in costs of the cheapest plan."""

    seed: int
    stock: Stock
    strategy: str
    share: float  # of the window, that machine a takes
    budget: float


def drawn(seed: int) -> Drawn:
    """The night of that number."""
    draw = random.Random(f"stock-outs {seed}")
    out = SEVERITIES[draw.choice(list(SEVERITIES))]
    zones = {
        (machine, region, spot): [
            _spells(draw, out=out, down_s=draw.uniform(0.3, 2) * HOUR_S) for _ in range(ZONES)
        ]
        for machine, region, spot in product("abc", REGIONS, (False, True))
    }
    zones["own", "", False] = [_spells(draw, out=0.5, down_s=HOUR_S)]
    outages = {}
    for name in ("a", "b", "c", *REGIONS):
        if draw.random() < OUTAGE:
            low = draw.uniform(-0.5, 1) * WINDOW_S
            outages[name] = (low, low + draw.uniform(0.2, 1) * WINDOW_S)
    return Drawn(
        seed=seed,
        stock=Stock(shown=draw.choice(SHOWN), zones=zones, outages=outages),
        strategy=draw.choice(["spot", "spot", "on-demand"]),
        share=draw.uniform(0.25, 0.6),
        budget=draw.choice([1.5, 4, 10]),
    )


def _spells(draw: random.Random, *, out: float, down_s: float) -> Spells:
    """Spells of exponential lengths, of which a share is out."""
    up_s = down_s * (1 - out) / out
    up, at_s = draw.random() >= out, 0.0
    moments = [-1.0] if up else []
    while at_s < WINDOW_S:
        at_s += draw.expovariate(1 / (up_s if up else down_s))
        moments.append(at_s)
        up = not up
    return Spells(moments)


@cache
def rented() -> tuple[Machine, ...]:
    """The cloud's machines."""
    return tuple(
        replace(
            _machine(name),
            region=region,
            spot=True,
            usd_per_hour=PRICES[name] * DEARER[region],
            spot_usd_per_hour=SPOT * PRICES[name] * DEARER[region],
        )
        for name, region in product("abc", REGIONS)
    )


@cache
def own() -> Machine:
    """The machine of the team's own cluster."""
    return replace(
        _machine("own"),
        region="",
        spot=False,
        flex=False,
        usd_per_hour=PRICES["own"],
        count=1,
        backend="slurm",
    )


def machines() -> tuple[Machine, ...]:
    """All of them."""
    return *rented(), own()


def _machine(name: str) -> Machine:
    plain = jobs.machine()
    return jobs.with_speeds(
        plain,
        name=name,
        machine_type=name,
        device=name.upper(),
        flops_per_s=SPEEDS[name] * plain.speeds.flops_per_s,
        bandwidth_bytes_per_s=SPEEDS[name] * plain.speeds.bandwidth_bytes_per_s,
    )


def params_of(night: Drawn) -> Params:
    """What the user says of it."""
    given: dict[str, Any] = {
        "source": "tests.fakes:TwoDays",
        "workload": {"use": plans.WORKLOAD},
        "backend": "tests.fakes:ScriptedBackend",
        "plan": {
            "machines": ["[abc]", "own"],
            "regions": list(REGIONS),
            "max_machines": 1,
            "explore_usd": 0,
            "spot": night.strategy == "spot",
            "flex_wait_hours": 0,
        },
        "train": {
            "num_workers": 1,
            "rate": 0.01,
            "batch_size": plans.BATCH_SIZE,
            "epochs": plans.NUM_SAMPLES / nights.dataset().num_samples,
        },
    }
    return params.check(given)

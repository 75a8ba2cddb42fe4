"""Spot capacity for tests: traces from strings, where # is capacity and . none."""

import os
from pathlib import Path

import pytest

from daybreak.extensions.simulation.replay import SimulatedJob
from daybreak.extensions.simulation.traces import Trace

DATA = Path(os.environ.get("DAYBREAK_DATA", Path(__file__).parents[4] / "shared" / "data")) / "spot"
TICK_S = 600.0


def trace(up: str, *, zone: str = "here-1-a", spot: float = 1.0, on_demand: float = 5.0) -> Trace:
    return Trace(
        zone=zone,
        tick_s=TICK_S,
        up=tuple(sign == "#" for sign in up),
        spot_usd_per_hour=(spot,) * len(up),
        on_demand_usd_per_hour=on_demand,
    )


def job(*, work: float, deadline: float, restart: float = 1.2, **changes) -> SimulatedJob:
    """All in ticks."""
    return SimulatedJob(
        work_s=work * TICK_S, deadline_s=deadline * TICK_S, restart_s=restart * TICK_S, **changes
    )


def measured(name: str) -> Path:
    """A file of measurements; the test is skipped where it is not."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is missing; set DAYBREAK_DATA to the folder that holds spot/")
    return path

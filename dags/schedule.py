"""Reads from params.yaml when a night starts; Airflow reads it again whenever it reads the DAG."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml  # Airflow brings it, and croniter
from croniter import croniter

SCHEDULE, TIME_ZONE, DECIDE_HOURS = "0 3 * * *", "UTC", 24.0  # where params.yaml leaves them out


@dataclass(frozen=True)
class Schedule:
    """When the nights of a home start, and by when each is decided."""

    cron: str
    time_zone: str
    assets: tuple[str, ...]  # URIs: a night starts once each was updated, and not by `cron`
    decide_hours: float


def of_nights(home: Path) -> Schedule:
    """Returns when the nights of a home start.

    Raises ValueError where params.yaml cannot be read, or says something else.
    """
    path = home / "params.yaml"
    try:
        values = yaml.safe_load(path.read_text()) if path.exists() else {}
        night = (values or {}).get("night") or {}
        cron, zone = night.get("schedule", SCHEDULE), night.get("time_zone", TIME_ZONE)
        hours = float(night.get("decide_hours", DECIDE_HOURS))
        assets = night.get("assets") or []
        if not isinstance(assets, list) or not all(isinstance(uri, str) for uri in assets):
            raise ValueError(f"night.assets is {assets!r}, not a list of URIs")
        if not croniter.is_valid(cron):
            raise ValueError(f"night.schedule is {cron!r}, not a cron expression")
        ZoneInfo(zone)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not say when nights run: {error}") from None
    return Schedule(cron, zone, tuple(assets), hours)


def day_of(events: Mapping[Any, Collection[Any]]) -> str:
    """Returns the newest day that all assets have, `extra: {"day": "2025-01-31"}`; "" where none says one.

    Raises ValueError for what is no day.
    """
    extras = ([event.extra or {} for event in of_asset] for of_asset in events.values())
    days = ([date.fromisoformat(extra["day"]) for extra in each if "day" in extra] for each in extras)
    newest = [max(of_asset) for of_asset in days if of_asset]
    return str(min(newest, default=""))

"""Reads from params.yaml when a night starts; Airflow reads it again whenever it reads the DAG."""

from pathlib import Path
from zoneinfo import ZoneInfo

import yaml  # Airflow brings it, and croniter
from croniter import croniter

SCHEDULE, TIME_ZONE, DECIDE_HOURS = "0 3 * * *", "UTC", 24.0  # where params.yaml leaves them out


def of_nights(home: Path) -> tuple[str, str, float]:
    """Returns the cron expression of the nights, its time zone, and after how many hours they are decided.

    Raises ValueError where params.yaml cannot be read, or says something else.
    """
    path = home / "params.yaml"
    try:
        values = yaml.safe_load(path.read_text()) if path.exists() else {}
        night = (values or {}).get("night") or {}
        cron, zone = night.get("schedule", SCHEDULE), night.get("time_zone", TIME_ZONE)
        hours = float(night.get("decide_hours", DECIDE_HOURS))
        if not croniter.is_valid(cron):
            raise ValueError(f"night.schedule is {cron!r}, not a cron expression")
        ZoneInfo(zone)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not say when nights run: {error}") from None
    return cron, zone, hours

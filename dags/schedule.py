"""Reads from params.yaml when a night starts; Airflow reads it again whenever it reads the DAG."""

from pathlib import Path

import yaml  # Airflow brings it

SCHEDULE, TIME_ZONE, DECIDE_HOURS = "0 3 * * *", "UTC", 24.0  # where params.yaml leaves them out


def of_nights(home: Path) -> tuple[str, str, float]:
    """Returns the cron expression of the nights, its time zone, and after how many hours they are decided."""
    path = home / "params.yaml"
    values = yaml.safe_load(path.read_text()) if path.exists() else {}
    night = (values or {}).get("night") or {}
    hours = float(night.get("decide_hours", DECIDE_HOURS))
    return night.get("schedule", SCHEDULE), night.get("time_zone", TIME_ZONE), hours

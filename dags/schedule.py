"""Reads from params.yaml when a night starts; Airflow reads it again whenever it reads the DAG."""

from pathlib import Path

import yaml  # Airflow brings it

SCHEDULE, TIME_ZONE = "0 3 * * *", "UTC"  # where params.yaml leaves them out


def of_nights(home: Path) -> tuple[str, str]:
    """Returns the cron expression of the nights, and its time zone."""
    path = home / "params.yaml"
    values = yaml.safe_load(path.read_text()) if path.exists() else {}
    night = (values or {}).get("night") or {}
    return night.get("schedule", SCHEDULE), night.get("time_zone", TIME_ZONE)

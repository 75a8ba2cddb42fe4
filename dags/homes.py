"""Reads which homes this Airflow runs: DAYBREAK_HOME and the homes in its fleet.yaml.

The DAGs of the home itself are named `retrain`, `watch` and so on; those of a member `retrain.MODEL`, after
the model that it trains. A member has DAGs once `daybreak fleet` has made it one.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from zoneinfo import ZoneInfo

import yaml  # Airflow brings it, and croniter
from airflow.sdk import Asset
from airflow_versions import CronTriggerTimetable
from croniter import croniter
from home import Home, Schedule

log = logging.getLogger(__name__)

LEAD = Path(os.environ.get("DAYBREAK_HOME", Path(__file__).resolve().parents[1]))
MAX_HOURS = 24 * 36_525  # of a century, as Daybreak has it
MODEL = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def schedule_of(folder: Path) -> Schedule:
    """Returns when the nights of a home start, by its params.yaml; Airflow reads it with each DAG file.

    Raises ValueError where params.yaml cannot be read, or says something else.
    """
    path = folder / "params.yaml"
    try:
        values = yaml.safe_load(path.read_text()) if path.exists() else {}
        night = (values or {}).get("night") or {}
        left_out = {field.name: field.default for field in fields(Schedule)}
        given = {"cron" if name == "schedule" else name: value for name, value in night.items()}
        given |= {"challengers": ((values or {}).get("live_test") or {}).get("challengers", 1)}
        due = left_out | {name: value for name, value in given.items() if name in left_out}
        assets = due["assets"] or []
        if not isinstance(assets, list) or not all(isinstance(uri, str) for uri in assets):
            raise ValueError(f"night.assets is {assets!r}, not a list of URIs")
        if not croniter.is_valid(due["cron"]):
            raise ValueError(f"night.schedule is {due['cron']!r}, not a cron expression")
        for uri in assets:
            Asset(uri)  # which raises ValueError for one that Airflow refuses
        CronTriggerTimetable(due["cron"], timezone=due["time_zone"])
        ZoneInfo(due["time_zone"])
        hours, challengers = float(due["decide_hours"]), int(due["challengers"])
        if not 0 < hours <= MAX_HOURS:
            raise ValueError(f"night.decide_hours is {hours:g}, not above 0 and at most {MAX_HOURS:,}")
        if challengers < 1:
            raise ValueError(f"live_test.challengers is {challengers}, not 1 or more")
        return Schedule(due["cron"], due["time_zone"], tuple(assets), hours, challengers)
    except (
        OSError,
        yaml.YAMLError,
        ArithmeticError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(f"{path} does not say when nights run: {error}") from None


def _name_of(folder: Path) -> str:
    """Returns the name of a home's model."""
    try:
        values = yaml.safe_load((folder / "params.yaml").read_text()) or {}
        return str((values.get("register") or {}).get("name", Home.name))
    except (OSError, yaml.YAMLError, AttributeError):
        return Home.name


OWN = Home(LEAD, name=_name_of(LEAD))


def homes() -> list[Home]:
    """Returns the home itself, and its members; what is wrong with a member keeps no other's DAGs away."""
    path = LEAD / "fleet.yaml"
    try:
        named = (yaml.safe_load(path.read_text()) or {}).get("homes") or [] if path.exists() else []
        if not isinstance(named, list):
            raise TypeError(f"homes is {named!r}; make it a list")
    except (OSError, yaml.YAMLError, AttributeError, TypeError) as error:
        log.error("%s cannot be read: %s", path, error)
        return [OWN]
    members: dict[str, Home] = {}
    for folder in ((LEAD / str(name)).resolve() for name in named):
        if folder == LEAD.resolve():
            continue
        try:
            model = str(json.loads((folder / "var" / "lead.json").read_text())["model"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("%s is not a member yet (%s); run daybreak fleet in %s", folder, error, LEAD)
            continue
        if re.fullmatch(MODEL, model):
            members.setdefault(model, Home(folder, model, name=model))
    return [OWN, *members.values()]


def with_schedules() -> Iterator[Home]:
    """Yields the homes with when their nights start.

    A member whose params.yaml does not say it has no nights. Raises ValueError where the home's own does not.
    """
    for home in homes():
        try:
            yield replace(home, due=schedule_of(home.folder))
        except ValueError as error:
            if home == OWN:
                raise
            log.error("%s has no nights: %s", home.model, error)

"""Describes a home to the DAGs: folder, model, and a team's wishes."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import DAG, Asset
from airflow_versions import CronTriggerTimetable, documented

DAGS: dict[str, "Home"] = {}  # the home that each DAG of this process is of


@dataclass(frozen=True)
class Schedule:
    """When the nights of a home start, and by when each is decided."""

    cron: str = "0 3 * * *"
    time_zone: str = "UTC"
    assets: tuple[str, ...] = ()  # URIs: a night starts once each was updated, and not by `cron`
    decide_hours: float = 24.0
    challengers: int = 1  # of nights that may be open at once, while users judge them


@dataclass(frozen=True)
class Home:
    """A home whose nights this Airflow runs; `model` is empty for the home that `make up` is in."""

    folder: Path
    model: str = ""  # what its DAGs are named after
    name: str = "daybreak"  # what its model is registered as
    due: Schedule = Schedule()
    dag_ids: Mapping[str, str] = field(default_factory=dict)
    dag_args: Mapping[str, Any] = field(default_factory=dict)
    night_args: Mapping[str, Any] = field(default_factory=dict)  # those of the DAG of the nights alone
    default_args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)  # variable: where Airflow has it

    def dag_id(self, name: str) -> str:
        """Returns the id of the home's DAG of that name."""
        return self.dag_ids.get(name) or (f"{name}.{self.model}" if self.model else name)

    def dag(self, name: str, *, doc: str, default_args: Mapping[str, Any], **given: Any) -> DAG:
        """Returns a DAG of the home by that name, without tasks, which has one run at a time."""
        DAGS[self.dag_id(name)] = self
        callbacks = [_several(args.get("on_failure_callback")) for args in (default_args, self.default_args)]
        merged = {**default_args, **self.default_args, "on_failure_callback": [*callbacks[0], *callbacks[1]]}
        ours = {"schedule": None, "catchup": False, "max_active_runs": 1, "tags": self.tags} | given
        ours |= {"doc_md": documented(doc), "default_args": merged}
        return DAG(self.dag_id(name), **(ours | dict(self.dag_args)))

    @property
    def champion(self) -> Asset:
        """Returns the asset that is updated whenever another version of the home's model serves."""
        return self._asset("champion")

    @property
    def predictions(self) -> Asset:
        """Returns the asset that is updated whenever a night has written the predictions of a day."""
        return self._asset("predictions")

    def _asset(self, what: str) -> Asset:
        return Asset(name=f"{self.name} {what}", uri=f"daybreak://{quote(self.name, safe='')}/{what}")

    @property
    def tags(self) -> list[str]:
        """Returns the tags of the home's DAGs."""
        return ["daybreak", *([self.model] if self.model else [])]


def of_dag(dag_id: str) -> Home:
    """Returns the home that a DAG of this process is of."""
    return DAGS[dag_id]


def cron(expression: str) -> CronTriggerTimetable:
    """Returns the schedule of a cron expression in UTC."""
    return CronTriggerTimetable(expression, timezone="UTC")


def day_of(events: Mapping[Any, Collection[Any]]) -> str:
    """Returns the newest day that all assets have, `extra: {"day": "2025-01-31"}`; "" where none says one.

    Raises ValueError for an event whose day is not a date.
    """
    extras = ([event.extra or {} for event in of_asset] for of_asset in events.values())
    days = ([date.fromisoformat(extra["day"]) for extra in each if "day" in extra] for each in extras)
    newest = [max(of_asset) for of_asset in days if of_asset]
    return str(min(newest, default=""))


def night_of(run_id: str) -> str:
    """Returns the name of the night that a run of the DAG is; the same after a clear."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", run_id).strip(".-_") or "night"


def _several(callbacks: Any) -> list[Callable[..., Any]]:
    """Returns one callback, several or none as a list."""
    if callbacks is None:
        return []
    return [callbacks] if callable(callbacks) else list(callbacks)

"""Reads which homes this Airflow runs: DAYBREAK_HOME and the homes in its fleet.yaml.

The DAGs of the home itself are named `retrain`, `watch` and so on; those of a member `retrain.MODEL`, after
the model that it trains. A member has DAGs once `daybreak fleet` has made it one.
"""

import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml  # Airflow brings it
from airflow.sdk import DAG, Asset, CronTriggerTimetable

log = logging.getLogger(__name__)

LEAD = Path(os.environ.get("DAYBREAK_HOME", Path(__file__).resolve().parents[1]))
NAME = "daybreak"  # where params.yaml leaves register.name out
MODEL = r"[A-Za-z0-9][A-Za-z0-9._-]*"


@dataclass(frozen=True)
class Home:
    """A home whose nights this Airflow runs; `model` is empty for the home itself."""

    folder: Path
    model: str = ""

    def dag_id(self, name: str) -> str:
        """Returns the id of the home's DAG of that name."""
        return f"{name}.{self.model}" if self.model else name

    def dag(self, name: str, *, cron: str = "", **given: Any) -> DAG:
        """Returns a DAG of the home by that name, without tasks, which has one run at a time.

        `cron` says when it runs, in UTC; "" is on request.
        """
        due = CronTriggerTimetable(cron, timezone="UTC") if cron else None
        return DAG(self.dag_id(name), schedule=due, catchup=False, max_active_runs=1, tags=self.tags, **given)

    @property
    def champion(self) -> Asset:
        """Returns the asset that is updated whenever another version of the home's model serves."""
        return self._asset("champion")

    @property
    def predictions(self) -> Asset:
        """Returns the asset that is updated whenever a night has written the predictions of a day."""
        return self._asset("predictions")

    def _asset(self, what: str) -> Asset:
        return Asset(name=f"{self._name} {what}", uri=f"daybreak://{quote(self._name, safe='')}/{what}")

    @property
    def _name(self) -> str:
        """Returns the name of the home's model."""
        try:
            values = yaml.safe_load((self.folder / "params.yaml").read_text()) or {}
            return self.model or str((values.get("register") or {}).get("name", NAME))
        except (OSError, yaml.YAMLError, AttributeError):
            return NAME

    @property
    def tags(self) -> list[str]:
        """Returns the tags of the home's DAGs."""
        return ["daybreak", *([self.model] if self.model else [])]


OWN = Home(LEAD)


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
            members.setdefault(model, Home(folder, model))
    return [OWN, *members.values()]


def of_dag(dag_id: str) -> Home:
    """Returns the home that a DAG is of."""
    model = dag_id.partition(".")[2]
    return next((home for home in homes() if home.model == model), OWN)

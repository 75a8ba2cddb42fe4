"""Keeps the settings that proved better in the home, and has nights train them as a changed recipe.

They hold for the recipe that they were compared with: after an edit of the class or of params.yaml they no
longer do, and what a person sets for a night goes before them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from daybreak.contract import records
from daybreak.contract.record_parts import Record
from daybreak.contract.sections import Params
from daybreak.extensions.search.settings import SearchParams
from daybreak.registry import lineage
from daybreak.storage.home import Home


@dataclass(frozen=True, kw_only=True)
class ProposedSettings(Record):
    """Settings by key of params.yaml; none where none proved better."""

    values: dict[str, Any] = field(default_factory=dict)
    recipe: str = ""  # digest of the recipe of params.yaml, without them
    since: date | None = None  # day of the night after which they were proposed


def read(home: Home, asked: Params) -> ProposedSettings:
    """Returns the settings that hold for a recipe, of which only keys that are still searched."""
    kept = records.find(ProposedSettings, home.var)
    space = asked.section(SearchParams).space
    if kept is None or not space or kept.recipe != lineage.recipe(asked.workload, asked.train):
        return ProposedSettings()
    return kept if kept.values.keys() <= space.keys() else ProposedSettings()


def write(home: Home, asked: Params, values: Mapping[str, Any], *, since: date) -> None:
    """Has later nights train with these settings."""
    recipe = lineage.recipe(asked.workload, asked.train)
    records.write(ProposedSettings(values=dict(values), recipe=recipe, since=since), home.var)


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Returns settings as `--set` takes them.

    >>> assignments({"train.rate": 0.001, "workload.wide": True})
    ['train.rate=0.001', 'workload.wide=true']
    """
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def propose(home: Home, asked: Params) -> list[str]:
    """Returns the assignments by which a night trains what proved better; none where nothing did."""
    return assignments(read(home, asked).values)

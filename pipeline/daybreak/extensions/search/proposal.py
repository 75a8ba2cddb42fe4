"""Keeps the settings that were found better in the home, and has nights train them as a changed recipe.

They hold for the recipe that they were compared with: after an edit of the class or of params.yaml they no
longer do, nor do those that do not come to serve in time. What a person sets for a night goes before them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from ruamel.yaml import YAML

from daybreak.contract import params, records
from daybreak.contract.record_parts import Record
from daybreak.contract.sections import Params
from daybreak.extensions.search.settings import SearchParams
from daybreak.registry import lineage
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home

STUDY = "search.log"  # of all that was tried, beside the record of what was found
TESTED_DAYS = 60  # that settings are trained for at most if they do not come to serve
MOST_FAILED = 2  # nights without a version, of those that trained with them; then they are dropped


@dataclass(frozen=True, kw_only=True)
class ProposedSettings(Record):
    """Settings by key of params.yaml; none where none were found."""

    values: dict[str, Any] = field(default_factory=dict)
    recipe: str = ""  # digest of the recipe of params.yaml, without them
    since: date | None = None  # day of the night after which they were proposed


def read(home: Home, asked: Params) -> ProposedSettings:
    """Returns the settings that hold for a recipe, of which only keys that are still searched."""
    kept = records.find(ProposedSettings, home.var)
    space = asked.section(SearchParams).space
    if kept is None or not space or kept.recipe != lineage.recipe(asked.workload, asked.train):
        return ProposedSettings()
    if not kept.values.keys() <= space.keys() or _is_over(home, kept):
        return ProposedSettings()
    return kept


def _is_over(home: Home, kept: ProposedSettings) -> bool:
    """Returns whether settings that do not serve were trained for long enough, or failed too often."""
    history = ledger.history(home, TESTED_DAYS)
    if not history or kept.since is None:
        return False
    last, tested = history[0], [entry for entry in history if entry.night.day > kept.since]
    num_failed = sum(_failed_with(home, entry, kept.values) for entry in tested)
    if num_failed < MOST_FAILED and (last.night.day - kept.since).days <= TESTED_DAYS:
        return False
    found = params.override(home.folder, assignments(kept.values))
    serves = last.serving.lineage.get("recipe") if last.serving else None
    return serves != lineage.recipe(found.workload, found.train)


def write(home: Home, asked: Params, values: Mapping[str, Any], *, since: date) -> None:
    """Has later nights train with these settings, as long as they are not dropped."""
    recipe = lineage.recipe(asked.workload, asked.train)
    before = records.find(ProposedSettings, home.var)
    # The same study finds again what was dropped: it stays so, by the nights since it was first found.
    if before and before.since and (before.values, before.recipe) == (dict(values), recipe):
        since = before.since
    records.write(ProposedSettings(values=dict(values), recipe=recipe, since=since), home.var)


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Returns settings as `--set` takes them.

    >>> assignments({"train.rate": 0.001, "workload.wide": True})
    ['train.rate=0.001', 'workload.wide=true']
    """
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def propose(home: Home, asked: Params) -> list[str]:
    """Returns the assignments by which a night trains what was found better; none where nothing was.

    The night after one that failed with them trains without, as they may be why.
    """
    if not asked.section(SearchParams).space:
        return []
    values = read(home, home.params).values  # since what a person sets for one night is no edit
    last = next(iter(ledger.history(home, 1)), None)
    return [] if values and last and _failed_with(home, last, values) else assignments(values)


def _failed_with(home: Home, night: ledger.Entry, values: Mapping[str, Any]) -> bool:
    """Returns whether a night opened with these settings and made no version."""
    if night.rollback or night.version:
        return False
    trained = YAML(typ="safe", pure=True).load(branch.text_at(home, night.commit, str(params.FILE)) or "{}")
    parts = [(key.split("."), value) for key, value in values.items()]
    return all(_section(trained, name).get(key) == value for (name, key), value in parts)


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a section of params.yaml; empty where it is missing, or a class by its import path alone."""
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}


def forget(home: Home) -> None:
    """Has nights train params.yaml again; forgets the tries too, which would only bring the settings back."""
    records.path_of(ProposedSettings, home.var).unlink(missing_ok=True)
    (home.var / STUDY).unlink(missing_ok=True)

"""Gives a night its values of `plan.quality_choices`: reads what nights showed, and writes params.yaml.

`quality_choices.py` decides. A key that a person set, in params.yaml or for this night alone, stays as it is.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from daybreak.contract import params, records
from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Chosen
from daybreak.contract.record_types import Champion, Night
from daybreak.contract.sections import Params, WorkloadPlug
from daybreak.contract.units import HOUR_S
from daybreak.extensions.exploration.learning_curve import QualityNight
from daybreak.extensions.exploration.quality_choices import OF_THE_WORKLOAD, Tonight, choose
from daybreak.prediction import ledger_history
from daybreak.prediction.efficiency import theory
from daybreak.registry.lineage import is_refresh, recipe
from daybreak.storage import homes, ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from daybreak.training.recipe import FACTS, begins_cold

NIGHTS = 365  # that are looked back on
CAUSED = ("prepare", "profile", "plan", "train")  # stages that may fail by what a night takes up


def choose_for(
    home: Home, night: Night, champion: Champion | None, loaded: Params, assignments: Sequence[str]
) -> Chosen | None:
    """Returns the values that the night gets, and writes them to the params.yaml of its folder.

    None where there is nothing to choose, and in a home that shares machines of a fleet.

    Args:
        home: whose nights these are.
        night: tonight's.
        champion: that serves; its model is in `data/champion/`.
        loaded: tonight's params.
        assignments: what a person set for this night alone, as `section.key=value`.
    """
    choices = loaded.plan.quality_choices
    if loaded.plan.objective != "quality" or not choices or homes.shared(home.folder):
        return None
    given = {key: _value(key, listed, loaded) for key, listed in choices.items()}
    by_person = frozenset(
        key for key, listed in choices.items() if given[key] != listed[0] or _is_set(key, assignments)
    )
    train, warm = loaded.train, not begins_cold(night, champion, loaded.workload, loaded.train)
    entries = ledger.before(home, night, limit=NIGHTS)
    arguments = _arguments(champion, loaded)
    tonight = Tonight(
        values=given,
        set_by_person=by_person,
        serving=_serving(choices, arguments),
        rest=_rest(home, choices, loaded),
        warm=warm,
        passes=train.warm_epochs * train.warm_share if warm else train.epochs,
        hours=min(loaded.night.train_hours, loaded.night.decide_hours - night.test_hours),
        budget_usd=night.budget_usd,
        left_usd=loaded.plan.explore_usd - ledger_history.explored_usd(entries),
    )
    chosen = choose(choices, tonight, quality_nights(entries, batch_size=train.batch_size))
    changed = [f"{key}={value}" for key, value in chosen.values.items() if value != given[key]]
    loaded = params.override(home.tonight, changed, into=home.tonight)
    if arguments is None or chosen.tried.startswith(OF_THE_WORKLOAD):
        return chosen
    free = {key for key in choices if key not in by_person}
    as_champion = _with_arguments(loaded, of=arguments, keys=free)
    return replace(chosen, is_refresh=is_refresh(champion, as_champion, loaded.train))


def _with_arguments(loaded: Params, *, of: Mapping[str, Any], keys: Collection[str]) -> WorkloadPlug:
    """Returns the workload with these of its arguments as in `of`."""
    arguments = dict(loaded.workload.model_extra or {})
    for name in (_name(key) for key in keys if key.startswith(OF_THE_WORKLOAD)):
        if name in of:
            arguments[name] = of[name]
        else:
            arguments.pop(name, None)
    return WorkloadPlug.model_validate({"use": loaded.workload.use, **arguments})


def _name(key: str) -> str:
    return key.partition(".")[2]


def _value(key: str, listed: Sequence[int], loaded: Params) -> int:
    """Returns the value of a key in params.yaml; the first listed one for an argument that is left out."""
    if not key.startswith(OF_THE_WORKLOAD):
        return loaded.prepare.window_days
    value = (loaded.workload.model_extra or {}).get(_name(key), listed[0])
    if not isinstance(value, int):
        raise ParamsError(
            f"{key} is {value!r}, and plan.quality_choices lists whole numbers; remove it there"
        )
    return value


def _is_set(key: str, assignments: Sequence[str]) -> bool:
    names = [assignment.partition("=")[0].strip() for assignment in assignments]
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _arguments(champion: Champion | None, loaded: Params) -> dict[str, Any] | None:
    """Returns the arguments of the workload that serves; None where none or another one does."""
    facts = json.loads(FACTS.read_text()) if champion and champion.version and FACTS.exists() else {}
    is_same = facts and facts["workload"] == loaded.workload.use
    return dict(facts["arguments"]) if is_same else None


def _serving(choices: Mapping[str, Sequence[int]], arguments: Mapping[str, Any] | None) -> dict[str, int]:
    """Returns the listed values that the version which serves has; none where it has others."""
    if arguments is None:
        return {}
    of_workload = {key: listed for key, listed in choices.items() if key.startswith(OF_THE_WORKLOAD)}
    values = {key: arguments.get(_name(key), listed[0]) for key, listed in of_workload.items()}
    return {key: value for key, value in values.items() if value in of_workload[key]}


def _rest(home: Home, choices: Mapping[str, Sequence[int]], loaded: Params) -> str:
    """Returns a digest of all that decides the model but these keys: data, workload, training."""
    alike = params.override(home.tonight, [f"{key}={listed[0]}" for key, listed in choices.items()])
    prepare = alike.prepare.model_dump_json(exclude_defaults=True)
    return records.text_digest(
        "\n".join((recipe(alike.workload, alike.train), prepare, loaded.source.model_dump_json()))
    )


def quality_nights(entries: Sequence[Entry], *, batch_size: int) -> list[QualityNight]:
    """Returns what nights showed of the values that they had of `plan.quality_choices`.

    Those that failed before their training, or at something that no value is the cause of, are left out.

    Args:
        entries: the nights, oldest first.
        batch_size: of the recipe; others count as many samples as make equal progress by noise-scale theory.
    """
    return [each for entry in entries if (each := _quality_night(entry, batch_size=batch_size))]


def _quality_night(entry: Entry, *, batch_size: int) -> QualityNight | None:
    chosen, plan, training = entry.night.chosen, entry.plan, entry.training
    if chosen is None:
        return None
    if training is None:
        is_too_much = entry.verdict is not None and entry.verdict.failed in CAUSED
        return (
            QualityNight(chosen=chosen, passes=None, warm=None, score=None, hours=inf, usd=inf)
            if is_too_much
            else None
        )
    hours = inf
    if training.stopped_by in {"finished", "validation"} and training.ended_at:
        hours = (training.ended_at - entry.night.started_at).total_seconds() / HOUR_S
    passes = None
    if plan and entry.profile and entry.dataset and entry.dataset.num_samples and not plan.sizes:
        noise = training.noise_scale or entry.profile.noise_scale
        passes = training.num_samples / theory(noise, plan.batch_size, batch_size) / entry.dataset.num_samples
    return QualityNight(
        chosen=chosen,
        passes=passes,
        warm=training.warm,
        score=entry.evaluation.metrics.get("score") if entry.evaluation else None,
        hours=hours,
        usd=training.cost_usd,
    )

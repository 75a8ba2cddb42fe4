"""Reads what the release before this one wrote; no other module knows an older form.

A class that only moved is still the same class: its older import path is read as the path that it has now, in
params.yaml and in the model.json of a version. `python -m pipeline migrate` rewrites params.yaml. A
`Rental` stood as single fields among the others of its record.
"""

import importlib
import json
import re
from collections.abc import Mapping
from io import StringIO
from typing import Any

MOVED = {
    "pipeline.backends.vertex": "pipeline.backends.vertex.vertex",
    "pipeline.data.shop": "pipeline.examples.shop.simulated_shop",
    "pipeline.examples.recommender": "pipeline.examples.shop.recommender",
    "pipeline.examples.regression": "pipeline.examples.shop.regression",
    "pipeline.intake.shop": "pipeline.examples.shop.simulated_shop",
    "pipeline.intake.source": "pipeline.data.source",
    "pipeline.release.endpoint": "pipeline.rollout.endpoint",
    "pipeline.workloads.recommender": "pipeline.examples.shop.recommender",
    "pipeline.workloads.regression": "pipeline.examples.shop.regression",
}
RELEASES = ("Release", "Champion")  # records of who serves
# How the verdict of a night began that failed at a stage, as `close` wrote it.
_FAILED = re.compile(
    r"(open|ingest|validate|prepare|profile|plan|train|evaluate|register|gate|promote) failed: "
)
_VERSION = re.compile(r"\bversion (\d+)\b")
# Records that have a rental now, and the names that its fields had in them; a field `spot` said the rest.
RENTED = frozenset({"Plan", "Rung", "Option", "Submission"})
RENTAL = {
    "machine": "machine", "num_machines": "num_machines", "region": "region", "strategy": "strategy",
    "wait_s": "max_wait_s",
}  # fmt: skip
# Records that stand in another one, alone or in a list.
PARTS = {"Plan": {"ladder": "Rung", "options": "Option"}, "Verdict": {"live": "Live"}}
GONE = {"Live": {"tuned_at"}}  # fields that no record has any more
EVIDENCE = {"mended": "tuned"}  # keys of a profile's evidence, and what they are called now
# Records that `record` may change; the JSON of others need not be looked into.
CHANGED = frozenset({*RELEASES, *RENTED, *PARTS, *GONE, "Profile"})
# Keys of params.yaml that stand in a section of their own now.
KEYS = {
    ("prepare", "leave_out_items"): ("workload", "leave_out_items"),
    ("gate", "fit_samples"): ("smoke_test", "samples"),
    **{("gate", key): ("smoke_test", key) for key in ("max_start_s", "max_p99_s", "max_memory_bytes")},
    **{
        ("gate", key): ("live_test", key)
        for key in ("ramp", "ramp_users", "ramp_hours", "outcome_hours", "max_errors", "max_fallbacks",
                    "max_p99_rise_s", "max_shift")
    },
}  # fmt: skip
# What every suite of rules for the data had built in, when the rows were a shop's.
_CANCELS = "coalesce(starts_with(invoice, 'C'), false)"
SUITE = {
    "columns": {"pieces": f"CASE WHEN {_CANCELS} THEN -quantity ELSE quantity END"},
    "figures": {
        "num_invoices": "count(DISTINCT invoice)",
        "num_items": "count(DISTINCT item)",
        "guests": "avg((customer IS NULL)::INT)",
        "cancelled": f"avg(({_CANCELS})::INT)",
        "median_price": f"median(price) FILTER (NOT {_CANCELS})",
        "median_quantity": f"median(quantity) FILTER (NOT {_CANCELS})",
    },
}
_MOVED = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, MOVED))}):(?=\w)")


def import_path(use: str) -> str:
    """Returns the path `module:Class` that a class has now."""
    module, colon, name = use.partition(":")
    return f"{MOVED.get(module, module)}{colon}{name}"


def note(line: str) -> dict[str, Any]:
    """Returns the values of a note of the ledger; those of the release before were a time and a sentence."""
    if line.startswith("{"):
        values: dict[str, Any] = json.loads(line)
        return values
    at, _, text = line.partition(": ")
    return {"at": at, "text": text, "versions": [int(number) for number in _VERSION.findall(text)]}


def params(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of params.yaml with each key in the section where it is now."""
    renewed = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    for (section, key), (new_section, new_key) in KEYS.items():
        if isinstance(renewed.get(section), dict) and key in renewed[section]:
            _open(renewed, new_section)[new_key] = renewed[section].pop(key)
    return renewed


def workload(made: Any) -> Any:
    """Returns a workload with a table: those of the release before had none, and read a shop's arrays."""
    if not hasattr(made, "table") and hasattr(made, "dataset"):
        lines = importlib.import_module("pipeline.examples.shop.sold_lines").SoldLines()
        made.table, made.arrays = lines.table, lines.arrays
        made.corrected, made.reaches_back = lines.corrected, lines.reaches_back
    return made


def _open(values: Any, section: str) -> Any:
    """Returns a section to write into; a class that stands by its import path alone becomes one."""
    if isinstance(values.get(section), str):
        values[section] = {"use": values[section]}
    return values.setdefault(section, {})


def suite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a suite of rules without the group `schema`, which the workload's table replaces.

    The derived columns and the figures of a day that were built in stand in the suite now.
    """
    if not isinstance(values, Mapping) or "schema" not in values:
        return values  # type: ignore[return-value]  # whatever it is, it is checked by who reads it
    return SUITE | {key: value for key, value in values.items() if key != "schema"}


def migrate(text: str) -> tuple[str, list[str]]:
    """Returns params.yaml in today's form, comments kept, and a line for each change."""
    changes = [f"{old} is now {MOVED[old]}" for old in dict.fromkeys(_MOVED.findall(text))]
    text = _MOVED.sub(lambda match: f"{MOVED[match[1]]}:", text)
    from ruamel.yaml import YAML  # planning reads records, and is to start without it

    yaml = YAML()
    values = yaml.load(text)
    moved = [(old, new) for old, new in KEYS.items() if old[1] in (values.get(old[0]) or {})]
    for (section, key), (new_section, new_key) in moved:
        _open(values, new_section)[new_key] = values[section].pop(key)
        changes.append(f"{section}.{key} is now {new_section}.{new_key}")
    if moved:
        stream = StringIO()
        yaml.dump(values, stream)
        text = stream.getvalue()
    return text, changes


def record(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parsed JSON of a record in today's form, by the name of its class."""
    renewed = dict(values)
    if kind in RELEASES and "version" not in values and "champion" in values:
        renewed = {"version": renewed.pop("champion"), **renewed}
    if kind == "Verdict" and "failed" not in values and values.get("action") == "no data":
        failure = _FAILED.match(str(values.get("reason")))
        renewed |= {"failed": failure[1]} if failure else {}
    if kind in RENTED and "rental" not in values and "machine" in values:
        rest = {key: value for key, value in values.items() if key not in RENTAL and key != "spot"}
        rental = {now: values[before] for before, now in RENTAL.items() if before in values}
        by_wait = "flex-start" if values.get("wait_s") else "on-demand"
        renewed = {"rental": {"strategy": "spot" if values.get("spot") else by_wait} | rental, **rest}
    if kind == "Profile" and isinstance(evidence := values.get("evidence"), dict):
        renewed["evidence"] = {EVIDENCE.get(key, key): value for key, value in evidence.items()}
    for key, part in PARTS.get(kind, {}).items():
        if isinstance(value := values.get(key), dict):
            renewed[key] = record(part, value)
        elif isinstance(value, list):
            renewed[key] = [record(part, each) if isinstance(each, dict) else each for each in value]
    return {key: value for key, value in renewed.items() if key not in GONE.get(kind, ())}


def holdback_name(*, serving: int, replaced: int) -> str:
    """Returns the name of an experiment that held users back on the version before, of one promotion."""
    return f"holdback-{serving}-{replaced}"


def is_counted(exposure: str) -> bool:
    """Returns whether the id of an exposure is a router's prefix and a count, which names no user."""
    return exposure[16] == "0"

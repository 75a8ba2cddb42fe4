"""Reads params.yaml and records in the forms that earlier releases wrote; 0.1.0 has none before it.

A release that moves a key of params.yaml, or changes a record, adds a line to a table here, so that homes of
the release before it go on. `daybreak migrate` rewrites params.yaml.
"""

from collections.abc import Callable, Mapping
from io import StringIO
from typing import Any

# Where a key of params.yaml stands today, by its former section and name.
KEYS: dict[tuple[str, str], tuple[str, str]] = {}
# What makes today's values of a record's parsed JSON, by the name of the record's class.
RECORDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def params(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of params.yaml with each key in the section where it stands today."""
    renewed = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    for old in _moved(renewed):
        _move(renewed, old)
    return renewed


def record(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the parsed JSON of a record in today's form, by the name of its class."""
    return RECORDS[kind](dict(values)) if kind in RECORDS else values


def migrate(text: str) -> tuple[str, list[str]]:
    """Returns params.yaml in today's form, comments kept, and a line for each change."""
    from ruamel.yaml import YAML  # planning reads records, and is to start without it

    yaml = YAML()
    values = yaml.load(text)
    moved = _moved(values)
    for old in moved:
        _move(values, old)
    if moved:
        stream = StringIO()
        yaml.dump(values, stream)
        text = stream.getvalue()
    return text, [f"{'.'.join(old)} is now {'.'.join(KEYS[old])}" for old in moved]


def _moved(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the former sections and names of keys that stand in `values`."""
    return [
        (section, key)
        for section, key in KEYS
        if isinstance(values.get(section), Mapping) and key in values[section]
    ]


def _move(values: Any, old: tuple[str, str]) -> None:
    section, key = KEYS[old]
    if isinstance(values.get(section), str):  # a class by its import path alone
        values[section] = {"use": values[section]}
    values.setdefault(section, {})[key] = values[old[0]].pop(old[1])

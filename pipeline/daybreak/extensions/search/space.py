"""Reads the values of a setting: a list, or a range such as log(1e-4, 1e-2), of which Optuna draws."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RANGE = re.compile(r"(log|float|int)\(\s*([^,\s]+)\s*,\s*([^,\s]+)\s*\)")
Space = Mapping[str, tuple[Any, ...] | str]  # values by key of params.yaml


def bounds(key: str, text: str) -> tuple[str, float, float]:
    """Returns kind, low and high of a range; ValueError where the text is none."""
    found = RANGE.fullmatch(text.strip())
    try:
        kind, low, high = found[1], float(found[2]), float(found[3])  # type: ignore[index]
    except (TypeError, ValueError):
        raise ValueError(
            f"{key}: {text!r} is not a range; write one as log(1e-4, 1e-2), float(0, 0.5) or int(1, 20)"
        ) from None
    if not math.isfinite(high - low):
        raise ValueError(f"{key}: {text} has no end; give two numbers")
    if not low < high or (kind == "log" and low <= 0) or (kind == "int" and low % 1 + high % 1):
        raise ValueError(f"{key}: {text} is an empty range, or its ends do not go with {kind}; exchange them")
    return kind, low, high


def distributions(space: Space) -> "dict[str, BaseDistribution]":
    """Returns the settings of params.yaml as Optuna knows them."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    made: dict[str, BaseDistribution] = {}
    for key, given in space.items():
        if not isinstance(given, str):
            made[key] = CategoricalDistribution(given)
            continue
        kind, low, high = bounds(key, given)
        if kind == "int":
            made[key] = IntDistribution(int(low), int(high))
        else:
            made[key] = FloatDistribution(low, high, log=kind == "log")
    return made


def ends(given: tuple[Any, ...] | str, key: str) -> tuple[Any, ...]:
    """Returns the listed values of a setting, or the ends of its range."""
    if not isinstance(given, str):
        return given
    kind, low, high = bounds(key, given)
    return (int(low), int(high)) if kind == "int" else (low, high)

"""Finds the groups of samples on which two models differ by another amount than on the rest.

A group's mean difference is compared with that of all other samples. Samples of a unit depend on each other,
so the variance is that of sums by unit (Liang and Zeger 1986), and Holm's correction (1979) is over all
groups that are looked at. Nothing is judged by it: the report shows it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from daybreak.statistics.paired import holm

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group of samples, and the mean difference on it and on the others."""

    name: str
    num_samples: int
    within: float
    elsewhere: float


def differing(
    differences: Floats,
    groups: Mapping[str, NDArray[np.bool_]],
    *,
    units: NDArray[Any] | None = None,
    alpha: float = 0.05,
) -> tuple[Group, ...]:
    """Returns the groups that differ from the rest, those that differ most first.

    Args:
        differences: of the scores of two models, shape [n].
        groups: masks by the groups' names, shape [n] each; each has samples, and leaves some.
        units: number of what samples belong to, shape [n]; each sample is its own if None.
        alpha: chance that any group is named where none differs.

    >>> rng = np.random.default_rng(0)
    >>> west = np.arange(1000) < 200
    >>> found = differing(rng.normal(0.2 * west, 0.3), {"west": west, "even": np.arange(1000) % 2 == 0})
    >>> [(one.name, one.num_samples) for one in found]
    [('west', 200)]
    """
    if not groups:
        return ()
    code = np.arange(len(differences)) if units is None else np.unique(units, return_inverse=True)[1]
    num_units = int(code.max()) + 1
    means, p_values = [], []
    for within in groups.values():
        inside, outside = float(differences[within].mean()), float(differences[~within].mean())
        weight = np.where(within, 1 / within.sum(), -1 / (~within).sum())
        residual = differences - np.where(within, inside, outside)
        by_unit = np.bincount(code, weights=weight * residual, minlength=num_units)
        error = math.sqrt(float(np.square(by_unit).sum()) * num_units / max(num_units - 1, 1))
        means.append((inside, outside))
        if error == 0:
            p_values.append(float(inside == outside))
        else:
            p_values.append(float(2 * stats.t.sf(abs(inside - outside) / error, max(num_units - 1, 1))))
    found = [
        Group(name=name, num_samples=int(within.sum()), within=inside, elsewhere=outside)
        for (name, within), (inside, outside), is_real in zip(
            groups.items(), means, holm(p_values, alpha=alpha), strict=True
        )
        if is_real
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.within - one.elsewhere)))

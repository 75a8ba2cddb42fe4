"""Finds the groups of samples on which two models differ by another amount than on the rest.

A group's mean difference is compared with that of all other samples. Samples of a unit depend on each other,
so the variance is that of sums by unit (Liang and Zeger 1986), and Holm's correction (1979) is over all
groups that are looked at. That variance is too small where units are few, so a group of few units is not
looked at, and the quantiles are of t for as many units as the smaller side has (Cameron and Miller 2015).
Nothing is judged by it: the report shows it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from daybreak.statistics.paired import holm

FEWEST = 30  # units of a group, and outside of it
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group of samples, and the mean difference on it and on the others."""

    name: str
    num_samples: int
    within: float
    elsewhere: float


@dataclass(frozen=True, kw_only=True)
class Search:
    """The groups that differ from the rest, those that differ most first, and how many were looked at."""

    differing: tuple[Group, ...]
    num_groups: int


def differing(
    differences: Floats,
    groups: Iterable[tuple[str, NDArray[np.bool_]]],
    *,
    units: NDArray[Any] | None = None,
    alpha: float = 0.05,
) -> Search:
    """Returns the groups that differ from the rest.

    Args:
        differences: of the scores of two models, shape [n].
        groups: names and masks, shape [n] each; those of few units, or that leave few, are passed over.
        units: number of what samples belong to, shape [n]; each sample is its own if None.
        alpha: chance that any group is named where none differs.

    >>> rng = np.random.default_rng(0)
    >>> west = np.arange(1000) < 200
    >>> lead = rng.normal(0.2 * west, 0.3)
    >>> search = differing(lead, [("west", west), ("even", np.arange(1000) % 2 == 0)])
    >>> [(one.name, one.num_samples) for one in search.differing], search.num_groups
    ([('west', 200)], 2)
    """
    code = np.arange(len(differences)) if units is None else np.unique(units, return_inverse=True)[1]
    looked_at, p_values = [], []
    for name, within in groups:
        num_units = min(len(np.unique(code[within])), len(np.unique(code[~within])))
        if num_units < FEWEST:
            continue
        inside, outside = float(differences[within].mean()), float(differences[~within].mean())
        weight = np.where(within, 1 / within.sum(), -1 / (~within).sum())
        residual = differences - np.where(within, inside, outside)
        error = math.sqrt(float(np.square(np.bincount(code, weights=weight * residual)).sum()))
        if error == 0:
            p_values.append(float(inside == outside))
        else:
            p_values.append(float(2 * stats.t.sf(abs(inside - outside) / error, num_units - 1)))
        looked_at.append(Group(name=name, num_samples=int(within.sum()), within=inside, elsewhere=outside))
    real = [one for one, is_real in zip(looked_at, holm(p_values, alpha=alpha), strict=True) if is_real]
    return Search(
        differing=tuple(sorted(real, key=lambda one: -abs(one.within - one.elsewhere))),
        num_groups=len(looked_at),
    )

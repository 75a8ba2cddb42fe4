"""Exposures as routers log them, of users whose behaviour is known."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from daybreak.statistics.assignment import CHALLENGER, arm_of, propensity
from daybreak.storage.exposures import Exposure

GOOD = tuple(f"i{number}" for number in range(20))
NUMBERS = count()


@dataclass
class Model:
    """How an arm behaves."""

    hit: float = 0.5  # chance that what the user takes is on the list
    errors: float = 0.0
    fallbacks: float = 0.0
    slower_s: float = 0.0
    items: Sequence[str] = GOOD
    outcomes: float = 1.0  # chance that an outcome is told


def exposures(
    rng: np.random.Generator,
    users: Sequence[str],
    *,
    share: float,
    start: float,
    experiment: str = "test",
    champion: Model | None = None,
    challenger: Model | None = None,
    version: int = 2,
    apart_s: float = 1.0,
    assigned: Callable[[str], str] | None = None,
) -> Iterator[Exposure]:
    """One exposure a user, in order, each with its outcome five seconds later; `version` challenges 1."""
    models = {"champion": champion or Model(), CHALLENGER: challenger or Model()}
    for number, user in enumerate(users):
        arm = assigned(user) if assigned else arm_of(user, experiment=experiment, share=share)
        model, time = models[arm], start + number * apart_s
        taken = (model.items[int(rng.integers(len(model.items)))],) if rng.random() < model.hit else ("no",)
        has_outcome = rng.random() < model.outcomes
        yield Exposure(
            id=f"{next(NUMBERS):032x}",
            time=time,
            experiment=experiment,
            unit=user,
            arm=arm,
            version=version if arm == CHALLENGER else 1,
            share=share,
            propensity=propensity(arm, share),
            items=tuple(model.items),
            latency_s=float(rng.gamma(4, 0.002)) + model.slower_s,
            error="it broke" if rng.random() < model.errors else "",
            fallback=bool(rng.random() < model.fallbacks),
            taken=taken if has_outcome else None,
            taken_at=time + 5 if has_outcome else None,
        )


def users(first: int, number: int) -> list[str]:
    """Names of users."""
    return [f"{one:016x}" for one in range(first, first + number)]

"""Lives of machines, drawn from the published formula without any code of the pipeline's."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from daybreak.extensions.bag.reuse import Runs

HOUR_S = 3600.0
A, TAU1, TAU2, B = 0.414, 0.9, 0.76, 24.0  # Kadupitiya et al., HPDC'20; hours


def published_share_gone(hours: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns F(t) of the paper, the share of machines lost by this age; at the last age all are."""
    hours = np.asarray(hours)
    return np.clip(A * (1 - np.exp(-hours / TAU1) + np.exp(np.minimum((hours - B) / TAU2, 50))), 0.0, 1.0)


def drawn(number: int, *, seed: int) -> NDArray[np.float64]:
    """Seconds that machines live, by the inverse of F at uniform draws."""
    chances = np.random.default_rng(seed).random(number)
    last = brentq(lambda hours: A * (1 - np.exp(-hours / TAU1) + np.exp((hours - B) / TAU2)) - 1.0, B, 2 * B)
    return HOUR_S * np.array(
        [
            brentq(lambda hours, chance=chance: float(published_share_gone(hours)) - chance, 0.0, last)
            if chance > A * np.exp(-B / TAU2)
            else 0.0
            for chance in chances
        ]
    )


def machine_time(lives_s: NDArray[np.float64], runs: Runs, *, replace_at_s: float) -> float:
    """Machine seconds a run, where machines of these lives do runs that are lost with them."""
    paid_s, done = 0.0, 0
    for life_s in lives_s:
        age_s = runs.boot_s
        while age_s + runs.run_s <= life_s and age_s < replace_at_s:
            age_s, done = age_s + runs.run_s, done + 1
        paid_s += age_s if age_s >= replace_at_s else life_s
    return paid_s / done

"""Weighs local updates of workers (local SGD): time saved on sync against the extra samples needed.

Workers that average every h updates (extensions/averaging/local_sgd.py) send less, and drift apart in
between. With R workers, a batch of B samples, a rate gamma and a curvature L, drift adds 2 gamma L R (h - 1)
times the noise of gradients (Khaled et al. 2020, arXiv 1909.04746, for identical data; Stich 2019 bounds h
alike). The rate that a batch of B bears has gamma L = B / (B + phi), for a noise scale phi (McCandlish 2018),
so for equal progress the samples grow by at most

    d = 1 + 2 R (h - 1) phi B / (phi + B)^2                                                         (derived)

At a quadratic loss they do not grow at all. Both extremes are the ends of a 90 % interval, whose median is
their geometric mean, as for the roofline. Without a barrier, averages arrive h updates late, which counts as
an interval of 2 h.

An h is considered where summing gradients takes a considerable share of an update. It is the power of two
with the least time for all samples, under two limits: a run needs enough averages for a trial
(extensions/averaging/local_sgd.py), and averages must be closer in time than the notice before a machine is
taken away, since workers hear of everything when they average.
"""

from math import isfinite, log
from typing import TYPE_CHECKING

from daybreak.contract.record_parts import Sync
from daybreak.machines.startup import Z90
from daybreak.prediction.measurements import AVERAGED
from daybreak.prediction.update_time import Updates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CONSIDERABLE = 0.1  # share of an update that summing gradients takes
MIN_GAIN = 0.05  # of the time for equal progress
MOST_APART_S = 10.0  # between two averages; a machine on spot has 25 to 30 s until it is gone
LEAST_AVERAGES = 64  # in a run
INTERVALS = tuple(2**power for power in range(1, 9))
CHOICES = tuple(Sync(every=every, is_late=is_late) for is_late in (False, True) for every in INTERVALS)


def most_samples(noise_scale: float, *, batch_size: float, num_workers: int, sync: Sync) -> float:
    """Returns the most samples that equal progress needs, by those it needs at every update.

    >>> most_samples(1000.0, batch_size=100, num_workers=2, sync=Sync(every=4))
    1.9917355371900827
    """
    if num_workers == 1 or sync.every == 1:
        return 1.0
    behind = sync.every * (2 if sync.is_late else 1)
    return 1 + 2 * num_workers * (behind - 1) * _drift(noise_scale, batch_size)


def _drift(noise_scale: float, batch_size: float) -> float:
    """Returns phi B / (phi + B)^2, at most a fourth; 0 where there is no noise, or nothing but noise."""
    noise = max(0.0, noise_scale)
    return noise * batch_size / (noise + batch_size) ** 2 if isfinite(noise) else 0.0


def more_samples(
    noise_scale: float, *, batch_size: float, num_workers: int, sync: Sync
) -> tuple[float, float]:
    """Returns how many times the samples equal progress needs: median, and deviation of the logarithm."""
    most = most_samples(noise_scale, batch_size=batch_size, num_workers=num_workers, sync=sync)
    return most**0.5, log(most) / 2 / Z90


def worthwhile(
    timed: Updates, *, batch_size: int, num_samples: int, noise_scale: float
) -> list[tuple[int, Sync]]:
    """Returns which of these settings would gain by averages, and how often workers would then average.

    Args:
        timed: updates at each of which gradients are added up.
        batch_size: of an update, in samples.
        num_samples: to train on at every update.
        noise_scale: of gradients, in samples.
    """
    import numpy as np

    from daybreak.prediction.step_time import BESIDE

    compute_s, sum_s = timed.seconds[:3].sum(axis=0), timed.seconds[3]
    places = np.flatnonzero(sum_s >= CONSIDERABLE * (compute_s + sum_s))
    if not len(places):
        return []
    compute_s, sum_s = compute_s[places], sum_s[places]
    every = np.array([each.every for each in CHOICES])[:, None]
    late = np.array([each.is_late for each in CHOICES])[:, None]
    power, sent_s = np.where(late, BESIDE, 1.0), sum_s * AVERAGED / every
    takes_s: Array = (compute_s**power + sent_s**power) ** (1 / power)  # [choices, places]
    workers = np.array([timed.settings[place].num_workers for place in places.tolist()])
    behind = np.where(late, 2, 1) * every
    most = 1 + 2 * workers * (behind - 1) * _drift(noise_scale, batch_size)
    fits = (behind * takes_s <= MOST_APART_S) & (behind * LEAST_AVERAGES * batch_size <= num_samples)
    progress_s = np.where(fits, takes_s * most**0.5, np.inf)
    best = progress_s.argmin(axis=0)
    gains = progress_s.min(axis=0) < (1 - MIN_GAIN) * (compute_s + sum_s)
    return [
        (int(place), CHOICES[choice]) for place, choice, gain in zip(places, best, gains, strict=True) if gain
    ]


def says(noise_scale: float, *, batch_size: int, num_workers: int, sync: Sync) -> str:
    """Returns in words how many more samples averages need."""
    most = most_samples(noise_scale, batch_size=batch_size, num_workers=num_workers, sync=sync)
    return (
        f"{most**0.5:.2f} (1.00 to {most:.2f}) times the samples as it {sync}, by theory "
        f"(noise scale {noise_scale:,.0f})"
    )

"""Computes the learning rate from the progress of training and the size of the batch.

Warm-up, stable, decay (WSD; Hu et al. 2024): the decay may start at any moment, so a run that falls behind,
or whose validation finds nothing better, can end early and still end well. Other schedules (Loshchilov &
Hutter 2017 for the cosine) know the end from the beginning; a run of theirs that ends early decays, too.

A rate is configured for batches of one size. On batches k times as large, an update of

    SGD       takes k times the rate, after a warm-up (linear rule; Goyal et al. 2017)
    Adam      takes sqrt(k) times the rate, betas 1 - k (1 - beta) and eps / sqrt(k) (Malladi et al. 2022);
              where k (1 - beta) reaches 1 nothing would be averaged any more, so that is refused
    Adagrad   takes the same rate and eps / k: where noise dominates, its sum of squares over the same samples
              has fewer and smaller terms, k^2 times less, so a step is already k times as long (derived)

The linear rule keeps the noise temperature rate / (batch (1 - momentum)), so momentum stays (Smith & Le
2018). AdaScale (Johnson et al. 2020) is for SGD, by the measured gain r of a batch in place of k: the rate is
r times that of position tau, tau grows by r, and training ends after as many of these scale-invariant
iterations as there would have been updates (noise.py has r, batch_schedule.py tau).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from daybreak.contract.errors import ParamsError

Kind = Literal["sgd", "adam", "adagrad"]
Rule = Literal["by_optimizer", "adascale", "fixed"]
Schedule = Literal["stable", "linear", "cosine", "constant", "own"]
OwnSchedule = Callable[[float], float]  # of the share of the samples that is done: a factor of the peak
WARMUP = 0.05  # least share of the samples where the linear rule makes steps longer (Goyal: 5 of 90 epochs)
ROUNDING = 1e-9
MARGIN = 0.1  # possible error of the estimate of a run's end, as a share of the time left


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """How an optimizer steps on batches of another size."""

    rate: float = 1.0  # factor
    betas: tuple[float, ...] = ()
    eps: float = 0.0
    warmup: float = 0.0  # least share of the samples
    most_times: float = float("inf")  # largest multiple of the base size for which the rule holds


def rate_at(
    seen: float,
    *,
    num_samples: float,
    end: float,
    warmup: float,
    decay: float,
    peak: float,
    schedule: Schedule = "stable",
    own: OwnSchedule | None = None,
    progress: float = 0.0,
) -> float:
    """Returns the learning rate of the update whose batch is centred on position `seen`.

    The rate rises linearly to `peak` over the share `warmup` of `num_samples`, and goes on by its schedule.
    Where the run is to `end` earlier, it falls linearly to 0 over the last share `decay` up to there. Where
    `progress`, in samples, is ahead of `seen`, the schedule goes by that.

    By the schedule `stable` the rate stays at its peak until the last share `decay`, over which it falls
    linearly to 0; by `linear` and `cosine` it falls to 0 from the warm-up on; by `constant` it stays. With
    `own`, the class gives the factor of the peak by the share of `num_samples` that is done, and no warm-up
    is added.

    >>> run = {"num_samples": 100, "end": 100, "warmup": 0.1, "decay": 0.5, "peak": 1}
    >>> [round(rate_at(seen, **run), 2) for seen in (5, 30, 75)]
    [0.5, 1.0, 0.5]
    >>> [round(rate_at(seen, **run, schedule="cosine"), 2) for seen in (5, 10, 55, 100)]
    [0.5, 1.0, 0.5, 0.0]
    """
    position = max(seen, progress)
    done = position / num_samples
    ending = _falling(seen, end, decay) if end < num_samples else 1.0
    if own:
        return peak * own(done) * ending
    rising = done / warmup if warmup > 0 else 1.0
    factor = _after_warmup(position, num_samples=num_samples, warmup=warmup, decay=decay, schedule=schedule)
    return peak * max(0.0, min(rising, factor, ending))


def end_of_decay(
    seen: float,
    *,
    num_samples: float,
    warmup: float,
    decay: float,
    schedule: Schedule = "stable",
    progress: float = 0.0,
) -> float:
    """Returns where a run ends whose rate falls to 0 from position `seen` on, as it does before an early end.

    From its peak that takes the last share `decay` of the run: the end is at seen / (1 - decay). Where the
    schedule has brought it down to a factor f of the peak, there is as much less left to fall: at
    seen / (1 - f decay). A rate that falls to 0 by `num_samples` as it is, as that of `stable` does in its
    decay, goes on to there.

    >>> run = {"num_samples": 100, "warmup": 0.0, "decay": 0.5}
    >>> [round(end_of_decay(seen, **run)) for seen in (20, 40, 70)]
    [40, 80, 100]
    >>> [round(end_of_decay(seen, **run, schedule="cosine")) for seen in (20, 50, 90)]
    [37, 67, 91]
    """
    factor = 1.0  # also of a schedule of the class's own, which an early end multiplies
    if schedule != "own":
        position = max(seen, progress)
        factor = _after_warmup(
            position, num_samples=num_samples, warmup=warmup, decay=decay, schedule=schedule
        )
    left = 1 - max(0.0, factor) * decay
    return min(num_samples, seen / left) if left > 0 else num_samples


def _after_warmup(
    position: float, *, num_samples: float, warmup: float, decay: float, schedule: Schedule
) -> float:
    """Returns the factor of the peak by a schedule, without the warm-up before it."""
    after = min(1.0, max(0.0, (position / num_samples - warmup) / (1 - warmup)))
    match schedule:
        case "stable":
            return _falling(position, num_samples, decay)
        case "linear":
            return 1 - after
        case "cosine":
            return (1 + math.cos(math.pi * after)) / 2
        case _:
            return 1.0


def _falling(seen: float, end: float, decay: float) -> float:
    """Returns the factor that falls to 0 over the last share `decay` of the samples up to `end`."""
    return max(0.0, min(1.0, (end - seen) / (decay * end))) if decay > 0 else 1.0


def scaled(
    kind: Kind | None,
    *,
    name: str,
    rule: Rule,
    batch_size: int,
    base_size: int,
    betas: tuple[float, ...] = (),
    eps: float = 0.0,
) -> Scaled:
    """Returns how an optimizer steps on batches of `batch_size`, given rate, betas and eps for `base_size`.

    `kind` is None for an optimizer without a rule, and `name` is its class. Raises ParamsError where a rule
    is needed and there is none, or `batch_size` is beyond where it holds.

    >>> scaled("adam", name="Adam", rule="by_optimizer", batch_size=256, base_size=64, betas=(0.9,)).rate
    2.0
    """
    times = batch_size / base_size
    if rule == "fixed":
        return Scaled(betas=betas, eps=eps)
    if kind is None or (rule == "adascale" and kind != "sgd"):
        if times == 1:  # no scaling is needed, and the batch cannot grow
            return Scaled(betas=betas, eps=eps, most_times=1.0)
        raise ParamsError(
            f"train.scaling: {rule} has no rule for {name}, and batches are of {batch_size} samples where "
            f"the rate is for {base_size}; set train.batch_size to {batch_size} and a rate for it, "
            f"or train.scaling to {'by_optimizer' if kind else 'fixed'}"
        )
    if rule == "adascale":
        return Scaled(betas=betas, eps=eps)  # the gain changes with each update
    if kind == "sgd":
        return Scaled(rate=times, betas=betas, eps=eps, warmup=WARMUP if times > 1 else 0.0)
    if kind == "adagrad":
        return Scaled(betas=betas, eps=eps / times)
    least = min(betas, default=1.0)
    most = (1 - ROUNDING) / (1 - least) if least < 1 else float("inf")
    if times > max(1, most):
        raise ParamsError(
            f"a batch of {batch_size} is {times:g} times train.batch_size {base_size}, and the rule for "
            f"{name} with a beta of {least:g} ends before {most:.4g} times; leave sizes from "
            f"{most * base_size:.0f} on out of plan.batch_sizes, or raise train.batch_size with a rate for it"
        )
    return Scaled(
        rate=times**0.5,
        betas=tuple(1 - times * (1 - beta) for beta in betas),
        eps=eps / times**0.5,
        most_times=most,
    )


def rate_shares(rates: Iterable[Any]) -> tuple[float, ...]:
    """Returns the rates of an optimizer's groups relative to the largest; 1 where a group names none.

    >>> rate_shares([0.5, 0.125, 0.5]), rate_shares([0.0, 0.0])
    ((1.0, 0.25, 1.0), (1.0, 1.0))
    """
    named = [None if rate is None else float(rate) for rate in rates]
    largest = max((rate for rate in named if rate is not None), default=0.0)
    return tuple(1.0 if rate is None or largest <= 0 else rate / largest for rate in named)

"""Computes what a run takes on a machine of an age, and when a machine is replaced before the next run.

A machine that is lost in a run of J seconds loses the run (Kadupitiya et al., HPDC'20). With S = 1 - F the
share of machines that live longer than an age, and a run that begins at age s,

    P_ok(s) = S(s + J) / S(s)                          the machine outlives the run
    lasts(s) = integral of S over [s, s + J] / S(s)    mean seconds until the run is done or lost
    E(s) = lasts(s) + (1 - P_ok(s)) R                  mean seconds until the run is done
    R = integral of S over [0, boot + J] / S(boot + J)      the same on new machines only, start-up included

The next run begins on the machine at hand if E(s) <= R: with a bathtub curve, a machine that has outlived the
first hours is kept, and a machine near the end of the curve is replaced. If each machine is used for n runs
at most, lives are independent, so that by the renewal-reward theorem a run costs, in machine time,

    integral of S over [0, boot + n J] / sum over i = 1..n of S(boot + i J)

A command that saves its state loses only what came after its last save: E(s) is then that of the checkpoint
program (`spot.intervals`), whose intervals are computed for several ages.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from daybreak.extensions.spot.intervals import schedule
from daybreak.extensions.spot.survival import Lifetime, survival

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

POINTS = 64  # of the integral over a run
MOST_RUNS = 10_000  # that one machine is considered for
NUM_AGES = 8  # for which the checkpoint program is run


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Mean seconds of a run, of saving the state of a run, and until a machine starts work."""

    run_s: float
    save_s: float = 0.0  # 0: the command does not save, and a run that is lost starts over
    boot_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """How long a machine is used, and when runs on it save.

    `saves` has, for ages in ascending order, the seconds of work between saves in a run that begins then.
    """

    num_runs: int  # on one machine at most
    replace_at_s: float  # age from which on no further run begins; infinite: a machine is never replaced
    saves: tuple[tuple[float, tuple[float, ...]], ...] = ()

    def intervals_s(self, age_s: float) -> tuple[float, ...]:
        """Returns the seconds of work between saves of a run that begins at that age; none: no saves."""
        return next((intervals for age, intervals in reversed(self.saves) if age <= age_s), ())


def reuse(lifetime: Lifetime, runs: Runs, *, num_runs: int) -> Reuse:
    """Returns when a machine is replaced, in a bag of `num_runs` runs."""
    most = min(num_runs, MOST_RUNS)
    if not runs.save_s:
        number = _kept_for(lifetime, runs, most=most)
        return Reuse(num_runs=number, replace_at_s=_replace_at_s(runs, number, most=most))
    ages = sorted({min(most - 1, round((most - 1) ** (k / (NUM_AGES - 1)))) for k in range(NUM_AGES)} | {0})
    fresh_s, saves, number = 0.0, [], most
    for before in ages:  # runs that the machine has done
        age_s = runs.boot_s + before * runs.run_s
        program = schedule(
            lifetime, work_s=runs.run_s, save_s=runs.save_s, restart_s=runs.boot_s, age_s=age_s
        )
        fresh_s = fresh_s or runs.boot_s + program.expected_s
        if before and program.expected_s > fresh_s:
            number = before
            break
        saves.append((age_s if before else 0.0, program.intervals_s))
    return Reuse(num_runs=number, replace_at_s=_replace_at_s(runs, number, most=most), saves=tuple(saves))


def _kept_for(lifetime: Lifetime, runs: Runs, *, most: int) -> int:
    """Returns the number of runs after which E(s) > R for the next one."""
    import numpy as np

    living, left = _areas(lifetime, runs, number=most)
    fresh_s = (_start_area(lifetime, runs) + living[0]) / max(left[1], 1e-300)
    too_old = np.flatnonzero(living[1:] > left[2:] * fresh_s)
    return int(too_old[0]) + 1 if len(too_old) else most


def _replace_at_s(runs: Runs, number: int, *, most: int) -> float:
    """Returns an age between the beginning of the last run on a machine and that of the next."""
    return inf if number == most else runs.boot_s + (number - 0.5) * runs.run_s


def paid_s(lifetime: Lifetime, runs: Runs, *, num_runs: int) -> float:
    """Returns the mean machine time of a run that does not save, if a machine does `num_runs` at most.

    >>> from daybreak.extensions.spot.survival import Exponential
    >>> hour = Runs(run_s=3600.0, boot_s=60.0)
    >>> round(paid_s(Exponential(mean_s=36e9), hour, num_runs=60))
    3601
    """
    living, left = _areas(lifetime, runs, number=num_runs)
    return float((_start_area(lifetime, runs) + living.sum()) / left[1:].sum())


def _start_area(lifetime: Lifetime, runs: Runs) -> float:
    """Returns the mean seconds that a machine lives while it starts."""
    import numpy as np

    ages = np.linspace(0.0, runs.boot_s, POINTS)
    return float(np.trapezoid(survival(lifetime, ages), ages))


def _areas(lifetime: Lifetime, runs: Runs, *, number: int) -> "tuple[Floats, Floats]":
    """Returns the integral of S over each of `number` runs in turn, and S at their `number` + 1 ends."""
    import numpy as np

    ends = runs.boot_s + runs.run_s * np.arange(number + 1, dtype=np.float64)
    within = ends[:-1, None] + np.linspace(0.0, runs.run_s, POINTS)
    living = np.asarray(np.trapezoid(survival(lifetime, within), within, axis=1))
    return living, survival(lifetime, ends)


def mean_s(lifetime: Lifetime, runs: Runs, *, num_runs: int) -> float:
    """Returns the mean machine time of one of `num_runs` runs by this rule.

    Of a command that saves it is an upper bound, the lower of two: without its saves, and by the checkpoint
    program if each run had a new machine.
    """
    plain = replace(runs, save_s=0.0)
    number = reuse(lifetime, plain, num_runs=num_runs).num_runs
    kept_s = paid_s(lifetime, plain, num_runs=number)
    if not runs.save_s:
        return kept_s
    program = schedule(lifetime, work_s=runs.run_s, save_s=runs.save_s, restart_s=runs.boot_s)
    return min(kept_s, runs.boot_s + program.expected_s)

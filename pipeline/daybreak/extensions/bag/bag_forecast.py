"""Predicts the time and the machine time of a bag, by drawing what may come.

Each draw plays a whole bag by the rules of `state` and `reuse`: how long each machine lives comes from its
hazard, how long a run takes from the runs that were measured. What is not known well is drawn too: the level
of the hazard by a gamma distribution of as many losses as it was learned from, the runs by resampling those
measured. The interval of 90 % is that of the draws.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from daybreak.contract.errors import ParamsError
from daybreak.contract.formats import duration
from daybreak.contract.record_parts import Record
from daybreak.extensions.bag.reuse import Reuse
from daybreak.extensions.spot.hazard import LONGEST_S
from daybreak.extensions.spot.survival import Lifetime, draw_s, survival

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST_CHANCE = 0.01  # that a machine outlives a run that does not save
NUM_DRAWS, LEAST_DRAWS, MOST_PLAYED = 400, 60, 200_000  # the last in runs of all draws together


@dataclass(frozen=True, kw_only=True)
class BagScenario:
    """What is drawn: a bag of runs on machines that live that long."""

    num_runs: int
    num_needed: int
    num_machines: int
    durations_s: tuple[float, ...]  # of single runs, as they were measured or are expected
    lifetime: Lifetime
    reuse: Reuse
    boot_s: float = 0.0  # from asking for a machine to its first run
    save_s: float = 0.0
    num_losses: float = inf  # that the lifetime was learned from; infinite: it is known


@dataclass(frozen=True, kw_only=True)
class Interval(Record):
    """The mean, and between which values nine of ten draws were."""

    mean: float
    low: float
    high: float

    def times(self, factor: float) -> "Interval":
        """Returns the interval of a multiple."""
        return Interval(mean=self.mean * factor, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, kw_only=True)
class BagForecast(Record):
    """The seconds until enough runs are done, and those of all machines together."""

    elapsed_s: Interval
    machine_s: Interval


def forecast(setting: BagScenario, *, seed: int = 0) -> BagForecast:
    """Returns the forecast by draws from that seed.

    Raises:
        ParamsError: hardly any machine lives as long as a run that does not save takes, so that a draw would
            not end, nor would the bag.
    """
    import numpy as np

    _check_lives(setting)
    rng = np.random.default_rng(seed)
    number = max(LEAST_DRAWS, min(NUM_DRAWS, MOST_PLAYED // setting.num_needed))
    played = np.array([_Bag(setting, rng).played() for _ in range(number)])
    return BagForecast(elapsed_s=_interval(played[:, 0]), machine_s=_interval(played[:, 1]))


def _check_lives(setting: BagScenario) -> None:
    import numpy as np

    run_s = min(setting.durations_s)
    chance = float(survival(setting.lifetime, np.array(setting.boot_s + run_s)))
    if chance < LEAST_CHANCE and not setting.save_s:
        raise ParamsError(
            f"a run of {duration(run_s)} hardly ever ends before its machine is lost (chance {chance:.2g}); "
            f"have the command save its state to {{folder}} and say so with --save-s"
        )


def _interval(values: "Floats") -> Interval:
    import numpy as np

    low, high = np.quantile(values, [0.05, 0.95])
    return Interval(mean=float(values.mean()), low=float(low), high=float(high))


def work_saved_s(work_s: float, intervals_s: Sequence[float], *, save_s: float, lived_s: float) -> float:
    """Returns the work that is saved of a run that is lost after `lived_s`.

    >>> work_saved_s(600.0, (100.0, 200.0), save_s=10.0, lived_s=330.0)
    300.0
    """
    saved_s = used_s = 0.0
    for interval_s in intervals_s:
        used_s += interval_s + save_s
        if used_s > lived_s or saved_s + interval_s >= work_s:
            break
        saved_s += interval_s
    return saved_s


def run_takes_s(work_s: float, intervals_s: Sequence[float], *, save_s: float) -> float:
    """Returns the seconds of a run without a loss, saves included; the end of a run needs no save.

    >>> run_takes_s(600.0, (100.0, 200.0, 300.0), save_s=10.0)
    620.0
    """
    number, saved_s = 0, 0.0
    for interval_s in intervals_s:
        saved_s += interval_s
        if saved_s >= work_s:
            break
        number += 1
    return work_s + number * save_s


class _Bag:
    """One draw."""

    def __init__(self, setting: BagScenario, rng: "np.random.Generator") -> None:
        self._setting = setting
        known = setting.num_losses
        self._scale = 1.0 if known == inf else known / rng.gamma(known)
        self._lives = self._drawn_lives(rng)
        durations_s = rng.choice(setting.durations_s, len(setting.durations_s))
        self._todo = [float(each) for each in rng.choice(durations_s, setting.num_runs)]  # the next one last
        self._born: dict[int, float] = {}  # by machine
        self._dies: dict[int, float] = {}
        self._events: list[tuple[float, int, str, float]] = []  # time, machine, what, work that is left
        self._machine_s = 0.0

    def _drawn_lives(self, rng: "np.random.Generator") -> Iterator[float]:
        while True:
            chances = 1.0 - rng.random(self._setting.num_machines + 64)  # never 0
            for life_s in draw_s(self._setting.lifetime, chances, longest_s=LONGEST_S):
                yield float(life_s) * self._scale

    def played(self) -> tuple[float, float]:
        """Returns the seconds until enough runs are done, and those of all machines."""
        num_done, now = 0, 0.0
        for machine in range(min(self._setting.num_machines, self._setting.num_runs)):
            self._ask(machine, now)
        while num_done < self._setting.num_needed:
            now, machine, what, work_s = heappop(self._events)
            num_done += what == "done"
            if what == "lost":
                if work_s:
                    self._todo.append(work_s)
                self._release(machine, now)
                self._ask(machine, now)
            elif num_done < self._setting.num_needed:
                self._go_on(machine, now)
        return now, self._machine_s + sum(now - born for born in self._born.values())

    def _ask(self, machine: int, now: float) -> None:
        if not self._todo:
            return
        self._born[machine], self._dies[machine] = now, now + next(self._lives)
        ready = now + self._setting.boot_s
        if ready < self._dies[machine]:
            heappush(self._events, (ready, machine, "ready", 0.0))
        else:
            heappush(self._events, (self._dies[machine], machine, "lost", 0.0))

    def _go_on(self, machine: int, now: float) -> None:
        age_s = now - self._born[machine]
        if age_s >= self._setting.reuse.replace_at_s or not self._todo:
            self._release(machine, now)
            self._ask(machine, now)
            return
        work_s, dies, save_s = self._todo.pop(), self._dies[machine], self._setting.save_s
        intervals_s = self._setting.reuse.intervals_s(age_s)
        ends = now + run_takes_s(work_s, intervals_s, save_s=save_s)
        if ends <= dies:
            heappush(self._events, (ends, machine, "done", 0.0))
        else:
            saved_s = work_saved_s(work_s, intervals_s, save_s=save_s, lived_s=dies - now)
            heappush(self._events, (dies, machine, "lost", work_s - saved_s))

    def _release(self, machine: int, now: float) -> None:
        self._machine_s += now - self._born.pop(machine)

"""Builds the fallbacks of a plan: machines to change to, when at the latest, and at what price.

It serves three needs:

    bought      a plan on spot or in a queue falls back on its own machines on demand, which may cost more
                than the whole budget: they only finish the work that is left after spot, and the launcher
                buys no more than the budget still allows
    faster      a job that turns out slow moves to a machine that takes at most `MUCH_LATER` of the time
    elsewhere   machines that are refused or out of stock are replaced by others, even if slower or more
                expensive: in other regions, with other devices, or on other backends

Besides these, `cheaper` lists machines that are too slow for the whole job, but may finish a job that is far
ahead (jobs/moves.py).

All fallbacks keep the deadline. Those within the budget come first; while there is room, others follow that
cost up to `DEAREST` times as much, for which the launcher spends what the budget allows: part of the work is
better than none. A fallback starts with the plan's batch size, since a checkpoint only fits jobs of its size,
in passes that fit its own machines; if the batch may grow, the growth is planned for these
(`Placement.sizes`). All machines of a fallback are of one kind: different kinds would all have to be
available at once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import sqrt
from typing import Protocol

from daybreak.contract.backend import TICK_S
from daybreak.contract.record_parts import Placement, Pool
from daybreak.contract.record_types import Night
from daybreak.planning.batch_growth import sizes
from daybreak.planning.candidates import TrainingTask, Way, way_of
from daybreak.planning.search import Candidate, PlanChoice, PlanLimits, by_cost
from daybreak.prediction.time_budget import NightWindow

NUM_FASTER = 4
NUM_CHEAPER = 4
NUM_FALLBACKS = 32  # tried one after the other: two hours and more, if each takes its full time to refuse
DEAREST = 2.0  # times the budget
MUCH_LATER = 0.9  # most time as a share of the fallback before; more is hardly faster, only more expensive
LOOK_S = 900.0  # of training, after which the launcher knows how fast it is
SPARE_S = 2 * TICK_S  # between the launcher's change and the last moment for it


class Weighed(Protocol):
    """A way to run the job, as the search weighs it."""

    @property
    def start_s(self) -> float:
        """Seconds of `expected_s` until it trains."""

    @property
    def expected_s(self) -> float:
        """Median of the time."""

    @property
    def expected_usd(self) -> float:
        """Dollars for that time."""

    def time_s(self, chance: float) -> float:
        """Returns the seconds within which it is done with this chance."""

    def chance(self, seconds: float) -> float:
        """Returns the probability that it is done within these seconds."""


def select(choice: PlanChoice, offered: Sequence[Candidate], limits: PlanLimits) -> list[Candidate]:
    """Returns the fallbacks: the plan's own machines on demand, then the others, cheapest first.

    The plan's own machines come first: the launcher continues on them where spot fails.
    """
    best = choice.best
    by_way = {way_of(c): c for c in offered if c.rental.strategy == "on-demand"}
    own = _bought(best, by_way, limits)
    held = {id(best), *map(id, own)}
    cheapest_first = [
        c
        for c in sorted(offered, key=by_cost)
        if c.estimate.batch_size == best.estimate.batch_size
        and c.rental.strategy in ("on-demand", best.rental.strategy)
        and not (c.hindrance or c.rental.is_queued or c.rental.others)
        and limits.in_time(c)
        and id(c) not in held
    ]
    others = [c for c in cheapest_first if limits.in_budget(c)]
    over_budget = [
        c for c in cheapest_first if limits.budget_usd < c.expected_usd <= DEAREST * limits.budget_usd
    ]
    faster = _faster((best, *own), [c for c in others if not c.rental.is_spot], limits)
    taken = [best, *own, *faster]
    for candidate in chain(_elsewhere(taken, others), _elsewhere([best, *own, *others], over_budget)):
        pair = [candidate, *_bought(candidate, by_way, limits)]
        if len(taken) + len(pair) > 1 + NUM_FALLBACKS:
            break
        taken += [c for c in pair if c not in taken]
    rest = sorted(taken[1 + len(own) :], key=by_cost)
    return [*own, *rest]


def cheaper(best: Candidate, offered: Sequence[Candidate], limits: PlanLimits) -> list[Candidate]:
    """Returns what the whole job would cost less on, and is not sure to be in time: one for each place."""
    slow = [
        c
        for c in sorted(offered, key=by_cost)
        if c.expected_usd < MUCH_LATER * best.expected_usd
        and c.estimate.batch_size == best.estimate.batch_size
        and c.rental.strategy in ("on-demand", best.rental.strategy)
        and not (c.hindrance or c.rental.is_queued or c.rental.others)
        and not limits.in_time(c)
    ]
    return sorted(islice(_elsewhere([best], slow), NUM_CHEAPER), key=by_cost)


def _bought(candidate: Candidate, by_way: Mapping[Way, Candidate], limits: PlanLimits) -> list[Candidate]:
    """Returns the same machines on demand; [] if they already are, or would not be in time."""
    if candidate.rental.strategy == "on-demand":
        return []
    bought = by_way.get((candidate.rental.on_demand, candidate.estimate.batch_size))
    return [bought] if bought and limits.in_time(bought) and not bought.hindrance else []


def _faster(held: Sequence[Candidate], others: Sequence[Candidate], limits: PlanLimits) -> list[Candidate]:
    """Returns the candidates that are much faster than all cheaper ones, the fastest last.

    Where intervals differ, another one may begin minutes later than the last. Where the plan itself may be
    late, the first one is what could save the night.
    """
    least_s = min(each.time_s(limits.confidence) for each in held)
    faster = []
    for candidate in others:
        time_s = candidate.time_s(limits.confidence)
        if least_s > limits.deadline_s:
            is_faster = could_save(
                candidate, start_s=held[0].start_s, deadline_s=limits.deadline_s, confidence=limits.confidence
            )
        else:
            is_faster = time_s < MUCH_LATER * least_s
        if is_faster:
            least_s = time_s
            faster.append(candidate)
    return faster if len(faster) <= NUM_FASTER else [*faster[: NUM_FASTER - 1], faster[-1]]


def could_save(rescue: Weighed, *, start_s: float, deadline_s: float, confidence: float) -> bool:
    """Returns whether it could do all the work in time after a look at another way, from `start_s` on.

    The time R of the rescue is taken at the chance that a plan needs, given that the other way is late at
    the same chance. For any correlation r of the two, R is then late by r + sqrt(1 - r^2) times its own
    margin, so by at most sqrt(2) times the margin.
    """
    expected_s, most_s = rescue.expected_s - rescue.start_s, rescue.time_s(confidence) - rescue.start_s
    work_s = expected_s * (most_s / expected_s) ** sqrt(2) if expected_s > 0 else most_s
    return start_s + LOOK_S + SPARE_S + rescue.start_s + work_s <= deadline_s


def _elsewhere(taken: Sequence[Candidate], others: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yields the cheapest candidate of each device in each region, spread over devices, regions and backends.

    A refusal concerns a device in a region, and often the whole region: so as few as possible of each are
    taken before the next, cheapest first. Another number of the same machines in one place is the same place.
    """
    left: dict[tuple[str, str, str, bool, tuple[Pool, ...]], Candidate] = {}
    for each in others:
        left.setdefault(_place(each), each)
    for each in taken:
        left.pop(_place(each), None)
    pools = Counter(_pool(each) for each in taken)
    regions = Counter(_region(each) for each in taken)
    while left:
        candidate = min(left.values(), key=lambda c: (pools[_pool(c)], regions[_region(c)]))
        del left[_place(candidate)]
        pools[_pool(candidate)] += 1
        regions[_region(candidate)] += 1
        yield candidate


def _place(candidate: Candidate) -> tuple[str, str, str, bool, tuple[Pool, ...]]:
    """Returns the place of a candidate's machines, spot or on demand, without their number."""
    rental = candidate.rental
    return rental.machine, *_region(candidate), rental.is_spot, rental.others


def _pool(candidate: Candidate) -> tuple[str, str, str]:
    """Returns the device and region of a backend, whose capacity runs out together."""
    return candidate.machine.device, *_region(candidate)


def _region(candidate: Candidate) -> tuple[str, str]:
    return candidate.rental.region, candidate.rental.backend


def placements(
    candidates: Iterable[Candidate], job: TrainingTask, night: Night, limits: PlanLimits, there: NightWindow
) -> tuple[Placement, ...]:
    """Returns candidates as placements."""
    return tuple(
        Placement(
            rental=each.rental,
            expected_s=each.expected_s,
            expected_usd=each.expected_usd,
            latest_start=there.latest_start(night, each.time_s(limits.confidence)),
            usd_per_hour=each.estimate.usd_per_hour,
            gpus=each.machine.gpus,
            micro_batch_size=each.estimate.micro_batch_size,
            sizes=sizes(job, each),
        )
        for each in candidates
    )

"""Divides the machines, hours and dollars of an evening among the plans of several models.

Each model offers ways to train (`Way`): a number of machines of a kind, a time and a price. `divide` gives
each model one way and a start, without overloading a machine. Its goals, in this order: no model is left out,
deadlines are met (by the value of their models), the last model is done early, total waiting is short, and
few dollars are spent.

A model is left out only where the dollars do not suffice for the cheapest way of each: models that were left
out on most earlier evenings stay first, then those of most value per dollar. Two jobs share a machine only if
their shares of its time and memory add up to at most one, so that neither is slowed down.

The problem is scheduling of moldable jobs, which is NP-hard. A list of jobs, each with a way, is laid out in
order, each job as early as there is room, and improved by changing one way or one position at a time (hill
climbing from six lists, `MOST_LAYOUTS` layouts in all).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

ROOM = 1.0 + 1e-9  # of a machine's time and memory
MOST_LAYOUTS = 2000  # of a division, which each look of a model waits for


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to train a model; `busy` and `memory` are the shares of each machine's time and memory."""

    machine: str
    num_machines: int
    seconds: float  # expected
    late_s: float  # at the chance that the plan asks for
    usd: float
    busy: float = 1.0
    memory: float = 1.0


@dataclass(frozen=True, kw_only=True)
class EveningDemand:
    """What a model needs this evening, in seconds from now."""

    model: str
    ways: tuple[Way, ...]
    deadline_s: float
    value: float = 1.0
    left_out: int = 0  # evenings in a row on which it had no share

    @property
    def least_usd(self) -> float:
        """Returns the dollars of the cheapest way."""
        return min(way.usd for way in self.ways)


@dataclass(frozen=True, kw_only=True)
class Share:
    """The machines of a model, from when to when."""

    model: str
    way: Way
    start_s: float

    @property
    def end_s(self) -> float:
        """Returns when its machines are free again."""
        return self.start_s + self.way.seconds


@dataclass(frozen=True, kw_only=True)
class Division:
    """The shares in the order of their starts, and the models for which the dollars do not suffice."""

    shares: tuple[Share, ...]
    left_out: tuple[str, ...] = ()

    def of(self, model: str) -> Share | None:
        """Returns the share of a model; None if it was left out."""
        return next((share for share in self.shares if share.model == model), None)


Score = tuple[float, float, float, float]


def divide(
    demands: Sequence[EveningDemand],
    *,
    machines: Mapping[str, int],
    budget_usd: float | None = None,
    running: Sequence[Share] = (),
) -> Division:
    """Returns the shares of the demands, given the shares that run already and stay unchanged.

    Args:
        demands: demands of models that have not started, each with at least one way.
        machines: number of machines of each kind; kinds not listed are unlimited.
        budget_usd: for all of the demands together; None: no limit.
        running: shares in use, with starts of now and ways of the time that remains.
    """
    wanted = [_possible(demand, machines) for demand in demands]
    kept = _affordable([demand for demand in wanted if demand.ways], budget_usd)
    deadlines = {demand.model: demand for demand in kept}

    def score(shares: Sequence[Share]) -> Score:
        late = sum(
            deadlines[share.model].value
            for share in shares
            if share.start_s + share.way.late_s > deadlines[share.model].deadline_s
        )
        ends = [share.end_s for share in shares]
        return late, max(ends, default=0.0), sum(ends), sum(share.way.usd for share in shares)

    best: tuple[Score, list[Share]] | None = None
    orders = list(_lists(kept, budget_usd)) if kept else []
    for order in orders:
        improved = _improved(
            order,
            score,
            machines=machines,
            budget_usd=budget_usd,
            running=running,
            most=MOST_LAYOUTS // len(orders),
        )
        if best is None or improved[0] < best[0]:
            best = improved
    shares = best[1] if best else []
    stay = {share.model for share in shares}
    return Division(
        shares=tuple(sorted(shares, key=lambda share: (share.start_s, share.model))),
        left_out=tuple(demand.model for demand in demands if demand.model not in stay),
    )


def _possible(demand: EveningDemand, machines: Mapping[str, int]) -> EveningDemand:
    """Returns the demand with the ways that there are machines for, and that no other beats in all."""
    there = [way for way in demand.ways if way.num_machines <= machines.get(way.machine, way.num_machines)]

    def is_beaten(way: Way) -> bool:
        return any(
            other.machine == way.machine
            and other != way
            and other.num_machines <= way.num_machines
            and other.seconds <= way.seconds
            and other.late_s <= way.late_s
            and other.usd <= way.usd
            and other.busy <= way.busy
            and other.memory <= way.memory
            for other in there
        )

    return replace(demand, ways=tuple(dict.fromkeys(way for way in there if not is_beaten(way))))


def _affordable(demands: Sequence[EveningDemand], budget_usd: float | None) -> list[EveningDemand]:
    """Returns the demands whose cheapest ways the dollars suffice for."""
    ranked = sorted(demands, key=lambda d: (-d.left_out, -d.value / max(d.least_usd, 1e-9), d.model))
    if budget_usd is None:
        return ranked
    kept, left_usd = [], budget_usd + 1e-9
    for demand in ranked:
        if demand.least_usd <= left_usd:
            kept.append(demand)
            left_usd -= demand.least_usd
    return kept


Order = list[tuple[EveningDemand, Way]]


def _lists(demands: Sequence[EveningDemand], budget_usd: float | None) -> Iterator[Order]:
    """Yields lists to begin with: by deadline or longest first, in cheapest, most sparing or fastest ways.

    Where the dollars do not suffice for the latter two, only the cheapest are left.
    """
    by_deadline = sorted(demands, key=lambda d: (d.deadline_s, -d.value / max(d.least_usd, 1e-9), d.model))
    longest = sorted(demands, key=lambda d: (-min(w.seconds * w.num_machines for w in d.ways), d.model))
    for order in (by_deadline, longest):
        for key in (_cheapest, _most_sparing, _fastest):
            chosen = [(demand, min(demand.ways, key=key)) for demand in order]
            if key is _cheapest or budget_usd is None or sum(w.usd for _, w in chosen) <= budget_usd:
                yield chosen


def _cheapest(way: Way) -> tuple[float, float]:
    return way.usd, way.seconds


def _most_sparing(way: Way) -> tuple[float, float]:
    return way.seconds * way.num_machines, way.usd


def _fastest(way: Way) -> tuple[float, float]:
    return way.seconds, way.usd


def _improved(
    order: Order,
    score: Callable[[Sequence[Share]], Score],
    *,
    machines: Mapping[str, int],
    budget_usd: float | None,
    running: Sequence[Share],
    most: int,
) -> tuple[Score, list[Share]]:
    """Returns the score and layout of an order after local search, which lays at most so many out.

    Model by model the best change is made, until no single change improves the result any more.
    """
    shares = _laid_out(order, machines=machines, running=running)
    best, num_laid, num_kept = score(shares), 1, 0
    for model in cycle([demand.model for demand, _ in order]):
        changed = False
        for other in _changed(order, model):
            if budget_usd is not None and sum(way.usd for _, way in other) > budget_usd + 1e-9:
                continue
            if num_laid == most:
                return best, shares
            laid = _laid_out(other, machines=machines, running=running)
            num_laid += 1
            if (scored := score(laid)) < best:
                best, shares, better, changed = scored, laid, other, True
        order, num_kept = (better, 0) if changed else (order, num_kept + 1)
        if num_kept == len(order):
            break
    return best, shares


def _changed(order: Order, model: str) -> Iterator[Order]:
    """Yields the list with another way of the model, or with the model at another place."""
    place = next(place for place, (demand, _) in enumerate(order) if demand.model == model)
    demand, chosen = order[place]
    for way in demand.ways:
        if way != chosen:
            yield [*order[:place], (demand, way), *order[place + 1 :]]
    rest = [*order[:place], *order[place + 1 :]]
    for elsewhere in range(len(order)):
        if elsewhere != place:
            yield [*rest[:elsewhere], (demand, chosen), *rest[elsewhere:]]


def _laid_out(order: Order, *, machines: Mapping[str, int], running: Sequence[Share]) -> list[Share]:
    """Returns each demand's share, as early as there is room, in the order of the list."""
    units: dict[str, list[list[Share]]] = {
        name: [[] for _ in range(count)] for name, count in machines.items()
    }
    for share in running:
        _take(units, share)
    shares = []
    for demand, way in order:
        there = units.get(way.machine)
        start_s = 0.0 if there is None else _earliest(there, way)
        share = Share(model=demand.model, way=way, start_s=start_s)
        _take(units, share)
        shares.append(share)
    return shares


def _earliest(units: list[list[Share]], way: Way) -> float:
    """Returns the earliest start at which enough machines have room for as long as the way takes."""
    ends = sorted({0.0, *(share.end_s for unit in units for share in unit)})
    return next(
        start for start in ends if sum(_has_room(unit, way, start) for unit in units) >= way.num_machines
    )


def _take(units: dict[str, list[list[Share]]], share: Share) -> None:
    """Puts a share on the first machines that have room for it; one that runs already, on any."""
    there = units.get(share.way.machine, [])
    free = [unit for unit in there if _has_room(unit, share.way, share.start_s)]
    for unit in (free or there)[: share.way.num_machines]:
        unit.append(share)


def _has_room(unit: Sequence[Share], way: Way, start_s: float) -> bool:
    end_s = start_s + way.seconds
    beside = [share.way for share in unit if share.start_s < end_s and share.end_s > start_s]
    busy = sum(each.busy for each in beside) + way.busy
    memory = sum(each.memory for each in beside) + way.memory
    return not beside or (busy <= ROOM and memory <= ROOM)

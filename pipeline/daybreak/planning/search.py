"""Chooses the best candidate under a deadline and a budget, and says why not the next and what would help.

A candidate is feasible if it is done by the deadline with at least the required chance and its expected cost
is within the budget. One that waits in a queue (flex-start) may never start: it is feasible only where
another, rented at once, could still be in time and within the budget after the longest wait. A longer
deadline or a larger budget only adds feasible candidates, so neither ever makes the best one worse; and since
a queued candidate needs another to fall back on, allowing a queue never turns an infeasible night feasible.

The fastest is the cheapest that is surely slower than no other: no dollar is paid for a second that lies
within the error of both forecasts together (`least_extra_s`; the subset that has the best with a stated
chance is that of Gupta 1965). A larger budget adds dearer ones, which may show that a cheaper one is slower
but never that it is not, so it never adds to the expected time; a longer deadline, or a queue that has a
fallback now, may add a cheaper one that is slower in expectation, within the error. With a price of time the
expected times decide: what an error adds in one night it takes in another, and dollars stay in proportion to
the time.

Between the cheapest and the fastest, time has a price. At the knee it is a ratio: dollars times seconds are
least, so that half the time is worth at most twice the dollars. With `plan.usd_per_hour_saved` it is a rate:
dollars plus the rate times hours are least, so that no hour is saved for more than the rate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import takewhile
from typing import Literal

from daybreak.contract import formats
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.contract.units import HOUR_S
from daybreak.prediction.costs import Estimate, least_extra_s

Objective = Literal["cost", "time", "knee"]
Place = tuple[int, str, str, str, str]
Key = tuple[float, float, int, str, str, str, str]
LEAST_USD = 0.01  # what is cheaper counts as a cent at the knee, or no time at all would be worth a cent


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to run the job: machines, rental, number of samples, with the estimated time and cost."""

    estimate: Estimate
    num_samples: int = 0
    hindrance: str = ""  # why it cannot run here at all
    times: dict[float, float] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )  # seconds by chance, as computed before

    @property
    def machine(self) -> Machine:
        """The machine in its region."""
        return self.estimate.machine

    @property
    def rental(self) -> Rental:
        """What is rented; its wait is not billed, but counted in full."""
        return self.estimate.rental

    @cached_property
    def expected_s(self) -> float:
        """Median of the time, after the longest wait."""
        return self.rental.max_wait_s + self.estimate.expected_s

    @property
    def start_s(self) -> float:
        """Seconds of `expected_s` until it trains."""
        return self.rental.max_wait_s + self.estimate.start_s

    @cached_property
    def expected_usd(self) -> float:
        """Expected cost of the billed time, in dollars."""
        return self.estimate.expected_usd

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of the time: from no wait at all to the longest."""
        low, high = self.estimate.interval
        return low, self.rental.max_wait_s + high

    def time_s(self, chance: float) -> float:
        """Returns the seconds within which it is done with this chance, the longest wait included."""
        if chance not in self.times:
            self.times[chance] = self.rental.max_wait_s + self.estimate.time_s(chance)
        return self.times[chance]

    def chance(self, seconds: float) -> float:
        """Returns the probability that it is done within `seconds`, the longest wait included."""
        left = seconds - self.rental.max_wait_s
        return self.estimate.chance(left) if left > 0 else 0.0

    @property
    def place(self) -> Place:
        """Tie-breaker between two equally good ones: fewest machines, first name, on demand first."""
        rental = self.rental
        strategy = "" if rental.strategy == "on-demand" else rental.strategy
        return rental.num_machines, rental.machine, strategy, rental.backend, self.machine.region

    @property
    def name(self) -> str:
        """Readable name without its region: `2 x g2-standard-8, spot`."""
        return str(replace(self.rental, region=""))


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """The limits that a candidate must keep."""

    deadline_s: float
    budget_usd: float
    confidence: float
    usd_per_hour_saved: float | None = None  # that being done sooner may cost; None: any, a ratio at the knee

    def in_time(self, candidate: Candidate) -> bool:
        """Returns whether it is done by the deadline with the required confidence."""
        return candidate.time_s(self.confidence) <= self.deadline_s

    def in_budget(self, candidate: Candidate) -> bool:
        """Returns whether its expected cost is within the budget."""
        return candidate.expected_usd <= self.budget_usd

    def hold(self, candidate: Candidate) -> bool:
        """Returns whether it keeps both limits and can run here."""
        return not candidate.hindrance and self.in_budget(candidate) and self.in_time(candidate)


@dataclass(frozen=True, kw_only=True)
class PlanChoice:
    """The best candidate, the feasible ones best first, and why not the next."""

    best: Candidate
    ranked: tuple[Candidate, ...]
    runner_up: str


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """The least that makes some candidate feasible, on each axis alone; None where it does not help."""

    deadline_s: float | None
    budget_usd: float | None
    both: tuple[float, float]  # deadline_s and budget_usd together, for when neither helps alone


def search(offered: Sequence[Candidate], *, limits: PlanLimits, objective: Objective) -> PlanChoice | None:
    """Returns the best feasible candidate, or None; ties go to the cheaper, the faster, the first by name."""
    in_limits = feasible(offered, limits)
    if not in_limits:
        return None
    order = by_time if objective == "time" else by_cost
    ranked = sorted(in_limits, key=order)
    best = ranked[0]
    if objective != "cost" and limits.usd_per_hour_saved is not None:
        best = worth(ranked, limits.usd_per_hour_saved)
    elif objective == "knee":
        best = knee(ranked)
    elif objective == "time":
        best = fastest(ranked)
    ranked = [best, *(candidate for candidate in ranked if candidate is not best)]
    other = (
        ranked[1] if len(ranked) > 1 else min((c for c in offered if c is not best), key=order, default=None)
    )
    runner_up = "no other machine is named by plan.machines"
    if other is not None:
        reason = why_not(other, best=best, limits=limits, objective=objective, offered=offered)
        runner_up = f"{distinct_name(other, best)}: {reason}"
    return PlanChoice(best=best, ranked=tuple(ranked), runner_up=runner_up)


def feasible(offered: Iterable[Candidate], limits: PlanLimits) -> list[Candidate]:
    """Returns the candidates that keep to the limits, in the order they were offered."""
    held = [candidate for candidate in offered if limits.hold(candidate)]
    latest_s = _latest_s(held, limits)
    return [c for c in held if not c.rental.is_queued or c.rental.max_wait_s <= latest_s]


def _latest_s(held: Iterable[Candidate], limits: PlanLimits) -> float:
    """Returns the latest start of a candidate rented at once: the longest that another may wait before it."""
    needed = (c.time_s(limits.confidence) for c in held if not c.rental.is_queued)
    return limits.deadline_s - min(needed, default=float("inf"))


def relax(offered: Sequence[Candidate], *, limits: PlanLimits) -> Relaxation:
    """Returns the smallest deadline, budget, or both together, with which some candidate is feasible.

    At least one of the candidates must be able to run here and be rented at once.
    """
    at_once = [candidate for candidate in offered if not (candidate.rental.is_queued or candidate.hindrance)]
    times_s = [c.time_s(limits.confidence) for c in at_once if limits.in_budget(c)]
    costs_usd = [c.expected_usd for c in at_once if limits.in_time(c)]
    nearest = min(
        at_once,
        key=lambda c: max(
            c.time_s(limits.confidence) / limits.deadline_s,
            c.expected_usd / max(limits.budget_usd, 0.01),
        ),
    )
    return Relaxation(
        deadline_s=min(times_s, default=None),
        budget_usd=min(costs_usd, default=None),
        both=(nearest.time_s(limits.confidence), nearest.expected_usd),
    )


def by_cost(candidate: Candidate) -> Key:
    """Returns a sort key: cheapest first, then fastest, fewest machines, first name."""
    return (candidate.expected_usd, candidate.expected_s, *candidate.place)


def by_time(candidate: Candidate) -> Key:
    """Returns a sort key: fastest first, then cheapest, fewest machines, first name."""
    return (candidate.expected_s, candidate.expected_usd, *candidate.place)


def frontier(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Returns the candidates that nothing beats in both time and cost, cheapest first."""
    curve: list[Candidate] = []
    for candidate in sorted(candidates, key=by_cost):
        if not curve or candidate.expected_s < curve[-1].expected_s:
            curve.append(candidate)
    return curve


def knee(candidates: Iterable[Candidate]) -> Candidate:
    """Returns where the cost-time frontier bends on logarithmic axes: dollars times seconds are least.

    That is farthest below the line on which half the time costs twice the dollars; of two, the cheaper.
    """
    return min(frontier(candidates), key=lambda each: max(each.expected_usd, LEAST_USD) * each.expected_s)


def fastest(candidates: Iterable[Candidate]) -> Candidate:
    """Returns the cheapest of the frontier that is surely slower than none of the candidates."""
    others = sorted(candidates, key=by_time)  # the last of the frontier is never slower than any of them
    return next(
        each for each in frontier(others) if not any(map(partial(is_slower, each), _before(each, others)))
    )


def _before(candidate: Candidate, ranked: Iterable[Candidate]) -> Iterable[Candidate]:
    """Returns those of less expected time, of some ranked by time: no other can be surely faster."""
    return takewhile(lambda each: each.expected_s < candidate.expected_s, ranked)


def is_slower(candidate: Candidate, other: Candidate) -> bool:
    """Returns whether one takes longer than another by more than the error of both forecasts."""
    waits_s = candidate.rental.max_wait_s - other.rental.max_wait_s
    return waits_s + least_extra_s(candidate.estimate, other.estimate) > 0


def worth(candidates: Iterable[Candidate], usd_per_hour_saved: float) -> Candidate:
    """Returns the one whose dollars and hours cost least, at a price per hour; of two, the cheaper."""
    return min(
        frontier(candidates),
        key=lambda each: each.expected_usd + usd_per_hour_saved * each.expected_s / HOUR_S,
    )


def distinct_name(candidate: Candidate, best: Candidate) -> str:
    """Returns the candidate's name, with region, batch size and averaging if unlike the best candidate's."""
    parts = [candidate.name]
    if candidate.machine.region and candidate.machine.region != best.machine.region:
        parts.append(f"in {candidate.machine.region}")
    if candidate.estimate.batch_size != best.estimate.batch_size:
        parts.append(f"batch {candidate.estimate.batch_size}")
    if candidate.estimate.sync != best.estimate.sync:
        parts.append(f"that {candidate.estimate.sync}")
    return ", ".join(parts)


def why_not(
    candidate: Candidate,
    *,
    best: Candidate,
    limits: PlanLimits,
    objective: Objective,
    offered: Iterable[Candidate] = (),
) -> str:
    """Returns the number that decided against it, as words after its name; "" for the best itself."""
    if candidate is best:
        return ""
    if fault := candidate.hindrance or _fault(candidate, limits, offered):
        return fault
    if (candidate.expected_usd, candidate.expected_s) == (best.expected_usd, best.expected_s):
        return "as fast and as cheap; fewer machines and the first name go first"
    return _apart(candidate, best, limits=limits, objective=objective)


def _apart(candidate: Candidate, best: Candidate, *, limits: PlanLimits, objective: Objective) -> str:
    """Returns the dollars or the time of a feasible candidate beside the best one's, whichever decided."""
    dollars = " rather than ".join(formats.told_apart(candidate.expected_usd, best.expected_usd))
    hours = f"{formats.duration(candidate.expected_s)} rather than {formats.duration(best.expected_s)}"
    rate, saved_s = limits.usd_per_hour_saved, best.expected_s - candidate.expected_s
    if objective == "cost":
        return dollars if candidate.expected_usd > best.expected_usd else hours
    if objective == "time" and rate is None:
        if saved_s > 0 and not is_slower(best, candidate):
            return f"{dollars}; {formats.duration(saved_s)} sooner is within the error of the forecasts"
        return hours if saved_s < 0 else dollars
    if rate is None or saved_s <= 0:
        return f"{dollars}, {hours}"
    per_hour = formats.dollars((candidate.expected_usd - best.expected_usd) / saved_s * HOUR_S)
    return f"{per_hour} for an hour saved is over plan.usd_per_hour_saved {rate:g}"


def _fault(candidate: Candidate, limits: PlanLimits, offered: Iterable[Candidate]) -> str:
    """Returns the limit that it does not keep, with the number; "" for a feasible one."""
    if not limits.in_budget(candidate):
        return f"{formats.dollars(candidate.expected_usd)} is over night.budget_usd {limits.budget_usd:.2f}"
    if not limits.in_time(candidate):
        chance = candidate.chance(limits.deadline_s)
        return f"in time with a chance of {chance:.3f}, below plan.confidence {limits.confidence:g}"
    wait_s = candidate.rental.max_wait_s
    if wait_s > 0 and wait_s > _latest_s(filter(limits.hold, offered), limits):
        return f"may wait {formats.duration(wait_s)}, after which nothing else would be in time"
    return ""

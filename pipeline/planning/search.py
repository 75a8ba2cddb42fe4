"""Which of the candidates is best under a deadline and a budget, why not the next, and what would help?

A candidate is feasible if it is done by the deadline with at least the chance asked for and its expected
cost is within the budget. A longer deadline or a larger budget only adds feasible candidates, so neither
ever makes the best one worse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.planning.costs import Estimate

Objective = Literal["cost", "time", "knee"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a candidate must keep to."""

    deadline_s: float
    budget_usd: float
    confidence: float

    def in_time(self, candidate: Estimate) -> bool:
        """Is it done by the deadline with the confidence asked for?"""
        return candidate.time_s(self.confidence) <= self.deadline_s

    def in_budget(self, candidate: Estimate) -> bool:
        """Is its expected cost within the budget?"""
        return candidate.expected_usd <= self.budget_usd


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best candidate, the feasible ones best first, and why not the next."""

    best: Estimate
    ranked: tuple[Estimate, ...]
    runner_up: str


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """The least that makes some candidate feasible, on each axis alone; None where it does not help."""

    deadline_s: float | None
    budget_usd: float | None
    both: tuple[float, float]  # deadline_s and budget_usd together, for when neither helps alone


def search(offered: Sequence[Estimate], *, limits: Limits, objective: Objective) -> Choice | None:
    """The best feasible candidate, or None; ties go to the cheaper, the faster, the first by name."""
    feasible = [c for c in offered if limits.in_budget(c) and limits.in_time(c)]
    if not feasible:
        return None
    order = by_time if objective == "time" else by_cost
    ranked = sorted(feasible, key=order)
    best = _knee(ranked) if objective == "knee" else ranked[0]
    ranked = [best, *(candidate for candidate in ranked if candidate is not best)]
    rest = [candidate for candidate in offered if candidate is not best]
    return Choice(
        best=best,
        ranked=tuple(ranked),
        runner_up=_runner_up(ranked, sorted(rest, key=order), limits, objective),
    )


def relax(offered: Sequence[Estimate], *, limits: Limits) -> Relaxation:
    """The smallest deadline, budget, or both together, with which some candidate is feasible."""
    late = [c.time_s(limits.confidence) for c in offered if limits.in_budget(c)]
    dear = [c.expected_usd for c in offered if limits.in_time(c)]
    nearest = min(
        offered,
        key=lambda c: max(
            c.time_s(limits.confidence) / limits.deadline_s,
            c.expected_usd / max(limits.budget_usd, 0.01),
        ),
    )
    return Relaxation(
        deadline_s=min(late, default=None),
        budget_usd=min(dear, default=None),
        both=(nearest.time_s(limits.confidence), nearest.expected_usd),
    )


def by_cost(candidate: Estimate) -> tuple[float, float, int, str]:
    """Order of candidates: cheapest first, then fastest, fewest machines, first name."""
    return (candidate.expected_usd, candidate.expected_s, *_tie(candidate))


def by_time(candidate: Estimate) -> tuple[float, float, int, str]:
    """Order of candidates: fastest first, then cheapest, fewest machines, first name."""
    return (candidate.expected_s, candidate.expected_usd, *_tie(candidate))


def _tie(candidate: Estimate) -> tuple[int, str]:
    return candidate.num_machines, name(candidate)


def _knee(by_cost: Sequence[Estimate]) -> Estimate:
    """Where the cost-time frontier bends most: farthest below its chord (Kneedle, Satopaa 2011)."""
    frontier: list[Estimate] = []
    for candidate in by_cost:
        if not frontier or candidate.expected_s < frontier[-1].expected_s:
            frontier.append(candidate)
    first, last = frontier[0], frontier[-1]
    dollars = last.expected_usd - first.expected_usd or 1.0
    seconds = first.expected_s - last.expected_s or 1.0

    def below_chord(candidate: Estimate) -> float:
        saved = (first.expected_s - candidate.expected_s) / seconds
        return saved - (candidate.expected_usd - first.expected_usd) / dollars

    return max(frontier, key=below_chord)


def name(candidate: Estimate) -> str:
    """How a person calls it: `2 x g2-standard-8, spot`."""
    number = f"{candidate.num_machines} x " if candidate.num_machines > 1 else ""
    return f"{number}{candidate.machine.name}{', spot' if candidate.spot else ''}"


def _runner_up(
    ranked: Sequence[Estimate], rest: Sequence[Estimate], limits: Limits, objective: Objective
) -> str:
    best = ranked[0]
    if len(ranked) > 1:
        other = ranked[1]
        dollars = f"{_dollars(other.expected_usd)} rather than {_dollars(best.expected_usd)}"
        hours = f"{_duration(other.expected_s)} rather than {_duration(best.expected_s)}"
        cost_decides = objective == "cost" and other.expected_usd > best.expected_usd
        if objective == "knee":
            return f"{name(other)}: {dollars}, {hours}"
        return f"{name(other)}: {dollars if cost_decides else hours}"
    if not rest:
        return "no other machine is named by plan.machines"
    other = rest[0]
    if not limits.in_budget(other):
        return (
            f"{name(other)}: {_dollars(other.expected_usd)} is over night.budget_usd {limits.budget_usd:.2f}"
        )
    chance = other.chance(limits.deadline_s)
    return (
        f"{name(other)}: in time with a chance of {chance:.3f}, below plan.confidence {limits.confidence:g}"
    )


def _duration(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 600 else f"{seconds:.0f} s"


def _dollars(dollars: float) -> str:
    return f"${dollars:.2f}" if dollars >= 1 or dollars == 0 else f"${dollars:.4f}"

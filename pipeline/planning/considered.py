"""What was weighed, and what does the plan consist of and rest on? A search, as records for people."""

from collections.abc import Sequence

from pipeline.contract.records import Option, Portion
from pipeline.machines.startup import Part
from pipeline.planning.candidates import Job
from pipeline.planning.search import (
    Candidate,
    Choice,
    Limits,
    Objective,
    by_cost,
    by_time,
    feasible,
    frontier,
    why_not,
)

NUM_NEXT = 8  # of the next best
NUM_FRONTIER = 12  # of what nothing beats in both time and cost
NUM_MACHINES = 12  # each at its cheapest, so that the choice of the machine can be seen


def options(
    offered: Sequence[Candidate], *, choice: Choice, limits: Limits, objective: Objective
) -> tuple[Option, ...]:
    """The plan first, then what else is feasible, best first, then what is not and why.

    Of thousands of candidates: the next best, the frontier of time and cost, each machine at its cheapest.
    """
    order = by_time if objective == "time" else by_cost
    held = {id(candidate) for candidate in feasible(offered, limits)}
    curve = frontier(offered)
    cheapest: dict[str, Candidate] = {}
    for candidate in sorted(offered, key=lambda each: (id(each) not in held, order(each))):
        cheapest.setdefault(candidate.machine.name, candidate)
    chosen = {id(c): c for c in (*choice.ranked[: 1 + NUM_NEXT], *_spread(curve, NUM_FRONTIER))}
    chosen |= {id(c): c for c in list(cheapest.values())[:NUM_MACHINES]}
    on_curve = {id(candidate) for candidate in curve}
    best = choice.best
    ranked = sorted(chosen.values(), key=lambda c: (c is not best, id(c) not in held, order(c)))
    return tuple(
        Option(
            rental=c.rental,
            batch_size=c.estimate.batch_size,
            expected_s=c.expected_s,
            interval=c.interval,
            expected_usd=c.expected_usd,
            chance=c.chance(limits.deadline_s),
            feasible=id(c) in held,
            frontier=id(c) in on_curve,
            why_not=why_not(c, best=best, limits=limits, objective=objective, offered=offered),
        )
        for c in ranked
    )


def portions(best: Candidate) -> tuple[Portion, ...]:
    """What the expected time and cost of a candidate consist of, in the order that they come.

    Saving and lost work are in the parts that they stretch.
    """
    wait_s = best.rental.max_wait_s
    found = [Portion(name="wait, at most", expected_s=wait_s, expected_usd=0.0)] if wait_s else []
    named: dict[str, list[Part]] = {}
    for part in best.estimate.parts:
        named.setdefault(part.name, []).append(part)
    found += [
        Portion(
            name=name,
            expected_s=sum(part.seconds for part in parts),
            expected_usd=best.estimate.usd(parts),
        )
        for name, parts in named.items()
    ]
    return tuple(found)


def basis(best: Candidate, *, job: Job, offered: Sequence[Candidate]) -> str:
    """What time and samples of a candidate rest on: measurements, and which priors stand for the rest."""
    machine, past = best.machine, job.known.past if job.known else ()
    here = best.rental.is_local
    own = sum(each.machine == machine.name for each in past)
    told = f"the profile on {job.at_hand.device}"
    if not here:
        told += f", by the roofline to {machine.device} (rates: {machine.rates_source})"
    if own:
        told += f", corrected by {own} night{'s' if own > 1 else ''} on it"
    elif past and not here:
        told += f", corrected by {len(past)} night{'s' if len(past) > 1 else ''} on other machines"
    else:
        prior = "a tenth either way" if here else "a factor of two either way"
        told += f"; no night has run there, so its prior is {prior}"
    sizes = {best.estimate.batch_size} - {job.batch_size} or {c.estimate.batch_size for c in offered}
    size = max(sizes)  # its own, or the one that is most in doubt
    if size != job.batch_size:
        told += f"; {job.efficiency.says(size, job.batch_size)}"
    return told


def _spread(curve: Sequence[Candidate], most: int) -> list[Candidate]:
    """So many of a curve, evenly from its first to its last."""
    if len(curve) <= most:
        return list(curve)
    return [curve[round(n * (len(curve) - 1) / (most - 1))] for n in range(most)]

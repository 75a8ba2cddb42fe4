"""Turns a search into records for people: the options weighed, the plan's portions, and its basis."""

from collections.abc import Sequence

from daybreak.contract import formats
from daybreak.contract.record_parts import Option, Portion
from daybreak.machines.startup import StartupPart
from daybreak.planning.candidates import TrainingTask
from daybreak.planning.search import (
    Candidate,
    Objective,
    PlanChoice,
    PlanLimits,
    by_cost,
    by_time,
    feasible,
    frontier,
    why_not,
)
from daybreak.prediction import local_updates

UP_TO = "wait, at most"  # name of the portion that flex-start may queue
NUM_NEXT = 8  # runners-up
NUM_FRONTIER = 12  # candidates that nothing beats in both time and cost
NUM_MACHINES = 12  # each at its cheapest, so that the choice of the machine can be seen


def options(
    offered: Sequence[Candidate], *, choice: PlanChoice, limits: PlanLimits, objective: Objective
) -> tuple[Option, ...]:
    """Returns the plan, then the other feasible options, best first, then the rest and why not.

    Of thousands of candidates it keeps the next best, the frontier of time and cost, and each machine at its
    cheapest.
    """
    order = by_time if objective == "time" else by_cost
    feasible_ids = {id(candidate) for candidate in feasible(offered, limits)}
    curve = frontier(offered)
    cheapest: dict[str, Candidate] = {}
    for candidate in sorted(offered, key=lambda each: (id(each) not in feasible_ids, order(each))):
        cheapest.setdefault(candidate.machine.name, candidate)
    chosen = {id(c): c for c in (*choice.ranked[: 1 + NUM_NEXT], *_spread(curve, NUM_FRONTIER))}
    chosen |= {id(c): c for c in list(cheapest.values())[:NUM_MACHINES]}
    on_curve = {id(candidate) for candidate in curve}
    best = choice.best
    ranked = sorted(chosen.values(), key=lambda c: (c is not best, id(c) not in feasible_ids, order(c)))
    return tuple(
        Option(
            rental=c.rental,
            batch_size=c.estimate.batch_size,
            expected_s=c.expected_s,
            interval=c.interval,
            expected_usd=c.expected_usd,
            chance=c.chance(limits.deadline_s),
            feasible=id(c) in feasible_ids,
            frontier=id(c) in on_curve,
            sync=c.estimate.sync,
            why_not=why_not(c, best=best, limits=limits, objective=objective, offered=offered),
        )
        for c in ranked
    )


def portions(best: Candidate) -> tuple[Portion, ...]:
    """Returns the portions of a candidate's expected time and cost, in the order in which they occur.

    Saving and lost work are included in the parts that they lengthen.
    """
    wait_s = best.rental.max_wait_s
    portioned = [Portion(name=UP_TO, expected_s=wait_s, expected_usd=0.0)] if wait_s else []
    named: dict[str, list[StartupPart]] = {}
    for part in best.estimate.parts:
        named.setdefault(part.name, []).append(part)
    portioned += [
        Portion(
            name=name,
            expected_s=sum(part.seconds for part in parts),
            expected_usd=best.estimate.usd(parts),
        )
        for name, parts in named.items()
    ]
    return tuple(portioned)


def basis(best: Candidate, *, job: TrainingTask, offered: Sequence[Candidate]) -> str:
    """Returns what a candidate's time and samples rest on: measurements, and priors for the rest."""
    machine, past = best.machine, job.known.past if job.known else ()
    here = best.rental.is_local
    own = sum(each.machine == machine.name for each in past)
    text = f"the profile on {job.at_hand.device}"
    if not here:
        devices = " and ".join(
            dict.fromkeys(m.device for m in (machine, *(m for m, _ in best.estimate.others)))
        )
        text += f", by the roofline to {devices} (rates: {machine.speeds.source})"
    if own:
        text += f", corrected by {own} night{'s' if own > 1 else ''} on it"
    elif past and not here:
        text += f", corrected by {len(past)} night{'s' if len(past) > 1 else ''} on other machines"
    if not own:
        low, high = (formats.quantity(float(f"{bound_s / best.expected_s:.2g}")) for bound_s in best.interval)
        text += f"; no night has run there, so the 90 % interval is {low} to {high} times the time"
    sizes = {best.estimate.batch_size} - {job.batch_size} or {c.estimate.batch_size for c in offered}
    size = max(sizes)  # its own, or the one that is most in doubt
    if size != job.batch_size:
        text += f"; {job.efficiency.says(size, job.batch_size)}"
    if job.sync is None and best.estimate.sync.every > 1:
        workers = best.rental.num_machines * (job.num_workers if here else machine.num_workers)
        text += "; " + local_updates.says(
            job.noise_scale, batch_size=best.estimate.batch_size, num_workers=workers, sync=best.estimate.sync
        )
    return text


def _spread(curve: Sequence[Candidate], most: int) -> list[Candidate]:
    """Returns at most `most` points of a curve, evenly spaced from its first to its last."""
    if len(curve) <= most:
        return list(curve)
    return [curve[round(n * (len(curve) - 1) / (most - 1))] for n in range(most)]

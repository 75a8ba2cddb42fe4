"""The ladder of a plan: what to fall back on, when at the latest, and at what price.

It answers three needs:

    bought      a plan on spot or in a queue falls back on its own machines on demand, which may cost more
                than the budget as a whole: what is bought is only what spot has left to do, and the launcher
                buys no more than the budget still allows
    faster      a job that turns out slow is bought a machine that takes `MUCH_LATER` of the time at most
    elsewhere   machines that are refused or out of stock are left for others, even if slower or dearer: of
                other regions, as capacity is a region's, and of other devices

All keep to the deadline. Those that keep to the budget come first; while there is room others follow that
cost up to `DEAREST` times as much, of which the launcher buys what the budget allows: part of the work is
more than none. A rung trains in batches of the plan's size: checkpoints of another size are of another job.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from pipeline.contract.records import Night, Plan, Profile, Rental, Rung
from pipeline.machines.startup import BEFORE_WORK
from pipeline.planning.candidates import way_of
from pipeline.planning.search import Candidate, Choice, Limits, by_cost
from pipeline.prediction.calibration import Known
from pipeline.prediction.costs import time_to_save_s
from pipeline.prediction.time_budget import Window
from pipeline.spot import steering
from pipeline.spot.hazard import PRIOR, saves
from pipeline.spot.worst_case import worst_case

NUM_FASTER = 4
NUM_RUNGS = 12  # all of them can be asked within half an hour, one at each look of the launcher
DEAREST = 2.0  # times the budget
MUCH_LATER = 0.9  # of the time of the rung before; more is not faster, only dearer


def ladder(
    night: Night, choice: Choice, offered: Sequence[Candidate], limits: Limits, there: Window
) -> tuple[Rung, ...]:
    """Returns the rungs to fall back on: the plan's own machines on demand, then the others, cheapest first.

    The plan's own machines come first: that is what the launcher goes on with where spot fails.
    """
    best = choice.best
    own = _bought(best, offered, limits)
    cheapest_first = [
        c for c in sorted(offered, key=by_cost)
        if c.estimate.batch_size == best.estimate.batch_size
        and c.rental.strategy in ("on-demand", best.rental.strategy)
        and not (c.hindrance or c.rental.is_queued) and limits.in_time(c)
        and way_of(c) not in map(way_of, (best, *own))
    ]  # fmt: skip
    others = [c for c in cheapest_first if limits.in_budget(c)]
    dear = [c for c in cheapest_first if limits.budget_usd < c.expected_usd <= DEAREST * limits.budget_usd]
    faster = _faster((best, *own), [c for c in others if not c.rental.is_spot], limits)
    taken = [best, *own, *faster]
    for candidate in chain(_elsewhere(taken, others), _elsewhere([best, *own, *others], dear)):
        pair = [candidate, *_bought(candidate, offered, limits)]
        if len(taken) + len(pair) > 1 + NUM_RUNGS:
            break
        taken += [c for c in pair if c not in taken]
    rest = sorted(taken[1 + len(own) :], key=by_cost)
    return tuple(_rung(each, night, limits, there) for each in (*own, *rest))


def _bought(candidate: Candidate, offered: Sequence[Candidate], limits: Limits) -> list[Candidate]:
    """Returns the same machines on demand, for what is not; none where they would not be in time."""
    if candidate.rental.strategy == "on-demand":
        return []
    way = (candidate.rental.on_demand, candidate.estimate.batch_size)
    return [c for c in offered if way_of(c) == way and limits.in_time(c) and not c.hindrance]


def _faster(held: Sequence[Candidate], others: Sequence[Candidate], limits: Limits) -> list[Candidate]:
    """Returns those that can start much later than all that are cheaper; the last one can wait longest."""
    least_s = min(each.time_s(limits.confidence) for each in held)
    found = []
    for candidate in others:
        time_s = candidate.time_s(limits.confidence)
        if time_s < MUCH_LATER * least_s:
            least_s = time_s
            found.append(candidate)
    return found if len(found) <= NUM_FASTER else [*found[: NUM_FASTER - 1], found[-1]]


def _elsewhere(taken: Sequence[Candidate], others: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yields the cheapest of each device in each region, then what is next best spread.

    What is refused is a device in a region, and often the region: of each as few as can be are taken before
    the next comes, cheapest first. Another number of the same machines in one place is no other place.
    """
    left: dict[Rental, Candidate] = {}
    for each in others:
        left.setdefault(_place(each), each)
    for each in taken:
        left.pop(_place(each), None)
    pools = Counter(_pool(each) for each in taken)
    regions = Counter(each.machine.region for each in taken)
    while left:
        found = min(left.values(), key=lambda c: (pools[_pool(c)], regions[c.machine.region]))
        del left[_place(found)]
        pools[_pool(found)] += 1
        regions[found.machine.region] += 1
        yield found


def _place(candidate: Candidate) -> Rental:
    """Returns one machine of it: on spot, or bought."""
    one = replace(candidate.rental, num_machines=1)
    return one if one.is_spot else one.on_demand


def _pool(candidate: Candidate) -> tuple[str, str]:
    """What runs out together."""
    return candidate.machine.device, candidate.machine.region


def on_spot(
    made: Plan, best: Candidate, profile: Profile, known: Known | None, *, until_s: float, budget_usd: float
) -> Plan:
    """The plan with the checkpoints that spot needs and what it costs at worst; others as they are."""
    if not made.rental.is_spot:
        return made
    restart_s = sum(part.seconds for part in best.estimate.parts if part.name in BEFORE_WORK)
    work_s = best.estimate.expected_s - restart_s
    hazard = known.hazard if known and known.hazard else PRIOR
    found = saves(
        hazard,
        num_machines=made.rental.num_machines,
        work_s=work_s,
        save_s=time_to_save_s(profile),
        restart_s=restart_s,
    )
    by_user = made.checkpoint_every_s != best.estimate.checkpoint_every_s
    told = replace(
        made,
        checkpoint_every_s=made.checkpoint_every_s if by_user else found.intervals_s[0],
        checkpoints_s=found.intervals_s if len(found.intervals_s) > 1 else (),
        mean_time_to_loss_s=hazard.mean_time_to_loss_s(
            num_machines=made.rental.num_machines, within_s=work_s
        ),
        risk=found.says,
    )
    bought = steering.on_demand(told)
    if bought is None:
        return replace(told, risk=f"{told.risk}; none of its machines can be bought in time if it stays away")
    worst = worst_case(
        told,
        bought_usd_per_hour=(bought.usd_per_hour or 0.0) * bought.rental.num_machines,
        until_s=until_s,
        budget_usd=budget_usd,
    )
    says = f"at worst ${worst.worst_usd:.2f}, with what spot leaves undone bought on demand"
    if worst.paid_from:
        once = "at no time" if worst.paid_from >= 1 else f"once {worst.paid_from:.0%} is done"
        says += f", which the budget allows {once}"
    return replace(told, worst_usd=worst.worst_usd, risk=f"{told.risk}; {says}")


def _rung(candidate: Candidate, night: Night, limits: Limits, there: Window) -> Rung:
    return Rung(
        rental=candidate.rental,
        expected_s=candidate.expected_s,
        expected_usd=candidate.expected_usd,
        latest_start=there.latest_start(night, candidate.time_s(limits.confidence)),
        usd_per_hour=candidate.machine.price(candidate.rental.strategy),
        gpus=candidate.machine.gpus,
    )

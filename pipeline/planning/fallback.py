"""What to fall back on, when at the latest, and at what price? The rungs of a plan's ladder.

A plan on spot falls back on its own machines on demand, which may cost more than the budget as a whole: what
is bought is only what spot has left to do, and the launcher buys no more than the budget still allows.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.planning.candidates import way_of
from pipeline.planning.costs import time_to_save_s
from pipeline.planning.history import Known
from pipeline.planning.search import Candidate, Choice, Limits, by_cost
from pipeline.planning.startup import BEFORE_WORK
from pipeline.planning.window import Window
from pipeline.records import Night, Plan, Profile, Rung
from pipeline.spot import steering
from pipeline.spot.danger import PRIOR, saves
from pipeline.spot.exposure import exposure

NUM_RUNGS = 5
MUCH_LATER = 0.9  # of the time of the rung before; less is no other plan, only a dearer one


def ladder(
    night: Night, choice: Choice, offered: Sequence[Candidate], limits: Limits, there: Window
) -> tuple[Rung, ...]:
    """What to fall back on, cheapest first: on-demand after the others, then what can start much later.

    The plan's own machines on demand come first: that is what the launcher goes on with where spot fails.
    """
    best = choice.best
    machine, region, strategy, batch_size, num_machines = way_of(best)
    bought = (machine, region, "on-demand", batch_size, num_machines)
    rungs = [
        c for c in offered
        if strategy != "on-demand" and way_of(c) == bought and limits.in_time(c) and not c.hindrance
    ]  # fmt: skip
    least_s = min(each.time_s(limits.confidence) for each in (best, *rungs))
    safe = strategy == "on-demand" or bool(rungs)
    for candidate in sorted(choice.ranked, key=by_cost):
        time_s = candidate.time_s(limits.confidence)
        safer = not safe and candidate.strategy == "on-demand"
        if time_s >= least_s * (1 if safer else MUCH_LATER):
            continue
        least_s, safe = time_s, safe or candidate.strategy == "on-demand"
        rungs.append(candidate)
    if len(rungs) > NUM_RUNGS:  # the last one can wait longest, so it stays
        rungs = [*rungs[: NUM_RUNGS - 1], rungs[-1]]
    return tuple(_rung(each, night, limits, there) for each in rungs)


def on_spot(
    made: Plan, best: Candidate, profile: Profile, known: Known | None, *, until_s: float, budget_usd: float
) -> Plan:
    """The plan with the checkpoints that spot needs and what it costs at worst; others as they are."""
    if not made.spot:
        return made
    restart_s = sum(part.seconds for part in best.estimate.parts if part.name in BEFORE_WORK)
    work_s = best.estimate.expected_s - restart_s
    danger = known.danger if known and known.danger else PRIOR
    found = saves(
        danger,
        num_machines=made.num_machines, work_s=work_s, save_s=time_to_save_s(profile), restart_s=restart_s,
    )  # fmt: skip
    by_user = made.checkpoint_every_s != best.estimate.checkpoint_every_s
    told = replace(
        made,
        checkpoint_every_s=made.checkpoint_every_s if by_user else found.intervals_s[0],
        checkpoints_s=found.intervals_s if len(found.intervals_s) > 1 else (),
        mean_time_to_loss_s=danger.mean_time_to_loss_s(num_machines=made.num_machines, within_s=work_s),
        risk=found.says,
    )
    bought = steering.on_demand(told)
    if bought is None:
        return replace(told, risk=f"{told.risk}; none of its machines can be bought in time if it stays away")
    worst = exposure(
        told,
        bought_usd_per_hour=(bought.usd_per_hour or 0.0) * bought.num_machines,
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
        machine=candidate.machine.name,
        num_machines=candidate.estimate.num_machines,
        spot=candidate.estimate.spot,
        expected_s=candidate.expected_s,
        expected_usd=candidate.expected_usd,
        latest_start=there.latest_start(night, candidate.time_s(limits.confidence)),
        region=candidate.machine.region,
        wait_s=candidate.wait_s,
        usd_per_hour=candidate.machine.price(candidate.strategy),
    )

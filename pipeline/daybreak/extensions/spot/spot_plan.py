"""Completes a plan on spot by the time between saves, the rate of losses and the worst cost."""

from dataclasses import replace

from daybreak.contract.record_parts import SpotOutlook
from daybreak.contract.record_types import Plan, Profile
from daybreak.extensions.spot.hazard import PRIOR, Hazard, saves
from daybreak.extensions.spot.steering import on_demand
from daybreak.extensions.spot.worst_case import worst_case
from daybreak.planning.search import Candidate
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.costs import time_to_save_s


def on_spot(
    made: Plan,
    best: Candidate,
    profile: Profile,
    known: CostCalibration | None,
    *,
    until_s: float,
    budget_usd: float,
) -> Plan:
    """Returns the plan with the checkpoints that spot needs and its worst-case cost."""
    restart_s = best.estimate.start_s
    work_s = best.estimate.expected_s - restart_s
    hazard = known.hazard if known and isinstance(known.hazard, Hazard) else PRIOR
    schedule = saves(
        hazard,
        num_machines=made.rental.num_machines,
        work_s=work_s,
        save_s=time_to_save_s(profile),
        restart_s=restart_s,
    )
    by_user = made.checkpoint_every_s != best.estimate.checkpoint_every_s
    outlook = SpotOutlook(
        mean_time_to_loss_s=hazard.mean_time_to_loss_s(
            num_machines=made.rental.num_machines, within_s=work_s
        ),
        checkpoints_s=schedule.intervals_s if len(schedule.intervals_s) > 1 else (),
        basis=schedule.says,
    )
    spot_plan = replace(
        made,
        checkpoint_every_s=made.checkpoint_every_s if by_user else schedule.intervals_s[0],
        spot=outlook,
    )
    bought = on_demand(spot_plan)
    if bought is None:
        missing = "none of its machines can be bought in time if it stays away"
        return replace(spot_plan, spot=replace(outlook, basis=f"{outlook.basis}; {missing}"))
    worst = worst_case(
        spot_plan,
        bought_usd_per_hour=(bought.usd_per_hour or 0.0) * bought.rental.num_machines,
        until_s=until_s,
        budget_usd=budget_usd,
    )
    says = f"at worst ${worst.worst_usd:.2f}, with what spot leaves undone bought on demand"
    if worst.paid_from:
        once = "at no time" if worst.paid_from >= 1 else f"once {worst.paid_from:.0%} is done"
        says += f", which the budget allows {once}"
    outlook = replace(outlook, worst_usd=worst.worst_usd, basis=f"{outlook.basis}; {says}")
    return replace(spot_plan, spot=outlook)

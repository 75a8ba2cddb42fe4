"""Runs the stage `plan`: reads the newest prices and the earlier nights, and plans tonight.

`planner.plan` decides, without a clock or a network. A home that shares machines with others of a fleet plans
with its share of them, and is called again until the share begins (`evening`).
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from daybreak.contract.backend import Backend
from daybreak.contract.errors import ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.params import PlanSections
from daybreak.contract.records import Champion, Dataset, Night, Plan, Profile
from daybreak.machines.catalog import rented
from daybreak.machines.pricelist import REFRESHED
from daybreak.planning import evening, planner
from daybreak.planning.candidates import everything
from daybreak.prediction import ledger_history
from daybreak.storage.home import Home


def plan(
    home: Home,
    night: Night,
    dataset: Dataset,
    profile: Profile,
    champion: Champion | None,
    *,
    backend: Backend,
    params: PlanSections,
) -> Plan:
    """Returns the plan of the night; raises PlanError with the least that helps if nothing is feasible.

    Raises ParamsError where a job could not move among the places that params name.
    """
    if fault := backend.cannot_move(params.train.checkpoints):
        raise ParamsError(fault)
    entries = ledger_history.before(home, night)
    available, listed = backend.machines(), rented(home.folder / REFRESHED)
    machines = everything(available, listed)
    known = ledger_history.known(entries, machines=machines, num_workers=params.train.num_workers)

    def planned(night: Night, params: PlanSections, available: Sequence[Machine]) -> Plan:
        return planner.plan(
            night,
            dataset,
            profile,
            champion,
            params,
            available=available,
            # All that params.yaml may name; those beyond `available` are only weighed.
            listed=[machine for machine in machines if not machine.is_local],
            known=known,
            explored_usd=ledger_history.explored_usd(entries),
        )

    place = evening.shared(home.folder)
    if place is None:
        return planned(night, params, available)
    fleet = place[2]
    # The share limits the machines, so within it the fastest plan is the one that the division counts on.
    update = {"objective": "time", "usd_per_hour_saved": None}
    fastest = params.model_copy(update={"plan": params.plan.model_copy(update=update)})
    offered = evening.ways(
        lambda there: planned(night, fastest, there),
        profile,
        available=available,
        machines=fleet.machines,
        confidence=params.plan.confidence,
        most=params.plan.max_machines,
    )
    if not offered:  # none of the machines that are shared would do
        return planned(night, params, available)
    share, waited_s = evening.turn(home, night, offered, refits=bool(params.gate.refit_epochs))
    there = [
        replace(machine, count=share.way.num_machines)
        for machine in available
        if machine.name == share.way.machine
    ]
    num_shared = fleet.machines[share.way.machine]
    begun = replace(night, started_at=night.started_at + timedelta(seconds=round(waited_s)))
    return replace(
        planned(begun, fastest, there),
        share=f"{share.way.num_machines} x {share.way.machine} of the fleet's {num_shared}",
    )

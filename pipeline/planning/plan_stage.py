"""Runs the stage `plan`: reads the newest prices and the earlier nights, and plans tonight with them.

`planner.plan` decides, without a clock or a network.
"""

from pipeline.contract.backend import Backend
from pipeline.contract.params import PlanSections
from pipeline.contract.records import Champion, Dataset, Night, Plan, Profile
from pipeline.machines.catalog import rented
from pipeline.machines.pricelist import REFRESHED
from pipeline.planning import planner
from pipeline.planning.candidates import everything
from pipeline.prediction import ledger_history
from pipeline.storage import checkout


def plan(
    night: Night,
    dataset: Dataset,
    profile: Profile,
    champion: Champion | None,
    *,
    backend: Backend,
    params: PlanSections,
) -> Plan:
    """Returns the plan of the night; raises PlanError with the least that helps if nothing is feasible."""
    entries = ledger_history.before(night)
    available, listed = backend.machines(), rented(checkout.home() / REFRESHED)
    machines = everything(available, listed)
    return planner.plan(
        night, dataset, profile, champion, params,
        available=available,
        listed=listed,
        known=ledger_history.known(entries, machines=machines, num_workers=params.train.num_workers),
        explored_usd=ledger_history.explored_usd(entries),
    )  # fmt: skip

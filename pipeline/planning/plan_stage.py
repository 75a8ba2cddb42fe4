"""What does tonight's plan rest on? The stage `plan`: the newest prices and the nights before in.

What decides is `planner.plan`, which knows no clock and no network.
"""

from pipeline.contract.params import PlanSections
from pipeline.contract.records import Champion, Dataset, Night, Plan, Profile
from pipeline.machines.catalog import rented
from pipeline.machines.pricelist import REFRESHED
from pipeline.planning import planner
from pipeline.prediction import ledger_history
from pipeline.storage import ledger


def plan(
    night: Night, dataset: Dataset, profile: Profile, champion: Champion | None, params: PlanSections
) -> Plan:
    """The plan of the night; PlanError with the least that helps if nothing is feasible."""
    entries = ledger_history.before(night)
    return planner.plan(
        night, dataset, profile, champion, params,
        rented=rented(ledger.home() / REFRESHED),
        known=ledger_history.known(entries, num_workers=params.train.num_workers),
        explored_usd=ledger_history.explored_usd(entries),
    )  # fmt: skip

"""What does tonight's plan rest on? The stage `plan`: the newest prices in, the plan out.

What decides is `planner.plan`, which knows no clock and no network.
"""

from pipeline import ledger
from pipeline.params import Params
from pipeline.planning import planner
from pipeline.planning.catalog import rented
from pipeline.planning.pricelist import REFRESHED
from pipeline.records import Champion, Dataset, Night, Plan, Profile


def plan(night: Night, dataset: Dataset, profile: Profile, champion: Champion | None, params: Params) -> Plan:
    """The plan of the night; PlanError with the least that helps if nothing is feasible."""
    machines = rented(ledger.home() / REFRESHED)
    return planner.plan(night, dataset, profile, champion, params, rented=machines)

"""What does tonight's plan rest on? The stage `plan`: the newest prices and the nights before in.

What decides is `planner.plan`, which knows no clock and no network.
"""

from pipeline import ledger
from pipeline.params import Params
from pipeline.planning import past, planner
from pipeline.planning.catalog import rented
from pipeline.planning.pricelist import REFRESHED
from pipeline.records import Champion, Dataset, Night, Plan, Profile


def plan(night: Night, dataset: Dataset, profile: Profile, champion: Champion | None, params: Params) -> Plan:
    """The plan of the night; PlanError with the least that helps if nothing is feasible."""
    entries = past.before(night)
    return planner.plan(
        night, dataset, profile, champion, params,
        rented=rented(ledger.home() / REFRESHED),
        known=past.known(entries, num_workers=params.train.num_workers),
        explored_usd=past.explored_usd(entries),
    )  # fmt: skip

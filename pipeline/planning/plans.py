"""What does tonight's plan rest on, and who is told? The stage `plan`: the newest prices in, the plan out.

What decides is `planner.plan`, which knows no clock and no network. The task log gets what `plan --explain`
shows: the options and why not the next best, and what time and dollars consist of.
"""

import logging

from pipeline import ledger
from pipeline.params import Params
from pipeline.planning import planner
from pipeline.planning.catalog import rented
from pipeline.planning.pricelist import REFRESHED
from pipeline.planning.rationale import rationale
from pipeline.records import Champion, Dataset, Night, Plan, Profile

log = logging.getLogger(__name__)


def plan(night: Night, dataset: Dataset, profile: Profile, champion: Champion | None, params: Params) -> Plan:
    """The plan of the night; PlanError with the least that helps if nothing is feasible."""
    machines = rented(ledger.home() / REFRESHED)
    made = planner.plan(night, dataset, profile, champion, params, rented=machines)
    log.info("%s", rationale(made, night))
    return made

"""Tells people once a month that a fleet has spent 80 %, and all, of the month's dollars.

It looks after each night of any home, since nights of several homes go beyond a share only together. What was
told is kept in the leading home, in `var/fleet_month.json`.
"""

from pathlib import Path

from daybreak.contract import clock
from daybreak.contract.formats import dollars
from daybreak.contract.record_parts import Event
from daybreak.night.month_budget import month_budget
from daybreak.report import publisher
from daybreak.rollout.night_events import MONTH_SHARES
from daybreak.storage import homes, ledger
from daybreak.storage.home import Home
from daybreak.storage.journal import Journal

TOLD = Path("var/fleet_month.json")


def tell(home: Home, commit: str) -> bool:
    """Tells of shares of the month that are spent since a commit of the ledger; False where that failed."""
    place = homes.shared(home.folder)
    usd = place[2].usd_per_month if place else None
    if place is None or usd is None:
        return True
    lead, at = place[0], clock.utc().replace(microsecond=0)
    members = [Home(each.folder) for each in homes.homes(lead)]
    spent_usd = month_budget(members, usd=usd, at=at, zone="UTC").spent_usd
    spent = f"{dollars(spent_usd)} of this month's {dollars(usd)} of the fleet are spent"
    night = next((one.night for one in ledger.commits(home) if one.id == commit), "")
    journal, month = Journal(lead / TOLD, empty={}), f"{at:%Y-%m}"
    with journal.alone():
        told = journal.read().get(month, [])
        new = [f"{share:.0%}" for share in MONTH_SHARES if spent_usd >= share * usd]
        new = [share for share in new if share not in told]
        events = [
            Event(
                kind="month budget",
                at=at,
                night=night,
                subject=f"{share} of the fleet",
                reason=f"{spent} (usd_per_month in fleet.yaml)",
            )
            for share in new
        ]
        if not publisher.publish_events(home, events):
            return False
        if new:
            journal.write({month: [*told, *new]})
    return True

"""Makes the JSON that webhooks and assets have: the version that serves, and the newest predictions."""

import json
from typing import Any

from daybreak.contract import records
from daybreak.contract.record_types import Predictions
from daybreak.storage import ledger, night_folders
from daybreak.storage.home import Home

NIGHTS_BACK = 7  # in the ledger, in which predictions are looked for, beside the nights that are open


def champion(home: Home) -> dict[str, Any] | None:
    """Returns the version that serves and how it came to, as JSON for others; None where none serves."""
    made = next(iter(ledger.releases(home)), None)
    if made is None or not made.serves:
        return None
    (entry,) = ledger.entries_of(home, [made])
    release, name = entry.release, home.last_params(home.folder).register_.name
    if release is None:
        return None
    return {
        "event": "champion",
        "model": name,
        "version": release.version,
        "replaced": release.replaced,
        "how": "rolled back" if entry.rollback else "promoted",
        "reason": entry.verdict.reason if entry.verdict else "",
        "night": entry.night.id,
        "day": str(entry.night.day),
        "model_uri": f"models:/{name}/{release.version}",
        "model_digest": release.model_digest,
        "files_digest": release.files_digest,
        "ledger": made.id,
        "at": entry.closed_at.isoformat() if entry.closed_at else "",
    }


def predictions(home: Home) -> dict[str, Any] | None:
    """Returns the record of the predictions that were written last as JSON; None where there are none."""
    open_nights = (records.find(Predictions, at / records.RUN) for at, _ in night_folders.unclosed(home))
    closed = (entry.predictions for entry in ledger.history(home, limit=NIGHTS_BACK))
    newest = max(filter(None, (*open_nights, *closed)), key=lambda made: made.written_at, default=None)
    if newest is None:
        return None
    name = home.last_params(home.folder).register_.name
    return {"event": "predictions", "model": name, **json.loads(records.dumps(newest))}

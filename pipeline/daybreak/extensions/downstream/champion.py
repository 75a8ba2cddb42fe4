"""Tells webhooks and Airflow once which version serves.

`var/downstream.json` keeps, for each, the commit of the ledger that it has heard of. One that did not answer
is tried again by the next stage and by the hourly `watch`, and hears of the newest champion alone.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from daybreak.contract.errors import sentence
from daybreak.extensions.downstream import airflow_assets, webhook
from daybreak.extensions.downstream.settings import DownstreamParams
from daybreak.storage import ledger
from daybreak.storage.home import Home
from daybreak.storage.journal import Journal, alone

log = logging.getLogger(__name__)

Way = tuple[str, Callable[[], bool]]  # who hears, and how; False: nobody is there to hear
TOLD = Path("var/downstream.json")


def describe(home: Home) -> dict[str, Any] | None:
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


def tell(home: Home) -> bool:
    """Tells all those downstream that have not heard of the champion; returns whether all have by now."""
    event = describe(home)
    if event is None:
        return True
    params, path = home.last_params(home.folder).section(DownstreamParams), home.folder / TOLD
    has_failed = False
    with alone(path.with_suffix(".lock")):
        journal = Journal(path, empty={})
        told: dict[str, str] = journal.read()
        for name, (who, way) in _ways(home, params, event):
            if told.get(name) == event["ledger"]:
                continue
            try:
                if way():
                    told[name] = event["ledger"]
                    journal.write(told)
            except Exception as error:  # noqa: BLE001 - whatever a server says, the version serves
                has_failed = True
                serves = f"version {event['version']} serves"
                log.warning("%s has not heard that %s: %s", who, serves, sentence(error))
    return not has_failed


def _ways(home: Home, params: DownstreamParams, event: dict[str, Any]) -> Iterator[tuple[str, Way]]:
    """Yields by a name that is no secret who is to hear of an event, in words, and how."""
    for number, url in enumerate(params.webhooks, start=1):
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        yield name, (f"webhook {number}", partial(webhook.post, url, params.webhook_secret, event))
    yield "airflow", ("Airflow", partial(airflow_assets.update, home, params, event))

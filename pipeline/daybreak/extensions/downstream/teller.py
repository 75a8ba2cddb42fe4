"""Tells webhooks and Airflow once which version serves, and which predictions were written.

`var/downstream.json` keeps, by event, what each has heard: the commit of the ledger that let a version serve,
or the night and digest of predictions. One that did not answer is tried again by the next stage that tells,
and by the hourly `watch`, and hears of the newest champion and predictions alone.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from daybreak.contract.errors import sentence
from daybreak.extensions.downstream import airflow_assets, payloads, webhook
from daybreak.extensions.downstream.settings import DownstreamParams
from daybreak.storage.home import Home
from daybreak.storage.journal import Journal, alone

log = logging.getLogger(__name__)

Way = tuple[str, Callable[[], bool]]  # who hears, and how; False: nobody is there to hear
TOLD = Path("var/downstream.json")


def tell(home: Home) -> bool:
    """Tells webhooks and Airflow of new events; returns whether each has heard all of them by now."""
    events = [event for event in (payloads.champion(home), payloads.predictions(home)) if event]
    params, path = home.last_params(home.folder).section(DownstreamParams), home.folder / TOLD
    has_failed = False
    with alone(path.with_suffix(".lock")):
        journal = Journal(path, empty={})
        heard_last: dict[str, str] = journal.read()
        for event in events:
            news, id = _in_words(event), _id_of(event)
            for name, (who, way) in _ways(home, params, event):
                receiver = f"{event['event']} {name}"
                if heard_last.get(receiver) == id:
                    continue
                try:
                    if way():
                        heard_last[receiver] = id
                        journal.write(heard_last)
                except Exception as error:  # noqa: BLE001 - whatever a server says, it is so
                    has_failed = True
                    log.warning("%s has not heard that %s: %s", who, news, sentence(error))
    return not has_failed


def _in_words(event: dict[str, Any]) -> str:
    if event["event"] == "champion":
        return f"version {event['version']} serves"
    text = f"{event['to']} has the predictions of {event['day']}"
    return f"{text}, but of rows of {event['older']}" if event.get("older") else text


def _id_of(event: dict[str, Any]) -> str:
    """Returns the id of an event, other than that of any earlier event of its kind."""
    return str(event["ledger"] if event["event"] == "champion" else f"{event['night']} {event['digest']}")


def _ways(home: Home, params: DownstreamParams, event: dict[str, Any]) -> Iterator[tuple[str, Way]]:
    """Yields each receiver of an event: a key without secrets, its name in words, and the call."""
    for number, url in enumerate(params.webhooks, start=1):
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        yield name, (f"webhook {number}", partial(webhook.post, url, params.webhook_secret, event))
    yield "airflow", ("Airflow", partial(airflow_assets.update, home, params, event))

"""Keeps the messages of a home that wait or were sent, in `var/messages.json` (notifier.py)."""

import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.record_parts import Event, Record
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

SHOWN = 50  # sent messages that are kept, for the page of what stands now


@dataclass(frozen=True, kw_only=True)
class Waiting(Record):
    """A message that waits to be sent."""

    event: Event
    to: Literal["all", "urgent"]  # `command` and `urls`, or `urgent_urls`
    since: datetime
    tried_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Sent(Record):
    """A message that was sent or given up, and who took it and who did not, by names without a secret."""

    kind: str
    night: str
    at: datetime
    to: tuple[str, ...]  # none: it was given up
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Messages(Record):
    """The messages of a home that wait, in order, and the keys of the newest events that have had theirs."""

    waiting: tuple[Waiting, ...] = ()
    announced: tuple[str, ...] = ()
    sent: tuple[Sent, ...] = ()  # the newest, in order


def read(home: Home) -> Messages:
    """Returns the messages that are kept; none where the file is no record of them, which is logged."""
    try:
        return records.loads(Messages, path(home).read_text(), source=str(path(home)))
    except FileNotFoundError:
        return Messages()
    except (DataError, UnicodeDecodeError) as error:
        log.error("messages that waited are lost: %s", error)
        return Messages()


def write(home: Home, kept: Messages) -> None:
    """Keeps these messages in place of those before."""
    records.replace_text(path(home), records.dumps(kept))


def path(home: Home) -> Path:
    """Returns the path of the file."""
    return home.var / "messages.json"

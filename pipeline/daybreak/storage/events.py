"""Keeps the events of a night in its folder, in `data/run/events.json`, from where the ledger takes them.

An event is written once, whichever process sees it and however often: the same kind and subject are the same
event. Events that may happen again, such as failures, are distinguished by their time, too.
"""

from collections.abc import Iterable
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.record_parts import Event
from daybreak.contract.record_types import Events
from daybreak.storage.journal import alone

AGAIN = ("failed", "rolled back", "alarm")


def key(event: Event) -> tuple[str, ...]:
    """Returns what an event of a night is known by."""
    return (event.kind, event.subject, *([event.at.isoformat()] if event.kind in AGAIN else []))


def read(folder: Path) -> tuple[Event, ...]:
    """Returns the events of the night in a folder, in the order in which they were written."""
    written = records.find(Events, folder / records.RUN)
    return written.events if written else ()


def with_new(events: Iterable[Event], new: Iterable[Event]) -> tuple[Event, ...]:
    """Returns the events, followed by the events of `new` that are not known yet."""
    by_key = {key(event): event for event in events}
    for event in new:
        by_key.setdefault(key(event), event)
    return tuple(by_key.values())


def add(new: Iterable[Event], folder: Path) -> tuple[Event, ...]:
    """Adds those events that the night in a folder does not have yet; returns all that it has then."""
    run = folder / records.RUN
    with alone(records.path_of(Events, run).with_suffix(".lock")):
        before = read(folder)
        after = with_new(before, new)
        if after != before:
            records.write(Events(events=after), run)
    return after

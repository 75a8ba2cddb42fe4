"""Puts an event into a message to people: one line, with a link where a server is named, else a command."""

from collections.abc import Mapping
from datetime import datetime

from daybreak.contract.formats import duration, one_line
from daybreak.contract.record_parts import Event, EventKind


def message(event: Event, links: Mapping[str, str], *, night: str, now: datetime) -> str:
    """Returns the message about an event.

    Args:
        event: what happened.
        links: to pages about its night, by their words (daybreak/report/links.py); none without a server.
        night: its name for people.
        now: the time left to answer a question is counted from then.
    """
    return one_line(f"Daybreak: {_sentence(event, links, name=night, now=now)}")


def _sentence(event: Event, links: Mapping[str, str], *, name: str, now: datetime) -> str:
    if event.kind == "question":
        return _question(event, links, now=now)
    night, by = f"night {name}", f" by {event.by}" if event.by else ""
    see = f"; see: {next(iter(links.values()), f'daybreak report --night {event.night}')}"
    beside = f" in place of version {event.champion}" if event.champion else ""
    because = f": {event.reason}" if event.reason else ""
    stays = f"version {event.champion} stays" if event.champion else "there is no champion yet"
    sentences: dict[EventKind, str] = {
        "promoted": f"version {event.version} serves{beside}, promoted{by} in {night}: {event.reason}{see}",
        "refused": f"{stays} after {night}: {event.reason}{see}",
        "stopped": f"{stays}, and {night} was stopped{by}: {event.reason or 'no reason given'}{see}",
        "rolled back": f"version {event.version} serves again{beside}, rolled back{by}{because}; "
        f"see: daybreak status",
        "late": f"{night} is late: {event.reason}{see}",
        "over budget": f"{night} is over its budget: {event.reason}{see}",
        "failed": f"{night} failed at {event.subject}: {event.reason}{_where(links)}; "
        f"go on with: daybreak night --night {event.night}",
        "month budget": f"{event.reason}{see}",
        "calibration lost": f"{event.reason}{see}",
        "disk low": f"{event.reason}; see what can be deleted: daybreak prune --dry-run",
    }
    return sentences.get(event.kind, event.reason)


def _question(event: Event, links: Mapping[str, str], *, now: datetime) -> str:
    assert event.until
    left = duration(max((event.until - now).total_seconds(), 0))
    form = f"at {links['Review']} or " if "Review" in links else ""
    return (
        f"version {event.version} waits for a person until {event.until:%Y-%m-%d %H:%M} UTC ({left} left): "
        f"{event.reason}{_where(links)}; answer {form}with: "
        f"daybreak approve --night {event.night} --reason TEXT [--reject]"
    )


def _where(links: Mapping[str, str]) -> str:
    shown = [address for name, address in links.items() if name != "Review"]
    return f"; see: {shown[0]}" if shown else ""

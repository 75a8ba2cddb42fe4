"""Puts an event into a message to people: cause, consequence, and what to do until when.

A message is one line, but for a digest, with links where servers are named, and commands for this very night.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from daybreak.contract.formats import clock, duration, one_line
from daybreak.contract.record_parts import Event, EventKind

FORMS = ("Review", "Rollback", "Airflow run")  # links to where something is done


@dataclass(frozen=True, kw_only=True)
class NightState:
    """The night that an event is of, as a message tells of it."""

    name: str  # for people
    links: Mapping[str, str] = field(default_factory=dict)  # to pages, by their words (links.py)
    serves: int | None = None  # version; 0: none serves, None: not known
    predictions: str = ""  # whether they are there (outcome.predictions); "" where none are asked for
    until: datetime | None = None  # when the night has to be decided; None: it is over, or not known
    released: int = 0  # version that the night has brought to serve since the event; 0: none
    new_night: str = ""  # command for another night of its day, where this one was overtaken


def message(event: Event, night: NightState, *, now: datetime) -> str:
    """Returns the message about an event; the time that is left to act is counted from `now`.

    A digest has its lines already.
    """
    if event.kind == "digest":
        return event.reason
    return one_line(f"Daybreak: {_sentence(event, night, now=now)}")


def _sentence(event: Event, night: NightState, *, now: datetime) -> str:
    if event.kind == "question":
        return _question(event, night, now=now)
    name, by = f"night {night.name}", f" by {event.by}" if event.by else ""
    pages = [address for word, address in night.links.items() if word not in FORMS]
    shown = pages[0] if pages else night.links.get("Airflow run", f"daybreak report --night {event.night}")
    see = f"; see: {shown}"
    beside = f" in place of version {event.champion}" if event.champion else ""
    because = f": {event.reason}" if event.reason else ""
    stays = f"version {event.champion} stays" if event.champion else "there is no champion yet"
    there = f"; predictions {night.predictions}" if night.predictions else ""
    so = _serves_on(night) + there
    sentences: dict[EventKind, str] = {
        "promoted": f"version {event.version} serves{beside}, promoted{by} in {name}: {event.reason}{there}"
        f"{see}{_take_back(event, night)}",
        "refused": f"{stays} after {name}: {event.reason}{there}{see}",
        "stopped": f"{stays}, and {name} was stopped{by}: {event.reason or 'no reason given'}{there}{see}",
        "rolled back": f"version {event.version} serves again{beside}, rolled back{by}{because}; "
        f"see: daybreak status",
        "late": f"{name} is late: {event.reason}{so}{see}",
        "over budget": f"{name} is over its budget: {event.reason}{so}{see}",
        "failed": f"{name} failed at {event.subject}: {event.reason}{so}"
        f"{f'; see: {pages[0]}' if pages else ''}{_go_on(event, night, now=now)}",
        "month budget": f"{event.reason}{see}",
        "calibration lost": f"{event.reason}{see}",
        "disk low": f"{event.reason}; see what can be deleted: daybreak prune --dry-run",
    }
    return sentences.get(event.kind, event.reason)


def _question(event: Event, night: NightState, *, now: datetime) -> str:
    assert event.until
    shown = [address for word, address in night.links.items() if word not in FORMS]
    if night.released or event.until <= now:
        since = f"version {night.released} came to serve" if night.released else "that time is over"
        return (
            f"version {event.version} waited for a person until {clock(event.until)}: {event.reason}; "
            f"{since}; see: {shown[0] if shown else f'daybreak report --night {event.night}'}"
        )
    else_ = f"version {event.champion} stays" if event.champion else "no version serves"
    return (
        f"version {event.version} waits for a person{_until(event.until, now=now, word='until')}: "
        f"{event.reason}; without an answer {else_}"
        f"{f'; see: {shown[0]}' if shown else ''}; answer {_at('Review', night)}with: "
        f"daybreak approve --night {event.night} --reason TEXT [--reject]"
    )


def _serves_on(night: NightState) -> str:
    if night.released:  # a message may wait for the morning
        return f"; it has gone on since, and brought version {night.released} to serve"
    if night.serves is None:
        return ""
    return f"; version {night.serves} serves on" if night.serves else "; no version serves yet"


def _take_back(event: Event, night: NightState) -> str:
    if not event.champion:
        return ""
    command = f"daybreak rollback --to {event.champion} --reason TEXT"
    return f"; take it back {_at('Rollback', night)}with: {command}"


def _go_on(event: Event, night: NightState, *, now: datetime) -> str:
    if night.released:
        return ""
    if night.new_night:
        return f"; open another night for its day with: {night.new_night}"
    by = _until(night.until, now=now, word="by") if night.until and night.until > now else ""
    return f"; go on{by} {_at('Airflow run', night)}with: daybreak night --night {event.night}"


def _until(until: datetime, *, now: datetime, word: str) -> str:
    return f" {word} {clock(until)} ({duration(max((until - now).total_seconds(), 0))} left)"


def _at(page: str, night: NightState) -> str:
    return f"at {night.links[page]} or " if page in night.links else ""

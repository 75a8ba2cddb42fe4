"""Puts an event into a message to people: cause, consequence, and who has to do what until when.

A message is one line, but for a digest, with links where servers are named, and commands for this very night.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from daybreak.contract.formats import clock, duration, one_line
from daybreak.contract.record_parts import Event, EventKind

NOBODY = "nobody has to act"
FORMS = ("Review", "Rollback", "Airflow run")  # links to where something is done


@dataclass(frozen=True, kw_only=True)
class NightState:
    """The night that an event is of, as a message tells of it."""

    name: str  # for people
    links: Mapping[str, str] = field(default_factory=dict)  # to pages, by their words (links.py)
    serves: int | None = None  # version; 0: none serves, None: not known
    predictions: str = ""  # whether they are there (outcome.predictions); "" where none are asked for
    lacks_predictions: bool = False  # they are late, and not there
    unjudged: bool = False  # scores that are not finite kept the gate from judging the version
    has_month: bool = False  # dollars of its month are limited, too
    until: datetime | None = None  # when the night has to be decided; None: it is over, or not known
    released: int = 0  # version that the night has brought to serve since the event; 0: none
    ended: bool = False  # it was decided, answered or stopped since the event
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
    command = f"daybreak report --night {event.night}" if event.night else "daybreak status"
    shown = pages[0] if pages else night.links.get("Airflow run", command)
    see = f"; see: {shown}"
    beside = f" in place of version {event.champion}" if event.champion else ""
    because = f": {event.reason}" if event.reason else ""
    stays = f"version {event.champion} stays" if event.champion else "there is no champion yet"
    there = f"; predictions {night.predictions}" if night.predictions else ""
    serves = _serves_on(night)
    so, who = serves + there, _who(event, night)
    month = ", but counts towards the month's budget" if night.has_month else ""
    sentences: dict[EventKind, str] = {
        "promoted": f"version {event.version} serves{beside}, promoted{by} in {name}: {event.reason}{there}; "
        f"{who}{see}{_take_back(event, night)}",
        "refused": f"{stays} after {name}: {event.reason}{there}; {who}{see}",
        "stopped": f"{stays}, and {name} was stopped{by}: {event.reason or 'no reason given'}{there}; "
        f"{who}{see}",
        "rolled back": f"version {event.version} serves again{beside}, rolled back{by}{because}{there}; "
        f"whoever owns the model should find out why before the next night; see: daybreak status",
        "late": f"{name} is late: {event.reason}{so}; {_of_late(event, night, now=now)}{see}",
        "over budget": f"{name} is over its budget: {event.reason}{so}; that takes nothing from the next "
        f"night's budget_usd{month}; whoever keeps the budget should check before then what this one cost"
        f"{see}",
        "failed": f"{name} failed at {event.subject}: {event.reason}{so}"
        f"{f'; see: {pages[0]}' if pages else ''}{_go_on(event, night, now=now)}",
        "month budget": f"{event.reason}; {_of_month(event)}{see}",
        "calibration lost": f"{event.reason}; meanwhile nights may miss deadlines or budgets, and whoever "
        f"keeps the machines should check them before the next night{see}",
        "disk low": f"{event.reason}{serves}; a night that finds no room fails, and whoever keeps the "
        f"machine should free space before the next night; see what can be deleted: daybreak prune --dry-run",
        "alarm": f"{event.reason}{serves}; whoever keeps the home should see to it before the next night",
    }
    return sentences.get(event.kind, event.reason)


def _who(event: Event, night: NightState) -> str:
    """Returns who has to act on a night that is decided, in words."""
    who = ["whoever is on call should look at the predictions now"] if night.lacks_predictions else []
    is_judged = not (night.unjudged or event.reason.startswith("no data"))
    if event.kind == "refused" and event.version and not is_judged:  # without a new day there is no version
        who.append("whoever owns the model should see to it before the next night")
    return ", and ".join(who) or NOBODY


def _of_late(event: Event, night: NightState, *, now: datetime) -> str:
    are_there = event.subject == "predictions" and night.predictions and not night.lacks_predictions
    if night.released or night.ended or are_there:
        return _who(event, night)
    return f"whoever is on call should look at it {_in_time(night, now=now) or 'now'}"


def _of_month(event: Event) -> str:
    """Returns what a share of the month's dollars that is spent leads to, and who has to act."""
    if event.subject.startswith("100%"):
        return (
            "until the month ends, only nights that cost nothing will train, and whoever keeps the budget "
            "should raise it before the next night if others are to train"
        )
    return (
        "nights go on within what is left, and whoever keeps the budget should decide before that is spent "
        "whether to raise it"
    )


def _in_time(night: NightState, *, now: datetime) -> str:
    """Returns until when the night can be decided, in words; "" where that is over, or not known."""
    return _until(night.until, now=now, word="by").strip() if night.until and night.until > now else ""


def _question(event: Event, night: NightState, *, now: datetime) -> str:
    assert event.until
    shown = [address for word, address in night.links.items() if word not in FORMS]
    if night.released or night.ended or event.until <= now:
        since = "that is decided by now" if night.ended else "that time is over"
        since = f"version {night.released} came to serve" if night.released else since
        return (
            f"version {event.version} waited for a person until {clock(event.until)}: {event.reason}; "
            f"{since}; {NOBODY}; see: {shown[0] if shown else f'daybreak report --night {event.night}'}"
        )
    else_ = f"version {event.champion} stays" if event.champion else "no version serves"
    return (
        f"version {event.version} waits for a person{_until(event.until, now=now, word='until')}: "
        f"{event.reason}; without an answer {else_}"
        f"{f'; see: {shown[0]}' if shown else ''}; whoever approves should answer {_at('Review', night)}"
        f"with: daybreak approve --night {event.night} --reason TEXT [--reject]"
    )


def _serves_on(night: NightState) -> str:
    if night.released:  # a message may wait for the morning
        return f"; it has gone on since, and brought version {night.released} to serve"
    since = "; it has ended since" if night.ended else ""
    if night.serves is None:
        return since
    return f"{since}; {f'version {night.serves} serves on' if night.serves else 'no version serves yet'}"


def _take_back(event: Event, night: NightState) -> str:
    """Returns how to take it back: Airflow's form opens empty, and would then take back the newest."""
    if not event.champion:
        return ""
    command = f"daybreak rollback --to {event.champion} --reason TEXT"
    form = night.links.get("Rollback")
    at = f"at {form}, with {event.champion} as the version in its form, or " if form else ""
    return f"; take it back {at}with: {command}"


def _go_on(event: Event, night: NightState, *, now: datetime) -> str:
    if night.released or night.ended:
        return f"; {_who(event, night)}"
    if night.new_night:
        return f"; whoever is on call should open another night for its day with: {night.new_night}"
    by = _in_time(night, now=now) or "before the next night"
    at = _at("Airflow run", night)
    return f"; whoever is on call should go on {by} {at}with: daybreak night --night {event.night}"


def _until(until: datetime, *, now: datetime, word: str) -> str:
    return f" {word} {clock(until)} ({duration(max((until - now).total_seconds(), 0))} left)"


def _at(page: str, night: NightState) -> str:
    return f"at {night.links[page]} or " if page in night.links else ""

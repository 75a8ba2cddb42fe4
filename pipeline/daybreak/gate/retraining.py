"""Says whether the watch asks for a night now: once for each finding, within a budget of such nights.

A finding is a column of served rows, or of predictions, that was as in training on a served day and has
drifted since, or a version that the watch rolled back, as it was proven worse. What was never as in training
is computed otherwise in serving, which no night repairs. Each version has at most one night for its drift,
and one for its loss: if that night promotes nothing, nights of the schedule go on. A night's trigger says
what it is for, so the ledger counts them, also after a kill between the question and the night.
"""

from collections.abc import Iterator
from datetime import timedelta

from daybreak.contract import clock, records
from daybreak.contract.errors import NothingToDo
from daybreak.contract.formats import counted, one_line
from daybreak.contract.record_types import Events, Night, ServedDays
from daybreak.contract.sections import WatchParams
from daybreak.evaluation import live_judge
from daybreak.gate import served_notices
from daybreak.rollout.hold import WATCH
from daybreak.storage import branch, ledger, night_folders
from daybreak.storage.home import Home

TRIGGER = f"{WATCH}: "  # how the trigger of such a night begins
MONTH = timedelta(days=30)
MOST_TEXT = 500  # characters of a trigger, as of a reason in Airflow's form
LOOKED_AT = 400  # newest entries of the ledger


def trigger(home: Home, params: WatchParams) -> str:
    """Returns the trigger of the night that the watch asks for; NothingToDo says why it asks for none."""
    if not params.retrain:
        raise NothingToDo("watch.retrain is false, so the watch starts no night")
    nights, findings = list(_nights(home)), dict(_findings(home))
    if not findings:
        raise NothingToDo("the watch has found neither drift of served rows nor a loss of quality")
    started = {
        subject: night.id
        for subject in findings
        for night in nights
        if night.trigger.startswith(f"{TRIGGER}{subject}: ")
    }
    left = [subject for subject in findings if subject not in started]
    if not left:
        said = ", ".join(f"night {night} for the {subject}" for subject, night in started.items())
        raise NothingToDo(f"the watch has started {said}; a finding starts one night")
    if (undecided := night_folders.undecided(home)) and not live_judge.lets_open(home, undecided):
        raise NothingToDo(f"night {undecided[0].id} is open; no other is started")
    recent = [one for one in nights if clock.utc() - one.started_at < MONTH]
    if len(recent) >= params.retrain_per_month:
        raise NothingToDo(
            f"the watch found the {left[0]}, and has started {counted(len(recent), 'night')} in 30 days, as "
            f"many as watch.retrain_per_month allows; raise it, or start one: daybreak night"
        )
    return one_line(f"{TRIGGER}{left[0]}: {findings[left[0]]}")[:MOST_TEXT]


def _findings(home: Home) -> Iterator[tuple[str, str]]:
    """Yields the findings on the version that serves: what each is about, and the reason for a night."""
    newest = next(iter(ledger.releases(home)), None)
    if newest is None:
        return
    events = branch.read_at(home, newest.id, Events) if newest.rollback else None
    if events and events.events[0].by == WATCH:
        yield f"loss of version {events.events[0].champion}", f"rolled back: {events.events[0].reason}"
    served = records.find(ServedDays, home.var)
    if served is None or served.version != newest.serves or not served.days:
        return
    if any(one.since for one in served.days[-1].drift):
        said = served_notices.in_words(served.days[-1], served.version)
        yield f"drift of version {served.version}", said


def _nights(home: Home) -> Iterator[Night]:
    """Yields the nights that the watch started, closed or not."""
    entries = ledger.history(home, LOOKED_AT)
    nights = [entry.night for entry in entries if not entry.rollback]
    nights += [night for _, night in night_folders.unclosed(home)]
    yield from (night for night in nights if night.trigger.startswith(TRIGGER))

"""Notifies people of events, by the command `notify.command` and by Apprise's `notify.urls`.

Each message is one line (daybreak/report/messages.py); `notify.on` lists the kinds, and a digest, which its
hour asks for, needs no place there. An event is sent once,
even if its stage is called again: `var/messages.json` keeps sent events and waiting messages; all but urgent
ones wait in the quiet hours. A message is marked after it was sent, so a kill in between sends it twice
rather than never. A message that no notifier took is tried again by later stages and by the hourly `watch`,
for a day. A notifier that fails is logged, and nothing else fails with it; a notifier that does not answer is
ended after `LIMIT_S`.
"""

import logging
import operator
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo

from daybreak.contract import formats
from daybreak.contract.errors import PipelineError
from daybreak.contract.record_parts import Event, EventKind
from daybreak.contract.sections import NotifyEvent, NotifyParams
from daybreak.report import message_log, messages
from daybreak.report.message_log import Messages, Sent, Waiting
from daybreak.report.messages import NightState
from daybreak.storage import branch, events, ledger
from daybreak.storage.home import Home
from daybreak.storage.journal import alone
from daybreak.storage.ledger import Entry

log = logging.getLogger(__name__)

LIMIT_S = 10  # the most that the command may take, and the most that all URLs together may take
AGAIN_AFTER = timedelta(minutes=10)  # a message that no notifier took is tried again
GIVEN_UP_AFTER = timedelta(days=1)
KEPT = 500  # keys of events that have had their message
AT_ONCE = ("failed", "rolled back", "alarm")  # sent where none can be kept; others would come again each call
ENDS: tuple[EventKind, ...] = ("promoted", "refused", "stopped")  # of a night
ANSWERS: tuple[EventKind, ...] = ("approved", "declined")
STDERR = 2
TOLD_KINDS = get_args(NotifyEvent)
# Apprise in a process of its own, which can be ended; it reads the URL from its environment, since other
# users of the machine see the arguments of a process.
APPRISE = [
    sys.executable,
    "-P",
    "-c",
    "from apprise.cli import main; main()",
    "--storage-mode",
    "memory",
    "--service-limit",
    str(LIMIT_S),
]


def tell(home: Home, *happened: Event) -> bool:
    """Sends messages on events that are new and of a kind to be sent, and waiting messages that are due.

    Without any event it only does the latter. Returns False where a message could not be sent.
    """
    if not any(event.kind in TOLD_KINDS for event in happened) and not message_log.read(home).waiting:
        return True
    loaded = home.last_params(home.folder)
    return _tell(home, happened, loaded.notify, zone=loaded.night.time_zone)


def subjects_told(home: Home, kind: EventKind) -> list[str]:
    """Returns the subjects of events of a kind, of no night, that had their messages; the newest ones."""
    keys = (key.partition(f" {kind} ") for key in message_log.read(home).announced)
    return [subject for night, _, subject in keys if not night and subject]


def alarm(home: Home, text: str) -> None:
    """Tells of something that people have to look at, though no night fails because of it."""
    tell(home, Event(kind="alarm", at=datetime.now(UTC), night="", reason=text))


def send(home: Home, message: str) -> bool:
    """Hands a message to the notifiers at once; returns False where one of them failed."""
    given = home.last_params(home.folder).notify
    return not _faults(message, given.command, given.urls)


def is_quiet(hours: str, now: datetime) -> bool:
    """Returns whether a time is in the quiet hours, which may go over midnight.

    >>> is_quiet("22:00-07:00", datetime(2026, 1, 1, 23)), is_quiet("22:00-07:00", datetime(2026, 1, 1, 7))
    (True, False)
    """
    if not hours:
        return False
    begin, end = (time.fromisoformat(text) for text in hours.split("-"))
    at = now.time()
    return begin <= at < end if begin <= end else at >= begin or at < end


def _tell(home: Home, happened: Sequence[Event], given: NotifyParams, *, zone: str) -> bool:
    if not (given.command or given.urls or given.urgent_urls):
        return True  # a message stays in the log of its stage
    now = datetime.now(UTC)
    quiet = is_quiet(given.quiet_hours, now.astimezone(ZoneInfo(zone)))
    wanted = [event for event in happened if event.kind in (*given.on, "digest")]
    try:
        with alone(message_log.path(home).with_suffix(".lock")):
            kept = _with_new(message_log.read(home), wanted, given, now=now)
            message_log.write(home, kept)
            return _send_due(home, kept, given, quiet=quiet)
    except OSError as error:  # as on a full disk, of which people have to hear
        log.error("messages cannot be kept in %s: %s", message_log.path(home), error)
        texts = [text_of(home, event, now=now) for event in wanted if event.kind in AT_ONCE]
        return not any([_faults(text, given.command, (*given.urls, *given.urgent_urls)) for text in texts])


def _with_new(kept: Messages, wanted: Sequence[Event], given: NotifyParams, *, now: datetime) -> Messages:
    """Returns the messages with those about events that were not told yet."""
    for event in wanted:
        key = " ".join([event.night, *events.key(event)])
        if key in kept.announced:
            continue
        message = Waiting(event=event, to="all", since=now)
        rings = event.kind in given.urgent and given.urgent_urls
        new = (replace(message, to="urgent"), message) if rings else (message,)
        kept = Messages(waiting=(*kept.waiting, *new), announced=(*kept.announced, key)[-KEPT:])
    return kept


def _send_due(home: Home, kept: Messages, given: NotifyParams, *, quiet: bool) -> bool:
    """Sends what is due, in order; once a way has failed, the other messages that go by it wait as well."""
    failed: set[str] = set()
    for message in kept.waiting:
        now = datetime.now(UTC)
        rings = message.to == "urgent" or (message.event.kind in given.urgent and not given.urgent_urls)
        too_soon = message.tried_at is not None and now - message.tried_at < AGAIN_AFTER
        if message.to in failed or too_soon or (quiet and not rings):
            continue
        text = text_of(home, message.event, now=now)
        command, urls = ("", given.urgent_urls) if message.to == "urgent" else (given.command, given.urls)
        handed = _hand(text, command, urls)
        took = tuple(name for name, fault in handed if not fault)
        refused = tuple(name for name, fault in handed if fault)
        left: tuple[Waiting, ...] = ()
        if refused:
            failed.add(message.to)
        if refused and not took and now - message.since < GIVEN_UP_AFTER:  # nobody has it yet
            left = (replace(message, tried_at=now),)
        elif handed:
            if not took:
                log.error("nobody could be told within %s: %s", GIVEN_UP_AFTER, text)
            sent = Sent(kind=message.event.kind, night=message.event.night, at=now, to=took, refused=refused)
            kept = replace(kept, sent=(*kept.sent, sent)[-message_log.SHOWN :])
        place = kept.waiting.index(message)
        kept = replace(kept, waiting=(*kept.waiting[:place], *left, *kept.waiting[place + 1 :]))
        message_log.write(home, kept)
    return not failed


def text_of(home: Home, event: Event, *, now: datetime) -> str:
    """Returns the message about an event, with the state of its night where the night's folder is here."""
    return messages.message(event, _state(home, event, now=now), now=now)


def _state(home: Home, event: Event, *, now: datetime) -> NightState:
    from daybreak.report import links, outcome  # which no command needs that tells of nothing

    night = event.night
    folder = home.nights / night
    try:
        if not night or event.kind == "rolled back":  # which names an older night, that once promoted
            return _between_nights(home)
        if folder.exists():
            view = outcome.view_of(folder)
            entry, predictions = view.entry, outcome.predictions_of(view, at=now)
            later = _since(event, folder)
            brought = entry.release if "promoted" in later else None
            is_over = bool(entry.release or "promote" in view.skips or ledger.is_over(home, entry.night))
            return NightState(
                name=formats.night_name(night, entry.night.day),
                links=links.in_messages(entry),
                serves=_serves(home, is_first=not entry.night.previous),
                predictions=predictions.text,
                lacks_predictions=predictions.is_late,
                unjudged=_is_unjudged(entry),
                has_month=entry.night.month is not None,
                until=None if is_over else entry.night.decide_until,
                released=brought.version if brought else 0,
                ended=bool(later),
                new_night=ledger.new_night(home, entry.night) if ledger.overtaken(home, entry.night) else "",
            )
    except (PipelineError, OSError) as error:
        log.warning("a message does not tell the state of night %s: %s", night, error)
    return NightState(name=formats.short_id(night))


def _between_nights(home: Home) -> NightState:
    """Returns what a message tells that is about no night."""
    writes = home.last_params(home.folder).predict.to
    kept = "that are written stay as they are until the next night writes its own" if writes else ""
    return NightState(name="", serves=_serves(home), predictions=kept)


def _serves(home: Home, *, is_first: bool = False) -> int | None:
    """Returns the version that serves, 0 for none; None where there is no ledger, which may be lost.

    `is_first` says that no night was closed before this one, so that none serves without a ledger.
    """
    tip = branch.ledger_tip(home)
    serving = ledger.champion_at(home, tip) if tip else None
    if serving:
        return serving.version
    return 0 if tip or is_first else None


def _since(event: Event, folder: Path) -> set[EventKind]:
    """Returns the kinds of events by which the night in a folder has ended since an event.

    One that is late and decided as it is closed has both events at the same time.
    """
    ends = (*ENDS, *ANSWERS) if event.kind == "question" else ENDS
    is_after = operator.ge if event.kind == "late" else operator.gt
    return {one.kind for one in events.read(folder) if one.kind in ends and is_after(one.at, event.at)}


def _is_unjudged(entry: Entry) -> bool:
    """Returns whether scores of the version that are not finite kept the gate from judging it."""
    verdict, evaluation = entry.verdict, entry.evaluation
    lost = evaluation.metrics.get("num_not_finite", 0) if evaluation else 0
    return bool(verdict and verdict.action == "reject" and verdict.effect is None and lost)


def name_of(url: str) -> str:
    """Returns a name of a notifier without the secret in the URL: the variable, or the scheme.

    >>> name_of("$SLACK_URL"), name_of("mailto://team:$MAIL_PASSWORD@example.com"), name_of("T0K3N")
    ('$SLACK_URL', 'mailto', 'a URL')
    """
    named = re.fullmatch(r"\$\w+|\$\{\w+\}", url) or re.match(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)", url)
    return named[0] if named else "a URL"


def _hand(message: str, command: str, urls: Sequence[str]) -> list[tuple[str, str]]:
    """Hands a message to all notifiers; returns names of notifiers, each with the fault, "" for none."""
    ran = [("notify.command", _run(command, message))] if command else []
    return [*ran, *zip(map(name_of, urls), _send(tuple(urls), message), strict=True)]


def _faults(message: str, command: str, urls: Sequence[str]) -> list[str]:
    """Hands a message to all notifiers, and returns why those of them failed that did; both are logged."""
    return [fault for _, fault in _hand(message, command, urls) if fault]


def _run(command: str, message: str) -> str:
    """Runs the command with the message, and returns why it failed; "" where it did not."""
    try:
        status = _status(command, message)
    except subprocess.TimeoutExpired:
        fault = f"took more than {LIMIT_S} s"
    except OSError as error:
        fault = f"did not start: {error.strerror}"
    else:
        if status == 0:
            return ""
        fault = f"ended with exit status {status}"  # without the command, whose address may be a secret
    log.error("the notifier %s; look at notify.command in params.yaml", fault)
    return fault


def _status(command: str, message: str) -> int:
    """Returns the exit status of a command, which is ended after `LIMIT_S` with all that it started.

    What it prints goes to standard error: standard output is for the stage's record alone.
    """
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.PIPE, text=True, stdout=STDERR, start_new_session=True
    )
    try:
        process.communicate(message, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.returncode


def _send(urls: tuple[str, ...], message: str) -> list[str]:
    """Sends the message to all URLs at once, and logs by number which failed, as a URL is a secret."""
    if not urls:
        return []
    with ThreadPoolExecutor(len(urls)) as pool:
        faults = list(pool.map(partial(_fault, message=message), urls))
    for number, fault in enumerate(faults, start=1):
        if fault:
            log.error(
                "the message was not sent to URL %d of %d: %s; look at notify.urls in params.yaml, and "
                "whether each variable that it names is set",
                number,
                len(urls),
                fault,
            )
    return faults


def _fault(url: str, *, message: str) -> str:
    """Sends the message to the URL, and returns why it did not arrive; "" where it did."""
    environment = {**os.environ, "APPRISE_URLS": os.path.expandvars(url)}
    try:
        ended = subprocess.run(
            APPRISE,
            env=environment,
            input=message,
            text=True,
            check=False,
            timeout=LIMIT_S,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer in {LIMIT_S} s"
    except OSError as error:
        return f"Apprise did not start: {error.strerror}"
    return f"Apprise ended with exit status {ended.returncode}" if ended.returncode else ""

"""Notifies people of what a night decided, by the command `notify.command` and by Apprise's `notify.urls`.

The messages are promotions, refusals, rollbacks, questions that wait for a person, failures, late nights,
nights over their budget, and alarms: each is one line, most with the command that shows more. `notify.on`
says which are sent. A decision of a night is told once, however often its stage is called: `told.txt` beside
the night's records keeps what was told. A notifier that fails is logged, and nothing else fails with it; one
that does not answer is ended after `LIMIT_S`.
"""

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path

from pipeline.contract import formats, params, records
from pipeline.contract.errors import ParamsError
from pipeline.contract.params import NotifyEvent
from pipeline.contract.records import Night, Release, Training, Verdict
from pipeline.storage import checkout

log = logging.getLogger(__name__)

LIMIT_S = 10  # the most that the command may take, and the most that all URLs together may take
STDERR = 2
TOLD = "told.txt"
# Apprise in a process of its own, which can be ended; it reads the URL from its environment, since other
# users of the machine see the arguments of a process.
APPRISE = [sys.executable, "-P", "-c", "from apprise.cli import main; main()", "--storage-mode", "memory",
           "--service-limit", str(LIMIT_S)]  # fmt: skip


def tell(message: str, event: NotifyEvent = "alarm") -> bool:
    """Hands the message to the home's notifiers, unless `notify.on` leaves its kind out.

    Returns False where one of them failed.
    """
    given = params.load(checkout.home()).notify
    if event not in given.on:
        return True
    ran = _run(given.command, message) if given.command else True
    return _send(given.urls, message) and ran


def _run(command: str, message: str) -> bool:
    try:
        # What it prints goes to standard error: standard output is for the stage's record alone.
        subprocess.run(
            command, shell=True, input=message, text=True, check=True, timeout=LIMIT_S, stdout=STDERR
        )
    except subprocess.CalledProcessError as error:  # without the command, whose address may be a secret
        log.error("the notifier ended with exit status %d; look at notify.command in params.yaml",
                  error.returncode)  # fmt: skip
        return False
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"took more than {LIMIT_S} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        log.error("the notifier failed: it %s; look at notify.command in params.yaml", why)
        return False
    return True


def _send(urls: tuple[str, ...], message: str) -> bool:
    """Sends the message to all URLs at once, and logs by number which failed, as a URL is a secret."""
    if not urls:
        return True
    with ThreadPoolExecutor(len(urls)) as pool:
        faults = list(pool.map(partial(_fault, message=message), urls))
    for number, fault in enumerate(faults, start=1):
        if fault:
            log.error("the message was not sent to URL %d of %d: %s; look at notify.urls in params.yaml, and "
                      "whether each variable that it names is set", number, len(urls), fault)  # fmt: skip
    return not any(faults)


def _fault(url: str, *, message: str) -> str:
    """Sends the message to the URL, and returns why it did not arrive; "" where it did."""
    environment = {**os.environ, "APPRISE_URLS": os.path.expandvars(url)}
    try:
        ended = subprocess.run(
            APPRISE, env=environment, input=message, text=True, check=False, timeout=LIMIT_S,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it did not answer in {LIMIT_S} s"
    except OSError as error:
        return f"Apprise did not start: {error.strerror}"
    return f"Apprise ended with exit status {ended.returncode}" if ended.returncode else ""


def tell_once(key: str, message: str, event: NotifyEvent, *, run: Path = records.RUN) -> bool:
    """Tells of a decision of the night whose records are in `run`, unless one of that key was told before.

    It is marked after it was told: a kill between the two tells it twice, rather than never. Returns False
    where a notifier failed; what failed is marked too, so that a call again does not wait for it again.
    """
    told = run / TOLD
    if told.exists() and key in told.read_text().splitlines():
        return True
    sent = _try(message, event)
    if run.is_dir():
        with told.open("a") as file:
            file.write(f"{key}\n")
    return sent


def promoted(night: Night, release: Release, reason: str) -> None:
    """Tells that tonight's version serves."""
    replaced = f" in place of version {release.replaced}" if release.replaced else ""
    tell_once(
        f"promoted {release.version}",
        f"Daybreak: version {release.version} serves{replaced}, promoted by night {night.id}: {reason}"
        f"{_see(night)}",
        "promoted",
    )


def refused(night: Night, verdict: Verdict, reason: str) -> None:
    """Tells that the night is over and the champion stays."""
    stays = f"version {verdict.champion} stays" if verdict.champion else "there is no champion yet"
    tell_once(
        f"refused {verdict.challenger}",
        f"Daybreak: {stays} after night {night.id} ({verdict.action}): {reason}{_see(night)}",
        "refused",
    )


def rolled_back(release: Release, reason: str) -> None:
    """Tells that an earlier version serves again."""
    _try(
        f"Daybreak: {reason}; version {release.version} serves, of night {release.night}; "
        f"see: python -m pipeline status",
        "rolled back",
    )


def asks(night: Night, verdict: Verdict, *, now: datetime) -> None:
    """Tells that a verdict waits for a person, until when, and how to answer."""
    assert verdict.approve_until
    left = formats.duration(max((verdict.approve_until - now).total_seconds(), 0))
    tell_once(
        f"question {verdict.challenger} {verdict.champion} {verdict.action}",
        f"Daybreak: version {verdict.challenger} waits for a person until "
        f"{verdict.approve_until:%Y-%m-%d %H:%M} UTC ({left} left): {verdict.action}: {verdict.reason}; "
        f"answer with: python -m pipeline approve --night {night.id} --reason TEXT [--reject]",
        "question",
    )


def failed(night: Night, reason: str) -> None:
    """Tells that a night failed, and how to go on with it."""
    again = f"python -m pipeline night --night {night.id}"
    _try(f"Daybreak: night {night.id} failed: {reason}; go on with: {again}", "failed")


def late(night: Night) -> None:
    """Tells that a night was closed after the time until which it was to be decided."""
    tell_once(
        "late",
        f"Daybreak: night {night.id} is late: it was to be decided until {night.decide_until:%Y-%m-%d %H:%M} "
        f"UTC{_see(night)}",
        "late",
    )


def over_budget(night: Night, training: Training) -> None:
    """Tells that the jobs of a night cost more than its budget."""
    tell_once(
        "over budget",
        f"Daybreak: night {night.id} is over its budget: its jobs cost ${training.cost_usd:.2f} of "
        f"${night.budget_usd:.2f}{_see(night)}",
        "over budget",
    )


def alarm(text: str) -> None:
    """Tells of something that people have to look at, though no night fails because of it."""
    _try(f"Daybreak: {text}", "alarm")


def _see(night: Night) -> str:
    return f"; see: python -m pipeline report --night {night.id}"


def _try(message: str, event: NotifyEvent) -> bool:
    try:
        return tell(formats.one_line(message), event)
    except ParamsError as error:  # the home's own params.yaml, which the night does not read
        log.error("the message was not sent: %s", error)
        return False

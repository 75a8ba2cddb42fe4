"""Notifies people of what a night decided: each message is handed to the command `notify.command`.

The messages are promotions, refusals, rollbacks, questions that wait for a person, and alarms, each with its
reason; failures and missed deadlines come from Airflow's callbacks and from `python -m pipeline night`. A
failure of the notifier is logged, and nothing else fails with it.
"""

import logging
import subprocess

from pipeline.contract import params
from pipeline.contract.errors import ParamsError
from pipeline.contract.records import Night, Release, Verdict
from pipeline.storage import checkout

log = logging.getLogger(__name__)

LIMIT_S = 60  # the most that the command may take
STDERR = 2


def tell(message: str) -> bool:
    """Hands the message to the home's notifier, if there is one; returns False where the notifier failed."""
    command = params.load(checkout.home()).notify.command
    if not command:
        return True
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


def promoted(night: Night, release: Release, reason: str) -> None:
    """Tells that tonight's version serves."""
    replaced = f" in place of version {release.replaced}" if release.replaced else ""
    _try(f"Daybreak: version {release.version} serves{replaced}, promoted by night {night.id}: {reason}")


def refused(night: Night, verdict: Verdict, reason: str) -> None:
    """Tells that the night is over and the champion stays."""
    stays = f"version {verdict.champion} stays" if verdict.champion else "there is no champion yet"
    _try(f"Daybreak: {stays} after night {night.id} ({verdict.action}): {reason}")


def rolled_back(release: Release, reason: str) -> None:
    """Tells that an earlier version serves again."""
    _try(f"Daybreak: {reason}; version {release.version} serves, of night {release.night}")


def asks(night: Night, verdict: Verdict) -> None:
    """Tells that a verdict waits for a person, until when, and how to answer."""
    assert verdict.approve_until
    _try(
        f"Daybreak: version {verdict.challenger} waits for a person until "
        f"{verdict.approve_until:%Y-%m-%d %H:%M} UTC: {verdict.action}: {verdict.reason}; answer with: "
        f"python -m pipeline approve --night {night.id} --reason TEXT [--reject]"
    )


def failed(night: Night, reason: str) -> None:
    """Tells that a night failed, and how to go on with it."""
    again = f"python -m pipeline night --night {night.id}"
    _try(f"Daybreak: night {night.id} failed: {reason}; go on with: {again}")


def alarm(text: str) -> None:
    """Tells of something that people have to look at, though no night fails because of it."""
    _try(f"Daybreak: {text}")


def _try(message: str) -> None:
    try:
        tell(message)
    except ParamsError as error:  # the home's own params.yaml, which the night does not read
        log.error("the message was not sent: %s", error)

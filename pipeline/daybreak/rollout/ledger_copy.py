"""Keeps a copy of the ledger off this host, at the git remote `night.ledger_remote`, and compares the two.

The copy is pushed after each commit of the ledger, never by force: a remote that has what the ledger here
has not is an alarm, since the ledger here was cut back or rewritten, or another home pushes to the same
remote. No night waits for a remote: each call has a limit of time, and asks for no password.
"""

import logging
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from daybreak.contract.errors import ParamsError, ReleaseError, without_password
from daybreak.storage import branch, checkout
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

ANSWER_S = 10  # limit for a remote to list its branch
PUSH_S = 60  # limit for a push or a fetch
CLONE_S = 3600  # limit for a clone, for a repair
UNPROMPTED = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "SSH_ASKPASS_REQUIRE": "never",
}


@dataclass(frozen=True, kw_only=True)
class Copy:
    """The ledger's branch at a remote, held against the one here."""

    remote: str
    commit: str  # "": the remote has no such branch, or did not answer
    state: Literal["same", "behind", "ahead", "diverged", "missing", "no answer"]  # of the copy

    @property
    def has_more(self) -> bool:
        """Returns whether it has what the ledger here does not have."""
        return self.state in ("ahead", "diverged")

    def __str__(self) -> str:
        """Returns what the remote has, as a clause."""
        name = without_password(self.remote)
        if self.state == "no answer":
            return f"the remote {name} does not answer within {ANSWER_S} s"
        if not self.commit:
            return f"the remote {name} has no branch nights"
        return f"the remote {name} has the branch nights at {self.commit[:9]}"


def configured(home: Home) -> str:
    """Returns the remote that the home's params.yaml names; "" for none."""
    try:
        return home.params.night.ledger_remote
    except ParamsError as error:  # the home's own params.yaml, which the night does not read
        log.error("the ledger is not pushed: %s", error)
        return ""


def remotes(home: Home) -> list[str]:
    """Returns the remotes that may have a copy: the one in params.yaml first, then those of the checkout."""
    named = checkout.git("remote", folder=home.folder).splitlines()
    return list(dict.fromkeys(filter(None, [configured(home), *named])))


def look(home: Home, remote: str, *, tip: str) -> Copy:
    """Asks a remote for the ledger's branch, fetches missing commits, and compares it with `tip` here."""
    try:
        listed = _git(home, "ls-remote", remote, branch.BRANCH, limit_s=ANSWER_S).split()
        commit = listed[0] if listed else ""
        if commit and not branch.is_part(home, commit, commit):  # git does not have it yet
            reference = f"{branch.FETCHED}{remotes(home).index(remote) if remote in remotes(home) else 0}"
            words = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", remote)
            _git(home, *words, f"+{branch.BRANCH}:{reference}", limit_s=PUSH_S)
    except (ReleaseError, subprocess.TimeoutExpired) as error:
        log.debug("%s", error)
        return Copy(remote=remote, commit="", state="no answer")
    return Copy(remote=remote, commit=commit, state=_state(home, commit, tip))


def push(home: Home) -> Copy | None:
    """Pushes the ledger to the remote of params.yaml; returns what that has then, None where none is named.

    Warns where the remote does not answer, or has what the ledger here has not.
    """
    remote, tip = configured(home), branch.ledger_tip(home)
    if not remote or not tip:
        return None
    try:
        _git(home, "push", "--quiet", remote, f"{tip}:{branch.BRANCH}", limit_s=PUSH_S)
        copy = Copy(remote=remote, commit=tip, state="same")
    except (ReleaseError, subprocess.TimeoutExpired) as error:
        copy, tip = look(home, remote, tip=branch.ledger_tip(home)), branch.ledger_tip(home)
        if copy.has_more:
            log.error("%s", refusal(copy, tip))
        elif copy.state != "same":  # another process may have pushed
            log.warning(
                "the ledger is not pushed to %s, the next night tries again: %s",
                without_password(remote),
                without_password(" ".join(str(error).split()))[:300],
            )
    return copy


def mirror(home: Home, remote: str, folder: Path) -> Path:
    """Clones all that a remote has to a bare repository in a new folder, and returns it."""
    _git(home, "clone", "--quiet", "--mirror", "--no-local", _url(home, remote), str(folder), limit_s=CLONE_S)
    return folder


def _url(home: Home, remote: str) -> str:
    """Returns the address of a remote that the checkout may have under a name."""
    try:
        return checkout.git("remote", "get-url", remote, folder=home.folder)
    except ReleaseError:
        return remote


def more_than_here(copy: Copy, tip: str) -> str:
    """Returns the sentence about a copy that has what the ledger here does not have."""
    if copy.state == "ahead":
        return f"{copy}, which follows the ledger's {tip[:9]}" if tip else str(copy)
    return f"{copy}, which is not part of the ledger, nor the ledger's {tip[:9]} of it"


def refusal(copy: Copy, tip: str) -> str:
    """Returns why nothing is pushed over a copy that has what the ledger here does not have."""
    return (
        f"{more_than_here(copy, tip)}; nothing is pushed: look at daybreak restore, or name "
        f"another remote in night.ledger_remote where another home pushes to this one"
    )


def _state(home: Home, commit: str, tip: str) -> Literal["same", "behind", "ahead", "diverged", "missing"]:
    if not commit:
        return "missing"
    if commit == tip:
        return "same"
    if not tip or branch.is_part(home, tip, commit):
        return "ahead"
    return "behind" if branch.is_part(home, commit, tip) else "diverged"


def _ssh(home: Home) -> str:
    """Returns the command that git would run for ssh, by its own order of where it may be named."""
    return (
        os.environ.get("GIT_SSH_COMMAND")
        or checkout.git("config", "--default", "", "--get", "core.sshCommand", folder=home.folder)
        or shlex.quote(os.environ.get("GIT_SSH") or "ssh")  # a program, without arguments
    )


def _git(home: Home, *words: str, limit_s: float) -> str:
    """Returns the output of a git command that talks to a remote; TimeoutExpired after `limit_s`.

    It runs in a session of its own: without a terminal to ask for a password in, and ended with all that it
    started.
    """
    environment = {**os.environ, **UNPROMPTED, "GIT_SSH_COMMAND": f"{_ssh(home)} -o BatchMode=yes"}
    process = subprocess.Popen(
        ["git", "-c", "maintenance.auto=false", *checkout.OPTIONS, *words],
        cwd=home.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, message = process.communicate(timeout=limit_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise ReleaseError(f"git {words[0]} failed: {' '.join(message.split())}")
    return output

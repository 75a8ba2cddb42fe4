"""Detects a lost ledger: something else knows of a champion that the ledger does not have.

The ledger is a git branch, and a branch can be deleted or reset. Without its ledger a night would look like
the first one, and promote its model over the one that serves without a comparison. So where MLflow's alias or
tags, the journal of releases or a remote's branch name a champion and the ledger has none, or the commit that
promoted MLflow's champion is not part of the ledger, `open`, `gate`, `watch` and `rollback` refuse to run and
say how to bring the ledger back.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.contract.errors import ReleaseError
from pipeline.contract.params import ModelSections
from pipeline.registry import aliases
from pipeline.rollout import saga
from pipeline.storage import checkout, ledger
from pipeline.storage.mlflow_client import session

if TYPE_CHECKING:
    from mlflow import MlflowClient

REMOTE_S = 10  # the most that a remote may take to answer


def expect_ledger(params: ModelSections, *, always_ask_mlflow: bool = True) -> None:
    """Raises ReleaseError where MLflow, a journal or a remote knows of a champion that the ledger does not.

    With `always_ask_mlflow` off, MLflow is asked only where the ledger has no champion.
    """
    tip = ledger.ledger_tip()
    serving = ledger.champion_at(tip)
    if serving is not None and not always_ask_mlflow:
        return
    with session() as client:
        evidence = [*_mlflow_says(client, params.register_.name, tip, has_champion=serving is not None)]
    remotes: dict[str, str] = {}
    if serving is None:
        evidence += _journal_says(tip)
        remotes = {} if tip else _remotes()
        evidence += [f"the remote {name} has the branch nights at {at[:9]}" for name, at in remotes.items()]
    if not evidence:
        return
    if ledger.ledger_tip() != tip:  # a promotion was under way
        expect_ledger(params, always_ask_mlflow=always_ask_mlflow)
        return
    has = f"ends at {tip[:9]} without it" if tip else "is gone"
    raise ReleaseError(
        f"{'; '.join(evidence)}; but the ledger, the git branch nights, {has}; {_way_back([*remotes])}"
    )


def _mlflow_says(client: "MlflowClient", name: str, tip: str, *, has_champion: bool) -> Iterator[str]:
    number = aliases.alias(client, name)
    if not number:
        return
    commit = str(aliases.existing(client, name, number).tags.get("ledger", ""))
    if commit and tip and _is_part(commit, tip):
        return
    if commit or not has_champion:
        by = f", promoted by its commit {commit[:9]}" if commit else ""
        yield f"MLflow's alias champion names version {number} of {name}{by}"


def _journal_says(tip: str) -> Iterator[str]:
    journal = saga.journal()
    before = str((journal.read() or {}).get("tip", ""))
    if before and not _is_part(before, tip):
        yield f"{journal.path} is of a release that follows commit {before[:9]}"


def _remotes() -> dict[str, str]:
    """Returns the newest commit of the branch at each remote that has it; skips remotes without an answer."""
    branches = {}
    # No night may wait for somebody to type a password.
    unprompted = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
    for remote in checkout.git("remote", folder=checkout.home()).splitlines():
        with contextlib.suppress(subprocess.TimeoutExpired):
            listed = subprocess.run(
                ["git", "ls-remote", remote, ledger.BRANCH], cwd=checkout.home(), stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=REMOTE_S, check=False, env=unprompted | os.environ,
            ).stdout.split()  # fmt: skip
            branches.update({remote: listed[0]} if listed else {})
    return branches


def _is_part(commit: str, tip: str) -> bool:
    command = ["git", "merge-base", "--is-ancestor", commit, tip or commit]
    done = subprocess.run(command, cwd=checkout.home(), capture_output=True, check=False)
    return bool(tip) and done.returncode == 0


def _way_back(remotes: list[str]) -> str:
    """Returns how to bring the ledger back: from the newest commit that git still has, else from a remote."""
    newest = ledger.newest_unreachable()
    if newest:
        return f"bring it back with: git update-ref {ledger.BRANCH} {newest}"
    if remotes:
        return f"bring it back with: git fetch {remotes[0]} nights:nights"
    return (
        "bring the branch back from a backup or another clone, or, where this is meant to be a new start, "
        "set another register.name in params.yaml"
    )

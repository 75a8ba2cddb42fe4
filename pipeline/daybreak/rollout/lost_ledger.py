"""Detects a lost ledger: something else knows of a champion, or an erasure, that the ledger does not have.

The ledger is a git branch, and a branch can be deleted or reset. Without its ledger a night would look like
the first night, and promote its model over the champion without a comparison; and erased units would come
back. So where MLflow's alias or tags, the journal of releases, the file of the erasures' key or a remote's
branch know more than the ledger, `open`, `gate`, `watch`, `rollback` and `erase` refuse to run, and name the
command that brings the ledger back (daybreak/extensions/care/restore.py).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from daybreak.contract.errors import LostLedger, ReleaseError
from daybreak.contract.sections import RegisterParams
from daybreak.registry import aliases
from daybreak.rollout import ledger_copy
from daybreak.storage import branch, erasures, ledger, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session

if TYPE_CHECKING:
    from mlflow import MlflowClient


def expect_ledger(home: Home, register: RegisterParams, *, opens: bool = False) -> None:
    """Raises LostLedger where MLflow, a journal or a remote knows of more than the ledger has.

    A night that `opens` asks MLflow in full only where the ledger has no champion, and else takes a quick
    look at the alias, as `gate` asks the rest later; in the first night it creates MLflow's database. A
    ledger that has to be signed and is not is refused too. Before the first promotion ReleaseError is raised
    where the aliases are a team's own.
    """
    branch.expect_signed(home)
    tip = branch.ledger_tip(home)
    serving = ledger.champion_at(home, tip)
    evidence = [*_remotes_say(home, tip)]
    if serving is None:
        evidence += _journal_says(home, tip)
    evidence += filter(None, [erasures.lost(home)])
    if opens and tip:
        mlflow_client.expect_file(home)
    if serving is None or not opens:
        if not tip and opens and not evidence:
            mlflow_client.create(home)
        if tip or not mlflow_client.is_missing(home):
            with session(home) as client:
                if serving is None and not evidence:
                    _expect_own_aliases(client, register.name)
                evidence += _mlflow_says(home, client, register.name, tip, has_champion=serving is not None)
    elif (quick := mlflow_client.champion_tag(home, register.name)) and quick[1]:
        evidence += _alias_says(home, register.name, *quick, tip=tip)
    if not evidence:
        return
    if branch.ledger_tip(home) != tip:  # a promotion was under way
        expect_ledger(home, register, opens=opens)
        return
    has = f"ends at {tip[:9]} without it" if tip else "is gone"
    raise LostLedger(
        f"{'; '.join(evidence)}; but the ledger, the git branch nights, {has}; daybreak "
        f"restore shows what can be brought back; for a new start set another register.name in params.yaml"
    )


def _expect_own_aliases(client: "MlflowClient", name: str) -> None:
    """Raises ReleaseError where a team has the aliases of nights on a version that no night made."""
    for which in (aliases.CHAMPION, aliases.CHALLENGER):
        number = aliases.alias(client, name, which)
        if number and "model_digest" not in aliases.existing(client, name, number).tags:
            raise ReleaseError(
                f"MLflow's alias {which} names version {number} of {name}, which no night made; remove the "
                f"alias there, since nights move it, or set another register.name in params.yaml"
            )


def _mlflow_says(
    home: Home, client: "MlflowClient", name: str, tip: str, *, has_champion: bool
) -> Iterator[str]:
    number = aliases.alias(client, name)
    commit = str(aliases.existing(client, name, number).tags.get("ledger", "")) if number else ""
    if (
        number
        and (commit or not has_champion)
        and (said := [*_alias_says(home, name, number, commit, tip=tip)])
    ):
        yield from said
        return
    newest = aliases.newest_tagged(client, name)
    if newest and not branch.is_part(home, newest[1], tip):
        yield f"MLflow's version {newest[0]} of {name} is of the ledger's commit {newest[1][:9]}"


def _alias_says(home: Home, name: str, number: int, commit: str, *, tip: str) -> Iterator[str]:
    if not branch.is_part(home, commit, tip):
        by = f", promoted by its commit {commit[:9]}" if commit else ""
        yield f"MLflow's alias champion names version {number} of {name}{by}"


def _journal_says(home: Home, tip: str) -> Iterator[str]:
    journal = home.release_journal
    before = str((journal.read() or {}).get("tip", ""))
    if before and not branch.is_part(home, before, tip):
        yield f"{journal.path} is of a release that follows commit {before[:9]}"


def _remotes_say(home: Home, tip: str) -> Iterator[str]:
    """Yields what a remote has and the ledger has not; without a ledger all remotes are asked."""
    asked = [ledger_copy.configured(home)] if tip else ledger_copy.remotes(home)
    for remote in filter(None, asked):
        copy = ledger_copy.look(home, remote, tip=tip)
        if copy.has_more:
            yield ledger_copy.more_than_here(copy, tip)

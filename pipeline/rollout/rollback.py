"""Stage rollback: lets an earlier version serve again, by the saga of a promotion; it needs no verdict."""

import logging
from collections.abc import Sequence

from pipeline.contract.errors import NothingToDo, ReleaseError
from pipeline.contract.params import ModelSections
from pipeline.contract.records import (
    Release,
    Verdict,
)
from pipeline.registry import aliases
from pipeline.report import notifier
from pipeline.rollout import saga
from pipeline.rollout.lost_ledger import expect_ledger
from pipeline.rollout.targets import release_targets
from pipeline.storage import ledger
from pipeline.storage.ledger import Entry
from pipeline.storage.mlflow_client import session

log = logging.getLogger(__name__)


def rollback(params: ModelSections, *, to: int = 0, steps: int = 1, reason: str = "") -> Release:
    """Lets an earlier version serve again: alias and data revision go back together, and are read back.

    Finishes an interrupted rollback instead, where there is one. Raises NothingToDo where the version serves
    already, ReleaseError where there is none to go back to, and NotYet while a release target gets ready.

    Args:
        params: name of the model, and what to check the ledger by.
        to: the version that shall serve; found by `steps` if 0.
        steps: how many promotions to take back.
        reason: kept in the ledger and in the registry.
    """
    name = params.register_.name
    with session() as client:
        targets = release_targets(client, name)
        left = saga.recover(targets)
        if left and left.new and left.kind == "rollback":
            return left.release
        tip, entries = ledger.ledger_tip(), ledger.history()
        serving = entries[0].serving if entries else None
        if serving is None:
            expect_ledger(params)
            raise ReleaseError("no version was ever promoted; there is nothing to roll back")
        if entries[0].rollback and not aliases.is_settled(client, name, serving):
            log.warning("finishing the rollback to version %d that was interrupted", serving.version)
            saga.settle(targets)
            assert entries[0].release is not None
            return entries[0].release
        number = to or steps_back(entries, steps)
        if number == serving.version:
            raise NothingToDo(f"version {number} serves already")
        made = promotion_of(entries, number)
        verdict = Verdict(
            action="reject",
            champion=number,
            challenger=serving.version,
            effect=None,
            low=None,
            high=None,
            num_samples=0,
            reason=f"rolled back from version {serving.version} to {number}: {reason or 'no reason given'}",
        )
        assert made.release is not None
        release = Release(
            version=number,
            replaced=serving.version,
            model_digest=made.release.model_digest,
            files_digest=made.release.files_digest,
            night=made.night.id,
            lineage=made.release.lineage,
        )
        move = saga.Move(
            kind="rollback",
            release=release,
            tip=tip,
            commit=lambda: ledger.commit_rollback(
                made.commit, release, verdict, expected_tip=tip, message=f"{verdict.reason}"[:200]
            ),
        )
        saga.run(move, targets)
        notifier.rolled_back(release, verdict.reason)
        return release


def steps_back(entries: Sequence[Entry], steps: int) -> int:
    """Returns the version that served `steps` promotions ago; `entries` are the ledger, newest first.

    A rollback takes promotions back, so the next rollback goes further back, not forward again.
    Raises ReleaseError where there were fewer promotions.
    """
    served: list[int] = []
    for entry in reversed(entries):
        if entry.release is None:
            continue
        number = entry.release.version
        served = served[: served.index(number)] if number in served else served
        served.append(number)
    if not 1 <= steps < len(served):
        raise ReleaseError(
            f"cannot take back {steps} promotion{'s' * (steps != 1)}: versions that serve or served are "
            f"{', '.join(map(str, served)) or 'none'}; choose fewer --steps, or --to VERSION"
        )
    return served[-1 - steps]


def promotion_of(entries: Sequence[Entry], number: int) -> Entry:
    """Returns the night that promoted the version; raises ReleaseError where none did."""
    promotions = {e.release.version: e for e in entries if e.release and not e.rollback}
    if number not in promotions:
        served = ", ".join(map(str, sorted(promotions))) or "none"
        raise ReleaseError(f"version {number} was never promoted; choose one of: {served}")
    return promotions[number]

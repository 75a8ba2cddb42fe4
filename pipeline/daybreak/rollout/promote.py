"""Stage promote: lets tonight's version serve, by one saga (daybreak/rollout/saga.py).

The ledger decides which version serves; it is moved by compare-and-swap, then MLflow's alias, the tags and
whatever serves follow. A night that lost the race changes nothing, and an interrupted promotion is finished
by the next call, or by the next `watch`.
"""

from daybreak.contract import clock
from daybreak.contract.errors import NothingToDo, ReleaseError
from daybreak.contract.record_types import Approval, Champion, Events, Night, Refit, Release, Verdict, Version
from daybreak.contract.sections import TrainParams, WorkloadPlug
from daybreak.registry import aliases
from daybreak.registry import approval as approvals
from daybreak.registry.lineage import lineage_of
from daybreak.rollout import night_events, saga
from daybreak.rollout.targets import release_targets
from daybreak.storage import events, ledger
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session


def promote(
    night: Night,
    version: Version,
    verdict: Verdict,
    champion: Champion | None,
    *,
    workload: WorkloadPlug,
    train: TrainParams,
    home: Home,
    approval: Approval | None = None,
    refit: Refit | None = None,
) -> Release:
    """Promotes tonight's version, or the refit if there is one, and returns the release.

    Raises NothingToDo unless the verdict promotes the version, or a person approved it where one was asked;
    NotYet while a person may still answer, or a release target gets ready; and ReleaseError, with nothing
    changed, if the verdict is on other versions, another night moved the ledger first, or a target does not
    get ready in time.
    """
    approvals.check_promotion(night, verdict, approval, now=clock.utc())
    serving = champion.version if champion else 0
    if (verdict.challenger, verdict.champion) != (version.number, serving):
        raise ReleaseError(
            f"the verdict is on version {verdict.challenger} against {verdict.champion}, but tonight's is "
            f"{version.number} against {serving}; run gate again"
        )
    judged, version = version, (refit and refit.in_place_of(version.number)) or version
    reason = approvals.reason(verdict, approval) + _of_refit(judged, refit)
    release = Release(
        version=version.number,
        replaced=serving,
        model_digest=version.model_digest,
        files_digest=version.files_digest,
        files=version.files,
        night=night.id,
        lineage=lineage_of(version, night=night, workload=workload, train=train),
    )

    def commit_promotion() -> str:
        at = clock.utc().replace(microsecond=0)
        event = night_events.promoted(release, verdict, approval, reason=reason, at=at)
        promoted = Events(events=events.with_new(night_events.note(home.tonight), [event]))
        message = f"{night.day}: promote: {reason}"[:200]
        return ledger.commit_night(home, night, message=message, release=release, events=promoted)

    move = saga.Move(kind="promote", release=release, tip=night.previous, commit=commit_promotion)
    with session(home) as client:
        commit = saga.run(home, move, release_targets(home, client, version.name))
        aliases.tag(client, version.name, version.number, ledger=commit)  # by which a lost ledger is noticed
        now = aliases.alias(client, version.name)
    night_events.take_over(home, commit)
    if now != version.number:
        raise NothingToDo(
            f"version {version.number} was promoted by {commit[:9]}, but version {now} serves since"
        )
    return release


def _of_refit(judged: Version, refit: Refit | None) -> str:
    """Returns what became of a refit, to end a sentence; "" where none was asked for."""
    if refit is None or refit.judged != judged.number:
        return ""
    if made := refit.in_place_of(judged.number):
        return f"; version {made.number} is version {judged.number} after a refit on the held-out days"
    return f"; it serves as it was judged: {refit.why_not}"

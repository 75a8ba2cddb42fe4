"""Stage close: ends a night, and writes it to the ledger with a verdict in any case.

What was decided is shown to people next, by the publisher, which the runner calls; then it calls `tidy`,
which may take minutes.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from daybreak import warm_parent
from daybreak.contract import clock, records
from daybreak.contract.errors import LostLedger, NothingToDo, NotYet, PipelineError, sentence
from daybreak.contract.formats import counted, size
from daybreak.contract.record_parts import Event
from daybreak.contract.record_types import (
    Approval,
    Bill,
    Champion,
    Night,
    Release,
    Stop,
    Training,
    Verdict,
    Version,
)
from daybreak.contract.sections import BackendPlug, LiveSections, NightParams, RegisterParams
from daybreak.evaluation.live_judge import live_judge
from daybreak.jobs import reaper
from daybreak.jobs.cost_tracker import JOBS, spent_usd
from daybreak.prediction import scorecard
from daybreak.registry import approval
from daybreak.rollout import lost_ledger, night_events
from daybreak.storage import branch, dvc_cache, ledger, snapshots
from daybreak.storage.home import Home
from daybreak.storage.night_folders import entry_of

log = logging.getLogger(__name__)

PREDICT, CLOSE = "predict", "close"  # the stages that are called whatever became of the others


def close(home: Home, night: Night, params: LiveSections, backend: BackendPlug) -> None:
    """Ends the night's jobs, and commits it to the ledger with a verdict in any case."""
    _expect_kept_ledger(home, params.register_)
    reaper.end_night(home, night, backend)
    if params.gate.scores != "replay":
        _end_experiment(home, night, params)
    overtaken = ledger.overtaken(home, night)
    if not overtaken:
        _mark_lost_promotion(home, night)
    _write_bill(home, night)
    failure = _first_failure(home)
    verdict = _final_verdict(home, night, failure, overtaken)
    _note_events(home, night)
    commit = _commit(home, night, verdict)
    log.info("night %s is commit %s of the ledger", night.id, commit[:9])
    _say_how_to_go_on(home, night, failure, overtaken)


def tidy(home: Home, nights: NightParams) -> str:
    """Sends the night's data to DVC's remote, frees disk, and reads a share of the cache again.

    Returns of which damage there people have to hear; "" where there is none.
    """
    try:
        snapshots.push(home)
        _prune(home)
        return _reread(home, nights)
    finally:
        warm_parent.end(home.tonight)


@dataclass(frozen=True)
class _Failure:
    """A stage that failed, and why."""

    stage: str
    why: str

    def __str__(self) -> str:
        return f"{self.stage} failed: {self.why}"


def _write_bill(home: Home, night: Night) -> None:
    """Records the dollars of all jobs of a night where a job beside its training cost some."""
    training = records.find(Training, home.records)
    usd = spent_usd(JOBS, night=night.id)
    if usd > (training.cost_usd if training else 0.0):
        records.write(Bill(usd=usd), home.records)


def _first_failure(home: Home) -> _Failure | None:
    """Returns the stage of the night that failed first; None where none did.

    `predict` counts last: it may be called before others, and fails by what they left undone.
    """
    marks = sorted(_marks(home), key=lambda path: (path.stem == PREDICT, path.stat().st_mtime))
    return _Failure(marks[0].stem, marks[0].read_text().strip()) if marks else None


def _marks(home: Home) -> list[Path]:
    """Returns the marks of failed stages, without one that a call of `close` left, which this one repeats."""
    return [path for path in home.records.glob("*.error") if path.stem != CLOSE]


def _final_verdict(home: Home, night: Night, failure: _Failure | None, overtaken: str) -> Verdict:
    """Writes and returns the verdict of a night that ends: the gate's, or why there is none that counts."""
    verdict = records.find(Verdict, home.records)
    if verdict is None:
        verdict = _no_evidence(home, failure, stop=records.find(Stop, home.records))
        records.write(verdict, home.records)
    if overtaken and not ledger.commit_of(home, night):
        verdict = _void(home, verdict, f"night {night.id} {overtaken}")
    return verdict


def _note_events(home: Home, night: Night) -> None:
    """Records the events of the night, or takes them over from the ledger."""
    if ledger.is_over(home, night):  # by `promote`, or by a call that was killed
        night_events.take_over(home, ledger.commit_of(home, night))
    else:
        night_events.note(home.tonight, over=True, more=_calibration_lost(home))


def _calibration_lost(home: Home) -> Iterator[Event]:
    """Yields that plans' intervals hold too rarely from tonight on, where they held often enough before."""
    entry = entry_of(home.tonight)
    if not (entry.plan and entry.training):
        return
    before = ledger.before(home, entry.night, limit=scorecard.NIGHTS)
    card, card_before = scorecard.card_of([*before, entry]), scorecard.card_of(before)
    if card and card.warning and not (card_before and card_before.warning):
        at = clock.utc().replace(microsecond=0)
        yield Event(kind="calibration lost", at=at, night=entry.night.id, reason=card.warning)


def _commit(home: Home, night: Night, verdict: Verdict) -> str:
    """Commits the night to the ledger with the reason of its end, and returns the commit."""
    ending, stopped = (
        approval.ending(verdict, records.find(Approval, home.records)),
        records.find(Stop, home.records),
    )
    if stopped and records.find(Release, home.records) is None:
        ending = f"{verdict.action}: {approval.stopped(stopped)}"
    return ledger.commit_night(home, night, message=f"{night.day}: {ending}"[:200])


def _say_how_to_go_on(home: Home, night: Night, failure: _Failure | None, overtaken: str) -> None:
    """Says how to have another night of the day, where this one was overtaken or failed."""
    if overtaken:
        again = ledger.new_night(home, night)
        log.warning("night %s %s; for another night of its day: %s", night.id, overtaken, again)
    elif failure:
        again = f"go on with: daybreak {night.command} --day {night.day} --night {night.id}"
        if failure.stage == PREDICT:
            again = f"write the predictions with: daybreak predict --night {night.id}"
        if ledger.failed_to_open(home.tonight):
            again = "once that is right, ask for the night again"
        serving = ledger.champion_at(home, branch.ledger_tip(home))
        serves = f"version {serving.version} serves" if serving else "no version serves"
        log.error("%s\n%s; %s", failure, serves, again)


def _void(home: Home, verdict: Verdict, why: str) -> Verdict:
    """Writes and returns the verdict of a night that was overtaken, by which nothing is promoted."""
    would = "it would have been promoted: " if verdict.action == "promote" else ""
    verdict = replace(
        verdict,
        action="reject" if verdict.challenger else "no data",
        approve_until=None,
        reason=f"{why}; {would}{verdict.reason}",
    )
    records.write(verdict, home.records)
    return verdict


def _mark_lost_promotion(home: Home, night: Night) -> None:
    """Marks `promote` as failed where the version was to serve and does not, and nothing says why.

    A stage that fails on a full disk cannot say so, and the night would end as if its champion was to stay.
    """
    verdict = records.find(Verdict, home.records)
    if verdict is None or _marks(home) or records.find(Stop, home.records) or ledger.is_over(home, night):
        return
    with suppress(NothingToDo, NotYet):
        approval.check_promotion(night, verdict, records.find(Approval, home.records), now=clock.utc())
        why = f"it was ended before version {verdict.challenger} served"
        records.replace_text(home.records / "promote.error", f"{why}\n")


def _end_experiment(home: Home, night: Night, params: LiveSections) -> None:
    """Ends the experiment of the night, and undeploys its challenger unless it was promoted.

    The night is closed also where the log or the endpoint does not answer.
    """
    users = live_judge()
    if users is None:
        return
    released, version = records.find(Release, home.records), records.find(Version, home.records)
    if released and version and released.version == version.number:
        version = None
    todo: list[Callable[[], object]] = [partial(users.end, home, night.id, params)]
    todo += [partial(users.take_down, home, version.number, params)] if version else []
    for call in todo:  # each, whether or not the one before failed
        try:
            call()
        except PipelineError as error:
            log.warning("the experiment is left to the next watch: %s", error)


def _no_evidence(home: Home, failure: _Failure | None, *, stop: Stop | None) -> Verdict:
    """Returns the verdict of a night that did not reach the gate: the champion stays."""
    skips = (
        [approval.stopped(stop)]
        if stop
        else [
            path.read_text().strip()
            for path in sorted(home.records.glob("*.skipped"))
            if path.stem != PREDICT  # which says nothing about what was to be judged
        ]
    )
    if skips and failure and failure.stage == PREDICT:
        failure = None
    champion = records.find(Champion, home.records)
    return Verdict(
        action="no data",
        champion=champion.version if champion else 0,
        challenger=0,
        reason=str(failure) if failure else skips[0] if skips else "the night was ended before its gate",
        failed=failure.stage if failure else "",
    )


def _expect_kept_ledger(home: Home, register: RegisterParams) -> None:
    """Raises LostLedger where a night that could not be opened would begin a lost ledger anew."""
    if not ledger.failed_to_open(home.tonight):
        return
    try:
        lost_ledger.expect_ledger(home, register, opens=True)
    except LostLedger:
        raise
    except PipelineError as error:  # as of MLflow, which may be why it could not be opened
        log.warning("whether the ledger is whole is not known: %s", error)


def _prune(home: Home) -> None:
    """Frees disk by the home's own params, since what one night overrides holds for that night alone.

    A night that ended well does not fail because of it.
    """
    from daybreak.rollout.prune import prune

    try:
        params = home.params
        for freed in prune(home, params.night, params.register_, params.serving):
            if freed.num:
                log.info("freed %s: %d %s", size(freed.num_bytes), freed.num, freed.what)
            for left in freed.left:
                log.warning("%s", left)
    except NothingToDo as reason:
        log.info("%s", reason)
    except Exception as error:  # noqa: BLE001 - whatever it is, the night is in the ledger
        log.warning("not all could be pruned: %s", sentence(error))


def _reread(home: Home, nights: NightParams) -> str:
    """Reads a share of DVC's cache, another one each night, and returns what is damaged there.

    `open` reads what is passed on; what only a rollback needs is read by nothing else. No night fails.
    """
    of = nights.reread_nights
    try:
        num_nights = sum(not commit.rollback for commit in ledger.commits(home))  # a rollback reads no share
        objects = dvc_cache.share(dvc_cache.objects(home), number=num_nights, of=of)
        faults = [f"object {digest} of DVC's cache" for digest in dvc_cache.damaged(home, objects)]
    except Exception as error:  # noqa: BLE001 - whatever it is, the night is in the ledger
        log.warning("DVC's cache could not be read again: %s", sentence(error))
        return ""
    damaged = f"{len(faults):,}" if faults else "none"
    log.info("read again: %s of DVC's cache, %s damaged", counted(len(objects), "object"), damaged)
    if not faults:
        return ""
    text = f"{len(faults)} files have rotted: {'; '.join(faults[:3])}; run daybreak repair"
    log.error("%s", text)
    return text

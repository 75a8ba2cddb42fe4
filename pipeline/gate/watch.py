"""Stage watch: looks at the champion each hour, and rolls back where the version it replaced is better."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from pipeline.contract import records
from pipeline.contract.errors import ReleaseError
from pipeline.contract.params import GateParams, WatchSections
from pipeline.contract.records import Champion, Release, Version, Watch
from pipeline.evaluation.scores import SCORES, Columns, read_scores
from pipeline.experiment import holdback, live_test
from pipeline.gate.judge import rules_of
from pipeline.registry import aliases
from pipeline.rollout import saga
from pipeline.rollout.lost_ledger import expect_ledger
from pipeline.rollout.rollback import rollback
from pipeline.rollout.targets import Target, release_targets
from pipeline.statistics.paired import interval, judge
from pipeline.statistics.result import Effect, Status
from pipeline.storage import checkout, ledger
from pipeline.storage.mlflow_client import session

log = logging.getLogger(__name__)


def watch(params: WatchSections) -> Watch:
    """Checks that the registry agrees with the ledger, and the champion against its predecessor.

    What was interrupted is finished. An alias moved by hand is moved back, adopted or reported, by
    `watch.alias_edits`. The champion is rolled back only where the version it replaced has proven better, on
    live traffic or on the scores of the night that promoted it. An experiment that no night wants any more,
    or that a guardrail stops, is ended. Raises ReleaseError where the ledger was lost.
    """
    now = datetime.now(UTC)
    expect_ledger(params)
    edit = _check_targets(params) + live_test.clean(params, now=now)
    serving = ledger.champion_at(ledger.ledger_tip())
    if serving is None:
        return _watched("no data", None, f"{edit}no version was ever promoted")
    held = holdback.judge(serving, params, rules=rules_of(params.gate, refresh=True), now=now)
    if held and held.result.status is Status.WORSE:
        why, effect = held.result.sentence, held.result.effect
        rollback(params, to=serving.replaced, reason=why)
        holdback.keep(serving, params)
        reason = f"{edit}rolled back: {why}"
        return _watched("rolled back", serving, reason, effect=effect, num_samples=held.num_users)
    holdback.keep(serving, params)
    edit += f"{held.result.sentence}; " if held else ""
    pair = _newest_scores(serving)
    if pair is None:
        return _watched("no data", serving, f"{edit}no scores compare the champion with its predecessor")
    watched = compare(serving, pair, params.gate)
    if watched.outcome == "rolled back":
        rollback(params, to=serving.replaced, reason=watched.reason)
        return replace(watched, reason=f"{edit}rolled back: {watched.reason}")
    return replace(watched, reason=f"{edit}{watched.reason}")


def compare(serving: Release, pair: Columns, params: GateParams) -> Watch:
    """Returns what the scores of the night that promoted the champion say of it and its predecessor.

    It is to be rolled back where the predecessor is proven better: where all of the interval of the mean
    difference is below 0. The same scores are looked at each hour, so the interval has no horizon.
    """
    ours, theirs = pair["challenger"], pair["champion"]  # of the night in which ours was the challenger
    paired = judge(ours, theirs, rules=rules_of(params, refresh=True))
    if paired.effect is None:
        return _watched("no data", serving, paired.sentence, num_samples=len(ours))
    effect = interval(ours.astype(float) - theirs, alpha=params.alpha, horizon=None, tuned_at=len(ours))
    if effect.high >= 0:
        reason = f"version {serving.replaced} is not proven better than {serving.version}: {effect}"
        return _watched("kept", serving, reason, effect=effect, num_samples=len(ours))
    reason = f"version {serving.replaced} is better than {serving.version}: {effect}"
    return _watched("rolled back", serving, reason, effect=effect, num_samples=len(ours))


def _check_targets(params: WatchSections) -> str:
    """Finishes what was interrupted, treats edits by hand as params.yaml says, and says what was done."""
    name = params.register_.name
    with session() as client:
        everybody = release_targets(client, name)
        if left := saga.recover(everybody):
            how = "finished" if left.new else "took back"
            return f"{how} the {left.kind} of version {left.release.version}, which was interrupted; "
        serving = ledger.champion_at(ledger.ledger_tip())
        if serving is None:
            return ""
        shown = aliases.alias(client, name)
        if aliases.is_settled(client, name, serving):
            return _settle_others(everybody, serving)
        edit = f"alias champion was moved by hand to version {shown}, the ledger says {serving.version}; "
        if aliases.status(client, name, serving.version) != aliases.SERVING:
            saga.settle(everybody)
            edit = f"finished the release of version {serving.version}, which was interrupted; "
        elif params.watch.alias_edits == "adopt":
            edit = _adopt(shown, params)
        elif params.watch.alias_edits == "revert":
            change = f"alias champion was moved by hand to version {shown}, "
            change += f"moved back to version {serving.version}"
            ledger.note(change, versions=(shown, serving.version))
            saga.settle(everybody)
            edit = f"{change}; "
    log.warning("%s", edit.rstrip("; "))
    return edit


def _settle_others(everybody: Sequence[Target], serving: Release) -> str:
    """Makes whatever serves show the champion again, where it does not, and returns what was done."""
    apart = [(one.name, shown) for one in everybody if (shown := one.shown()) != serving.version]
    if not apart:
        return ""
    saga.settle(everybody)
    edit = "; ".join(f"{name} showed version {shown}, moved to {serving.version}" for name, shown in apart)
    log.warning("%s", edit)
    return f"{edit}; "


def _adopt(shown: int, params: WatchSections) -> str:
    """Adopts an edit by hand into the ledger, where it names a version that was once promoted."""
    try:
        rollback(params, to=shown, reason="the alias champion was moved by hand")
    except ReleaseError as error:
        with session() as client:
            now = saga.settle(release_targets(client, params.register_.name))
        edit = f"alias champion was moved by hand to version {shown}, moved back to version {now.version}"
        ledger.note(f"{edit}: {error}", versions=(shown, now.version))
        return f"{edit}: {error}; "
    return f"alias champion was moved by hand to version {shown}, which the ledger adopted; "


def _newest_scores(serving: Release) -> Columns | None:
    """Returns the scores of the night that promoted the champion, while its folder is kept."""
    folder = checkout.home() / "nights" / serving.night
    night = records.find(Version, folder / records.RUN)
    before = records.find(Champion, folder / records.RUN)
    if (
        night is None
        or before is None
        or (night.number, before.version) != (serving.version, serving.replaced)
    ):
        return None
    scores = read_scores(folder / SCORES)
    return scores if scores and {"challenger", "champion"} <= set(scores) else None


def _watched(
    outcome: Literal["kept", "rolled back", "no data"],
    serving: Release | None,
    reason: str,
    *,
    effect: Effect | None = None,
    num_samples: int = 0,
) -> Watch:
    return Watch(
        outcome=outcome,
        serving=serving.version if serving else 0,
        predecessor=serving.replaced if serving else 0,
        effect=effect.mean if effect else None,
        low=effect.low if effect else None,
        high=effect.high if effect else None,
        num_samples=num_samples,
        reason=reason,
    )

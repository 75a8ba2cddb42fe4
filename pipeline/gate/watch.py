"""Stage watch: looks at the champion each hour, and rolls back where the version it replaced is better."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pipeline.contract import records
from pipeline.contract.errors import ReleaseError
from pipeline.contract.params import Params
from pipeline.contract.records import Champion, Release, Verdict, Version
from pipeline.evaluation.scores import SCORES, Columns, read_scores
from pipeline.experiment import holdback, live_test
from pipeline.gate.judge import rules_of
from pipeline.registry import aliases
from pipeline.rollout import saga
from pipeline.rollout.lost_ledger import expect_ledger
from pipeline.rollout.rollback import rollback
from pipeline.rollout.targets import Follower, followers
from pipeline.statistics.paired import interval, judge
from pipeline.statistics.result import Effect, Status
from pipeline.storage import ledger
from pipeline.storage.mlflow_client import session

log = logging.getLogger(__name__)


def watch(params: Params) -> Verdict:
    """See that the registry agrees with the ledger, and that the champion is not worse than the one before.

    What was interrupted is finished. An alias moved by hand is moved back, adopted or reported, by
    `watch.alias_edits`. A ledger that was lost raises ReleaseError. The verdict is `reject`, and the champion
    rolled back, only where the version it replaced has proven better, on live traffic or on the scores of the
    night that promoted it; `wait` where it has not; `no data` where nothing compares them. An experiment that
    no night wants any more, or that a guardrail stops, is ended.
    """
    now = datetime.now(UTC)
    expect_ledger(params)
    edit = _look_at_alias(params) + live_test.clean(params, now=now)
    serving = ledger.champion_at(ledger.ledger_tip())
    if serving is None:
        return _watched("no data", None, 0, None, f"{edit}no version was ever promoted")
    held = holdback.judge(serving, params, rules=rules_of(params.gate, refresh=True), now=now)
    if held and held.result.status is Status.WORSE:
        why = held.result.sentence
        rollback(params, to=serving.replaced, reason=why)
        holdback.keep(serving, ledger.history(limit=1), params)
        return _watched("reject", serving, held.num_users, held.result.effect, f"{edit}rolled back: {why}")
    holdback.keep(serving, ledger.history(), params)
    edit += f"{held.result.sentence}; " if held else ""
    pair = _newest_scores(serving)
    if pair is None:
        return _watched(
            "no data", serving, 0, None, f"{edit}no scores compare the champion with its predecessor"
        )
    ours, theirs = pair["challenger"], pair["champion"]
    trial = judge(ours, theirs, rules=rules_of(params.gate, refresh=True))
    if trial.effect is None:
        return _watched("no data", serving, len(ours), None, f"{edit}{trial.sentence}")
    effect = interval(ours.astype(float) - theirs, alpha=params.gate.alpha, horizon=None, tuned_at=len(ours))
    if effect.high >= 0:
        reason = f"{edit}version {serving.replaced} is not proven better than {serving.version}: {effect}"
        return _watched("wait", serving, len(ours), effect, reason)
    reason = f"version {serving.replaced} is better than {serving.version}: {effect}"
    rollback(params, to=serving.replaced, reason=reason)
    return _watched("reject", serving, len(ours), effect, f"{edit}rolled back: {reason}")


def _look_at_alias(params: Params) -> str:
    """Finish what was interrupted, treat an edit by hand as told, and say so."""
    name = params.register_.name
    with session() as client:
        told = followers(client, name)
        if left := saga.recover(told):
            how = "finished" if left.new else "took back"
            return f"{how} the {left.kind} of version {left.release.version}, which was interrupted; "
        serving = ledger.champion_at(ledger.ledger_tip())
        if serving is None:
            return ""
        shown = aliases.alias(client, name)
        if aliases.is_settled(client, name, serving):
            return _look_at_others(told, serving)
        edit = f"alias champion was moved by hand to version {shown}, the ledger says {serving.version}; "
        if aliases.status(client, name, serving.version) != aliases.SERVING:
            saga.settle(told)
            edit = f"finished the release of version {serving.version}, which was interrupted; "
        elif params.watch.alias_edits == "adopt":
            edit = _adopt(shown, params)
        elif params.watch.alias_edits == "revert":
            edit = f"alias champion was moved by hand to version {shown}, "
            edit += f"moved back to version {serving.version}; "
            ledger.note(edit.rstrip("; "), versions=(shown, serving.version))
            saga.settle(told)
    log.warning("%s", edit.rstrip("; "))
    return edit


def _look_at_others(told: Sequence[Follower], serving: Release) -> str:
    """Make whatever serves show the champion again, where it does not, and say so."""
    apart = [(one.name, shown) for one in told if (shown := one.shown()) != serving.version]
    if not apart:
        return ""
    saga.settle(told)
    edit = "; ".join(f"{name} showed version {shown}, moved to {serving.version}" for name, shown in apart)
    log.warning("%s", edit)
    return f"{edit}; "


def _adopt(shown: int, params: Params) -> str:
    """Write an edit by hand to the ledger, where it names a version that was once promoted."""
    try:
        rollback(params, to=shown, reason="the alias champion was moved by hand")
    except ReleaseError as error:
        with session() as client:
            now = saga.settle(followers(client, params.register_.name))
        edit = f"alias champion was moved by hand to version {shown}, moved back to version {now.version}"
        ledger.note(f"{edit}: {error}", versions=(shown, now.version))
        return f"{edit}: {error}; "
    return f"alias champion was moved by hand to version {shown}, which the ledger adopted; "


def _newest_scores(serving: Release) -> Columns | None:
    """Scores of the night that promoted the champion over the one it replaced, while its folder is kept."""
    folder = ledger.home() / "nights" / serving.night
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
    action: Any, serving: Release | None, num_samples: int, effect: Effect | None, reason: str
) -> Verdict:
    """The champion is judged here against the version that it replaced."""
    return Verdict(
        action=action,
        champion=serving.replaced if serving else 0,
        challenger=serving.version if serving else 0,
        effect=effect.mean if effect else None,
        low=effect.low if effect else None,
        high=effect.high if effect else None,
        num_samples=num_samples,
        reason=reason,
    )

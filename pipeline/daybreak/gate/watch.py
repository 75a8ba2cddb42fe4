"""Stage watch: looks at the champion each hour, and rolls back where an earlier version is proven better."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from itertools import takewhile
from typing import Literal

from daybreak.contract.errors import PipelineError, ReleaseError
from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Difference, MeasuredEffect
from daybreak.contract.record_types import Evaluation, Release, Watch
from daybreak.contract.sections import (
    GateParams,
    LiveSections,
    RegisterParams,
    WatchParams,
    WatchSections,
)
from daybreak.evaluation.live_judge import live_judge
from daybreak.gate import served_days, served_notices
from daybreak.gate.chain import NIGHTS_PER_YEAR, anchor_of, of_a_year
from daybreak.registry import aliases
from daybreak.rollout import saga
from daybreak.rollout.hold import WATCH
from daybreak.rollout.lost_ledger import expect_ledger
from daybreak.rollout.rollback import rollback
from daybreak.rollout.targets import Target, release_targets
from daybreak.statistics.control_chart import Mean
from daybreak.statistics.level import Level, level, nights_to_show
from daybreak.statistics.result import Status
from daybreak.storage import branch, ledger, ledger_notes
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from daybreak.storage.mlflow_client import session

log = logging.getLogger(__name__)


def watch(home: Home, params: WatchSections, edits: WatchParams) -> Watch:
    """Checks the champion: against the ledger, against its predecessor, and the rows that it serves.

    Those are compared with its training days (daybreak/gate/served_days.py).
    """
    watched = _champion(home, params, edits)
    serving = ledger.champion_at(home, branch.ledger_tip(home))
    if serving is None:
        return watched
    try:
        served = served_days.look(home, serving, params)
    except PipelineError as error:
        log.warning("served rows are not compared: %s", error)
        return watched
    if served is None:
        return watched
    said = served_notices.in_words(served, serving.version)
    return replace(watched, served=served, reason=f"{watched.reason}; {said}")


def _champion(home: Home, params: LiveSections, edits: WatchParams) -> Watch:
    """Checks that the registry agrees with the ledger, and the champion against its predecessor.

    What was interrupted is finished. An alias moved by hand is moved back, adopted or reported, by
    `watch.alias_edits`. The champion is rolled back only where the version that users are held back on has
    proven better on live traffic, or the one that it replaced on the days since, or where the chain of
    refreshes has lost too much (`compare`). An experiment that no night wants any more, or that a guardrail
    stops, is ended. Raises ReleaseError where the ledger was lost.
    """
    expect_ledger(home, params.register_)
    users, register = live_judge(), params.register_
    edit = _check_targets(home, register, edits) + (users.clean(home, params) if users else "")
    serving = ledger.champion_at(home, branch.ledger_tip(home))
    if serving is None:
        return _watched("no data", None, f"{edit}no version was ever promoted")
    before = _held_back(home, serving)
    held = users.held(home, serving, before, params) if users and before else None
    if users and before and held and held.result.status is Status.WORSE:
        why, effect = held.result.sentence, held.result.effect
        rollback(home, register, to=before.version, reason=why, by=WATCH, hold_days=0, yes=True)
        users.hold_back(home, serving, None, params)
        rolled_back = _watched(
            "rolled back",
            serving,
            f"{edit}rolled back: {why}",
            num_samples=held.num_users,
            predecessor=before.version,
        )
        return replace(rolled_back, effect=effect.measured if effect else None)
    if users:
        users.hold_back(home, serving, before, params)
    edit += f"{held.result.sentence}; " if held else ""
    watched = compare(serving, since_release(home), params.gate)
    if watched.outcome == "no data" and held:  # users have compared them
        watched = replace(watched, outcome="kept")
    if watched.outcome == "rolled back":
        rollback(
            home, register, to=watched.predecessor, reason=watched.reason, by=WATCH, hold_days=0, yes=True
        )
        return replace(watched, reason=f"{edit}rolled back: {watched.reason}")
    return replace(watched, reason=f"{edit}{watched.reason}")


def _held_back(home: Home, serving: Release) -> Release | None:
    """Returns the version that some users stay with: the anchor, or what the anchor replaced where it serves.

    There is none after a rollback.
    """
    newest = next(iter(ledger.releases(home)), None)
    if newest is None or newest.rollback or not serving.replaced:
        return None
    made, before = ledger.promotions(home, serving.version, serving.replaced)
    anchor = anchor_of(serving, made, day=datetime.now(UTC).date()).release
    if anchor.version != serving.version:
        return anchor
    return before.release if before else None


def since_release(home: Home) -> list[Entry]:
    """Returns the entries since the newest release, at most of a year, and that of the release itself.

    It says how much worse the champion may be, however long ago it was.
    """
    listed, newest = ledger.commits(home), next(iter(ledger.releases(home)), None)
    later = list(takewhile(lambda commit: newest is None or commit.id != newest.id, listed))
    looked_at = of_a_year(later, datetime.now(UTC).date())
    return ledger.entries_of(home, [*looked_at, *listed[len(later) : len(later) + 1]])


def compare(serving: Release, past: Sequence[Entry], params: GateParams) -> Watch:
    """Compares the champion with the versions before it, over the days since its promotion.

    Each night scores the champion beside the version that it replaced, and beside the anchor of its chain
    (daybreak/gate/chain.py). It is rolled back if all of these days together, each
    once, prove the replaced version better, at one look a night for a year; for a refresh, which may be a
    little worse, better by more than the margin. It is rolled back to the anchor if the anchor is proven
    better by more than the margin, or if the chain has spent the margin and `gate.when_spent` says so. `past`
    are entries of the ledger, newest first.
    """
    promotion, later = _since_promotion(serving, past)
    chains = [chain for entry in later if (chain := entry.chain)]
    made = promotion.chain if promotion else None
    newest = chains[0] if chains else made
    as_judged = made if promotion and not promotion.refitted else None  # a refit is not what was compared
    since = [one for chain in chains if (one := chain.predecessor) and one.counts]
    from_before = [*since, as_judged.step if as_judged else None]
    before = _level(from_before, params)
    anchored = _level([chain.champion for chain in chains], params)
    judged = [entry.evaluation for entry in (*later, promotion) if entry and entry.evaluation]
    looked = partial(_watched, serving=serving, num_samples=_num_samples(judged))
    this, replaced = f"version {serving.version}", f"version {serving.replaced}"
    if before is None or newest is None:
        return looked("no data", reason=f"no night has compared {this} with {replaced} yet")
    allowed = newest.margin if made and made.challenger else 0.0
    if before.high < -allowed:
        return looked("rolled back", reason=f"{replaced} is better than {this}: {before}", level=before)
    if anchored and anchored.high < -newest.margin:
        reason = f"version {newest.anchor}, the anchor, is better by more than the margin: {anchored}"
        return looked("rolled back", reason=reason, level=anchored, predecessor=newest.anchor)
    if newest.spent and params.when_spent == "anchor" and newest.anchor != serving.version:
        reason = f"the refreshes since version {newest.anchor} have spent the margin {newest.margin:g}"
        return looked("rolled back", reason=reason, level=before, predecessor=newest.anchor)
    nights = made.nights_to_show if made and not since else None
    if nights is None:  # of days like those since, of which each night brings its own
        widest = max(one.error for one in (since or from_before) if one)
        nights = nights_to_show(newest.margin, error=widest, alpha=params.alpha / NIGHTS_PER_YEAR)
    shows = f"a loss of the margin {newest.margin:g} shows after about {counted(nights, 'night')}"
    reason = f"{replaced} is not proven better than {this}: {before}; {shows}"
    return looked("kept", reason=reason, level=before)


def _since_promotion(serving: Release, past: Sequence[Entry]) -> tuple[Entry | None, list[Entry]]:
    """Returns the night that promoted the champion, and later nights in which it served, newest first.

    The first is None where the champion serves after a rollback.
    """
    later: list[Entry] = []
    for entry in past:
        if entry.rollback:
            break
        if entry.release is not None:
            return entry, later
        if entry.verdict and entry.verdict.champion == serving.version:
            later.append(entry)
    return None, later


def _num_samples(newest_first: Sequence[Evaluation]) -> int:
    """Returns how many samples were judged, those of a day that several nights held out once."""
    total, seen = 0, date.min
    for one in reversed(newest_first):
        is_new = [day > seen for day in one.days]
        if all(is_new):
            total += one.num_samples
        else:  # a night whose samples cannot be told apart by day adds none
            total += sum(num for num, new in zip(one.num_by_day, is_new, strict=False) if new)
        seen = max(seen, *one.days) if one.days else seen
    return total


def _level(differences: Sequence[Difference | None], params: GateParams) -> Level | None:
    """Returns the mean of all nights, with an interval for one look a night; None without any."""
    series = [Mean(value=one.mean, error=one.error) for one in differences if one and one.counts]
    return level(series, alpha=params.alpha / NIGHTS_PER_YEAR, half_width=0) if series else None


def _check_targets(home: Home, register: RegisterParams, edits: WatchParams) -> str:
    """Finishes interrupted releases, treats edits by hand as params.yaml says, and reports its actions."""
    name = register.name
    with session(home) as client:
        everybody = release_targets(home, client, name)
        if left := saga.recover(home, everybody):
            how = "finished" if left.new else "took back"
            return f"{how} the {left.kind} of version {left.release.version}, which was interrupted; "
        serving = ledger.champion_at(home, branch.ledger_tip(home))
        if serving is None:
            return ""
        shown = aliases.alias(client, name)
        if aliases.is_settled(client, name, serving):
            return _settle_others(home, everybody, serving)
        edit = f"alias champion was moved by hand to version {shown}, the ledger says {serving.version}; "
        if shown == serving.version or aliases.status(client, name, serving.version) != aliases.SERVING:
            saga.settle(home, everybody)
            edit = f"finished the release of version {serving.version}, which was interrupted; "
        elif edits.alias_edits == "adopt":
            edit = _adopt(home, shown, register)
        elif edits.alias_edits == "revert":
            change = f"alias champion was moved by hand to version {shown}, "
            change += f"moved back to version {serving.version}"
            _note(home, change, shown, serving)
            saga.settle(home, everybody)
            edit = f"{change}; "
    log.warning("%s", edit.rstrip("; "))
    return edit


def _settle_others(home: Home, everybody: Sequence[Target], serving: Release) -> str:
    """Makes every target that does not show the champion show it again, and reports the actions."""
    apart = [(one.name, shown) for one in everybody if (shown := one.shown()) != serving.version]
    if not apart:
        return ""
    saga.settle(home, everybody)
    edit = "; ".join(f"{name} showed version {shown}, moved to {serving.version}" for name, shown in apart)
    log.warning("%s", edit)
    return f"{edit}; "


def _adopt(home: Home, shown: int, register: RegisterParams) -> str:
    """Adopts an edit by hand into the ledger, where it names a version that was once promoted."""
    try:
        rollback(
            home, register, to=shown, reason="the alias champion was moved by hand", by="MLflow", yes=True
        )
    except ReleaseError as error:
        with session(home) as client:
            now = saga.settle(home, release_targets(home, client, register.name))
        edit = f"alias champion was moved by hand to version {shown}, moved back to version {now.version}"
        _note(home, f"{edit}: {error}", shown, now)
        return f"{edit}: {error}; "
    return f"alias champion was moved by hand to version {shown}, which the ledger adopted; "


def _note(home: Home, edit: str, shown: int, serving: Release) -> None:
    ledger_notes.add(home, edit, versions=(shown, serving.version))


def _watched(
    outcome: Literal["kept", "rolled back", "no data"],
    serving: Release | None,
    reason: str,
    *,
    level: Level | None = None,
    predecessor: int | None = None,
    num_samples: int = 0,
) -> Watch:
    return Watch(
        outcome=outcome,
        serving=serving.version if serving else 0,
        predecessor=(serving.replaced if serving else 0) if predecessor is None else predecessor,
        effect=MeasuredEffect(mean=level.mean, low=level.low, high=level.high) if level else None,
        num_samples=num_samples,
        reason=reason,
    )

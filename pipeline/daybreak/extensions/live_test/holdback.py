"""Holds a few users back on an earlier version, so that `watch` can see whether it does better.

After a promotion a share `watch.holdback` of the users goes on to meet the anchor of the chain, the last
version that was proven better (daybreak/gate/chain.py); where that is what was promoted, the version that it
replaced. It is an experiment in the traffic row like the gate's; the gate's own comes first. The experiment
is named after the version held back on alone, so the same users stay with it while refreshes come and go.

What serves is judged against it by the same guardrails as a challenger (`readout`), twice:

    this version     exposures since the version serves, so that a bad version is noticed at once
    all of them      exposures since the experiment began, with a user's score as the mean over all of them,
                     so that losses too small for one promotion add up

Where a guardrail is broken, also because users prove it worse, the version held back on serves again. After a
rollback nobody is held back, and what was shown before it counts no more.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from daybreak.contract.errors import DataError, NotYet, ParamsError, ReleaseError
from daybreak.contract.record_types import Release
from daybreak.contract.sections import LiveSections
from daybreak.evaluation.live_judge import Held
from daybreak.extensions.live_test import live_test, own_serving
from daybreak.extensions.live_test.live_test import observed
from daybreak.extensions.live_test.observations import ObservationLog
from daybreak.extensions.live_test.readout import Readout
from daybreak.extensions.live_test.settings import HoldbackParams, LiveTestParams
from daybreak.extensions.live_test.traffic import serving_log, share_out
from daybreak.gate.judge import rules_of
from daybreak.rollout.targets import endpoint
from daybreak.statistics.result import Conclusion, Status
from daybreak.storage import erasures, ledger
from daybreak.storage.home import Home
from daybreak.storage.traffic_row import holdback_name

if TYPE_CHECKING:
    from daybreak.storage.exposures import Exposure
    from daybreak.storage.traffic_log import Log
    from daybreak.storage.traffic_row import Traffic

log = logging.getLogger(__name__)


def judge(home: Home, serving: Release, before: Release, params: LiveSections) -> Held | None:
    """Returns what the users say; None where nobody was held back."""
    traffic_log = serving_log(home, params)
    if traffic_log is None:
        return None
    limits = params.section(LiveTestParams)
    now = datetime.fromtimestamp(traffic_log.now(), UTC)
    try:
        own_serving.read(traffic_log, limits, now=datetime.now(UTC), erased=erasures.units(home))
        evaluation = ledger.evaluation_of(home, serving)
        rules = rules_of(params.gate, refresh=True, evaluation=evaluation)
        design = live_test.design_of(evaluation, params, rules=rules)
    except (DataError, ParamsError, ReleaseError) as error:
        return Held(result=Conclusion(status=Status.NO_DATA, sentence=str(error)), num_users=0)
    shown = _shown(home, traffic_log, before)
    began = _served_since(home, traffic_log, serving, before)
    of_this = [one for one in shown if one.time >= began]
    seen = {f"on live traffic {serving.version} against {before.version}": observed(of_this, limits)}
    if len(of_this) < len(shown):
        whole = _outcomes_of_each(shown, window_s=design.window_s, now=now.timestamp())
        seen[f"all that served since, against {before.version}"] = observed(whole, limits, window_s=math.inf)

    def look_at(log_of: ObservationLog) -> Readout:
        return live_test.look(log_of.swapped, design, now=now)

    try:
        findings = {what: look_at(log_of) for what, log_of in seen.items() if log_of.observations}
    except DataError as error:
        return Held(result=Conclusion(status=Status.NO_DATA, sentence=str(error)), num_users=0)
    return _told(findings) if findings else None


def _told(findings: dict[str, Readout]) -> Held:
    """Combines findings: the result of an untrusted finding comes first, then that of a broken guardrail."""
    results: list[Conclusion] = []
    for what, finding in findings.items():
        status = Status.WORSE if finding.broken else finding.result.status
        sentence = "; ".join(finding.broken) or finding.result.sentence
        if not finding.is_trusted:
            status, sentence = Status.MISMATCH, finding.broken[0]
        effect = finding.result.effect if finding.is_trusted else None
        results.append(Conclusion(status=status, effect=effect, sentence=f"{what}: {sentence}"))
    num_users = max(finding.num_ours for finding in findings.values())
    for status in (Status.MISMATCH, Status.WORSE):
        if decisive := [result for result in results if result.status is status]:
            return Held(result=decisive[0], num_users=num_users)
    sentence = "; ".join(result.sentence for result in results)
    return Held(result=replace(results[-1], sentence=sentence), num_users=num_users)


def _shown(home: Home, traffic_log: "Log", held: Release) -> "list[Exposure]":
    """Returns what users were shown while some were held back on that version, since the last rollback."""
    return list(traffic_log.exposures.of(holdback_name(held.version), since=_last_rollback(home)))


def _last_rollback(home: Home) -> float:
    return max((float(one.time) for one in ledger.releases(home) if one.rollback), default=0.0)


def _served_since(home: Home, traffic_log: "Log", serving: Release, held: Release) -> float:
    """Returns since when the version serves while users are held back on the other one."""
    name = holdback_name(held.version)
    moves = traffic_log.traffic.moves(since=_last_rollback(home))
    both = [moved for moved in moves if (moved.champion, moved.experiment) == (serving.version, name)]
    return min((moved.changed_at for moved in both), default=0.0)


def _outcomes_of_each(shown: "Sequence[Exposure]", *, window_s: float, now: float) -> "Iterator[Exposure]":
    """Yields the exposures whose outcome window is over, with the outcomes reported within that window.

    An outcome is then told at 0, since the window of the user's first exposure does not matter any more.
    """
    for one in shown:
        if one.time + window_s > now:
            continue  # rather than count as a visit without an outcome
        in_time = one.taken_at is not None and one.taken_at <= one.time + window_s
        yield replace(one, taken=one.taken if in_time else None, taken_at=0.0 if in_time else None)


def keep(home: Home, serving: Release, before: Release | None, params: LiveSections) -> None:
    """Holds users back on a version, or nobody any more; the gate's experiments are left alone."""
    traffic_log = serving_log(home, params)
    if traffic_log is None or _is_the_gates(traffic_log.traffic.read()):
        return
    share = params.section(HoldbackParams).holdback if before else 0.0
    if before and share and not _is_ready(home, before, params):
        return

    def moved(traffic: "Traffic") -> "Traffic":
        if _is_the_gates(traffic):
            return traffic
        if not share or not before:
            return traffic.without(traffic.experiment) if traffic.experiment else traffic
        return replace(
            traffic,
            champion=serving.version,
            challenger=before.version,
            share=share,
            experiment=holdback_name(before.version),
            slot=0,
            num_slots=1,
        )

    traffic_log.traffic.change(moved)
    try:
        share_out(home, params)
    except (ReleaseError, ParamsError) as error:
        log.warning("the endpoint holds nobody back: %s", error)


def _is_the_gates(traffic: "Traffic") -> bool:
    return bool(traffic.experiment) and not traffic.is_holdback


def _is_ready(home: Home, held: Release, params: LiveSections) -> bool:
    """Returns whether the endpoint has deployed the version, or starts to deploy; true without endpoint."""
    try:
        with endpoint(home, params.register_.name) as there:
            if there:
                there.prepare(held)
    except (NotYet, ReleaseError, ParamsError) as error:
        log.warning("nobody is held back on version %d: %s", held.version, error)
        return False
    return True

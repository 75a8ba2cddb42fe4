"""Holds a few users back on the version that was replaced, so that `watch` can see whether it does better.

After a promotion a share `watch.holdback` of the users goes on to meet the version before, as an experiment
in the traffic row like the gate's; the gate's own comes first. The version that serves is judged against the
one that it replaced by the same guardrails as a challenger (`readout`): where one is broken, also because
users prove it worse, it is rolled back. Nobody is held back on a version that was rolled back.
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pipeline.contract.errors import ParamsError, ReleaseError
from pipeline.contract.params import WatchSections
from pipeline.contract.records import Evaluation, Release
from pipeline.contract.units import HOUR_S
from pipeline.experiment import live_test
from pipeline.experiment.observations import observe
from pipeline.experiment.traffic import holdback_name, is_holdback, open_log, share_out
from pipeline.statistics.paired import Rules
from pipeline.statistics.result import Result, Status
from pipeline.storage import ledger

if TYPE_CHECKING:
    from pipeline.storage.traffic_log import Traffic

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What users say of the version that serves, against the one that it replaced."""

    result: Result  # WORSE where a guardrail is broken; MISMATCH where nothing can be believed
    num_users: int


def judge(serving: Release, params: WatchSections, *, rules: Rules, now: datetime) -> Held | None:
    """Returns what the users say; None where nobody was held back."""
    traffic_log = open_log(params) if serving.replaced else None
    if traffic_log is None:
        return None
    window_s = params.live_test.outcome_hours * HOUR_S
    seen = observe(traffic_log.exposures(name_of(serving)), window_s=window_s).swapped
    if not seen.observations:
        return None
    try:
        evaluation = _evaluation(serving)
        by, rules = live_test.score_by(evaluation, params.gate, rules=rules)
        others = live_test.others_by(evaluation, params.gate)
    except (ParamsError, ReleaseError) as error:
        return Held(result=Result(status=Status.NO_DATA, sentence=str(error)), num_users=0)
    finding = live_test.look(seen, params, rules=rules, now=now, by=by, others=others)
    status = Status.WORSE if finding.broken else finding.result.status
    sentence = "; ".join(finding.broken) or finding.result.sentence
    if not finding.is_trusted:
        status, sentence = Status.MISMATCH, finding.broken[0]
    versions = f"on live traffic {serving.version} against {serving.replaced}"
    effect = finding.result.effect if finding.is_trusted else None
    result = Result(status=status, effect=effect, sentence=f"{versions}: {sentence}")
    return Held(result=result, num_users=finding.num_ours)


def keep(serving: Release, params: WatchSections) -> None:
    """Holds users back, or no longer, as `watch.holdback` says; the gate's experiments are left alone."""
    traffic_log = open_log(params)
    if traffic_log is None:
        return
    newest = next(iter(ledger.releases()), None)
    promoted = newest is not None and not newest.rollback and serving.replaced > 0
    share = params.watch.holdback if promoted else 0.0

    def held(traffic: "Traffic") -> "Traffic":
        if traffic.experiment and not is_holdback(traffic):
            return traffic
        if not share:
            free = replace(traffic, challenger=0, share=0.0, experiment="")
            return free if traffic.experiment else traffic
        return replace(
            traffic,
            champion=serving.version,
            challenger=serving.replaced,
            share=share,
            experiment=name_of(serving),
        )

    traffic_log.change_traffic(held)
    try:
        share_out(params)
    except (ReleaseError, ParamsError) as error:
        log.warning("the endpoint holds nobody back: %s", error)


def _evaluation(serving: Release) -> Evaluation | None:
    """Returns what the night that made the version found of it."""
    made = (one for one in ledger.commits() if one.night == serving.night and not one.rollback)
    return next((found for one in made if (found := ledger.read_at(one.id, Evaluation))), None)


def name_of(serving: Release) -> str:
    """Returns the name of the experiment of a release."""
    return holdback_name(serving=serving.version, replaced=serving.replaced)

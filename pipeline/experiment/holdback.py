"""Does the version that was replaced do better after all? A few users still meet it, and `watch` compares.

After a promotion a share `watch.holdback` of the users goes on to meet the version before, as an experiment
in the traffic row like the gate's; the gate's own comes first. The version that serves is judged against the
one that it replaced by the same guardrails as a challenger (`live`): where one is broken, also because users
prove it worse, it is rolled back. Nobody is held back on a version that was rolled back.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pipeline.contract.errors import ParamsError, ReleaseError
from pipeline.contract.params import Params
from pipeline.contract.records import Release
from pipeline.contract.units import HOUR_S
from pipeline.experiment import live_test
from pipeline.experiment.observations import observe
from pipeline.experiment.readout import ARMS
from pipeline.experiment.traffic import HOLDBACK, open_log, share_out
from pipeline.statistics import unpaired
from pipeline.statistics.paired import Effect, Rules
from pipeline.storage.ledger import Entry

if TYPE_CHECKING:
    from pipeline.storage.traffic_log import Traffic

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What users say of the version that serves, against the one that it replaced."""

    worse: bool
    effect: Effect | None
    num_users: int
    reason: str


def judge(serving: Release, params: Params, *, rules: Rules, now: datetime) -> Held | None:
    """What the users say; None where nobody was held back."""
    kept = open_log(params) if serving.replaced else None
    if kept is None:
        return None
    window_s = params.gate.outcome_hours * HOUR_S
    seen = observe(kept.exposures(name_of(serving)), window_s=window_s).swapped
    if not seen.observations:
        return None
    found = live_test.look(seen, params, rules=rules, now=now, tuned_at=unpaired.TUNED_AT)
    told = f"on live traffic {serving.champion} against {serving.replaced}"
    broken = [text for text in found.broken if not text.startswith(ARMS)]
    if len(broken) < len(found.broken):
        return Held(worse=False, effect=None, num_users=found.num_ours, reason=f"{told}: {found.broken[0]}")
    reason = f"{told}: {'; '.join(broken) or found.reason}"
    return Held(worse=bool(broken), effect=found.effect, num_users=found.num_ours, reason=reason)


def keep(serving: Release, entries: Iterable[Entry], params: Params) -> None:
    """Hold users back, or no longer, as `watch.holdback` says; the gate's experiments are left alone."""
    kept = open_log(params)
    if kept is None:
        return
    made = next((entry for entry in entries if entry.release), None)
    promoted = made is not None and not made.rollback and serving.replaced > 0
    share = params.watch.holdback if promoted else 0.0

    def held(traffic: "Traffic") -> "Traffic":
        if traffic.experiment and not traffic.experiment.startswith(HOLDBACK):
            return traffic
        if not share:
            free = replace(traffic, challenger=0, share=0.0, experiment="")
            return free if traffic.experiment else traffic
        return replace(
            traffic,
            champion=serving.champion,
            challenger=serving.replaced,
            share=share,
            experiment=name_of(serving),
        )

    kept.change_traffic(held)
    try:
        share_out(params)
    except (ReleaseError, ParamsError) as error:
        log.warning("the endpoint holds nobody back: %s", error)


def name_of(serving: Release) -> str:
    """Name of the experiment, which salts who is held back."""
    return f"{HOLDBACK}{serving.champion}-{serving.replaced}"

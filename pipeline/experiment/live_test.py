"""How does a challenger meet users, and who ends that? An A/B test in the traffic row, one look at a time.

Each look reads the log of serving from its beginning, decides by `live`, and takes one action: open, go a
step up, wait, or end. It may be killed at any line and called again:

    open    what is known beforehand is written (data/run/live/), then the traffic is moved
    look    the share that counts is the one in the traffic row; decisions follow from the log alone
    end     the verdict is written first, then the share goes to 0: called again, the same verdict comes back

The experiment has the night's name, and salts the assignment. One that its night does not end, `close` ends,
and `watch` whatever no open night wants, or whose guardrails break between two looks of the gate.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pipeline.contract import records
from pipeline.contract.errors import NotYet, ParamsError, ReleaseError
from pipeline.contract.params import GateParams, Params
from pipeline.contract.records import Champion, Live, Night, Release, Verdict, Version
from pipeline.contract.units import HOUR_S
from pipeline.experiment import forecast, ramp
from pipeline.experiment.observations import Seen, observe
from pipeline.experiment.readout import Finding, Limits, decide, find
from pipeline.experiment.traffic import HOLDBACK, end, move, open_log, share_out
from pipeline.rollout.targets import endpoint
from pipeline.statistics.paired import Judgement, Rules
from pipeline.storage import ledger

if TYPE_CHECKING:
    from pipeline.storage.traffic_log import Log, Traffic

FOLDER = records.RUN / "live"
DECIDED = FOLDER / "decided.json"
HISTORY_DAYS = 7  # of traffic that tell how much will come


def judge(
    night: Night,
    version: Version,
    champion: Champion,
    params: Params,
    *,
    rules: Rules,
    replayed: Callable[[], Verdict],
) -> Verdict:
    """The verdict of live traffic; NotYet, saying how it stands, while it waits.

    `replayed` judges the held-out scores and looks whether the model is fit to serve; it is asked once.
    """
    if (stale := records.find(Verdict, FOLDER)) and stale.challenger != version.number:
        shutil.rmtree(FOLDER)
    if DECIDED.exists():
        decided = records.loads(Verdict, DECIDED.read_text(), source=str(DECIDED))
        end(night.id, params, keep=decided.action == "promote")
        return decided
    log = open_log(params)
    told = records.find(Live, FOLDER)
    first = records.find(Verdict, FOLDER)
    if first is None:
        first = replayed()
        records.write(first, FOLDER)
    if not _may_begin(first, params.gate):
        return first
    if log is None or (told is None and not _serves(log)):
        reason = (
            "no router lives and none has served for a week; start one by python -m pipeline serve, or set "
            "gate.scores: replay"
        )
        return replace(first, action="no data", inconclusive=False, reason=f"live: {reason}")
    if told is None:
        told = _foretell(log, night, params, rules=rules)
        records.write(told, FOLDER)
    return _look(night, version, champion, params, rules=rules, first=first, told=told, log=log)


def _look(
    night: Night,
    version: Version,
    champion: Champion,
    params: Params,
    *,
    rules: Rules,
    first: Verdict,
    told: Live,
    log: "Log",
) -> Verdict:
    """One look at an experiment that may begin, and one action."""
    now = datetime.now(UTC)
    traffic = log.traffic()
    serving = ledger.champion_at(ledger.ledger_tip())
    if serving is None or serving.champion != champion.champion:
        reason = f"version {serving.champion if serving else 0} serves by now, not {champion.champion}"
        verdict = replace(first, action="no data", inconclusive=False, reason=f"live: {reason}")
        return _decided(verdict, params, experiment=night.id)
    if traffic.experiment != night.id:
        traffic = _open(log, traffic, night, version, champion, over=now >= night.decide_until)
    share = traffic.share if traffic.experiment == night.id else 0.0  # else somebody has ended it
    seen = observe(log.exposures(night.id), window_s=params.gate.outcome_hours * HOUR_S)
    finding = look(seen, params, rules=rules, now=now, tuned_at=told.tuned_at)
    judged, step = decide(
        finding,
        rules=rules,
        mode="both" if params.gate.scores == "both" else "live",
        pace=pace(params.gate),
        share=share,
        units=seen.counts(share)[0],
        hours=(now.timestamp() - traffic.changed_at) / HOUR_S,
        over=now >= night.decide_until or traffic.experiment != night.id,
    )
    told = _standing(told, finding, judged, share=share)
    if judged.action != "wait":
        verdict = _verdict(first, judged, told, both=params.gate.scores == "both")
        return _decided(verdict, params, experiment=night.id)
    try:
        _lay_ready(night, version, champion)
        if step.share != share:
            traffic = move(log, replace(traffic, share=step.share))
        share_out(params)
    except (ReleaseError, ParamsError) as error:
        reason = f"live: users cannot meet version {version.number}: {error}"
        verdict = replace(first, action="no data", inconclusive=False, reason=reason)
        return _decided(verdict, params, experiment=night.id)
    raise NotYet(_sentence(told, judged, step, log, traffic, now=now))


def look(seen: Seen, params: Params, *, rules: Rules, now: datetime, tuned_at: float) -> Finding:
    """What the log of an experiment says by now."""
    gate = params.gate
    limits = Limits(
        errors=gate.max_errors,
        fallbacks=gate.max_fallbacks,
        p99_s=gate.max_p99_rise_s,
        shift=gate.max_shift,
        margin=gate.margin,
    )
    return find(
        seen, rules=rules, limits=limits, window_s=gate.outcome_hours * HOUR_S, now=now.timestamp(),
        tuned_at=tuned_at,
    )  # fmt: skip


def pace(params: GateParams) -> ramp.Pace:
    """How params.yaml has the ramp climbed."""
    return ramp.Pace(shares=params.ramp, units=params.ramp_users, hours=params.ramp_hours)


def clean(params: Params, *, now: datetime) -> str:
    """End an experiment that no open night wants, or one whose guardrails broke; what was done, in words."""
    log = open_log(params)
    experiment = log.traffic().experiment if log else ""
    if log is None or not experiment or experiment.startswith(HOLDBACK):
        return ""
    folder = ledger.home() / "nights" / experiment
    night = records.find(Night, folder / records.RUN)
    told = records.find(Live, folder / FOLDER)
    closed = any(commit.night == experiment for commit in ledger.commits(limit=50))
    if night is None or told is None or closed or now > night.decide_until + timedelta(hours=1):
        end(experiment, params)
        return f"ended the experiment {experiment}, which no night wants any more; "
    rules = Rules(
        alpha=params.gate.alpha, margin=params.gate.margin, min_samples=params.gate.min_samples, refresh=True
    )
    seen = observe(log.exposures(experiment), window_s=params.gate.outcome_hours * HOUR_S)
    finding = look(seen, params, rules=rules, now=now, tuned_at=told.tuned_at)
    if not finding.broken:
        return ""
    end(experiment, params)
    return f"ended the experiment {experiment}: {'; '.join(finding.broken)}; "


def _lay_ready(night: Night, version: Version, champion: Champion) -> None:
    """Have an endpoint, where there is one, hold the challenger deployed; NotYet until it does."""
    with endpoint(version.name) as there:
        if there:
            release = Release(
                champion=version.number, replaced=champion.champion, model_digest=version.model_digest,
                files_digest=version.files_digest, night=night.id,
            )  # fmt: skip
            there.prepare(release)


def _decided(verdict: Verdict, params: Params, *, experiment: str) -> Verdict:
    """The verdict, kept before nobody meets the challenger any more."""
    records.replace_text(DECIDED, records.dumps(verdict))
    end(experiment, params, keep=verdict.action == "promote")
    return verdict


def _may_begin(first: Verdict, params: GateParams) -> bool:
    """May users meet the challenger? In `both`, what the scores promote; in `live`, what is fit to serve."""
    if params.scores == "both":
        return first.action == "promote"
    return all(check.ok for check in first.checks)


def _serves(log: "Log") -> bool:
    """Does a router live, or has one answered in the last days?"""
    since = time.time() - HISTORY_DAYS * 24 * HOUR_S
    return bool(log.routers()) or next(iter(log.exposures(None, since=since)), None) is not None


def _open(
    log: "Log", traffic: "Traffic", night: Night, version: Version, champion: Champion, *, over: bool
) -> "Traffic":
    """The traffic with this experiment at share 0; as it is, where the night is over or it was ended."""
    if over or any(True for _ in log.exposures(night.id)):
        return traffic
    if traffic.experiment and not traffic.experiment.startswith(HOLDBACK):
        raise NotYet(f"experiment {traffic.experiment} is on; watch ends it where no night wants it")
    ours, theirs = version.number, champion.champion
    return move(log, replace(traffic, champion=theirs, challenger=ours, share=0.0, experiment=night.id))


def _foretell(log: "Log", night: Night, params: Params, *, rules: Rules) -> Live:
    """What the traffic of the last days lets one expect of tonight's."""
    now = datetime.now(UTC).replace(microsecond=0)
    since = now.timestamp() - HISTORY_DAYS * 24 * HOUR_S
    before = forecast.volume(log.exposures(None, since=since), now=now.timestamp(), days=HISTORY_DAYS)
    hours = max((night.decide_until - now).total_seconds() / HOUR_S - params.gate.outcome_hours, 0.0)
    text, tuned_at = forecast.forecast(
        before, pace=pace(params.gate), hours=hours, alpha=rules.alpha, margin=rules.margin
    )
    return Live(experiment=night.id, began_at=now, foretold=text, tuned_at=tuned_at)


def _standing(told: Live, finding: Finding, judged: Judgement, *, share: float) -> Live:
    measured = finding.effect
    return replace(
        told,
        share=share,
        num_challenger=finding.num_ours,
        num_champion=finding.num_theirs,
        effect=measured.mean if measured else None,
        low=measured.low if measured else None,
        high=measured.high if measured else None,
        reason=judged.reason,
        checks=finding.checks,
    )


def _verdict(first: Verdict, judged: Judgement, told: Live, *, both: bool) -> Verdict:
    """The verdict: what live traffic says, and after it what the held-out scores said."""
    verdict = replace(
        first,
        action=judged.action,
        reason=f"live: {judged.reason}; held-out scores: {first.reason}",
        inconclusive=judged.inconclusive,
        live=told,
    )
    if both:
        return verdict
    num_users = told.num_challenger + told.num_champion
    return replace(verdict, effect=told.effect, low=told.low, high=told.high, num_samples=num_users)


def _sentence(
    told: Live, judged: Judgement, step: ramp.Step, log: "Log", traffic: "Traffic", *, now: datetime
) -> str:
    """How the experiment stands, and what comes next."""
    routers = log.routers()
    faults = [router.fault for router in routers if router.fault]
    missing = "" if routers else "; no router lives, start one by python -m pipeline serve"
    wrong = f"; a router says: {faults[0]}" if faults else missing
    return (
        f"{traffic.share:.0%} of users meet version {traffic.challenger}; {told.num_challenger:,} have, and "
        f"{told.num_champion:,} met version {traffic.champion}; {judged.reason}; {told.foretold}; "
        f"next: {step.reason}{wrong}"
    )

"""Lets users meet the challenger: an A/B test in the traffic row, one look at a time.

Each look reads the log of serving from its beginning, decides by `readout`, and takes one action: open the
experiment, raise the share, wait, or end it. It may be killed at any line and called again:

    open    what is known beforehand is written (data/run/live/), then the traffic is moved
    look    the share that counts is the one in the traffic row; decisions follow from the log alone
    end     the verdict is written first, then the share is set to 0; another call returns the same verdict

The experiment is named after the night, which salts the assignment. `close` ends one that its night left
behind; `watch` ends one that no open night wants, or whose guardrails break between two looks of the gate.

With `live_test.challengers`, several nights may be open whose challengers users judge at once (slots.py).
"""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract import clock, records
from daybreak.contract.errors import DataError, NotYet, ParamsError, ReleaseError
from daybreak.contract.record_parts import Check, Live, LiveMetric
from daybreak.contract.record_types import Champion, Evaluation, Night, Release, Verdict, Version
from daybreak.contract.sections import GateParams, LiveSections, Plug, ValidateParams
from daybreak.contract.units import DAY_S, HOUR_S
from daybreak.extensions.live_test import forecast, own_serving, ramp, shadow_rows, slots
from daybreak.extensions.live_test.decisions import Decision, decide
from daybreak.extensions.live_test.guardrails import GuardrailLimits
from daybreak.extensions.live_test.live_score import LEAST_MARGIN, LISTS, LiveScore, OwnScore, RowScore
from daybreak.extensions.live_test.looks import Looks
from daybreak.extensions.live_test.observations import ObservationLog, observe
from daybreak.extensions.live_test.readout import Design, Readout, UserMetric, find
from daybreak.extensions.live_test.settings import LiveTestParams, OwnMetricParams
from daybreak.extensions.live_test.shadowed import Shadowed
from daybreak.extensions.live_test.shadowed import read as read_shadow
from daybreak.extensions.live_test.traffic import end, move, serving_log, share_out
from daybreak.gate.all_metrics import guardrails_of, success_of
from daybreak.rollout.targets import endpoint
from daybreak.statistics.assignment import CHALLENGER
from daybreak.statistics.paired import Rules
from daybreak.storage import branch, erasures, ledger, night_folders
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from daybreak.storage.exposures import Exposure
    from daybreak.storage.traffic_log import Log
    from daybreak.storage.traffic_row import Traffic

FOLDER = records.RUN / "live"
DECIDED = FOLDER / "decided.json"
BEFORE, SHADOW_ROWS = "before.json", "shadow_rows.json"
ANY_MARGIN = 0.01  # where the night's verdict on its scores has none
NIGHTS_BACK = 14  # for one that was evaluated
HISTORY_DAYS = 7  # of traffic, from which tonight's is forecast, and what a user scores


def judge(
    home: Home,
    night: Night,
    version: Version,
    champion: Champion,
    params: LiveSections,
    *,
    rules: Rules,
    replayed: Callable[[], Verdict],
) -> Verdict:
    """Returns the verdict of live traffic; NotYet, with how the experiment stands, while it goes on.

    `replayed` judges the held-out scores and whether the model is fit to serve; it is called once.
    """
    if (stale := records.find(Verdict, FOLDER)) and stale.challenger != version.number:
        end(home, night.id, params)  # users would meet that version unseen
        shutil.rmtree(FOLDER)
    if DECIDED.exists():
        decided = records.loads(Verdict, DECIDED.read_text(), source=str(DECIDED))
        end(home, night.id, params, keep=decided.action == "promote")
        return decided
    log = serving_log(home, params)
    rules = replace(rules, alpha=rules.alpha / slots.num_corrected(params))
    standing = records.find(Live, FOLDER)
    first = records.find(Verdict, FOLDER)
    if first is None:
        first = replayed()
        records.write(first, FOLDER)
    if not _may_begin(first, params.gate):
        return first
    if log is not None and (fault := _read(home, log, params)):
        if clock.utc() < night.decide_until:
            raise NotYet(fault)
        return _decided(home, _no_data(first, fault), params, experiment=night.id)
    if log is None or (standing is None and not _serves(log, params)):
        reason = (
            "no router runs and none has served for a week; start one by daybreak serve, or set "
            "gate.scores: replay"
        )
        return _no_data(first, reason)
    try:
        design = design_of(records.find(Evaluation, home.records), params, rules=rules)
    except (ParamsError, ReleaseError) as error:
        return _no_data(first, error)
    if standing is None:
        standing = _forecast(log, night, params, rules=design.rules, by=design.by)
        records.write(standing, FOLDER)
    test = _LiveTest(
        home=home,
        night=night,
        version=version,
        champion=champion,
        params=params,
        log=log,
        first=first,
        standing=standing,
        design=replace(design, looks=_looks(standing, night), before=_before(FOLDER)),
    )
    return _decided(home, _look(test), params, experiment=night.id)


@dataclass(frozen=True, kw_only=True)
class _LiveTest:
    """A live test that may begin, by versions, log and design."""

    home: Home
    night: Night
    version: Version
    champion: Champion
    params: LiveSections
    log: "Log"
    first: Verdict  # of held-out scores
    standing: Live  # when it was last looked at
    design: Design

    @property
    def limits(self) -> LiveTestParams:
        """Returns the section of params.yaml."""
        return self.params.section(LiveTestParams)


def _obstacle(test: _LiveTest, traffic: "Traffic") -> str:
    """Returns why users tell nothing of this version beside this champion; "" where they do."""
    serving = ledger.champion_at(test.home, branch.ledger_tip(test.home))
    if serving is None or serving.version != test.champion.version:
        number = serving.version if serving else 0
        return f"version {number} serves by now, not {test.champion.version}"
    experiment, number = test.night.id, test.version.number
    tested = test.log.exposures.tested(experiment, arm=CHALLENGER) | {traffic.of(experiment).challenger}
    if others := tested - {0, number}:
        return f"users of this night met version {min(others)}, not {number}; open a new night"
    return ""


def _look(test: _LiveTest) -> Verdict:
    """Looks once at an experiment that may begin, and takes one action; NotYet while it goes on."""
    log, night = test.log, test.night
    is_over = clock.utc() >= night.decide_until
    traffic = log.traffic.read()
    if why := _obstacle(test, traffic):
        return _no_data(test.first, why)
    if not traffic.of(night.id).experiment:
        traffic = _open(test, traffic, over=is_over)
    ours = traffic.of(night.id)  # at share 0 where somebody has ended it
    share = ours.share
    seen = observed(log.exposures.of(night.id), test.limits)
    shadowed = _shadowed(log, night.id, test.design)
    try:
        finding = look(seen, test.design, now=_now(log)).beside(shadowed.checks)
    except DataError as error:
        return _no_data(test.first, error)
    finding = _among(log, finding, ours, test.standing, test.limits)
    decision, step = decide(
        finding,
        rules=test.design.rules,
        mode="both" if test.params.gate.scores == "both" else "live",
        pace=pace(test.limits),
        share=share,
        units=seen.counts(share)[0],
        hours=(log.now() - slots.held_since(log, ours, since=test.standing.began_at)) / HOUR_S,
        over=is_over or not ours.experiment,
    )
    has_shadow = _has_shadow(log, test.limits)
    waits = shadowed.waits(test.limits.ramp_users) if has_shadow else ""
    if waits and step.action == "raise" and not share:
        step = replace(step, action="hold", share=share, reason=waits)
    if has_shadow and not waits:
        finding = finding.beside(_shadow_rows(log, night, test.params.validate_))
    if why := log.traffic.why_stopped(night.id):
        decision = Decision(action="reject", reason=f"stopped by a router: {why}")
    standing = _standing(test.standing, finding, decision, ours)
    if decision.action != "wait":
        return _verdict(test.first, decision, standing, both=test.params.gate.scores == "both")
    try:
        _prepare(test.home, night, test.version, test.champion)
        if step.share != share:
            traffic = move(log, traffic.with_share(night.id, step.share))
        share_out(test.home, test.params)
    except (ReleaseError, ParamsError) as error:
        return _no_data(test.first, f"users cannot meet version {test.version.number}: {error}")
    raise NotYet(_sentence(standing, decision, step, log, traffic, own=test.limits.metric is not None))


def _among(log: "Log", finding: Readout, ours: "Traffic", standing: Live, limits: LiveTestParams) -> Readout:
    """Returns what the log says, also of how users were shared out among tests that may be on at once."""
    if not ours.experiment or ours.num_slots == 1:
        return finding
    own = limits.metric is not None
    users = slots.users_by_slot(log, ours, since=standing.began_at, ramp=limits.ramp[-1], own=own)
    return finding.among(users)


def lets_open(home: Home, nights: Sequence[Night], params: LiveSections) -> bool:
    """Returns whether users judge the challengers of all these nights, and may meet one more.

    While a test is on the number of slots stays, so a larger `live_test.challengers` is no room for a night,
    which would train and then wait.
    """
    log = serving_log(home, params)
    if log is None:
        return False
    traffic = log.traffic.read()
    on = {test.experiment for test in traffic.tests}
    folders = {night.id: folder for folder, night in night_folders.unclosed(home)}
    decided = [night.id in folders and (folders[night.id] / DECIDED).exists() for night in nights]
    judged = on.issuperset(night.id for night in nights) and not any(decided)
    return judged and len(nights) < min(slots.num_slots(params), traffic.num_slots)


def _has_shadow(log: "Log", limits: LiveTestParams) -> bool:
    """Returns whether requests are put to a challenger before users meet it, which routers alone do."""
    return limits.shadow > 0 and limits.metric is None and bool(log.servers.routers())


def _shadow_rows(log: "Log", night: Night, params: ValidateParams) -> list[Check]:
    """Returns how the challenger's rows compare with its training days, as found when the shadow was over."""
    path = FOLDER / SHADOW_ROWS
    if path.exists():
        return [records.loads(Check, path.read_text(), source=str(path))]
    found = shadow_rows.compared(log, night, params)
    if found:
        records.replace_text(path, records.dumps(found))
    return [found] if found else []


def _shadowed(log: "Log", experiment: str, design: Design) -> Shadowed:
    """Returns what the challenger of an experiment answered in the shadow of the champion."""
    answers = log.exposures.shadowed(experiment)
    return read_shadow(answers, limits=design.limits, of_lists=design.by.of_lists)


def design_of(evaluation: Evaluation | None, params: LiveSections, *, rules: Rules) -> Design:
    """Returns how users judge, by the metrics that a night found; the looks are not planned yet.

    Raises ReleaseError where no metric of the workload has values of single samples, ParamsError where it
    cannot be imported any more.
    """
    limit = params.section(LiveTestParams)
    by, rules = score_by(evaluation, params.gate, rules=rules, own=limit.metric)
    return Design(
        rules=rules,
        limits=GuardrailLimits(
            errors=limit.max_errors,
            attrition=limit.max_attrition,
            fallbacks=limit.max_fallbacks,
            p99_s=limit.max_p99_rise_s,
            shift=params.gate.max_shift,
            margin=rules.margin,
        ),
        window_s=limit.outcome_hours * HOUR_S,
        novelty_s=limit.novelty_hours * HOUR_S,
        by=by,
        others=others_by(evaluation, params.gate, own=limit.metric),
    )


def observed(
    exposures: "Iterable[Exposure]", params: LiveTestParams, *, window_s: float | None = None
) -> ObservationLog:
    """Returns the observations among an experiment's exposures, which come oldest first.

    `window_s` is that of `live_test.outcome_hours` unless given.
    """
    return observe(
        exposures,
        window_s=params.outcome_hours * HOUR_S if window_s is None else window_s,
        novelty_s=params.novelty_hours * HOUR_S,
        max_visits=params.max_visits_per_unit,
    )


def score_by(
    evaluation: Evaluation | None, params: GateParams, *, rules: Rules, own: OwnMetricParams | None = None
) -> tuple[LiveScore, Rules]:
    """Returns the score of users by the first success metric, and the rules with that metric's margin.

    A metric of a team's own serving comes first, with the margin that params.yaml has for it. Raises
    ReleaseError where no metric of the workload has values of single samples, ParamsError where it cannot be
    imported any more.
    """
    if own is not None:
        return OwnScore(metric=own, low=own.low, high=own.high), replace(rules, margin=own.margin)
    if evaluation is None or evaluation.live is None:
        return LISTS, rules
    if not evaluation.live.use:
        raise ReleaseError(
            "no metric of the workload has a value for a single row, by which users could be compared; name "
            "one such as LogLoss() or AbsoluteError() in its metrics, or set gate.scores: replay"
        )
    first = _live_success(evaluation, params)[0]
    margin = (params.margin if first.is_first else None) or first.margin or LEAST_MARGIN
    return _row_score(first), replace(rules, margin=margin)


def others_by(
    evaluation: Evaluation | None, params: GateParams, *, own: OwnMetricParams | None = None
) -> tuple[UserMetric, ...]:
    """Returns the other metrics by which users judge: further success metrics, and guardrails.

    Those of a set, such as AUC, are judged on held-out samples alone; where a team serves by itself, it
    reports one metric only. Raises ParamsError where a metric cannot be imported any more.
    """
    if own is not None or evaluation is None or evaluation.live is None or not evaluation.live.use:
        return ()
    first, *success = _live_success(evaluation, params)
    known = {one.name: one for one in (evaluation.live, *evaluation.live_others)}
    held = [
        (known[name], margin)
        for name, margin in guardrails_of(params, evaluation).items()
        if name in known and known[name] not in (first, *success)
    ]
    asked = [(one, one.margin or LEAST_MARGIN, False) for one in success]
    asked += [(one, margin, True) for one, margin in held]
    return tuple(
        UserMetric(
            name=one.name.removeprefix("-"), by=_row_score(one), margin=margin, is_guardrail=is_guardrail
        )
        for one, margin, is_guardrail in asked
    )


def _live_success(evaluation: Evaluation, params: GateParams) -> list[LiveMetric]:
    """Returns the success metrics that users can judge; the first that they can where none of these is."""
    assert evaluation.live
    known = {one.name: one for one in evaluation.live_others}
    known |= {evaluation.live.name: evaluation.live, "score": evaluation.live}
    named = [known[name] for name in success_of(params, evaluation) if name in known]
    return [one for place, one in enumerate(named) if one not in named[:place]] or [evaluation.live]


def _row_score(live: LiveMetric) -> RowScore:
    metric = Plug(use=live.use, **live.arguments).make()
    return RowScore(
        metric=metric, has_label=live.has_label, classes=live.classes, low=live.low, high=live.high
    )


def look(seen: ObservationLog, design: Design, *, now: datetime) -> Readout:
    """Returns what the log of an experiment says by now.

    Raises DataError where a metric cannot be computed of what users were shown and told.
    """
    try:
        return find(seen, design, now=now.timestamp())
    except Exception as error:  # a metric is the team's code, and its arguments come from clients
        why = f"{type(error).__name__}: {error}"
        raise DataError(f"outcomes cannot be judged: {why}; look at the metrics and labels") from error


def pace(params: LiveTestParams) -> ramp.Pace:
    """Returns the pace of the ramp, as params.yaml has it."""
    return ramp.Pace(shares=params.ramp, units=params.ramp_users, hours=params.ramp_hours)


def clean(home: Home, params: LiveSections) -> str:
    """Ends an experiment that no open night wants, or whose guardrails broke; says what was done."""
    log = serving_log(home, params)
    traffic = log.traffic.read() if log else None
    if log is None or traffic is None or traffic.is_holdback:
        return ""
    return "".join(_cleaned(home, log, test.experiment, params) for test in traffic.tests)


def _cleaned(home: Home, log: "Log", experiment: str, params: LiveSections) -> str:
    """Ends an experiment that no open night wants, or whose guardrails broke; returns a sentence on it."""
    opened = next((one for one in night_folders.unclosed(home) if one[1].id == experiment), None)
    folder, night = opened or (home.nights / experiment, None)
    standing = records.find(Live, folder / FOLDER)
    is_over = night is None or clock.utc_of(night) > night.decide_until + timedelta(hours=1)
    if night is None or standing is None or is_over:
        end(home, experiment, params)
        return f"ended the experiment {experiment}, which no night wants any more; "
    first, gate = records.find(Verdict, folder / FOLDER), params.gate
    margin = gate.margin or (first.margin if first else None) or ANY_MARGIN
    alpha = gate.alpha / slots.num_corrected(params)
    rules = Rules(alpha=alpha, margin=margin, min_samples=gate.min_samples, refresh=True)
    if fault := _read(home, log, params):  # else users would meet the challenger unseen
        end(home, experiment, params)
        return f"ended the experiment {experiment}: {fault}; "
    try:
        design = design_of(records.find(Evaluation, folder / records.RUN), params, rules=rules)
        design = replace(design, looks=_looks(standing, night), before=_before(folder / FOLDER))
        seen = observed(log.exposures.of(experiment), params.section(LiveTestParams))
        finding = look(seen, design, now=_now(log)).beside(_shadowed(log, experiment, design).checks)
        ours = log.traffic.read().of(experiment)
        finding = _among(log, finding, ours, standing, params.section(LiveTestParams))
    except (DataError, ParamsError, ReleaseError) as error:  # likewise
        end(home, experiment, params)
        return f"ended the experiment {experiment}: {error}; "
    if not finding.broken:
        return ""
    end(home, experiment, params)
    return f"ended the experiment {experiment}: {'; '.join(finding.broken)}; "


def _prepare(home: Home, night: Night, version: Version, champion: Champion) -> None:
    """Deploys the challenger on the endpoint, where there is one; NotYet until it is deployed."""
    with endpoint(home, version.name) as there:
        if there:
            release = Release(
                version=version.number,
                replaced=champion.version,
                model_digest=version.model_digest,
                files_digest=version.files_digest,
                files=version.files,
                night=night.id,
            )
            there.prepare(release)


def _no_data(first: Verdict, why: object) -> Verdict:
    """Returns the verdict of held-out scores as one that users could not confirm."""
    return replace(first, action="no data", inconclusive=False, reason=f"live: {why}")


def _decided(home: Home, verdict: Verdict, params: LiveSections, *, experiment: str) -> Verdict:
    """Returns the verdict, written before the experiment is ended."""
    records.replace_text(DECIDED, records.dumps(verdict))
    end(home, experiment, params, keep=verdict.action == "promote")
    return verdict


def _may_begin(first: Verdict, params: GateParams) -> bool:
    """Returns whether the live test may begin: for `both` on a promotion, for `live` on passed checks."""
    if params.scores == "both":
        return first.action == "promote"
    return all(check.ok for check in first.checks)


def _read(home: Home, log: "Log", params: LiveSections) -> str:
    """Takes in what a team's own serving has reported; returns why that cannot be read, or an empty text."""
    try:
        limits, erased = params.section(LiveTestParams), erasures.units(home)
        own_serving.read(log, limits, now=datetime.now(UTC), erased=erased)
    except (DataError, ParamsError, ReleaseError) as error:
        return f"what users met cannot be read: {error}"
    return ""


def _serves(log: "Log", params: LiveSections) -> bool:
    """Returns whether a router runs, or users were answered in the last days, or are where a source says."""
    if params.section(LiveTestParams).observations:
        return True
    since = log.now() - HISTORY_DAYS * DAY_S
    return bool(log.servers.routers()) or next(iter(log.exposures.of(None, since=since)), None) is not None


def _open(test: _LiveTest, traffic: "Traffic", *, over: bool) -> "Traffic":
    """Returns the traffic with this experiment at share 0; unchanged where the night or the test is over."""
    log, night = test.log, test.night
    if over or any(True for _ in log.exposures.of(night.id)):
        return traffic
    traffic = slots.joined(
        replace(traffic, champion=test.champion.version),
        challenger=test.version.number,
        experiment=night.id,
        num_slots=slots.num_slots(test.params),
    )
    return move(log, traffic)


def _forecast(log: "Log", night: Night, params: LiveSections, *, rules: Rules, by: LiveScore) -> Live:
    """Returns what the traffic of the last days lets one expect of tonight's.

    The scores of users in these days are recorded with the test, since they make the effect less noisy.
    """
    now, left = _now(log).replace(microsecond=0), night.decide_until - clock.utc()
    since = now.timestamp() - HISTORY_DAYS * DAY_S
    before = _volume(log, by, slots.num_slots(params))
    scores = forecast.scores_before(log.exposures.of(None, since=since), by=by)
    records.replace_text(FOLDER / BEFORE, json.dumps(scores))
    settling = by.windows * params.section(LiveTestParams).outcome_hours
    hours = max(left.total_seconds() / HOUR_S - settling, 0.0)
    text = forecast.forecast(
        before, pace=pace(params.section(LiveTestParams)), hours=hours, alpha=rules.alpha, margin=rules.margin
    )
    return Live(experiment=night.id, began_at=now, ends_at=now + left, foretold=text)


def hours_needed(home: Home, params: LiveSections, *, hours: float) -> float:
    """Returns how long users need to judge tonight's challenger, who decide within `hours`.

    It goes by the traffic of the last days, by the metric and the margin of the newest night that was
    evaluated, and by `gate.alpha`; the scores of the last users are settled one or two times
    `live_test.outcome_hours` later. 0 where no user meets the challenger, or where nothing tells.
    """
    if params.gate.scores == "replay":
        return 0.0
    nights = (commit.id for commit in ledger.commits(home, limit=NIGHTS_BACK))
    newest = next((commit for commit in nights if branch.read_at(home, commit, Evaluation)), "")
    evaluation, verdict = branch.read_at(home, newest, Evaluation), branch.read_at(home, newest, Verdict)
    log = serving_log(home, params) if evaluation else None
    if log is None:
        return 0.0
    margin = params.gate.margin or (verdict.margin if verdict else None) or ANY_MARGIN
    alpha = params.gate.alpha / slots.num_corrected(params)
    rules = Rules(alpha=alpha, margin=margin, min_samples=params.gate.min_samples, refresh=True)
    try:
        by, rules = score_by(evaluation, params.gate, rules=rules, own=params.section(LiveTestParams).metric)
    except (ParamsError, ReleaseError):  # the test itself will say so
        return 0.0
    settling = by.windows * params.section(LiveTestParams).outcome_hours
    if (longest := hours - settling) <= 0:
        return 0.0
    needed = forecast.hours_needed(
        _volume(log, by, slots.num_slots(params)),
        pace=pace(params.section(LiveTestParams)),
        alpha=rules.alpha,
        margin=rules.margin,
        longest=longest,
    )
    return round(needed + settling, 2) if needed else 0.0


def _volume(log: "Log", by: LiveScore, num_slots: int) -> forecast.Volume:
    """Returns the traffic of the last days that one of so many slots has."""
    now = log.now()
    exposures = log.exposures.of(None, since=now - HISTORY_DAYS * DAY_S)
    volume = forecast.volume(exposures, now=now, days=HISTORY_DAYS, by=by)
    return replace(volume, users_per_hour=volume.users_per_hour / num_slots)


def _looks(standing: Live, night: Night) -> Looks:
    return Looks(began=standing.began_at.timestamp(), ends=standing.ends_at.timestamp())


def _now(log: "Log") -> datetime:
    """Returns the time by the clock of the log, as which routers record when users came."""
    return datetime.fromtimestamp(log.now(), UTC)


def _before(folder: Path) -> dict[str, float]:
    """Returns what users scored before the test, by unit."""
    scores: dict[str, float] = json.loads((folder / BEFORE).read_text())
    return scores


def _standing(before: Live, finding: Readout, decision: Decision, ours: "Traffic") -> Live:
    """Returns how the experiment stands after a look."""
    effect = finding.result.effect
    return replace(
        before,
        share=ours.share,
        num_slots=ours.num_slots,
        num_challenger=finding.num_ours,
        num_champion=finding.num_theirs,
        effect=effect.measured if effect else None,
        reason=decision.reason,
        checks=finding.checks,
        segments=finding.segments,
    )


def _verdict(first: Verdict, decision: Decision, standing: Live, *, both: bool) -> Verdict:
    """Returns the verdict by live traffic, with the reason of the held-out verdict behind it."""
    verdict = replace(
        first,
        action=decision.action,
        reason=f"live: {decision.reason}; held-out scores: {first.reason}",
        inconclusive=decision.inconclusive,
        live=standing,
    )
    if both:
        return verdict
    num_users = standing.num_challenger + standing.num_champion
    return replace(verdict, effect=standing.effect, num_samples=num_users)


def _sentence(
    standing: Live, decision: Decision, step: ramp.RampStep, log: "Log", traffic: "Traffic", *, own: bool
) -> str:
    """Says how the experiment stands, and what comes next."""
    routers = log.servers.routers()
    faults = [router.fault for router in routers if router.fault]
    missing = "" if routers or own else "; no router runs, start one by daybreak serve"
    wrong = f"; a router says: {faults[0]}" if faults else missing
    ours, num_slots = traffic.of(standing.experiment), traffic.num_slots
    beside = [test for test in traffic.tests if test.experiment != ours.experiment]
    others = "".join(f"version {test.challenger} is tested in part {test.slot + 1}; " for test in beside)
    users = f"the users of part {ours.slot + 1} of {num_slots}" if num_slots > 1 else "users"
    return (
        f"{ours.share:.0%} of {users} meet version {ours.challenger}; {standing.num_challenger:,} have, and "
        f"{standing.num_champion:,} met version {traffic.champion}; {others}{decision.reason}; "
        f"{standing.foretold}; next: {step.reason}{wrong}"
    )

"""Stage gate: decides whether the challenger serves.

A challenger of the champion's recipe on newer data is a refresh: it is promoted when proven no worse than by
the margin, since freshness is the purpose of retraining. A changed recipe must be proven better over nights
(daybreak/gate/recipe_test.py), and data that ends before the champion's must be proven better tonight. On the
first night there is no champion, and the challenger must be proven better than a simple rule: for a table the
best constant, otherwise the workload's baseline `popularity`, or without that name the workload's weakest
baseline; without any baseline, it is promoted. Where nothing can be judged, the champion stays, and the
verdict says why.

By `gate.scores`, held-out scores decide, or users who meet one model or the other
(daybreak/extensions/live_test/live_test.py), or both.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

from numpy.typing import NDArray

from daybreak.contract import clock
from daybreak.contract.errors import ReleaseError
from daybreak.contract.formats import counted
from daybreak.contract.record_types import (
    Action,
    Champion,
    Check,
    Dataset,
    Evaluation,
    Night,
    Verdict,
    Version,
)
from daybreak.contract.sections import GateParams, GateSections, LiveSections
from daybreak.contract.workload import UNIT, serves_rows
from daybreak.evaluation.held_out import arrays_of
from daybreak.evaluation.live_judge import LiveJudge
from daybreak.evaluation.scores import Columns, read_scores, with_prefix
from daybreak.evaluation.smoke_test import only_slow, smoke_test
from daybreak.gate import recipe_test
from daybreak.gate.all_metrics import LEAST_MARGIN, guardrails_of, judge_metrics, pairs_of, success_of
from daybreak.gate.chain import NIGHTS_PER_YEAR, apply_chain, chain_of
from daybreak.gate.plausibility import NIGHTS, plausible
from daybreak.gate.selftest import selftest
from daybreak.registry import approval
from daybreak.registry.lineage import is_declared_equal, is_refresh, recipe, what_changed
from daybreak.rollout import hold
from daybreak.rollout.hold import InForce
from daybreak.rollout.lost_ledger import expect_ledger
from daybreak.statistics.paired import Rules, judge
from daybreak.statistics.result import Conclusion, Status
from daybreak.storage import ledger
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

LOOKED_AT = 2 * NIGHTS  # commits of the ledger, of which some are of nights that judged nothing
RELATIVE_MARGIN = 0.01  # of the champion's score, where neither params.yaml nor the workload has one
FIRST_BASELINE = "popularity"  # what the first model must beat, where the workload has it
ACTIONS: dict[Status, Action] = {
    Status.BETTER: "promote",
    Status.NO_WORSE: "promote",
    Status.WORSE: "reject",
    Status.INVALID: "reject",
    Status.INCONCLUSIVE: "reject",
    Status.OPEN: "wait",
    Status.MISMATCH: "no data",
    Status.NO_DATA: "no data",
}


def gate(
    night: Night,
    evaluation: Evaluation,
    version: Version,
    champion: Champion | None,
    params: GateSections,
    *,
    home: Home,
    dataset: Dataset | None = None,
    live: LiveJudge | None = None,
) -> Verdict:
    """Returns the verdict on tonight's version.

    Beside records it reads `data/run/scores.npy`, the last nights of the ledger, and the log of serving where
    users decide.

    Args:
        home: whose nights these are.
        night: tonight's.
        evaluation: of the model that `version` holds; ReleaseError where it is of another.
        version: the challenger.
        champion: that served when the night was opened; None before the first.
        params: its sections.
        dataset: that the version was trained on.
        live: judges by users, where `gate.scores` says so.
    """
    if version.model_digest != evaluation.model_digest or version.night != night.id:
        raise ReleaseError(
            f"version {version.number} of night {version.night} is of model {version.model_digest}, but "
            f"night {night.id} evaluated {evaluation.model_digest}; run evaluate and register again"
        )
    expect_ledger(home, params.register_)
    is_same = _is_same_recipe(home, night, champion, params)
    held = hold.on(home, _recipes(champion, params, is_same=is_same), day=night.day)
    older = _older(home, champion, dataset)
    refresh = is_same and not older
    rules = rules_of(params.gate, refresh=refresh, evaluation=evaluation)
    scores, year = read_scores() or {}, _earlier(home, night, NIGHTS_PER_YEAR + LOOKED_AT)
    past = year[:LOOKED_AT]
    proof = recipe_test.proof_of(
        year,
        _tested(champion, params, tries=bool(held) or not refresh, older=bool(older)),
        scores,
        evaluation,
        params.gate,
        day=night.day,
        changed=champion is not None and not refresh,
        held_since=max((one.hold.since for one in held), default=None),
    )
    if proof.chance is not None and proof.test is None:
        rules = replace(rules, alpha=2 * proof.chance)
    chain = chain_of(
        scores,
        champion,
        past,
        night=night,
        refresh=refresh,
        margin=rules.margin,
        alpha=params.gate.alpha,
        units=scores.get(UNIT),
    )

    kind = "older data" if older else ""
    by = partial(judge_scores, home, evaluation, version, champion, params, past=past, kind=kind)
    may_lose = chain is not None and chain.level is not None
    over_nights = None if refresh else proof.over_nights
    replayed = partial(by, rules=replace(rules, may_lose=may_lose), over_nights=over_nights)

    def better() -> Verdict:  # of a refresh, by a chance of its own, which takes nothing from other recipes
        assert proof.apart
        asked = replace(rules, refresh=False, alpha=2 * proof.apart)
        return replace(by(rules=asked, over_nights=proof.over_nights), held_chance=proof.apart)

    if params.gate.scores == "replay" or champion is None or held:  # no user meets what a person took back
        verdict = replayed()
    else:
        assert live, f"gate.scores is {params.gate.scores}, and no judge of live traffic is given"
        verdict = live.judge(
            home,
            night,
            version,
            champion,
            params.only(LiveSections),
            rules=rules_for_users(rules, proof.chance),
            replayed=replayed,
        )
    verdict = replace(proof.on(apply_chain(verdict, chain)), recipe=recipe(params.workload, params.train))
    changed = what_changed(home, champion, params.workload, params.train) if champion and not is_same else ""
    for clause in filter(None, (changed, older)):
        verdict = replace(verdict, reason=f"{verdict.reason}; {clause}")
    verdict = approval.request_approval(verdict, params.release, until=night.decide_until)
    if held:
        again = better if refresh else None
        verdict = under_hold(verdict, held, evaluation, night=night, scores=params.gate.scores, better=again)
    tried = any(check.name == "loads" for check in verdict.checks)
    if verdict.approve_until and verdict.action != "promote" and not tried:
        verdict = fit_to_serve(verdict, _smoke_test(home, version, champion, evaluation, params))
    return replace(verdict, decided_at=clock.utc().replace(microsecond=0))


def _tested(
    champion: Champion | None, params: GateSections, *, tries: bool, older: bool
) -> recipe_test.UnderTest | None:
    """Returns which recipe is tested over nights; None where tonight alone decides, or users do.

    `tries` says whether tonight's version is of the recipe under test. If not, and the champion's recipe only
    has its turn, the newest version of the recipe under test was scored beside it.
    """
    if champion is None or older or params.gate.scores != "replay" or params.gate.min_nights == 1:
        return None
    against = champion.lineage.get("recipe", "")
    if tries:
        return recipe_test.UnderTest(
            recipe=recipe(params.workload, params.train), against=against, arms=("challenger", "champion")
        )
    if champion.candidate is None:
        return None
    tested = champion.candidate.lineage.get("recipe", "")
    return recipe_test.UnderTest(recipe=tested, against=against, arms=("candidate", "challenger"))


def _is_same_recipe(home: Home, night: Night, champion: Champion | None, params: GateSections) -> bool:
    """Returns whether tonight's recipe is the champion's, by itself, by a person's word or by proof."""
    tonight = params.workload, params.train
    if is_refresh(champion, *tonight) or is_declared_equal(home, champion, *tonight):
        return True
    return bool(champion and night.chosen and night.chosen.is_refresh)  # proven better on earlier nights


def _recipes(champion: Champion | None, params: GateSections, *, is_same: bool) -> set[str]:
    """Returns the digests that tonight's recipe goes by: the champion's, too, where it is the same."""
    tonight = recipe(params.workload, params.train)
    return {tonight} | ({champion.lineage.get("recipe", "")} if champion and is_same else set())


def _older(home: Home, champion: Champion | None, dataset: Dataset | None) -> str:
    """Returns that tonight's data is older than the champion's, as a clause; "" where it is not.

    Compared are the days of training, as a refit on the held-out days follows for either.
    """
    if champion is None or dataset is None:
        return ""
    (made,) = ledger.promotions(home, champion.version)
    if made is None or made.dataset is None or dataset.last_day >= made.dataset.last_day:
        return ""
    return (
        f"its data ends on {dataset.last_day}, and that of version {champion.version} on "
        f"{made.dataset.last_day}, so it is not a refresh, and must be proven better"
    )


def rules_for_users(rules: Rules, chance: float | None) -> Rules:
    """Returns the rules of the live test, where a changed recipe has that chance of a false promotion.

    Each end of its interval fails with alpha, over all looks; of the interval at one look, with half of it.
    """
    return rules if chance is None else replace(rules, alpha=chance)


def _earlier(home: Home, night: Night, limit: int) -> list[ledger.Entry]:
    """Returns the newest entries of the ledger without tonight's, which there is if it was closed before."""
    return [entry for entry in ledger.history(home, limit) if entry.rollback or entry.night.id != night.id]


def judge_scores(
    home: Home,
    evaluation: Evaluation,
    version: Version,
    champion: Champion | None,
    params: GateSections,
    *,
    rules: Rules,
    past: Sequence[ledger.Entry] = (),
    kind: str = "",
    over_nights: Conclusion | None = None,
) -> Verdict:
    """Returns the verdict on `data/run/scores.npy`, and on whether the version is fit to serve.

    No scores are believed that are unlike those of the nights in `past`, entries of the ledger, newest first.

    Only a version that is to be promoted, or to be judged by users, has to pass the checks of fitness. For
    users, held-out scores are advice only, so the gate's test of itself on these scores is left out.
    """
    scores = read_scores()
    verdict = decide(
        scores,
        evaluation=evaluation,
        version=version,
        champion=champion,
        rules=rules,
        kind=kind,
        over_nights=over_nights,
        success=success_of(params.gate, evaluation),
        guardrails=guardrails_of(params.gate, evaluation),
        believed=plausible(
            scores or {},
            evaluation,
            past,
            false_alarms_per_year=params.gate.false_alarms_per_year,
            anchor=champion.anchor.release.version if champion and champion.anchor else None,
        ),
    )
    if params.gate.scores == "live" and champion is not None:
        verdict = replace(verdict, checks=())
    elif verdict.action != "promote":
        return verdict
    return fit_to_serve(verdict, _smoke_test(home, version, champion, evaluation, params))


def _smoke_test(
    home: Home, version: Version, champion: Champion | None, evaluation: Evaluation, params: GateSections
) -> tuple[Check, ...]:
    columns = read_scores() or {}
    predicted = with_prefix(columns, "prediction")
    if predicted and not serves_rows(params.workload.make()):
        predicted = {}  # a version of it takes the numbers of samples, and returns their scores
    return smoke_test(
        home,
        version,
        champion,
        columns.get("challenger"),
        params.smoke_test,
        predicted=predicted,
        arrays=arrays_of(evaluation.days),
    )


def fit_to_serve(verdict: Verdict, checks: tuple[Check, ...]) -> Verdict:
    """Returns the verdict, or a rejection where the model is unfit to serve.

    A model that was only slow here is not proven unfit: a person may overrule that, where one is asked.
    """
    verdict = replace(verdict, checks=(*verdict.checks, *checks))
    unfit = [f"{check.name}: {check.text}" for check in checks if not check.ok]
    if not unfit:
        return verdict
    if verdict.action == "promote":
        would = "it would have been promoted"
    else:
        would = "it would have been put to a person" if verdict.inconclusive else "its held-out scores"
    reason = f"not fit to serve: {'; '.join(unfit)}; {would}: {verdict.reason}"
    slow = only_slow(checks)
    until = verdict.approve_until if slow else None
    return replace(verdict, action="reject", reason=reason, inconclusive=slow, approve_until=until)


def decide(
    scores: Columns | None,
    *,
    evaluation: Evaluation,
    version: Version,
    champion: Champion | None,
    rules: Rules,
    kind: str = "",
    success: Sequence[str] = ("score",),
    guardrails: Mapping[str, float] | None = None,
    believed: Check | None = None,
    over_nights: Conclusion | None = None,
) -> Verdict:
    """Returns the verdict on the columns of scores.npy, or on a recipe over nights where it is tested so.

    The verdict is "no data" where the gate fails its own test on the scores, or where the scores are not
    plausible (daybreak/gate/plausibility.py).
    """
    scores = scores or {}
    checks: tuple[Check, ...] = ()
    if champion is not None and evaluation.metrics.get("champion_has_seen"):
        seen = f"version {champion.version} was trained on held-out days, so its scores prove nothing"
        result, why = Conclusion(status=Status.NO_DATA, sentence=seen), ""
    elif evaluation.cannot_judge:
        result, why = Conclusion(status=Status.NO_DATA, sentence=evaluation.cannot_judge), ""
    elif champion is None and not with_prefix(scores, "baseline"):
        result, why = _judge_alone(scores.get("challenger"), rules), ""
    else:
        case = _case(scores, champion, rules=rules, success=success, guardrails=guardrails or {})
        result = judge_metrics(**case)
        checks = selftest(**case) if result.effect else ()
        result = recipe_test.with_tonight(over_nights, result) if over_nights else result
        kind = kind or ("refresh" if rules.refresh else "changed recipe")
        why = f"{kind if champion else 'no champion yet'}: "
    if result.status is not Status.NO_DATA and "score" not in evaluation.metrics:
        lost = int(evaluation.metrics.get("num_not_finite", 0))
        sentence = (
            f"{counted(lost, 'score')} of this night's models are not finite, so that nothing can be judged; "
            f"look at what predict returns: daybreak try"
            if lost
            else "evaluation.json has no metric named score"
        )
        result = Conclusion(status=Status.INVALID, sentence=sentence)
    if champion is None:  # there is nothing that was scored before
        believed = None
    if believed and not believed.ok and result.status is not Status.NO_DATA:
        sentence = f"tonight's scores are not believed, so nothing is judged by them: {believed.text}"
        result = replace(result, status=Status.NO_DATA, sentence=sentence)
    elif broken := next((check for check in checks if not check.ok), None):
        sentence = (
            f"the gate failed its own test ({broken.name}: {broken.text}), so its verdict is not believed"
        )
        result = replace(result, status=Status.NO_DATA, sentence=sentence)
    effect, inconclusive = result.effect, result.status is Status.INCONCLUSIVE
    return Verdict(
        action=ACTIONS[result.status],
        champion=champion.version if champion else 0,
        challenger=version.number,
        effect=effect.mean if effect else None,
        low=_bound(effect.low) if effect else None,
        high=_bound(effect.high) if effect else None,
        num_samples=evaluation.num_samples,
        num_units=effect.num_samples if effect and effect.of == "unit" else 0,
        reason=f"{'' if inconclusive else why}{result.sentence}{_left_out(evaluation)}{_lost(evaluation)}",
        inconclusive=inconclusive,
        checks=(believed, *checks) if believed else checks,
        margin=rules.margin if champion else None,
    )


def under_hold(
    verdict: Verdict,
    held: Sequence[InForce],
    evaluation: Evaluation,
    *,
    night: Night,
    scores: str,
    better: Callable[[], Verdict] | None = None,
) -> Verdict:
    """Returns the verdict on a recipe that a person holds (daybreak/rollout/hold.py).

    Args:
        verdict: that it would have without.
        held: the holds on its recipe.
        evaluation: of the challenger; it proves something on days after the words of these holds.
        night: tonight's.
        scores: `gate.scores`; held-out scores prove something where they alone decide.
        better: judges whether a refresh is better than the champion; None where it was proven better, as a
            changed recipe is, to be promoted.
    """
    proven = verdict.action == "promote" and scores == "replay" and hold.is_new_evidence(held, evaluation)
    if proven and better:
        again = better()
        verdict, proven = replace(verdict, held_chance=again.held_chance), again.action == "promote"
    elif proven:
        proven = verdict.low is not None and verdict.low > 0  # a first version may have had nothing to beat
    return hold.apply(verdict, held, night=night, proven=proven)


def _bound(end: float) -> float | None:
    """Returns the end of an interval; None where few nights do not bound it."""
    return end if isfinite(end) else None


def _left_out(evaluation: Evaluation) -> str:
    """Returns on how many held-out days models were compared, where that is not on all, to end a sentence."""
    if not evaluation.seen_days:
        return ""
    num_days = len(evaluation.days)
    return (
        f"; compared on {counted(num_days, 'held-out day')} of {num_days + len(evaluation.seen_days)} "
        f"({evaluation.num_samples:,} samples), as a model was trained on days up to "
        f"{max(evaluation.seen_days)}"
    )


def _lost(evaluation: Evaluation) -> str:
    """Returns how many values of scores and metrics are not finite, to end a sentence."""
    num = int(evaluation.metrics.get("num_not_finite", 0))
    return f"; left out of the means: {counted(num, 'value')} that are not finite" if num else ""


def _case(
    scores: Columns,
    champion: Champion | None,
    *,
    rules: Rules,
    success: Sequence[str],
    guardrails: Mapping[str, float],
) -> dict[str, Any]:
    """Returns the arguments of `judge_metrics`: against the champion, or the first model's baseline."""
    if champion is not None:
        return {
            "pairs": pairs_of(scores),
            "success": success,
            "guardrails": guardrails,
            "rules": rules,
            "against": "the champion",
            "slices": with_prefix(scores, "slice"),
            "units": scores.get(UNIT),
        }
    baselines = with_prefix(scores, "baseline")
    weakest = min(baselines, key=lambda name: float(baselines[name].sum()))
    name = FIRST_BASELINE if FIRST_BASELINE in baselines else weakest
    return {
        "pairs": {"score": (scores.get("challenger"), baselines[name])},
        "success": ("score",),
        "guardrails": {},
        "rules": replace(rules, refresh=False),
        "against": f"the baseline {name}",
        "slices": None,
        "units": scores.get(UNIT),
    }


def _judge_alone(ours: NDArray[Any] | None, rules: Rules) -> Conclusion:
    """Returns NO_WORSE, for want of anything to compare with, where the scores are enough and finite."""
    itself = judge(ours, ours, rules=rules)
    if itself.effect is None:
        return replace(itself, sentence=f"no champion yet: {itself.sentence}")
    sentence = "no champion yet, and the workload has no baseline to beat"
    return Conclusion(status=Status.NO_WORSE, sentence=sentence)


def rules_of(params: GateParams, *, refresh: bool, evaluation: Evaluation | None = None) -> Rules:
    """Returns what the statistics go by; without `gate.margin` it is a share of the champion's score."""
    share, score = RELATIVE_MARGIN, 1.0
    if evaluation:
        share = evaluation.judged[0].margin if evaluation.judged else share
        score = abs(evaluation.metrics.get("champion_score", evaluation.metrics.get("score", 1.0)))
    return Rules(
        alpha=params.alpha,
        margin=params.margin or share * score or LEAST_MARGIN,
        min_samples=params.min_samples,
        refresh=refresh,
        resamples=params.resamples,
    )

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from daybreak.contract import clock
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Champion, Dataset, Evaluation, Night, Verdict, Version
from daybreak.contract.sections import GateParams, GateSections, LiveSections
from daybreak.contract.workload import serves_rows
from daybreak.evaluation.held_out import arrays_of
from daybreak.evaluation.live_judge import LiveJudge
from daybreak.evaluation.scores import Columns, read_scores, with_prefix
from daybreak.evaluation.smoke_test import only_slow, smoke_test
from daybreak.gate import recipe_test
from daybreak.gate.all_metrics import LEAST_MARGIN, guardrails_of, success_of
from daybreak.gate.chain import apply_chain, chain_of, of_a_year
from daybreak.gate.plausibility import plausible
from daybreak.gate.verdict import decide
from daybreak.registry import approval
from daybreak.registry.lineage import ADOPTED, is_declared_equal, is_refresh, recipe, what_changed
from daybreak.rollout import hold
from daybreak.rollout.hold import InForce
from daybreak.rollout.lost_ledger import expect_ledger
from daybreak.statistics.paired import Rules
from daybreak.statistics.result import Conclusion
from daybreak.storage import ledger
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

RELATIVE_MARGIN = 0.01  # of the champion's score, where neither params.yaml nor the workload has one


@dataclass(frozen=True, kw_only=True)
class _Challenge:
    """Tonight's version and the champion, and what the home knows of their recipes and data."""

    home: Home
    night: Night
    evaluation: Evaluation
    version: Version
    champion: Champion | None
    params: GateSections
    scores: Columns
    year: Sequence[ledger.Entry]  # newest first, without tonight's
    is_same_recipe: bool
    older: str  # says that tonight's data is older than the champion's; "" where it is not
    held: Sequence[InForce]  # a person's holds on the recipe

    @property
    def refresh(self) -> bool:
        return self.is_same_recipe and not self.older

    def judged(self, *, rules: Rules, over_nights: Conclusion | None) -> Verdict:
        """Returns the verdict by held-out scores."""
        return judge_scores(
            self.home,
            self.evaluation,
            self.version,
            self.champion,
            self.params,
            rules=rules,
            past=self.year,
            kind="older data" if self.older else "",
            over_nights=over_nights,
        )


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
    _expect_of_tonight(night, evaluation, version)
    expect_ledger(home, params.register_)
    challenge = _challenge(night, evaluation, version, champion, params, home=home, dataset=dataset)
    proof = _proof(challenge)
    rules = rules_of(params.gate, refresh=challenge.refresh, evaluation=evaluation)
    if proof.chance is not None and proof.test is None:
        rules = replace(rules, alpha=2 * proof.chance)
    chain = chain_of(
        challenge.scores,
        champion,
        challenge.year,
        night=night,
        refresh=challenge.refresh,
        margin=rules.margin,
        alpha=params.gate.alpha,
        evaluation=evaluation,
    )
    may_lose = chain is not None and chain.level is not None
    verdict = _judged(challenge, proof, rules, live, may_lose=may_lose)
    verdict = proof.on(apply_chain(verdict, chain, gain=_gain(challenge, verdict)))
    verdict = replace(verdict, recipe=recipe(params.workload, params.train))
    verdict = _with_changes(verdict, challenge)
    verdict = approval.request_approval(verdict, params.release, until=night.decide_until)
    if challenge.held:
        better = partial(_as_better, challenge, proof, rules) if challenge.refresh else None
        verdict = under_hold(
            verdict, challenge.held, evaluation, night=night, scores=params.gate.scores, better=better
        )
    tried = any(check.name == "loads" for check in verdict.checks)
    if verdict.approve_until and verdict.action != "promote" and not tried:
        verdict = fit_to_serve(verdict, _smoke_test(home, version, champion, evaluation, params))
    return replace(verdict, decided_at=clock.utc().replace(microsecond=0))


def _expect_of_tonight(night: Night, evaluation: Evaluation, version: Version) -> None:
    """Raises ReleaseError where the version is not of the model that tonight evaluated."""
    if version.model_digest != evaluation.model_digest or version.night != night.id:
        raise ReleaseError(
            f"version {version.number} of night {version.night} is of model {version.model_digest}, but "
            f"night {night.id} evaluated {evaluation.model_digest}; run evaluate and register again"
        )


def _challenge(
    night: Night,
    evaluation: Evaluation,
    version: Version,
    champion: Champion | None,
    params: GateSections,
    *,
    home: Home,
    dataset: Dataset | None,
) -> _Challenge:
    is_same = _is_same_recipe(home, champion, params)
    return _Challenge(
        home=home,
        night=night,
        evaluation=evaluation,
        version=version,
        champion=champion,
        params=params,
        scores=read_scores() or {},
        year=_earlier(home, night),
        is_same_recipe=is_same,
        older=_older(home, champion, dataset),
        held=hold.on(home, _recipes(champion, params, is_same=is_same), day=night.day),
    )


def _proof(challenge: _Challenge) -> recipe_test.Proof:
    """Returns the evidence on a changed recipe over nights."""
    champion, params, held = challenge.champion, challenge.params, challenge.held
    tries = bool(held) or not challenge.refresh
    return recipe_test.proof_of(
        challenge.year,
        _tested(champion, params, tries=tries, older=bool(challenge.older)),
        challenge.scores,
        challenge.evaluation,
        params.gate,
        day=challenge.night.day,
        changed=champion is not None and not challenge.refresh,
        held_since=max((one.hold.since for one in held), default=None),
    )


def _judged(
    challenge: _Challenge,
    proof: recipe_test.Proof,
    rules: Rules,
    live: LiveJudge | None,
    *,
    may_lose: bool,
) -> Verdict:
    """Returns the verdict by held-out scores or by users, as `gate.scores` says."""
    champion, params = challenge.champion, challenge.params
    over_nights = None if challenge.refresh else proof.over_nights
    replayed = partial(challenge.judged, rules=replace(rules, may_lose=may_lose), over_nights=over_nights)
    if params.gate.scores == "replay" or champion is None or challenge.held:
        return replayed()  # no user meets what a person took back
    assert live, f"gate.scores is {params.gate.scores}, and no judge of live traffic is given"
    return live.judge(
        challenge.home,
        challenge.night,
        challenge.version,
        champion,
        params.only(LiveSections),
        rules=rules_for_users(rules, proof.chance),
        replayed=replayed,
    )


def _gain(challenge: _Challenge, verdict: Verdict) -> float | None:
    """Returns the proven gain of a changed recipe in units of the score, 0 where it is known in others alone.

    None where none is proven, or by one night of older data.
    """
    effect = verdict.effect
    if challenge.is_same_recipe or challenge.older or verdict.action != "promote":
        return None
    if effect is None or not effect.is_proven:
        return None
    success = success_of(challenge.params.gate, challenge.evaluation)
    return effect.mean if verdict.live is None and success[0] == "score" else 0.0


def _as_better(challenge: _Challenge, proof: recipe_test.Proof, rules: Rules) -> Verdict:
    """Returns whether a refresh is better, by a chance of its own, which takes nothing from other recipes."""
    assert proof.apart
    better = replace(rules, refresh=False, alpha=2 * proof.apart)
    verdict = challenge.judged(rules=better, over_nights=proof.over_nights)
    return replace(verdict, held_chance=proof.apart)


def _with_changes(verdict: Verdict, challenge: _Challenge) -> Verdict:
    """Returns the verdict, whose reason also says what of the recipe changed, and how old the data is."""
    changed = ""
    if (champion := challenge.champion) and not challenge.is_same_recipe:
        params = challenge.params
        changed = what_changed(challenge.home, champion, params.workload, params.train)
    for clause in filter(None, (changed, challenge.older)):
        verdict = replace(verdict, reason=f"{verdict.reason}; {clause}")
    return verdict


def _tested(
    champion: Champion | None, params: GateSections, *, tries: bool, older: bool
) -> recipe_test.UnderTest | None:
    """Returns which recipe is tested over nights; None where tonight alone decides, or users do.

    `tries` says whether tonight's version is of the recipe under test. If not, and the champion's recipe only
    has its turn, the newest version of the recipe under test was scored beside it.
    """
    if champion is None or older or params.gate.scores != "replay" or params.gate.min_nights == 1:
        return None
    if ADOPTED in champion.lineage:  # nights cannot train its recipe in turn
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


def _is_same_recipe(home: Home, champion: Champion | None, params: GateSections) -> bool:
    """Returns whether tonight's recipe is the champion's, by itself or by a person's word."""
    tonight = params.workload, params.train
    return is_refresh(champion, *tonight) or is_declared_equal(home, champion, *tonight)


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


def _earlier(home: Home, night: Night) -> list[ledger.Entry]:
    """Returns the ledger's entries of the last year, newest first.

    Tonight's own is left out; it has one where it was closed before, and is judged again.
    """
    entries = ledger.entries_of(home, of_a_year(ledger.commits(home), night.day))
    return [entry for entry in entries if entry.rollback or entry.night.id != night.id]


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
        # A first version may have had nothing to beat.
        proven = verdict.effect is not None and verdict.effect.is_proven
    return hold.apply(verdict, held, night=night, proven=proven)


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

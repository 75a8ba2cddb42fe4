import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_parts import Check, Live, MeasuredEffect
from daybreak.contract.record_types import Champion, Evaluation, Verdict
from daybreak.contract.sections import GateParams, GateSections, SmokeTestParams
from daybreak.contract.workload import UNIT
from daybreak.evaluation.scores import write_scores
from daybreak.extensions.live_test.looks import last_bound
from daybreak.gate.chain import LOOKED_AT, of_a_year
from daybreak.gate.judge import (
    _Challenge,
    _gain,
    fit_to_serve,
    gate,
    judge_scores,
    rules_for_users,
    rules_of,
)
from daybreak.gate.verdict import ACTIONS, decide
from daybreak.statistics.paired import Rules
from daybreak.statistics.result import Status
from daybreak.statistics.unpaired import effect
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from tests.minimal_records import minimal_night, promotion
from tests.toy.nights import NUM_SAMPLES, make_evaluation, make_version

CHAMPION = Champion(version=3, replaced=2, model_digest="c", night="before")
BASE = np.random.default_rng(0).random(NUM_SAMPLES).astype(np.float32)
NOW = datetime(2025, 1, 10, tzinfo=UTC)
FIRST_HALF = np.arange(NUM_SAMPLES) < NUM_SAMPLES / 2


def verdict_on(
    scores: dict[str, np.ndarray] | None,
    *,
    champion: Champion | None,
    refresh: bool = True,
    asked: dict[str, Any] | None = None,
    **metrics: float,
) -> Verdict:
    return decide(
        scores,
        evaluation=make_evaluation("m", **metrics),
        version=make_version(4, model_digest="m", night="n"),
        champion=champion,
        rules=Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=refresh),
        **asked or {},
    )


def noise(mean: float, *, seed: int = 1) -> np.ndarray:
    """Scores that are by so much better on average, with a spread of 0.05 about it."""
    drawn = np.random.default_rng(seed).normal(0, 0.05, NUM_SAMPLES)
    return (BASE + mean + drawn - drawn.mean()).astype(np.float32)


def test_a_refresh_that_is_no_worse_is_promoted() -> None:
    verdict = verdict_on({"challenger": noise(0.0), "champion": BASE}, champion=CHAMPION)
    assert verdict.action == "promote"
    assert (verdict.champion, verdict.challenger) == (3, 4)
    assert verdict.reason.startswith("refresh: proven no worse than the champion by the margin 0.03")
    assert "at 80 % power" in verdict.reason


@pytest.mark.parametrize("champion", [None, CHAMPION])
def test_samples_that_tell_nothing_promote_no_model_however_good_it_looks(champion: Champion | None) -> None:
    scores = {"challenger": noise(0.2), "champion": BASE, "baseline/constant": BASE}
    evaluation = make_evaluation("m", num_not_finite=200.0)

    def verdict(evaluation: Evaluation) -> Verdict:
        return decide(
            scores,
            evaluation=evaluation,
            version=make_version(4, model_digest="m", night="n"),
            champion=champion,
            rules=Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=True),
        )

    assert verdict(evaluation).action == "promote"
    left = verdict(replace(evaluation, cannot_judge="no sample has label 1"))
    assert left.action == "no data"
    assert left.reason == "no sample has label 1; left out of the means: 200 values that are not finite"


def test_nothing_is_judged_by_scores_that_are_not_believed() -> None:
    unlike = Check(name="plausible", ok=False, text="the champion scores 0.05")
    scores = {"challenger": noise(0.2), "champion": BASE}
    assert verdict_on(scores, champion=CHAMPION).action == "promote"
    verdict = verdict_on(scores, champion=CHAMPION, asked={"believed": unlike})
    assert verdict.action == "no data"
    assert "not believed" in verdict.reason
    assert "the champion scores 0.05" in verdict.reason
    assert verdict.checks[0] == unlike
    like = Check(name="plausible", ok=True, text="")
    assert verdict_on(scores, champion=CHAMPION, asked={"believed": like}).action == "promote"


def test_a_year_of_several_nights_a_day_is_a_year() -> None:
    """A recipe that was tried long ago still counts among those of the year."""
    newest = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def commits(hours: int) -> list[Commit]:
        moments = [newest - timedelta(hours=hours * number) for number in range(9000)]
        return [
            Commit(
                id="",
                parents=(),
                time=int(one.timestamp()),
                subject="",
                night="",
                rollback=False,
                serves=None,
            )
            for one in moments
        ]

    hourly = of_a_year(commits(1), newest.date())
    assert 365 * 24 <= len(hourly) < 368 * 24
    assert len(of_a_year(commits(48), newest.date())) == 365 + LOOKED_AT


def test_a_changed_recipe_that_is_only_no_worse_is_not() -> None:
    verdict = verdict_on({"challenger": noise(0.0), "champion": BASE}, champion=CHAMPION, refresh=False)
    assert verdict.action == "reject"
    assert verdict.reason.startswith("inconclusive")


def test_the_first_night_must_beat_popularity() -> None:
    better = {"challenger": noise(0.1), "baseline/popularity": BASE, "baseline/weak": BASE - 1}
    verdict = verdict_on(better, champion=None)
    assert verdict.action == "promote"
    assert verdict.champion == 0
    assert verdict.reason.startswith("no champion yet: proven better than the baseline popularity")
    worse = verdict_on({"challenger": noise(-0.1), "baseline/popularity": BASE}, champion=None)
    assert worse.action == "reject"
    assert "worse than the baseline popularity" in worse.reason


def test_the_first_night_without_popularity_must_beat_the_weakest_baseline() -> None:
    verdict = verdict_on(
        {"challenger": BASE, "baseline/a": BASE - 0.1, "baseline/b": BASE + 0.1}, champion=None
    )
    assert verdict.action == "promote"
    assert "the baseline a" in verdict.reason


def test_the_first_night_without_baselines_is_promoted_with_that_reason() -> None:
    verdict = verdict_on({"challenger": BASE}, champion=None)
    assert verdict.action == "promote"
    assert verdict.reason == "no champion yet, and the workload has no baseline to beat"
    assert verdict_on({"challenger": BASE * math.nan}, champion=None).action == "reject"


@pytest.mark.parametrize("scores", [None, {}, {"champion": BASE}])
def test_without_scores_there_is_no_data(scores: dict[str, np.ndarray] | None) -> None:
    assert verdict_on(scores, champion=CHAMPION).action == "no data"
    assert verdict_on(scores, champion=None).action == "no data"


def test_a_champion_that_has_seen_the_day_proves_nothing() -> None:
    verdict = verdict_on({"challenger": BASE}, champion=CHAMPION, champion_has_seen=1.0)
    assert verdict.action == "no data"
    assert "version 3 was trained on held-out days" in verdict.reason


def test_the_verdict_says_on_how_many_of_the_held_out_days_it_is() -> None:
    days = [date(2025, 1, day) for day in range(1, 5)]
    evaluation = replace(make_evaluation("m"), days=(days[3],), seen_days=tuple(days[:3]))
    verdict = decide(
        {"challenger": BASE + 0.5, "champion": BASE},
        evaluation=evaluation,
        champion=CHAMPION,
        version=make_version(4, model_digest="m", night="n"),
        rules=Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=True),
    )
    assert verdict.action == "promote"
    assert (
        "compared on 1 held-out day of 4 (200 samples), as a model was trained on days up to 2025-01-03"
        in (verdict.reason)
    )


def without_score(challenger: Any, **metrics: float) -> Verdict:
    """Returns the verdict on an evaluation that has lost its metric `score`."""
    evaluation = make_evaluation("m", **metrics)
    evaluation.metrics.pop("score")
    return decide(
        {"challenger": challenger, "champion": BASE},
        evaluation=evaluation,
        version=make_version(4, model_digest="m", night="n"),
        champion=CHAMPION,
        rules=Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=True),
    )


def test_a_dropped_metric_fails() -> None:
    verdict = without_score(BASE)
    assert verdict.action == "reject"
    assert "no metric named score" in verdict.reason


def test_scores_that_are_not_finite_are_said_to_be_so() -> None:
    """A mean that is not finite, here `score`, is left out of the metrics."""
    verdict = without_score(np.where(np.arange(NUM_SAMPLES) < 7, np.nan, BASE), num_not_finite=7.0)
    assert verdict.action == "reject"
    assert verdict.reason.startswith("refresh: 7 scores of this night's models are not finite")


def test_permuted_labels_are_refused() -> None:
    verdict = verdict_on(
        {"challenger": np.random.default_rng(0).permutation(BASE) - 0.3, "champion": BASE}, champion=CHAMPION
    )
    assert verdict.action == "reject"


def test_a_changed_recipe_that_is_better_is_promoted_as_one() -> None:
    verdict = verdict_on({"challenger": noise(0.1), "champion": BASE}, champion=CHAMPION, refresh=False)
    assert verdict.action == "promote"
    assert verdict.reason.startswith("changed recipe: proven better than the champion")


@pytest.mark.parametrize(("mean", "action"), [(-0.005, "promote"), (-0.05, "reject")])
def test_a_refresh_may_look_a_little_worse_but_not_be_proven_worse(mean: float, action: str) -> None:
    verdict = verdict_on({"challenger": noise(mean), "champion": BASE}, champion=CHAMPION)
    assert verdict.action == action


def test_the_first_model_has_no_margin_whatever_the_recipe() -> None:
    same = {"challenger": noise(0.0), "baseline/popularity": BASE}
    assert verdict_on(same, champion=None, refresh=True).action == "reject"


def test_a_verdict_says_the_effect_and_its_ends() -> None:
    verdict = verdict_on({"challenger": noise(0.1), "champion": BASE}, champion=CHAMPION)
    assert verdict.effect.mean == pytest.approx(0.1, abs=1e-6)
    assert verdict.effect.low == pytest.approx(0.1 - 0.007, abs=0.001)
    assert verdict.effect.high == pytest.approx(0.1 + 0.007, abs=0.001)
    assert (verdict.num_samples, verdict.num_units) == (NUM_SAMPLES, 0)
    assert not verdict.inconclusive


def test_a_verdict_counts_samples_and_the_units_that_they_are_of() -> None:
    units = np.arange(NUM_SAMPLES) % 40
    scores = {"challenger": noise(0.1), "champion": BASE, UNIT: units}
    verdict = verdict_on(scores, champion=CHAMPION)
    assert (verdict.num_samples, verdict.num_units) == (NUM_SAMPLES, 40)
    assert "40 units show" in verdict.reason


def test_a_verdict_without_evidence_has_no_effect() -> None:
    verdict = verdict_on({"challenger": BASE}, champion=CHAMPION)
    assert verdict.effect is None
    assert verdict.checks == ()


def test_what_is_only_unproven_is_said_to_be() -> None:
    unproven = verdict_on({"challenger": noise(0.0), "champion": BASE}, champion=CHAMPION, refresh=False)
    worse = verdict_on({"challenger": noise(-0.1), "champion": BASE}, champion=CHAMPION, refresh=False)
    assert (unproven.inconclusive, worse.inconclusive) == (True, False)


def test_a_gate_that_passes_its_own_test_shows_what_it_tried() -> None:
    verdict = verdict_on({"challenger": noise(0.0), "champion": BASE}, champion=CHAMPION)
    assert [check.name for check in verdict.checks] == [
        "arms swapped",
        "labels permuted",
        "metric dropped",
        "made worse",
        "made better",
    ]
    assert all(check.ok for check in verdict.checks)


def test_a_gate_that_fails_its_own_test_on_these_scores_is_not_believed() -> None:
    huge = np.full(NUM_SAMPLES, 1e18)  # a float so large does not change by what the self-test adds to it
    verdict = verdict_on({"challenger": huge, "champion": huge}, champion=CHAMPION)
    assert verdict.action == "no data"
    assert verdict.reason == (
        "refresh: the gate failed its own test (labels permuted: 60 of 60 promoted, 12 may be by chance), so "
        "its verdict is not believed"
    )
    assert verdict.effect.mean == 0
    assert not all(check.ok for check in verdict.checks)


def test_a_slice_that_is_worse_keeps_the_champion() -> None:
    ours = np.where(FIRST_HALF, noise(-0.1), noise(0.2))
    scores = {"challenger": ours, "champion": BASE, "slice/new": FIRST_HALF}
    verdict = verdict_on(scores, champion=CHAMPION)
    assert verdict.action == "reject"
    assert "on new" in verdict.reason


def test_a_guardrail_of_another_metric_keeps_the_champion() -> None:
    scores = {
        "challenger": noise(0.1),
        "champion": BASE,
        "metric/recall": noise(-0.2),
        "champion/recall": BASE,
    }
    assert verdict_on(scores, champion=CHAMPION).action == "promote"
    verdict = verdict_on(scores, champion=CHAMPION, asked={"guardrails": {"recall": 0.05}})
    assert verdict.action == "reject"
    assert "guardrail recall: worse than the champion" in verdict.reason


def test_a_metric_of_which_less_is_better_is_named_with_a_minus() -> None:
    scores = {"challenger": noise(0.1), "champion": BASE, "metric/error": noise(-0.2), "champion/error": BASE}
    verdict = verdict_on(scores, champion=CHAMPION, asked={"success": ("-error",)})
    assert verdict.action == "promote"
    assert verdict.effect.mean == pytest.approx(0.2, abs=1e-6)
    assert verdict_on(scores, champion=CHAMPION, asked={"success": ("error",)}).action == "reject"


def test_a_metric_that_only_the_challenger_has_is_missing() -> None:
    scores = {"challenger": noise(0.1), "champion": BASE, "metric/recall": noise(0.1)}
    verdict = verdict_on(scores, champion=CHAMPION, asked={"success": ("recall",)})
    assert verdict.action == "no data"
    assert "metric recall is missing" in verdict.reason


def test_the_first_model_is_not_asked_for_metrics_that_no_baseline_has() -> None:
    scores = {"challenger": noise(0.1), "baseline/popularity": BASE}
    asked = {"success": ("recall",), "guardrails": {"recall": 0.05}}
    assert verdict_on(scores, champion=None, asked=asked).action == "promote"


def test_the_first_model_on_too_few_samples_is_not_promoted() -> None:
    verdict = verdict_on({"challenger": BASE[:29]}, champion=None)
    assert verdict.action == "no data"
    assert verdict.reason.startswith("no champion yet: 29 samples; gate.min_samples asks for 30")


def test_no_scores_are_no_data_even_where_the_metric_is_missing_too() -> None:
    evaluation = make_evaluation("m")
    evaluation.metrics.pop("score")
    verdict = decide(
        None,
        evaluation=evaluation,
        version=make_version(4, model_digest="m", night="n"),
        champion=CHAMPION,
        rules=Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=True),
    )
    assert verdict.action == "no data"
    assert "no scores of the challenger" in verdict.reason


def test_every_status_of_the_statistics_has_an_action() -> None:
    assert set(ACTIONS) == set(Status)
    assert {status for status, action in ACTIONS.items() if action == "promote"} == {
        status for status in Status if status.is_proof
    }


def test_the_rules_are_those_of_params_yaml() -> None:
    params = GateParams(alpha=0.1, margin=0.2, min_samples=40, resamples=7)
    assert rules_of(params, refresh=True) == Rules(
        alpha=0.1, margin=0.2, min_samples=40, refresh=True, resamples=7
    )
    assert not rules_of(params, refresh=False).refresh


def test_users_promote_a_changed_recipe_that_is_no_better_with_the_chance_that_the_verdict_says() -> None:
    """An end of the interval at one look fails with half of alpha; over all looks at users, with alpha."""
    chance, num_users, num_tests = 0.025, 400, 4000
    rules = replace(rules_of(GateParams(margin=0.03), refresh=False), alpha=2 * chance)
    users = rules_for_users(rules, chance)
    assert rules_for_users(rules, None) == rules  # a refresh
    bound = last_bound([1.0], [1.0], alpha=users.alpha)
    rng = np.random.default_rng(3)
    arm, halves = rng.random((num_tests, num_users)) < 0.5, np.full(num_users, 0.5)
    scores = rng.normal(0, 1, (num_tests, num_users))
    promoted = [
        effect(a, halves, y, alpha=users.alpha, bound=bound).low > 0 for a, y in zip(arm, scores, strict=True)
    ]
    assert abs(np.mean(promoted) - chance) < 4 * math.sqrt(chance / num_tests)


@pytest.mark.parametrize("changed", [{"model_digest": "other"}, {"night": "other"}])
def test_scores_of_another_model_or_night_are_refused(changed: dict[str, str]) -> None:
    night = SimpleNamespace(id="n")
    version = make_version(4, **{"model_digest": "m", "night": "n", **changed})
    with pytest.raises(ReleaseError, match="night n evaluated m; run evaluate and register again"):
        gate(night, make_evaluation("m"), version, None, None, home=Home(Path.cwd()))


def scored(mean: float, *, champion: Champion | None = CHAMPION, **params: Any) -> Verdict:
    """The verdict on a score file in which the champion, or a baseline, is worse by `mean`."""
    other = "champion" if champion else "baseline/popularity"
    write_scores({"challenger": noise(mean), other: BASE}, NUM_SAMPLES)
    asked = sections(GateParams(**{"resamples": 0, **params}), SmokeTestParams(samples=0))
    version = make_version(4, model_digest="m", night="n")
    rules = rules_of(asked.gate, refresh=True)
    return judge_scores(Home(Path.cwd()), make_evaluation("m"), version, champion, asked, rules=rules)


def sections(gate: GateParams, smoke_test: SmokeTestParams) -> GateSections:
    return GateSections.model_construct(gate=gate, smoke_test=smoke_test)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("scores", ["replay", "both", "live"])
def test_the_scores_of_tonight_are_read_and_judged(scores: str) -> None:
    assert scored(0.1, scores=scores).action == "promote"
    assert scored(-0.1, scores=scores).action == "reject"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("scores", "champion", "shown"), [("replay", CHAMPION, 5), ("live", CHAMPION, 0), ("live", None, 5)]
)
def test_what_the_gate_tried_is_left_out_where_users_decide(
    scores: str, champion: Champion | None, shown: int
) -> None:
    assert len(scored(0.1, champion=champion, scores=scores).checks) == shown


@pytest.mark.usefixtures("folder")
def test_metrics_and_guardrails_are_those_of_params_yaml() -> None:
    assert "metric recall is missing" in scored(0.1, success=("recall",)).reason
    assert "metric recall is missing" in scored(0.1, guardrails={"recall": 0.1}).reason


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("scores", "asked"), [("replay", False), ("both", False), ("live", True)])
def test_only_what_is_to_be_promoted_or_met_by_users_has_to_be_fit(scores: str, asked: bool) -> None:
    write_scores({"champion": BASE}, NUM_SAMPLES)  # without the challenger's nothing is fit
    params = sections(GateParams(scores=scores), SmokeTestParams())
    version, rules = make_version(4, model_digest="m", night="n"), rules_of(params.gate, refresh=True)
    verdict = judge_scores(Home(Path.cwd()), make_evaluation("m"), version, CHAMPION, params, rules=rules)
    assert ("not fit to serve: loads: there are no scores of the trainer" in verdict.reason) is asked


PROVEN = promotion(champion=3, challenger=4, effect=MeasuredEffect(mean=0.1, low=0.05, high=0.15))
LIVE = Live(experiment="n", began_at=NOW, ends_at=NOW, foretold="")


@pytest.mark.parametrize(
    ("verdict", "gain", "changed"),
    [
        (PROVEN, 0.1, {}),
        (replace(PROVEN, live=LIVE), 0.0, {}),  # in the units of what users took
        (PROVEN, 0.0, {"success": ("recall",)}),
        (PROVEN, None, {"is_same_recipe": True}),
        (PROVEN, None, {"older": "its data is older"}),
        (replace(PROVEN, action="reject"), None, {}),
        (replace(PROVEN, effect=MeasuredEffect(mean=0.1, low=-0.05, high=0.25)), None, {}),
        (replace(PROVEN, effect=None), None, {}),
    ],
    ids=["scores", "users", "other metric", "refresh", "older data", "rejected", "unproven", "no effect"],
)
def test_the_gain_of_a_changed_recipe_is_in_units_of_the_score_where_that_has_proven_it(
    verdict: Verdict, gain: float | None, changed: dict[str, Any]
) -> None:
    success = changed.get("success", ("score",))
    challenge = _Challenge(
        home=Home(Path.cwd()),
        night=minimal_night(NOW),
        evaluation=make_evaluation("m"),
        version=make_version(4, model_digest="m", night="n"),
        champion=CHAMPION,
        params=sections(GateParams(success=success), SmokeTestParams()),
        scores={},
        year=(),
        is_same_recipe=changed.get("is_same_recipe", False),
        older=changed.get("older", ""),
        held=(),
    )
    assert _gain(challenge, verdict) == gain


PROMOTED = promotion(champion=3, challenger=4, approve_until=datetime(2025, 1, 1, tzinfo=UTC))
BROKEN, SLOW = Check(name="parity", ok=False, text="0.1 apart"), Check(name="start", ok=False, text="200 s")


@pytest.mark.parametrize(
    ("verdict", "would"),
    [
        (PROMOTED, "it would have been promoted: better"),
        (replace(PROMOTED, action="reject", inconclusive=True), "it would have been put to a person: better"),
        (replace(PROMOTED, action="reject"), "its held-out scores: better"),
    ],
    ids=["promoted", "inconclusive", "rejected"],
)
def test_a_model_that_is_not_fit_is_rejected_with_what_it_would_have_been(
    verdict: Verdict, would: str
) -> None:
    rejected = fit_to_serve(verdict, (BROKEN, SLOW))
    assert (rejected.action, rejected.inconclusive, rejected.approve_until) == ("reject", False, None)
    assert rejected.reason == f"not fit to serve: parity: 0.1 apart; start: 200 s; {would}"


def test_a_model_that_was_only_slow_stays_a_question_to_the_person_who_was_asked() -> None:
    asked = fit_to_serve(PROMOTED, (SLOW,))
    assert (asked.action, asked.inconclusive, asked.approve_until) == (
        "reject",
        True,
        PROMOTED.approve_until,
    )


def test_a_model_that_is_fit_keeps_its_verdict_and_shows_what_was_tried() -> None:
    fine = Check(name="loads", ok=True, text="in 1 s")
    before = replace(PROMOTED, checks=(Check(name="made better", ok=True, text="promoted"),))
    assert fit_to_serve(before, (fine,)) == replace(before, checks=(*before.checks, fine))


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.floats(-1, 1, width=32) | st.just(math.nan), max_size=60),
    st.sampled_from(["champion", "baseline/popularity", "baseline/other", "none"]),
    st.booleans(),
)
def test_every_night_has_a_verdict(values: list[float], other: str, first: bool) -> None:
    ours = np.array(values, dtype=np.float32)
    verdict = verdict_on(
        {"challenger": ours, other: np.zeros_like(ours)}, champion=None if first else CHAMPION
    )
    assert verdict.action in ("promote", "reject", "no data")
    assert verdict.reason

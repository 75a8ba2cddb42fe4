import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss

from daybreak.contract import records
from daybreak.contract.errors import DataError, ReleaseError
from daybreak.contract.record_parts import Judged, LiveMetric
from daybreak.contract.record_types import Evaluation
from daybreak.contract.sections import GateParams
from daybreak.evaluation.scoring import live_metrics
from daybreak.extensions.live_test.forecast import volume
from daybreak.extensions.live_test.guardrails import GuardrailLimits
from daybreak.extensions.live_test.live_score import LISTS, RowScore
from daybreak.extensions.live_test.live_test import look, others_by, score_by
from daybreak.extensions.live_test.observations import observe
from daybreak.extensions.live_test.readout import Design, Readout, UserMetric, find
from daybreak.statistics.assignment import CHALLENGER
from daybreak.statistics.paired import Rules
from daybreak.statistics.result import Status
from daybreak.storage.exposures import Exposure
from daybreak.workloads.metrics import (
    AUC,
    AbsoluteError,
    Accuracy,
    ClassLogLoss,
    LogLoss,
    Perplexity,
    Pinball,
)
from tests.statistics.streams import Model, exposures, users
from tests.toy.nights import make_evaluation

BY = RowScore(metric=LogLoss(), has_label=True, low=0.01, high=3.0)
RULES = Rules(alpha=0.05, margin=0.01, min_samples=30, refresh=True)
LIMITS = GuardrailLimits(errors=0.01, attrition=0.05, fallbacks=0.05, p99_s=0.1, shift=0.5, margin=0.01)


def shown(predicted: Any, labels: Sequence[Any] | None, *, at: float = 5.0) -> Exposure:
    """An exposure of rows."""
    (one,) = exposures(np.random.default_rng(0), users(0, 1), share=0.5, start=0)
    taken = None if labels is None else tuple(json.dumps(label) for label in labels)
    kept = json.dumps({"prediction": predicted})
    return replace(one, items=(), predicted=kept, taken=taken, taken_at=None if taken is None else at)


def stream(
    number: int,
    *,
    worse: float = 0.0,
    unlabelled: float = 0.0,
    half_labelled: float = 0.0,
    errors: float = 0.0,
    share: float = 0.5,
) -> Iterator[Exposure]:
    """Users with three rows each; the challenger's predictions are so much further from the truth."""
    draw = np.random.default_rng(number)
    broken = Model(errors=errors)
    for one in exposures(draw, users(0, number), share=share, start=0, challenger=broken):
        ours = one.arm == CHALLENGER
        chance = draw.uniform(0.05, 0.95, 3)
        labels = (draw.random(3) < chance).astype(int).tolist()
        logit = np.log(chance / (1 - chance)) * (1 - worse * ours)
        kept = json.dumps({"prediction": (1 / (1 + np.exp(-logit))).tolist()})
        taken = None if ours and draw.random() < unlabelled else tuple(map(str, labels))
        if half_labelled and taken and ours and draw.random() < half_labelled:
            taken = (*taken[:1], "null", "null")
        yield replace(one, items=(), predicted=kept, taken=taken, taken_at=one.time + 5 if taken else None)


def finding_of(log: Any, by: RowScore = BY) -> Readout:
    return find(observe(log, window_s=60), Design(rules=RULES, limits=LIMITS, window_s=60, by=by), now=1e9)


def broken(finding: Readout) -> list[str]:
    return [check.name for check in finding.checks if not check.ok]


def test_the_score_of_a_user_is_the_metric_over_all_rows_with_a_label() -> None:
    one, other = shown([0.2, 0.9, 0.6], [0, None, 1]), shown([0.7], [1])
    mean = BY.of([one, other], window_s=60)
    assert mean == pytest.approx(-log_loss([0, 1, 1], [0.2, 0.6, 0.7]))


@pytest.mark.parametrize(
    "one",
    [
        shown([0.2], None),
        shown([0.2], [None]),
        shown([0.2], ["late"]),
        shown([0.2], [0], at=61),
        shown([0.2, 0.3], [0]),
        replace(shown([0.2], [0]), predicted=None),
        replace(shown([0.2], [0]), predicted='{"other": [0.2]}'),
    ],
    ids=["untold", "null", "no number", "late", "too few", "not kept", "another prediction"],
)
def test_what_has_no_label_in_time_is_not_scored(one: Exposure) -> None:
    assert BY.of([one], window_s=60) is None


def test_true_is_one() -> None:
    assert BY.of([shown([0.2], [True])], window_s=60) == BY.of([shown([0.2], [1])], window_s=60)


def test_a_metric_without_a_label_needs_no_outcome() -> None:
    by = RowScore(metric=Perplexity(), has_label=False, low=0, high=2)
    rows = [[6.0, 3.0], [2.0, 2.0]]
    assert by.of([shown(rows, None)], window_s=60) == pytest.approx(-1.5)  # the mean of 2 and 1


def test_a_metric_of_a_set_has_no_value_of_a_sample() -> None:
    assert AUC().sample_values([0.1, 0.9], [0, 1]) is None
    assert AbsoluteError().sample_values([0.1, 0.9], [0, 1]) == pytest.approx([0.1, 0.1])


def test_the_first_metric_with_values_of_samples_decides_as_held_out_samples_have_it() -> None:
    draw = np.random.default_rng(0)
    chance, label = draw.random(5000), draw.integers(0, 2, 5000)
    metrics = (AUC(), Pinball(quantiles=(0.5,), margin=0.02), LogLoss())
    live, *_ = live_metrics(metrics, {"prediction": chance}, label, has_label=True)
    assert (live.use, live.is_first) == ("daybreak.workloads.metrics:Pinball", False)
    assert live.margin == pytest.approx(0.02 * np.abs(chance - label).mean() / 2)
    assert 0 < live.low < 0.01
    assert 0.49 < live.high < 0.5
    evaluation = replace(make_evaluation("m"), live=live)
    kept = records.loads(Evaluation, records.dumps(evaluation), source="here")
    by, rules = score_by(kept, GateParams(margin=0.7), rules=RULES)
    assert isinstance(by, RowScore)
    assert (by.metric.name, by.low, by.high, by.has_label) == ("pinball", live.low, live.high, True)
    assert rules == replace(RULES, margin=live.margin)  # that of params.yaml is of the first metric
    assert by.of([shown([0.2], [1])], window_s=60) == pytest.approx(-0.4)


def with_amounts(number: int, *, better: float = 0.0, worse: float = 0.0) -> list[Exposure]:
    """Users with three rows each, and amounts that the challenger predicts with so much more error."""
    draw, log = np.random.default_rng(number), []
    for one in stream(number, worse=-better):
        ours = one.arm == CHALLENGER
        amounts = np.array(list(map(int, one.taken or ()))) + draw.normal(0, 0.2 + worse * ours, 3)
        predicted = json.loads(one.predicted or "") | {"amount": amounts.tolist()}
        log.append(replace(one, predicted=json.dumps(predicted)))
    return log


def guard(margin: float, *, is_guardrail: bool = True) -> UserMetric:
    by = RowScore(metric=AbsoluteError(prediction="amount"), has_label=True, low=0.0, high=2.0)
    return UserMetric(name="absolute error", by=by, margin=margin, is_guardrail=is_guardrail)


def by_both(log: list[Exposure], other: UserMetric, *, refresh: bool = True) -> Readout:
    rules = replace(RULES, refresh=refresh, margin=0.05)
    limits = replace(LIMITS, margin=0.05)
    design = Design(rules=rules, limits=limits, window_s=60, by=BY, others=(other,))
    return find(observe(log, window_s=60), design, now=1e9)


def test_a_guardrail_metric_stops_a_challenger_that_users_find_worse_by_it() -> None:
    assert broken(finding_of(with_amounts(2000, worse=0.6))) == []
    finding = by_both(with_amounts(2000, worse=0.6), guard(0.05))
    assert broken(finding) == ["absolute error"]
    assert finding.result.status is Status.WORSE
    assert finding.result.sentence.startswith("guardrail absolute error: ")


def test_a_guardrail_metric_has_to_be_proven_before_a_promotion() -> None:
    log = with_amounts(2000)
    held = by_both(log, guard(0.05))
    assert held.result.status is Status.NO_WORSE
    assert "guardrail absolute error holds: " in held.result.sentence
    unsure = by_both(log, guard(0.001))
    assert (broken(unsure), unsure.result.status) == ([], Status.OPEN)
    assert held.result.effect == unsure.result.effect


def test_one_of_two_success_metrics_is_enough_if_the_other_is_not_worse() -> None:
    other = guard(0.05, is_guardrail=False)
    assert by_both(with_amounts(2000), other, refresh=False).result.status is Status.OPEN
    assert by_both(with_amounts(2000, worse=-0.15), other, refresh=False).result.status is Status.BETTER
    assert by_both(with_amounts(2000, worse=0.6), other, refresh=False).result.status is Status.WORSE


def test_users_judge_by_the_metrics_that_params_and_workload_name() -> None:
    draw = np.random.default_rng(0)
    chance, label = draw.random(5000), draw.integers(0, 2, 5000)
    metrics = (LogLoss(), AUC(role="guardrail"), AbsoluteError(role="guardrail", margin=0.05))
    live, *more = live_metrics(metrics, {"prediction": chance}, label, has_label=True)
    error = float(np.abs(chance - label).mean())
    evaluation = replace(
        make_evaluation("m"),
        live=live,
        live_others=tuple(more),
        judged=tuple(
            Judged(name=one.name, role=one.role, margin=one.margin, higher_is_better=one.higher_is_better)
            for one in metrics
        ),
        metrics={"champion/absolute error": error},
    )
    evaluation = records.loads(Evaluation, records.dumps(evaluation), source="here")
    (other,) = others_by(evaluation, GateParams())
    assert (other.name, other.is_guardrail) == ("absolute error", True)
    assert other.margin == pytest.approx(0.05 * error)
    named = GateParams(success=("-absolute error", "score"), guardrails={"-absolute error": 0.3})
    by, rules = score_by(evaluation, named, rules=RULES)
    assert isinstance(by, RowScore)
    assert by.metric.name == "absolute error"
    assert rules.margin == pytest.approx(0.05 * error)
    assert [(one.name, one.is_guardrail) for one in others_by(evaluation, named)] == [("log loss", False)]
    assert others_by(replace(evaluation, live=None, live_others=()), named) == ()


def test_labels_of_users_come_by_number_or_by_the_name_of_their_class() -> None:
    chances = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    labels, classes = np.array([0, 2]), ("sales", "tech", "billing")
    (live, _) = live_metrics(
        (ClassLogLoss(), Accuracy()), {"prediction": chances}, labels, has_label=True, classes=classes
    )
    evaluation = records.loads(
        Evaluation, records.dumps(replace(make_evaluation("m"), live=live)), source="here"
    )
    by, _ = score_by(evaluation, GateParams(), rules=RULES)
    for labels_of_users in (["sales", "billing"], [0, 2], [0, "billing"]):
        score = by.of([shown(chances.tolist(), labels_of_users)], window_s=9.0)
        assert score == pytest.approx(np.log([0.7, 0.8]).mean())
    for wrong in ("none of them", 3, -1, 1.5):
        half = by.of([shown(chances.tolist(), ["sales", wrong])], window_s=9.0)
        assert half == pytest.approx(np.log(0.7))


def test_where_all_metrics_are_of_sets_users_cannot_decide() -> None:
    chance, label = np.array([0.1, 0.9]), np.array([0, 1])
    assert live_metrics((AUC(),), {"prediction": chance}, label, has_label=True) == ()
    live = LiveMetric()  # as the evaluation has it then
    with pytest.raises(ReleaseError, match="no metric of the workload has a value for a single row"):
        score_by(replace(make_evaluation("m"), live=live), GateParams(), rules=RULES)


def test_lists_are_scored_as_ever() -> None:
    assert score_by(make_evaluation("m"), GateParams(margin=0.7), rules=RULES) == (LISTS, RULES)


def test_bets_are_on_where_a_loss_is_in_the_range_of_the_champions() -> None:
    scores = -np.array([0.0, 0.01, 1.505, 3.0, 9.0])
    np.testing.assert_allclose(BY.losses(scores), [0, 0, 0.5, 1, 1])
    assert BY.margin(0.299) == pytest.approx(0.1)
    assert 0 < BY.margin(0.0) < BY.margin(99.0) < 1


def test_arms_alike_break_no_guardrail_and_those_of_lists_are_left_out() -> None:
    finding = finding_of(stream(2000))
    assert [check.name for check in finding.checks] == [
        "arms as drawn",
        "errors",
        "latency",
        "returning users",
        "labels",
        "score",
    ]
    assert broken(finding) == []
    assert finding.result.effect is not None
    assert finding.result.effect.low < 0 < finding.result.effect.high


def with_error(number: int) -> list[Exposure]:
    """Users whose amounts the champion predicts with three times the challenger's error."""
    return with_amounts(number, worse=-0.15)


def test_a_label_of_one_client_overturns_nothing_that_all_others_prove() -> None:
    by = RowScore(metric=AbsoluteError(prediction="amount"), has_label=True, low=0.0, high=0.7)
    log = with_error(1000)
    proven = finding_of(log, by)
    assert proven.result.status is Status.NO_WORSE
    assert proven.result.effect
    for label in ("1e6", "-1e200", "1e308", "1e999", "9" * 400):
        for place in (5, 6):  # one of either arm
            odd = [*log]
            odd[place] = replace(log[place], taken=(label, "0", "1"))
            finding = finding_of(odd, by)
            assert (finding.result.status, broken(finding)) == (Status.NO_WORSE, [])
            assert finding.result.effect
            assert finding.result.effect.mean == pytest.approx(proven.result.effect.mean, abs=0.01)


def test_a_value_counts_as_far_as_the_width_of_the_range_beyond_it() -> None:
    absolute = RowScore(metric=AbsoluteError(), has_label=True, low=1.0, high=3.0)
    scores = [absolute.of([shown([0.0], [label])], window_s=60) for label in (0.5, 4.5, 5.5, 1e200)]
    assert scores == [-0.5, -4.5, -5.0, -5.0]
    alike = RowScore(metric=Accuracy(), has_label=True, low=1.0, high=1.0, classes=("no", "yes"))
    assert alike.of([shown([[0.9, 0.1]], ["yes"])], window_s=60) == 0.0


def test_a_metric_that_fails_on_what_was_told_is_reported_in_a_sentence() -> None:
    class Broken(AbsoluteError):
        def values(self, prediction: Any, label: Any) -> Any:
            raise IndexError("no such class")

    by = RowScore(metric=Broken(), has_label=True, low=0.0, high=1.0)
    seen, now = observe(stream(50), window_s=60), datetime.now(UTC)
    with pytest.raises(DataError, match="cannot be judged: IndexError: no such class; look at the metrics"):
        look(seen, Design(rules=RULES, limits=LIMITS, window_s=60, by=by), now=now)


def test_the_read_out_has_the_mean_of_either_arm_as_scikit_learn_has_it() -> None:
    log = list(stream(1500, worse=0.3))
    means = []
    for ours in (True, False):
        arm = [one for one in log if (one.arm == CHALLENGER) is ours and one.predicted and one.taken]
        chance = [value for one in arm for value in json.loads(one.predicted or "")["prediction"]]
        means.append(log_loss([int(label) for one in arm for label in one.taken or ()], chance))
    (score,) = [check for check in finding_of(log).checks if check.name == "score"]
    assert score.text.startswith(f"log loss {means[0]:.4f} with the challenger and {means[1]:.4f} with the")
    effect = finding_of(log).result.effect
    assert effect is not None
    assert effect.mean == pytest.approx(means[1] - means[0], abs=0.01)


@pytest.mark.parametrize(
    ("harm", "guardrail"),
    [
        ({"worse": 2.0}, "score"),
        ({"unlabelled": 0.3}, "labels"),
        ({"half_labelled": 0.5}, "labels"),
        ({"errors": 0.2}, "errors"),
    ],
    ids=["worse", "unlabelled", "partly labelled", "failing"],
)
def test_each_guardrail_stops_what_it_guards_against(harm: dict[str, float], guardrail: str) -> None:
    finding = finding_of(stream(3000, **harm))
    assert broken(finding) == [guardrail]
    if guardrail == "score":
        assert finding.result.status is Status.WORSE


def test_visits_too_late_for_a_label_do_not_count_as_unlabelled() -> None:
    """Labels take 30 s of a window of 60; the challenger's users come again after 50."""
    log = []
    for one in stream(3000):
        log.append(replace(one, taken_at=one.time + 30))
        if one.arm == CHALLENGER:
            again = replace(log[-1], id=f"again{one.id}", time=one.time + 50, taken_at=one.time + 80)
            log.append(again)
    assert not broken(finding_of(sorted(log, key=lambda one: one.time)))


def test_a_terrible_challenger_is_stopped_by_bets_before_there_is_an_effect() -> None:
    finding = finding_of(stream(50, worse=20.0))
    assert finding.result.effect is None
    assert broken(finding) == ["score"]


def test_users_without_a_label_are_not_forecast() -> None:
    log = list(stream(400, unlabelled=1.0))
    before = volume(log, now=3600, days=7, by=BY)
    labelled = sum(one.taken is not None for one in log)
    assert before.users_per_hour == pytest.approx(labelled)
    assert 0.1 < before.sd < 1
    assert math.isnan(volume([], now=0, days=7, by=BY).sd)

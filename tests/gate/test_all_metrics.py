import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.gate.all_metrics import judge_metrics
from daybreak.statistics.paired import Rules
from daybreak.statistics.result import Conclusion, Status

N = 400
NOTHING = np.zeros(N)
REFRESH = Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=True)
CHANGED = Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=False)


def drawn(mean: float, *, seed: int, spread: float = 0.1) -> np.ndarray:
    """Values of that mean, to the last digit."""
    values = np.random.default_rng(seed).normal(0, spread, N)
    return values - values.mean() + mean


BETTER, SAME, WORSE = (drawn(mean, seed=seed) for seed, mean in enumerate((0.05, 0.0, -0.05)))


def judged(
    values: dict[str, Any], *, guardrails: dict[str, float] | None = None, rules: Rules = CHANGED, **more: Any
) -> Conclusion:
    """Challengers' values against zeros; metrics that are no guardrail are success metrics."""
    limits = guardrails or {}
    given = {"success": [name for name in values if name not in limits], "guardrails": limits} | more
    return judge_metrics({k: (v, NOTHING) for k, v in values.items()}, rules=rules, **given)


def test_one_better_success_is_enough_if_none_is_worse() -> None:
    assert judged({"ndcg": SAME, "recall": BETTER}).status.is_proof
    judgement = judged({"ndcg": BETTER, "recall": WORSE})
    assert judgement.status is Status.WORSE
    assert judgement.sentence.startswith("recall: worse than the champion")


def test_a_success_that_is_only_no_worse_does_not_carry_a_changed_recipe() -> None:
    judgement = judged({"ndcg": SAME, "recall": SAME})
    assert judgement.status is Status.INCONCLUSIVE
    assert judged({"ndcg": SAME, "recall": SAME}, rules=REFRESH).status.is_proof


def test_every_success_of_a_refresh_has_to_be_no_worse() -> None:
    unsure = drawn(0, seed=3, spread=1)
    unsure -= unsure.mean()
    judgement = judged({"ndcg": SAME, "recall": unsure}, rules=REFRESH)
    assert judgement.status is Status.INCONCLUSIVE
    assert judgement.sentence.startswith("recall: inconclusive")


def test_a_guardrail_that_may_be_worse_by_more_than_its_margin_stops_a_better_challenger() -> None:
    assert judged({"ndcg": BETTER, "coverage": SAME}, guardrails={"coverage": 0.03}).status.is_proof
    judgement = judged({"ndcg": BETTER, "coverage": SAME}, guardrails={"coverage": 0.001})
    assert judgement.status is Status.INCONCLUSIVE
    assert judgement.sentence.startswith("guardrail coverage: inconclusive: not proven no worse")
    assert judgement.effect is not None
    assert judgement.effect.mean == pytest.approx(BETTER.mean())
    bad = judged({"ndcg": BETTER, "coverage": WORSE}, guardrails={"coverage": 0.01})
    assert bad.status is Status.WORSE


def test_a_guardrail_that_is_worse_outweighs_one_that_is_only_unproven() -> None:
    values = {"ndcg": BETTER, "coverage": SAME, "recall": WORSE}
    result = judged(values, guardrails={"coverage": 0.001, "recall": 0.01})
    assert result.status is Status.WORSE  # else a person could approve it
    assert result.sentence.startswith("guardrail recall: worse")


def test_a_guardrail_worse_within_its_margin_is_still_called_worse() -> None:
    judgement = judged({"ndcg": BETTER, "coverage": WORSE}, guardrails={"coverage": 0.5})
    assert judgement.status is Status.WORSE
    assert judgement.sentence.startswith("guardrail coverage: worse than the champion")


@pytest.mark.parametrize(
    ("values", "guardrails", "more", "words"),
    [
        ({}, {}, {}, "no metric is named that may be better"),
        ({"ndcg": SAME}, {}, {"success": ["recall"]}, "metric recall is missing; the workload reports: ndcg"),
        ({"ndcg": SAME}, {"errors": 0.1}, {}, "metric errors is missing"),
        ({"ndcg": SAME, "p": SAME}, {"p": 0.0}, {}, "guardrail p has margin 0"),
        ({"ndcg": SAME, "p": SAME}, {"p": math.nan}, {}, "guardrail p has margin nan"),
        ({"ndcg": SAME, "p": SAME[:3]}, {"p": 0.1}, {}, "guardrail p: 3 scores of the challenger but 400"),
        ({"ndcg": None}, {}, {}, "no scores of the challenger"),
    ],
)
def test_what_is_missing_is_no_data_with_its_reason(
    values: Any, guardrails: Any, more: Any, words: str
) -> None:
    judgement = judged(values, guardrails=guardrails, rules=REFRESH, **more)
    assert judgement.status is Status.NO_DATA
    assert words in judgement.sentence


def test_what_is_not_finite_in_a_guardrail_is_rejected() -> None:
    judgement = judged({"ndcg": BETTER, "errors": SAME * math.nan}, guardrails={"errors": 0.1})
    assert (judgement.status, judgement.sentence) == (
        Status.INVALID,
        "guardrail errors: 400 of 400 scores of the challenger are not finite",
    )


def test_before_the_horizon_an_open_guardrail_waits() -> None:
    guardrails = {"coverage": 0.001}
    judgement = judged({"ndcg": BETTER + 1, "coverage": SAME}, guardrails=guardrails, horizon=10 * N)
    assert judgement.status is Status.OPEN


@pytest.mark.slow
def test_many_success_metrics_do_not_raise_the_chance_of_a_false_promotion() -> None:
    rng, names = np.random.default_rng(1), [str(k) for k in range(5)]
    promoted = [judged({name: rng.normal(0, 1, N) for name in names}).status.is_proof for _ in range(300)]
    assert np.mean(promoted) <= 0.05


column = st.lists(st.floats(-1, 1, width=32) | st.just(math.nan), max_size=40) | st.none()


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(column, column), max_size=3),
    st.lists(st.sampled_from("abc"), max_size=2, unique=True),
    st.dictionaries(st.sampled_from("abc"), st.floats(-1, 1) | st.just(math.nan), max_size=2),
    st.booleans(),
)
def test_every_input_has_a_judgement(pairs: Any, success: Any, guardrails: Any, refresh: bool) -> None:
    rules = REFRESH if refresh else CHANGED
    judgement = judge_metrics(pairs, success=success, guardrails=guardrails, rules=rules)
    assert judgement.status in Status
    assert judgement.sentence
    if judgement.status.is_proof:
        assert set(success) | set(guardrails) <= set(pairs)
        assert all(margin > 0 for margin in guardrails.values())

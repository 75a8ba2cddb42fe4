"""Metrics against scikit-learn, and their influence values against the jackknife."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as sk

from daybreak.workloads.metrics import (
    AUC,
    F1,
    MAPE,
    AbsoluteError,
    Accuracy,
    Calibration,
    ClassLogLoss,
    LogLoss,
    Metric,
    Perplexity,
    Pinball,
    SquaredError,
)

chances = arrays(np.float64, 40, elements=st.sampled_from([0.01, 0.2, 0.35, 0.5, 0.65, 0.8, 0.99]))
truths = arrays(np.int64, 40, elements=st.integers(0, 1)).filter(lambda y: 0 < y.sum() < len(y))


@settings(max_examples=50)
@given(chance=chances, true=truths)
def test_means_are_those_of_scikit_learn(chance: np.ndarray, true: np.ndarray) -> None:
    assert AUC().values(chance, true).mean() == pytest.approx(sk.roc_auc_score(true, chance))
    assert F1().values(chance, true).mean() == pytest.approx(sk.f1_score(true, chance > 0.5))
    assert LogLoss().values(chance, true).mean() == pytest.approx(sk.log_loss(true, chance))
    assert AbsoluteError().values(chance, true).mean() == pytest.approx(sk.mean_absolute_error(true, chance))
    assert SquaredError().values(chance, true).mean() == pytest.approx(sk.mean_squared_error(true, chance))
    assert MAPE().values(chance, true + 1).mean() == pytest.approx(
        sk.mean_absolute_percentage_error(true + 1, chance)
    )
    for quantile in (0.1, 0.9):
        ours = Pinball(quantiles=(quantile,)).values(chance[:, None], true).mean()
        assert ours == pytest.approx(sk.mean_pinball_loss(true, chance, alpha=quantile))


@pytest.mark.parametrize("metric", [AUC(), F1(), LogLoss()], ids=lambda metric: metric.name)
def test_the_standard_error_by_influence_is_that_of_the_jackknife(metric: Metric) -> None:
    draw = np.random.default_rng(0)
    true = draw.random(400) < 0.25
    chance = np.clip(0.25 * true + 0.8 * draw.random(400), 0.01, 0.99)
    values = metric.values(chance, true)
    left = np.array(
        [metric.values(np.delete(chance, i), np.delete(true, i)).mean() for i in range(len(true))]
    )
    jackknife = np.sqrt((len(true) - 1) * np.var(left))
    assert values.std(ddof=1) / np.sqrt(len(true)) == pytest.approx(jackknife, rel=0.02)


def test_calibration_is_zero_where_frequencies_are_as_said_and_grows_with_the_gap() -> None:
    draw = np.random.default_rng(1)
    chance = draw.random(200_000)
    true = draw.random(200_000) < chance
    assert Calibration().values(chance, true).mean() < 1e-4
    assert Calibration().values(chance, np.ones(200_000)).mean() == pytest.approx(1 / 3, abs=0.01)


def test_perplexity_is_of_all_tokens_together() -> None:
    loss = np.array([[np.log(2) * 3, 3], [np.log(8), 1]])
    assert Perplexity().values(loss, np.zeros(2)).mean() == pytest.approx(np.exp(loss[:, 0].sum() / 4))


@pytest.mark.parametrize("metric", [LogLoss(), AbsoluteError(), SquaredError(), Pinball()])
def test_no_other_constant_is_better_than_the_best_one(metric: Metric) -> None:
    draw = np.random.default_rng(2)
    label = draw.exponential(1, 500) if not isinstance(metric, LogLoss) else draw.random(500) < 0.2

    def loss(constant: np.ndarray) -> float:
        return metric.values(np.broadcast_to(constant, (500, *np.shape(constant))), label).mean()

    best = np.asarray(metric.constant(label))
    for other in (0.9, 1.1):
        assert loss(best) <= loss(best * other) + 1e-9
    assert Perplexity().constant(label) is None


def test_the_area_of_labels_that_are_all_alike_is_not_a_number() -> None:
    assert np.isnan(AUC().values(np.array([0.1, 0.2]), np.array([1, 1]))).all()


def test_metrics_of_classes_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(1)
    chance, true = draw.dirichlet(np.ones(4), 60), draw.integers(0, 4, 60)
    assert ClassLogLoss().values(chance, true).mean() == pytest.approx(sk.log_loss(true, chance))
    assert Accuracy().values(chance, true).mean() == sk.accuracy_score(true, chance.argmax(axis=1))
    constant = np.asarray(ClassLogLoss().constant(true))
    assert constant == pytest.approx(np.bincount(true) / 60)
    assert ClassLogLoss().values(chance, np.full(60, 9)).min() > 20  # a class that was never seen


@pytest.mark.parametrize("metric", [ClassLogLoss(), Accuracy()])
def test_one_chance_a_sample_is_that_of_the_second_of_two_classes(metric: Metric) -> None:
    chance, label = np.array([0.9, 0.2, 0.3, 0.6]), [1, 0, 1, 0]
    expected = metric.values(np.stack([1 - chance, chance], axis=1), label)
    assert expected.tolist() == pytest.approx(
        LogLoss().values(chance, label).tolist() if isinstance(metric, ClassLogLoss) else [1, 1, 0, 0]
    )
    assert metric.values(chance, label).tolist() == expected.tolist()
    assert metric.values(chance[:, None], label).tolist() == expected.tolist()
    assert len(metric.values([], [])) == 0
    constant = np.tile(metric.constant([0, 0, 0]), (3, 1))  # where all labels are of the first class
    assert metric.values(constant, [0, 0, 0]).mean() == (0 if isinstance(metric, ClassLogLoss) else 1)

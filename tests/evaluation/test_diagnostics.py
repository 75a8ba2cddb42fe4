"""What people look at beside metrics: reliability, confusion, metrics by slice."""

import numpy as np
import pytest

from daybreak.contract.workload import UNIT
from daybreak.evaluation.diagnostics import LEAST, by_slice, confusion, reliability
from daybreak.workloads.metrics import AUC, F1, AbsoluteError, Accuracy, LogLoss, Perplexity

RNG = np.random.default_rng(5)


def test_chances_that_are_right_lie_on_the_line() -> None:
    chance = RNG.random(20_000)
    label = (RNG.random(20_000) < chance).astype(float)
    shown = reliability([LogLoss()], {"challenger": {"prediction": chance}}, label)
    assert shown
    assert [one.num_samples for one in shown.challenger] == [2000] * 10
    assert [one.predicted for one in shown.challenger] == pytest.approx(np.arange(0.05, 1, 0.1), abs=0.01)
    assert [one.observed for one in shown.challenger] == pytest.approx(np.arange(0.05, 1, 0.1), abs=0.04)


def test_a_champion_that_promises_too_much_is_beside_it() -> None:
    label = np.repeat([0.0, 1.0], 100)
    predicted = {
        "challenger": {"prediction": 0.25 + 0.5 * label},
        "champion": {"prediction": 0.9 + 0.05 * label},
    }
    shown = reliability([LogLoss()], predicted, label)
    assert shown
    assert np.mean([one.predicted for one in shown.champion]) > 0.9
    assert np.mean([one.observed for one in shown.champion]) == pytest.approx(0.5)


def test_no_bin_is_of_a_few_samples_whose_values_could_be_read_from_it() -> None:
    for num in (1, LEAST, 2 * LEAST - 1, 2 * LEAST, 5 * LEAST + 3):
        chance = RNG.random(num)
        shown = reliability([LogLoss()], {"challenger": {"prediction": chance}}, chance.round())
        bins = shown.challenger if shown else ()
        assert all(one.num_samples >= LEAST for one in bins)
        assert bool(bins) == (num >= 2 * LEAST)


def test_metrics_that_are_of_no_chance_have_no_reliability() -> None:
    values = RNG.random(100)
    assert reliability([AbsoluteError(), AUC()], {"challenger": {"prediction": values}}, values) is None


def test_each_sample_is_counted_once_in_the_row_of_its_class() -> None:
    label = RNG.integers(0, 3, 500)
    chances = RNG.random((500, 3))
    table = confusion(
        [Accuracy()], {"challenger": {"prediction": chances}}, label, classes=("cat", "dog", "newt")
    )
    assert table
    assert table.classes == ("cat", "dog", "newt")
    assert [sum(row) for row in table.challenger] == np.bincount(label).tolist()
    right = sum(table.challenger[at][at] for at in range(3))
    assert right == int((chances.argmax(axis=1) == label).sum())


def test_the_threshold_of_f1_decides_what_was_said() -> None:
    label, score = np.array([0, 0, 1, 1]), np.array([0.1, 0.6, 0.4, 0.9])
    table = confusion([F1(threshold=0.5)], {"challenger": {"prediction": score}}, label, classes=())
    assert table
    assert table.challenger == ((1, 1), (1, 1))
    low = confusion([F1(threshold=0.3)], {"challenger": {"prediction": score}}, label, classes=())
    assert low
    assert low.challenger == ((1, 1), (0, 2))


def test_a_thousand_classes_are_no_table() -> None:
    label = np.arange(1000)
    predicted = {"challenger": {"prediction": np.eye(1000)}}
    assert confusion([Accuracy()], predicted, label, classes=()) is None


def test_a_metric_by_slice_is_its_mean_with_the_standard_error() -> None:
    values = RNG.normal(3.0, 2.0, 400).astype(np.float32)
    half = np.arange(400) < 200
    columns = {
        "challenger": -values,
        "metric/absolute error": values,
        "metric/AUC": values,
        "slice/first half": half,
        "slice/three": np.arange(400) < 3,
    }
    found = by_slice(columns, [AbsoluteError(), AUC()], without={})
    assert found.keys() == {"absolute error"}  # an area under a curve is of no slice's samples alone
    assert found["absolute error"].keys() == {"", "first half"}  # three samples would tell their values
    mean, error = found["absolute error"]["first half"]
    assert mean == pytest.approx(values[:200].mean(), rel=1e-4)
    assert error == pytest.approx(values[:200].std(ddof=1) / 200**0.5, rel=1e-4)


def test_a_workload_that_scores_samples_has_its_score_and_metrics_but_none_that_is_of_one_slice() -> None:
    columns = {name: RNG.random(50) for name in ("challenger", "metric/hit", "metric/of new")}
    assert by_slice(columns, [], without={"of new": "new"}).keys() == {"score", "hit"}


def test_metrics_of_a_set_have_no_slices_even_where_a_workload_has_no_others() -> None:
    columns = {
        name: RNG.random(50) for name in ("challenger", "metric/AUC", "metric/F1", "metric/perplexity")
    }
    assert by_slice(columns, [AUC(), F1()], without={}) == {}
    assert by_slice(columns, [Perplexity()], without={}) == {}  # each sample's is another than its column's


def test_samples_of_one_unit_make_the_error_no_smaller() -> None:
    of_unit = RNG.normal(size=40)
    once = {"challenger": of_unit, UNIT: np.arange(40), "slice/one unit": np.arange(40) < 1}
    often = {name: np.repeat(values, 25) for name, values in once.items()}
    alone, repeated = (by_slice(columns, [], without={})["score"] for columns in (once, often))
    assert repeated[""] == pytest.approx(alone[""], rel=1e-5)
    assert repeated.keys() == {""}  # of a single unit, 25 samples have no spread

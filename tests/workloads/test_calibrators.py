"""Calibrators find the chances that a model should have given, and leave right ones as they are."""

import numpy as np
import pytest
import torch

from daybreak.contract.errors import ParamsError
from daybreak.workloads.calibrators import NUM_KNOTS, IsotonicCalibration, TemperatureScaling

NUM = 20_000


def drawn(num_classes: int = 2):
    """Chances, and labels that are drawn by them."""
    draw = np.random.default_rng(0)
    logits = torch.from_numpy(draw.normal(size=(NUM, num_classes)) * 2)
    chances = logits.softmax(1)
    label = (chances.cumsum(1).numpy() < draw.random((NUM, 1))).sum(1)
    return logits, chances, label


def log_loss(chances, label):
    return -float(np.log(chances[np.arange(NUM), label]).mean())


@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_a_temperature_is_found(num_classes, temperature):
    logits, chances, label = drawn(num_classes)
    wrong = (logits * temperature).softmax(1)
    if num_classes == 2:
        wrong, chances = wrong[:, 1], chances[:, 1]
    calibrator = TemperatureScaling()
    fitted = calibrator.fit(wrong.numpy(), label)
    assert float(fitted) == pytest.approx(temperature, rel=0.05)
    assert (calibrator.apply(wrong, fitted) - chances).abs().max() < 0.02


def test_a_line_is_found_that_no_temperature_has():
    _, chances, label = drawn()
    right = chances[:, 1]
    wrong = right**3
    calibrator = IsotonicCalibration()
    fitted = calibrator.fit(wrong.numpy(), label)
    calibrated = calibrator.apply(wrong, fitted)
    assert (calibrated - right).abs().mean() < 0.02
    assert bool((calibrated[wrong.argsort()].diff() >= 0).all())
    assert 0 < float(calibrated.min()) <= float(calibrated.max()) < 1  # or a log loss would be infinite


@pytest.mark.parametrize("calibrator", [TemperatureScaling(), IsotonicCalibration()])
def test_what_is_not_fitted_changes_nothing(calibrator):
    chances = torch.linspace(0, 1, 999)
    torch.testing.assert_close(calibrator.apply(chances, calibrator.identity()), chances)


def test_equal_chances_are_calibrated_too():
    calibrator = IsotonicCalibration()
    fitted = calibrator.fit(np.full(10, 0.25), np.array([0] * 4 + [1] * 6))
    assert float(calibrator.apply(torch.tensor([0.25]), fitted)) == pytest.approx(0.6)


def test_a_line_is_right_where_one_in_a_thousand_is_yes():
    draw = np.random.default_rng(0)
    label = (draw.random(200_000) < 0.001).astype(int)
    logit = draw.normal(-7, 1.5, len(label)) + 8 * label
    chances = 1 / (1 + np.exp(-logit))
    calibrator = IsotonicCalibration()
    calibrated = calibrator.apply(torch.from_numpy(chances), calibrator.fit(chances, label)).numpy()
    assert calibrated.mean() == pytest.approx(label.mean(), rel=0.05)
    highest = np.argsort(chances)[-1000:]
    assert calibrated[highest].mean() == pytest.approx(label[highest].mean(), rel=0.05)


def test_a_line_of_many_parts_keeps_its_shape():
    draw = np.random.default_rng(0)
    right = np.sort(draw.random(200_000))
    label = (draw.random(len(right)) < right).astype(int)
    calibrator = IsotonicCalibration()
    fitted = calibrator.fit(right, label)
    assert len(fitted[0].unique()) > NUM_KNOTS / 2
    assert np.abs(calibrator.apply(torch.from_numpy(right), fitted).numpy() - right).mean() < 0.01


def test_the_temperature_of_chances_at_1_is_the_best_one():
    draw = np.random.default_rng(0)
    logit = draw.normal(0, 3, NUM)
    label = (draw.random(NUM) < 1 / (1 + np.exp(-logit))).astype(int)
    wrong = torch.from_numpy(logit * 6).float().sigmoid()
    assert wrong.max() == 1
    calibrator = TemperatureScaling()

    def loss(temperature):
        yes = calibrator.apply(wrong, temperature).numpy()
        return log_loss(np.stack([1 - yes, yes], axis=1), label)

    fitted = calibrator.fit(wrong.numpy(), label)
    assert float(fitted) < 8
    assert loss(fitted) <= min(loss(torch.tensor([each])) for each in np.geomspace(1, 50, 60)) + 1e-4


def test_a_temperature_at_the_end_of_the_search_is_doubted():
    draw = np.random.default_rng(0)
    calibrator = TemperatureScaling("risk")
    fitted = calibrator.fit(draw.random(NUM), draw.integers(0, 2, NUM))
    assert calibrator.doubt(fitted).startswith("the temperature of risk is 54.6, the end of what is")
    assert calibrator.doubt(calibrator.identity()) == ""


def test_what_is_no_chance_and_classes_where_a_line_is_asked_for_are_refused():
    with pytest.raises(ParamsError, match=r"risk goes from -2 to 3, and a calibrator is of chances"):
        TemperatureScaling("risk").fit(np.array([-2.0, 3.0]), np.array([0, 1]))
    with pytest.raises(ParamsError, match="chances of 3 classes, and IsotonicCalibration is of yes alone"):
        IsotonicCalibration().fit(np.full((4, 3), 1 / 3), np.zeros(4))
    with pytest.raises(ParamsError, match=r"has shape \[4, 1\] and the label \[4\], and a calibrator is"):
        TemperatureScaling().fit(np.full((4, 1), 0.5), np.zeros(4))
    with pytest.raises(ParamsError, match="has chances of 2 classes, and a label is 2; number labels from 0"):
        TemperatureScaling().fit(np.full(4, 0.5), np.array([0, 1, 2, 1]))
    with pytest.raises(ParamsError, match="risk goes from nan to nan, and a calibrator is of chances"):
        TemperatureScaling("risk").fit(np.full(4, np.nan), np.zeros(4))

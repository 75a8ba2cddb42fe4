"""Calibrates chances that a model predicts, by samples which it was validated on.

A class says so by `calibrator = TemperatureScaling()`. What is fitted is a buffer of the model, so that
checkpoints and versions have it, and a warm start keeps it; predictions are calibrated wherever they are made
(daybreak/workloads/served_rows.py), and so are those which the gate judges. Temperature scaling is of Guo et
al. 2017, isotonic regression for chances of Zadrozny & Elkan 2002.
"""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from daybreak.contract.errors import ParamsError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

NUM_KNOTS = 128  # of the line that isotonic regression is kept as
LARGEST_LOG = 4.0  # of a temperature, either way
LEAST = 2.0**-23  # of a chance, and of what is left to 1: float32 knows no less beside 1
TINY = 1e-12  # width between knots of equal chances


class Calibrator(Protocol):
    """How the chances of one prediction are changed, by numbers that are fitted."""

    prediction: str

    def identity(self) -> "Tensor":
        """Returns the numbers that change nothing."""

    def fit(self, chances: "NDArray[Any]", label: "NDArray[Any]") -> "Tensor":
        """Returns the numbers for chances, of yes [n] or of classes [n, classes], and labels [n]."""

    def apply(self, chances: "Tensor", fitted: "Tensor") -> "Tensor":
        """Returns the calibrated chances, of the same shape."""


class TemperatureScaling:
    """One number divides the logits, so that the order of chances stays; of yes, or of several classes.

    Args:
        prediction: which of the predictions.
    """

    most_samples = 10_000  # for one number; more cost time before the deadline, and tell little

    def __init__(self, prediction: str = "prediction") -> None:
        self.prediction = prediction

    def identity(self) -> "Tensor":
        """Returns a temperature of 1, shape [1]."""
        import torch

        return torch.ones(1)

    def fit(self, chances: "NDArray[Any]", label: "NDArray[Any]") -> "Tensor":
        """Returns the temperature with the least log loss."""
        import torch
        from scipy.optimize import minimize_scalar

        expect_chances(chances, label, self.prediction)
        logits, rows = _logits(torch.from_numpy(chances).double()), np.arange(len(label))

        def loss(log_temperature: float) -> float:
            logs = (logits / np.exp(log_temperature)).log_softmax(dim=1)
            return -float(logs[rows, label.astype(np.int64)].mean())

        best = minimize_scalar(loss, bounds=(-LARGEST_LOG, LARGEST_LOG), method="bounded")
        return torch.tensor([float(np.exp(best.x))])

    def doubt(self, fitted: "Tensor") -> str:
        """Returns a sentence where the temperature is at an end of what is searched; else none."""
        if abs(float(fitted.log())) < LARGEST_LOG - 0.01:
            return ""
        return (
            f"the temperature of {self.prediction} is {float(fitted):.3g}, the end of what is searched; see "
            f"whether its chances say anything of the label"
        )

    def apply(self, chances: "Tensor", fitted: "Tensor") -> "Tensor":
        """Returns the chances of logits divided by the temperature."""
        scaled = (_logits(chances) / fitted).softmax(dim=1)
        return scaled[:, 1] if chances.ndim == 1 else scaled


class IsotonicCalibration:
    """A line that never falls, through the shares of yes; it needs some thousand samples.

    Args:
        prediction: which of the predictions; chances of yes.
    """

    def __init__(self, prediction: str = "prediction") -> None:
        self.prediction = prediction

    def identity(self) -> "Tensor":
        """Returns the knots of a straight line, shape [2, knots]."""
        import torch

        return torch.linspace(0, 1, NUM_KNOTS).repeat(2, 1)

    def fit(self, chances: "NDArray[Any]", label: "NDArray[Any]") -> "Tensor":
        """Returns the knots of the line: chances, and the shares of yes among samples of such chances."""
        import torch
        from scipy.optimize import isotonic_regression

        expect_chances(chances, label, self.prediction)
        if chances.ndim > 1:
            raise ParamsError(
                f"{self.prediction} has chances of {chances.shape[1]} classes, and IsotonicCalibration is of "
                f"yes alone; take TemperatureScaling"
            )
        values, place, counts = np.unique(chances.astype(np.float32), return_inverse=True, return_counts=True)
        shares = np.bincount(place, weights=label) / counts
        line = isotonic_regression(shares, weights=counts)
        least = 0.5 / len(label)  # as nobody has seen enough to be certain, and log loss would be infinite
        ends = np.union1d(line.blocks[:-1], line.blocks[1:] - 1)
        if len(ends) > NUM_KNOTS:
            ends = ends[_spread(shares * counts, counts)[ends].searchsorted(np.linspace(0, 1, NUM_KNOTS))]
        ends = np.pad(ends, (0, NUM_KNOTS - len(ends)), mode="edge")
        heights = line.x[ends].clip(least, 1 - least)
        return torch.from_numpy(np.stack([values[ends], heights])).float()

    def apply(self, chances: "Tensor", fitted: "Tensor") -> "Tensor":
        """Returns the heights of the line at the chances, and beyond its ends those of the ends."""
        import torch

        knots, heights = fitted.to(chances.dtype)
        right = torch.searchsorted(knots.contiguous(), chances.contiguous()).clamp(1, NUM_KNOTS - 1)
        left = right - 1
        share = (chances - knots[left]) / (knots[right] - knots[left]).clamp(min=TINY)
        calibrated: Tensor = heights[left] + share.clamp(0, 1) * (heights[right] - heights[left])
        return calibrated


def expect_chances(chances: "NDArray[Any]", label: "NDArray[Any]", prediction: str) -> None:
    """Raises ParamsError for predictions that are no chances, or none of these labels."""
    if chances.shape[1:] == (1,) or chances.ndim > 2 or label.ndim != 1:
        raise ParamsError(
            f"{prediction} has shape {list(chances.shape)} and the label {list(label.shape)}, and a "
            f"calibrator is of chances of yes [n] or of classes [n, classes]; return these, or leave "
            f"calibrator out"
        )
    if chances.size and not (chances.min() >= 0 and chances.max() <= 1 + LEAST):
        raise ParamsError(
            f"{prediction} goes from {chances.min():.4g} to {chances.max():.4g}, and a calibrator is of "
            f"chances; return chances from predict, as by sigmoid or softmax, or leave calibrator out"
        )
    num_classes = 2 if chances.ndim == 1 else chances.shape[1]
    if wrong := sorted(set(np.unique(label).tolist()) - set(range(num_classes))):
        raise ParamsError(
            f"{prediction} has chances of {num_classes} classes, and a label is {wrong[0]:g}; number labels "
            f"from 0 to {num_classes - 1}, or leave calibrator out"
        )


def _spread(yes: "NDArray[Any]", counts: "NDArray[Any]") -> "NDArray[Any]":
    """Returns the share of the samples up to each value, where yes and no weigh the same.

    Where one in a thousand is yes, all that tells yes from no lies in a few of the largest chances.
    """
    shares = [each.cumsum() / max(each.sum(), 1) for each in (yes, counts - yes)]
    summed = shares[0] + shares[1]
    scaled: NDArray[Any] = (summed - summed[0]) / max(summed[-1] - summed[0], TINY)
    return scaled


def _logits(chances: "Tensor") -> "Tensor":
    """Returns the logits of no and yes, or of the classes, shape [n, classes], up to a constant.

    Both chances have the same least, in any precision, so that what is fitted is what is applied.
    """
    import torch

    every = torch.stack([1 - chances, chances], dim=1) if chances.ndim == 1 else chances
    return every.clamp(min=LEAST).log()

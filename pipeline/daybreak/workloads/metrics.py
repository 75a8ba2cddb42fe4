"""Measures predictions against labels: a value for each sample, whose mean is the metric.

For a metric of single samples, such as the log loss, that value is the sample's own. A metric of a set, such
as the area under a curve, is a function of the whole: the value of a sample is the metric plus the sample's
influence on it (Hampel 1974), so that the mean of values is the metric, and their spread gives the standard
error (the delta method). So the gate judges both kinds in the same way, by differences of two models on the
same samples.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Role = Literal["success", "guardrail", "report"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric; the first of a workload decides.

    Args:
        prediction: name of the prediction to judge, as `predict` names it.
        role: `success`: one of these must be better; `guardrail`: it must hold; `report`: it is only shown.
        margin: tolerated loss, as a share of the champion's value; for the first metric and for guardrails.
    """

    prediction: str = "prediction"
    role: Role = "report"
    margin: float = 0.01
    higher_is_better: ClassVar[bool] = False
    of_chances: ClassVar[bool] = False  # predictions are from 0 to 1

    @property
    def name(self) -> str:
        """Returns what the metric is called in the report."""
        words = "".join(f" {c.lower()}" if c.isupper() else c for c in type(self).__name__)
        return words.strip()

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns a value for each sample, shape [n]; both arguments are of shape [n, ...]."""
        raise NotImplementedError

    def sample_values(self, prediction: ArrayLike, label: ArrayLike) -> Floats | None:
        """Returns a value for each sample that no other sample changes, shape [n]; None: a set has none.

        Users are judged by it, each of whom meets one model only. A metric of a set overrides it.
        """
        return self.values(prediction, label)

    def constant(self, label: ArrayLike) -> ArrayLike | None:
        """Returns the prediction that is best for all samples alike; None where that means nothing."""
        return float(_flat(label).mean())


@dataclass(frozen=True, kw_only=True)
class LogLoss(Metric):
    """Minus the log of the probability that was given to what happened; labels are 0 or 1."""

    of_chances: ClassVar[bool] = True

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns the loss of each sample, in nats."""
        chance = np.clip(_flat(prediction), 1e-12, 1 - 1e-12)
        return _floats(np.where(_flat(label) > 0.5, -np.log(chance), -np.log1p(-chance)))


@dataclass(frozen=True, kw_only=True)
class AUC(Metric):
    """Chance that a positive sample is ranked above a negative one; the area under the ROC curve."""

    higher_is_better: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Returns the abbreviation."""
        return "AUC"

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns the area plus the influence of each sample, by its placement (DeLong et al. 1988).

        Not a number where all labels are the same.
        """
        score, positive = _flat(prediction), _flat(label) > 0.5
        num_positive, num_negative = int(positive.sum()), int((~positive).sum())
        if not num_positive or not num_negative:
            return np.full(len(score), np.nan)
        from scipy import stats  # which takes a second, and a version that serves needs no metric

        placed = np.empty(len(score))
        rank = stats.rankdata(score)
        placed[positive] = (rank[positive] - stats.rankdata(score[positive])) / num_negative
        above = rank[~positive] - stats.rankdata(score[~positive])
        placed[~positive] = 1 - above / num_positive
        area = float(placed[positive].mean())
        weight = np.where(positive, len(score) / num_positive, len(score) / num_negative)
        return _floats(area + (placed - area) * weight)

    def sample_values(self, prediction: ArrayLike, label: ArrayLike) -> Floats | None:
        """Returns None: a sample is ranked among others."""
        return None


@dataclass(frozen=True, kw_only=True)
class F1(Metric):
    """Harmonic mean of precision and recall of the predictions above a threshold."""

    threshold: float = 0.5
    higher_is_better: ClassVar[bool] = True

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns F1 = 2 TP / (2 TP + FP + FN) plus the influence of each sample."""
        said, true = _flat(prediction) > self.threshold, _flat(label) > 0.5
        return _ratio(_floats(2.0 * (said & true)), _floats(said.astype(float) + true))

    def sample_values(self, prediction: ArrayLike, label: ArrayLike) -> Floats | None:
        """Returns None: precision and recall are shares of a set."""
        return None


@dataclass(frozen=True, kw_only=True)
class Calibration(Metric):
    """Squared difference of predicted and true frequency, over bins of like predictions; 0 is best.

    The expected calibration error with squares, which have an influence everywhere. The noise of bins is not
    taken off, so it falls with the number of samples; compare models on the same samples.
    """

    of_chances: ClassVar[bool] = True
    num_bins: int = 10

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns the error plus the influence of each sample."""
        chance, true = _flat(prediction), _flat(label)
        if not len(chance):
            return np.zeros(0)
        rank = np.empty(len(chance), dtype=int)
        rank[np.argsort(chance, kind="stable")] = np.arange(len(chance))
        place = (rank * self.num_bins // len(chance)).astype(int)
        size = np.bincount(place, minlength=self.num_bins)
        gap = np.bincount(place, weights=true - chance, minlength=self.num_bins) / np.maximum(size, 1)
        return _floats(gap[place] * (2 * (true - chance) - gap[place]))

    def sample_values(self, prediction: ArrayLike, label: ArrayLike) -> Floats | None:
        """Returns None: a frequency is of a set."""
        return None


@dataclass(frozen=True, kw_only=True)
class ClassLogLoss(Metric):
    """Minus the log of the probability that was given to the class that it was; labels are 0, 1, ..."""

    of_chances: ClassVar[bool] = True

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns the loss of each sample, in nats.

        Predictions are of shape [n, classes], or for two classes [n]: the chance of 1.
        """
        chance, place = _chances(prediction), np.asarray(label).reshape(-1).astype(int)
        known = (place >= 0) & (place < chance.shape[1])  # a class that no training has seen has no chance
        given = np.where(known, chance[np.arange(len(chance)), np.where(known, place, 0)], 0.0)
        return _floats(-np.log(np.clip(given, 1e-12, 1)))

    def constant(self, label: ArrayLike) -> ArrayLike | None:
        """Returns the shares of the classes."""
        return _shares(label)


@dataclass(frozen=True, kw_only=True)
class Accuracy(Metric):
    """Share of the samples whose most likely class is right; labels are 0, 1, ..."""

    higher_is_better: ClassVar[bool] = True

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns 1 where it is right, else 0.

        Predictions are of shape [n, classes], or for two classes [n]: the chance of 1.
        """
        return _floats(_chances(prediction).argmax(axis=1) == np.asarray(label).reshape(-1))

    def constant(self, label: ArrayLike) -> ArrayLike | None:
        """Returns the shares of the classes, of which the largest is taken."""
        return _shares(label)


@dataclass(frozen=True, kw_only=True)
class AbsoluteError(Metric):
    """Distance of prediction and label, in the label's unit."""

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns the distance of each sample."""
        return _floats(np.abs(_flat(prediction) - _flat(label)))

    def constant(self, label: ArrayLike) -> ArrayLike | None:
        """Returns the median."""
        return float(np.median(_flat(label)))


@dataclass(frozen=True, kw_only=True)
class SquaredError(Metric):
    """Squared distance of prediction and label."""

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns the squared distance of each sample."""
        return (_flat(prediction) - _flat(label)) ** 2


@dataclass(frozen=True, kw_only=True)
class MAPE(Metric):
    """Distance of prediction and label as a share of the label; samples whose label is 0 count as 0."""

    @property
    def name(self) -> str:
        """Returns the abbreviation."""
        return "MAPE"

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns the share of each sample."""
        guess, true = _flat(prediction), _flat(label)
        return _floats(np.where(true != 0, np.abs(guess - true) / np.where(true != 0, np.abs(true), 1), 0.0))

    def constant(self, label: ArrayLike) -> ArrayLike | None:
        """Returns the median."""
        return float(np.median(_flat(label)))


@dataclass(frozen=True, kw_only=True)
class Pinball(Metric):
    """Loss of forecast quantiles (Koenker & Bassett 1978), in the label's unit, the mean over `quantiles`."""

    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns the loss of each sample; predictions are of shape [n, quantiles]."""
        forecast = np.asarray(prediction, dtype=np.float64).reshape(-1, len(self.quantiles))
        over = _flat(label)[:, None] - forecast
        share = np.asarray(self.quantiles)
        return _floats(np.maximum(share * over, (share - 1) * over).mean(axis=1))

    def constant(self, label: ArrayLike) -> ArrayLike | None:
        """Returns the quantiles of all labels."""
        quantiles: Floats = np.quantile(_flat(label), self.quantiles)
        return quantiles


@dataclass(frozen=True, kw_only=True)
class Perplexity(Metric):
    """Exponential of the mean log loss of tokens; the prediction is the log loss, and there is no label.

    The prediction is of shape [n, 2]: the sum of a sample's log losses, in nats, and its number of tokens.
    """

    def values(self, prediction: ArrayLike, label: ArrayLike) -> Floats:
        """Returns the perplexity plus the influence of each sample."""
        sums = np.asarray(prediction, dtype=np.float64).reshape(-1, 2)
        mean = _ratio(sums[:, 0], sums[:, 1])
        perplexity = np.exp(mean.mean()) if len(mean) else 1.0
        return _floats(perplexity * (1 + mean - mean.mean()))

    def sample_values(self, prediction: ArrayLike, label: ArrayLike) -> Floats | None:
        """Returns the mean log loss of each sample's tokens, the log of its own perplexity."""
        sums = np.asarray(prediction, dtype=np.float64).reshape(-1, 2)
        return _floats(sums[:, 0] / np.maximum(sums[:, 1], 1))

    def constant(self, label: ArrayLike) -> ArrayLike | None:
        """Returns None: there is no label."""
        return None


def _chances(prediction: ArrayLike) -> Floats:
    """Returns the chance of each class, shape [n, classes]; one number a sample is the chance of 1 of two."""
    chance = _floats(prediction)
    chance = chance.reshape(len(chance), int(np.prod(chance.shape[1:])))
    return np.concatenate([1 - chance, chance], axis=1) if chance.shape[1] == 1 else chance


def _shares(label: ArrayLike) -> Floats | None:
    places = np.asarray(label).reshape(-1).astype(int)
    return _floats(np.bincount(places, minlength=2) / len(places)) if len(places) else None


def _ratio(over: Floats, under: Floats) -> Floats:
    """Returns sum(over) / sum(under) plus each sample's influence on it; zeros where the sum is 0."""
    if not under.sum():
        return np.zeros(len(over))
    ratio = over.sum() / under.sum()
    return _floats(ratio + (over - ratio * under) / under.mean())


def _flat(values: Any) -> Floats:
    return _floats(values).reshape(-1)


def _floats(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64)

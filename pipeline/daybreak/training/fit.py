"""The fit of an estimator, as the libraries of estimators offer it, and their errors as sentences."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.errors import ParamsError, PipelineError, is_out_of_memory

Floats = NDArray[np.floating[Any]]
Predictor = Callable[[Floats], Floats]  # of inputs [n, inputs] to [n], or to chances [n, classes]


@dataclass(frozen=True, kw_only=True)
class FitData:
    """The samples that an estimator is fitted on."""

    inputs: Floats  # [n, inputs]; nan where a number is missing, or a category is not known
    categorical: Sequence[int]  # which inputs are numbers of categories
    label: NDArray[Any]  # [n]
    num_classes: int  # 0: the label is a number
    weight: NDArray[np.float64] | None = None  # [n], of the loss of each sample; none: all are equal


class Fit(Protocol):
    """An estimator that is being fitted."""

    num_grown: int  # trees, of each class; 1 where it is fitted at once
    draws: bool  # at random, so that the trees after a kill are others

    def grow(self) -> float:
        """Adds a tree, or fits all of it, and returns the mean loss on the samples by its own metric.

        `num_grown` stays as it is where no further tree helps. Raises ParamsError or DataError in a sentence.
        """

    def content(self) -> bytes:
        """Returns the model, in the format of the library."""


class Library(Protocol):
    """The way in which a library fits, saves and loads its estimators."""

    by_trees: bool  # it can be stopped after any tree

    def begin(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> Fit:
        """Returns a fit from the beginning, or from a model."""

    def load(self, content: bytes) -> Predictor:
        """Returns what predicts by a model."""


def classifies(estimator: Any) -> bool:
    """Returns whether an estimator is a classifier."""
    from sklearn.base import is_classifier

    return bool(is_classifier(estimator))


def expect_classes(estimator: Any, data: FitData) -> int:
    """Returns the classes of a classifier, 0 for a regressor; ParamsError where the label has none."""
    if not classifies(estimator):
        return 0
    if not data.num_classes:
        raise ParamsError(
            f"{type(estimator).__name__} is a classifier, and the label is no class: Int(min=0, max=1) or "
            f"Bool(); declare it as one, or return a regressor"
        )
    return data.num_classes


@contextmanager
def as_sentence(estimator: Any) -> Iterator[None]:
    """Makes an error of a library a sentence, as no restart of the job would mend it."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:  # whatever a library raises, of which each has kinds of its own
        if is_out_of_memory(error):  # another machine may have enough
            raise
        message = " ".join(str(error).partition("Stack trace")[0].split())[:300]
        raise ParamsError(
            f"{type(estimator).__name__} cannot be fitted: {type(error).__name__}: {message}; change its "
            f"parameters, or the label"
        ) from error


def expect_plain(estimator: Any, params: Mapping[str, Any]) -> None:
    """Raises ParamsError for params that the fit by trees does not read as the estimator itself would."""
    for name, value in params.items():
        if callable(value):
            raise ParamsError(
                f"{name} of {type(estimator).__name__} is a function, which is in no model file; name one of "
                f"the library's own"
            )
        if name.startswith("early_stopping") and value:
            raise ParamsError(
                f"{name} of {type(estimator).__name__} is not read; set train.validation and train.patience"
            )


def first(estimator: Any, values: Sequence[Any]) -> float:
    """Returns the first of the metrics; ParamsError where there is none."""
    if not values:
        raise ParamsError(f"{type(estimator).__name__} has no metric; name one of the library's own")
    return float(values[0])

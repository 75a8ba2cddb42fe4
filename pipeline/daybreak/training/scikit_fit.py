"""Fits estimators of scikit-learn at once, and keeps them as files of skops."""

import inspect
from typing import Any

import numpy as np

from daybreak.contract.errors import DataError, ParamsError
from daybreak.training import skops_files
from daybreak.training.fit import Fit, FitData, Floats, Predictor, as_sentence, classifies, expect_classes

SCORED = 10_000  # samples at most, for the loss


class ScikitLearn:
    """Estimators of scikit-learn, which are fitted at once."""

    by_trees = False

    def begin(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> Fit:
        """Returns a fit that takes all of it in one go."""
        return _ScikitLearnFit(estimator, data, seed=seed, content=content)

    def load(self, content: bytes) -> Predictor:
        """Returns the predictor in a file of skops; DataError where a type in the file is not trusted."""
        model = skops_files.loaded(content)
        if not classifies(model):
            return model.predict  # type: ignore[no-any-return]

        def predict(inputs: Floats) -> Floats:
            chances: Floats = model.predict_proba(inputs)
            return chances[:, 1] if chances.shape[1] == 2 else chances

        return predict


class _ScikitLearnFit:
    draws = False  # a fit after a kill is a whole one

    def __init__(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> None:
        self._num_classes = expect_classes(estimator, data)
        _expect_predicts(estimator, "predict_proba" if self._num_classes else "predict")
        if self._num_classes and (num := len(np.unique(data.label))) != self._num_classes:
            raise DataError(
                f"the {len(data.label):,} samples have {num} of {self._num_classes} classes, from 0 to "
                f"{self._num_classes - 1}; take days that have all (prepare.window_days), or name fewer "
                f"classes in the label, where they are numbers from 0 on without a gap"
            )
        self.num_grown, self._content = int(bool(content)), content
        given = estimator.get_params()
        chosen: dict[str, Any] = {name: seed for name, value in given.items() if _is_unseeded(name, value)}
        self._inputs, self._label = data.inputs, data.label
        self._by_weight: dict[str, Any] = {}
        if data.weight is not None:
            self._by_weight[_name_of_weight(estimator)] = data.weight
        if data.categorical and _is_default(estimator, "categorical_features"):
            chosen["categorical_features"] = list(data.categorical)
            self._inputs = _with_fewer(data, most=given["max_bins"])
        self._estimator = estimator.set_params(**chosen)

    def grow(self) -> float:
        if self.num_grown:
            raise ParamsError(
                f"{type(self._estimator).__name__} is fitted at once, and not tree by tree; set "
                f"train.epochs to 1"
            )
        with as_sentence(self._estimator):
            fitted = self._estimator.fit(self._inputs, self._label, **self._by_weight)
            self.num_grown, self._content = 1, skops_files.written(fitted)
            some = np.linspace(0, len(self._label) - 1, min(SCORED, len(self._label))).astype(np.int64)
            predicted, label = fitted.predict(self._inputs[some]), self._label[some]
        if self._num_classes:
            return float(np.mean(predicted != label))
        return float(np.mean((np.reshape(predicted, label.shape) - label) ** 2))

    def content(self) -> bytes:
        return self._content


def _expect_predicts(estimator: Any, method: str) -> None:
    """Raises ParamsError for an estimator that could not predict once it is fitted, maybe for hours."""
    if not hasattr(estimator, method):
        way = "predict the chances of classes" if method == "predict_proba" else "predict"
        raise ParamsError(
            f"{type(estimator).__name__} has no {method}, and is to {way}; return one that has it, such as "
            f"CalibratedClassifierCV of it"
        )


def _name_of_weight(estimator: Any) -> str:
    """Returns the argument by which a fit takes weights, of the last step of a pipeline.

    A fit that takes any argument, such as of GridSearchCV, passes it on to the estimator inside, or says why
    not. Raises ParamsError where weights would be ignored.
    """
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.utils.validation import has_fit_parameter

    name = "sample_weight"
    if steps := getattr(estimator, "steps", ()):
        step, last = steps[-1]
        return f"{step}__{_name_of_weight(last)}"
    inside = [getattr(estimator, each, None) for each in ("estimator", "regressor")]
    inner = next((each for each in inside if each is not None), None)
    if not has_fit_parameter(estimator, name) and _takes_any(estimator):
        return name if inner is None else _name_of_weight(inner)
    goes_on_without = isinstance(estimator, CalibratedClassifierCV) and inner is not None
    for each in [estimator, inner] if goes_on_without else [estimator]:
        if not has_fit_parameter(each, name):
            raise ParamsError(
                f"the class has weights, and {type(each).__name__} takes none; leave them out, or return "
                f"an estimator whose fit has sample_weight"
            )
    return name


def _takes_any(estimator: Any) -> bool:
    """Returns whether a fit takes arguments of any name; there is none of "passthrough" in a pipeline."""
    if not hasattr(estimator, "fit"):
        return True
    taken = inspect.signature(estimator.fit).parameters.values()
    return any(each.kind is each.VAR_KEYWORD for each in taken)


def _is_default(estimator: Any, name: str) -> bool:
    """Returns whether an estimator has a parameter of that name, which the team has not set."""
    parameter = inspect.signature(type(estimator)).parameters.get(name)
    given = estimator.get_params(deep=False).get(name)
    return parameter is not None and isinstance(given, type(parameter.default)) and given == parameter.default


def _with_fewer(data: FitData, *, most: int) -> Floats:
    """Returns the inputs with categories beyond the most that scikit-learn takes as missing ones.

    They are the rarest, as numbers of categories go by how often they occur.
    """
    inputs = data.inputs.copy()
    for place in data.categorical:
        inputs[inputs[:, place] >= most, place] = np.nan
    return inputs


def _is_unseeded(name: str, value: Any) -> bool:
    return name.rpartition("__")[2] == "random_state" and value is None

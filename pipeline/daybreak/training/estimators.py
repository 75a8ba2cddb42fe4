"""Fits what is no network: LightGBM, XGBoost, and any estimator with scikit-learn's interface.

A team's class returns an estimator as its library has it. Boosters are fitted tree by tree, so that a run can
end at the last tree in time, and go on from saved trees; a tree of each class counts as one. Others are
fitted at once.

A model is kept in its library's own format, none of which is a pickle: the text of LightGBM, the UBJSON of
XGBoost, and skops for scikit-learn (skops_files.py).

Bit-equal after a kill are boosters that draw no rows and columns at random: LightGBM and XGBoost draw by a
generator whose state is in no file. After a kill such a booster keeps its trees, and its generator begins
anew for the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.errors import DataError, ParamsError
from daybreak.training import skops_files

Floats = NDArray[np.floating[Any]]
Predictor = Callable[[Floats], Floats]  # of inputs [n, inputs] to [n], or to chances [n, classes]


@dataclass(frozen=True, kw_only=True)
class FitData:
    """The samples that an estimator is fitted on."""

    inputs: Floats  # [n, inputs]; nan where a number is missing, or a category is not known
    categorical: Sequence[int]  # which inputs are numbers of categories
    label: NDArray[Any]  # [n]
    num_classes: int  # 0: the label is a number


class Fit(Protocol):
    """An estimator that is being fitted."""

    num_grown: int  # trees, of each class; 1 where it is fitted at once

    def grow(self) -> float:
        """Adds a tree, or fits all of it, and returns the mean loss on the samples by its own metric."""

    def content(self) -> bytes:
        """Returns the model, in the format of the library."""


class Library(Protocol):
    """The way in which a library fits, saves and loads its estimators."""

    by_trees: bool  # it can be stopped after any tree

    def begin(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> Fit:
        """Returns a fit from the beginning, or from a model."""

    def load(self, content: bytes) -> Predictor:
        """Returns what predicts by a model."""


def library_of(estimator: Any) -> Library:
    """Returns the library of an estimator; ParamsError where it is none that is known."""
    for kind in type(estimator).__mro__:
        top = kind.__module__.partition(".")[0]
        if top in LIBRARIES:
            return LIBRARIES[top]
    raise ParamsError(
        f"estimator returns {type(estimator).__name__}, which is of none of {', '.join(LIBRARIES)}; return "
        f"one of these, such as LGBMClassifier()"
    )


def _classifies(estimator: Any) -> bool:
    from sklearn.base import is_classifier

    return bool(is_classifier(estimator))


def _expect_classes(estimator: Any, data: FitData) -> int:
    """Returns the classes of a classifier, 0 for a regressor; ParamsError where the label has none."""
    if not _classifies(estimator):
        return 0
    if not data.num_classes:
        raise ParamsError(
            f"{type(estimator).__name__} is a classifier, and the label is no class: Int(min=0, max=1) or "
            f"Bool(); declare it as one, or return a regressor"
        )
    return data.num_classes


class LightGBM:
    """Estimators of LightGBM, by its own training interface."""

    by_trees = True

    def begin(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> Fit:
        """Returns a fit from the beginning, or from LightGBM's text."""
        return _LightGBMFit(estimator, data, seed=seed, content=content)

    def load(self, content: bytes) -> Predictor:
        """Returns what predicts by LightGBM's text."""
        import lightgbm

        return lightgbm.Booster(model_str=content.decode()).predict  # type: ignore[return-value]


class _LightGBMFit:
    def __init__(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> None:
        import lightgbm

        before = lightgbm.Booster(model_str=content.decode()) if content else None
        self._booster: Any = before
        self.num_grown = before.current_iteration() if before else 0
        self._params = _params_of_lightgbm(estimator, _expect_classes(estimator, data))
        self._params.setdefault("seed", seed)
        self._begun = False
        self._data = lightgbm.Dataset(
            data.inputs,
            data.label.astype(np.float32),
            categorical_feature=list(data.categorical),
            params=self._params,
            free_raw_data=not content,  # a model that goes on is called on the rows first
        )
        self._data.construct()

    def grow(self) -> float:
        import lightgbm

        if self._begun:
            self._booster.update()
        else:
            self._begun = True
            self._booster = lightgbm.train(
                self._params,
                self._data,
                num_boost_round=1,
                init_model=self._booster,
                keep_training_booster=True,
            )
        self.num_grown += 1
        return float(self._booster.eval_train()[0].metric_value)

    def content(self) -> bytes:
        return bytes(self._booster.model_to_string(), "utf-8")


def _params_of_lightgbm(estimator: Any, num_classes: int) -> dict[str, Any]:
    """Returns the params of an estimator as LightGBM's training takes them."""
    given = estimator.get_params()
    if given.pop("class_weight", None) is not None:
        raise ParamsError("class_weight of LightGBM is not read here; set scale_pos_weight in its place")
    seed, threads = given.pop("random_state", None), given.pop("n_jobs", None)
    for name in ("n_estimators", "importance_type"):
        given.pop(name, None)
    objective = {0: "regression", 1: "binary", 2: "binary"}.get(num_classes, "multiclass")
    kept = {name: value for name, value in given.items() if value is not None}
    params = {"objective": objective, "verbose": -1, "deterministic": True, "force_row_wise": True, **kept}
    if objective == "multiclass":
        params["num_class"] = num_classes
    return params | ({} if seed is None else {"seed": seed}) | ({"num_threads": threads} if threads else {})


class XGBoost:
    """Estimators of XGBoost, by its own training interface."""

    by_trees = True

    def begin(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> Fit:
        """Returns a fit from the beginning, or from XGBoost's UBJSON."""
        return _XGBoostFit(estimator, data, seed=seed, content=content)

    def load(self, content: bytes) -> Predictor:
        """Returns what predicts by XGBoost's UBJSON."""
        import xgboost

        booster = xgboost.Booster(model_file=bytearray(content))
        kinds = booster.feature_types

        def predict(inputs: Floats) -> Floats:
            rows = xgboost.DMatrix(inputs, feature_types=kinds, enable_categorical=True)
            predicted: Floats = booster.predict(rows)
            return predicted

        return predict


class _XGBoostFit:
    def __init__(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> None:
        import xgboost

        num_classes = _expect_classes(estimator, data)
        given = {name: value for name, value in estimator.get_xgb_params().items() if value is not None}
        params = {"random_state": seed, **given}
        if num_classes > 2:  # of two, the chance of one says all
            params |= {"objective": "multi:softprob", "num_class": num_classes}
        kinds = ["c" if place in data.categorical else "q" for place in range(data.inputs.shape[1])]
        self._data = xgboost.DMatrix(
            data.inputs, data.label.astype(np.float32), feature_types=kinds, enable_categorical=True
        )
        self._booster = xgboost.Booster(params, [self._data])
        if content:
            self._booster.load_model(bytearray(content))
        self.num_grown = self._booster.num_boosted_rounds()

    def grow(self) -> float:
        self._booster.update(self._data, self.num_grown)
        self.num_grown += 1
        return float(self._booster.eval(self._data).rpartition(":")[2])

    def content(self) -> bytes:
        return bytes(self._booster.save_raw("ubj"))


class ScikitLearn:
    """Estimators of scikit-learn, which are fitted at once."""

    by_trees = False

    def begin(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> Fit:
        """Returns a fit that takes all of it in one go."""
        return _ScikitLearnFit(estimator, data, seed=seed, content=content)

    def load(self, content: bytes) -> Predictor:
        """Returns what predicts by a file of skops; DataError where it holds what is not trusted."""
        model = skops_files.loaded(content)
        if not _classifies(model):
            return model.predict  # type: ignore[no-any-return]

        def predict(inputs: Floats) -> Floats:
            chances: Floats = model.predict_proba(inputs)
            return chances[:, 1] if chances.shape[1] == 2 else chances

        return predict


class _ScikitLearnFit:
    def __init__(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> None:
        self._num_classes = _expect_classes(estimator, data)
        self.num_grown, self._content = int(bool(content)), content
        self._data = data
        given = estimator.get_params()
        chosen: dict[str, Any] = {name: seed for name, value in given.items() if _is_unseeded(name, value)}
        if "categorical_features" in given and data.categorical:
            chosen["categorical_features"] = list(data.categorical)
        self._estimator = estimator.set_params(**chosen)

    def grow(self) -> float:
        if self.num_grown:
            raise ParamsError(
                f"{type(self._estimator).__name__} is fitted at once, and not tree by tree; set "
                f"train.epochs to 1"
            )
        fitted = self._estimator.fit(self._data.inputs, self._data.label)
        if self._num_classes and len(fitted.classes_) != self._num_classes:
            raise DataError(
                f"the training samples have {len(fitted.classes_)} of {self._num_classes} classes; widen "
                f"prepare.window_days, or name fewer classes in the label"
            )
        self.num_grown, self._content = 1, skops_files.written(fitted)
        return 1 - float(fitted.score(self._data.inputs, self._data.label))  # of the accuracy, or of R^2

    def content(self) -> bytes:
        return self._content


def _is_unseeded(name: str, value: Any) -> bool:
    return name.rpartition("__")[2] == "random_state" and value is None


LIBRARIES: dict[str, Library] = {"lightgbm": LightGBM(), "xgboost": XGBoost(), "sklearn": ScikitLearn()}

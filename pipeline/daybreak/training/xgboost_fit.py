"""Fits estimators of XGBoost tree by tree, and keeps them as its UBJSON."""

from typing import Any

import numpy as np

from daybreak.contract.errors import ParamsError
from daybreak.training.fit import (
    Fit,
    FitData,
    Floats,
    Predictor,
    as_sentence,
    expect_classes,
    expect_plain,
    first,
)


class XGBoost:
    """Estimators of XGBoost, by its own training interface."""

    by_trees = True

    def begin(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> Fit:
        """Returns a fit from the beginning, or from XGBoost's UBJSON."""
        with as_sentence(estimator):
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

        self._estimator = estimator
        num_classes = expect_classes(estimator, data)
        expect_plain(estimator, estimator.get_params())
        if estimator.get_params().get("class_weight") is not None:
            raise ParamsError(
                "class_weight is no parameter of XGBoost, which ignores it; give the class "
                "weights(self, column), such as of 1 / np.bincount(label)[label]"
            )
        given = {name: value for name, value in estimator.get_xgb_params().items() if value is not None}
        params = {"random_state": seed, **given}
        self.draws = given.get("booster") in ("dart", "gblinear") or any(
            value < 1 for name, value in given.items() if name.startswith(("subsample", "colsample_"))
        )
        if num_classes > 2:  # of two, the chance of one says all
            params |= {"objective": "multi:softprob", "num_class": num_classes}
        kinds = ["c" if place in data.categorical else "q" for place in range(data.inputs.shape[1])]
        self._data = xgboost.DMatrix(
            data.inputs,
            data.label.astype(np.float32),
            weight=data.weight,
            feature_types=kinds,
            enable_categorical=True,
        )
        self._booster = xgboost.Booster(params, [self._data])
        if content:
            self._booster.load_model(bytearray(content))
        self.num_grown = self._booster.num_boosted_rounds()

    def grow(self) -> float:
        with as_sentence(self._estimator):
            self._booster.update(self._data, self.num_grown)
            self.num_grown += 1
            return first(self._estimator, [each.rpartition(":")[2] for each in self._evaluated()][-1:])

    def _evaluated(self) -> list[str]:
        """Returns the metrics, each as in eval-rmse:0.5; the last one counts, as when XGBoost stops early."""
        return str(self._booster.eval(self._data)).split()[1:]

    def content(self) -> bytes:
        return bytes(self._booster.save_raw("ubj"))

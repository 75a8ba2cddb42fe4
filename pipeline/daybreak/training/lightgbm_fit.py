"""Fits estimators of LightGBM tree by tree, and keeps them as its text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.errors import ParamsError
from daybreak.training.fit import Fit, FitData, Predictor, as_sentence, expect_classes, expect_plain, first


class LightGBM:
    """Estimators of LightGBM, by its own training interface."""

    by_trees = True

    def begin(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> Fit:
        """Returns a fit from the beginning, or from LightGBM's text."""
        with as_sentence(estimator):
            return _LightGBMFit(estimator, data, seed=seed, content=content)

    def load(self, content: bytes) -> Predictor:
        """Returns what predicts by LightGBM's text."""
        import lightgbm

        return lightgbm.Booster(model_str=content.decode()).predict  # type: ignore[return-value]


class _LightGBMFit:
    def __init__(self, estimator: Any, data: FitData, *, seed: int, content: bytes) -> None:
        import lightgbm

        self._estimator = estimator
        before = lightgbm.Booster(model_str=content.decode()) if content else None
        self._booster: Any = before
        self.num_grown = before.current_iteration() if before else 0
        num_classes = expect_classes(estimator, data)
        self._params = _params_of_lightgbm(estimator, num_classes)
        self._params.setdefault("seed", seed)
        self.draws = _draws_of_lightgbm(self._params)
        self._begun = False
        self._data = lightgbm.Dataset(
            data.inputs,
            data.label.astype(np.float32),
            weight=_weight(estimator, data, num_classes),
            categorical_feature=list(data.categorical),
            params=self._params,
            free_raw_data=not content,  # a model that goes on is called on the rows first
        )
        self._data.construct()

    def grow(self) -> float:
        with as_sentence(self._estimator):
            self._update()
            self.num_grown = self._booster.current_iteration()
            return first(self._estimator, [each.metric_value for each in self._booster.eval_train()])

    def _update(self) -> None:
        import lightgbm

        if self._begun:
            self._booster.update()
            return
        self._begun = True
        self._booster = lightgbm.train(
            self._params,
            self._data,
            num_boost_round=1,
            init_model=self._booster,
            keep_training_booster=True,
        )

    def content(self) -> bytes:
        """Returns the model as text that LightGBM has read and written once more.

        Reading changes trees without a split, so that text of a run that was killed would differ otherwise.
        """
        import lightgbm

        read = lightgbm.Booster(model_str=self._booster.model_to_string())
        return bytes(read.model_to_string(), "utf-8")


# Other names by which LightGBM knows a parameter.
ITERATIONS = (
    "max_iter",
    "n_estimators",
    "n_iter",
    "nrounds",
    "num_boost_round",
    "num_iteration",
    "num_iterations",
    "num_round",
    "num_rounds",
    "num_tree",
    "num_trees",
)
BOOSTING = ("boosting_type", "boosting", "boost")
BAGGING = ("subsample", "bagging_fraction", "sub_row", "bagging")
BAGGING_EVERY = ("subsample_freq", "bagging_freq")
COLUMNS = ("colsample_bytree", "feature_fraction", "sub_feature")
COLUMNS_BY_NODE = ("feature_fraction_bynode", "sub_feature_bynode", "colsample_bynode")


def _params_of_lightgbm(estimator: Any, num_classes: int) -> dict[str, Any]:
    """Returns the params of an estimator as LightGBM's training takes them."""
    given = estimator.get_params()
    expect_plain(estimator, given)
    if given.get("n_iter_no_change"):
        raise ParamsError("n_iter_no_change of LightGBM is not read; set train.validation and train.patience")
    given.pop("class_weight", None)  # which is no parameter of its training
    if any(given.get(name) in ("rf", "random_forest") for name in BOOSTING):
        raise ParamsError(
            "boosting rf of LightGBM cannot go on from saved trees; leave it out, or return "
            "RandomForestClassifier or RandomForestRegressor"
        )
    seed, threads = given.pop("random_state", None), given.pop("n_jobs", None)
    for name in (*ITERATIONS, "importance_type"):
        given.pop(name, None)
    objective = {0: "regression", 1: "binary", 2: "binary"}.get(num_classes, "multiclass")
    kept = {name: value for name, value in given.items() if value is not None}
    params = {"objective": objective, "verbose": -1, "deterministic": True, "force_row_wise": True, **kept}
    if objective == "multiclass":
        params["num_class"] = num_classes
    return params | ({} if seed is None else {"seed": seed}) | ({"num_threads": threads} if threads else {})


def _weight(estimator: Any, data: FitData, num_classes: int) -> NDArray[np.float64] | None:
    """Returns the weight of each sample, by the class and by `class_weight`, as LGBMClassifier makes it."""
    from sklearn.utils.class_weight import compute_sample_weight

    given = estimator.get_params().get("class_weight")
    if given is None:
        return data.weight
    if not num_classes:
        raise ParamsError(
            f"{type(estimator).__name__} has class_weight, and is no classifier; leave it out, or give "
            f"the class weights(self, column)"
        )
    of_class: NDArray[np.float64] = compute_sample_weight(given, data.label)
    made = of_class if data.weight is None else of_class * data.weight
    if not np.isfinite(made).all() or (made < 0).any() or not made.any():
        raise ParamsError(
            f"the weights of {len(made):,} samples, by class_weight of {type(estimator).__name__} and by "
            f"weights(self, column), are all 0, or some are below 0 or none; give each class a class_weight "
            f"above 0"
        )
    return made


def _draws_of_lightgbm(params: Mapping[str, Any]) -> bool:
    """Returns whether LightGBM draws rows, columns, thresholds or trees at random by these params."""

    def share(names: Sequence[str]) -> float:
        return min(float(params.get(name, 1.0)) for name in names)

    return (
        any(params.get(name) in ("dart", "goss") for name in (*BOOSTING, "data_sample_strategy"))
        or (any(params.get(name) for name in BAGGING_EVERY) and share(BAGGING) < 1)
        or share(("pos_bagging_fraction", "neg_bagging_fraction")) < 1
        or share((*COLUMNS, *COLUMNS_BY_NODE)) < 1
        or any(params.get(name) for name in ("extra_trees", "extra_tree", "use_quantized_grad"))
    )

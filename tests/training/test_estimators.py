"""Trees by the loop of networks: equal after a kill, ended in time, never from a pickle."""

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightgbm import LGBMClassifier, LGBMRanker, LGBMRegressor
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from skops import io
from xgboost import XGBClassifier, XGBRanker, XGBRegressor, XGBRFRegressor
from xgboost.core import XGBoostError

from daybreak.contract.errors import DataError, JobError, ParamsError
from daybreak.extensions.trial.trial_trees import TrialEstimator, try_trees
from daybreak.training import checkpoint, estimator_engine
from daybreak.training.estimator_engine import EstimatorEngine
from daybreak.training.estimators import LIBRARIES, library_of
from daybreak.training.fit import FitData, as_sentence
from daybreak.training.gradients import Signals
from daybreak.training.recipe import Recipe, Validation
from daybreak.training.scikit_fit import _name_of_weight
from daybreak.training.trainer import RunOutcome, Trainer
from daybreak.training.validation import Validator
from daybreak.workloads.columns import MISSING
from daybreak.workloads.estimator_workload import EstimatorModel
from tests.fakes import AtOnce
from tests.training.recipes import recipe
from tests.training.trees import NUM_SAMPLES, Trees

NUM_TREES = 12
SMALL = {"max_depth": 3, "learning_rate": 0.3, "n_jobs": 1}
LINEAR = partial(make_pipeline, SimpleImputer(), LogisticRegression())


def of_trees(number: int = NUM_TREES, **changed: Any) -> Recipe:
    return recipe(num_samples=number * NUM_SAMPLES, batch_size=NUM_SAMPLES, **changed)


def trained(
    workload: Trees, folder: Path, made: Recipe, *, stop_after: float = math.inf
) -> tuple[EstimatorEngine, RunOutcome]:
    """A run from the newest checkpoint in the folder, told to stop after so many trees."""
    engine = EstimatorEngine(workload, workload.dataset(folder, "train"), seed=made.seed)
    trees: list[float] = []
    validator = None
    if made.validation.num_samples:
        validator = Validator(engine, made.validation, num_all=NUM_SAMPLES)
    trainer = Trainer(
        engine,
        made,
        folder=folder,
        epoch_samples=NUM_SAMPLES - made.validation.num_samples,
        told_to_stop=lambda: trees.append(0.0) or len(trees) >= stop_after,  # type: ignore[func-returns-value]
        report=lambda progress: None,
        executor=AtOnce(),
        validator=validator,
    )
    if path := checkpoint.newest(folder, identity=made.identity):
        trainer.resume(path)
    return engine, trainer.run()


def content_of(engine: EstimatorEngine) -> bytes:
    return bytes(engine.weights()["_extra_state"].numpy().tobytes())


class Weighted(Trees):
    """The last class counts five times, and rows of missing numbers for nothing."""

    def weights(self, column: Callable[[str], Any]) -> Any:
        return np.where(column("label") == column("label").max(), 5.0, ~column(MISSING).any(1))


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize(
    "make",
    [
        partial(LGBMClassifier, **SMALL),
        partial(LGBMClassifier, class_weight="balanced", **SMALL),
        partial(LGBMClassifier, class_weight={0: 3.0, 1: 1.0}, **SMALL),
        partial(XGBClassifier, **SMALL),
        partial(make_pipeline, SimpleImputer(), LogisticRegression(class_weight="balanced")),
        partial(HistGradientBoostingClassifier, max_iter=3, class_weight="balanced"),
    ],
)
def test_weights_of_a_class_weigh_the_fit_as_those_of_the_library_do(
    make: Callable[[], Any], num_classes: int, tmp_path: Path
) -> None:
    workload = Weighted(make, num_classes=num_classes)
    batch = workload.dataset(tmp_path, "train").__getitems__(range(NUM_SAMPLES))
    model = workload.model({})
    by_trees = model.library.by_trees
    engine, _ = trained(workload, tmp_path / "whole", of_trees(NUM_TREES if by_trees else 1))
    if by_trees:
        trained(workload, tmp_path / "killed", of_trees(), stop_after=5)
        resumed, _ = trained(workload, tmp_path / "killed", of_trees())
        assert content_of(resumed) == content_of(engine)
    model.load_state_dict(engine.weights())
    data, estimator = workload.fit_data(batch), make()
    weight = np.where(data.label == data.label.max(), 5.0, ~batch[MISSING].numpy().any(1))
    if by_trees:
        estimator.set_params(n_estimators=NUM_TREES)
    if isinstance(estimator, LGBMClassifier):
        estimator.fit(data.inputs, data.label, weight, categorical_feature=list(data.categorical))
    elif isinstance(estimator, XGBClassifier):
        kinds = ["c" if place in data.categorical else "q" for place in range(data.inputs.shape[1])]
        estimator.set_params(enable_categorical=True, feature_types=kinds)
        estimator.fit(data.inputs, data.label, sample_weight=weight)
    elif hasattr(estimator, "steps"):
        estimator.fit(data.inputs, data.label, logisticregression__sample_weight=weight)
    else:
        estimator.set_params(categorical_features=list(data.categorical), random_state=0)
        estimator.fit(data.inputs, data.label, sample_weight=weight)
    chances = estimator.predict_proba(data.inputs)
    theirs = chances[:, 1] if num_classes == 2 else chances
    ours = workload.predict(model, batch)["prediction"].numpy()
    assert np.allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (partial(XGBClassifier, class_weight="balanced"), "class_weight is no parameter of XGBoost"),
        (
            partial(LGBMRegressor, class_weight="balanced"),
            "LGBMRegressor has class_weight, and is no classifier",
        ),
        (partial(make_pipeline, SimpleImputer(), KNeighborsClassifier()), "KNeighborsClassifier takes none"),
        (
            partial(CalibratedClassifierCV, make_pipeline(SimpleImputer(), LogisticRegression())),
            "Pipeline takes none; leave them out",
        ),
        (
            partial(GridSearchCV, make_pipeline(SimpleImputer(), KNeighborsClassifier()), {}),
            "KNeighborsClassifier takes none",
        ),
        (
            partial(
                make_pipeline,
                SimpleImputer(),
                VotingClassifier([("near", KNeighborsClassifier())], voting="soft"),
            ),
            "cannot be fitted: TypeError: Underlying estimator KNeighborsClassifier does not support sample",
        ),
        (
            partial(make_pipeline, SimpleImputer(), OneVsRestClassifier(LogisticRegression())),
            "cannot be fitted: ValueError: Passing extra keyword arguments to OneVsRestClassifier.fit",
        ),
        (
            partial(LGBMClassifier, class_weight={0: 1.0, 1: 0.0}, **SMALL),
            "the weights of 600 samples, by class_weight of LGBMClassifier and by weights",
        ),
        (
            partial(LGBMClassifier, class_weight={1: -1.0}, **SMALL),
            "or some are below 0 or none; give each class a class_weight above 0",
        ),
    ],
)
def test_weights_that_an_estimator_would_ignore_are_refused(make: Any, sentence: str, tmp_path: Path) -> None:
    class OfOneClass(Weighted):
        def weights(self, column: Callable[[str], Any]) -> Any:
            return column("label")

    with pytest.raises(ParamsError, match=sentence):
        trained(OfOneClass(make), tmp_path, of_trees(1))


@pytest.mark.parametrize("step", ["passthrough", None])
def test_the_last_step_of_a_pipeline_that_is_no_estimator_is_not_named_as_one(step: Any) -> None:
    assert _name_of_weight(make_pipeline(SimpleImputer(), step)).endswith("__sample_weight")


TWO = [("some", LogisticRegression(C=0.1)), ("more", LogisticRegression())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (partial(make_pipeline, SimpleImputer(), VotingClassifier(TWO, voting="soft")), "votingclassifier__"),
        (
            partial(make_pipeline, SimpleImputer(), StackingClassifier(TWO, LogisticRegression(), cv=2)),
            "stackingclassifier__",
        ),
        (
            partial(
                make_pipeline, SimpleImputer(), BaggingClassifier(KNeighborsClassifier(), random_state=0)
            ),
            "baggingclassifier__",
        ),
        (
            partial(
                GridSearchCV,
                make_pipeline(SimpleImputer(), LogisticRegression()),
                {"logisticregression__C": [0.01, 1.0]},
                cv=2,
            ),
            "logisticregression__",
        ),
        (
            partial(TransformedTargetRegressor, make_pipeline(SimpleImputer(), LinearRegression())),
            "linearregression__",
        ),
    ],
    ids=lambda given: given.rstrip("_") if isinstance(given, str) else "",
)
def test_weights_reach_the_estimators_inside_one_whose_fit_passes_them_on(
    make: Callable[[], Any], name: str, tmp_path: Path
) -> None:
    workload = Weighted(make)
    batch = workload.dataset(tmp_path, "train").__getitems__(range(NUM_SAMPLES))
    engine, _ = trained(workload, tmp_path, of_trees(1))
    model = workload.model({})
    model.load_state_dict(engine.weights())
    data = workload.fit_data(batch)
    theirs = clone(make()).fit(data.inputs, data.label, **{f"{name}sample_weight": data.weight})
    unweighted = clone(make()).fit(data.inputs, data.label)
    ours = workload.predict(model, batch)["prediction"].numpy()
    assert np.allclose(ours, predicted(theirs, data), rtol=1e-6)
    assert not np.allclose(ours, predicted(unweighted, data), rtol=1e-2)


def predicted(estimator: Any, data: FitData) -> Any:
    """Returns chances of the second class, or numbers of a regressor."""
    if hasattr(estimator, "predict_proba"):
        return estimator.predict_proba(data.inputs)[:, 1]
    return estimator.predict(data.inputs)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    class Short(Trees):
        def weights(self, column: Callable[[str], Any]) -> Any:
            return column("label")[1:]

    with pytest.raises(ParamsError, match=r"Short\.weights of 600 samples have shape \[599\]"):
        trained(Short(partial(LGBMClassifier, **SMALL)), tmp_path, of_trees(1))


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("kind", [LGBMClassifier, LGBMRegressor, XGBClassifier, XGBRegressor])
def test_a_killed_run_ends_with_the_trees_of_an_undisturbed_one(
    kind: Any, num_classes: int, tmp_path: Path
) -> None:
    workload = Trees(partial(kind, **SMALL), num_classes=num_classes)
    whole, outcome = trained(workload, tmp_path / "whole", of_trees())
    assert (outcome.num_updates, outcome.stopped_by) == (NUM_TREES, "finished")
    for after in (3, 5):
        _, outcome = trained(workload, tmp_path / "killed", of_trees(), stop_after=after)
        assert outcome.stopped_by == "terminated"
    resumed, outcome = trained(workload, tmp_path / "killed", of_trees())
    assert outcome.num_updates == NUM_TREES
    assert content_of(resumed) == content_of(whole)


@pytest.mark.parametrize(
    ("kind", "drawing"),
    [(LGBMRegressor, {"subsample": 0.5, "subsample_freq": 1}), (XGBRegressor, {"subsample": 0.5})],
)
def test_trees_that_draw_rows_stay_after_a_kill_and_later_ones_draw_others(
    kind: Any, drawing: dict[str, Any], tmp_path: Path
) -> None:
    workload = Trees(partial(kind, **SMALL, **drawing))
    whole, _ = trained(workload, tmp_path / "whole", of_trees())
    killed, _ = trained(workload, tmp_path / "killed", of_trees(), stop_after=4)
    kept, _ = trained(workload, tmp_path / "few", of_trees(4))
    assert content_of(killed) == content_of(kept)
    resumed, outcome = trained(workload, tmp_path / "killed", of_trees())
    assert outcome.num_updates == NUM_TREES
    assert content_of(resumed) != content_of(whole)


def test_a_run_ends_at_the_last_tree_in_time(tmp_path: Path) -> None:
    workload = Trees(partial(LGBMClassifier, **SMALL))
    made = of_trees(train_until=datetime(2020, 1, 1, tzinfo=UTC))
    engine, outcome = trained(workload, tmp_path, made)
    assert (outcome.num_updates, outcome.stopped_by) == (1, "deadline")
    assert content_of(engine).count(b"Tree=") == 1


def test_the_best_trees_by_validation_are_the_model(tmp_path: Path) -> None:
    """A high rate fits the newest samples best with few trees, and ends the run."""
    workload = Trees(partial(LGBMClassifier, max_depth=6, learning_rate=1.0, n_jobs=1))
    num_validated = 100
    size = NUM_SAMPLES - num_validated
    made = recipe(
        num_samples=40 * size,
        batch_size=size,
        validation=Validation(num_samples=num_validated, num_scored=num_validated, every=size, patience=5),
    )
    _, outcome = trained(workload, tmp_path, made)
    assert outcome.stopped_by == "validation"
    assert outcome.num_updates < 40


def test_trees_predict_as_the_library_does_by_hand(tmp_path: Path) -> None:
    workload = Trees(partial(LGBMClassifier, **SMALL))
    samples = workload.dataset(tmp_path, "train")
    batch = samples.__getitems__(range(NUM_SAMPLES))
    engine, _ = trained(workload, tmp_path, of_trees())
    model = workload.model({})
    model.load_state_dict(engine.weights())
    data = workload.fit_data(batch)
    by_hand = LGBMClassifier(n_estimators=NUM_TREES, verbose=-1, **SMALL)
    by_hand.fit(data.inputs, data.label, categorical_feature=list(data.categorical))
    ours = workload.predict(model, batch)["prediction"].numpy()
    assert np.allclose(ours, by_hand.predict_proba(data.inputs)[:, 1], rtol=1e-12)


def test_an_estimator_of_scikit_learn_is_one_update_and_kept_by_skops(tmp_path: Path) -> None:
    workload = Trees(LINEAR)
    engine, outcome = trained(workload, tmp_path, of_trees(1))
    assert (outcome.num_updates, outcome.stopped_by) == (1, "finished")
    model = workload.model({})
    model.load_state_dict(engine.weights())
    batch = workload.dataset(tmp_path, "train").__getitems__(range(NUM_SAMPLES))
    chances, label = workload.predict(model, batch)["prediction"].numpy(), batch["label"].numpy()
    assert ((chances > 0.5) == label).mean() > 0.8
    with pytest.raises(ParamsError, match=r"is fitted at once.* set train\.epochs to 1"):
        trained(workload, tmp_path / "again", of_trees(2))


def test_a_file_of_skops_with_other_peoples_types_is_not_loaded() -> None:
    content = io.dumps(FunctionTransformer(np.vectorize(content_of)))
    with pytest.raises(DataError, match=r"test_estimators\.content_of"):
        library_of(LogisticRegression()).load(content)


def test_what_could_not_be_loaded_is_refused_by_the_fit(tmp_path: Path) -> None:
    workload = Trees(partial(make_pipeline, FunctionTransformer(np.nan_to_num), LogisticRegression()))
    with pytest.raises(DataError, match=r"the model holds numpy\.nan_to_num, which a version does not load"):
        trained(workload, tmp_path, of_trees(1))


@pytest.mark.parametrize(
    "make",
    [
        partial(RandomForestClassifier, n_estimators=2),
        partial(HistGradientBoostingClassifier, max_iter=2),
        partial(make_pipeline, SimpleImputer(), KNeighborsClassifier()),
        partial(make_pipeline, SimpleImputer(), FunctionTransformer(np.abs), StandardScaler(), GaussianNB()),
        partial(make_pipeline, SimpleImputer(), MLPClassifier(max_iter=400, tol=0.01)),
        partial(make_pipeline, SimpleImputer(), VarianceThreshold(), SelectKBest(k=2), LogisticRegression()),
        partial(make_pipeline, SimpleImputer(), CalibratedClassifierCV(LogisticRegression(), cv=2)),
    ],
)
def test_estimators_of_scikit_learn_predict_as_they_did_when_they_were_fitted(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    workload = Trees(make)
    data = workload.fit_data(workload.dataset(tmp_path, "train").__getitems__(range(NUM_SAMPLES)))
    estimator = make()
    fit = LIBRARIES["sklearn"].begin(estimator, data, seed=0, content=b"")
    fit.grow()
    predicted = LIBRARIES["sklearn"].load(fit.content())(data.inputs)
    assert np.array_equal(predicted, estimator.predict_proba(data.inputs)[:, 1])


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_is_no_model_is_not_loaded(name: str) -> None:
    with pytest.raises(Exception):  # noqa: B017 whatever the library raises
        LIBRARIES[name].load(b"cos\nsystem\n(S'true'\ntR.")


@pytest.mark.parametrize("make", [LGBMClassifier, XGBClassifier, LogisticRegression])
def test_a_classifier_of_a_number_is_refused(make: Callable[[], Any]) -> None:
    data = FitData(inputs=np.zeros((4, 1)), categorical=(), label=np.arange(4.0), num_classes=0)
    with pytest.raises(ParamsError, match="is a classifier, and the label is no class"):
        library_of(make()).begin(make(), data, seed=0, content=b"")


def test_an_estimator_of_no_known_library_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"returns Recipe, which is of none of lightgbm, xgboost, sklearn"):
        library_of(of_trees())


def test_updates_of_other_samples_are_refused(tmp_path: Path) -> None:
    workload = Trees(partial(LGBMClassifier, **SMALL))
    with pytest.raises(JobError, match=r"an update has 300 samples.* whole number"):
        trained(workload, tmp_path, recipe(num_samples=NUM_SAMPLES * 3 // 2, batch_size=NUM_SAMPLES))


def test_a_long_fit_is_alive_all_the_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator_engine, "ALIVE_EVERY_S", 0.001)
    heard = threading.Event()

    class Patient(LogisticRegression):  # type: ignore[misc]
        def fit(self, *data: Any) -> "Patient":
            assert heard.wait(60)
            return super().fit(*data)  # type: ignore[no-any-return]

    workload = Trees(partial(make_pipeline, SimpleImputer(), Patient()))
    engine = EstimatorEngine(workload, workload.dataset(tmp_path, "train"), seed=0, alive=heard.set)
    with pytest.raises(DataError, match="Patient, which a version does not load"):
        engine.step(np.arange(NUM_SAMPLES), batch_size=NUM_SAMPLES, rate=0.1, signals=Signals())


def samples(label: Any, *, num_classes: int, num: int = 200) -> FitData:
    draw = np.random.default_rng(0)
    inputs = np.concatenate([draw.normal(size=(num, 2)), draw.integers(1, 5, size=(num, 1))], axis=1)
    return FitData(inputs=inputs, categorical=[2], label=np.asarray(label(num)), num_classes=num_classes)


@pytest.mark.parametrize(
    ("make", "data", "num_trees"),
    [
        (LGBMRegressor, samples(np.ones, num_classes=0), 1),
        (LGBMClassifier, samples(np.zeros, num_classes=2), 1),
        (LGBMRegressor, samples(np.arange, num_classes=0, num=10), 1),
        (LGBMClassifier, samples(lambda num: np.arange(num) % 3, num_classes=4), 12),
        (
            partial(LGBMClassifier, min_split_gain=1e9),
            samples(lambda num: np.arange(num) % 2, num_classes=2),
            1,
        ),
        (XGBRegressor, samples(np.ones, num_classes=0), 12),
    ],
)
def test_trees_without_a_split_are_equal_after_a_kill_and_not_counted(
    make: Callable[[], Any], data: FitData, num_trees: int
) -> None:
    library = library_of(make())
    fits = [library.begin(make(), data, seed=7, content=b"") for _ in range(2)]
    for number in range(12):
        if number in (3, 9):
            fits[1] = library.begin(make(), data, seed=7, content=fits[1].content())
        for fit in fits:
            fit.grow()
    assert [fit.num_grown for fit in fits] == [num_trees] * 2
    assert fits[0].content() == fits[1].content()


def test_a_run_is_finished_where_no_tree_helps_any_more(tmp_path: Path) -> None:
    workload = Trees(partial(LGBMClassifier, min_split_gain=1e6, **SMALL))
    engine, outcome = trained(workload, tmp_path, of_trees())
    assert (outcome.num_updates, outcome.seen, outcome.stopped_by) == (1, NUM_SAMPLES, "finished")
    assert content_of(engine).count(b"Tree=") == 1
    again, outcome = trained(workload, tmp_path, of_trees())
    assert (outcome.num_updates, outcome.stopped_by) == (1, "finished")
    assert content_of(again) == content_of(engine)


@pytest.mark.parametrize(
    ("make", "draws"),
    [
        (LGBMRegressor, False),
        (partial(LGBMRegressor, subsample=0.5), False),  # subsample_freq is 0
        (partial(LGBMRegressor, bagging_fraction=0.5, bagging_freq=1), True),
        (partial(LGBMRegressor, feature_fraction_bynode=0.5), True),
        (partial(LGBMRegressor, extra_trees=True), True),
        (partial(LGBMRegressor, boosting_type="dart"), True),
        (partial(LGBMRegressor, data_sample_strategy="goss"), True),
        (XGBRegressor, False),
        (partial(XGBRegressor, colsample_bylevel=0.5), True),
        (partial(XGBRegressor, booster="dart"), True),
    ],
)
def test_what_draws_at_random_is_known_by_its_parameters(make: Callable[[], Any], draws: bool) -> None:
    fit = library_of(make()).begin(make(), samples(np.arange, num_classes=0), seed=0, content=b"")
    assert fit.draws == draws


@pytest.mark.parametrize("alias", ["num_iterations", "max_iter", "nrounds"])
def test_no_name_of_the_number_of_trees_is_read(alias: str) -> None:
    make = partial(LGBMRegressor, **{alias: 5})
    fit = library_of(make()).begin(make(), samples(np.arange, num_classes=0), seed=0, content=b"")
    fit.grow()
    assert fit.num_grown == 1


def by_hand(label: Any, predicted: Any) -> Any:
    return predicted - label, np.ones_like(label)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (LGBMRanker, "LGBMRanker ranks within groups of rows"),
        (XGBRanker, "XGBRanker ranks within groups of rows"),
        (XGBRFRegressor, "XGBRFRegressor grows its trees at once; return XGBRegressor"),
        (partial(LGBMRegressor, boosting_type="rf"), "boosting rf of LightGBM cannot go on"),
        (partial(LGBMRegressor, objective=by_hand), "objective of LGBMRegressor is a function"),
        (partial(XGBRegressor, objective=by_hand), "objective of XGBRegressor is a function"),
        (partial(LGBMRegressor, early_stopping_round=5), "is not read; set train.validation"),
        (partial(XGBRegressor, early_stopping_rounds=5), "is not read; set train.validation"),
        (partial(LGBMRegressor, metric="None"), "LGBMRegressor has no metric"),
        (
            partial(XGBRegressor, tree_method="exact"),
            "XGBRegressor cannot be fitted: ((?!Stack).)*; change its parameters",
        ),
        (LinearRegression, "LinearRegression cannot be fitted: ValueError: .* NaN"),
        (StandardScaler, "StandardScaler has no predict, and is to predict"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_a_sentence(make: Callable[[], Any], sentence: str) -> None:
    data = samples(np.arange, num_classes=0)
    data.inputs[0, 0] = np.nan
    with pytest.raises(ParamsError, match=sentence):
        library_of(make()).begin(make(), data, seed=0, content=b"").grow()


def test_a_classifier_without_chances_is_refused_before_it_is_fitted() -> None:
    data = samples(lambda num: np.arange(num) % 2, num_classes=2)
    with pytest.raises(ParamsError, match="LinearSVC has no predict_proba, and is to predict the chances"):
        library_of(LinearSVC()).begin(LinearSVC(), data, seed=0, content=b"")


def test_a_fit_at_once_of_samples_without_a_class_is_refused() -> None:
    sentence = r"samples have 1 of 2 classes, from 0 to 1; take days that have all .* numbers from 0 on"
    for label in (np.zeros, np.ones):  # such as of Int(min=1, max=1), which has no class 0
        with pytest.raises(DataError, match=sentence):
            LIBRARIES["sklearn"].begin(
                LogisticRegression(), samples(label, num_classes=2), seed=0, content=b""
            )


def test_a_fit_of_one_sample_has_a_finite_loss() -> None:
    fit = LIBRARIES["sklearn"].begin(
        LinearRegression(), samples(np.ones, num_classes=0, num=1), seed=0, content=b""
    )
    assert math.isfinite(fit.grow())


def test_categories_of_gradient_boosting_are_those_of_the_team_or_the_most_frequent_of_many() -> None:
    draw = np.random.default_rng(0)
    inputs = np.stack([draw.normal(size=3000), np.arange(3000) % 1000 + 1.0], axis=1)
    data = FitData(inputs=inputs, categorical=[1], label=draw.integers(0, 2, size=3000), num_classes=2)
    for given, used in ((None, [False, False]), ("from_dtype", [False, True]), ([0], None)):
        estimator = HistGradientBoostingClassifier(max_iter=1, categorical_features=given)
        if used is None:
            assert LIBRARIES["sklearn"].begin(estimator, data, seed=0, content=b"")
            assert estimator.categorical_features == [0]
            continue
        fit = LIBRARIES["sklearn"].begin(estimator, data, seed=0, content=b"")
        fit.grow()
        mask = estimator.is_categorical_
        assert list(mask if mask is not None else [False, False]) == used
    assert np.isfinite(LIBRARIES["sklearn"].load(fit.content())(inputs)).all()


@pytest.mark.parametrize("make", [LGBMRegressor, XGBRegressor, LinearRegression])
def test_a_model_of_another_library_is_refused_in_a_sentence(make: Callable[[], Any]) -> None:
    with pytest.raises(DataError, match=r"does not fit \w+Regress\w+, or is damaged: .*; restore the class"):
        EstimatorModel(make()).load(b"cos\nsystem\n(S'true'\ntR.")


@pytest.mark.parametrize("lost", [MemoryError(), XGBoostError("[10:00:00] bad_alloc: std::bad_alloc")])
def test_a_fit_that_lacked_memory_is_tried_again_elsewhere(lost: Exception) -> None:
    with pytest.raises(type(lost)), as_sentence(XGBRegressor()):
        raise lost


@pytest.mark.parametrize(("drawing", "same"), [({}, True), ({"boosting_type": "dart"}, False)])
def test_try_says_by_the_parameters_whether_trees_are_the_same_after_a_restart(
    drawing: dict[str, Any], same: bool, tmp_path: Path
) -> None:
    """DART drops no tree among the first few, by chance."""
    workload = Trees(partial(LGBMRegressor, **SMALL, **drawing))
    data = workload.fit_data(workload.dataset(tmp_path, "train").__getitems__(range(NUM_SAMPLES)))
    trial = TrialEstimator(workload=workload, model=workload.model({}))
    losses, equal = try_trees(trial, data, seed=0)
    assert (len(losses), equal) == (6, same)

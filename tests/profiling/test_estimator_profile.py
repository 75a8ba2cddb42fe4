"""Trees are profiled by their seconds on shares of the samples, and planned on one machine without GPUs."""

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from lightgbm import LGBMClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from daybreak.contract.errors import ParamsError, PlanError
from daybreak.contract.record_types import Profile
from daybreak.contract.sections import TrainParams
from daybreak.machines.catalog import AT_HAND, rented
from daybreak.planning.search_space import Problem, search_space
from daybreak.profiling import estimator_profile
from daybreak.profiling.explain import explain
from daybreak.report import evidence
from daybreak.training.recipe import Course
from tests.planning.jobs import DATASET, night
from tests.planning.jobs import profile as planned_profile
from tests.training.test_estimator_keys import given
from tests.training.trees import Trees

NUM_SAMPLES, NUM_TREES = 16_000, 50


@pytest.fixture(scope="module")
def measured() -> Profile:
    workload = Trees(partial(LGBMClassifier, n_jobs=1), num=NUM_SAMPLES)
    return estimator_profile.profile(None, workload, TrainParams(epochs=NUM_TREES))


@pytest.mark.slow
def test_the_line_goes_through_trees_of_more_and_more_samples(measured: Profile) -> None:
    assert measured.is_estimator
    assert measured.evidence["estimator"]["sizes"] == [1000, 2000, 4000, 8000]
    assert 0 < measured.step_s(1000) <= measured.step_s(NUM_SAMPLES)  # other work may make it flat
    assert measured.memory_bytes(NUM_SAMPLES) > 0
    text = explain(measured)
    assert text.startswith("LGBMClassifier is no network")
    assert "a tree of all 16,000 samples takes" in text


@pytest.mark.slow
def test_a_short_limit_measures_the_smallest_share_alone() -> None:
    workload = Trees(partial(LGBMClassifier, n_jobs=1), num=NUM_SAMPLES)
    short = estimator_profile.profile(None, workload, TrainParams(epochs=NUM_TREES), limit_s=0.001)
    assert short.evidence["estimator"]["sizes"] == [1000]


def test_an_estimator_that_is_fitted_at_once_has_one_epoch() -> None:
    workload = Trees(LogisticRegression, num=1000)
    with pytest.raises(ParamsError, match=r"is fitted at once, and train\.epochs is 3; set it to 1"):
        estimator_profile.profile(None, workload, TrainParams(epochs=3))


@pytest.mark.slow
def test_a_batch_is_all_samples_and_machines_have_no_gpus(measured: Profile) -> None:
    course = Course(
        warm=False, newest=False, first_sample=0, epochs=NUM_TREES, num_samples=NUM_TREES * 900_000, rate=0.1
    )
    params = given(plan__machines=("local", "*"), train__epochs=NUM_TREES)
    problem = Problem(
        night=night(),
        dataset=replace(DATASET, num_samples=900_000),
        profile=measured,
        params=params,
        available=(AT_HAND, *rented()),
    )
    space = search_space(problem, course)
    assert space.job.batch_size == 900_000
    assert space.machines
    assert all(machine.is_local or not machine.num_devices for machine in space.machines)
    with_gpus = next(machine for machine in rented() if machine.num_devices)
    only = given(plan__machines=(with_gpus.name,), train__epochs=NUM_TREES)
    with pytest.raises(PlanError, match="have GPUs or TPUs, and an estimator trains on CPUs"):
        search_space(replace(problem, params=only), course)


def test_a_share_has_samples_of_each_class_and_of_all_days() -> None:
    labels = np.zeros(100_000, dtype=np.int64)
    labels[[7, 11, 13]] = 1
    labels[50_000:50_100] = 2
    rows = estimator_profile._spread(len(labels), 500, labels=labels)
    assert np.bincount(labels[rows]).tolist() == [499, 3, 10]
    assert (rows[0], rows[-1]) == (0, len(labels) - 1)
    assert len(estimator_profile._spread(len(labels), 500, labels=np.arange(len(labels)))) == 500


@pytest.mark.slow
def test_a_rare_class_is_in_all_shares_that_a_classifier_is_profiled_on() -> None:
    workload = Trees(partial(make_pipeline, SimpleImputer(), LogisticRegression()), num=3000)
    rare = (np.arange(3000) == 1234).astype(int)
    workload._rows = workload._rows.set_column(4, "label", pa.array(rare))
    assert estimator_profile.profile(None, workload, TrainParams(epochs=1)).is_estimator


def test_a_fit_whose_time_grows_by_a_power_of_the_samples_is_predicted_by_it() -> None:
    line, power = estimator_profile._step_s(
        [1000, 2000, 4000], [1.0, 4.0, 16.0], num_samples=16_000, by_trees=False
    )
    assert power == pytest.approx(2)
    assert line(16_000) == pytest.approx(256)
    line, power = estimator_profile._step_s(
        [1000, 2000, 4000], [1.0, 2.0, 4.0], num_samples=16_000, by_trees=False
    )
    assert power is None
    assert line(16_000) == pytest.approx(16)


def test_the_report_names_no_bound_of_what_is_no_network() -> None:
    named = {"estimator": {"name": "LGBMClassifier"}}
    shown = evidence.bottleneck(replace(planned_profile(), is_estimator=True, evidence=named))
    assert shown.binds == "LGBMClassifier is no network; what binds it is not measured."
    assert shown.gained == ""

"""Trees are profiled by their seconds on shares of the samples, and planned on one machine without GPUs."""

from dataclasses import replace
from functools import partial

import pytest
from lightgbm import LGBMClassifier
from sklearn.linear_model import LogisticRegression

from daybreak.contract.errors import ParamsError, PlanError
from daybreak.contract.record_types import Profile
from daybreak.contract.sections import TrainParams
from daybreak.machines.catalog import AT_HAND, rented
from daybreak.planning.search_space import Problem, search_space
from daybreak.profiling import estimator_profile
from daybreak.profiling.explain import explain
from daybreak.training.recipe import Course
from tests.planning.jobs import DATASET, night
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
    assert 0 < measured.step_s(1000) < measured.step_s(NUM_SAMPLES)
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

"""All priors have a source, and a trainer that sums gradients afterwards hides none of that."""

import json
from importlib.resources import files
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fit_priors import ALL_CELLS, NONE, device_pairs, even_of, passes_apart
from benchmarks.frame import DATA
from benchmarks.step_times import LABORATORY
from daybreak.prediction.measurements import StepSetting
from daybreak.prediction.priors import NAMES, priors
from daybreak.prediction.step_time import FIXED, MIX, PER_SAMPLE, Points, form


def test_every_prior_names_its_source():
    shipped = json.loads(files("daybreak.prediction").joinpath("priors.json").read_text())
    assert "fit_priors" in shipped["source"]
    assert all(each["value"] > 0 and each["source"] for each in shipped["assumed"].values())


def test_no_prior_is_certain():
    shipped = priors()
    assert all(each > 0 for each in shipped.constants.laboratory)
    assert all(each > 0 for each in shipped.constants.job)
    assert all(shipped.spread_of(name) > 0 for name in NAMES)


def test_without_overlap_little_of_the_sum_is_hidden():
    place = NAMES.index("overlap")
    plain, after = priors(), priors().without_overlap()
    assert after.constants.mean[place] < plain.constants.mean[place]
    assert after.constants.mean[:place] == plain.constants.mean[:place]


@given(st.integers(1, 32))
def test_a_third_machine_makes_no_sum_of_gradients_faster(workers):
    """By the priors alone; nights on a cluster where it does learn that."""
    mean = MIX @ np.array(priors().constants.mean)
    mean[[FIXED, PER_SAMPLE]] = -10.0  # passes hide nothing of the sum
    at = [StepSetting(workers=(workers,) * machines, micro_batch_size=1) for machines in (2, 3)]
    two, three = form(np.stack([mean, mean]), Points.of(at, [0, 0]))[0]
    assert two <= three


@pytest.mark.skipif(not DATA.exists(), reason=f"the published measurements are not in {DATA}")
@pytest.mark.parametrize("laboratory", ["Sia", "Gavel"])  # Pollux has one kind of GPU, and so no pair
def test_another_gpu_is_forecast_better_than_by_the_plain_roofline_in_a_laboratory_left_out(laboratory):
    """Whose share of a pass is the host's is fitted to the pairs of GPUs of the other laboratory alone."""
    inside = [cell for cell in ALL_CELLS if LABORATORY[cell[1]] == laboratory]
    even = even_of([cell for cell in ALL_CELLS if cell not in inside])
    ours, plain = (
        fmean(passes_apart(pair, share) for pair in device_pairs(inside)) for share in (even, NONE)
    )
    assert ours < 0.75 * plain

"""All priors have a source, and a trainer that sums gradients afterwards hides none of that."""

import json
from importlib.resources import files

import pytest

from benchmarks.fit_priors import ALL_CELLS, roofline_of
from benchmarks.frame import DATA
from benchmarks.step_times import LABORATORY
from daybreak.prediction.priors import NAMES, priors


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


@pytest.mark.skipif(not DATA.exists(), reason=f"the published measurements are not in {DATA}")
@pytest.mark.parametrize("laboratory", ["Sia", "Gavel"])  # Pollux has one kind of GPU, and so no pair
def test_how_a_pass_scales_between_gpus_is_much_the_same_without_any_one_laboratory(laboratory):
    there = roofline_of([cell for cell in ALL_CELLS if LABORATORY[cell[1]] != laboratory])
    assert there.even == pytest.approx(priors().roofline.even, rel=0.2)
    assert there.power == pytest.approx(priors().roofline.power, abs=0.2)

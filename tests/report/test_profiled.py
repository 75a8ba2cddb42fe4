"""The charts of a profile show its figures; a chart without figures is left out."""

from dataclasses import replace

import pytest

from daybreak.contract.record_types import Profile
from daybreak.report.profiled import pictures, stacks
from tests.report.nights import line, whole


@pytest.fixture
def profile() -> Profile:
    measured = whole().profile
    assert measured
    return measured


def test_an_update_is_stacked_before_and_after(profile):
    before, after = stacks(profile, num_samples=256)
    assert sum(before.parts.values()) == pytest.approx(0.0766, rel=1e-3)
    assert before.parts["loading"] == pytest.approx(0.337 * 0.0766)
    assert sum(after.parts.values()) == pytest.approx(0.0556)
    assert after.parts["waiting for data"] < before.parts["loading"]
    assert "27.4 % saved" in after.text


@pytest.mark.parametrize("bound", ["io", "compute", "memory"])
def test_the_parts_of_an_update_are_told_apart_whatever_binds(profile, bound):
    drawn = pictures(replace(profile, bound=bound), num_samples=256)["update"]
    assert drawn
    parts = {name for row in stacks(profile, num_samples=256) for name in row.parts}
    assert all(f">{name}<" in drawn for name in parts)
    assert len(parts) == 5


def test_an_old_profile_has_the_update_by_its_lines_and_no_other_picture(profile):
    drawn = pictures(replace(profile, evidence={}), num_samples=256)
    assert drawn["update"] and "Before 76.8 ms, of which loading 25.9 ms, step 50.9 ms" in drawn["update"]
    assert drawn["roofline"] is drawn["timeline"] is None


def test_the_roofline_says_how_far_the_job_is_from_its_roof(profile):
    drawn = pictures(profile, num_samples=256)["roofline"]
    assert drawn
    # 4.21 FLOP per byte at 20.6 GB/s are below the peak of 140 GFLOP/s.
    assert f"{9.2e9 / (4.21 * 2.06e10):.1%}".replace("%", " %") in drawn
    assert "random rows, 4 GB/s" in drawn


@pytest.mark.parametrize("name", ["flops_per_s", "flops_per_byte", "peak_bytes_per_s"])
def test_a_job_without_counted_operations_has_no_roofline(profile, name):
    roofline = profile.evidence["roofline"] | {name: 0.0}
    changed = replace(profile, evidence=profile.evidence | {"roofline": roofline})
    assert pictures(changed, num_samples=256)["roofline"] is None


def test_the_timeline_has_lanes_for_what_ran(profile):
    both = pictures(profile, num_samples=256)["timeline"]
    assert both
    assert all(f">{lane}<" in both for lane in ("Before: loads", "After: steps"))
    one = {"before": profile.evidence["timeline"]["before"]}
    drawn = pictures(replace(profile, evidence={"timeline": one}), num_samples=256)["timeline"]
    assert drawn
    assert "After" not in drawn


def test_a_job_that_takes_no_time_has_no_picture_of_an_update(profile):
    nothing = replace(profile, load_s=line(0, 0), step_s=line(0, 0), evidence={})
    assert pictures(nothing, num_samples=256)["update"] is None

"""Curves of what a job says of itself while it trains."""

from dataclasses import asdict
from itertools import pairwise

import pytest

from daybreak.jobs.heartbeats import Heartbeats, thinned
from tests.jobs.test_outlook import BEGUN, beats


def test_a_long_curve_is_thinned_to_its_last_point() -> None:
    points = [(float(n), 1.0 / n) for n in range(1, 5000)]
    thin = thinned(points, most=160)
    assert len(thin) == 160
    assert thin[-1][0] == 4999
    assert all(low[1] > high[1] for low, high in pairwise(thin))


def test_a_short_curve_is_left_as_it_is() -> None:
    assert thinned([(1, 4.0), (2, 2.0)], most=160) == ((1, 4.0), (2, 2.0))


def test_the_rate_is_that_of_the_workers_that_are_left() -> None:
    many = [asdict(each) | {"device": "8 x cpu"} for each in beats([100.0] * 40)]
    few = [asdict(each) | {"device": "cpu"} for each in beats([12.5] * 10)]
    for line in few:
        line["time"] += many[-1]["time"] - BEGUN
        line["seen"] += many[-1]["seen"]
    lines = [line | {"time": line["time"].isoformat()} for line in [*many, *few[1:]]]
    rate = Heartbeats(lines).rate(since=BEGUN.timestamp())
    assert rate and rate.samples_per_s == pytest.approx(12.5)
    whole = Heartbeats(lines).rate(since=BEGUN.timestamp(), whole=True)
    assert whole and whole.samples_per_s == pytest.approx(100.0)

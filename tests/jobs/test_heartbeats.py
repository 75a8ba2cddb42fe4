"""Curves of what a job says of itself while it trains."""

from itertools import pairwise

from daybreak.jobs.heartbeats import thinned


def test_a_long_curve_is_thinned_to_its_last_point() -> None:
    points = [(float(n), 1.0 / n) for n in range(1, 5000)]
    thin = thinned(points, most=160)
    assert len(thin) == 160
    assert thin[-1][0] == 4999
    assert all(low[1] > high[1] for low, high in pairwise(thin))


def test_a_short_curve_is_left_as_it_is() -> None:
    assert thinned([(1, 4.0), (2, 2.0)], most=160) == ((1, 4.0), (2, 2.0))

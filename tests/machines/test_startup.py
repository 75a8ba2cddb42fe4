"""Machines that are asked for together are all there once the slowest of them is."""

import random
from math import exp
from statistics import quantiles

import pytest

from daybreak.machines.startup import TWICE, slowest, wait
from tests.planning.jobs import machine


@pytest.mark.parametrize("num_machines", [1, 2, 8, 32])
def test_the_slowest_start_is_as_drawing_each_machine_s_start_says(num_machines):
    chance, (later, spread) = random.Random(0), slowest(num_machines)
    drawn = [
        max(exp(TWICE * chance.gauss(0, 1)) for _ in range(num_machines))
        for _ in range(60_000 // num_machines)
    ]
    at = quantiles(drawn, n=20)
    assert later == pytest.approx(at[9], rel=0.03)
    assert later * exp(1.6449 * spread) == pytest.approx(at[18], rel=0.06)


def test_more_machines_start_later_and_their_queue_is_as_long():
    one, eight = (wait(machine(), num_bytes=10**9, num_machines=number) for number in (1, 8))
    assert eight.start_s == pytest.approx(1.79 * one.start_s, rel=0.01)
    assert eight.pull_s == pytest.approx(1.79 * one.pull_s, rel=0.01)
    assert (eight.queue_s, eight.queue_spread) == (one.queue_s, one.queue_spread)
    assert eight.spread < one.spread  # the slowest of many is more certain than one


def test_what_nights_took_corrects_the_slowest_of_as_many():
    plain = wait(machine(), num_bytes=0, num_machines=8)
    learned = wait(machine(), num_bytes=0, num_machines=8, ratios=(1.5, 1.5, 1.5))
    assert learned.start_s == pytest.approx(1.5 * plain.start_s)

"""Bills and losses are those counted by hand, and published simulations come out as published."""

import csv
import gzip
from math import ceil

import pytest

from daybreak.extensions.simulation.baselines import greedy, on_demand, skynomad, uniform_progress
from daybreak.extensions.simulation.replay import Luck, replay
from daybreak.extensions.simulation.traces import read
from daybreak.extensions.spot.states import Place
from tests.extensions.spot.markets import TICK_S, job, measured, trace

TICK_USD = TICK_S / 3600  # of a dollar an hour


def test_a_start_takes_its_time_and_each_tick_is_paid_whole():
    outcome = replay(greedy, job(work=3, deadline=10), [trace("##########")])
    assert outcome.finished_s == pytest.approx(4.2 * TICK_S)
    assert outcome.usd == pytest.approx(5 * TICK_USD)
    assert (outcome.num_losses, outcome.num_moves, outcome.on_demand_s) == (0, 0, 0)


def test_a_loss_with_notice_costs_a_start_and_without_the_work_since_the_last_checkpoint():
    up = trace("####..####" + "." * 10)
    gentle = job(work=6, deadline=20, restart=1, checkpoint_every_s=300)
    kept = replay(greedy, gentle, [up])
    assert (kept.num_losses, kept.waited_s) == (1, 2 * TICK_S)
    assert kept.finished_s == 10 * TICK_S
    # Three ticks were worked; the machine dies two fifths into the third, when 2 x 600 + 0 seconds are saved.
    harsh = job(work=6, deadline=30, restart=1, checkpoint_every_s=300, notice=False)
    luck = Luck(lost_at=(0.4,) * 30)
    longer = trace("####..#####" + "." * 19)
    assert replay(greedy, harsh, [longer], luck=luck).finished_s == 11 * TICK_S


def test_a_checkpoint_is_paid_for_where_it_leaves_its_region():
    task = job(work=6, deadline=20, restart=1, egress_usd=3.0)
    moved = replay(
        greedy, task, [trace("###" + "." * 17, zone="a-1-a"), trace("#" * 20, zone="b-1-a", spot=2.0)]
    )
    beside = replay(
        greedy, task, [trace("###" + "." * 17, zone="a-1-a"), trace("#" * 20, zone="a-1-b", spot=2.0)]
    )
    assert moved.num_moves == beside.num_moves == 1
    assert moved.usd - beside.usd == pytest.approx(3.0)
    assert moved.places[2:4] == (Place("a-1-a", spot=True), Place("b-1-a", spot=True))


def test_a_machine_on_demand_that_fails_is_bought_again():
    luck = Luck(failed=(False, False, False, True) + (False,) * 16)
    outcome = replay(on_demand, job(work=6, deadline=20, restart=1), [trace("." * 20)], luck=luck)
    assert outcome.num_losses == 1
    assert outcome.finished_s is not None
    assert outcome.finished_s > 8 * TICK_S
    assert outcome.on_demand_s >= outcome.finished_s


def test_a_slow_machine_takes_longer():
    luck = Luck(throughput=(0.8,) * 20)
    outcome = replay(on_demand, job(work=8, deadline=20, restart=1), [trace("." * 20)], luck=luck)
    assert outcome.finished_s == pytest.approx(11 * TICK_S)


def test_a_deadline_that_cannot_be_met_is_missed():
    outcome = replay(on_demand, job(work=10, deadline=10), [trace("." * 10)])
    assert outcome.missed
    assert outcome.finished_s is None


@pytest.mark.parametrize("policy", [greedy, uniform_progress, skynomad])
def test_others_meet_the_deadline_too_where_nothing_is_uncertain(policy):
    for up in ("#" * 30, "." * 30, "##..#..####" + "." * 19, "." * 12 + "#" * 18):
        assert not replay(policy, job(work=20, deadline=30), [trace(up)]).missed


def test_uniform_progress_buys_when_it_is_behind_and_leaves_when_it_is_ahead():
    outcome = replay(
        uniform_progress, job(work=20, deadline=40, restart=1), [trace("##" + "." * 8 + "#" * 30)]
    )
    spot = [place is not None and place.spot for place in outcome.places]
    bought = [place is not None and not place.spot for place in outcome.places]
    assert spot[:2] == [True, True]
    assert any(bought[2:10])
    assert spot[-1]


def test_uniform_progress_costs_what_was_published():
    traces = {each.zone: each for each in read(measured("skynomad_h100_merged_rle.csv.gz"))}
    with gzip.open(measured("deadline_sensitivity.csv.gz"), "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["strategy"] == "rc_cr_threshold"]
    rows = [row for row in rows if row["task_type"] == "single_region" and row["deadline_ratio"] == "1.5"]
    assert len(rows) == 36
    for row in rows:
        task = job(work=float(row["task_duration"]) * 6, deadline=311)
        start = ceil(
            float(row["env_start_hours"]) * 3600 / 600
        )  # rounded as there: the last by a tick too much
        outcome = replay(uniform_progress, task, [traces[row["region"].split("_")[0]]], start=start)
        assert outcome.usd == pytest.approx(float(row["cost"]))

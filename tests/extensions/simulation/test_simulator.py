"""A year of nights comes out the same each time, no deadline is missed, and the command shows it."""

import json
from dataclasses import replace

import pytest

from daybreak import cli
from daybreak.contract.errors import DataError, ParamsError
from daybreak.extensions.simulation import simulated
from daybreak.extensions.simulation.simulator import OPTIMUM, OURS, POLICIES, nightly_job, simulate
from daybreak.extensions.simulation.traces import draw

JOB = nightly_job(work_hours=5, deadline_hours=7)
ZONES = draw(seed=0, num_ticks=3000)


def test_a_seed_plays_the_same_nights_in_one_process_or_two():
    one = list(simulate(JOB, ZONES, num_nights=10, seed=1, num_processes=1))
    assert one == list(simulate(JOB, ZONES, num_nights=10, seed=1, num_processes=2))
    assert one != list(simulate(JOB, ZONES, num_nights=10, seed=2, num_processes=1))
    assert [each.policy for each in one[3]] == [*POLICIES, OPTIMUM]


@pytest.mark.slow
def test_where_spot_comes_and_goes_all_the_time_no_deadline_is_missed_for_less_than_buying_costs():
    scarce = tuple(
        replace(zone, up=tuple(up and tick % 17 > 3 for tick, up in enumerate(zone.up))) for zone in ZONES
    )
    policy_nights = [each for night in simulate(JOB, scarce, num_nights=60, seed=3) for each in night]
    by_policy = {row.policy: row for row in simulated.rows(policy_nights)}
    assert by_policy[OURS].num_missed == 0
    assert by_policy[OURS].num_losses > 20
    assert by_policy[OPTIMUM].usd < by_policy[OURS].usd < by_policy["all on-demand"].usd


@pytest.mark.slow
def test_the_command_prints_a_table_or_figures_and_writes_a_picture(tmp_path, capsys):
    words = ["simulate", "--nights", "4"]
    assert cli.main([*words, "--plot", str(tmp_path / "x.svg")]) == 0
    printed = capsys.readouterr().out
    for name in (*POLICIES, OPTIMUM):
        assert name in printed
    assert cli.main([*words, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["nights"] == 4
    assert len(written["policy_nights"]) == 4 * (len(POLICIES) + 1)
    ours = next(row for row in written["policies"] if row["policy"] == OURS)
    assert ours["num_missed"] == 0
    assert ours["usd"] == pytest.approx(
        sum(t["usd"] for t in written["policy_nights"] if t["policy"] == OURS) / 4
    )
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--nights", "0"], "--nights 0"),
        (["--work-hours", "19"], "--work-hours 19 does not fit between 0 and --deadline-hours 18"),
        (["--traces", "nowhere.csv"], "there is no file nowhere.csv"),
        (["--plot", "picture.xyz"], "--plot picture.xyz"),
        (["--plot", "nowhere/picture.png"], "--plot nowhere/picture.png is in no folder that exists"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(words, reason, caplog):
    assert cli.main(["simulate", "--nights", "2", *words]) == 78
    assert reason in caplog.text
    assert "; " in caplog.text


def test_traces_shorter_than_a_night_are_refused():
    with pytest.raises(DataError, match=r"the traces last 2\.0 hours, a night 7\.0"):
        list(simulate(JOB, draw(seed=0, num_ticks=12), num_nights=1))
    with pytest.raises(ParamsError, match="--nights -1"):
        list(simulate(JOB, ZONES, num_nights=-1))


def test_no_policy_pays_less_than_the_optimum():
    job = nightly_job(work_hours=12, deadline_hours=18)
    for policy_nights in simulate(job, draw(seed=0, num_ticks=366 * 24 * 6), num_nights=6):
        *policies, best = policy_nights
        assert best.policy == OPTIMUM
        assert all(best.usd <= each.usd for each in policies if not each.missed)

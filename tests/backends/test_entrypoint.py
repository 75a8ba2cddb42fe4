"""A machine of a job finds its place, and ends in time, whoever else is alive."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.backends.entrypoint import place
from daybreak.contract import clock
from daybreak.contract.units import HOUR_S

ROOT = Path(__file__).parents[2]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_ranks_of_all_machines_are_each_once_and_all_name_the_same_master(sizes):
    pools = enumerate([1, *sizes])
    cluster = {f"workerpool{pool}": [f"h{pool}{i}:2222" for i in range(size)] for pool, size in pools}
    tasks = [(pool, index) for pool, hosts in cluster.items() for index in range(len(hosts))]
    places = [place(json.dumps({"cluster": cluster, "task": {"type": t, "index": i}})) for t, i in tasks]
    assert [one.rank for one in places if one] == list(range(1 + sum(sizes)))
    assert {(one.master, one.num_nodes) for one in places if one} == {("h00:2222", 1 + sum(sizes))}
    assert [one.host for one in places if one] == [f"h{t.removeprefix('workerpool')}{i}" for t, i in tasks]


def test_a_machine_alone_meets_nobody():
    alone = json.dumps({"cluster": {"workerpool0": ["a:2222"]}, "task": {"type": "workerpool0", "index": 0}})
    assert place("") is place(alone) is None


def run(script: str, *, until: float = 1e12, folder: Path | None = None) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-m",
        "daybreak.backends.entrypoint",
        "--until",
        str(until),
        "--",
        "tests.backends.script",
        script,
    ]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)


def test_how_the_command_ended_is_told_as_a_shell_tells_it():
    ended = [run("exit 7"), run("kill -6 $$")]
    assert [process.wait() for process in ended] == [7, 134]
    for process in ended:
        process.communicate()


@pytest.mark.slow
def test_the_command_ends_at_its_time_although_nobody_asks():
    process = run("exec sleep 60", until=time.time() + 0.5)
    assert process.wait(30) == 128 + signal.SIGTERM
    process.communicate()


def test_who_is_told_to_end_may_still_save():
    with run("trap 'echo saved; exit 5' TERM; echo begun; while :; do sleep 0.02; done") as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        assert process.stdout.readline() == "saved\n"
        assert process.wait(30) == 128 + signal.SIGTERM


def test_a_machine_that_opened_the_night_ends_by_its_clock(tmp_path):
    """The machine's clock was set back by six hours since."""
    if not clock.boot():
        pytest.skip("no name of a boot here")
    (tmp_path / "data/run").mkdir(parents=True)
    booted_at = time.time() - clock.since_boot() + 6 * HOUR_S
    night = {"boot": clock.boot(), "booted_at": booted_at}
    (tmp_path / "data/run/night.json").write_text(json.dumps(night))
    process = run("exec sleep 60", until=time.time() + 6 * HOUR_S + 0.5, folder=tmp_path)
    assert process.wait(30) == 128 + signal.SIGTERM
    process.communicate()

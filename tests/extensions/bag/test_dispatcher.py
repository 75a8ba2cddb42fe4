"""Bags of real processes: machines are killed, the dispatcher too, and each seed is done once."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from daybreak.backends.local import Local
from daybreak.contract import records
from daybreak.contract.backend import JobState
from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import LOCAL, Rental
from daybreak.extensions.bag import dispatcher as dispatcher_module
from daybreak.extensions.bag.bag_estimates import Setup
from daybreak.extensions.bag.dispatcher import BagOutcome, Dispatcher
from daybreak.extensions.bag.folder import BAGS, Bag
from daybreak.extensions.bag.state import BagState
from daybreak.jobs.reaper import orphans, standings
from daybreak.machines.catalog import AT_HAND
from daybreak.storage import jsonl
from daybreak.storage.home import Home
from tests.backends.small_place import MACHINE, Cloud, SmallPlace
from tests.fakes import ScriptedBackend

SLEEP = "sleep 0.4; echo {seed} >> {folder}/result"


def bag(folder: Path, script: str, *, runs: int = 4, needed: int = 4, save_s: float = 0.0) -> Bag:
    return Bag(
        name="b",
        command=("sh", "-c", script),
        cwd=str(folder),
        num_runs=runs,
        num_needed=needed,
        save_s=save_s,
        rental=Rental(machine=LOCAL),
        until=datetime.now(UTC) + timedelta(minutes=2),
    )


def dispatcher(folder: Path, bag: Bag, *, machines: int = 2, run_s: float = 0.0) -> Dispatcher:
    setup = Setup(backend=Local(), machine=AT_HAND, num_machines=machines, run_s=run_s)
    return Dispatcher(folder, bag, setup)


def nothing(_: BagState) -> None:
    """Shows nothing."""


def killing(folder: Path, *, number: int) -> Callable[[BagState], None]:
    """Kills that many machines, each in its first run that is seen."""
    killed: set[str] = set()

    def show(state: BagState) -> None:
        for lease, _ in list(state.taken.values()):
            if len(killed) < number and lease not in killed:
                killed.add(lease)
                os.killpg(int((folder / "leases" / lease / "pid").read_text()), signal.SIGKILL)

    return show


def results(folder: Path) -> dict[int, str]:
    return {int(each.parent.name): each.read_text() for each in folder.glob("seeds/*/result")}


@pytest.mark.slow
def test_runs_of_machines_that_are_killed_are_run_again_and_each_seed_counts_once(tmp_path: Path) -> None:
    runner = dispatcher(tmp_path, bag(tmp_path, SLEEP))
    outcome: BagOutcome = runner.run(killing(tmp_path, number=2))
    assert (outcome.num_done, outcome.num_preempted, outcome.num_lost) == (4, 2, 2)
    assert results(tmp_path) == {seed: f"{seed}\n" for seed in range(4)}
    assert not any((tmp_path / "work").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("by_bucket", [False, True])
def test_a_run_that_saves_goes_on_from_what_it_left(tmp_path: Path, by_bucket: bool) -> None:
    first = "if (set -C; : > {folder}/began); then sleep 600; fi"  # an empty file is whole once it is there
    script = f"{first}; echo went on > {{folder}}/result"
    saving = bag(tmp_path, script, runs=1, needed=1, save_s=0.1)
    kill = killing(tmp_path, number=1)

    def show(state: BagState) -> None:
        if state.things or (tmp_path / "work/0/began").exists():
            kill(state)

    url = f"file://{tmp_path}/bucket" if by_bucket else ""
    dispatcher(tmp_path, replace(saving, url=url), machines=1).run(show)
    assert results(tmp_path) == {0: "went on\n"}


@pytest.mark.slow
def test_a_bag_stops_once_enough_runs_are_done_and_leaves_no_process(tmp_path: Path) -> None:
    script = "[ {seed} -lt 2 ] || sleep 3600; echo {seed} > {folder}/result"  # longer than a test may take
    outcome = dispatcher(tmp_path, bag(tmp_path, script, runs=4, needed=2)).run(nothing)
    assert outcome.num_done == 2
    assert records.read(Bag, tmp_path).closed_at is not None
    for lease in (tmp_path / "leases").iterdir():
        assert Local().state(str(lease)) != "running"


@pytest.mark.slow
def test_a_machine_that_cannot_be_ended_keeps_no_other_and_the_bag_is_closed(tmp_path: Path) -> None:
    class Stuck(Local):
        def cancel(self, handle: str) -> None:
            super().cancel(handle)
            if "/0001-" in handle:
                raise JobError("it is not to be had")

    script = "test {seed} = 0 || sleep 60; echo {seed} > {folder}/result"
    setup = Setup(backend=Stuck(), machine=AT_HAND, num_machines=3)
    runner = Dispatcher(tmp_path, bag(tmp_path, script, needed=1), setup)
    with pytest.raises(JobError, match=r"^machine 0001-\w+ of bag b may still run: it is not to be had$"):
        runner.run(nothing)
    assert records.read(Bag, tmp_path).closed_at
    assert [Local().state(str(lease)) for lease in (tmp_path / "leases").iterdir()].count("running") == 0


@pytest.mark.slow
def test_seeds_that_fail_twice_end_the_bag_where_the_others_are_too_few(tmp_path: Path) -> None:
    few = bag(tmp_path, "[ {seed} -gt 0 ] && echo {seed} > {folder}/result")
    with pytest.raises(JobError, match=r"1 seed of bag b failed twice, . of 4 runs done; look at .*log.txt"):
        dispatcher(tmp_path, few).run(nothing)
    assert dispatcher(tmp_path, replace(few, num_needed=3)).run(nothing).num_done == 3
    assert sorted(results(tmp_path)) == [1, 2, 3]


@pytest.mark.slow
def test_a_run_that_ends_before_its_machine_hears_of_the_preemption_is_lost_and_has_not_failed(
    tmp_path: Path,
) -> None:
    """Slurm signals all processes of a step in turn, so that a run may be gone before its worker is told."""
    first = f"touch {tmp_path}/told; (sleep 0.2; kill -TERM $PPID) & exit 1"
    script = f"[ -e {tmp_path}/told ] || {{ {first}; }}; echo {{seed}} > {{folder}}/result"
    outcome = dispatcher(tmp_path, bag(tmp_path, script, runs=1, needed=1), machines=1).run(nothing)
    assert (outcome.num_done, outcome.num_lost) == (1, 1)
    assert '"failed"' not in (tmp_path / "events.jsonl").read_text()


def test_a_bag_is_run_by_one_process_at_a_time(tmp_path: Path) -> None:
    refused: list[str] = []

    def second(_: BagState) -> None:
        try:
            dispatcher(tmp_path, bag(tmp_path, "true", runs=1, needed=1)).run(nothing)
        except JobError as error:
            refused.append(str(error))
            raise

    with pytest.raises(JobError):
        dispatcher(tmp_path, bag(tmp_path, "true", runs=1, needed=1)).run(second)
    assert refused == ["bag b is run by another process; wait for it"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_same_command_goes_on_where_a_killed_one_stopped(tmp_path: Path, number: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "params.yaml").write_text("source: a:B\nworkload: a:B\nbackend: daybreak:Local\n")
    subprocess.run(["git", "init", "--quiet"], cwd=home, check=True)
    words = [
        sys.executable,
        "-m",
        "daybreak",
        "bag",
        f"sh -c '{SLEEP}'",
        "--runs",
        "8",
        "--machines",
        "2",
        "--name",
        "b",
    ]
    environment = {**os.environ, "DAYBREAK_HOME": str(home)}
    folder = home / "var/bags/b"
    # A shell's background job, which may have started this test, ignores Ctrl-C.
    heeds_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    first = subprocess.Popen(words, cwd=home, env=environment, preexec_fn=heeds_ctrl_c)  # noqa: PLW1509
    while not any(folder.glob("seeds/*")):
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(number)
    assert first.wait() == (130 if number == signal.SIGINT else -signal.SIGKILL)
    again = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, check=True)
    assert "8 runs done" in again.stdout
    assert results(folder) == {seed: f"{seed}\n" for seed in range(8)}


class SharedRack(SmallPlace):
    """The small place, beside the disk of the bag."""

    shares_disk = True


@pytest.mark.parametrize("machines", [1, 3])
def test_a_bag_whose_machines_are_refused_for_good_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machines: int
) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    rack = SharedRack(Cloud(unknown=True))
    rental = Rental(machine=MACHINE.name, region=MACHINE.region, strategy="spot")
    setup = Setup(backend=rack, machine=MACHINE, num_machines=machines)
    runner = Dispatcher(tmp_path / BAGS / "b", replace(bag(tmp_path, SLEEP), rental=rental), setup)
    with pytest.raises(JobError, match=r"gets no machines, 0 of 4 runs done: there is no 1 x .*name another"):
        runner.run(nothing)
    assert not rack.live()


@pytest.mark.slow
def test_a_rented_machine_is_billed_and_reaped_as_any_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    folder, rack = tmp_path / BAGS / "b", SharedRack(Cloud())
    rental = Rental(machine=MACHINE.name, region=MACHINE.region, strategy="spot")
    setup = Setup(backend=rack, machine=MACHINE, num_machines=1)
    orphaned: list[list[str]] = []

    def show(state: BagState) -> None:
        if state.taken:
            there = records.read(Bag, folder)
            closed = replace(there, closed_at=datetime.now(UTC) + timedelta(seconds=1))
            for each in (there, closed):
                records.write(each, folder)
                jobs = orphans(rack.live(), standings(Home.here()), now=datetime.now(UTC))
                orphaned.append([job.job[:10] for job in jobs])

    runner = Dispatcher(folder, replace(bag(tmp_path, "sleep 0.3", runs=1, needed=1), rental=rental), setup)
    outcome = runner.run(show)
    assert outcome.usd == pytest.approx(outcome.machine_s * (MACHINE.price("spot") or 0) / 3600, rel=0.3)
    assert orphaned[:2] == [[], ["bag-b-0001"]]


@pytest.mark.slow
def test_machines_are_ended_though_the_disk_is_full(tmp_path: Path, monkeypatch, caplog) -> None:
    """A disk that takes no new file and no line, from the moment that somebody stops the bag."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def stopped(state: BagState) -> None:
        if len(state.live) == 2 and all(lease.handle for lease in state.live):
            monkeypatch.setattr(records, "write", full)
            monkeypatch.setattr(jsonl, "add", full)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dispatcher(tmp_path, bag(tmp_path, "sleep 600")).run(stopped)
    leases = list((tmp_path / "leases").iterdir())
    assert len(leases) == 2
    assert "running" not in [Local().state(str(lease)) for lease in leases]
    assert "cannot be recorded as closed" in caplog.text


class Scarce(ScriptedBackend):
    """A place that has machines again after so many requests for them."""

    def __init__(self, *, after: int) -> None:
        super().__init__("running")
        self.after = after

    def state(self, handle: str) -> JobState:
        numbers = [number for number, job in enumerate(self.jobs) if job.folder == handle]
        return "running" if numbers[-1] >= self.after else "refused"


@pytest.mark.slow
@pytest.mark.parametrize("after", [1000, 22])
def test_a_place_without_machines_is_asked_for_one_less_and_less_often_until_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(dispatcher_module, "REFUSED_S", 0.1)
    asked = replace(
        bag(tmp_path, "true", runs=100, needed=100), until=datetime.now(UTC) + timedelta(seconds=3)
    )
    backend = Scarce(after=after)
    setup = Setup(backend=backend, machine=AT_HAND, num_machines=20, poll_s=0.01)
    with pytest.raises(JobError, match="the time of bag b is over"):
        Dispatcher(tmp_path, asked, setup).run(nothing)
    if after == 1000:
        assert 21 <= len(backend.jobs) <= 20 + 5  # 0.1, 0.3, 0.7, 1.5 s after the first 20
    else:
        assert len(backend.jobs) == 22 + 20  # the first 20, two refused, and then as many as are wanted

"""Two hosts with one home: a night never has two live jobs for longer than one look."""

from contextlib import chdir
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from daybreak.contract.backend import label
from daybreak.contract.errors import NotYet
from daybreak.jobs import launcher
from daybreak.jobs.cost_tracker import JOBS
from daybreak.jobs.submissions import JobAttempts
from daybreak.storage.home import Home
from tests.jobs import plans
from tests.jobs.cloud import KILL_S, TICK_S, Cloud, Luck, night_of
from tests.training import nights

PARAMS = plans.make_params(strategy="on-demand")


class Hosts:
    """Hosts that know nothing of each other, each with a folder of the night of its own."""

    def __init__(self, folder: Path, cloud: Cloud) -> None:
        self.folder, self.cloud = folder, cloud

    def look(self, host: str) -> str:
        """Calls the launcher of a host once, and returns its message."""
        (self.folder / host / JOBS).mkdir(parents=True, exist_ok=True)
        with chdir(self.folder / host), pytest.raises(NotYet) as refusal:
            launcher.look_after(
                Home(Path.cwd()),
                self.cloud.night,
                nights.dataset(),
                self.cloud.plan,
                None,
                backend=self.cloud,
                **nights.sections(PARAMS),
                clock=lambda: self.cloud.now,
            )
        return str(refusal.value)

    def wait(self, seconds: float) -> None:
        self.cloud.next_tick = inf  # this test calls the launchers itself
        self.cloud.pass_to(self.cloud.now + seconds)

    def job_of(self, host: str) -> str:
        (path,) = (path for path in (self.folder / host / JOBS).iterdir() if path.is_dir())
        last = JobAttempts(path).last
        assert last
        return last.job

    def live(self) -> list[str]:
        return [live.job.name for live in self.cloud.jobs if live.ended == inf]


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    night = night_of(budget_usd=100)
    plan = plans.planned(night, PARAMS, share=0.5)
    return Hosts(tmp_path, Cloud(night, plan, Luck(queue_s=1e-3), PARAMS))


def refuse(hosts: Hosts, region: str, *, lists_nothing: bool = False) -> None:
    hosts.cloud.luck = replace(hosts.cloud.luck, refused={region: inf}, lists_nothing=lists_nothing)


def test_a_host_that_finds_a_job_of_the_night_elsewhere_attaches_to_it(hosts):
    refuse(hosts, plans.HOME)
    hosts.look("one")  # is refused, and asks for the next place in the same look
    hosts.cloud.luck = Luck(queue_s=1e-3)  # so that the other host would find the plan's own place
    hosts.look("two")
    assert len(hosts.live()) == 1
    assert hosts.job_of("one") == hosts.job_of("two") == hosts.live()[0]
    assert plans.NEXT in hosts.live()[0]


def submitted_twice(hosts: Hosts) -> str:
    """Let both hosts submit before the cloud lists the other's job; returns the name of the older."""
    refuse(hosts, plans.HOME, lists_nothing=True)
    hosts.look("one")
    hosts.wait(1)
    hosts.cloud.luck = Luck(queue_s=1e-3, lists_nothing=True)
    hosts.look("two")
    assert len(set(hosts.live())) == 2
    hosts.cloud.luck = Luck(queue_s=1e-3)
    hosts.wait(TICK_S)
    return hosts.job_of("one")


def test_of_two_jobs_that_were_submitted_at_once_in_two_places_one_look_leaves_the_older(hosts):
    older = submitted_twice(hosts)
    hosts.look("one")
    hosts.wait(KILL_S)
    assert hosts.live() == [older]
    hosts.look("two")
    assert hosts.live() == [older]
    assert hosts.job_of("two") == older


def test_the_host_of_the_younger_job_ends_it_and_attaches_to_the_older(hosts):
    older = submitted_twice(hosts)
    assert "was cancelled" in hosts.look("two")
    hosts.wait(KILL_S)
    assert hosts.live() == [older]
    hosts.look("two")
    assert hosts.live() == [older] == [hosts.job_of("two")]


def test_a_cloud_that_does_not_list_its_jobs_does_not_keep_a_night_from_its_own(hosts, monkeypatch, caplog):
    from daybreak.contract.errors import JobError

    def unreachable(regions):
        raise JobError("the service does not answer")

    monkeypatch.setattr(hosts.cloud, "live_in", unreachable)
    assert "queued" in hosts.look("one")
    assert "is not known: the service does not answer" in caplog.text
    assert [label(name) for name in hosts.live()] == [hosts.job_of("one")]


def test_a_host_knows_its_own_job_by_the_name_of_a_machine_in_capitals(hosts, monkeypatch):
    """Slurm and Kubernetes list names as they were given, Vertex as labels."""
    named = [replace(machine, name="A") for machine in plans.rented() if machine.name == "a"]
    monkeypatch.setattr(hosts.cloud, "machines", lambda: (*plans.rented(), *named))
    plan = hosts.cloud.plan
    fallbacks = [
        replace(placement, rental=replace(placement.rental, machine="A")) for placement in plan.fallbacks
    ]
    hosts.cloud.plan = replace(plan, fallbacks=tuple(fallbacks))
    refuse(hosts, plans.HOME)
    hosts.look("one")
    job = hosts.live()
    assert [label(name) for name in job] != job
    hosts.cloud.luck = Luck(queue_s=1e-3)
    for host in ("one", "one", "two"):
        hosts.wait(TICK_S)
        assert "cancelled" not in hosts.look(host)
    assert hosts.live() == job == [hosts.job_of("two")]

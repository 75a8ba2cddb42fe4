"""How many cores are free: what others take is left to them, and runs share evenly."""

import fcntl
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.threads.free_cores import (
    Counters,
    FreeCores,
    Quota,
    fair_share,
    read_counters,
    used_and_free,
)
from daybreak.machines import this_machine

wants = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(1, 12), min_size=1, max_size=6)


class Clock:
    """Time, and what processes have used by then: `others` on cores, `own` by process 7."""

    def __init__(self) -> None:
        self.time, self.others, self.own, self.sibling = 0.0, 0.0, 0.0, 0.0

    def __call__(self) -> float:
        return self.time

    def counters(self, pids) -> Counters:
        busy = self.others + self.own + self.sibling
        return Counters(busy_s=busy, processes_s={7: self.own})

    def pass_s(self, seconds: float, *, others: float = 0.0, own: float = 0.0, sibling: float = 0.0) -> None:
        self.time += seconds
        self.others += others * seconds
        self.own += own * seconds
        self.sibling += sibling * seconds


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(this_machine, "num_cores", lambda: 4)


@given(st.integers(1, 16), wants)
def test_a_share_is_what_a_run_wants_or_even(num_cores, wants):
    shares = {name: fair_share(num_cores, wants, name) for name in wants}
    assert all(1 <= share <= wants[name] for name, share in shares.items())
    if num_cores >= len(wants):
        assert sum(shares.values()) == min(num_cores, sum(wants.values()))
    for name, share in shares.items():  # who has less than wanted has no less than anybody, but for one core
        if share < wants[name]:
            assert share >= max(shares.values()) - 1


def test_what_others_take_is_not_free(four_cores, tmp_path):
    clock = Clock()
    cores = FreeCores(tmp_path, clock=clock, counters=clock.counters)
    clock.pass_s(0.5, others=1.5, own=2.5)
    assert cores.free(pids=[7], wants=4) == pytest.approx(2.5)


def test_cores_are_given_up_at_once_and_taken_when_they_stay_free(four_cores, tmp_path):
    clock = Clock()
    cores = FreeCores(tmp_path, clock=clock, counters=clock.counters)
    clock.pass_s(0.5, others=3.0, own=1.0)
    free = [cores.free(pids=[7], wants=4)]
    for _ in range(8):
        clock.pass_s(0.5, own=1.0)
        free.append(cores.free(pids=[7], wants=4))
    assert free[0] == pytest.approx(1.0)
    assert free[1] < 2 < 3.75 < free[-1]


def test_two_runs_share_the_cores_and_what_each_uses_is_not_others(four_cores, tmp_path):
    clock = Clock()
    one, other = (FreeCores(tmp_path, clock=clock, counters=clock.counters) for _ in range(2))
    assert [each.free(pids=[7], wants=4) for each in (one, other, one)][1:] == [2.0, 2.0]
    other.free(pids=[], wants=1)
    assert one.free(pids=[7], wants=4) == 3.0
    other.close()
    assert one.free(pids=[7], wants=4) == 4.0


def test_the_claim_of_a_dead_run_goes(four_cores, tmp_path):
    clock = Clock()
    (tmp_path / "1-1").write_text("     4     4.000\n")
    cores = FreeCores(tmp_path, clock=clock, counters=clock.counters)
    assert cores.free(pids=[7], wants=4) == 4.0
    assert not (tmp_path / "1-1").exists()


def test_a_claim_is_locked_while_its_run_lives(tmp_path):
    cores = FreeCores(tmp_path)
    (claim,) = tmp_path.iterdir()
    with claim.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    cores.close()
    assert list(tmp_path.iterdir()) == []


def test_a_quota_counts_what_its_cgroup_uses():
    before = Counters(quotas=(Quota(num_cores=2.0, used_s=10.0),), processes_s={7: 0.0})
    now = Counters(busy_s=1.5, quotas=(Quota(num_cores=2.0, used_s=11.5),), processes_s={7: 1.0})
    own, free = used_and_free(before, now, passed_s=1.0, num_cores=64, runs=0.0)
    assert (own, free) == (1.0, 1.5)


@pytest.mark.parametrize("version", [1, 2])
def test_quotas_are_read_from_cgroups(version, monkeypatch, tmp_path):
    own = tmp_path / "own"
    if version == 2:
        own.write_text("0::/night\n")
        files = {
            "night/cpu.max": "150000 100000\n",
            "night/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
            "cpu.max": "max 100000\n",
            "cpu.stat": "usage_usec 9\n",
        }
    else:
        own.write_text("4:cpu,cpuacct:/night\n3:memory:/night\n")
        files = {
            "cpu/night/cpu.cfs_quota_us": "150000\n",
            "cpu/night/cpu.cfs_period_us": "100000\n",
            "cpuacct/night/cpuacct.usage": "2500000000\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(this_machine, "OWN_CGROUPS", own)
    monkeypatch.setattr(this_machine, "CGROUPS", tmp_path)
    assert read_counters(()).quotas == (Quota(num_cores=1.5, used_s=2.5),)


def test_the_kernel_counts_what_this_process_uses():
    before = read_counters((os.getpid(),))
    while read_counters((os.getpid(),)).processes_s[os.getpid()] < before.processes_s[os.getpid()] + 0.05:
        pass
    assert read_counters(()).busy_s > before.busy_s

"""`check --rent`: a machine is tried, through a backend, by a real process that measures it."""

from dataclasses import replace

import pytest

from daybreak.backends.local import Local
from daybreak.contract import records
from daybreak.contract.record_parts import Rental
from daybreak.machines import catalog
from daybreak.profiling import machine_trial, short_job
from daybreak.profiling.machine_trial import MachineTrial, judged, trial
from daybreak.storage.home import Home
from tests.backends.rented import vertex
from tests.fakes import ScriptedBackend
from tests.planning.jobs import with_speeds

L4 = next(machine for machine in catalog.rented() if machine.name == "g2-standard-24")
FOUND = MachineTrial(
    devices="2 x NVIDIA L4",
    driver="580.95",
    torch="2.13.0",
    cuda="13.0",
    flops_per_s=0.7 * L4.speeds.flops_per_s,
    copy_bytes_per_s=2.4e11,
    elapsed_s=8.0,
)


@pytest.fixture(autouse=True)
def _in_a_home(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(short_job, "POLL_S", 0.02)


def texts(checks):
    return {check.name: (check.ok, check.text) for check in checks}


@pytest.mark.slow
def test_the_machine_at_hand_is_measured_by_a_job_of_its_own(tmp_path):
    shown = texts(
        trial(Home(tmp_path), Rental(machine="local"), catalog.AT_HAND, Local(), folder=tmp_path / "trial")
    )
    result = records.read(MachineTrial, tmp_path / "trial")
    assert shown["device"] == (
        True,
        f"local has {result.devices}; torch {result.torch}"
        + (f" for CUDA {result.cuda}, driver {result.driver}" if result.cuda else ""),
    )
    assert shown["speed"][0] and "FLOP/s" in shown["speed"][1]
    assert shown["cost"][1].startswith("$0.00 for ")
    assert result.flops_per_s > 1e8


@pytest.mark.slow
def test_a_rented_machine_without_its_gpus_fails_before_a_night_depends_on_it(service, tmp_path):
    backend = vertex(service.url, bucket=f"file://{tmp_path}/bucket")
    rental = Rental(machine=L4.name, region=L4.region)
    shown = texts(
        trial(Home(tmp_path), rental, L4, backend, folder=tmp_path / "home" / "var" / "trials" / "one")
    )
    held, text = shown["trial"]
    assert not held
    assert "was given 2 x L4 and sees no GPU" in text
    assert "cost" in shown


@pytest.mark.slow
def test_what_a_rented_machine_measured_comes_back_by_way_of_the_bucket(service, tmp_path):
    backend = vertex(service.url, bucket=f"file://{tmp_path}/bucket")
    cpu = next(machine for machine in backend.machines() if machine.name == "n2-standard-8")
    listed = with_speeds(cpu, flops_per_s=1e9)  # whatever this machine is, it reaches that
    folder = tmp_path / "home" / "var" / "trials" / "one"
    shown = texts(
        trial(Home(tmp_path), Rental(machine=cpu.name, region=cpu.region), listed, backend, folder=folder)
    )
    assert shown["device"] == (True, shown["device"][1])
    assert shown["device"][1].startswith(f"n2-standard-8, in {cpu.region} has CPU; torch 2.")
    assert shown["speed"][0]
    assert shown["cost"][0]
    assert "at most" not in shown["cost"][1]  # as the backend bills it


def test_a_machine_far_below_what_is_listed_is_refused():
    rental = Rental(machine=L4.name, region=L4.region, strategy="spot")
    well = texts(judged(FOUND, L4, rental=rental))
    assert all(held for held, _ in well.values())
    assert well["device"][1] == (
        f"g2-standard-24, spot, in {L4.region} has 2 x NVIDIA L4; torch 2.13.0 for CUDA 13.0, driver 580.95"
    )
    assert "70 % of the 121 TFLOP/s that the catalog has" in well["speed"][1]
    on_its_cpu = replace(FOUND, devices="CPU", flops_per_s=1.5e12)
    held, text = texts(judged(on_its_cpu, L4, rental=rental))["speed"]
    assert not held
    assert "name another machine in plan.machines" in text


def test_no_speed_of_a_tpu_is_claimed_since_only_its_host_is_measured():
    tpu = next(machine for machine in catalog.rented() if machine.is_tpu)
    result = replace(FOUND, devices="TPU v5litepod-1", cuda="", driver="")
    assert [check.name for check in judged(result, tpu, rental=Rental(machine=tpu.name))] == ["device"]


def test_a_trial_that_gets_no_machine_in_time_is_cancelled_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_trial, "LIMIT_S", 0.0)
    backend = ScriptedBackend("queued")
    checks = trial(
        Home(tmp_path), Rental(machine=L4.name, region=L4.region), L4, backend, folder=tmp_path / "trial"
    )
    assert texts(checks)["trial"][0] is False
    assert "the trial on g2-standard-24 was queued after 0 s" in texts(checks)["trial"][1]
    assert backend.cancelled

"""What has the job cost, and when does money end?"""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.contract import records
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.record_parts import JobForecast
from daybreak.jobs.cost_tracker import usd_per_hour
from daybreak.training.recipe import Result
from tests.fakes import ScriptedBackend
from tests.jobs.calls import NIGHT, call, finish, job_folder
from tests.training import nights

pytestmark = pytest.mark.usefixtures("folder")


def test_machines_are_paid_for_from_the_last_look_at_the_queue_until_they_are_seen_ended():
    backend = ScriptedBackend("queued")
    plan = replace(nights.plan(), usd_per_hour=3.6)  # a thousandth of a dollar a second
    spent = []
    looks = [(0, "queued"), (100, "queued"), (200, "running"), (300, "preempted"), (400, "running")]
    for at_s, state in looks:
        backend.script = [state]
        with pytest.raises(NotYet):
            call(backend, plan=plan, at_s=at_s)
        spent.append(round(json.loads((job_folder() / "meter.json").read_text())["usd"], 9))
    assert spent == [0, 0, 0.1, 0.2, 0.3]
    finish(job_folder())
    result = records.read(Result, job_folder())
    records.write(replace(result, ended_at=NIGHT.started_at + timedelta(seconds=450)), job_folder())
    assert call(backend, plan=plan, at_s=5000).cost_usd == pytest.approx(0.35)
    assert call(backend, plan=plan, at_s=9000).cost_usd == pytest.approx(0.35)


class Billed(ScriptedBackend):
    """A backend that bills jobs, unless `bill` is None."""

    bill: float | None = None

    def usd(self, folder: Path) -> float | None:
        assert folder == job_folder()
        return self.bill


def test_what_the_backend_says_that_a_job_has_cost_counts_and_is_estimated_only_where_it_cannot_tell():
    backend = Billed("running")
    plan = replace(nights.plan(), usd_per_hour=3.6)
    for at_s, bill in [(0, None), (100, None), (200, 0.5), (300, None)]:
        backend.bill = bill
        with pytest.raises(NotYet):
            call(backend, plan=plan, at_s=at_s)
        estimated = {0: 0, 100: 0.1, 200: 0.5, 300: 0.6}[at_s]
        assert json.loads((job_folder() / "meter.json").read_text())["usd"] == pytest.approx(estimated)
    finish(job_folder())
    backend.bill = 0.55
    assert call(backend, plan=plan, at_s=400).cost_usd == 0.55


def test_ones_own_machine_is_not_metered():
    with pytest.raises(NotYet):
        call(ScriptedBackend("running"), plan=replace(nights.plan(), usd_per_hour=0.0))
    assert not (job_folder() / "meter.json").exists()
    assert not (job_folder() / "end_by.json").exists()


def test_the_job_is_told_a_tick_before_money_ends_and_ended_then():
    backend = ScriptedBackend("running")
    night = nights.night(seconds=24 * 3600, budget_usd=1.0)
    plan = replace(nights.plan(), usd_per_hour=3.6)
    for at_s in (0, 400):
        with pytest.raises(NotYet):
            call(backend, plan=plan, night=night, at_s=at_s)
    end_by = json.loads((job_folder() / "end_by.json").read_text())["time"]
    assert end_by == pytest.approx(night.started_at.timestamp() + 1000 - 120)
    with pytest.raises(
        JobError, match=r"by the time that its budget ended.*the champion stays; .* night\.budget_usd"
    ):
        call(backend, plan=plan, night=night, at_s=900)
    assert len(backend.cancelled) == 1


def test_the_price_of_an_hour_is_the_plans_own_where_it_says():
    forecast = JobForecast(expected_s=36_000.0, interval=(30_000, 40_000), expected_usd=18.0)
    plan = replace(nights.plan(), forecast=forecast, usd_per_hour=None)
    two = replace(plan.rental, num_machines=2)
    assert usd_per_hour(replace(plan, usd_per_hour=2.5, rental=two)) == 5.0
    assert usd_per_hour(plan) == pytest.approx(1.8)
    assert usd_per_hour(replace(plan, forecast=replace(forecast, expected_s=0))) == 0

"""What is left of a night's budget for a job, and when it is spent."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from daybreak.contract.backend import TICK_S
from daybreak.jobs import observed_job
from daybreak.jobs.job_budget import JobBudget
from daybreak.jobs.submissions import JobAttempts
from tests.fakes import ScriptedBackend
from tests.jobs.calls import NIGHT
from tests.training import nights

pytestmark = pytest.mark.usefixtures("folder")


def budget(folder: Path, *, usd_per_hour: float, budget_usd: float = 1.0) -> JobBudget:
    plan = replace(nights.plan(), usd_per_hour=usd_per_hour)
    first = observed_job.first(plan, train_until=NIGHT.train_until, confidence=0.9)
    attempts = JobAttempts(folder)
    if not attempts.last:
        attempts.ask(0.0, job="job", placement=first)
    return JobBudget(
        folder,
        night=NIGHT.id,
        budget_usd=budget_usd,
        first=first,
        attempts=attempts,
        backend=ScriptedBackend(),
    )


def test_money_is_left_after_what_was_paid_and_ends_a_tick_before_it_is_spent(tmp_path: Path) -> None:
    rented = budget(tmp_path / "job", usd_per_hour=3.6)  # a thousandth of a dollar a second
    rented.pay(100.0, "running")
    rented.pay(300.0, "running")
    assert rented.left_usd == pytest.approx(0.8)
    assert rented.send_end_by(300.0, deadline=5000.0) == pytest.approx(1100 - TICK_S)
    assert json.loads((tmp_path / "job" / "end_by.json").read_text())["time"] == pytest.approx(1100 - TICK_S)


def test_the_job_gets_no_time_once_its_money_lasts_to_the_deadline(tmp_path: Path) -> None:
    budget(tmp_path / "job", usd_per_hour=3.6).send_end_by(0.0, deadline=5000.0)
    budget(tmp_path / "job", usd_per_hour=3.6, budget_usd=100.0).send_end_by(0.0, deadline=5000.0)
    assert not (tmp_path / "job" / "end_by.json").exists()


def test_a_machine_that_is_not_rented_costs_nothing(tmp_path: Path) -> None:
    own = budget(tmp_path / "job", usd_per_hour=0.0)
    own.pay(100.0, "running")
    own.pay(300.0, "running")
    assert (own.spent_usd, own.send_end_by(300.0, deadline=5000.0)) == (0.0, inf)

"""What the ledger's nights took reaches the plan of tonight."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pipeline import ledger, records
from pipeline.params import Params, PlanParams, TrainParams
from pipeline.planning import past
from pipeline.planning.plans import plan
from pipeline.records import Night, Plan, Profile, Training
from tests.planning.jobs import DATASET, STARTED, night, profile

PROFILE = profile()
PARAMS = Params(
    **dict.fromkeys(("source", "workload", "backend"), "some.module:Class"),
    plan=PlanParams(machines=("local",)),
    train=TrainParams(epochs=1, batch_size=256),
)


@pytest.fixture
def nights(repository: Path) -> Callable[..., Night]:
    """Close nights that took so many times as long as planned without a ledger; returns the next one."""

    def close(times: Sequence[float], *, num_restarts: int = 0) -> Night:
        code = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()
        tip = ledger.ledger_tip()
        plain = planned(night())
        for number, each in enumerate(times):
            opened = replace(
                night(), id=f"night-{number}", started_at=STARTED + timedelta(days=number), code_commit=code,
                previous=tip,
            )  # fmt: skip
            run = repository / records.RUN
            for record in (
                opened,
                DATASET,
                PROFILE,
                plain,
                replace(took(plain, each), num_restarts=num_restarts),
            ):
                records.write(record, run)
            tip = ledger.commit_night(opened, message="promoted")
        return replace(night(), code_commit=code, previous=tip)

    return close


def planned(tonight: Night, job: Profile = PROFILE) -> Plan:
    return plan(tonight, DATASET, job, None, PARAMS)


def took(told: Plan, times: float) -> Training:
    return Training(
        model_digest="d", num_samples=told.num_samples, num_updates=-(-told.num_samples // told.batch_size),
        num_restarts=0, elapsed_s=told.expected_s * times, cost_usd=0, stopped_by="finished",
    )  # fmt: skip


def width(told: Plan) -> float:
    return told.interval[1] / told.interval[0]


def test_a_machine_that_takes_longer_than_predicted_is_planned_longer(nights):
    plain, tonight = planned(night()), nights([1.3] * 8)
    assert planned(tonight).expected_s / plain.expected_s == pytest.approx(1.3, rel=0.04)
    assert len(past.known(past.before(tonight), num_workers=1).past) == 8


def test_the_ratio_stands_when_the_model_changes(nights):
    tonight, slower = nights([1.3] * 8), profile(step_s=4e-3)
    assert planned(tonight, slower).expected_s / planned(night(), slower).expected_s == pytest.approx(
        1.3, rel=0.04
    )


def test_intervals_that_did_not_hold_are_wider_tonight(nights, caplog):
    tonight = nights([0.5, 1.6, 0.6, 1.9] * 5)
    assert width(planned(tonight)) > 2 * width(planned(night()))
    assert "the 90 % interval held on 0% of the last 20 nights" in caplog.text


def test_what_cannot_be_learned_from_is_widened_for(nights):
    tonight = nights([1.0, 1.3, 0.8, 1.4] * 5, num_restarts=1)  # the time of a restart is no update's
    assert past.known(past.before(tonight), num_workers=1).past == []
    told = planned(tonight)
    assert told.widened > 1.5
    assert width(told) > 1.5 * width(planned(night()))


def test_nights_that_came_later_do_not_change_the_plan(nights, repository):
    tonight = nights([1.2] * 3)
    before = planned(tonight)
    later = replace(tonight, id="later", started_at=STARTED + timedelta(days=9))
    for record in (later, DATASET, PROFILE, before, took(before, 3.0)):
        records.write(record, repository / records.RUN)
    ledger.commit_night(later, message="promoted")
    assert planned(tonight) == before


def test_the_first_night_has_no_past(repository):
    assert past.before(night()) == []
    assert past.known([], num_workers=1).past == []


def explored(told: Plan, *, cost_usd: float) -> ledger.Entry:
    training = replace(took(told, 1.0), cost_usd=cost_usd)
    return ledger.Entry(commit="c", subject="s", rollback=False, night=night(), plan=told, training=training)


def test_what_was_spent_on_trying_is_what_it_took_beyond_the_best():
    tried = replace(planned(night()), expected_usd=5.0, explore_usd=2.0)
    plain = replace(tried, explore_usd=0.0)
    entries = [explored(tried, cost_usd=6.0), explored(plain, cost_usd=99.0), explored(tried, cost_usd=1.0)]
    assert past.explored_usd(entries) == pytest.approx(3.0)


def test_a_night_tries_what_may_be_cheaper_while_dollars_are_left_for_that():
    rented = PARAMS.model_copy(
        update={"plan": PlanParams(machines=("n2-*", "g2-*", "a2-*"), spot=False, explore_usd=30.0)}
    )
    kept = rented.model_copy(update={"plan": rented.plan.model_copy(update={"explore_usd": 0.0})})
    job = profile(step_s=1e-2)
    best, tried = (plan(night(), DATASET, job, None, told) for told in (kept, rented))
    assert best.explore_usd == 0
    assert 0 < tried.explore_usd <= 30
    assert tried.machine != best.machine
    assert tried.expected_usd - tried.explore_usd == pytest.approx(best.expected_usd)
    assert f"{best.machine} is the best that is known, but this may save $" in tried.runner_up

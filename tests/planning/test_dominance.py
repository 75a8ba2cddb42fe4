"""Numbers of machines are left out only where another number is better in every way."""

from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.sections import PlanParams
from daybreak.machines.catalog import local, rented
from daybreak.planning.candidates import TrainingTask, candidates, line_of
from daybreak.planning.search import Candidate, PlanLimits, relax, search
from daybreak.prediction.calibration import CostCalibration, PastUpdateTime
from daybreak.prediction.efficiency import Efficiency
from daybreak.prediction.update_time import by_profile, update
from tests.planning.jobs import DATASET, machine, profile

CATALOG = [m for m in rented() if m.region == "us-central1" and m.usd_per_hour and not m.is_tpu]
CONFIDENCE = 0.95
MOST = 40  # machines, more than pay for most of these jobs


@st.composite
def jobs(draw):
    """A job, and a machine in two regions to run it on, which may have run two nights."""
    measured = profile(
        step_s=10 ** draw(st.floats(-5, -1)),
        load_s=10 ** draw(st.floats(-7, -3)),
        sample_bytes=10 ** draw(st.floats(4, 9)),
    )
    on = draw(st.sampled_from(CATALOG))
    machines = [on, replace(on, region="elsewhere", usd_per_hour=2 * on.usd_per_hour, spot_usd_per_hour=0.5)]
    here = local(measured, today=date(2011, 9, 1))
    known = None
    if draw(st.booleans()):
        timed = [
            update(
                measured, on, measured=here, num_machines=count, batch_size=256, num_workers=on.num_workers
            )
            for count in (1, 2)
        ]
        known = CostCalibration(
            past=[
                PastUpdateTime(
                    machine=on.name,
                    device=on.device,
                    measured_here=False,
                    setting=each.setting,
                    update=by_profile(measured, on, measured=here),
                    ratio=draw(st.floats(0.5, 2)),
                )
                for each in timed
                if each
            ]
        )
    job = TrainingTask(
        profile=measured,
        at_hand=here,
        dataset=DATASET,
        batch_size=256,
        num_workers=1,
        known=known,
        efficiency=Efficiency(noise_scale=1000),
    )
    return job, machines, draw(st.integers(1000, 10**7))


def ways(job, machines, num_samples, *, dominated) -> list[Candidate]:
    params = PlanParams(
        machines=("*",),
        max_machines=MOST,
        confidence=CONFIDENCE,
        spot=True,
        flex_wait_hours=1,
        batch_sizes=(256, 600),
    )
    return list(
        candidates(job, machines, params, available=machines, num_samples=num_samples, dominated=dominated)
    )


def criteria(candidate: Candidate) -> tuple[float, float, float]:
    return candidate.expected_usd, candidate.expected_s, candidate.time_s(CONFIDENCE)


def near(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other == pytest.approx(one, rel=1e-12))


@pytest.mark.slow
@given(jobs(), st.floats(-1, 1.5), st.floats(-2, 3), st.sampled_from(["cost", "time", "knee"]))
def test_what_is_left_out_is_never_the_best_nor_the_least_that_helps(case, hours, dollars, objective):
    every, some = (ways(*case, dominated=each) for each in (True, False))
    limits = PlanLimits(deadline_s=3600 * 10**hours, budget_usd=10**dollars, confidence=CONFIDENCE)
    result, expected = (search(each, limits=limits, objective=objective) for each in (some, every))
    assert (result is None) == (expected is None)
    if result and expected:
        assert near(result.best.expected_usd, expected.best.expected_usd)
        assert near(result.best.expected_s, expected.best.expected_s)
    elif every:
        one, other = relax(some, limits=limits), relax(every, limits=limits)
        assert near(one.deadline_s, other.deadline_s)
        assert near(one.budget_usd, other.budget_usd)


@pytest.mark.slow
@given(jobs())
def test_of_each_line_what_is_left_out_is_beaten_in_every_way_by_one_that_stays(case):
    every, some = (ways(*case, dominated=each) for each in (True, False))
    stays = {(line_of(each), each.rental.num_machines) for each in some}
    lines: dict = {}
    for each in some:
        lines.setdefault(line_of(each), []).append(criteria(each))
    for each in every:
        if (line_of(each), each.rental.num_machines) not in stays:
            mine = criteria(each)
            assert any(
                all(one <= other * (1 + 1e-12) for one, other in zip(better, mine, strict=True))
                for better in lines[line_of(each)]
            )


def small_job() -> TrainingTask:
    """A job of seconds, most of whose time is the start, which several machines only make longer."""
    measured = profile(step_s=1e-6)
    return TrainingTask(
        profile=measured,
        at_hand=local(measured, today=date(2011, 9, 1)),
        dataset=DATASET,
        batch_size=256,
        num_workers=1,
        efficiency=Efficiency(noise_scale=1000),
    )


def test_more_machines_than_pay_are_left_out():
    kept = ways(small_job(), [machine()], 1000, dominated=False)
    assert {each.rental.num_machines for each in kept} == {1}
    assert {each.estimate.batch_size for each in kept} == {256, 600}
    every = ways(small_job(), [machine()], 1000, dominated=True)
    assert {each.rental.num_machines for each in every} == set(range(1, 1 + MOST))


@pytest.mark.slow
@given(jobs())
def test_spot_and_on_demand_keep_the_same_numbers(case):
    """So that spot that stays away is continued on as many machines on demand."""
    by_strategy: dict = {}
    for each in ways(*case, dominated=False):
        key = (each.rental.strategy, each.rental.region, each.estimate.batch_size)
        by_strategy.setdefault(key, set()).add(each.rental.num_machines)
    for (_, region, size), counts in by_strategy.items():
        assert counts == by_strategy["on-demand", region, size]

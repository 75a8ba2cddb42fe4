"""Unlike machines are joined where no machines alike are in time for less."""

import random
from dataclasses import replace
from datetime import date
from itertools import combinations

import pytest

from daybreak.contract.errors import PlanError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Pool, Rental
from daybreak.contract.record_types import Plan
from daybreak.contract.records import dumps, loads
from daybreak.contract.sections import Params, PlanParams, TrainParams
from daybreak.extensions.unlike.unlike import _counts, _may_meet, cheaper, divided, joined
from daybreak.machines import catalog
from daybreak.machines.catalog import rented
from daybreak.planning.candidates import TrainingTask
from daybreak.planning.planner import plan
from daybreak.planning.search import Candidate, PlanChoice, PlanLimits
from daybreak.prediction.calibration import CostCalibration, PastUpdateTime, Update
from daybreak.prediction.efficiency import Efficiency
from daybreak.prediction.measurements import StepSetting
from tests.planning.jobs import DATASET, machine, night, profile, with_speeds

FAST = machine(
    name="fast",
    region="",
    backend="",
    usd_per_hour=3.0,
    spot=False,
    count=1,
    joins=True,
    flops_per_s=6e11,
    bandwidth_bytes_per_s=6e10,
    network_bytes_per_s=1e10,
    prices=(),
    vcpus=12,
)
SLOW = with_speeds(FAST, name="slow", usd_per_hour=1.0, flops_per_s=3e11, bandwidth_bytes_per_s=3e10, vcpus=6)
JOB = profile(step_s=1e-2)
PARAMS = PlanParams(max_machines=4, confidence=0.5)
TRAINING = TrainParams(epochs=1, batch_size=256)
NUM_SAMPLES = 1_000_000


def planned(*machines: Machine, hours: float, training: TrainParams = TRAINING) -> Plan:
    plugs = dict.fromkeys(("source", "workload", "backend"), "some.module:Class")
    names = tuple(each.name for each in machines)
    regions = tuple(sorted({each.region for each in machines if each.region})) or PARAMS.regions
    planning = PARAMS.model_copy(update={"machines": names, "regions": regions})
    sections = Params(**plugs, plan=planning, train=training)
    return plan(night(hours=hours), DATASET, JOB, None, sections, available=machines, listed=rented())


def hours_of(*machines: Machine) -> float:
    """The shortest night with a plan, to a tenth of an hour."""
    for tenth in range(1, 200):
        try:
            planned(*machines, hours=tenth / 10)
        except PlanError:
            continue
        return tenth / 10
    raise AssertionError("no night is long enough")


def test_two_machines_that_are_late_by_themselves_are_in_time_together():
    alone = min(hours_of(FAST), hours_of(SLOW))
    together = hours_of(FAST, SLOW)
    assert together < 0.8 * alone
    joined = planned(FAST, SLOW, hours=together)
    assert joined.rental == Rental(machine="fast", num_machines=2, others=(Pool(machine="slow"),))
    assert joined.usd_per_hour == 2.0
    forecast = joined.forecast
    usd = 2 * 2.0 * forecast.expected_s / 3600
    assert forecast.expected_usd == pytest.approx(usd, rel=0.02)  # less the queue
    assert not joined.fallbacks or all(not placement.rental.others for placement in joined.fallbacks)
    assert loads(Plan, dumps(joined)) == joined


def test_together_they_are_no_faster_than_both_speeds_added():
    both = planned(FAST, SLOW, hours=hours_of(FAST, SLOW)).forecast
    alone = [planned(each, hours=18).forecast.expected_s for each in (FAST, SLOW)]
    assert 1 / sum(1 / each for each in alone) < both.expected_s < min(alone)


def test_unlike_machines_are_not_joined_where_one_is_in_time_for_less():
    hours = hours_of(FAST)
    assert planned(FAST, replace(SLOW, usd_per_hour=2.0), hours=hours).rental == Rental(machine="fast")
    assert planned(FAST, SLOW, hours=hours).rental.others  # the cheap one does its share for less


def test_unlike_machines_are_joined_where_machines_alike_would_cost_more():
    cloud = replace(FAST, name="rented", backend="vertex", usd_per_hour=20.0, count=4)
    own = [replace(each, backend="slurm") for each in (FAST, SLOW)]
    hours = hours_of(FAST, SLOW)
    assert planned(cloud, hours=hours).rental.num_machines > 1
    joined = planned(*own, cloud, hours=hours)
    assert joined.rental.others
    assert joined.rental.backend == "slurm"


@pytest.mark.parametrize(
    "machines",
    [
        (replace(FAST, joins=False), SLOW),  # its backend takes machines of one kind
        (FAST, replace(SLOW, backend="other")),
        (replace(FAST, region="us-central1"), replace(SLOW, region="europe-west4")),
        (FAST, replace(FAST, name="slow")),  # the same node in another partition
    ],
)
def test_machines_that_cannot_be_joined_are_not(machines):
    together = hours_of(FAST, SLOW)
    with pytest.raises(PlanError):
        planned(*machines, hours=together)


def test_equal_shares_join_no_unlike_machines():
    with pytest.raises(PlanError):
        planned(
            FAST, SLOW, hours=hours_of(FAST, SLOW), training=TRAINING.model_copy(update={"batching": "even"})
        )


def test_a_class_of_one_worker_joins_no_machines(monkeypatch):
    hours = hours_of(FAST, SLOW)
    monkeypatch.setattr("tests.extensions.unlike.test_unlike.JOB", replace(JOB, wants_one_worker=True))
    with pytest.raises(PlanError):
        planned(FAST, SLOW, hours=hours)


def by_brute_force(job: TrainingTask, machines: list[Machine], limits: PlanLimits) -> list[Candidate]:
    """All unlike machines that keep the limits, without a bound."""
    ways = [
        (kinds, counts)
        for kinds in combinations(machines, 2)
        if _may_meet(job, *kinds)
        for counts in _counts(*kinds, most=4)
    ]
    every = (
        joined(job, *way, found.shares, batch_size=job.batch_size, num_samples=NUM_SAMPLES)
        for way in ways
        for found in divided(job, [way], batch_size=job.batch_size)
        if found
    )
    return [each for each in every if each and limits.hold(each)]


def drawn(seed: int) -> tuple[TrainingTask, list[Machine], PlanLimits]:
    """A job, some machines whose speeds, memories and prices differ, and limits that some of them keep."""
    chance = random.Random(seed)
    sample_bytes, batch_size = 10 ** chance.uniform(3, 8), chance.choice([24, 96, 250, 1000])
    job = profile(
        step_s=10 ** chance.uniform(-3, -1), load_s=10 ** chance.uniform(-6, -2), sample_bytes=sample_bytes
    )
    machines = []
    for number in range(chance.randint(2, 6)):
        devices, speed = chance.choice([0, 0, 1, 4]), 10 ** chance.uniform(-0.5, 1.5)
        memory = round(4e8 + sample_bytes * 10 ** chance.uniform(0, 3))
        machines.append(
            with_speeds(
                FAST,
                name=f"m{number}",
                device=f"d{number}",
                num_devices=devices,
                count=0,
                vcpus=chance.choice([4, 12, 48]),
                flops_per_s=2e11 * speed,
                bandwidth_bytes_per_s=2e10 * speed,
                device_memory_bytes=memory,
                usd_per_hour=speed * chance.uniform(0.5, 2),
                network_bytes_per_s=10 ** chance.uniform(8, 11),
            )
        )
    nights = [
        PastUpdateTime(
            machine=ran.name,
            device=ran.device,
            measured_here=False,
            ratio=10 ** chance.uniform(-0.3, 0.3),
            update=Update(fixed_s=0.01, per_sample_s=1e-3, within_s=0.01, across_s=0.01),
            setting=StepSetting(workers=(ran.num_workers,), micro_batch_size=batch_size / ran.num_workers),
        )
        for ran in chance.choices(machines, k=chance.choice([0, 0, 3]))
    ]
    at_hand = replace(catalog.local(job, today=date(2011, 9, 1)), dated=DATASET.last_day)
    found = TrainingTask(
        profile=job,
        at_hand=at_hand,
        dataset=DATASET,
        batch_size=batch_size,
        num_workers=1,
        efficiency=Efficiency(noise_scale=1000),
        known=CostCalibration(past=nights),
    )
    hours = 10 ** chance.uniform(-0.5, 1.5)
    return found, machines, PlanLimits(deadline_s=3600 * hours, budget_usd=1e6, confidence=0.9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_bounds_leave_out_nothing_that_keeps_the_limits_for_less(seed):
    job, machines, limits = drawn(seed)
    params = PARAMS.model_copy(update={"max_machines": 4})
    every = by_brute_force(job, machines, limits)
    every.sort(key=lambda each: each.expected_usd)
    for than in (None, *every[len(every) // 4 :: max(1, len(every) // 2)]):
        weighed = cheaper(
            job,
            machines,
            params,
            available=machines,
            num_samples=NUM_SAMPLES,
            limits=limits,
            than=PlanChoice(best=than, ranked=(than,), runner_up="") if than else None,
        )
        less = {
            str(each.rental): each.expected_usd
            for each in every
            if than is None or each.expected_usd < than.expected_usd
        }
        assert {str(each.rental): each.expected_usd for each in weighed} == pytest.approx(less, rel=1e-9)

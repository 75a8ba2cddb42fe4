"""Unlike machines are joined where no machines alike are in time for less."""

from dataclasses import replace

import pytest

from pipeline.contract.errors import PlanError
from pipeline.contract.machine import Machine
from pipeline.contract.params import Params, PlanParams, TrainParams
from pipeline.contract.records import Plan, Pool, Rental, dumps, loads
from pipeline.machines.catalog import rented
from pipeline.planning.planner import plan
from tests.planning.jobs import DATASET, machine, night, profile

FAST = replace(
    machine(),
    name="fast", region="", backend="", usd_per_hour=3.0, spot=False, count=1, joins=True,
    flops_per_s=6e11, bandwidth_bytes_per_s=6e10, network_bytes_per_s=1e10, prices=(), vcpus=12,
)  # fmt: skip
SLOW = replace(FAST, name="slow", usd_per_hour=1.0, flops_per_s=3e11, bandwidth_bytes_per_s=3e10, vcpus=6)
JOB = profile(step_s=1e-2)
PARAMS = PlanParams(max_machines=4, confidence=0.5)
TRAINING = TrainParams(epochs=1, batch_size=256)


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
    assert joined.expected_usd == pytest.approx(
        2 * 2.0 * joined.expected_s / 3600, rel=0.02
    )  # less the queue
    assert not joined.ladder or all(not rung.rental.others for rung in joined.ladder)
    assert loads(Plan, dumps(joined)) == joined


def test_together_they_are_no_faster_than_both_speeds_added():
    both = planned(FAST, SLOW, hours=hours_of(FAST, SLOW))
    alone = [planned(each, hours=18).expected_s for each in (FAST, SLOW)]
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

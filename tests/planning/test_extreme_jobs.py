"""Extreme jobs, the plan of each or its refusal, and why that is sensible.

Prices are those of the catalog, so a row may change with them: look whether its reason still holds.
"""

from dataclasses import replace

import pytest

from daybreak.contract.errors import PlanError
from daybreak.contract.sections import PlanParams, TrainParams
from tests.planning.jobs import DATASET, line, profile
from tests.planning.test_planner import planned


def may(*machines: str, **changes: object) -> dict[str, object]:
    return {"params": PlanParams(machines=machines or ("local", "*-*"), **changes)}


def trained(
    num_samples: int = 1_000_000, *, batch_size: int = 256, num_workers: int = 1
) -> dict[str, object]:
    return {
        "dataset": replace(DATASET, num_samples=num_samples, num_bytes=num_samples * 1000),
        "training": TrainParams(epochs=1, batch_size=batch_size, num_workers=num_workers),
    }


MONTH = {"job": profile(step_s=2.5)}  # of work on the machine at hand
LARGE = MONTH | trained(batch_size=4096)
A2 = ("a2-highgpu-1g",)
HOURS_2, MINUTES_9 = {"job": profile(step_s=7e-3)}, {"job": profile(step_s=5e-4)}

TABLE = [
    ("one sample", trained(1), "local", "it is done here before a machine could start"),
    ("one sample, the fastest", trained(1) | may(objective="time"), "local", "no machine starts sooner"),
    ("no budget", {"budget_usd": 0}, "local", "the machine at hand is free and in time"),
    (
        "eighty minutes of work in thirty",
        {"hours": 0.5, "job": profile(step_s=5e-3)},
        "a2-highgpu-1g, spot, in us-central1",
        "only a rented device is in time, and one is enough",
    ),
    ("a minute", {"hours": 1 / 60}, "refused: night.train_hours 0.283", "a minute is less than any start"),
    (
        "a month of work in a night",
        MONTH,
        "a2-megagpu-16g, spot, in us-central1",
        "sixteen devices that share one start cost least",
    ),
    (
        "a month, never preempted",
        MONTH | may(spot=False),
        "a2-megagpu-16g, in us-central1",
        "the same machine, at its price on demand",
    ),
    (
        "a month for a dollar",
        MONTH | {"budget_usd": 1},
        "refused: night.budget_usd 8.40",
        "the least budget is what the plan of the month costs",
    ),
    (
        "a month, the fastest of eight",
        LARGE | may(objective="time", max_machines=8),
        "3 x g4-standard-192, spot, in us-central1",
        "seven minutes sooner for $28 more are within the error of a job that never ran there",
    ),
    (
        "the same, an hour worth $1,000",
        LARGE | may(objective="time", max_machines=8, usd_per_hour_saved=1000),
        "2 x a3-ultragpu-8g, spot, in us-central1",
        "the third saves seconds at $5,424 an hour",
    ),
    (
        "the same, an hour worth $2",
        LARGE | may(objective="time", max_machines=8, usd_per_hour_saved=2),
        "3 x g4-standard-192, spot, in us-central1",
        "minutes sooner would cost $254 an hour",
    ),
    (
        "the same at the knee",
        LARGE | may(objective="knee", max_machines=8),
        "2 x g4-standard-384, spot, in us-central1",
        "a fifth less time for a fourteenth more",
    ),
    (
        "two hours here, at the knee",
        HOURS_2 | may(objective="knee"),
        "n1-standard-4-t4-1, spot, in us-central1",
        "three cents make it sixteen times faster",
    ),
    (
        "nine minutes here, at the knee",
        MINUTES_9 | may(objective="knee"),
        "local",
        "no machine is as much faster as it is dearer than a cent",
    ),
    (
        "70 GB a sample",
        {"job": profile(step_s=1e-2, sample_bytes=7e10)} | trained(10_000, batch_size=8),
        "c3-standard-22, spot, in us-central1",
        "the cheapest memory that holds it belongs to a CPU",
    ),
    (
        "1 TB a sample",
        {"job": profile(sample_bytes=1e12)},
        "refused: one sample needs 1000.30 GB",
        "memory is the cause",
    ),
    (
        "gradients of 1 TB",
        {"job": replace(profile(), sync_bytes=line(1e12, 0), memory_bytes=line(2.0003e12, 0))},
        "refused: one sample needs 2000.30 GB on a device and the most that plan.machines has is 680.32 GB "
        "(c3-standard-176, less 10%); train a model of at most 0.34 times the size, 85,027,",
        "weights are as large as gradients, and no machine has room for both",
    ),
    (
        "gradients of 20 GB on an L4",
        {"job": replace(profile(), sync_bytes=line(2e10, 0), memory_bytes=line(4.03e10, 0))} | may("g2-*"),
        "refused: one sample needs 40.30 GB on a device and the most that plan.machines has is 21.60 GB "
        "(g2-standard-4, less 10%); name g4-standard-48 in plan.machines, which has 86.40 GB, or train a "
        "model of at most 0.54 times the size, 2,679,",
        "weights and gradients are 40 GB",
    ),
    (
        "two samples in a batch of 256 for eight workers",
        trained(2) | may("a2-highgpu-8g"),
        "refused: the 2 samples to train on are fewer than the 8 workers of a2-highgpu-8g",
        "the batch is never full",
    ),
    ("a trillion samples", trained(10**12), "refused: held-out samples", "their number is the cause"),
    (
        "a batch of one for 32 machines",
        {"job": profile(step_s=1e-2)} | trained(100_000, batch_size=1) | may("*-*", max_machines=32),
        "c3-standard-4, spot, in us-central1",
        "one sample cannot be shared by several",
    ),
    (
        "a batch of two for four workers",
        trained(batch_size=2, num_workers=4) | may("local"),
        "refused: a batch of 2 samples (train.batch_size) is smaller than the 4 workers",
        "the batch is the cause",
    ),
    (
        "a queue that leaves no time",
        may(*A2, spot=False, flex_wait_hours=2) | HOURS_2 | {"hours": 2.2},
        "a2-highgpu-1g, in us-central1",
        "the longest wait leaves too little time",
    ),
]


@pytest.mark.parametrize(
    ("job", "expected", "reason"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_an_extreme_job_is_planned_with_sense(job, expected, reason):
    refused = expected.removeprefix("refused: ")
    if refused == expected:
        assert str(planned(**job).rental) == expected, reason
        return
    with pytest.raises(PlanError) as refusal:
        planned(**job)
    assert refused in str(refusal.value), reason

"""Plans that the planner makes for the nights of cloud.py, on three machines in three regions.

Machine b is 1.8 times as fast as a, and c three times; each costs a little more in the next region. Eight
earlier nights on each have told how fast they are, so the plan is as sure of them as nights are alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from daybreak.contract import params
from daybreak.contract.machine import Machine
from daybreak.contract.record_types import Night, Plan
from daybreak.contract.sections import Params
from daybreak.planning.planner import plan
from daybreak.prediction.calibration import CostCalibration, PastUpdateTime, Update
from daybreak.prediction.measurements import StepSetting
from tests.planning import jobs
from tests.training import nights

HOME, NEXT, FAR = REGIONS = ("us-central1", "us-east4", "europe-west4")
DEARER = dict(zip(REGIONS, (1.0, 1.1, 1.2), strict=True))
SPEEDS = {"a": 1.0, "b": 1.8, "c": 3.0}
PRICES = {"a": 3.0, "b": 7.0, "c": 14.0}
SPOT, FLEX = 1 / 3, 2 / 3  # of the price on demand
NUM_SAMPLES, BATCH_SIZE = 240 * 32, 32
# None of it runs, but the launcher reads its files at each look: those of one in tests/ are all of tests/.
WORKLOAD = "daybreak.examples.shop.regression:Regression"


def make_params(*, strategy: str, machines: str = "abc", regions: tuple[str, ...] = REGIONS) -> Params:
    """What the user says of a night that is to be planned that way."""
    given: dict[str, Any] = {
        "source": "tests.fakes:TwoDays",
        "workload": {"use": WORKLOAD},
        "backend": "tests.fakes:ScriptedBackend",
        "plan": {
            "machines": list(machines),
            "regions": list(regions),
            "max_machines": 1,
            "explore_usd": 0,
            "spot": strategy == "spot",
            "flex_wait_hours": 1 if strategy == "flex-start" else 0,
        },
        "train": {
            "num_workers": 1,
            "rate": 0.01,
            "batch_size": BATCH_SIZE,
            "epochs": NUM_SAMPLES / nights.dataset().num_samples,
        },
    }
    return params.check(given)


def planned(
    night: Night,
    given: Params,
    *,
    share: float,
    available: Sequence[Machine] = (),
    taught: CostCalibration | None = None,
) -> Plan:
    """The plan of the night, where machine a takes `share` of the time until training has to end."""
    whole_s = share * (night.train_until - night.started_at).total_seconds()
    job = replace(jobs.profile(step_s=(whole_s - 240) / NUM_SAMPLES), noise_scale=BATCH_SIZE)
    return plan(
        night, nights.dataset(), job, None, given, available=available or rented(), known=taught or known()
    )


@cache
def rented() -> tuple[Machine, ...]:
    """The catalog."""
    plain = jobs.machine()
    return tuple(
        jobs.with_speeds(
            plain,
            name=name,
            machine_type=name,
            device=name.upper(),
            region=region,
            spot=True,
            flex=True,
            flops_per_s=SPEEDS[name] * plain.speeds.flops_per_s,
            bandwidth_bytes_per_s=SPEEDS[name] * plain.speeds.bandwidth_bytes_per_s,
            usd_per_hour=PRICES[name] * DEARER[region],
            spot_usd_per_hour=SPOT * PRICES[name] * DEARER[region],
            flex_usd_per_hour=FLEX * PRICES[name] * DEARER[region],
        )
        for name, region in product(PRICES, REGIONS)
    )


def known(machines: Iterable[str] = tuple(PRICES)) -> CostCalibration:
    """What earlier nights on each machine taught: that they are as fast as the catalog says."""
    setting = StepSetting(workers=(1,), micro_batch_size=BATCH_SIZE, num_passes=1)
    return CostCalibration(
        past=[
            PastUpdateTime(
                machine=name,
                device=name.upper(),
                measured_here=False,
                setting=setting,
                update=Update(fixed_s=0.01, per_sample_s=1e-3, within_s=0.01, across_s=0.01),
                ratio=1.0,
            )
            for name in machines
            for _ in range(8)
        ]
    )

"""Nights in a row explore machines, counts and batches within their cap, and end with what is cheapest."""

import math
import re
import subprocess
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.contract import records
from daybreak.contract.record_types import Evaluation, Plan, Training
from daybreak.contract.sections import Params, PlanParams, TrainParams
from daybreak.machines.catalog import local, rented
from daybreak.planning.plan_stage import plan
from daybreak.prediction.update_time import update
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.fakes import ScriptedBackend
from tests.planning.jobs import DATASET, STARTED, night, profile

PROFILE = profile(step_s=0.5)
CAP_USD = 10.0
TOLD = PlanParams(
    machines=("g2-standard-4", "g2-standard-24"),
    max_machines=4,
    batch_sizes=(128, 256, 512),
    spot=False,
    explore_usd=CAP_USD,
)
PARAMS = Params(
    **dict.fromkeys(("source", "workload", "backend"), "some.module:Class"),
    plan=TOLD,
    train=TrainParams(epochs=1, batch_size=256),
)


@dataclass(frozen=True, kw_only=True)
class World:
    """What no plan knows: how much longer an update takes, and how epochs go with the batch."""

    machine_times: float  # of g2-standard-24
    beyond: float  # what noise-scale theory lacks

    def needed(self, batch_size: int) -> float:
        """Samples over those of 256 for the same quality."""
        scale = PROFILE.noise_scale
        return (scale + batch_size) / (scale + 256) * (batch_size / 256) ** self.beyond

    def usd(self, way: Plan, num_samples: float) -> float:
        """What so many samples cost."""
        return self.seconds(way, num_samples) / 3600 * (way.usd_per_hour or 0.0) * way.rental.num_machines

    def seconds(self, way: Plan, num_samples: float) -> float:
        """What so many samples take."""
        machine = next(m for m in rented() if (m.name, m.region) == (way.rental.machine, way.rental.region))
        timed = update(
            PROFILE,
            machine,
            measured=local(PROFILE, today=night().day),
            num_machines=way.rental.num_machines,
            batch_size=way.batch_size,
            num_workers=machine.num_workers,
        )
        assert timed
        times = self.machine_times if machine.name == "g2-standard-24" else 1.0
        return num_samples / way.batch_size * timed.seconds * times

    def usd_to_quality(self, way: Plan) -> float:
        """What the quality of a night of 256 costs."""
        return self.usd(way, DATASET.num_samples * self.needed(way.batch_size))


def run(
    world: World, repository: Path, *, count: int, hours: float = 18, params: Params = PARAMS
) -> list[Plan]:
    """Plan, train and close so many nights in a row."""
    code = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()
    plans = []
    for number in range(count):
        tonight = replace(
            night(),
            id=f"night-{number}",
            started_at=STARTED + timedelta(days=number),
            code_commit=code,
            train_until=STARTED + timedelta(days=number, hours=hours),
            decide_until=STARTED + timedelta(days=number, hours=24),
            previous=branch.ledger_tip(Home.here()),
        )
        made = plan(Home.here(), tonight, DATASET, PROFILE, None, backend=ScriptedBackend(), params=params)
        seconds = world.seconds(made, made.num_samples)
        trained = Training(
            model_digest="d",
            num_samples=made.num_samples,
            num_restarts=0,
            stopped_by="finished",
            num_updates=math.ceil(made.num_samples / made.batch_size),
            elapsed_s=seconds + 3,
            start_s=300.0,
            cost_usd=world.usd(made, made.num_samples),
        )
        score = 0.3 + 0.02 * math.log(made.num_samples / DATASET.num_samples / world.needed(made.batch_size))
        evaluated = Evaluation(
            model_digest="d", data_digest="d", num_samples=9, metrics={"score": score}, slices=()
        )
        for record in (tonight, DATASET, PROFILE, made, trained, evaluated):
            records.write(record, repository / records.RUN)
        ledger.commit_night(Home.here(), tonight, message="promoted")
        plans.append(made)
    return plans


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [World(machine_times=0.8, beyond=0.0), World(machine_times=1.2, beyond=-0.6)],
    ids=["epochs as theory says", "larger batches need fewer epochs"],
)
def test_nights_explore_within_their_cap_and_end_with_what_is_cheapest(world, repository):
    plans = run(world, repository, count=8)
    explored = [made for made in plans if made.explore_usd > 0]
    assert explored
    assert all(f"trying costs ${made.explore_usd:.2f}" in made.reasons.runner_up for made in explored)
    assert all(made.forecast.chance >= TOLD.confidence for made in plans)
    assert all(made.forecast.expected_usd <= night().budget_usd for made in plans)
    assert sum(made.explore_usd for made in plans) <= CAP_USD
    assert plans[-1].explore_usd == 0
    costs = [world.usd_to_quality(made) for made in plans]
    assert costs[-1] <= 1.02 * min(costs)
    assert costs[-1] < 0.95 * costs[0]


@pytest.mark.slow
def test_nights_try_what_the_forecast_is_not_sure_is_in_time_and_keep_it(repository):
    """In 5.2 hours the first forecast is sure of ten fast machines only, at three times the dollars."""
    world = World(machine_times=1.0, beyond=0.0)
    params = PARAMS.model_copy(update={"plan": TOLD.model_copy(update={"max_machines": 10})})
    plans = run(world, repository, count=6, hours=5.2, params=params)
    tried = [made for made in plans if made.forecast.chance < TOLD.confidence]
    assert tried
    for made in tried:
        assert made.explore_usd < 0
        takes_over = r"if it turns out to be late, (\d+ x )?g2-standard-24 takes over in time"
        assert re.search(takes_over, made.reasons.runner_up)
        assert any(placement.rental.machine == "g2-standard-24" for placement in made.fallbacks)
    costs = [world.usd_to_quality(made) for made in plans]
    assert costs[-1] == min(costs) < 0.4 * costs[0]

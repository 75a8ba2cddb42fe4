"""Nights that try a machine that may be late: the launcher saves the night, and forecasts learn the speed."""

import pytest

from daybreak.contract.record_types import Training
from tests.jobs import plans
from tests.jobs.cloud import Cloud, Luck, night_of, play

pytestmark = pytest.mark.usefixtures("folder_in_memory")
LEFT_USD = 50.0


def tried(factors: dict[str, float]) -> Cloud:
    """A night that tries machine a, which is in time with a chance of 87 %, where 99 % are asked for."""
    given = plans.make_params(strategy="on-demand")
    given = given.model_copy(update={"plan": given.plan.model_copy(update={"explore_usd": LEFT_USD})})
    plan = plans.planned(night_of(budget_usd=100), given, share=0.63)
    assert plan.rental.machine == "a"
    assert plan.forecast.chance < given.plan.confidence
    assert "b is the best that is known, but tonight explores: a may save" in plan.reasons.runner_up
    assert "if it turns out to be late, b takes over in time" in plan.reasons.runner_up
    return play(plan, Luck(factors=factors), budget_usd=100)


@pytest.mark.slow
@pytest.mark.parametrize("speed", [1.0, 0.8, 0.6, 0.4])
def test_a_night_that_tries_what_may_be_late_is_done_in_time_and_teaches_its_speed(speed):
    cloud = tried({"a": speed})
    training = cloud.decision
    assert isinstance(training, Training)
    assert (training.stopped_by, training.num_samples) == ("finished", plans.NUM_SAMPLES)
    assert (len(cloud.jobs) > 1) == (speed < 0.8)  # then a alone takes more than the four hours
    whole_s, num_updates = training.elapsed_s, training.num_updates
    if len(cloud.jobs) > 1:
        assert cloud.fallbacks_taken[0] == "scale up"
        assert training.before_restart
        whole_s, num_updates = training.before_restart
    planned_s = (cloud.plan.forecast.expected_s - 240) / (plans.NUM_SAMPLES / plans.BATCH_SIZE)
    assert whole_s / num_updates == pytest.approx(planned_s / speed, rel=0.2)


@pytest.mark.slow
def test_a_night_is_saved_by_a_machine_that_is_slower_than_planned_too():
    cloud = tried({"a": 0.6, "b": 0.85, "c": 0.9})
    assert isinstance(cloud.decision, Training)
    assert (cloud.decision.stopped_by, cloud.decision.num_samples) == ("finished", plans.NUM_SAMPLES)

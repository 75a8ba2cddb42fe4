"""A job stays on spot while another loss could be borne, and then machines are bought."""

from dataclasses import replace

import pytest

from daybreak.contract.errors import NotYet
from daybreak.contract.record_parts import Placement, Rental, Taken
from daybreak.jobs.submissions import JobAttempts
from tests.fakes import ScriptedBackend
from tests.jobs.calls import NIGHT, call, job_folder
from tests.training import nights

pytestmark = pytest.mark.usefixtures("folder")


def on_spot():
    """A plan of spot, with the same machine on demand to fall back on."""
    bought = Placement(
        rental=Rental(machine="local"), expected_s=7200, expected_usd=9, latest_start=NIGHT.train_until
    )
    spot = Rental(machine="local", strategy="spot")
    plan = nights.plan()
    forecast = replace(plan.forecast, expected_s=7200, expected_usd=3)
    return replace(plan, rental=spot, forecast=forecast, fallbacks=(bought,))


def test_a_job_on_spot_that_was_lost_asks_for_spot_again_while_time_allows():
    backend = ScriptedBackend("preempted")
    for _ in range(3):
        with pytest.raises(NotYet):
            call(backend, plan=on_spot())
    assert [job.rental.strategy for job in backend.jobs] == ["spot", "spot", "spot"]
    assert len({job.name for job in backend.jobs}) == 1


def test_a_job_on_spot_that_was_lost_late_is_bought():
    backend = ScriptedBackend("preempted")
    late = nights.night(seconds=7200 + 900)
    for _ in range(2):
        with pytest.raises(NotYet):
            call(backend, plan=on_spot(), night=late)
    assert [job.rental.strategy for job in backend.jobs] == ["on-demand", "on-demand"]
    assert backend.jobs[0].name.endswith("-local-1-on-demand")
    assert backend.jobs[0].folder == backend.jobs[1].folder


def test_a_job_stays_in_the_queue_for_spot_while_time_allows():
    backend = ScriptedBackend("queued")
    for _ in range(3):
        with pytest.raises(NotYet, match="queued"):
            call(backend, plan=on_spot())
    assert not backend.cancelled
    assert len(backend.jobs) == 1


def test_a_job_leaves_the_queue_for_spot_when_it_must_and_once_only():
    """Another loss could still be borne when it goes to spot, and waiting not any more after five minutes."""
    backend = ScriptedBackend("queued")
    night = nights.night(seconds=7200 / (0.8 * 0.98) + 1950)
    for at_s in (0, 300):
        with pytest.raises(NotYet):
            call(backend, plan=on_spot(), night=night, at_s=at_s)
    assert backend.cancelled == [backend.jobs[0].folder]
    assert [job.rental.strategy for job in backend.jobs] == ["spot", "on-demand"]
    with pytest.raises(NotYet, match="queued"):
        call(backend, plan=on_spot(), night=night, at_s=310)
    assert len(backend.jobs) == 2


def test_a_job_that_runs_on_spot_is_left_in_steps_and_only_then_bought():
    """Another loss could still be borne when it goes to spot, and not after 25 minutes."""
    backend = ScriptedBackend("running")
    backend.slow_to_end = True
    night = nights.night(seconds=7200 / (0.8 * 0.98) + 2000)
    for at_s in (0, 120):
        with pytest.raises(NotYet):
            call(backend, plan=on_spot(), night=night, at_s=at_s)
    assert [job.rental.strategy for job in backend.jobs] == ["spot"]
    with pytest.raises(NotYet, match="was cancelled, and has not ended yet"):
        call(backend, plan=on_spot(), night=night, at_s=1500)
    assert len(backend.jobs) == 1
    with pytest.raises(NotYet, match="queued"):
        call(backend, plan=on_spot(), night=night, at_s=1620)
    assert [job.rental.strategy for job in backend.jobs] == ["spot", "on-demand"]
    (taken,) = JobAttempts(job_folder()).taken
    assert (taken.name, taken.usd) == ("on-demand", 6.0)
    with pytest.raises(NotYet, match="starting"):
        call(backend, plan=on_spot(), night=night, at_s=1740)
    assert len(backend.cancelled) == 1


def test_fallbacks_that_one_look_takes_are_in_order_whatever_the_clock_says(tmp_path):
    def taken(name, *, minute):
        return Taken(name=name, time=NIGHT.started_at.replace(minute=minute), reason="", usd=0)

    attempts = JobAttempts(tmp_path)
    attempts.ask(0, job="j", placement=on_spot().fallbacks[0])
    attempts.take(taken("checkpoint", minute=9))
    attempts.change(leaving=True, taken=taken("scale up", minute=5))
    attempts.ask(5, job="k", placement=on_spot().fallbacks[0])
    attempts.take(taken("next fallback", minute=5))  # refused at once, in the same look
    assert [each.name for each in JobAttempts(tmp_path).taken] == ["checkpoint", "scale up", "next fallback"]

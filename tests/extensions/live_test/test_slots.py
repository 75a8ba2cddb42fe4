"""Challengers of nights that overlap have a slot of the users each."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from daybreak.contract.errors import NotYet
from daybreak.extensions.live_test import own_serving, slots
from daybreak.extensions.live_test.guardrails import check
from daybreak.extensions.live_test.observations import observe
from daybreak.extensions.live_test.readout import Readout
from daybreak.extensions.router.assigner import assignment
from daybreak.extensions.router.kill_switch import KillSwitch
from daybreak.statistics.assignment import place, slot_of
from daybreak.statistics.result import Conclusion, Status
from daybreak.storage.traffic_log import Log, open_log
from daybreak.storage.traffic_row import SlotTest, Traffic, holdback_name
from tests.extensions.router.moves import pass_time
from tests.statistics.streams import Model, exposures, users

OLD = SlotTest(challenger=3, experiment="2025-01-11", share=0.5, slot=1)
NEW = SlotTest(challenger=4, experiment="2025-01-12", share=0.5, slot=0)
BOTH = Traffic(champion=2, num_slots=2).with_tests((OLD, NEW))
EPOCH = datetime.fromtimestamp(0, UTC)


@pytest.fixture
def log(tmp_path: Any) -> Log:
    """A log of its own."""
    return open_log(f"sqlite:///{tmp_path / 'serving.db'}")


def joined(traffic: Traffic, num_slots: int) -> Traffic:
    return slots.joined(traffic, challenger=9, experiment="2025-01-13", num_slots=num_slots)


def test_a_challenger_takes_a_free_slot_and_waits_where_there_is_none() -> None:
    nine = SlotTest(challenger=9, experiment="2025-01-13", slot=0)
    assert joined(Traffic(champion=2), 3) == Traffic(champion=2, num_slots=3).with_tests((nine,))
    assert joined(BOTH.of(OLD.experiment), 2).tests == (OLD, nine)
    with pytest.raises(NotYet, match="experiment 2025-01-11 and experiment 2025-01-12 are on"):
        joined(BOTH, 2)


def test_users_of_a_test_that_is_on_do_not_move_where_params_ask_for_more_slots() -> None:
    left = BOTH.of(OLD.experiment)
    assert joined(left, 4).num_slots == 2
    with pytest.raises(NotYet, match="are on; watch ends one that no night wants"):
        joined(BOTH, 4)


def test_nobody_is_held_back_while_a_challenger_is_tested() -> None:
    held = Traffic(champion=2, challenger=1, share=0.1, experiment=holdback_name(1))
    assert [test.challenger for test in joined(held, 2).tests] == [9]


def test_a_challenger_keeps_its_hours_where_another_is_moved(log: Log) -> None:
    log.traffic.set(BOTH)
    pass_time(log, 3600)
    moved = log.traffic.change(lambda now: now.with_share(NEW.experiment, 0.9))
    hours = [
        (log.now() - slots.held_since(log, moved.of(test.experiment), since=EPOCH)) / 3600
        for test in (OLD, NEW)
    ]
    assert hours == [pytest.approx(1, abs=0.1), pytest.approx(0, abs=0.1)]


@pytest.mark.parametrize(("lost", "status"), [(0.0, Status.OPEN), (0.3, Status.MISMATCH)])
def test_users_whom_a_slot_loses_in_both_arms_alike_are_missed(log: Log, lost: float, status: Status) -> None:
    """Both arms of the test itself still fit."""
    traffic, rng = log.traffic.set(BOTH), np.random.default_rng(0)
    for test in (OLD, NEW):
        units = [unit for unit in users(0, 8000) if slot_of(unit, 2) == test.slot]
        units = [unit for unit in units if test is NEW or rng.random() >= lost]
        shown = exposures(rng, units, share=test.share, experiment=test.experiment, start=log.now() + 1)
        log.exposures.write(list(shown), [])
    found = slots.users_by_slot(log, traffic.of(OLD.experiment), since=EPOCH, ramp=0.5, own=False)
    assert found.status is status, found.sentence


def test_a_challenger_that_drives_users_away_voids_no_test_beside_it(log: Log) -> None:
    traffic, rng = log.traffic.set(BOTH), np.random.default_rng(0)
    for test in (OLD, NEW):
        units = [unit for unit in users(0, 4000) if slot_of(unit, 2) == test.slot]
        units = [unit for unit in units if test is NEW or place(unit, test.experiment) >= 0.25]
        shown = exposures(rng, units, share=test.share, experiment=test.experiment, start=log.now() + 1)
        log.exposures.write(list(shown), [])
    found = slots.users_by_slot(log, traffic.of(NEW.experiment), since=EPOCH, ramp=0.25, own=False)
    assert found.status is Status.OPEN, found.sentence


@pytest.mark.parametrize("tests", [(OLD,), (OLD, NEW)])
def test_a_team_that_serves_by_itself_may_report_users_of_tests_alone(
    log: Log, tests: tuple[SlotTest, ...]
) -> None:
    traffic, rng = log.traffic.set(BOTH.with_tests((OLD,))), np.random.default_rng(0)
    if NEW in tests:  # that is opened later
        traffic = log.traffic.set(traffic.with_tests(tests))
    for test in tests:
        units = [unit for unit in users(0, 4000) if slot_of(unit, 2) == test.slot]
        shown = exposures(rng, units, share=test.share, experiment=test.experiment, start=log.now() + 1)
        log.exposures.write(list(shown), [])

    def status(*, own: bool) -> Status:
        ours = traffic.of(OLD.experiment)
        return slots.users_by_slot(log, ours, since=EPOCH, ramp=0.5, own=own).status

    both = len(tests) == 2
    assert status(own=True) is (Status.OPEN if both else Status.NO_DATA)
    assert status(own=False) is (Status.OPEN if both else Status.MISMATCH)


def test_nothing_is_believed_of_a_test_whose_slot_loses_users() -> None:
    fine = Conclusion(status=Status.OPEN, sentence="as drawn")
    found = Readout(result=fine, arms=fine, checks=(check("arms as drawn", fine),), num_ours=1, num_theirs=1)
    assert (found.among(fine).is_trusted, found.among(fine).broken) == (True, ())
    lost = found.among(Conclusion(status=Status.MISMATCH, sentence="90 of 100 are missing"))
    assert (lost.is_trusted, lost.broken) == (False, ("users by test: 90 of 100 are missing",))


def test_a_version_of_another_slot_was_not_as_drawn() -> None:
    units = users(0, 200)
    drawn = [assignment(unit, BOTH).version for unit in units]
    right = list(own_serving.exposures_of(rows(units, drawn), moves=[BOTH]))
    for test in (OLD, NEW):
        theirs = [one for one in right if one.experiment == test.experiment]
        assert {(one.version, one.share) for one in theirs} == {(2, 0.5), (test.challenger, 0.5)}
        assert observe(theirs, window_s=60).impossible == 0
    swapped = [{3: 4, 4: 3}.get(version, version) for version in drawn]
    wrong = list(own_serving.exposures_of(rows(units, swapped), moves=[BOTH]))
    theirs = [one for one in wrong if one.experiment == OLD.experiment]
    assert observe(theirs, window_s=60).impossible == swapped.count(3) > 0


def rows(units: list[str], versions: list[int]) -> list[dict[str, Any]]:
    """Rows of a team's own serving, an hour after the traffic was moved."""
    common = {"time": 3600.0, "latency_s": 0.01, "error": "", "attributes": ()}
    return [
        {**common, "id": unit, "unit": unit, "version": version}
        for unit, version in zip(units, versions, strict=True)
    ]


def test_the_kill_switch_stops_the_challenger_that_fails_and_not_the_one_beside_it() -> None:
    rng, switch = np.random.default_rng(1), KillSwitch(max_errors=0.01, max_rise_s=0.1)
    models = {OLD: Model(errors=0.5), NEW: Model()}
    shown = [
        one
        for test, model in models.items()
        for one in exposures(
            rng, users(0, 600), share=0.5, start=0, experiment=test.experiment, challenger=model, apart_s=0.1
        )
    ]
    stopped = {one.experiment for one in sorted(shown, key=lambda one: one.time) if switch.why_stop(one)}
    assert stopped == {OLD.experiment}


def test_answers_of_a_test_that_is_over_are_forgotten() -> None:
    rng, switch = np.random.default_rng(1), KillSwitch(max_errors=0.01, max_rise_s=0.1)
    (answer,) = exposures(rng, users(0, 1), share=0.5, start=0)
    for day in range(3):
        switch.why_stop(replace(answer, experiment=str(day), time=day * 86400.0))
    assert list(switch._latest) == ["2"]

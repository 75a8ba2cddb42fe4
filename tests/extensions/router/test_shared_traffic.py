"""Challengers that are tested at once share no user, and no user moves where a test begins or ends."""

from dataclasses import replace

import pytest

from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Release
from daybreak.extensions.router.assigner import assignment
from daybreak.extensions.router.routers import Routers
from daybreak.statistics.assignment import CHALLENGER, CHAMPION, slot_of
from daybreak.storage.home import Home
from daybreak.storage.live_servers import RouterState
from daybreak.storage.traffic_log import Log
from daybreak.storage.traffic_row import SlotTest, Traffic
from tests.extensions.router.running import Running, until

UNITS = [f"{number:016x}" for number in range(2000)]
OLD = SlotTest(challenger=3, experiment="2025-01-11", share=0.5, slot=1)
NEW = SlotTest(challenger=4, experiment="2025-01-12", share=0.2, slot=0)
BOTH = Traffic(champion=2, num_slots=2).with_tests((OLD, NEW))


def met(traffic: Traffic) -> list[int]:
    """The version that each unit meets."""
    return [assignment(unit, traffic).version for unit in UNITS]


def test_a_row_with_several_tests_is_read_as_it_was_written(log: Log) -> None:
    moved = log.traffic.set(BOTH)
    assert log.traffic.read() == moved
    assert (moved.tests, moved.wanted) == ((OLD, NEW), (2, 3, 4))
    assert log.traffic.moves()[-1] == moved
    log.traffic.stop(OLD.experiment, "it fails")
    left = log.traffic.read()
    assert (left.tests, left.challenger, left.slot, left.beside) == ((NEW,), 4, 0, ())
    assert [log.traffic.why_stopped(test.experiment) for test in (OLD, NEW)] == ["it fails", ""]


@pytest.mark.parametrize("slot", [1, 2, -1])
def test_two_tests_of_a_slot_or_one_of_none_are_refused(log: Log, slot: int) -> None:
    with pytest.raises(ReleaseError, match="of 2; give each one of its own"):
        log.traffic.set(BOTH.with_tests((OLD, replace(NEW, slot=slot))))
    assert log.traffic.read().tests == ()


def test_each_challenger_is_met_in_its_slot_alone_and_as_often_as_its_share_says() -> None:
    shares = {3: 0.5 / 2, 4: 0.2 / 2}
    for version, test in ((3, OLD), (4, NEW)):
        theirs = [unit for unit, one in zip(UNITS, met(BOTH), strict=True) if one == version]
        assert {slot_of(unit, 2) for unit in theirs} == {test.slot}
        assert abs(len(theirs) / len(UNITS) - shares[version]) < 0.03
        drawn = assignment(theirs[0], BOTH)
        assert (drawn.arm, drawn.experiment, drawn.share) == (CHALLENGER, test.experiment, test.share)
    quiet = Traffic(champion=2, num_slots=2).with_tests((OLD,))
    untested = next(unit for unit in UNITS if slot_of(unit, 2) == 0)
    drawn = assignment(untested, quiet)
    assert (drawn.arm, drawn.version, drawn.experiment, drawn.share) == (CHAMPION, 2, "", 0.0)


def test_users_of_a_test_stay_where_another_begins_climbs_or_ends() -> None:
    alone = met(BOTH.of(OLD.experiment))
    for others in ((NEW,), (replace(NEW, share=0.9),)):
        beside = met(BOTH.with_tests((OLD, *others)))
        moved = {after for before, after in zip(alone, beside, strict=True) if before != after}
        assert moved == {4}
        assert [one == 3 for one in beside] == [one == 3 for one in alone]
    assert met(BOTH.without(OLD.experiment)) == [one if one != 3 else 2 for one in met(BOTH)]
    climbed = met(BOTH.with_share(OLD.experiment, 0.8))
    assert all(after == 3 for before, after in zip(met(BOTH), climbed, strict=True) if before == 3)


def test_another_champion_ends_all_tests(log: Log) -> None:
    log.traffic.set(BOTH)
    target = Routers(Home.here(), log)
    target.show(Release(version=2, replaced=1))
    assert log.traffic.read().tests == (OLD, NEW)
    log.servers.beat(RouterState(id="one", champion=4))
    target.show(Release(version=4, replaced=2))
    assert (log.traffic.read().champion, log.traffic.read().tests) == (4, ())


@pytest.mark.slow
def test_a_router_shows_each_user_the_version_of_its_slot_and_stops_one_test_alone(router: Running) -> None:
    # Other modules share the router's log: the experiments are of this test alone.
    old = replace(OLD, challenger=1, experiment="a test in slot 1")
    new = replace(NEW, challenger=3, share=0.5, experiment="a test in slot 0")
    moved = router.log.traffic.change(
        lambda now: replace(now, champion=2, num_slots=2).with_tests((old, new))
    )
    until(lambda: router.log.servers.routers()[0].revision >= moved.revision)
    users = [f"u{number}" for number in range(100, 180)]
    drawn = [assignment(router.log.unit_of(user), moved) for user in users]
    assert [router.recommend(user)["version"] for user in users] == [one.version for one in drawn]
    assert {one.version for one in drawn} == {1, 2, 3}
    health = router.get("health").json()
    assert (health["challenger"], health["experiment"]) == (1, old.experiment)
    assert health["beside"] == [{"challenger": 3, "share": 0.5, "experiment": new.experiment}]
    num_shown = sum(one.experiment != "" for one in drawn)
    until(lambda: sum(len([*router.log.exposures.of(test.experiment)]) for test in (old, new)) >= num_shown)
    for test in (old, new):
        shown = [*router.log.exposures.of(test.experiment)]
        assert {one.version for one in shown} == {2, test.challenger}
        assert {(slot_of(one.unit, 2), one.share) for one in shown} == {(test.slot, test.share)}
    router.manager.stop(old.experiment, "it fails")
    until(lambda: router.log.traffic.read().tests == (new,))
    assert router.log.traffic.why_stopped(old.experiment) == "it fails"
    left = [one.version if one.version != 1 else 2 for one in drawn]
    assert [router.recommend(user)["version"] for user in users] == left

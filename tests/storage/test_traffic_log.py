"""The log on SQLite, and on a real PostgreSQL where one is installed."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from daybreak.contract.clock import boot
from daybreak.contract.errors import JobError, ReleaseError
from daybreak.contract.units import DAY_S, HOUR_S
from daybreak.storage.exposures import Exposure, Outcome, attributes_of
from daybreak.storage.live_servers import ALIVE_S, RouterState
from daybreak.storage.traffic_log import Log, open_log
from daybreak.storage.traffic_row import Traffic
from tests.contract.test_clock import Machine
from tests.postgres import postgresql


def exposure(number: int, *, experiment: str = "a", time: float = 0.0) -> Exposure:
    return Exposure(
        id=f"{number:032x}",
        time=time or float(number),
        experiment=experiment,
        unit="9f3c",
        arm="champion",
        version=3,
        share=0.1,
        propensity=0.9,
        items=("22423", "85123A"),
        latency_s=0.002,
    )


def test_what_is_written_is_read_again_oldest_first(log: Log) -> None:
    written = [exposure(2), exposure(1), exposure(3, experiment="b")]
    written[0] = replace(written[0], error="no answer", fallback=True)
    log.exposures.write(written, [])
    assert list(log.exposures.of("a")) == [written[1], written[0]]
    assert list(log.exposures.of("a", since=2.0)) == [written[0]]
    assert list(log.exposures.of("c")) == []


def test_what_clients_say_of_a_user_is_kept_beside_the_exposure_and_goes_with_it(log: Log) -> None:
    said = attributes_of({"device": "phone", "signed in": True, "visits": 3, "country": None})
    assert said == (("device", "phone"), ("signed in", "true"), ("visits", "3"))
    log.exposures.write([replace(exposure(1), attributes=said), exposure(2)], [])
    assert [one.attributes for one in log.exposures.of("a")] == [said, ()]
    assert log.exposures.erase("9f3c") == 2
    with sa.create_engine(log.url).connect() as connection:
        assert connection.execute(sa.text("select count(*) from attributes")).scalar_one() == 0


@pytest.mark.parametrize(
    "wrong", [["phone"], {"a": []}, {"a": "x" * 61}, {"": 1}, {str(n): 1 for n in range(11)}]
)
def test_attributes_of_another_form_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="give a"):
        attributes_of(wrong)


def test_an_outcome_told_again_changes_nothing(log: Log) -> None:
    log.exposures.add(exposure(1))
    assert log.exposures.add_outcome(exposure(1).id, ["22423"])
    assert log.exposures.add_outcome(exposure(1).id, ["another"])
    [logged] = log.exposures.of("a")
    assert logged.taken == ("22423",)


def test_nothing_taken_is_an_outcome_too(log: Log) -> None:
    log.exposures.write([exposure(1), exposure(2)], [Outcome(exposure=exposure(1).id, items=(), time=2.0)])
    assert [logged.taken for logged in log.exposures.of("a")] == [(), None]


def test_an_outcome_of_no_exposure_is_not_kept(log: Log) -> None:
    known = log.exposures.write(
        [exposure(1)],
        [Outcome(exposure="x", items=(), time=2.0), Outcome(exposure=exposure(1).id, items=(), time=2.0)],
    )
    assert known == [False, True]


def test_a_unit_is_a_hash_that_is_kept_and_that_another_log_does_not_share(log: Log, tmp_path: Path) -> None:
    again, other = open_log(str(log.url)), open_log(f"sqlite:///{tmp_path / 'other.db'}")
    assert log.unit_of("17850") == again.unit_of("17850") != other.unit_of("17850")
    assert log.unit_of("17850") != log.unit_of("17851")
    assert "17850" not in log.unit_of("17850")
    again.close()
    other.close()


def test_the_traffic_moves_only_from_where_it_was_seen(log: Log) -> None:
    assert log.traffic.read() == Traffic()
    first = log.traffic.set(Traffic(champion=3, challenger=4, share=0.05, experiment="2026-11-20"))
    assert log.traffic.read() == first
    assert (first.revision, first.wanted) == (1, (3, 4))
    log.traffic.set(replace(first, share=0.25))
    with pytest.raises(ReleaseError, match="is at revision 2, not at 1"):
        log.traffic.set(replace(first, share=0.5))
    assert log.traffic.read().share == 0.25


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 1.5},
        {"share": -0.1},
        {"share": float("nan")},
        {"challenger": 4},
        {"challenger": 3, "experiment": "a"},
    ],
)
def test_traffic_that_no_router_can_do_is_refused(log: Log, wrong: dict[str, float]) -> None:
    with pytest.raises(ReleaseError):
        log.traffic.set(Traffic(champion=3, **wrong))
    assert log.traffic.read().revision == 0


def test_of_many_who_move_the_traffic_at_once_all_are_heard(log: Log) -> None:
    def add() -> None:
        for _ in range(5):
            log.traffic.change(lambda now: replace(now, champion=now.champion + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (log.traffic.read().champion, log.traffic.read().revision) == (20, 20)


def test_routers_live_as_long_as_they_are_heard_of(log: Log) -> None:
    log.servers.beat(RouterState(id="one", champion=3, loaded=(3, 4)))
    log.servers.beat(RouterState(id="two", fault="version 4: no"))
    log.servers.beat(RouterState(id="one", champion=4, loaded=(4,)))
    assert [(state.id, state.champion, state.loaded) for state in log.servers.routers()] == [
        ("one", 4, (4,)),
        ("two", 0, ()),
    ]
    assert log.servers.routers(within_s=0) == ()
    log.servers.leave("one")
    assert [state.fault for state in log.servers.routers()] == ["version 4: no"]


def is_seen_with_a_clock_that_is_off(log: Log, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether routers whose own clocks are hours off are seen as long as they are heard of."""
    real = time.time
    for off_s in (-3600.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda off_s=off_s: real() + off_s)
        log.servers.beat(RouterState(id=f"clock {off_s:+g}"))
        log.servers.leave("nobody")
    monkeypatch.setattr(time, "time", real)
    seen = log.servers.routers()
    assert all(abs(router.seen_at - real()) < 60 for router in seen)
    for router in seen:
        log.servers.leave(router.id)
    return [router.id for router in seen] == ["clock +3600", "clock -3600"]


@pytest.mark.parametrize("set_by_s", [-6 * HOUR_S, 6 * HOUR_S])
@pytest.mark.parametrize("experiment", ["2026-11-20", ""])
def test_a_clock_that_is_set_moves_the_time_of_no_experiment_and_no_router_dies_of_it(
    tmp_path: Path, set_by_s: float, experiment: str
) -> None:
    if not boot():
        pytest.skip("no name of a boot here")
    machine = Machine()
    router, gate = (Log(f"sqlite:///{tmp_path / 'log.db'}", machine.clock()) for _ in range(2))
    challenger = 4 if experiment else 0
    moved = router.traffic.set(Traffic(champion=3, challenger=challenger, share=0.1, experiment=experiment))
    router.servers.beat(RouterState(id="lives"))
    machine.passes(60)
    router.servers.beat(RouterState(id="lives"))
    router.servers.beat(RouterState(id="lives no more"))
    machine.wall_s += set_by_s
    machine.passes(ALIVE_S - 1)
    watch = Log(f"sqlite:///{tmp_path / 'log.db'}", machine.clock())
    assert [one.id for one in watch.servers.routers()] == ["lives", "lives no more"]
    router.servers.beat(RouterState(id="lives"))
    machine.passes(2)
    assert [one.id for one in watch.servers.routers()] == ["lives"]
    expected = moved.changed_at + 60 + ALIVE_S + 1 + (0 if experiment else set_by_s)
    assert [router.now(), watch.now()] == [pytest.approx(expected)] * 2
    assert gate.now() == pytest.approx(moved.changed_at + 60 + ALIVE_S + 1)  # a short process goes on evenly
    for each in (router, gate, watch):
        each.close()


def test_routers_are_judged_by_the_clock_of_the_log(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_seen_with_a_clock_that_is_off(log, monkeypatch)


def test_old_exposures_are_removed_with_their_outcomes(log: Log) -> None:
    outcomes = [Outcome(exposure=exposure(n).id, items=(), time=4.0) for n in (1, 3)]
    log.exposures.write([exposure(n) for n in (1, 2, 3)], outcomes)
    assert log.exposures.forget(before=2.5) == 2
    assert [logged.taken for logged in log.exposures.of("a")] == [()]
    with sa.create_engine(log.url).connect() as connection:
        assert connection.execute(sa.text("select count(*) from outcomes")).scalar_one() == 1


def test_moves_and_stops_of_more_than_a_year_ago_go_and_the_traffic_as_it_stood_then_stays(log: Log) -> None:
    for champion in (1, 2, 3):
        log.traffic.set(replace(log.traffic.read(), champion=champion))
    log.traffic.stop("old", "too many errors")
    with sa.create_engine(log.url).begin() as connection:
        for days, revision in ((900, 1), (800, 2)):  # the third was just now
            at = {"at": log.now() - days * DAY_S, "revision": revision}
            connection.execute(sa.text("update moves set changed_at = :at where revision = :revision"), at)
        connection.execute(sa.text("update stops set time = 0"))
    log.traffic.stop("new", "too slow")
    since = log.now() - 365 * DAY_S
    stood = log.traffic.moves(since=since)
    log.forget(before=log.now())
    assert [moved.champion for moved in stood] == [2, 3]
    assert log.traffic.moves(since=since) == log.traffic.moves() == stood
    assert (log.traffic.why_stopped("old"), log.traffic.why_stopped("new")) == ("", "too slow")


def test_a_database_that_is_away_is_told_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="does not answer") as refusal:
        open_log("postgresql+psycopg2://me:secret@127.0.0.1:1/serving")
    assert "secret" not in str(refusal.value)
    (tmp_path / "file").write_text("this is no database, but long enough to be seen as one" * 100)
    with pytest.raises(JobError, match="not a database"):
        open_log(f"sqlite:///{tmp_path / 'file'}")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """URL of an empty PostgreSQL."""
    with postgresql("serving") as folder:
        yield f"postgresql+psycopg2://airflow@/serving?host={folder}"


@pytest.mark.slow
def test_postgresql_does_all_of_it(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Log] = []
    threads = [threading.Thread(target=lambda: opened.append(open_log(postgres))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({log.unit_of("17850") for log in opened}) == 1
    log = opened[0]
    written = [exposure(n) for n in range(1, 4)]
    assert log.exposures.write(
        written, [Outcome(exposure=written[1].id, items=("22423",), time=3.0)] * 2
    ) == [
        True,
        True,
    ]
    assert [one.taken for one in log.exposures.of("a")] == [None, ("22423",), None]
    assert log.exposures.known([written[1].id, written[2].id, "x"]) == {
        written[1].id: True,
        written[2].id: False,
    }
    first = log.traffic.set(replace(log.traffic.read(), champion=3))
    with pytest.raises(ReleaseError, match="revision 1, not at 0"):
        opened[1].traffic.set(Traffic(champion=4))
    assert opened[2].traffic.read() == first
    assert [moved.champion for moved in opened[3].traffic.moves()] == [0, 3]
    assert opened[3].traffic.moves(since=first.changed_at) == (first,)
    log.servers.beat(RouterState(id="one", champion=3, loaded=(3,)))
    log.servers.beat(RouterState(id="one", champion=3, loaded=(3, 4)))
    assert [one.loaded for one in opened[3].servers.routers()] == [(3, 4)]
    log.servers.leave("one")
    assert is_seen_with_a_clock_that_is_off(log, monkeypatch)
    assert log.exposures.forget(before=2.5) == 2
    for each in opened:
        each.close()


def test_a_log_with_tables_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    open_log(f"sqlite:///{tmp_path / 'serving.db'}").close()
    with closing(sqlite3.connect(tmp_path / "serving.db")) as old:
        old.execute("ALTER TABLE traffic DROP COLUMN slot")
    with pytest.raises(JobError, match=r"is of another version of Daybreak: .*slot; move its tables away"):
        open_log(f"sqlite:///{tmp_path / 'serving.db'}")

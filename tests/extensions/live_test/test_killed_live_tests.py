"""Two challengers on the ramp while the ramp, a promotion or a rollback is killed: neither test is lost."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import records
from daybreak.contract.errors import NothingToDo, NotYet
from daybreak.contract.record_types import Night
from daybreak.contract.sections import Params
from daybreak.report import publisher
from daybreak.rollout import rollback, saga
from daybreak.rollout.targets import release_targets
from daybreak.storage import ledger, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, open_log
from daybreak.storage.traffic_row import Traffic, TrafficRow
from tests.extensions.live_test.test_live_test import TWO, begin, come, come_to_all, waits
from tests.rollout.test_killed_saga import Killed, killing
from tests.statistics.streams import Model
from tests.toy.nights import halfway
from tests.toy.stages import close_night, gate_night, promote_night, serving

pytestmark = pytest.mark.slow
BACK = "the champion is worse"


@pytest.fixture
def log(home: Path) -> Iterator[Log]:
    """The log of serving that the home has."""
    opened = open_log(f"sqlite:///{home / 'var' / 'serving.db'}")
    yield opened
    opened.close()


@pytest.fixture
def nights(home_of_two: Path, log: Log) -> list[Night]:
    """Two nights whose challengers are versions 3 and 4, before users meet them; version 2 serves."""
    (home_of_two / "params.yaml").write_text(TWO)
    come(log, 400)
    return [begin(home_of_two, number, text=TWO) for number in (2, 3)]


@pytest.fixture
def two_nights(home: Path, log: Log, nights: list[Night]) -> list[Night]:
    """Both nights, with 5 % of the users of a slot each; the second is the current folder."""
    for night in nights:
        enter(home, night)
        waits()
    assert on(log) == {night.id: (slot + 3, 0.05, slot) for slot, night in enumerate(nights)}
    return nights


def on(log: Log) -> dict[str, tuple[int, float, int]]:
    """Challenger, share and slot of each test that is on."""
    return {one.experiment: (one.challenger, one.share, one.slot) for one in log.traffic.read().tests}


def enter(home: Path, night: Night) -> None:
    """Goes into the folder of a night, of whose live test half of the hours are over."""
    os.chdir(home / "nights" / night.id)
    halfway()


def recover() -> None:
    """What the hourly watch does first."""
    with mlflow_client.session(Home.here()) as client:
        saga.recover(Home.here(), release_targets(Home.here(), client, "daybreak"))


def test_a_ramp_that_is_killed_at_any_write_moves_its_own_test_alone(
    home: Path, log: Log, nights: list[Night], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = set[str]()

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        """Dies after the first write of each file of a night, and of each traffic."""

        def written(*given: Any, **named: Any) -> Any:
            done = write(*given, **named)
            what = str(done.tests) if isinstance(done, Traffic) else f"{Path.cwd()}: {given[0]}"
            if what not in killed:
                killed.add(what)
                raise Killed
            return done

        return written

    monkeypatch.setattr(TrafficRow, "set", dying(TrafficRow.set))
    monkeypatch.setattr(records, "replace_text", dying(records.replace_text))
    for share in (0.05, 0.5):
        for slot, night in enumerate(nights):
            enter(home, night)
            wanted = on(log) | {night.id: (slot + 3, share, slot)}
            beside = {name: test for name, test in wanted.items() if name != night.id}
            for _ in range(20):
                with contextlib.suppress(Killed, NotYet):
                    gate_night()
                assert {name: test for name, test in on(log).items() if name != night.id} == beside
                if on(log) == wanted:
                    break
            assert on(log) == wanted
        come_to_all(log, 4000, {night.id: Model() for night in nights})
    for night in nights:
        shares = [test.share for moved in log.traffic.moves() for test in moved.of(night.id).tests]
        assert shares == sorted(shares)
        assert set(shares) == {0.0, 0.05, 0.5}
        assert sum(f"/{night.id}: " in what for what in killed) >= 2, killed
    assert sum(what.startswith("(") for what in killed) == 6, killed


@pytest.mark.promise
def test_a_promotion_that_is_killed_at_any_step_beside_another_test_is_all_old_or_all_new(
    home: Path, log: Log, two_nights: list[Night]
) -> None:
    first, second = two_nights
    verdict = None
    while verdict is None:
        come_to_all(log, 3000, {night.id: Model(hit=0.9) for night in two_nights})
        with contextlib.suppress(NotYet):
            verdict = gate_night()
    assert (verdict.action, verdict.challenger) == ("promote", 4)
    beside = {first.id: (3, 0.05, 0)}
    assert on(log) == beside
    new = []
    for at in range(1, 40, 3):  # of a saga; benchmarks/bench_saga.py takes every one
        with killing(at) as killer, contextlib.suppress(Killed):
            promote_night()
        ended = len(killer.steps) < at
        recover()
        new.append(serving()[0] == 4)
        assert serving() == ((4, 4) if new[-1] else (2, 2)), killer.steps
        assert log.traffic.read().champion == serving()[0], killer.steps
        assert log.traffic.read().ready == 0, killer.steps
        assert on(log) == ({} if new[-1] else beside), killer.steps
        if ended:
            break
    assert new == sorted(new)
    assert set(new) == {False, True}
    close_night()
    enter(home, first)
    assert gate_night().reason == "live: version 4 serves by now, not 2"
    close_night()
    closed = {entry.night.id: entry.release for entry in ledger.history(Home.here(), 2)}
    assert {night: release is not None for night, release in closed.items()} == {
        second.id: True,
        first.id: False,
    }


@pytest.mark.promise
def test_a_rollback_that_is_killed_at_any_step_beside_two_tests_goes_back_once_and_ends_both(
    home: Path, log: Log, settings: Params, two_nights: list[Night]
) -> None:
    both, num_entries = on(log), len(ledger.history(Home.here()))
    come_to_all(log, 400, {night.id: Model() for night in two_nights})
    num_exposures = len(list(log.exposures.of(None)))
    os.chdir(home)
    old = 0
    for at in range(1, 40, 3):
        with killing(at) as killer, contextlib.suppress(Killed):
            rollback.rollback(Home.here(), settings.register_, to=1, reason=BACK, hold_days=0)
        recover()
        if serving() == (2, 2):
            assert on(log) == both, killer.steps
            old += 1
            continue
        assert serving() == (1, 1), killer.steps
        assert (log.traffic.read().champion, on(log)) == (1, {}), killer.steps
        with contextlib.suppress(NothingToDo):  # asked for again, as after a kill of which nobody knows
            rollback.rollback(Home.here(), settings.register_, to=1, reason=BACK, hold_days=0)
        break
    assert old >= 2
    publisher.publish_home(Home.here())
    entries = ledger.history(Home.here())
    assert [entry.rollback for entry in entries] == [True] + [False] * num_entries
    for night in two_nights:
        enter(home, night)
        assert gate_night().reason == "live: version 1 serves by now, not 2"
        close_night()
    verdicts = {entry.night.id: entry.verdict for entry in ledger.history(Home.here(), 2)}
    for night in two_nights:
        verdict = verdicts[night.id]
        assert verdict
        assert verdict.reason.startswith(f"night {night.id} was overtaken by a rollback, by which version 1")
    assert len(list(log.exposures.of(None))) == num_exposures

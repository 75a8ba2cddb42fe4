"""A release as one saga: a real ledger, and targets that only remember; fast, so every branch is here."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.contract import clock
from daybreak.contract.errors import DataError, NotYet, ReleaseError
from daybreak.contract.record_types import Release
from daybreak.contract.units import HOUR_S
from daybreak.rollout import saga
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.rollout.ledgers import close, make_home, promotion, release_of, rolling_back


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


class Memory:
    """Target that remembers what it was asked, and how the ledger and the journal stood."""

    def __init__(self, name: str = "memory", *, before: Callable[[str], None] = lambda what: None) -> None:
        self.name = name
        self.before = before  # called with what it is asked, before it does that
        self.serving = 0
        self.ready: list[int] = []
        self.calls: list[tuple[str, int, int]] = []  # what, of which version, and who the ledger says serves

    def _asked(self, what: str, release: Release) -> None:
        champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
        self.calls.append((what, release.version, champion.version if champion else 0))
        self.before(what)

    def prepare(self, release: Release) -> None:
        self._asked("prepare", release)
        self.ready.append(release.version)

    def show(self, release: Release) -> None:
        self._asked("show", release)
        self.serving = release.version

    def shown(self) -> int:
        return self.serving

    def discard(self, release: Release) -> None:
        self._asked("discard", release)
        self.ready = [number for number in self.ready if number != release.version]


def failing(at: str, error: BaseException, *, times: int = 1) -> Memory:
    """A target that fails the first times that it is asked for something."""
    left = [times]

    def fail(what: str) -> None:
        if what == at and left[0]:
            left[0] -= 1
            raise error

    return Memory("failing", before=fail)


def serving() -> int:
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    return champion.version if champion else 0


def test_a_release_is_in_the_ledger_and_shown_by_all() -> None:
    targets = [Memory("one"), Memory("two")]
    commit = saga.run(Home.here(), promotion(1), targets)
    assert commit == branch.ledger_tip(Home.here())
    assert (serving(), *(one.shown() for one in targets)) == (1, 1, 1)


def test_all_get_ready_before_the_ledger_moves_and_show_after_it() -> None:
    targets = [Memory("one"), Memory("two")]
    saga.run(Home.here(), promotion(1), targets)
    for target in targets:
        assert target.calls == [("prepare", 1, 0), ("show", 1, 1)]


def test_the_journal_says_what_is_going_on_until_all_is_done() -> None:
    seen = []
    target = Memory(before=lambda what: seen.append((what, Home.here().release_journal.read())))
    move = promotion(1)
    saga.run(Home.here(), move, [target])
    assert [what for what, _ in seen] == ["prepare", "show"]
    for _, document in seen:
        assert (document["kind"], document["tip"], document["until"]) == ("promote", move.tip, "")
        assert document["release"]["version"] == 1
    assert not Home.here().release_journal.path.exists()


def test_a_target_that_cannot_get_ready_leaves_all_as_it_was() -> None:
    fine, broken = Memory(), failing("prepare", ReleaseError("no room"))
    with pytest.raises(ReleaseError, match="no room"):
        saga.run(Home.here(), promotion(1), [fine, broken])
    assert (serving(), fine.shown(), fine.ready) == (0, 0, [])
    assert broken.calls[-1][0] == "discard"
    assert not Home.here().release_journal.path.exists()


def test_a_night_that_lost_the_race_leaves_all_as_it_was() -> None:
    late = promotion(2)
    target = Memory()
    saga.run(Home.here(), promotion(1), [target])
    with pytest.raises(ReleaseError, match="was overtaken by night"):
        saga.run(Home.here(), late, [target])
    assert (serving(), target.shown(), target.ready) == (1, 1, [1])
    assert not Home.here().release_journal.path.exists()


def test_a_target_that_needs_longer_leaves_the_journal_with_the_time_until_which_it_may() -> None:
    fine, slow = Memory(), failing("prepare", NotYet("it starts"))
    began = datetime.now(UTC)
    with pytest.raises(NotYet):
        saga.run(Home.here(), promotion(1), [fine, slow])
    until = datetime.fromisoformat(Home.here().release_journal.read()["until"])
    assert began + saga.PREPARE_LIMIT <= until <= datetime.now(UTC) + saga.PREPARE_LIMIT
    assert timedelta(hours=2) == saga.PREPARE_LIMIT
    assert (serving(), fine.ready) == (0, [1])


def test_the_same_release_asked_for_again_goes_on_and_keeps_its_time() -> None:
    slow = failing("prepare", NotYet("it starts"), times=2)
    move = promotion(1)
    with pytest.raises(NotYet):
        saga.run(Home.here(), move, [slow])
    until = Home.here().release_journal.read()["until"]
    with pytest.raises(NotYet):
        saga.run(Home.here(), move, [slow])
    assert Home.here().release_journal.read()["until"] == until
    saga.run(Home.here(), move, [slow])
    assert (serving(), slow.shown()) == (1, 1)
    assert "discard" not in [what for what, *_ in slow.calls]


def test_the_same_release_goes_on_where_a_night_closed_while_it_waited() -> None:
    slow = failing("prepare", NotYet("it starts"), times=2)
    with pytest.raises(NotYet):
        saga.run(Home.here(), promotion(2), [slow])
    tip = close(1, after="")
    with pytest.raises(Killed):
        saga.run(Home.here(), promotion(2), [failing("prepare", Killed())])
    assert Home.here().release_journal.read()["tip"] == tip
    with pytest.raises(NotYet):
        saga.run(Home.here(), promotion(2), [slow])
    saga.run(Home.here(), promotion(2), [slow])
    assert (serving(), slow.shown()) == (2, 2)
    assert "discard" not in [what for what, *_ in slow.calls]


def test_another_release_takes_the_place_of_one_that_waits() -> None:
    slow = failing("prepare", NotYet("it starts"))
    with pytest.raises(NotYet):
        saga.run(Home.here(), promotion(1), [slow])
    saga.run(Home.here(), promotion(2), [slow])
    assert (serving(), slow.shown(), slow.ready) == (2, 2, [2])
    assert ("discard", 1, 0) in slow.calls


def waiting_since(hours: float, *, clock_set_by: float = 0.0) -> None:
    """Lets the journal say that its release has waited for so long, by a clock that was set since."""
    document = Home.here().release_journal.read()
    until = datetime.now(UTC) + saga.PREPARE_LIMIT - timedelta(hours=hours + clock_set_by)
    booted_at = time.time() - clock.since_boot() - clock_set_by * HOUR_S
    Home.here().release_journal.write(document | {"until": until.isoformat(), "booted_at": booted_at})


@pytest.mark.parametrize(("later", "earlier"), [(0, 0), (6, -6)])
def test_who_is_not_ready_in_time_is_waited_for_no_longer_also_where_the_clock_is_set(
    later: int, earlier: int
) -> None:
    slow = failing("prepare", NotYet("it starts"), times=3)
    move = promotion(1)
    with pytest.raises(NotYet):
        saga.run(Home.here(), move, [slow])
    waiting_since(hours=1.9, clock_set_by=later)
    with pytest.raises(NotYet):
        saga.run(Home.here(), move, [slow])
    waiting_since(hours=2.1, clock_set_by=earlier)
    with pytest.raises(ReleaseError, match=r"failing is not ready at .* UTC: it starts; nothing was changed"):
        saga.run(Home.here(), move, [slow])
    assert slow.calls[-1][0] == "discard"
    assert not Home.here().release_journal.path.exists()


def test_nothing_is_recovered_where_nothing_was_interrupted() -> None:
    assert saga.recover(Home.here(), [Memory()]) is None


@pytest.mark.parametrize(("hours", "left"), [(1.9, True), (2.1, False)])
def test_the_watch_lets_a_release_wait_as_long_as_it_may(hours: float, left: bool) -> None:
    slow = failing("prepare", NotYet("it starts"))
    with pytest.raises(NotYet):
        saga.run(Home.here(), promotion(1), [slow])
    waiting_since(hours=hours)
    recovered = saga.recover(Home.here(), [slow])
    assert (recovered is None) is left
    assert Home.here().release_journal.path.exists() is left


@pytest.mark.parametrize("at", ["prepare", "show"])
def test_a_release_that_was_killed_is_all_old_before_the_ledger_moved_and_all_new_after_it(at: str) -> None:
    fine, killer = Memory(), failing(at, Killed())
    with pytest.raises(Killed):
        saga.run(Home.here(), promotion(1), [fine, killer])
    new = at == "show"
    assert saga.recover(Home.here(), [fine, killer]) == saga.Recovered(
        kind="promote", release=release_of(1), new=new
    )
    assert (serving(), fine.shown(), killer.shown()) == ((1, 1, 1) if new else (0, 0, 0))
    assert not Home.here().release_journal.path.exists()
    assert fine.ready == ([1] if new else [])


def test_a_release_that_waited_and_was_killed_after_the_ledger_moved_is_finished_at_once() -> None:
    slow = failing("prepare", NotYet("it starts"))
    move = promotion(1)
    with pytest.raises(NotYet):
        saga.run(Home.here(), move, [slow])
    move.commit()
    recovered = saga.recover(Home.here(), [slow])
    assert recovered is not None
    assert recovered.new
    assert slow.shown() == 1


def test_the_next_release_first_finishes_one_that_was_killed() -> None:
    killer = failing("show", Killed())
    with pytest.raises(Killed):
        saga.run(Home.here(), promotion(1), [killer])
    saga.run(Home.here(), promotion(2), [killer])
    assert [(what, number) for what, number, _ in killer.calls] == [
        ("prepare", 1),
        ("show", 1),
        ("show", 1),
        ("prepare", 2),
        ("show", 2),
    ]


def test_a_release_that_the_ledger_got_before_its_tip_is_not_taken_for_decided() -> None:
    killer = Memory()
    for number in (1, 2):
        saga.run(Home.here(), promotion(number), [killer])
    saga.run(Home.here(), rolling_back(to=1), [killer])
    again = rolling_back(to=2)
    broken = failing("prepare", Killed())
    with pytest.raises(Killed):
        saga.run(Home.here(), again, [killer, broken])
    recovered = saga.recover(Home.here(), [killer, broken])
    assert recovered is not None
    assert (recovered.kind, recovered.new, killer.shown()) == ("rollback", False, 1)


@pytest.mark.parametrize("key", ["kind", "tip", "release"])
def test_a_journal_without_a_key_is_named(key: str) -> None:
    with pytest.raises(Killed):
        saga.run(Home.here(), promotion(1), [failing("prepare", Killed())])
    document = Home.here().release_journal.read()
    Home.here().release_journal.write({name: value for name, value in document.items() if name != key})
    with pytest.raises(DataError, match=r"release\.json is not a valid journal .*remove it and run watch"):
        saga.recover(Home.here(), [Memory()])


def test_a_journal_that_is_no_json_is_named() -> None:
    Home.here().release_journal.path.parent.mkdir()
    Home.here().release_journal.path.write_text('{"kind": ')
    with pytest.raises(DataError, match="is not a valid journal"):
        saga.recover(Home.here(), [Memory()])


def test_the_journal_is_in_the_home(home: Path) -> None:
    assert Home.here().release_journal.path == home / "var" / "release.json"


def test_settling_makes_everybody_show_what_the_ledger_says() -> None:
    target, moved = Memory(), Memory()
    saga.run(Home.here(), promotion(1), [target])
    assert saga.settle(Home.here(), [target, moved]).version == 1
    assert moved.shown() == 1


def test_settling_without_a_champion_says_what_to_do() -> None:
    with pytest.raises(ReleaseError, match="names no champion; promote a version first"):
        saga.settle(Home.here(), [Memory()])


def test_a_target_that_somebody_else_moves_is_told_a_few_times_and_then_named() -> None:
    class Stubborn(Memory):
        def shown(self) -> int:
            return 7

    stubborn = Stubborn("stubborn")
    with pytest.raises(ReleaseError, match=r"stay at version 1, which .*memory shows 1, stubborn shows 7"):
        saga.run(Home.here(), promotion(1), [Memory(), stubborn])
    assert [what for what, *_ in stubborn.calls].count("show") == saga.NUM_TRIES == 5
    assert Home.here().release_journal.path.exists()  # so that the watch goes on


def test_a_night_that_closes_meanwhile_makes_everybody_show_the_newest() -> None:
    left = [2]

    def another(what: str) -> None:
        if what == "show" and left:
            promotion(left.pop()).commit()

    first, second = Memory(), Memory(before=another)
    saga.run(Home.here(), promotion(1), [first, second])
    assert (serving(), first.shown(), second.shown()) == (2, 2, 2)
    assert [number for what, number, _ in first.calls if what == "show"] == [1, 2]


def test_a_rollback_brings_back_version_and_data() -> None:
    target = Memory()
    for number in (1, 2):
        saga.run(Home.here(), promotion(number), [target])
    saga.run(Home.here(), rolling_back(to=1), [target])
    assert (serving(), target.shown()) == (1, 1)
    assert branch.text_at(Home.here(), branch.ledger_tip(Home.here()), "dvc.lock") == "data of night 1\n"


def test_a_rollback_with_the_data_of_another_night_is_noticed() -> None:
    target = Memory()
    for number in (1, 2):
        saga.run(Home.here(), promotion(number), [target])
    with pytest.raises(ReleaseError, match=r"version 1 serves again, but dvc.lock .* its night 2025-01-11"):
        saga.run(Home.here(), rolling_back(to=1, data_of=2), [target])


def test_what_the_journal_keeps_is_read_back_whole() -> None:
    with pytest.raises(Killed):
        saga.run(Home.here(), promotion(1), [failing("prepare", Killed())])
    kept = json.loads(Home.here().release_journal.path.read_text())["release"]
    assert Release(**kept) == release_of(1)

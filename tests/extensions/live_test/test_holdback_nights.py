"""Users who stay with the anchor while refreshes are promoted: a real ledger, MLflow and log."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daybreak.contract.record_types import Watch
from daybreak.contract.sections import Params
from daybreak.extensions.live_test import live_test
from daybreak.extensions.live_test.observations import observe
from daybreak.gate import watch
from daybreak.gate.chain import anchor_of
from daybreak.rollout import prune, rollback
from daybreak.statistics.assignment import CHALLENGER, arm_of
from daybreak.statistics.paired import Rules
from daybreak.storage import branch, ledger
from daybreak.storage.exposures import Outcome
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, open_log
from daybreak.storage.traffic_row import Traffic
from tests.extensions.live_test.test_live_test import held_back
from tests.extensions.router.moves import pass_time
from tests.extensions.router.running import running, until
from tests.statistics.streams import Model, exposures, users
from tests.toy.nights import make_night
from tests.toy.stages import judge_night, promote_night

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]
NAME = "holdback-1"
Promote = Callable[[], int]


@pytest.fixture
def log(home: Path) -> Log:
    """The log of serving that the home has."""
    return open_log(f"sqlite:///{home / 'var' / 'serving.db'}")


@pytest.fixture
def promoted(home: Path, log: Log) -> Promote:
    """Promote the next version, a refresh of the same chain; returns its number."""
    nights: list[int] = []

    def promote() -> int:
        number = len(nights)
        nights.append(number)
        champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
        if champion:
            made, before = ledger.promotions(Home.here(), champion.version, champion.replaced)
            assert made
            anchor = anchor_of(champion, made, day=made.night.day)
            champion = replace(champion, anchor=anchor, predecessor=before.release if before else None)
        os.chdir(make_night(home, number, weight=1.0, champion=champion))
        assert judge_night().action == "promote"
        version = promote_night().version
        os.chdir(home)
        return version

    return promote


def come(
    log: Log,
    first: int,
    number: int,
    *,
    serving: Model | None = None,
    anchor: Model | None = None,
) -> None:
    """Let users come, a minute ago, as the traffic has it; the anchor answers those who are held back."""
    traffic = log.traffic.read()
    shown = [
        replace(one, version=traffic.challenger if one.arm == CHALLENGER else traffic.champion)
        for one in exposures(
            np.random.default_rng(first),
            users(first, number),
            share=traffic.share,
            apart_s=1e-3,
            experiment=traffic.experiment,
            start=time.time() - 90,
            champion=serving,
            challenger=anchor,
        )
    ]
    log.exposures.write(
        shown, [Outcome(exposure=one.id, items=one.taken or (), time=one.time + 5) for one in shown]
    )


def looked(settings: Params, log: Log) -> Watch:
    """The hourly look, five minutes ago."""
    seen = watch.watch(Home.here(), loaded := held_back(), loaded.watch)
    pass_time(log, 300)
    return seen


def test_the_same_users_stay_with_the_anchor_over_promotions(
    home: Path, log: Log, settings: Params, promoted: Promote
) -> None:
    promoted()
    held: list[set[str]] = []
    for version in (2, 3, 4):
        assert promoted() == version
        looked(settings, log)
        now = log.traffic.read()
        assert (now.champion, now.challenger, now.share, now.experiment) == (version, 1, 0.2, NAME)
        come(log, 0, 500)
        arms = {user: arm_of(user, experiment=now.experiment, share=now.share) for user in users(0, 500)}
        held.append({user for user, arm in arms.items() if arm == CHALLENGER})
    assert held[0] == held[1] == held[2]
    seen = observe(log.exposures.of(NAME), window_s=36)
    assert (len(seen.observations), seen.impossible) == (500, 0)


def test_users_who_are_held_back_judge_by_the_margin_of_the_nights(
    home: Path, log: Log, settings: Params, promoted: Promote, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted(), promoted()
    looked(settings, log)
    come(log, 0, 100)
    margins, design_of = [], live_test.design_of

    def seen(*given: Any, rules: Rules) -> Any:
        margins.append(rules.margin)
        return design_of(*given, rules=rules)

    monkeypatch.setattr(live_test, "design_of", seen)
    looked(settings, log)
    (entry,) = ledger.history(Home.here(), limit=1)
    assert entry.verdict
    assert margins == [entry.verdict.margin]


def test_losses_that_no_promotion_shows_add_up_and_bring_the_anchor_back(
    home: Path, log: Log, settings: Params, promoted: Promote
) -> None:
    promoted()
    seen = None
    for number in range(3):
        promoted()
        assert looked(settings, log).outcome != "rolled back"
        come(log, 10_000 * number, 1500, serving=Model(hit=0.44), anchor=Model(hit=0.5))
        seen = looked(settings, log)
        if number < 2:
            assert seen.outcome == "kept", seen.reason
    assert seen
    assert (seen.outcome, seen.serving, seen.predecessor) == ("rolled back", 4, 1)
    assert seen.reason.startswith("rolled back: all that served since, against 1: score: ")
    serving = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert serving
    assert serving.version == 1
    assert (log.traffic.read().champion, log.traffic.read().experiment) == (1, "")


def test_a_harmful_promotion_is_seen_among_users_who_came_before_it(
    home: Path, log: Log, settings: Params, promoted: Promote
) -> None:
    for _ in range(2):
        promoted()
    looked(settings, log)
    come(log, 0, 2000)
    assert looked(settings, log).outcome == "kept"
    promoted()
    looked(settings, log)
    come(log, 0, 2000, serving=Model(errors=0.5))
    seen = looked(settings, log)
    assert (seen.outcome, seen.serving, seen.predecessor) == ("rolled back", 3, 1)
    assert seen.reason.startswith("rolled back: on live traffic 3 against 1: errors: ")


def test_what_was_seen_before_a_rollback_does_not_count_after_it(
    home: Path, log: Log, settings: Params, promoted: Promote
) -> None:
    for _ in range(2):
        promoted()
    looked(settings, log)
    come(log, 0, 3000, serving=Model(hit=0.2))
    assert looked(settings, log).outcome == "rolled back"
    assert promoted() == 3
    seen = looked(settings, log)
    assert seen.outcome != "rolled back"
    assert log.traffic.read().champion == 3


def test_where_the_anchor_was_just_promoted_users_stay_with_what_it_replaced(
    home: Path, log: Log, settings: Params, promoted: Promote
) -> None:
    promoted()
    assert log.traffic.read().experiment == ""
    looked(settings, log)
    assert log.traffic.read().experiment == ""  # nothing served before
    promoted()
    looked(settings, log)
    assert log.traffic.read().experiment == NAME


def test_a_holdback_of_the_release_before_ends_at_the_next_look(
    home: Path, log: Log, settings: Params, promoted: Promote
) -> None:
    for _ in range(3):
        promoted()
    old = Traffic(champion=3, challenger=2, share=0.2, experiment="holdback-3-2")
    log.traffic.change(lambda now: replace(old, revision=now.revision))
    come(log, 0, 500)
    looked(settings, log)
    now = log.traffic.read()
    assert (now.champion, now.challenger, now.experiment) == (3, 1, NAME)
    assert list(log.exposures.of(NAME)) == []
    log.traffic.change(lambda now: replace(old, revision=now.revision))
    watch.watch(Home.here(), settings, settings.watch)
    ended = log.traffic.read()
    assert (ended.challenger, ended.share, ended.experiment) == (0, 0.0, "")


def test_a_router_loads_the_anchor_after_what_is_not_needed_was_pruned(
    home: Path, log: Log, settings: Params, promoted: Promote
) -> None:
    for _ in range(4):
        promoted()
    keeping = settings.model_copy(
        update={"night": settings.night.model_copy(update={"keep": 1, "keep_days": 1})}
    )
    list(prune.prune(Home.here(), keeping.night, keeping.register_, keeping.serving))
    looked(settings, log)
    assert (log.traffic.read().champion, log.traffic.read().challenger) == (4, 1)
    with running(home) as router:
        until(lambda: router.get("health").json()["loaded"] == [1, 4])
        assert {router.recommend(f"u{number}")["version"] for number in range(20, 60)} == {1, 4}
    assert rollback.rollback(Home.here(), settings.register_, to=1, reason="a test").version == 1

"""The gate on live traffic: a real ledger, a real MLflow, a real log; only who comes is drawn."""

import contextlib
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daybreak.contract import clock, params, records
from daybreak.contract.clock import Clock
from daybreak.contract.errors import NothingToDo, NotYet
from daybreak.contract.record_parts import Live, LiveMetric
from daybreak.contract.record_types import Evaluation, Night, Training, Verdict
from daybreak.contract.sections import LiveSections, Params
from daybreak.contract.units import HOUR_S
from daybreak.examples.shop.sold_lines import LINES
from daybreak.extensions.live_test import live_test, slots
from daybreak.gate import watch
from daybreak.night import closing
from daybreak.rollout import rollback
from daybreak.statistics.assignment import slot_of
from daybreak.storage import branch, ledger
from daybreak.storage.exposures import Outcome, Shadow
from daybreak.storage.home import Home
from daybreak.storage.kept_rows import KeptRows
from daybreak.storage.live_servers import RouterState
from daybreak.storage.traffic_log import Log, open_log
from daybreak.storage.traffic_row import TrafficRow
from tests.extensions.router.moves import pass_time
from tests.extensions.router.running import running, until
from tests.statistics.streams import Model, exposures, users
from tests.toy.nights import PARAMS, halfway, make_model, make_night
from tests.toy.stages import close_night, evaluate_night, gate_night, promote_night, register_night

LIVE = PARAMS.replace(
    "smoke_test: {samples: 0}",
    "smoke_test: {samples: 0}\ngate: {scores: live}\n"
    "live_test: {ramp: [0.05, 0.5], ramp_users: 60, ramp_hours: 0, outcome_hours: 0.01}",
)
CROWD = itertools.count(0, 10**6)


@pytest.fixture
def log(home: Path) -> Log:
    """The log of serving that the home has."""
    return open_log(f"sqlite:///{home / 'var' / 'serving.db'}")


@pytest.fixture
def night(home: Path, log: Log, release: Any) -> Night:
    """A night on its way to the gate, with a champion before it and a week of traffic in the log."""
    release(0, 1.0)
    come(log, 400)
    return begin(home, 1)


def begin(home: Path, number: int, *, text: str = LIVE, weight: float = 1.0) -> Night:
    """Stages up to register, of a night that is decided in two hours."""
    folder = make_night(
        home, number, weight=weight, champion=ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    )
    os.chdir(folder)
    (folder / "params.yaml").write_text(text)
    night = replace(records.read(Night, records.RUN), decide_until=datetime.now(UTC) + timedelta(hours=2))
    records.write(night, records.RUN)
    evaluate_night()
    register_night()
    return night


def waits() -> str:
    """What the gate says while it waits."""
    with pytest.raises(NotYet) as refusal:
        gate_night()
    return str(refusal.value)


def come(log: Log, number: int, challenger: Model | None = None) -> None:
    """Let new users come, as the traffic has it, a minute ago."""
    traffic, first = log.traffic.read(), next(CROWD)
    shown = list(
        exposures(
            np.random.default_rng(first),
            users(first, number),
            share=traffic.share,
            experiment=traffic.experiment,
            start=time.time() - 90,
            apart_s=1e-3,
            challenger=challenger,
            version=traffic.challenger,
        )
    )
    log.exposures.write(
        shown,
        [
            Outcome(exposure=one.id, items=one.taken, time=one.taken_at)
            for one in shown
            if one.taken is not None and one.taken_at
        ],
    )
    halfway()


def in_the_shadow(log: Log, number: int, *, error: str = "") -> None:
    """Let new users come while nobody meets the challenger, which is asked beside the champion."""
    come(log, number)
    shown = list(log.exposures.of(log.traffic.read().experiment))[-number:]
    asked = [Shadow(exposure=one.id, version=2, latency_s=0.01, error=error, difference=0.5) for one in shown]
    log.exposures.write([], [], asked)


def over() -> None:
    """Let the night be over."""
    records.write(
        replace(records.read(Night, records.RUN), decide_until=datetime.now(UTC) - timedelta(seconds=1)),
        records.RUN,
    )


def until_decided(log: Log, challenger: Model, *, number: int = 1500) -> tuple[Verdict, list[float]]:
    """Ask and let users come in turn, until there is a verdict; the shares there were."""
    shares = []
    for _ in range(12):
        try:
            return gate_night(), shares
        except NotYet:
            shares.append(log.traffic.read().share)
            come(log, number, challenger)
    raise AssertionError("the gate never decided")


@pytest.mark.slow
def test_a_better_challenger_climbs_the_ramp_and_is_promoted(night: Night, log: Log) -> None:
    message = waits()
    assert message.startswith(
        "5% of users meet version 2; 0 have, and 0 met version 1; 0 users of the challenger"
    )
    assert "hours show 0." in message
    assert "80 % power" in message
    assert "next: begin at 5%" in message
    verdict, shares = until_decided(log, Model(hit=0.9))
    assert verdict.action == "promote"
    assert shares == sorted(shares)
    assert set(shares) == {0.05, 0.5}
    assert verdict.live is not None
    assert verdict.live.effect.is_proven
    assert verdict.effect == verdict.live.effect
    assert "80 % power" in verdict.live.foretold
    assert verdict.reason.startswith("live: proven no worse than the champion by the margin 0.0098")
    later = params.override(Path(), ["live_test.outcome_hours=1.01"])  # an hour more, twice
    needed, longer = (
        live_test.hours_needed(Home.here(), asked, hours=24.0) for asked in (params.load(Path()), later)
    )
    assert 0.5 < needed < 24
    assert longer - needed == pytest.approx(2, abs=0.1)
    assert "held-out scores: refresh: " in verdict.reason
    traffic = log.traffic.read()
    assert (traffic.challenger, traffic.share, traffic.experiment) == (0, 0.0, "")
    assert promote_night().version == 2
    assert log.traffic.read().champion == 2


@pytest.mark.slow
def test_a_version_trained_again_during_its_test_is_not_promoted_on_users_of_the_one_before(
    night: Night, log: Log
) -> None:
    waits()
    come(log, 300, Model(hit=0.9))
    make_model(records.RUN / "model", 1.0001, last_day=night.day - timedelta(days=1))
    digest = records.digest(records.RUN / "model")
    records.write(replace(records.read(Training, records.RUN), model_digest=digest), records.RUN)
    evaluate_night()
    assert register_night().number == 3
    verdict = gate_night()
    assert (verdict.action, verdict.challenger) == ("no data", 3)
    assert verdict.reason == "live: users of this night met version 2, not 3; open a new night"
    assert log.traffic.read().experiment == ""
    with pytest.raises(NothingToDo):
        promote_night()


@pytest.mark.slow
def test_a_version_trained_again_before_any_user_came_has_a_test_of_its_own(night: Night, log: Log) -> None:
    waits()
    make_model(records.RUN / "model", 1.0001, last_day=night.day - timedelta(days=1))
    digest = records.digest(records.RUN / "model")
    records.write(replace(records.read(Training, records.RUN), model_digest=digest), records.RUN)
    evaluate_night()
    register_night()
    assert "users meet version 3" in waits()
    assert log.traffic.read().challenger == 3


@pytest.mark.slow
def test_the_watch_leaves_the_test_of_a_night_that_runs_in_the_checkout(
    home: Path, night: Night, log: Log
) -> None:
    waits()
    folder, loaded = Path.cwd(), params.load(Path())
    os.chdir(home)
    shutil.copytree(folder / records.RUN, records.RUN, dirs_exist_ok=True)
    shutil.rmtree(folder)
    assert live_test.clean(Home.here(), loaded) == ""
    assert log.traffic.read().experiment == night.id
    shutil.rmtree(records.RUN)
    assert "which no night wants any more" in live_test.clean(Home.here(), loaded)
    assert log.traffic.read().experiment == ""


@pytest.mark.slow
def test_users_meet_a_challenger_only_once_enough_were_put_to_it_in_the_shadow(
    home: Path, log: Log, release: Any
) -> None:
    release(0, 1.0)
    come(log, 400)
    begin(home, 1, text=LIVE.replace("live_test: {", "live_test: {shadow: 0.5, "))
    serves = RouterState(id="one", champion=1, challenger=2, loaded=(1, 2))
    log.servers.beat(serves)
    assert "next: in the shadow 0 of 60 users were put to the challenger" in waits()
    in_the_shadow(log, 40)
    log.servers.beat(serves)
    assert "in the shadow 40 of 60 users" in waits()
    assert log.traffic.read().share == 0.0
    in_the_shadow(log, 40)
    *_, shown = log.exposures.of(log.traffic.read().experiment)
    kept = KeptRows(day=str(datetime.now(UTC).date()), rows=[{}], predictions="[]")
    log.exposures.write([replace(shown, id="f" * 32, kept=kept, taken=None)], [])
    records.write(LINES, records.RUN)
    log.servers.beat(serves)
    assert "next: begin at 5%" in waits()
    assert log.traffic.read().share == 0.05
    found = live_test.FOLDER / live_test.SHADOW_ROWS
    assert "are too few, 100 requests are compared" in found.read_text()
    waits()  # is known, and not asked again


@pytest.mark.slow
def test_a_challenger_that_fails_in_the_shadow_is_rejected_before_any_user_met_it(
    home: Path, log: Log, release: Any
) -> None:
    release(0, 1.0)
    come(log, 400)
    begin(home, 1, text=LIVE.replace("live_test: {", "live_test: {shadow: 0.5, "))
    log.servers.beat(RouterState(id="one", champion=1, challenger=2, loaded=(1, 2)))
    waits()
    in_the_shadow(log, 50, error="it broke")
    verdict = gate_night()
    assert verdict.action == "reject"
    assert verdict.reason.startswith("live: stopped by shadow errors: the challenger did not answer 100 %")
    assert verdict.live and (verdict.live.num_challenger, verdict.live.share) == (0, 0.0)
    assert (log.traffic.read().challenger, log.traffic.read().experiment) == (0, "")


@pytest.mark.slow
def test_a_broken_challenger_is_stopped_at_the_first_share(night: Night, log: Log) -> None:
    waits()
    come(log, 500, Model(errors=1.0))
    verdict = gate_night()
    assert verdict.action == "reject"
    assert verdict.reason.startswith("live: stopped by errors: the model did not answer 100 % of the")
    assert verdict.live is not None
    assert verdict.live.share == 0.05
    assert [check.name for check in verdict.live.checks if not check.ok] == ["errors"]
    assert log.traffic.read().share == 0
    with pytest.raises(NothingToDo):
        promote_night()


@pytest.mark.slow
def test_at_the_end_of_the_night_what_is_not_proven_keeps_the_champion(night: Night, log: Log) -> None:
    waits()
    come(log, 4000, Model())
    over()
    verdict = gate_night()
    assert (verdict.action, verdict.inconclusive) == ("reject", True)
    assert log.traffic.read().experiment == ""
    assert replace(gate_night(), decided_at=verdict.decided_at) == verdict


@pytest.mark.slow
def test_without_outcomes_or_users_the_verdict_says_so(night: Night, log: Log) -> None:
    waits()
    over()
    verdict = gate_night()
    assert (verdict.action, log.traffic.read().challenger) == ("no data", 0)
    assert "0 users of the challenger and 0 of the champion have had time for an outcome" in verdict.reason


@pytest.mark.slow
def test_after_a_rollback_in_the_night_its_challenger_meets_nobody(
    home: Path, log: Log, release: Any
) -> None:
    for number in range(2):
        release(number, 1.0)
    begin(home, 2)
    come(log, 100)
    waits()
    assert log.traffic.read().share == 0.05
    rollback.rollback(Home.here(), params.load(Path()).register_, reason="a test", hold_days=0)
    verdict = gate_night()
    assert verdict.action == "no data"
    assert verdict.reason == "live: version 1 serves by now, not 2"
    traffic = log.traffic.read()
    assert (traffic.champion, traffic.challenger, traffic.share) == (1, 0, 0.0)


@pytest.mark.slow
def test_with_no_router_ever_there_is_a_verdict_at_once(home: Path, release: Any) -> None:
    release(0, 1.0)
    begin(home, 1)
    verdict = gate_night()
    assert verdict.action == "no data"
    assert "no router runs and none has served for a week" in verdict.reason
    assert not (home / "var" / "serving.db").exists()


@pytest.mark.slow
def test_where_both_judge_users_never_meet_what_the_scores_reject(home: Path, log: Log, release: Any) -> None:
    release(0, 1.0)
    come(log, 100)
    begin(home, 1, text=LIVE.replace("scores: live", "scores: both"), weight=0.5)
    before = log.traffic.read()
    verdict = gate_night()
    assert (verdict.action, verdict.live) == ("reject", None)
    assert log.traffic.read() == before


@pytest.mark.slow
def test_where_both_judge_live_traffic_that_does_not_object_is_enough(
    home: Path, log: Log, release: Any
) -> None:
    release(0, 1.0)
    come(log, 100)
    begin(home, 1, text=LIVE.replace("scores: live", "scores: both"))
    verdict, _ = until_decided(log, Model(), number=800)
    assert verdict.action == "promote"
    assert verdict.reason.startswith("live: ")
    assert verdict.live is not None
    assert verdict.effect != verdict.live.effect


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


@pytest.mark.slow
def test_a_gate_killed_after_any_write_comes_to_the_same_end(
    night: Night, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills, seen = 0, set()

    def dying(write: Callable[..., Any], name: str) -> Callable[..., Any]:
        def written(*args: Any, **named: Any) -> Any:
            nonlocal kills
            done = write(*args, **named)
            key = (name, str(args[0]) if name == "file" else (args[1].share, args[1].experiment))
            if key not in seen:
                seen.add(key)
                kills += 1
                raise Killed
            return done

        return written

    monkeypatch.setattr(records, "replace_text", dying(records.replace_text, "file"))
    monkeypatch.setattr(TrafficRow, "set", dying(TrafficRow.set, "traffic"))
    verdict = None
    for _ in range(60):
        try:
            verdict = gate_night()
            break
        except NotYet:
            come(log, 1500, Model(hit=0.9))
        except Killed:
            continue
    assert verdict is not None
    assert verdict.action == "promote"
    assert kills >= 6
    assert (log.traffic.read().share, log.traffic.read().experiment) == (0.0, "")


@pytest.mark.slow
def test_close_and_watch_end_what_a_killed_gate_left_behind(
    night: Night, log: Log, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits()
    assert log.traffic.read().share == 0.05
    settings = params.load(Path())
    os.chdir(home)
    assert live_test.clean(Home.here(), settings) == ""
    folder = home / "nights" / night.id
    records.write(replace(night, decide_until=datetime.now(UTC) - timedelta(hours=2)), folder / records.RUN)
    assert live_test.clean(Home.here(), settings).startswith(
        "ended the experiment 2025-01-11, which no night wants"
    )
    assert (log.traffic.read().share, log.traffic.read().experiment) == (0.0, "")
    records.write(night, folder / records.RUN)
    os.chdir(folder)
    waits()
    closing.close(Home.here(), records.read(Night, records.RUN), settings, settings.backend)
    assert (log.traffic.read().share, log.traffic.read().experiment) == (0.0, "")


@pytest.mark.slow
def test_watch_stops_a_challenger_between_two_looks_of_the_gate(night: Night, log: Log) -> None:
    waits()
    come(log, 500, Model(errors=1.0))
    loaded = params.load(Path())
    assert (
        "ended the experiment 2025-01-11: errors: " in watch.watch(Home.here(), loaded, loaded.watch).reason
    )
    assert log.traffic.read().share == 0
    assert gate_night().reason.startswith("live: stopped by errors")


@pytest.mark.slow
def test_watch_ends_an_experiment_that_cannot_be_judged_and_looks_on(night: Night, log: Log) -> None:
    waits()
    evaluation = records.read(Evaluation, records.RUN)
    records.write(
        replace(evaluation, live=LiveMetric()), records.RUN
    )  # of a workload whose metrics are all of sets
    seen = watch.watch(Home.here(), loaded := params.load(Path()), loaded.watch)
    assert "ended the experiment 2025-01-11: no metric of the workload has a value" in seen.reason
    assert (seen.serving, log.traffic.read().share) == (1, 0.0)


@pytest.mark.slow
def test_watch_stops_a_challenger_that_users_prove_worse(night: Night, log: Log) -> None:
    waits()
    come(log, 4000, Model(hit=0.2))  # of whom 5 % meet it
    reason = watch.watch(Home.here(), loaded := params.load(Path()), loaded.watch).reason
    assert "ended the experiment 2025-01-11: score: " in reason
    assert ", proven worse: -0." in reason
    assert log.traffic.read().share == 0
    assert gate_night().reason.startswith("live: stopped by score")


def held_back() -> Params:
    """The params of the home with a fifth of the users held back, and outcomes that are soon there."""
    return params.override(Home.here().folder, ["watch.holdback=0.2", "live_test.outcome_hours=0.01"])


@pytest.mark.slow
def test_watch_rolls_back_to_a_version_that_does_better_on_live_traffic(
    log: Log, settings: Params, home_of_two: Path
) -> None:
    watching = held_back()
    watch.watch(Home.here(), watching, watching.watch)
    traffic = log.traffic.read()
    assert (traffic.champion, traffic.challenger, traffic.share) == (2, 1, 0.2)
    pass_time(log, 300)
    come(log, 300)
    assert "on live traffic 2 against 1: " in watch.watch(Home.here(), watching, watching.watch).reason
    come(log, 3000, Model(hit=0.8))
    seen = watch.watch(Home.here(), watching, watching.watch)
    assert (seen.outcome, seen.serving, seen.predecessor) == ("rolled back", 2, 1)
    assert seen.reason.startswith("rolled back: on live traffic 2 against 1")
    serving = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert serving is not None
    assert serving.version == 1
    watch.watch(Home.here(), watching, watching.watch)
    traffic = log.traffic.read()
    assert (traffic.champion, traffic.challenger, traffic.share) == (1, 0, 0.0)
    assert rollback.rollback(Home.here(), watching.register_, to=2, reason="a test").version == 2


@pytest.mark.slow
def test_nobody_is_held_back_once_that_is_switched_off(log: Log, settings: Params, home_of_two: Path) -> None:
    watch.watch(Home.here(), loaded := held_back(), loaded.watch)
    assert log.traffic.read().share == 0.2
    watch.watch(Home.here(), settings, settings.watch)
    assert (log.traffic.read().share, log.traffic.read().experiment) == (0.0, "")


@pytest.mark.slow
def test_users_of_a_real_router_decide_and_the_winner_answers_them(night: Night, home: Path) -> None:
    quick = LIVE.replace("ramp: [0.05, 0.5]", "ramp: [0.5]").replace(
        "outcome_hours: 0.01", "outcome_hours: 5e-4"
    )
    Path("params.yaml").write_text(quick)
    with running(home) as router:
        assert waits().startswith("50% of users meet version 2; ")
        until(lambda: router.get("health").json()["share"] == 0.5)
        for number in range(300):
            shown = router.recommend(f"u{100 + number}")
            taken = shown["items"][:1] if shown["version"] == 2 or number % 2 else ["nothing of it"]
            outcome = {"exposure": shown["exposure"], "user": f"u{100 + number}", "items": taken}
            until(lambda outcome=outcome: router.post("outcomes", outcome)[0] == 200)
        time.sleep(5)  # two windows of 1.8 s, after which the last user's score is settled
        halfway()
        decided: list[Verdict] = []

        def asked() -> bool:
            with contextlib.suppress(NotYet):
                decided.append(gate_night())
            return bool(decided)

        until(asked)
        assert decided[0].action == "promote"
        assert decided[0].live is not None
        assert decided[0].live.num_challenger + decided[0].live.num_champion == 300
        until(lambda: router.get("health").json()["share"] == 0)
        assert promote_night().version == 2
        assert {router.recommend(f"u{number}")["version"] for number in range(20, 40)} == {2}


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-6, 6])
def test_a_clock_that_was_set_since_the_night_was_opened_ends_no_test_early_or_late(
    night: Night, log: Log, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    if not clock.boot():
        pytest.skip("no name of a boot here")
    until, booted_at = night.decide_until - timedelta(hours=hours), time.time() - clock.since_boot()
    records.write(
        replace(night, decide_until=until, boot=clock.boot(), booted_at=booted_at - hours * HOUR_S),
        records.RUN,
    )
    monkeypatch.setattr(clock, "_CLOCK", Clock())
    clock.follow(Path())
    assert waits().startswith("5% of users meet version 2")
    standing = records.read(Live, live_test.FOLDER)
    assert standing.ends_at is not None
    assert timedelta(minutes=119) < standing.ends_at - standing.began_at <= timedelta(hours=2)
    assert abs(standing.began_at.timestamp() - log.now()) < 60
    assert live_test.clean(Home.here(), params.load(Path())) == ""
    assert log.traffic.read().share == 0.05


TWO = LIVE.replace("live_test: {", "live_test: {challengers: 2, ")


def come_to_all(log: Log, number: int, models: dict[str, Model], *, ago_s: float = 90) -> None:
    """Let new users come to each test of `models` that is on, as the traffic has it, some time ago."""
    traffic, first = log.traffic.read(), next(CROWD)
    for test in (test for test in traffic.tests if test.experiment in models):
        units = [unit for unit in users(first, number) if slot_of(unit, traffic.num_slots) == test.slot]
        shown = list(
            exposures(
                np.random.default_rng(first),
                units,
                share=test.share,
                experiment=test.experiment,
                start=time.time() - ago_s,
                apart_s=1e-3,
                challenger=models[test.experiment],
                version=test.challenger,
            )
        )
        taken = [(one.id, one.taken, one.taken_at) for one in shown if one.taken and one.taken_at]
        log.exposures.write(shown, [Outcome(exposure=id, items=items, time=at) for id, items, at in taken])
    halfway()


@pytest.fixture
def two_nights(home: Path, log: Log, release: Any) -> tuple[Night, Night]:
    """Two nights whose challengers, versions 2 and 3, are on the ramp; the second is the current folder."""
    release(0, 1.0)
    come(log, 400)
    (home / "params.yaml").write_text(TWO)
    first = begin(home, 1, text=TWO)
    assert not live_test.lets_open(Home.here(), [first], params.load(home).only(LiveSections))
    assert waits().startswith("5% of the users of part 1 of 2 meet version 2; 0 have")
    assert live_test.lets_open(Home.here(), [first], params.load(home).only(LiveSections))
    log.traffic.change(lambda now: replace(now, num_slots=1))  # as if it had begun with one challenger
    assert not live_test.lets_open(Home.here(), [first], params.load(home).only(LiveSections))
    log.traffic.change(lambda now: replace(now, num_slots=2))
    second = begin(home, 2, text=TWO)
    says = waits()
    assert says.startswith("5% of the users of part 2 of 2 meet version 3; 0 have")
    assert "version 2 is tested in part 1; " in says
    both = params.load(home).only(LiveSections)
    assert not live_test.lets_open(Home.here(), [first, second], both)
    return first, second


@pytest.mark.slow
def test_of_two_challengers_on_the_ramp_the_first_that_is_proven_ends_the_other(
    home: Path, log: Log, two_nights: tuple[Night, Night]
) -> None:
    first, second = two_nights
    models = {first.id: Model(), second.id: Model(hit=0.9)}
    verdict = None
    while verdict is None:
        come_to_all(log, 3000, models)
        try:
            verdict = gate_night()
        except NotYet:
            os.chdir(home / "nights" / first.id)
            halfway()
            waits()
            os.chdir(home / "nights" / second.id)
    assert verdict.action == "promote"
    assert verdict.live
    assert [check.name for check in verdict.live.checks][:2] == ["users by test", "arms as drawn"]
    assert [test.experiment for test in log.traffic.read().tests] == [first.id]
    assert promote_night().version == 3
    close_night()
    assert log.traffic.read().tests == ()
    os.chdir(home / "nights" / first.id)
    assert gate_night().reason == "live: version 3 serves by now, not 1"
    close_night()
    newest = ledger.history(Home.here())[0]
    assert newest.verdict and newest.serving
    assert (newest.night.id, newest.serving.version) == (first.id, 3)
    assert newest.verdict.reason.startswith(f"night {first.id} was overtaken by night {second.id}")


@pytest.mark.slow
def test_a_challenger_that_fails_or_whose_night_is_over_leaves_the_ramp_and_the_other_stays(
    home: Path, log: Log, two_nights: tuple[Night, Night]
) -> None:
    first, second = two_nights
    come_to_all(log, 4000, {first.id: Model(errors=1.0), second.id: Model()})
    os.chdir(home)
    settings = params.load(home)
    assert live_test.clean(Home.here(), settings).startswith(f"ended the experiment {first.id}: errors: ")
    assert [test.experiment for test in log.traffic.read().tests] == [second.id]
    folder = home / "nights" / second.id
    records.write(replace(second, decide_until=datetime.now(UTC) - timedelta(hours=2)), folder / records.RUN)
    assert live_test.clean(Home.here(), settings).startswith(f"ended the experiment {second.id}, which no")
    assert log.traffic.read().tests == ()


@pytest.mark.slow
def test_the_watch_ends_a_test_whose_part_of_the_users_does_not_come(
    home: Path, log: Log, two_nights: tuple[Night, Night]
) -> None:
    first, second = two_nights
    come_to_all(log, 4000, {first.id: Model()}, ago_s=0)
    os.chdir(home)
    said = live_test.clean(Home.here(), params.load(home))
    assert f"ended the experiment {second.id}: users by test: 0 users who stay" in said
    assert log.traffic.read().tests == ()


@pytest.mark.parametrize(("scores", "num"), [("live", 2), ("both", 1)])
def test_alpha_is_shared_out_among_proofs_and_not_among_vetoes(tmp_path: Path, scores: str, num: int) -> None:
    (tmp_path / "params.yaml").write_text(TWO.replace("scores: live", f"scores: {scores}"))
    assert slots.num_corrected(params.load(tmp_path).only(LiveSections)) == num


@pytest.mark.slow
def test_each_of_two_challengers_is_judged_with_half_of_alpha(night: Night, log: Log) -> None:
    waits()
    come(log, 3000)
    widths = []
    for text in (LIVE, TWO):
        Path("params.yaml").write_text(text)
        interval = re.search(r"\(from (\S+) to (\S+),", waits())
        assert interval
        widths.append(float(interval[2]) - float(interval[1]))
    assert 1.05 < widths[1] / widths[0] < 1.3

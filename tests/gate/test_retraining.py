"""When the watch asks for a night: once for a finding, within its budget, and never beside an open night."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.contract import params, records
from daybreak.contract.record_parts import ServedDay, ServedDrift
from daybreak.contract.record_types import Night, ServedDays
from daybreak.contract.sections import Params, WatchParams
from daybreak.extensions.router.row_sample import checks
from daybreak.gate.served_notices import in_words
from daybreak.night.recipe_turns import SCHEDULES
from daybreak.rollout import night_events
from daybreak.rollout.hold import WATCH
from daybreak.rollout.rollback import rollback
from daybreak.storage import ledger
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import open_log
from daybreak.storage.traffic_row import Traffic
from tests.toy.nights import PARAMS, make_night

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

Due = Callable[[], tuple[int, str]]
RETRAINS = f"{PARAMS}watch: {{retrain: true, retrain_per_month: 2}}\n"


def found(version: int, *, since: date | None = date(2026, 11, 20)) -> ServedDay:
    """Write what the watch found in the served rows of a version."""
    drift = ServedDrift(
        column="amount",
        statistic="Kolmogorov-Smirnov",
        value=0.98,
        limit=0.41,
        words="amount has the median 49,800, not 49.8",
        since=since,
    )
    day = ServedDay(day=date(2026, 11, 28), num_requests=1204, drift=(drift,), compared=("amount",))
    records.write(ServedDays(version=version, days=(day,)), Home.here().var)
    return day


@pytest.fixture
def due(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, home_of_two: Path) -> Due:
    """Ask in a home of two versions whether a night is due: the exit status, and its trigger or why not."""
    (home_of_two / "params.yaml").write_text(RETRAINS)
    caplog.set_level(logging.INFO, logger="daybreak")

    def due() -> tuple[int, str]:
        capsys.readouterr()
        caplog.clear()
        status = cli.main(["due"])
        return status, capsys.readouterr().out.strip() or caplog.text

    return due


def open_night(number: int, trigger: str) -> Night:
    """A night that was opened now."""
    home, now = Home.here(), datetime.now(UTC)
    run = make_night(home.folder, number, weight=1.0) / records.RUN
    until = now + timedelta(hours=2)
    night = replace(
        records.read(Night, run), trigger=trigger, started_at=now, train_until=until, decide_until=until
    )
    records.write(night, run)
    return night


def close(night: Night) -> None:
    """Commit a night that decided nothing to the ledger."""
    home = Home.here()
    os.chdir(home.nights / night.id)
    ledger.commit_night(home, night, message="nothing")
    os.chdir(home.folder)


def test_without_a_finding_or_without_being_asked_no_night_is_due(due: Due) -> None:
    status, why = due()
    assert status == 99 and "neither drift of served rows nor a loss of quality" in why
    found(2)
    Path("params.yaml").write_text(PARAMS)
    status, why = due()
    assert status == 99 and "watch.retrain is false" in why


def test_whether_a_night_is_due_is_json_where_asked(due: Due, capsys: pytest.CaptureFixture[str]) -> None:
    for is_due in (False, True):
        status, why = due()
        assert cli.main(["due", "--json"]) == status == (0 if is_due else 99)
        said = json.loads(capsys.readouterr().out)
        assert said["due"] is is_due
        assert said["reason"] in why
        found(2)


def test_a_column_that_was_never_as_in_training_starts_no_night(due: Due) -> None:
    found(2, since=None)
    assert due()[0] == 99
    found(1)  # which serves no more
    assert due()[0] == 99


def test_drift_starts_one_night_that_says_why(due: Due) -> None:
    day = found(2)
    status, trigger = due()
    assert (status, trigger) == (0, f"watch: drift of version 2: {in_words(day, 2)}"[:500])
    assert due() == (0, trigger)  # until the night is open, whoever was killed meanwhile
    assert trigger.startswith(SCHEDULES)  # no person started it
    night = open_night(5, trigger)
    status, why = due()
    assert status == 99 and f"started night {night.id} for the drift of version 2" in why
    close(night)
    shutil.rmtree(Home.here().nights / night.id)
    status, why = due()
    assert status == 99 and f"started night {night.id} for the drift of version 2" in why
    events = night_events.of_night(Home.here(), night.id)
    assert [one.reason for one in events if one.kind == "opened"] == [trigger]


def test_no_night_is_due_while_another_is_open(due: Due) -> None:
    found(2)
    night = open_night(5, "schedule")
    status, why = due()
    assert status == 99 and f"night {night.id} is open; no other is started" in why
    close(night)
    assert due()[0] == 0


def test_a_night_is_due_while_users_judge_the_challenger_of_another(due: Due) -> None:
    found(2)
    night, home = open_night(5, "schedule"), Home.here()
    log = open_log(f"sqlite:///{home.var / 'serving.db'}")
    beside = "gate: {scores: live}\nlive_test: {challengers: 2}\n"
    (home.folder / "params.yaml").write_text(RETRAINS + beside)
    assert due()[0] == 99
    log.traffic.set(Traffic(champion=2, challenger=3, experiment=night.id, num_slots=2))
    assert due()[0] == 0


def test_a_version_that_the_watch_took_back_starts_a_night_and_a_person_s_rollback_none(
    settings: Params, due: Due
) -> None:
    home, register = Home.here(), settings.register_
    rollback(home, register, to=1, reason="worse", by="ann", yes=True)
    assert due()[0] == 99
    rollback(home, register, to=2, reason="better", by="ann", yes=True)
    rollback(home, register, to=1, reason="proven worse", by=WATCH, hold_days=0, yes=True)
    status, trigger = due()
    assert (status, trigger) == (0, "watch: loss of version 2: rolled back: proven worse")
    close(open_night(5, trigger))
    assert due()[0] == 99
    found(1)  # another finding
    status, trigger = due()
    assert status == 0 and trigger.startswith("watch: drift of version 1: ")


def test_nights_of_the_watch_keep_to_their_budget(due: Due) -> None:
    for number in (8, 9):
        close(open_night(number, f"watch: drift of version {number}: a column"))
    found(2)
    status, why = due()
    assert status == 99
    assert "has started 2 nights in 30 days, as many as watch.retrain_per_month allows" in why
    Path("params.yaml").write_text(RETRAINS.replace("retrain_per_month: 2", "retrain_per_month: 3"))
    assert due()[0] == 0


def test_check_says_what_starts_a_night(home: Path) -> None:
    def said(keep_rows: float) -> str:
        text = f"{PARAMS}watch: {{retrain: true}}\nserving: {{keep_rows: {keep_rows}}}\n"
        text = text.replace("toy:Toy", "card_payments:Payments")
        (what, ok, sentence), *_ = checks(Home(home), params.loads(text, source="params.yaml"))
        assert (what, ok) == ("watch.retrain", True)
        return sentence

    assert not WatchParams().retrain
    at_most = "starts a night, at most 4 nights in 30 days"
    assert said(0) == f"a loss of quality {at_most}; drift none, as serving.keep_rows is 0"
    assert said(0.5) == f"a loss of quality, or drift of served rows, {at_most}"
    (home / "data").mkdir(exist_ok=True)
    (home / "data" / "expectations.yaml").write_text("drift: off\n")
    assert said(0.5) == f"a loss of quality, or drift of predictions, {at_most}; the suite has drift: off"

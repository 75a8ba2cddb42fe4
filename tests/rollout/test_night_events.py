"""Every night and rollback has its events, each once."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.contract import clock, records
from daybreak.contract.record_parts import Event
from daybreak.contract.record_types import Approval
from daybreak.rollout import night_events
from daybreak.storage import events
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from tests.report.nights import whole
from tests.rollout.ledgers import close, make_home, release_of


def closed(entry: Entry, *, after_h: float = 5.0) -> Entry:
    return replace(entry, closed_at=entry.night.started_at + timedelta(hours=after_h))


def kinds(happened: Sequence[Event]) -> list[str]:
    return [event.kind for event in happened]


def test_a_promotion_without_events_of_its_own_is_derived_from_its_records() -> None:
    entry = closed(whole(12))
    opened, drift, planned, promoted = night_events.of_entry(entry)
    assert kinds([opened, drift, planned, promoted]) == ["opened", "drift", "planned", "promoted"]
    assert (opened.at, opened.reason) == (entry.night.started_at, "schedule")
    assert (drift.subject, drift.reason) == ("country", "total variation 0.392, more than 0.35")
    assert (promoted.at, promoted.version, promoted.champion) == (entry.closed_at, 12, 11)
    assert promoted.by == "gate"


def test_a_refusal_names_who_refused_and_a_late_one_is_late() -> None:
    entry = whole(12, action="reject")
    assert entry.verdict
    refused = night_events.of_entry(closed(entry))[-1]
    assert (refused.kind, refused.version, refused.champion, refused.by) == ("refused", 12, 11, "gate")
    assert refused.reason == f"reject: {entry.verdict.reason}"
    assert kinds(night_events.of_entry(closed(entry, after_h=25)))[-2:] == ["late", "refused"]
    until = entry.night.decide_until
    asked = replace(entry, verdict=replace(entry.verdict, approve_until=until, inconclusive=True))
    said = Approval(
        champion=11,
        challenger=12,
        action="reject",
        approved=False,
        by="ann",
        reason="no",
        answered_at=until,
    )
    question, declined, refused = night_events.of_entry(closed(replace(asked, approval=said)))[-3:]
    assert (question.kind, question.until) == ("question", until)
    assert (declined.kind, declined.by, declined.reason) == ("declined", "ann", "no")
    assert (refused.kind, refused.by) == ("refused", "ann")


def test_a_night_that_failed_is_neither_refused_nor_promoted() -> None:
    entry = whole(12, action="reject")
    assert entry.verdict
    verdict = replace(entry.verdict, action="no data", failed="train", reason="train failed: no room")
    *_, failed = night_events.of_entry(closed(replace(entry, verdict=verdict)))
    assert (failed.kind, failed.subject, failed.reason) == ("failed", "train", "no room")


def test_an_event_is_written_once_but_a_stage_may_fail_again(tmp_path: Path) -> None:
    entry = closed(whole(12))
    happened = night_events.of_entry(entry)
    first = events.add(happened, tmp_path)
    again = [replace(event, at=event.at + timedelta(hours=1)) for event in happened]
    assert events.add(again, tmp_path) == first == happened
    (tmp_path / records.RUN / "train.error").write_text("no room\n")
    failed = night_events.failed(entry.night, "train", tmp_path / records.RUN)
    assert failed.reason == "no room"
    later = replace(failed, at=failed.at + timedelta(minutes=1))
    assert events.add([failed, failed, later], tmp_path)[-2:] == (failed, later)
    assert events.read(tmp_path) == (*first, failed, later)


def test_the_stream_of_a_history_is_newest_first() -> None:
    history = [closed(whole(13, whole(12).night.day + timedelta(days=1))), closed(whole(12))]
    times = [event.at for event in night_events.stream(history)]
    assert times == sorted(times, reverse=True)
    assert len(times) == 8


def test_predictions_that_are_late_after_the_promotion_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, until = Home(make_home(tmp_path, monkeypatch)), clock.utc() - timedelta(hours=1)
    close(1, after="", release=release_of(1), predict_until=until)
    folder = home.nights / release_of(1).night
    shutil.copytree(records.RUN, folder / records.RUN)
    records.write(release_of(1), folder / records.RUN)
    assert (night_events.open_nights(home), night_events.unpredicted(home)) == ([], [folder])
    assert [event.subject for event in night_events.note(folder) if event.kind == "late"] == ["predictions"]
    (folder / records.RUN / "predict.skipped").write_text("nothing to predict")
    assert night_events.unpredicted(home) == []


def test_a_night_stands_where_its_events_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    records.write(whole(12).night, records.RUN)
    assert kinds(night_events.note(Path())) == ["opened", "late"]
    (records.RUN / "events.json").write_text("{")
    assert night_events.note(Path()) == ()
    assert "the events of this night are not noted" in caplog.text

"""What stands now: what waits for a person, what is there, who was told, and the file that is left."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from daybreak.contract import records
from daybreak.contract.record_parts import Event
from daybreak.extensions.pages import fleet_rows, on_call
from daybreak.extensions.pages.on_call import Card, Facts
from daybreak.report import message_log, notifier, publisher
from daybreak.report.message_log import Messages, Sent, Waiting
from daybreak.report.night_rows import NightRow, row_of
from daybreak.storage.home import Home
from tests.extensions.pages import fleet
from tests.extensions.pages.served import served
from tests.report.nights import whole

DAY = date(2026, 11, 29)
AT = datetime(2026, 11, 30, 9, tzinfo=UTC)


def lines(card: Card) -> dict[str, str]:
    return {fact.name: fact.text for fact in card.facts}


def due(card: Card) -> list[str]:
    return [fact.name for fact in card.facts if fact.is_due]


def of(*rows: Any, **more: Any) -> Card:
    return on_call.card(Facts(model="shop", rows=rows, **more), at=AT)


def test_a_night_that_promoted_leaves_nothing_to_do() -> None:
    closed = datetime(2026, 11, 30, 5, tzinfo=UTC)
    card = of(replace(row_of(whole(12, DAY)), closed_at=closed.timestamp()))
    shown = lines(card)
    assert due(card) == []
    assert shown["Serves"] == "version 12, of the night of 2026-11-29, since 2026-11-30 05:00 UTC (4 h)"
    assert shown["Last night"].startswith("2026-11-29: Promoted: version 12 replaces version 11. ")
    assert shown["Predictions"] == "none are asked for"
    assert shown["Next"] == "nothing is due until a night opens"


def test_a_failed_night_says_why_and_how_to_go_on() -> None:
    entry = whole(12, DAY, action="reject")
    assert entry.verdict
    verdict = replace(entry.verdict, action="no data", failed="validate", reason="9.1 % of rows are bad")
    card = of(row_of(replace(entry, verdict=verdict)))
    assert due(card) == ["Last night"]
    assert lines(card)["Last night"] == (
        "2026-11-29: The night failed; version 11 stays. 9.1 % of rows are bad; "
        "go on with: daybreak night --night 2026-11-29"
    )


def test_predictions_are_there_or_due_or_late() -> None:
    row = row_of(whole(12, DAY))
    there = replace(row, num_predicted=1200, predicted_by=12)
    assert lines(of(there))["Predictions"] == "of 2026-11-29: there, 1,200 rows by version 12"
    stale = lines(of(replace(there, predicted_of="2026-11-25")))["Predictions"]
    assert stale.endswith("by version 12, but of rows of 2026-11-25, as the day had none")
    soon = of(replace(row, predict_until=(AT + timedelta(hours=1)).timestamp()))
    assert lines(soon)["Predictions"] == "of 2026-11-29: not there, due by 2026-11-30 10:00 UTC"
    assert lines(soon)["Next"] == "2026-11-30 10:00 UTC predictions of 2026-11-29 are due"
    late = of(replace(row, predict_until=(AT - timedelta(hours=1)).timestamp()))
    assert (due(late), due(soon)) == (["Predictions"], [])
    assert lines(late)["Predictions"] == "of 2026-11-29: not there, late since 2026-11-30 08:00 UTC"


def test_a_night_with_nothing_to_predict_is_not_late() -> None:
    row = replace(row_of(whole(12, DAY)), predict_until=(AT - timedelta(hours=1)).timestamp())
    card = of(row, predict_skipped="no version serves")
    assert due(card) == []
    assert lines(card)["Predictions"] == "of 2026-11-29: none, no version serves"
    assert "due until a night opens" in lines(card)["Next"]


def test_a_night_that_hangs_past_its_deadline_needs_a_person_until_it_is_closed() -> None:
    card = of(row_of(whole(11, date(2026, 11, 28))), overdue=[whole(12, DAY).night])
    assert due(card) == ["Hangs"]
    assert lines(card)["Hangs"] == (
        "night of 2026-11-29 had to be decided by 2026-12-01 03:00 UTC and is not closed; "
        "close it with: daybreak close --night 2026-11-29"
    )


def test_no_night_for_longer_than_usual_needs_a_person() -> None:
    daily = [row_of(whole(12 - ago, DAY - timedelta(days=ago))) for ago in range(6)]
    weekdays = [one for one in daily if date.fromisoformat(one.day).weekday() < 5]
    fortnight = weekdays + [
        replace(one, started_at=one.started_at - 7 * 86400 * week) for week in (1, 2) for one in weekdays
    ]
    at = datetime(2026, 11, 30, 9, tzinfo=UTC)  # a Monday; the newest of `weekdays` is of Friday

    def missed(rows: list[NightRow], *, days: float) -> list[str]:
        return due(on_call.card(Facts(model="shop", rows=rows), at=at + timedelta(days=days)))

    assert (missed(daily, days=0), missed(daily, days=2)) == ([], ["No night"])
    assert (missed(fortnight, days=0), missed(fortnight, days=4)) == ([], ["No night"])
    assert missed(daily[:1], days=30) == []  # what is usual is not known


def test_a_hold_that_ends_is_among_the_times() -> None:
    card = of(row_of(whole(12, DAY)), held_until=[date(2026, 12, 3)], notices=["ann took back version 11"])
    assert lines(card)["Next"] == "2026-12-04 00:00 UTC a hold has ended"
    assert lines(card)["Notice"] == "ann took back version 11"


def test_a_message_says_who_took_it_and_one_that_nobody_took_needs_a_person() -> None:
    sent = Sent(kind="promoted", night="2026-11-29", at=AT, to=("$SLACK_URL", "mailto"))
    row = row_of(whole(12, DAY))
    told = of(row, messages=Messages(sent=(sent,)))
    assert lines(told)["Told"] == "promoted to $SLACK_URL, mailto at 2026-11-30 09:00 UTC"
    event = Event(kind="failed", at=AT, night="2026-11-30")
    waits = of(row, messages=Messages(waiting=(Waiting(event=event, to="all", since=AT, tried_at=AT),)))
    assert due(waits) == ["Told"]
    assert lines(waits)["Told"] == (
        "failed waits since 2026-11-30 09:00 UTC; no notifier took it; look at notify in params.yaml"
    )
    assert lines(of(row, notifies=False))["Told"].startswith("nobody; ")
    given_up = of(row, messages=Messages(sent=(sent, replace(sent, to=(), refused=("mailto",)))))
    assert due(given_up) == ["Told"]
    assert "promoted to nobody, refused by mailto at 2026-11-30 09:00 UTC; " in lines(given_up)["Told"]


def test_models_that_need_a_person_come_first() -> None:
    well = Facts(model="shop", rows=[row_of(whole(12, DAY))])
    broken = Facts(model="fraud", rows=(), fault="the ledger cannot be read")
    page = on_call.page([well, broken], at=AT)
    assert "1 of 2 models needs a person." in page
    assert page.index("<h2>fraud") < page.index("<h2>shop")
    assert "Nothing waits for a person." in on_call.page([well], at=AT)


class _Refuses(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def refusing() -> Iterator[str]:
    """The address of a notifier that refuses each message."""
    server = HTTPServer(("127.0.0.1", 0), _Refuses)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"json://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_who_was_told_is_who_took_the_message(tmp_path: Path, refusing: str) -> None:
    lead = fleet.make(tmp_path, num=2, last=DAY, shop=1)
    home = Home(lead)
    text = (lead / "params.yaml").read_text()
    assert '\nnotify: {command: ""}' in text
    notify = json.dumps({"command": "cat > /dev/null", "urls": [refusing]})
    (lead / "params.yaml").write_text(text.replace('notify: {command: ""}', f"notify: {notify}"))
    happened = Event(kind="promoted", at=AT, night="2026-11-29", version=3, champion=2, reason="better")
    notifier.tell(home, happened)
    (sent,) = message_log.read(home).sent
    assert (sent.kind, sent.to, sent.refused) == ("promoted", ("notify.command",), ("json",))


def test_a_message_that_was_given_up_stays_on_record(tmp_path: Path) -> None:
    home = Home(fleet.make(tmp_path, num=1, last=DAY, shop=1))
    path = home.folder / "params.yaml"
    path.write_text(path.read_text().replace('notify: {command: ""}', 'notify: {command: "exit 1"}'))
    event, long_ago = Event(kind="failed", at=AT, night=""), datetime(2011, 11, 8, tzinfo=UTC)
    message_log.write(home, Messages(waiting=(Waiting(event=event, to="all", since=long_ago),)))
    assert not notifier.tell(home)
    kept = message_log.read(home)
    assert (kept.waiting, [(one.to, one.refused) for one in kept.sent]) == ((), [((), ("notify.command",))])


def test_a_home_that_cannot_be_read_is_a_card_and_hides_no_other(tmp_path: Path) -> None:
    lead = fleet.make(tmp_path, num=3, last=DAY, shop=1, fraud=2, cards=3)
    (tmp_path / "fraud" / "params.yaml").write_text("notify: [")
    (tmp_path / "cards" / "var" / "messages.json").mkdir()
    facts = fleet_rows.standing(fleet_rows.FleetRows(), lead, at=AT)
    faults = {one.model: one.fault for one in facts}
    assert "../fraud is left out of the fleet: " in faults["A home of the fleet"]
    assert "messages.json" in faults["cards"]
    assert faults["shop"] == ""
    (lead / "params.yaml").write_text("notify: [")
    page = fleet_rows.write_now(Home(lead)).read_text()
    assert "<h2>shop</h2>" in page and "<h2>cards</h2>" in page
    assert "is not a home: " in page


def test_a_night_that_was_not_closed_is_read_as_one_that_hangs(tmp_path: Path) -> None:
    lead = fleet.make(tmp_path, num=3, last=DAY, shop=1)
    night = replace(whole(12, DAY).night, id="hung")
    (lead / "nights" / "hung" / records.RUN).mkdir(parents=True)
    records.write(night, lead / "nights" / "hung" / records.RUN)
    late = night.decide_until + timedelta(days=400)
    (facts,) = fleet_rows.standing(fleet_rows.FleetRows(), lead, at=late)
    assert [one.id for one in facts.overdue] == ["hung"]
    assert "Hangs" in due(on_call.card(facts, at=late))


def test_the_page_has_a_card_for_each_model_and_loads_nothing(tmp_path: Path) -> None:
    lead = fleet.make(tmp_path, num=3, last=DAY, shop=1, fraud=2)
    with served(lead) as url:
        answer = requests.get(f"{url}/now", timeout=300)
    assert (answer.text.count("<h2>shop</h2>"), answer.text.count("<h2>fraud</h2>")) == (1, 1)
    assert answer.text.count(", of the night of 2026-11-2") == 2
    assert "script-src 'none'" in answer.headers["content-security-policy"]


def test_each_watch_leaves_the_page_as_a_file_of_the_home_that_leads(tmp_path: Path) -> None:
    lead = fleet.make(tmp_path, num=3, last=DAY, shop=1, fraud=2)
    publisher.publish_home(Home(lead))
    page = (lead / "var" / "now.html").read_text()
    assert "watch of shop last wrote this file" in page
    assert "<h2>fraud</h2>" in page
    assert 'href="/' not in page  # no link to a server that may be down
    assert fleet_rows.write_now(Home(lead)) == lead / "var" / "now.html"

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

from daybreak.contract.record_parts import Event
from daybreak.extensions.pages import fleet_rows, on_call
from daybreak.extensions.pages.on_call import Card, Facts
from daybreak.report import message_log, notifier, publisher
from daybreak.report.message_log import Messages, Sent, Waiting
from daybreak.report.night_rows import row_of
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
    soon = of(replace(row, predict_until=(AT + timedelta(hours=1)).timestamp()))
    assert lines(soon)["Predictions"] == "of 2026-11-29: not there, due by 2026-11-30 10:00 UTC"
    assert lines(soon)["Next"] == "2026-11-30 10:00 UTC predictions of 2026-11-29 are due"
    late = of(replace(row, predict_until=(AT - timedelta(hours=1)).timestamp()))
    assert (due(late), due(soon)) == (["Predictions"], [])
    assert lines(late)["Predictions"] == "of 2026-11-29: not there, late since 2026-11-30 08:00 UTC"


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
    assert (sent.kind, sent.to) == ("promoted", ("notify.command",))  # not the URL, which refused


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

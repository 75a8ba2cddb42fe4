"""The morning's digest: one message for all models, at its hour, by the home that leads."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.contract import clock
from daybreak.extensions.pages import digest
from daybreak.extensions.pages.on_call import Facts
from daybreak.report import publisher
from daybreak.report.night_rows import NightRow, row_of
from daybreak.storage import homes
from daybreak.storage.home import Home
from tests.extensions.pages import fleet
from tests.report.nights import whole

DAY = date(2026, 11, 29)
AT = datetime(2026, 11, 30, 9, tzinfo=UTC)


def closed(number: int, *, hours_ago: float, action: str = "promote") -> NightRow:
    row = row_of(whole(number, DAY, action=action))
    return replace(row, closed_at=(AT - timedelta(hours=hours_ago)).timestamp(), usd=0.5)


def test_a_digest_says_how_all_models_stand_and_begins_with_those_that_need_a_person(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NIGHTS_UI", raising=False)
    shop = [closed(12, hours_ago=4), closed(11, hours_ago=28)]
    late = replace(
        closed(7, hours_ago=3, action="reject"), predict_until=(AT - timedelta(hours=1)).timestamp()
    )
    text = digest.text([Facts(model="shop", rows=shop), Facts(model="fraud", rows=[late])], at=AT)
    first, fraud, well, more = text.split("\n\n")
    assert first == (
        "Daybreak, 2026-11-30: 1 of 2 models needs a person; in the last 24 hours 1 promoted, 1 kept, $1.00"
    )
    assert fraud.splitlines()[:2] == [
        "fraud needs a person",
        "Predictions: of 2026-11-29: not there, late since 2026-11-30 08:00 UTC",
    ]
    assert "Last night: 2026-11-29: Champion kept: version 7 is rejected, version 6 stays." in fraud
    assert well.startswith("shop\nServes: version 12, of the night of 2026-11-29, since ")
    assert well.splitlines()[-1].startswith("Score, 2 nights: 0.3")
    assert more == "More: daybreak status --all, and /now of daybreak pages"
    monkeypatch.setenv("NIGHTS_UI", "https://nights.example/")
    text = digest.text([Facts(model="shop", rows=shop)], at=AT)
    assert text.endswith("\nMore: daybreak status --all, and https://nights.example/now")


def test_a_digest_keeps_the_command_of_a_long_reason_and_says_by_when() -> None:
    reason = " ".join(["word"] * 50)
    entry = whole(12, DAY, action="reject")
    assert entry.verdict
    verdict = replace(entry.verdict, action="no data", failed="validate", reason=reason)
    due = (AT + timedelta(hours=1)).timestamp()
    row = replace(row_of(replace(entry, verdict=verdict)), predict_until=due)
    lines = digest.text([Facts(model="shop", rows=[row])], at=AT).splitlines()
    failed = next(line for line in lines if line.startswith("Last night: "))
    assert "version 11 stays. Word word" in failed
    assert failed.endswith("word …; go on with: daybreak night --night 2026-11-29")
    assert "Next: 2026-11-30 10:00 UTC predictions of 2026-11-29 are due" in lines


def test_a_fleet_without_a_night_or_a_need_is_said_so() -> None:
    text = digest.text([Facts(model="shop", rows=[closed(12, hours_ago=30)])], at=AT)
    assert text.startswith(
        "Daybreak, 2026-11-30: nothing waits for a person, 1 model; in the last 24 hours no night ended\n"
    )


@pytest.mark.slow
def test_the_home_that_leads_sends_one_digest_a_day_once_its_hour_has_come(tmp_path: Path) -> None:
    lead = fleet.make(tmp_path, num=2, last=clock.utc().date(), shop=1, fraud=2)
    heard = tmp_path / "heard"

    def set_hour(home: Path, hour: str, command: str) -> None:
        text = (home / "params.yaml").read_text()
        notify = f"notify: {{command: '{command}', on: [failed], digest_at: '{hour}'}}"
        lines = [notify if line.startswith("notify: ") else line for line in text.splitlines()]
        (home / "params.yaml").write_text("\n".join(lines) + "\n")

    def told() -> int:
        return heard.read_text().count("Daybreak, ") if heard.exists() else 0

    for home in (lead, tmp_path / "fraud"):
        set_hour(home, "00:00", "")
    assert digest.digest(Home(lead), told=()) is None  # for nobody
    for home in (lead, tmp_path / "fraud"):
        set_hour(home, "00:00", f"cat >> {heard}")
    homes.join(lead)
    publisher.publish_home(Home(tmp_path / "fraud"))  # a member
    assert told() == 0
    for _ in range(2):
        publisher.publish_home(Home(lead))
    assert told() == 1
    text = heard.read_text()
    assert "\nshop" in text and "\nfraud" in text

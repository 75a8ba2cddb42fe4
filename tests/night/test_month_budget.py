"""The dollars of a month are spread over its nights, whatever their jobs came to."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import records
from daybreak.contract.record_parts import MonthBudget
from daybreak.contract.record_types import Bill, Night, Training
from daybreak.jobs.cost_tracker import FILE, JOBS
from daybreak.night.month_budget import month_budget
from daybreak.rollout import night_events
from daybreak.storage import branch, ledger
from daybreak.storage.checkout import git
from daybreak.storage.home import Home
from tests.minimal_records import minimal_training
from tests.rollout.ledgers import FIRST, close, make_home, release_of

# FIRST is 2025-01-10, and night 1 the day after.


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(make_home(tmp_path, monkeypatch))


def night(number: int, usd: float, *, failed: bool = False, **of_night: Any) -> None:
    """Closes a night whose jobs cost so much."""
    for kind in (Training, Bill):
        records.path_of(kind, records.RUN).unlink(missing_ok=True)
    records.write(Bill(usd=usd) if failed else minimal_training(cost_usd=usd), records.RUN)
    close(number, after=branch.ledger_tip(Home.here()), **of_night)


def at(number: int, *, hour: int = 3) -> datetime:
    return FIRST + timedelta(days=number, hours=hour)


def test_what_is_left_is_spread_over_the_days_of_the_month(home: Home) -> None:
    night(1, 10.0)
    night(2, 5.0, failed=True)
    left = month_budget([home], usd=300, at=at(3), zone="UTC")
    assert (left.spent_usd, left.num_nights) == (15.0, 31 - 13 + 1)
    assert left.limit(50, alone=False) == (300 - 15) / 19
    assert left.limit(50, alone=True) == 50
    assert str(left) == "$285.00 of this month's $300.00 are left for 19 nights"


def test_a_month_begins_anew_in_its_own_time_zone(home: Home) -> None:
    night(20, 100.0)  # 2025-01-30
    assert month_budget([home], usd=300, at=at(22, hour=3), zone="UTC").spent_usd == 0
    assert month_budget([home], usd=300, at=at(22, hour=3), zone="America/New_York").spent_usd == 100
    assert month_budget([home], usd=300, at=at(22, hour=3), zone="America/New_York").num_nights == 1


def test_nights_to_come_are_as_many_as_there_were(home: Home) -> None:
    for number in range(-6, 3):  # two a day, from here on
        night(number, 0.0)
    entries = ledger.history(home)
    assert len(entries) == 9
    assert month_budget([home], usd=300, at=at(3), zone="UTC").num_nights == 19  # one a day
    assert month_budget([home], usd=300, at=at(10), zone="UTC").num_nights == 7  # 12 days, 9 of 16 with one


def test_nights_that_made_up_for_missed_ones_foretell_none(home: Home) -> None:
    for number in range(-20, 0):
        night(number, 0.0, trigger="nights 2024-12-01 to 2024-12-20")
    assert month_budget([home], usd=300, at=at(3), zone="UTC").num_nights == 19


def test_dollars_that_are_counted_elsewhere_are_left_out(home: Home) -> None:
    night(1, 40.0, failed=True)
    night(2, 5.0)
    without = {release_of(1).night}
    assert month_budget([home], usd=300, at=at(4), zone="UTC", without=without).spent_usd == 5


def test_a_night_whose_challenger_users_still_judge_has_spent_too(home: Home) -> None:
    night(1, 10.0)
    opened = replace(
        records.read(Night, records.RUN), id="open", started_at=at(2), previous=branch.ledger_tip(home)
    )
    folder = home.nights / opened.id
    records.write(opened, folder / records.RUN)
    for name, of_night in (("job", opened.id), ("other", "another")):
        records.replace_text(folder / JOBS / name / FILE, json.dumps({"night": of_night, "usd": 7.0}))
    assert month_budget([home], usd=300, at=at(3), zone="UTC").spent_usd == 17
    assert month_budget([home], usd=300, at=at(3), zone="UTC", without={"open"}).spent_usd == 10


def test_a_month_that_is_spent_has_nothing_left(home: Home) -> None:
    night(1, 400.0)
    left = month_budget([home], usd=300, at=at(3), zone="UTC")
    assert (left.left_usd, left.limit(50, alone=True)) == (0, 0)


def test_several_homes_have_one_month(home: Home) -> None:
    night(1, 10.0)
    assert month_budget([home, home], usd=300, at=at(3), zone="UTC").spent_usd == 20


@pytest.mark.parametrize(
    ("spent", "cost", "told"), [(100, 100, []), (200, 50, ["80%"]), (200, 100, ["80%", "100%"]), (300, 9, [])]
)
def test_people_hear_at_80_and_100_percent(home: Home, spent: float, cost: float, told: list[str]) -> None:
    night(1, cost, failed=True, month=MonthBudget(usd=300, spent_usd=spent, num_nights=3))
    (entry,) = ledger.history(home)
    events = [each for each in night_events.derive(entry, at=at(1), over=True) if each.kind == "month budget"]
    assert [each.subject for each in events] == told
    assert all("of this month's $300.00 are spent" in each.reason for each in events)


def test_a_ledger_of_which_no_night_can_be_read_has_cost_nothing(home: Home) -> None:
    def put(_: str, index: Path) -> None:
        git("read-tree", "HEAD", folder=home.folder, index=index)
        branch.put_text(home, records.path_of(Night, records.RUN), '{"of": "another release"}', index=index)

    branch.append(home, put, after="", subject="a night", trailers="Night: n\nServes: 0\n")
    assert month_budget([home], usd=300, at=at(3), zone="UTC").spent_usd == 0

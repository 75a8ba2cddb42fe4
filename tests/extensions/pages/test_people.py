"""Fifteen tasks of those who review nights: each takes a person three clicks at most, or one command.

What a test finds it has found; clicks and seconds are kept as its properties.
"""

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli
from daybreak.contract import formats, records
from daybreak.storage import checkout, ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from tests.browser import chromium
from tests.extensions.pages import fleet, training_night
from tests.extensions.pages.served import served
from tests.minimal_records import answer_to
from tests.report.histories import nights, write_ledger
from tests.report.nights import unlike
from tests.training import nights as training_nights

pytestmark = pytest.mark.slow

TODAY = datetime.now(UTC).date()
YESTERDAY = TODAY - timedelta(days=1)
MOST_CLICKS = 3


@dataclass
class Person:
    """Somebody in front of the board, whose clicks are counted."""

    page: Any
    num_clicks: int = 0

    def click(self, what: Any) -> None:
        self.num_clicks += 1
        what.click()

    def choose(self, label: str, option: str) -> None:
        self.num_clicks += 1
        self.page.get_by_label(label).select_option(label=option)

    def short(self, model: str) -> dict[str, str]:
        """The line of a model in the table of models, by its heads."""
        heads = self.page.locator("table.models thead th").all_inner_texts()
        row = self.page.locator("table.models tbody tr", has_text=model).locator("th, td").all_inner_texts()
        return dict(zip(heads, row, strict=True))


@pytest.fixture(scope="module")
def lead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models with twenty nights each; a person has approved the last but one night of the first."""
    home = fleet.make(tmp_path_factory.mktemp("fleet"), num=20, last=YESTERDAY, shop=1, fraud=2)
    entries = list(nights(20, last=YESTERDAY, seed=1))
    entries[-2] = approved(entries[-2])
    entries[-1] = changed(entries[-1], home)
    write_ledger(home, entries)
    (looks := home / "nights" / entries[-1].night.id / records.LOOKS).mkdir(parents=True)
    records.write(unlike(YESTERDAY), looks)
    for entry in entries:
        if (entry.profile and entry.profile.bound == "compute") or entry is entries[-1]:  # as its figures say
            fleet.lay_night(home, entry.night.id)
    return home


def changed(entry: Entry, home: Path) -> Entry:
    """The night after a commit by which its recipe is not the champion's."""
    before = checkout.git("rev-parse", "HEAD", folder=home)
    author = "--author=Bea <bea@example.org>"
    subprocess.run(
        [*fleet.GIT, "commit", "--quiet", "--allow-empty", author, "--message=Widen the second layer"],
        cwd=home,
        check=True,
    )
    assert entry.verdict and entry.champion
    return replace(
        entry,
        night=replace(entry.night, code_commit=checkout.git("rev-parse", "HEAD", folder=home)),
        verdict=replace(entry.verdict, recipe="2" * 32),
        champion=replace(entry.champion, lineage={"recipe": "1" * 32, "code_commit": before}),
    )


def approved(entry: Entry) -> Entry:
    assert entry.verdict
    verdict = replace(entry.verdict, inconclusive=True, approve_until=entry.night.decide_until)
    answer = answer_to(verdict, by="ann", reason="the holidays", answered_at=entry.night.decide_until)
    return replace(entry, verdict=verdict, approval=answer)


@pytest.fixture(scope="module")
def running(lead: Path) -> Iterator[str]:
    """The address of the pages, while a night trains."""
    night = training_nights.night(seconds=3 * 3600, name=str(TODAY), day=TODAY)
    night = replace(night, predict_until=datetime.now(UTC) + timedelta(hours=4))
    folder = lead / "nights" / night.id
    with training_night.training(folder, night=night) as job, served(lead) as url:
        (folder / "params.yaml").write_text((lead / "params.yaml").read_text())
        for number in range(1, 4):
            training_night.beat(job, number, night=night)
        yield url


@pytest.fixture
def person(running: str, record_property: Callable[[str, object], None]) -> Iterator[Person]:
    with chromium() as browser:
        person = Person(browser.new_page(viewport={"width": 1400, "height": 900}))
        began = time.monotonic()
        person.page.goto(f"{running}/nights")
        yield person
        record_property("seconds", round(time.monotonic() - began, 2))
        record_property("clicks", person.num_clicks)
        assert person.num_clicks <= MOST_CLICKS


def history(lead: Path, model: str = "shop") -> list[Entry]:
    return ledger.history(Home(lead.parent / model))


def test_why_was_it_refused(person: Person, lead: Path) -> None:
    refused = next(
        entry
        for entry in history(lead)
        if entry.verdict
        and entry.verdict.action == "reject"
        and entry.profile
        and entry.profile.bound == "compute"
    )
    assert refused.verdict
    person.choose("Verdict", "champion kept")
    nights = person.page.locator("table.nights")  # that of models links to nights as well
    person.click(nights.get_by_role("link", name=str(refused.night.day), exact=True))
    assert person.page.get_by_text(refused.verdict.reason[:40]).first.is_visible()


def test_why_was_it_refused_in_a_picture(person: Person, lead: Path) -> None:
    refused = next(
        entry
        for entry in history(lead)
        if entry.verdict
        and entry.verdict.action == "reject"
        and entry.profile
        and entry.profile.bound == "compute"
    )
    person.choose("Verdict", "champion kept")
    nights = person.page.locator("table.nights")
    person.click(nights.get_by_role("link", name=str(refused.night.day), exact=True))
    picture = person.page.get_by_role("img", name=re.compile("^Effect ")).first
    box = picture.bounding_box()
    assert box
    assert box["y"] + box["height"] < 900  # without scrolling
    assert "no difference" in (picture.text_content() or "")


def open_night(person: Person, day: object, part: str) -> Any:
    """The part of a night's page, two clicks from the board."""
    nights = person.page.locator("table.nights")
    person.click(nights.get_by_role("link", name=str(day), exact=True).first)
    person.click(person.page.get_by_role("heading", name=part, exact=True))
    return person.page.locator("main > details[open] > div")


def test_which_column_moved_and_when(person: Person) -> None:
    moved = open_night(person, YESTERDAY, "Data").locator("figure", has_text="new country")
    assert "50 % of the rows" in moved.first.inner_text().replace("\N{NO-BREAK SPACE}", " ")
    person.click(moved.first.get_by_text("Table"))
    last = moved.first.get_by_role("row").nth(1).inner_text().split("\t")
    assert last[:3] == [str(YESTERDAY), "50 %", "0 % to 2 %"]


def test_is_todays_prediction_there(person: Person) -> None:
    person.click(person.page.get_by_role("link", name="now", exact=True))
    shop = person.page.locator(".card", has=person.page.get_by_role("heading", name="shop", exact=True))
    (line,) = [one for one in shop.inner_text().split("Predictions")[1:2]]
    assert "not there, due by" in " ".join(line.split()[:12])


def test_which_stage_took_longer_than_planned_and_why(person: Person, lead: Path) -> None:
    late = next(
        entry
        for entry in history(lead)
        if entry.training
        and entry.plan
        and entry.profile
        and entry.profile.bound == "compute"
        and entry.training.took_s > entry.plan.forecast.interval[1]
    )
    timeline = open_night(person, late.night.day, "Timeline")
    assert timeline.get_by_role("img", name=re.compile("longer than planned: train")).is_visible()
    assert "Its workers were restarted 1 time." in timeline.locator("tr .accent").first.inner_text()


def test_who_changed_the_recipe(person: Person) -> None:
    lineage = open_night(person, YESTERDAY, "Lineage")
    row = lineage.get_by_role("row", name="Commits since the champion's recipe").inner_text()
    assert f"by Bea on {TODAY}: Widen the second layer" in row


def test_who_approved_it(person: Person) -> None:
    person.page.get_by_label("Search").fill("ann")
    person.num_clicks += 1
    (row,) = person.page.locator("table.nights tbody tr:visible").all()
    assert "by ann" in row.inner_text()


def test_what_would_a_rollback_bring_back(person: Person, lead: Path) -> None:
    served = ledger.served([one.serves or 0 for one in ledger.releases(Home(lead))])
    assert person.short("shop")["rollback to"] == str(served[-2])


def test_is_tonight_late(person: Person) -> None:
    shown = person.page.locator(".live").inner_text()
    assert "In time" in shown
    assert "Training done" in shown


def test_what_did_the_last_week_cost(person: Person, lead: Path) -> None:
    week_ago = datetime.now(UTC) - timedelta(days=7)
    usd = sum(e.training.cost_usd for e in history(lead) if e.training and e.night.started_at >= week_ago)
    assert person.short("shop")["last 7 days"] == f"${usd:,.2f}"


def test_what_did_a_month_cost_and_what_did_it_bring(person: Person, lead: Path) -> None:
    person.click(person.page.get_by_role("link", name="months"))
    month = f"{YESTERDAY:%Y-%m}"
    of_month = [e for m in ("shop", "fraud") for e in history(lead, m) if str(e.night.day)[:7] == month]
    row = person.page.locator("table.months tbody tr", has_text=month).first.locator("td").all_inner_texts()
    usd, promoted = sum(e.usd or 0.0 for e in of_month), sum(e.release is not None for e in of_month)
    assert row[:4] == ["all", f"${usd:,.2f}", str(len(of_month)), str(promoted)]
    heads = person.page.locator("table.months thead th").all_inner_texts()[1:]
    worth = dict(zip(heads, row, strict=True))
    assert worth["cost of one promoted"] == f"${usd / promoted:,.2f}"
    person.choose("Model", "shop")
    person.click(person.page.get_by_role("button", name="Show"))
    row = person.page.locator("table.months tbody tr", has_text=month).first.locator("td").all_inner_texts()
    over = dict(zip(heads, row, strict=True))["score over the anchor"]
    assert over == formats.effect(over_anchor([e for e in history(lead) if e in of_month]))


def over_anchor(entries: list[Entry]) -> float:
    """By how much what served scored better than the anchor, as a mean of the nights that have both."""
    scores = [e.evaluation.metrics | {"promoted": e.release is not None} for e in entries if e.evaluation]
    served = [one["score" if one["promoted"] else "champion_score"] - one["anchor_score"] for one in scores]
    return sum(served) / len(served)


def test_which_model_is_worst_calibrated(person: Person, lead: Path) -> None:
    shares = {}
    for model in ("shop", "fraud"):
        held, num = person.short(model)["time as planned"].split(" of ")
        shares[model] = int(held) / int(num)
        trained = [e for e in history(lead, model) if e.training and e.plan]
        assert int(num) == len(trained)
    assert all(0.5 < share <= 1 for share in shares.values())


def test_how_do_two_nights_differ(person: Person) -> None:
    ticks = person.page.locator('table.nights input[value^="shop/"]')
    person.click(ticks.nth(0))
    person.click(ticks.nth(1))
    person.click(person.page.get_by_role("button", name="Compare"))
    assert person.page.get_by_role("heading", level=1).inner_text().count("shop") == 2
    assert person.page.locator("table.compared tbody tr").count() == 17


def test_which_rows_were_bad(lead: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    night = next(entry for entry in history(lead) if entry.report)
    monkeypatch.setenv("DAYBREAK_HOME", str(lead))
    assert cli.main(["rows", "--night", night.night.id, "--json"]) == 0
    bad = json.loads(capsys.readouterr().out)
    assert "price_is_positive" in json.dumps(bad)


def test_stop_a_running_night(person: Person, lead: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says the command; once it has run, the page says who stopped the night, without a reload."""
    command = person.page.locator(".live code", has_text="daybreak stop").inner_text()
    _, _, words = command.replace("TEXT", "'the wrong prices'").partition("daybreak ")
    monkeypatch.setenv("DAYBREAK_HOME", str(lead))
    assert cli.main([*shlex.split(words), "--by", "ann"]) == 0
    said = person.page.locator(".live", has_text="stopped by ann")
    said.wait_for()
    assert "the wrong prices" in said.inner_text()

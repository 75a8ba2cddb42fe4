"""The board and a running night in headless Chromium: on a wide screen and a phone, in light and in dark.

SCREENSHOTS=FOLDER keeps what the browser saw.
"""

import csv
import io
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

import tests.browser
from daybreak.extensions.pages import fleet_rows
from daybreak.storage.home import Home
from tests.browser import chromium
from tests.dags.servers import keep
from tests.extensions.pages import fleet, training_night
from tests.extensions.pages.served import served
from tests.report.histories import nights, write_ledger
from tests.training import nights as training_nights

pytestmark = pytest.mark.slow

TODAY = datetime.now(UTC).date()
SEEN = "rows => rows.map(row => `${row.dataset.m} ${row.cells[0].dataset.v}`)"
SIZES = {"wide": {"width": 1400, "height": 900}, "phone": {"width": 390, "height": 800}}
SCREENS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]
MOST_BYTES = 500_000


@dataclass(kw_only=True)
class Seen:
    """What a page said, asked for and got."""

    page: Any
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    num_bytes: int = 0

    def expect_whole(self) -> None:
        """Holds that the page fits the screen, has no error, is accessible, small and from here alone."""
        assert not overflows(self.page)
        assert self.errors == []
        assert tests.browser.violations(self.page) == ()
        assert self.hosts == {"127.0.0.1"}
        assert 0 < self.num_bytes < MOST_BYTES


@dataclass(frozen=True, kw_only=True)
class Nights:
    """Two models with sixty nights each, and one night that trains."""

    url: str
    lead: Path
    job: Path
    night: Any


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    yesterday = TODAY - timedelta(days=1)
    lead = fleet.make(tmp_path_factory.mktemp("fleet"), last=yesterday, shop=1, fraud=2)
    fleet.lay_page(lead, str(yesterday))
    night = training_nights.night(seconds=3 * 3600, name=str(TODAY), day=TODAY)
    with ExitStack() as stack:
        job = stack.enter_context(training_night.training(lead / "nights" / night.id, night=night))
        for number in range(1, 21):
            training_night.beat(job, number, night=night)
        yield Nights(url=stack.enter_context(served(lead)), lead=lead, job=job, night=night)


def look(
    browser: Any, address: str, *, size: str = "wide", scheme: str = "light", scripts: bool = True
) -> Seen:
    context = browser.new_context(viewport=SIZES[size], color_scheme=scheme, java_script_enabled=scripts)
    seen = Seen(page=context.new_page())
    seen.page.on("console", lambda said: seen.errors.append(said.text) if said.type == "error" else None)
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.on("request", lambda request: seen.hosts.add(request.url.split("/")[2].split(":")[0]))
    network = context.new_cdp_session(seen.page)
    network.send("Network.enable")

    def add(event: dict[str, Any]) -> None:
        seen.num_bytes += event["encodedDataLength"]

    network.on("Network.loadingFinished", add)
    seen.page.goto(address)
    return seen


def overflows(page: Any) -> bool:
    """Whether the page is wider than the screen, so that a phone has to be moved sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"))


@pytest.mark.parametrize(("size", "scheme"), SCREENS)
def test_the_board_is_whole_on_each_screen_and_asks_nobody_else(
    browser: Any, shown: Nights, size: str, scheme: str
) -> None:
    seen = look(browser, f"{shown.url}/nights", size=size, scheme=scheme)
    seen.page.get_by_text("runs on local").first.wait_for()
    assert seen.page.locator("table.nights tbody tr").count() == 120
    assert seen.page.locator("svg.chart").count() >= 12
    clip = {"x": 0, "y": 0, "width": SIZES[size]["width"], "height": 1215}
    keep(seen.page, f"board-{size}-{scheme}", full_page=True, clip=clip)
    seen.expect_whole()


@pytest.mark.parametrize(("size", "scheme"), SCREENS)
def test_a_running_night_is_whole_on_each_screen_and_asks_nobody_else(
    browser: Any, shown: Nights, size: str, scheme: str
) -> None:
    seen = look(browser, f"{shown.url}/nights/shop/{shown.night.id}/", size=size, scheme=scheme)
    for words in ("Training done", "In time", "Cost so far", "Decision due", "Loss, over the samples"):
        assert seen.page.get_by_text(words).first.is_visible()
    keep(seen.page, f"live-{size}-{scheme}", full_page=True)
    seen.expect_whole()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the board of a home without a fleet, and its file."""
    home = fleet.make(tmp_path_factory.mktemp("alone"), num=12, last=TODAY - timedelta(days=1), shop=1)
    (home / "fleet.yaml").unlink()
    fleet_rows.write_board(Home(home), all=False)
    with served(home) as url:
        yield f"{url}/nights", home / "var" / "board.html"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("is_served", [True, False])
def test_the_board_of_one_model_is_whole_and_accessible_served_and_as_a_file(
    browser: Any, alone: tuple[str, Path], width: int, is_served: bool
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    seen = tests.browser.look(page, alone[0] if is_served else alone[1].as_uri())
    assert page.locator("table.nights tbody tr").count() == 12
    assert (seen.complaints, seen.requests, seen.violations) == ((), (), ())
    assert seen.wider_by <= 0


@pytest.mark.parametrize("width", [390, 1280])
def test_two_nights_beside_each_other_are_whole_and_accessible(
    browser: Any, shown: Nights, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    two = "&".join(f"night=fraud/{TODAY - timedelta(days=ago)}" for ago in (1, 2))
    seen = tests.browser.look(page, f"{shown.url}/nights/compare?{two}")
    assert page.locator("table.compared tbody tr").count() == 17
    assert (seen.complaints, seen.requests, seen.violations) == ((), (), ())
    assert seen.wider_by <= 0


@pytest.mark.parametrize("path", ["/nights", "/nights/months", "/nights/compare"])
def test_on_paper_are_figures_and_charts_and_nothing_to_press(browser: Any, shown: Nights, path: str) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    two = "&".join(f"night=fraud/{TODAY - timedelta(days=ago)}" for ago in (1, 2))
    page.goto(f"{shown.url}{path}{f'?{two}' if path.endswith('compare') else ''}")
    pressed = page.locator("button:not(.word), input, select, nav.menu")
    assert any(one.is_visible() for one in pressed.all())
    page.emulate_media(media="print")
    assert not any(one.is_visible() for one in pressed.all())
    charts = page.locator("svg.chart").all()
    assert len(charts) >= (12 if path == "/nights" else 0)
    assert all(chart.is_visible() for chart in charts)  # of the model that is folded, too
    assert page.locator("table").last.is_visible()
    assert not overflows(page)


def days(page: Any) -> list[str]:
    return [str(text).strip() for text in page.locator("table.nights tbody tr:visible th").all_inner_texts()]


def test_the_table_is_sorted_filtered_and_searched_without_asking_the_server(
    browser: Any, shown: Nights
) -> None:
    page = look(browser, f"{shown.url}/nights").page
    page.locator("table.nights thead th", has_text="cost").click()
    costs = page.locator("table.nights tbody td:nth-of-type(7)").evaluate_all(
        "cells => cells.filter(cell => cell.dataset.v).map(cell => Number(cell.dataset.v))"
    )
    assert len(costs) > 100
    assert costs == sorted(costs, reverse=True)
    page.get_by_label("Model").select_option("fraud")
    page.get_by_label("Verdict").select_option("failed")
    assert 0 < len(days(page)) < 20
    page.get_by_label("Verdict").select_option("")
    page.get_by_label("Search").fill("promoted")
    assert 20 < len(days(page)) < 60
    assert page.locator("form.filter output").inner_text() == f"{len(days(page))} of 120"
    assert page.url.endswith("/nights?model=fraud&q=promoted&sort=-cost")
    before = days(page)
    page.reload()
    assert days(page) == before


@pytest.mark.parametrize("words", ["g2", "i/o", "IO", "$", "validate quarantined", "spot 2026-"])
def test_the_search_of_the_browser_finds_what_the_server_does(
    browser: Any, shown: Nights, words: str
) -> None:
    page = look(browser, f"{shown.url}/nights").page
    page.get_by_label("Search").fill(words)
    found = days(page)
    assert "q=" in page.url
    page.reload()
    assert days(page) == found
    assert (len(found) > 0) is (words != "$")


@pytest.mark.parametrize("column", ["Day", "verdict", "serves", "to champion", "time, of plan", "bound"])
def test_the_file_has_the_nights_that_are_seen_in_their_order(
    browser: Any, shown: Nights, column: str
) -> None:
    page = look(browser, f"{shown.url}/nights").page
    page.get_by_label("Search").fill("g2")
    head = page.locator("table.nights thead th", has_text=column)
    for direction in ("ascending", "descending"):
        while head.get_attribute("aria-sort") != direction:
            head.click()
        given = requests.get(f"{page.url}&format=csv", timeout=300)
        rows = [(one["model"], one["day"]) for one in csv.DictReader(io.StringIO(given.text))]
        cells = page.locator("table.nights tbody tr:visible")
        seen = [tuple(one.split()) for one in cells.evaluate_all(SEEN)]
        assert len(rows) > 100
        assert seen == rows


def test_without_scripts_the_same_is_asked_of_the_server(browser: Any, shown: Nights) -> None:
    page = look(browser, f"{shown.url}/nights", scripts=False).page
    assert len(days(page)) == 120
    page.get_by_label("Model").select_option("fraud")
    page.get_by_label("Search").fill("promoted")
    page.get_by_role("button", name="Show").click()
    assert 20 < len(days(page)) < 60
    page.locator("table.nights thead th", has_text="cost").get_by_role("link").click()
    assert "model=fraud" in page.url
    assert "sort=-cost" in page.url


@pytest.mark.parametrize("width", [390, 1280])
def test_what_stands_now_is_whole_on_each_screen_and_accessible(
    browser: Any, shown: Nights, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    seen = tests.browser.look(page, f"{shown.url}/now")
    keep(page, f"now-{width}", full_page=True)
    assert (seen.complaints, seen.requests, seen.violations) == ((), (), ())
    assert seen.wider_by <= 0
    assert "runs on local" in page.locator(".card", has_text="shop").inner_text()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_word_is_explained_where_it_stands_by_a_key_or_a_tap_without_scripts(
    browser: Any, shown: Nights, width: int
) -> None:
    page = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=False).new_page()
    page.goto(f"{shown.url}/now")
    word, meaning = page.get_by_role("button", name="power").first, page.locator("#word-power")
    assert not meaning.is_visible()
    word.click()
    assert meaning.is_visible()
    keep(page, f"word-{width}")
    page.keyboard.press("Escape")
    assert not meaning.is_visible()
    word.focus()
    page.keyboard.press("Enter")
    assert meaning.is_visible()
    box = meaning.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_months_is_whole_on_each_screen_and_accessible(
    browser: Any, shown: Nights, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    seen = tests.browser.look(page, f"{shown.url}/nights/months")
    keep(page, f"months-{width}", full_page=True)
    assert (seen.complaints, seen.requests, seen.violations) == ((), (), ())
    assert seen.wider_by <= 0
    page.get_by_label("Model").select_option("fraud")
    page.get_by_role("button", name="Show").click()
    page.locator("table.months tbody a").first.click()
    assert page.get_by_label("Month").input_value() == re.findall(r"month=([0-9-]+)", page.url)[0]
    assert 0 < len(days(page)) < 60


def test_a_running_night_moves_without_a_reload_until_it_is_a_row_of_the_table(
    browser: Any, tmp_path: Path
) -> None:
    yesterday = TODAY - timedelta(days=1)
    lead = fleet.make(tmp_path, num=3, last=yesterday, shop=1, fraud=2)
    night = training_nights.night(seconds=3600, name=str(TODAY), day=TODAY)
    with training_night.training(lead / "nights" / night.id, night=night) as job, served(lead) as url:
        training_night.beat(job, 1, night=night)
        seen = look(browser, f"{url}/nights")
        page = seen.page
        page.evaluate("window.stays = true")
        page.get_by_label("Model").select_option("shop")
        assert len(days(page)) == 3
        for number in range(2, 5):
            training_night.beat(job, number, night=night)
            share = f"{number * training_night.STEP / training_night.SAMPLES:.4f}"
            page.locator(f'.live progress[value="{share}"]').wait_for()
        assert page.locator(".live svg.chart path.line").count() == 1
        write_ledger(lead, list(nights(4, last=TODAY)))
        page.locator(f'table.nights tr:has-text("{TODAY}")').wait_for()
        assert page.locator(".live").count() == 0
        assert len(days(page)) == 4  # of the model that was chosen
        assert page.evaluate("window.stays") is True
        assert seen.errors == []


def test_the_page_of_a_running_night_becomes_its_own_once_it_is_closed(browser: Any, tmp_path: Path) -> None:
    yesterday = TODAY - timedelta(days=1)
    lead = fleet.make(tmp_path, num=3, last=yesterday, shop=1, fraud=2)
    night = training_nights.night(seconds=3600, name=str(TODAY), day=TODAY)
    with training_night.training(lead / "nights" / night.id, night=night), served(lead) as url:
        seen = look(browser, f"{url}/nights/shop/{night.id}/")
        assert seen.page.get_by_text("starts on local").first.is_visible()
        fleet.lay_page(lead, night.id)
        write_ledger(lead, list(nights(4, last=TODAY)))
        seen.page.get_by_role("link", name="Board").wait_for()
        assert seen.errors == []

"""The page of a night as a browser shows it, on a desk and on a phone, by day and by night."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daybreak.contract import records
from daybreak.report.page import write
from daybreak.storage.home import Home
from tests.browser import chromium, look
from tests.dags.servers import keep
from tests.report.nights import ODD_NAME, lay, only, sixty, unlike, whole
from tests.report.test_stage_times import preempted

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

WORDS = 150  # that a person reads on the first screen
BYTES = 500_000


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of pages: of nights that promoted, lost their machines, wait, or failed."""
    at_home = pytest.MonkeyPatch()
    at_home.setenv("MLFLOW_UI", "http://127.0.0.1:5000")
    at_home.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080")
    promoted = whole(62)
    waiting = replace(whole(63, action="reject"), commit="")
    assert promoted.verdict and waiting.verdict
    promoted = replace(promoted, verdict=replace(promoted.verdict, margin=0.03, num_units=150))
    until = waiting.night.decide_until - timedelta(hours=1)
    waiting = replace(waiting, verdict=replace(waiting.verdict, inconclusive=True, approve_until=until))
    stopped = "6.2 % of 2,478 rows are quarantined, more than 5 %; look at price"

    def with_looks(name: str, *, country: str = ODD_NAME) -> Path:
        folder = tmp_path_factory.mktemp(name)
        (folder / records.LOOKS).mkdir(parents=True)
        records.write(unlike(country=country), folder / records.LOOKS)
        return folder

    def held(folder: Path) -> Path:
        return write(Home.here(), lay(only(whole(), "batch", "champion"), folder, validate=stopped), [])

    with at_home.context():
        made = {
            "promoted": write(Home.here(), lay(promoted, with_looks("promoted")), []),
            "late": write(Home.here(), lay(preempted(), with_looks("late")), []),
            "waits": write(Home.here(), lay(waiting, tmp_path_factory.mktemp("waits")), sixty()[1:]),
            "failed": held(with_looks("failed")),
            "held": held(with_looks("held", country="Peru")),
        }
    at_home.undo()
    return {name: path.as_uri() for name, path in made.items()}


@pytest.mark.parametrize("name", ["promoted", "late", "waits", "failed"])
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_the_page_of_a_night_is_whole_quiet_and_readable_for_all(
    browser: "Browser", pages: dict[str, str], name: str, width: int, scheme: str
) -> None:
    view = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    view.goto(pages[name])
    keep(view, f"night-{name}-{width}-{scheme}")
    seen = look(view, pages[name])
    assert (seen.complaints, seen.requests, seen.violations) == ((), (), ())
    assert seen.wider_by <= 0
    assert seen.num_bytes < BYTES
    view.close()


@pytest.mark.parametrize("name", ["promoted", "waits", "failed"])
def test_the_first_screen_is_seen_without_scrolling_and_read_in_a_minute(
    browser: "Browser", pages: dict[str, str], name: str
) -> None:
    view = browser.new_page(viewport={"width": 1400, "height": 900})
    view.goto(pages[name])
    first = view.locator("header, .first")
    assert 20 < sum(len(text.split()) for text in first.all_inner_texts()) <= WORDS
    box = view.locator(".first").bounding_box()
    assert box
    assert box["y"] + box["height"] <= 900
    view.close()


def test_a_button_leads_to_a_part_that_was_folded(browser: "Browser", pages: dict[str, str]) -> None:
    view = browser.new_page()
    view.goto(pages["promoted"])
    checks = view.locator("#checks")
    assert not checks.is_visible()
    view.get_by_role("link", name="See the checks").click()
    checks.wait_for()
    view.close()


def test_a_rounded_figure_shows_the_whole_one_under_the_pointer(
    browser: "Browser", pages: dict[str, str]
) -> None:
    view = browser.new_page()
    view.goto(pages["promoted"])
    assert view.locator(".effect data").first.get_attribute("title") == "0.0142"
    assert view.locator(".facts dd").nth(1).get_attribute("title") not in (None, "", "$0.45")
    view.close()


def test_a_held_day_shows_what_held_it_without_a_click(browser: "Browser", pages: dict[str, str]) -> None:
    view = browser.new_page(viewport={"width": 1400, "height": 900})
    held = view.get_by_role("region", name="What held the day")
    view.goto(pages["held"])
    keep(held, "held")
    view.goto(pages["failed"])
    view.set_viewport_size({"width": 390, "height": 900})
    assert [chart.is_visible() for chart in held.get_by_role("img").all()] == [True, True]
    held.get_by_text("Table").last.click()
    assert held.get_by_role("row", name=ODD_NAME).inner_text().split("\t")[1:3] == ["50 %", "0 %"]
    view.close()


@pytest.mark.parametrize(
    ("name", "part", "charts", "tables"),
    [("late", "timeline", 1, 2), ("waits", "model", 2, 4), ("waits", "nights", 4, 3)],
)
def test_a_part_with_charts_and_tables_is_seen_on_paper_too(
    browser: "Browser", pages: dict[str, str], name: str, part: str, charts: int, tables: int
) -> None:
    view = browser.new_page(viewport={"width": 1200, "height": 900})
    view.goto(pages[name])
    view.locator(f"details:has(> #{part}) > summary").click()
    keep(view.locator(f"#{part}"), f"night-{part}")
    seen = view.locator(f"#{part}").get_by_role("img")
    assert seen.count() == charts
    assert view.locator(f"#{part} table").count() == tables
    view.locator(f"details:has(> #{part}) > summary").click()
    assert not seen.first.is_visible()
    view.emulate_media(media="print")
    assert all(chart.is_visible() for chart in seen.all())
    view.close()

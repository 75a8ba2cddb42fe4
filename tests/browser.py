"""A headless Chromium that notes a page's errors, requests and faults of accessibility."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.dags.servers import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LIMIT_MS = 500_000.0  # less than a test may take, so that it says what it waited for
OPEN_ALL = "document.querySelectorAll('details').forEach(part => part.open = true)"
WIDER_BY = "document.documentElement.scrollWidth - window.innerWidth"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of a page, with all its parts unfolded."""

    complaints: tuple[str, ...]  # of the console, and errors of scripts
    requests: tuple[str, ...]  # that left this machine
    violations: tuple[str, ...]  # of the rules of axe-core, whatever weight it gives them
    wider_by: int  # pixels than the window
    num_bytes: int  # of all answers


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A headless Chromium; skips the test where none is installed."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here; install Debian's package chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        browser.on("context", lambda context: context.set_default_timeout(LIMIT_MS))
        yield browser
        browser.close()


def look(page: "Page", url: str) -> Seen:
    """Opens the page at the address, unfolds its parts, and returns what was seen."""
    complaints: list[str] = []
    requests: list[str] = []
    sizes: list[int] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.on("response", lambda response: sizes.append(len(response.body())))
    page.goto(url)
    page.wait_for_load_state("networkidle")
    page.evaluate(OPEN_ALL)
    return Seen(
        complaints=tuple(complaints),
        requests=tuple(url for url in requests if not _is_here(url)),
        violations=violations(page),
        wider_by=page.evaluate(WIDER_BY),
        num_bytes=sum(sizes),
    )


def violations(page: "Page") -> tuple[str, ...]:
    """Returns the rules of axe-core that the page breaks, each with the first place."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return tuple(f"{one['id']}: {one['nodes'][0]['html']}" for one in found)


def _is_here(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("file", "data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost")

"""The site that `make docs` builds: strict, of every page, searched from the disk, nothing from a network."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import daybreak
from tests import architecture
from tests.browser import chromium

LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?([^"'\s>]+)|<link\b[^>]*\bhref=["']?([^"'\s>]+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if shutil.which("mkdocs") is None:
        pytest.skip("no mkdocs here; make setup installs it")
    folder = tmp_path_factory.mktemp("site")
    command = ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=architecture.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    yield folder


@pytest.mark.slow
def test_the_site_has_every_page_and_loads_nothing_from_a_network(site: Path) -> None:
    pages = {page.stem for page in site.glob("*.html")} - {"404"}
    sources = {page.stem for page in (architecture.ROOT / "docs").glob("*.md")}
    assert pages == sources - {"README"} | {"index"}
    for page in site.glob("*.html"):
        loaded = [script or link for script, link in LOADED.findall(page.read_text())]
        assert any(name.endswith(".js") for name in loaded)
        assert [name for name in loaded if re.match(r"(\w+:)?//", name)] == [], page.name
        assert 'class="mermaid"' not in page.read_text()  # whose script the theme would fetch
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", style.read_text()), style


@pytest.mark.slow
def test_the_reference_of_the_api_has_every_name_that_a_team_imports(site: Path) -> None:
    text = (site / "api.html").read_text()
    assert [name for name in daybreak.__all__ if f'id="daybreak.{name}"' not in text] == []


@pytest.mark.slow
def test_the_search_of_the_site_finds_a_word_from_the_disk(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ") and "quarantine" in index
    with chromium() as browser:
        page = browser.new_page()
        page.context.set_offline(True)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.fill("input.md-search__input", "quarantine")
        page.wait_for_selector(".md-search-result__item a[href*='own-data.html']", state="attached")
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []

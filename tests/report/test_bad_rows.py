"""Lists the rows that failed a rule in a night, from its folder or DVC's cache, or else only counts."""

import json
import shutil
from dataclasses import replace
from datetime import date, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak import cli
from daybreak.contract import records
from daybreak.contract.record_parts import Expectation
from daybreak.data.data_docs import DOCS
from daybreak.data.partitions import QUARANTINE, part_of
from daybreak.data.quarantine import REFUSED
from daybreak.report import bad_rows, page
from daybreak.storage import checkout, dvc_cache, ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from daybreak.storage.night_folders import entry_of
from tests.report.nights import lay, only, sixty, whole
from tests.rollout.ledgers import make_home

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>[bold]"
PRICE, QUANTITY = "price_is_positive", "quantity_is_not_zero"
DAY = date(2011, 11, 8)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "140")
    return make_home(tmp_path, monkeypatch)


def put(folder: Path, day: date, *rules: str, under: Path = QUARANTINE) -> None:
    """A file of bad rows, one that failed each of these rules."""
    path = folder / part_of(day, under)
    path.parent.mkdir(parents=True)
    items = [f"{number} {EVIL}" for number in range(len(rules))]
    prices = [-1.5] * len(rules)
    pq.write_table(pa.table({"item": items, "price": prices, "(rule)": list(rules)}), path)


def night_of(home: Path, entry: Entry | None = None) -> Path:
    """The folder of a night that is not closed yet: 37 bad rows came in; one of another night is there."""
    entry = entry or whole()
    folder = home / "nights" / entry.night.id
    lay(entry, folder)
    put(folder, DAY, *[PRICE] * 28)
    put(folder, DAY - timedelta(days=2), *[QUANTITY] * 8, PRICE)
    put(folder, DAY - timedelta(days=30), PRICE)
    return folder


class Tags(HTMLParser):
    """The tags of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)


def test_the_rows_that_came_in_tonight_are_found_under_their_rules(home: Path) -> None:
    bad = bad_rows.of_night(Home.here(), whole(), night_of(home))
    by_rule = {one.rule: (one.column, one.num_failed, one.num_kept, len(one.rows)) for one in bad.rules}
    assert by_rule == {
        PRICE: ("price", 29, 29, 20),
        QUANTITY: ("quantity", 8, 8, 8),
        "rows_as_usual": ("", 0, 0, 0),
    }
    assert bad.severity == "tolerated" and "tolerated 37 bad rows of 2,478" in bad.where
    last = bad.rules[0].rows[0]
    assert (last.file, last.number, last.day) == (
        str(part_of(date(2011, 11, 6), QUARANTINE)),
        8,
        "2011-11-06",
    )
    assert last.values == {"item": f"8 {EVIL}", "price": -1.5}


def test_the_command_shows_the_rows_of_a_rule_how_many_more_and_its_history(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = night_of(home).name
    assert cli.main(["rows", "--night", name, "--rule", PRICE, "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("item ") == 2 and "27 more rows; show them with --limit 29" in shown
    assert EVIL in shown and QUANTITY not in shown
    assert cli.main(["rows", "--night", name, "--json", "--limit", "100"]) == 0
    rules = json.loads(capsys.readouterr().out)["rules"]
    assert [len(one["rows"]) for one in rules] == [29, 8, 0]
    assert rules[0]["rows"][0]["values"]["price"] == -1.5
    assert cli.main(["rows", "--night", name, "--rule", "none of them"]) == 99
    assert cli.main(["rows", "--night", "2012-01-01"]) == 99


def test_the_page_shows_twenty_rows_of_a_rule_as_text_and_its_copies_show_none(home: Path) -> None:
    folder = night_of(home)
    (folder / DOCS).mkdir(parents=True)
    (folder / DOCS / "rows.html").touch()
    html = page.write(Home.here(), folder, sixty()).read_text()
    assert html.count("&lt;script&gt;alert") == 28
    assert not {"script", "img"} & set(Tags(html).names)
    assert f"And 9 more: <code>daybreak rows --night {folder.name} --limit 29</code>" in html
    assert 'href="docs/rows.html"' in html
    assert "failed in 56 of 56 other nights, at most 29 rows" in html.replace("\N{NO-BREAK SPACE}", " ")
    copy = page.page(Home.here(), folder, sixty())
    assert "alert" not in copy and "docs/" not in copy and PRICE in copy


def test_a_night_that_validate_stopped_is_serious_and_shows_the_rows_that_came_in(home: Path) -> None:
    folder = night_of(home, only(whole(), "batch", "champion"))
    (folder / records.RUN / "validate.error").write_text("6.2 % of 2,478 rows fail the rules")
    bad = bad_rows.of_night(Home.here(), entry_of(folder), folder)
    assert (bad.severity, bad.rules) == ("serious", ())  # the quarantine is that of the nights before
    put(folder, DAY, PRICE, PRICE, QUANTITY, under=REFUSED)
    bad = bad_rows.of_night(Home.here(), entry_of(folder), folder)
    assert [(one.rule, one.num_failed, one.num_kept) for one in bad.rules] == [
        (PRICE, None, 2),
        (QUANTITY, None, 1),
    ]
    html = page.write(Home.here(), folder, []).read_text()
    assert "Serious: validate stopped the night" in html and html.count("&lt;script&gt;alert") == 3


def test_the_history_of_a_rule_tells_tolerated_serious_and_clean_nights_apart() -> None:
    entry = whole()
    assert entry.report
    clean = replace(
        entry.report,
        expectations=(Expectation(rule=PRICE, column="price", num_failed=0, success=True),),
    )
    history = [replace(entry, report=clean), *sixty()]
    nights = bad_rows.over_nights(PRICE, history)
    assert [(one.severity, one.num_failed) for one in nights[:2]] == [(None, 0), ("tolerated", 29)]
    assert sum(one.severity == "serious" and one.num_failed is None for one in nights) == 3
    assert len(bad_rows.over_nights("none of them", history)) == 3  # were stopped, whichever rule it was
    assert bad_rows.before(PRICE, history, "") == "failed in 57 of 58 other nights, at most 29 rows"


def test_a_pruned_night_is_read_from_the_cache_and_then_from_the_ledger_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = whole()
    night = replace(entry.night, code_commit=checkout.git("rev-parse", "HEAD"), previous="")
    folder = night_of(home, replace(entry, night=night))
    quarantine = folder / QUARANTINE
    listing, digest = records.listing(quarantine), records.digest(quarantine)
    for path in quarantine.rglob("*.parquet"):
        dvc_cache.put(Home.here(), records.digest(path), path)
    (folder / "list").write_text(listing)
    dvc_cache.put(Home.here(), digest, folder / "list")
    (home / "dvc.lock").write_text(f"stages: {{validate: {{outs: [{{path: {QUARANTINE}, md5: {digest}}}]}}}}")
    shutil.copytree(folder / "data/run", home / "data/run")
    ledger.commit_night(Home.here(), night, message="closed")
    shutil.rmtree(folder)
    assert cli.main(["rows", "--rule", PRICE]) == 0  # the newest
    shown = capsys.readouterr().out
    assert "read from DVC's cache" in shown and shown.count("item ") == 20
    dvc_cache.path_of(Home.here(), digest).unlink()
    assert cli.main(["rows", "--rule", PRICE]) == 0
    shown = capsys.readouterr().out
    assert "pruned here (night.keep, night.keep_days)" in shown and "item " not in shown and " 29" in shown

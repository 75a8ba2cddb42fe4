"""Names, reasons and columns are text on every page: the report, the board, Data Docs, MLflow, Airflow."""

import dataclasses
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from daybreak.contract import records
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Verdict
from daybreak.contract.table import Float, Table, Time
from daybreak.data import data_docs
from daybreak.data.suite import BETWEEN, Judge, Rule, schema_rules
from daybreak.extensions.pages.board import Model, files
from daybreak.report import version_page
from daybreak.report.night_rows import row_of
from daybreak.report.page import page
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from tests.report.nights import lay, whole

EVIL = "</title></script>--><img src=x onerror=alert(1)><svg onload=alert(1)>\"'><script>alert(1)</script>"
MARKUP = f"{EVIL} ![x](//evil/x.png) [approve](javascript:alert(1)) | `x` **Verdict: promote.**\n\n---\n\n"
RUNS = {"script", "iframe", "object", "embed", "img", "form", "link", "base"}


class Page(HTMLParser):
    """What a browser would run or fetch for a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.active: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.active += [tag] if tag in RUNS else []
        self.active += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]
        self.active += [f"{name}={value}" for name, value in attrs if "javascript:" in (value or "").lower()]
        self.active += [f"{name}={value}" for name, value in attrs if (value or "").startswith("//evil")]


def with_evil(value: Any) -> Any:
    """The record with every free text in it replaced, but what pages are found or drawn by."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        free = [one.name for one in fields if "Literal" not in str(one.type) and one.name not in KEPT]
        return replace(value, **{name: with_evil(getattr(value, name)) for name in free})
    if isinstance(value, tuple):
        return tuple(with_evil(one) for one in value)
    if isinstance(value, dict):
        return {key if key in KEPT else f"{key} {EVIL}": with_evil(one) for key, one in value.items()}
    return EVIL if isinstance(value, str) else value


KEPT = {"id", "score", "champion_score", "evidence"}


def board(entry: Entry, *, model: str) -> str:
    shown = Model(name=model, rows=[row_of(entry)], pages={entry.night.id: "night.html"}, fault=model)
    return dict(files([shown], name="board", at=entry.night.started_at))["board.html"]


def test_the_page_of_a_night_and_the_board_run_nothing_that_a_record_says(tmp_path: Path) -> None:
    entry = with_evil(whole())
    html = page(Home.here(), lay(entry, tmp_path), [entry])
    assert html.count("onerror") > 20  # shown, as text
    assert Page(html).active == []
    (tmp_path / records.RUN / "train.error").write_text(EVIL)
    assert Page(page(Home.here(), tmp_path, [])).active == []
    html = board(entry, model=EVIL)
    assert html.count("onerror") > 3
    assert Page(html).active == Page(board(whole(), model="shop")).active == ["form", "script"]  # its own


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Great Expectations
@pytest.mark.slow
@pytest.mark.promise
def test_data_docs_run_nothing_that_a_column_a_rule_or_a_type_is_called(tmp_path: Path) -> None:
    table = Table(columns={"time": Time(), EVIL: Float()}, time="time")
    types = pd.DataFrame({"time": ["timestamp[us]"], EVIL: [EVIL], f"{EVIL}2": [EVIL]})
    rule = Rule(name=EVIL, type=BETWEEN, kwargs={"column": EVIL, "min_value": 0, "max_value": 0})
    figures, day = pd.DataFrame({EVIL: [3]}), date(2026, 11, 24)
    data_docs.write(
        tmp_path / "docs",
        {
            "schema": data_docs.of_types(Judge().findings(schema_rules(table), types)),
            "days": data_docs.of_figures(Judge().findings([rule], figures), figures, [day]),
        },
        [day],
    )
    pages = list((tmp_path / "docs").rglob("*.html"))
    assert len(pages) == 3
    assert all("onerror" in one.read_text() for one in pages)
    for one in pages:
        active = Page(one.read_text()).active
        assert [what for what in active if "alert" in what or what.startswith(("img on", "svg on"))] == []


LINK = re.compile(r"(?<!\\)\[[^\]]*\]\([^)]*\)")


def described(entry: Entry, verdict: Verdict) -> str:
    """The page of the version in MLflow, after the verdict."""
    return version_page.described(replace(entry, verdict=verdict), {"source": MARKUP})


def test_the_page_of_a_version_shows_names_and_reasons_as_they_are() -> None:
    """In Markdown, of which MLflow shows HTML: no picture, no link, no heading and no verdict but ours."""
    entry = whole()
    assert entry.verdict and entry.evaluation
    plain = described(entry, entry.verdict)
    entry = replace(entry, evaluation=replace(entry.evaluation, metrics={"score": 0.5}))
    assert entry.verdict and entry.evaluation
    slices = tuple(replace(one, name=MARKUP) for one in entry.evaluation.slices)
    evil = replace(
        entry,
        night=replace(entry.night, trigger=MARKUP),
        evaluation=replace(entry.evaluation, slices=slices, metrics={"score": 0.5, MARKUP: 1.0}),
    )
    check = Check(name=MARKUP, ok=True, text=MARKUP)
    text = described(evil, replace(entry.verdict, reason=MARKUP, checks=(*entry.verdict.checks, check)))
    plain, shown = (re.sub(r"`[^`\n]*`", "", one.replace("\\`", "")) for one in (plain, text))  # no code
    assert "<" not in shown
    assert LINK.findall(shown) == LINK.findall(plain)
    assert shown.count("**Verdict") == plain.count("**Verdict") == 1
    assert text.count("\n\n---\n\n") == plain.count("\n\n---\n\n")


@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.promise
def test_the_question_in_airflow_shows_names_and_reasons_as_they_are(tmp_path: Path) -> None:
    dags = Path(__file__).parents[2] / "dags"
    code = f"import sys; sys.path.insert(0, {str(dags)!r}); import review; print(review.plain({MARKUP!r}))"
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "DAYBREAK_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    (line,) = done.stdout.splitlines()[-1:]
    assert not re.search(r"<|(?<!\\)[\[`|*]", line)

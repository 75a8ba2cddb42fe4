"""Finds where pages lead to: other nights and the board as files, runs and versions in MLflow and Airflow.

A page is read from a disk, so that files are linked relative to it, and only those that are there. A server
is linked where the environment names it, as that of `make up` does: $MLFLOW_UI and $AIRFLOW__API__BASE_URL.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from pipeline.contract import records
from pipeline.report.night_rows import NightRow
from pipeline.report.templates import render
from pipeline.storage.ledger import Entry

PAGE = records.RUN / "report.html"
BOARD = Path("var") / "board.html"
NIGHTS = "/nights"  # of the server of pages
OTHER_PAGES = re.compile(r'<nav aria-label="Other pages">.*?</nav>', re.DOTALL)  # in page.html


def nights(rows: Sequence[NightRow], *, board: Path, home: Path) -> dict[str, str]:
    """Returns the address of each night's page by its id, for a board that is written to `board`.

    It is a file where that is still here, else what MLflow keeps; a night with neither is left out.
    """
    found = {}
    for row in rows:
        if row.is_rollback:
            continue
        page = home / "nights" / row.night / PAGE
        if page.exists():
            found[row.night] = _relative(page, board.parent)
        elif kept := kept_page(row):
            found[row.night] = kept
    return found


def kept_page(row: NightRow) -> str:
    """Returns the address of MLflow's copy of a night's page; "" where there is none."""
    path = f"experiments/0/runs/{quote(row.run_id, safe='')}/artifacts/{PAGE.name}"
    return f"{_mlflow()}/#/{path}" if row.run_id and _mlflow() else ""


def served(model: str, night: str) -> str:
    """Returns the address of a night's page at the server of pages (pipeline/serving/night_pages.py)."""
    return f"{NIGHTS}/{quote(model, safe='')}/{quote(night, safe='')}/"


def at_server(page: str, around: Mapping[str, str]) -> str:
    """Returns a night's page with links to the server's other pages in place of those to files."""
    return OTHER_PAGES.sub(lambda _: render("page_links.html", around=around), page, count=1)


def around(entry: Entry, history: Sequence[Entry], folder: Path, *, home: Path) -> dict[str, str]:
    """Returns links of the page in `folder` to the board and the nights before and after, by their words."""
    ids = list(dict.fromkeys(one.night.id for one in history if not one.rollback))  # newest first
    at = ids.index(entry.night.id) if entry.night.id in ids else -1
    pages = {
        "Board": home / BOARD,
        "Previous night": _page(ids[at + 1 :], home),
        "Next night": _page(ids[:at][::-1] if at > 0 else [], home),
    }
    start = (folder / PAGE).parent
    return {name: _relative(page, start) for name, page in pages.items() if page and page.exists()}


def servers(entry: Entry) -> dict[str, str]:
    """Returns links to the night's run and version in MLflow and to its run in Airflow, by their words."""
    links, version = {}, entry.version
    if version and (mlflow := _mlflow()):
        name, run = quote(version.name, safe=""), quote(version.run_id, safe="")
        links["MLflow run"] = f"{mlflow}/#/runs/{run}"
        links["MLflow version"] = f"{mlflow}/#/models/{name}/versions/{version.number}"
    airflow = os.environ.get("AIRFLOW__API__BASE_URL", "").rstrip("/")
    dag, _, run = entry.night.airflow_run.partition("/")
    if airflow and run:
        links["Airflow run"] = f"{airflow}/dags/{quote(dag, safe='')}/runs/{quote(run, safe='')}"
    return links


def _page(ids: Sequence[str], home: Path) -> Path | None:
    """Returns the first page of these nights that is here."""
    pages = (home / "nights" / night / PAGE for night in ids)
    return next((page for page in pages if page.exists()), None)


def _mlflow() -> str:
    """Returns the address of MLflow's pages; "" where the environment names none."""
    return os.environ.get("MLFLOW_UI", "").rstrip("/")


def _relative(page: Path, start: Path) -> str:
    return quote(Path(os.path.relpath(page.resolve(), start.resolve())).as_posix())

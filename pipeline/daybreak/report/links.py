"""Finds where pages lead to: other nights and the board as files, runs and versions in MLflow and Airflow.

A page is read from a disk, so that files are linked relative to it, and only those that are there. A server
is linked where the environment names it, as that of `make up` does: $MLFLOW_UI, $AIRFLOW__API__BASE_URL and
$NIGHTS_UI.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from daybreak.contract import records
from daybreak.contract.record_types import Version
from daybreak.data.data_docs import DOCS
from daybreak.report.night_rows import NightRow
from daybreak.report.templates import render
from daybreak.storage.ledger import Entry

PAGE = records.RUN / "report.html"
BOARD = Path("var") / "board.html"
ROLLBACK_DAG = "DAYBREAK_ROLLBACK_DAG"  # its id, as dags/notify.py gives it
NIGHTS = "/nights"  # of the server of pages
OTHER_PAGES = re.compile(r'<nav aria-label="Other pages">.*?</nav>', re.DOTALL)  # in page.html
_FILES = re.compile(r'<nav aria-label="Files">.*?</nav>', re.DOTALL)  # in page_raw.html
TRAINING = "workflowType=machine_learning"  # without it, MLflow opens in its view for language models

# Host and path of a git remote, by https or by ssh in either of its two forms.
_REMOTE = re.compile(
    r"(?:https://(?:[^@/]*@)?|ssh://(?:[^@/]*@)?|[^@/]+@)([\w.-]+)(?::\d+/|[:/])(.+?)(?:\.git)?/?"
)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Addresses of pages of servers about a night; "" where the server or the page is not known."""

    airflow_run: str = ""
    review: str = ""  # where a person answers
    rollback: str = ""  # where one is started
    run: str = ""
    version: str = ""


def nights(rows: Sequence[NightRow], *, board: Path, home: Path) -> dict[str, str]:
    """Returns the address of each night's page by its id, for a board that is written to `board`.

    It is a file where that is still here, else what MLflow keeps; a night with neither is left out.
    """
    addresses = {}
    for row in rows:
        if row.is_rollback:
            continue
        page = home / "nights" / row.night / PAGE
        if page.exists():
            addresses[row.night] = _relative(page, board.parent)
        elif kept := kept_page(row):
            addresses[row.night] = kept
    return addresses


def kept_page(row: NightRow) -> str:
    """Returns the address of MLflow's copy of a night's page; "" where there is none."""
    path = f"experiments/{row.experiment}/runs/{quote(row.run_id, safe='')}/artifacts/{PAGE.name}"
    return f"{_mlflow()}/#/{path}?{TRAINING}" if row.run_id and _mlflow() else ""


def served(model: str, night: str) -> str:
    """Returns the address of a night's page at the server of pages (`daybreak pages`)."""
    return f"{NIGHTS}/{quote(model, safe='')}/{quote(night, safe='')}/"


def at_server(page: str, around: Mapping[str, str]) -> str:
    """Returns a night's page with links to the server's other pages in place of those to files."""
    return _FILES.sub("", OTHER_PAGES.sub(lambda _: render("page_links.html", around=around), page, count=1))


def around(entry: Entry, history: Sequence[Entry], folder: Path, *, home: Path) -> dict[str, str]:
    """Returns links of the page in `folder` to other pages that are here, by their words."""
    ids = list(dict.fromkeys(one.night.id for one in history if not one.rollback))  # newest first
    at = ids.index(entry.night.id) if entry.night.id in ids else -1
    pages = {
        "Board": home / BOARD,
        "Previous night": _page(ids[at + 1 :], home),
        "Next night": _page(ids[:at][::-1] if at > 0 else [], home),
        "Data Docs": folder / DOCS / "index.html",
    }
    start = (folder / PAGE).parent
    return {name: _relative(page, start) for name, page in pages.items() if page and page.exists()}


def places(entry: Entry) -> Places:
    """Returns the pages of MLflow and Airflow about the night."""
    airflow = os.environ.get("AIRFLOW__API__BASE_URL", "").rstrip("/")
    dag, _, run = entry.night.airflow_run.partition("/")
    ran = f"{airflow}/dags/{quote(dag, safe='')}/runs/{quote(run, safe='')}" if airflow and run else ""
    back = os.environ.get(ROLLBACK_DAG) or _rollback_of(dag)
    return Places(
        airflow_run=ran,
        review=f"{ran}/tasks/review/required_actions" if ran else "",
        rollback=f"{airflow}/dags/{quote(back, safe='')}" if airflow and back else "",
        run=_page_of(entry.version, "experiments/{experiment}/runs/{run_id}"),
        version=_page_of(entry.version, "models/{name}/versions/{number}"),
    )


def now() -> str:
    """Returns the address of the page of what stands now; "" where no server of pages is named."""
    pages = os.environ.get("NIGHTS_UI", "").rstrip("/")
    return f"{pages}/now" if pages else ""


def _rollback_of(dag: str) -> str:
    """Returns the DAG that rolls back what a DAG of nights promotes; "" where a team has named that."""
    of_nights = re.fullmatch(r"retrain(\..+)?", dag or "retrain")
    return f"rollback{of_nights[1] or ''}" if of_nights else ""


def servers(entry: Entry) -> dict[str, str]:
    """Returns links to the night's run and version in MLflow and to its run in Airflow, by their words."""
    known = places(entry)
    links = {"MLflow run": known.run, "MLflow version": known.version, "Airflow run": known.airflow_run}
    return {name: address for name, address in links.items() if address}


def commit(remote: str, commit_id: str) -> str:
    """Returns the address of a commit at the host of a git remote; "" where that has no pages.

    >>> commit("git@github.com:shop/nights.git", "c0de")
    'https://github.com/shop/nights/commit/c0de'
    >>> commit("https://token@git.example.com/shop/nights", "c0de")
    'https://git.example.com/shop/nights/commit/c0de'
    >>> commit("/backup/nights.git", "c0de")
    ''
    """
    at = _REMOTE.fullmatch(remote)
    return f"https://{at[1]}/{at[2]}/commit/{commit_id}" if at else ""


def in_messages(entry: Entry) -> dict[str, str]:
    """Returns links for a message about a night, by their words: MLflow's copy of its page first."""
    kept = _page_of(entry.version, "experiments/{experiment}/runs/{run_id}/artifacts/" + PAGE.name)
    known = places(entry)
    links = {"Report": kept, **servers(entry), "Review": known.review, "Rollback": known.rollback}
    return {name: address for name, address in links.items() if address}


def _page(ids: Sequence[str], home: Path) -> Path | None:
    """Returns the first page of these nights that is here."""
    pages = (home / "nights" / night / PAGE for night in ids)
    return next((page for page in pages if page.exists()), None)


def _mlflow() -> str:
    """Returns the address of MLflow's pages; "" where the environment names none."""
    return os.environ.get("MLFLOW_UI", "").rstrip("/")


def _page_of(version: Version | None, page: str) -> str:
    """Returns the address of a page of MLflow about a version; "" where there is none."""
    if version is None or not _mlflow():
        return ""
    parts = {"name": version.name, "run_id": version.run_id, "experiment": version.experiment}
    shown = {name: quote(part, safe="") for name, part in parts.items()}
    return f"{_mlflow()}/#/{page.format(number=version.number, **shown)}?{TRAINING}"


def _relative(page: Path, start: Path) -> str:
    return quote(Path(os.path.relpath(page.resolve(), start.resolve())).as_posix())

"""Finds where pages lead to: other nights and the board as files, runs and versions in MLflow and Airflow.

A page is read from a disk, so that files are linked relative to it, and only those that are there. A server
is linked where the environment names it, as that of `make up` does: $MLFLOW_UI and $AIRFLOW__API__BASE_URL.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from pipeline.contract import records
from pipeline.storage.ledger import Entry

PAGE = records.RUN / "report.html"
BOARD = Path("var") / "board.html"


def nights(history: Sequence[Entry], *, board: Path, home: Path) -> dict[str, str]:
    """Returns the address of each night's page by its id, for a board that is written to `board`.

    It is a file where that is still here, else what MLflow keeps; a night with neither is left out.
    """
    found = {}
    for entry in history:
        if entry.rollback:
            continue
        page = home / "nights" / entry.night.id / PAGE
        if page.exists():
            found[entry.night.id] = _relative(page, board.parent)
        elif kept := _mlflow(entry, f"experiments/0/runs/{{run_id}}/artifacts/{PAGE.name}"):
            found[entry.night.id] = kept
    return found


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
    links = {
        "MLflow run": _mlflow(entry, "runs/{run_id}"),
        "MLflow version": _mlflow(entry, "models/{name}/versions/{number}"),
    }
    airflow = os.environ.get("AIRFLOW__API__BASE_URL", "").rstrip("/")
    dag, _, run = entry.night.airflow_run.partition("/")
    if airflow and run:
        links["Airflow run"] = f"{airflow}/dags/{quote(dag, safe='')}/runs/{quote(run, safe='')}"
    return {name: address for name, address in links.items() if address}


def _page(ids: Sequence[str], home: Path) -> Path | None:
    """Returns the first page of these nights that is here."""
    pages = (home / "nights" / night / PAGE for night in ids)
    return next((page for page in pages if page.exists()), None)


def _mlflow(entry: Entry, page: str) -> str:
    """Returns the address of a page of MLflow about the night's version; "" where there is none."""
    address = os.environ.get("MLFLOW_UI", "").rstrip("/")
    version = entry.version
    if not address or version is None:
        return ""
    name = quote(version.name, safe="")
    return (
        f"{address}/#/{page.format(run_id=quote(version.run_id, safe=''), name=name, number=version.number)}"
    )


def _relative(page: Path, start: Path) -> str:
    return quote(Path(os.path.relpath(page.resolve(), start.resolve())).as_posix())

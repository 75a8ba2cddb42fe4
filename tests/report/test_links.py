from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from daybreak.extensions.pages.board import Model, files
from daybreak.report import links
from daybreak.report.night_rows import row_of
from daybreak.report.page import page, renew, write, write_with_copy
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from tests.report.nights import lay, whole

MLFLOW = "http://127.0.0.1:5000"


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """Three nights, newest first, of which the middle one has no page any more."""
    for name in ("MLFLOW_UI", "AIRFLOW__API__BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    # Without a commit, as there is no ledger to read the rows of the night from.
    entries = [replace(whole(10 + n, date(2011, 11, 6 + n)), commit="") for n in range(3)][::-1]
    for entry in (entries[0], entries[2]):
        (tmp_path / "nights" / entry.night.id / links.PAGE.parent).mkdir(parents=True)
        (tmp_path / "nights" / entry.night.id / links.PAGE).write_text("a page")
    return entries


def test_a_page_leads_to_the_next_pages_that_are_here_and_to_no_other(
    history: list[Entry], tmp_path: Path
) -> None:
    folder = tmp_path / "nights" / history[0].night.id
    assert links.around(history[0], history, folder, home=tmp_path) == {
        "Previous night": "../../../2011-11-06/data/run/report.html"
    }
    (tmp_path / "var").mkdir()
    (tmp_path / "var/board.html").touch()
    oldest = links.around(history[2], history, tmp_path / "nights/2011-11-06", home=tmp_path)
    assert oldest == {
        "Board": "../../../../var/board.html",
        "Next night": "../../../2011-11-08/data/run/report.html",
    }
    tonight = whole(13, date(2011, 11, 9))  # before `close`
    newest = links.around(tonight, history, tmp_path / "nights/2011-11-09", home=tmp_path)
    assert newest["Previous night"] == "../../../2011-11-08/data/run/report.html"


def test_the_board_leads_to_pages_here_and_else_to_those_in_mlflow(
    history: list[Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row_of(entry) for entry in history]

    def board(there: dict[str, str]) -> str:
        model = Model(name="shop", rows=rows, pages=there)
        return dict(files([model], name="board", at=datetime(2011, 11, 9, tzinfo=UTC)))["board.html"]

    there = links.nights(rows, board=tmp_path / links.BOARD, home=tmp_path)
    assert there == {day: f"../nights/{day}/data/run/report.html" for day in ("2011-11-08", "2011-11-06")}
    assert board(there).count("<a href") == 2
    monkeypatch.setenv("MLFLOW_UI", f"{MLFLOW}/")
    there = links.nights(rows, board=tmp_path / links.BOARD, home=tmp_path)
    run = "0123456789abcdef0123456789abcdef"
    copy = f"{MLFLOW}/#/experiments/0/runs/{run}/artifacts/report.html?workflowType=machine_learning"
    assert there["2011-11-07"] == copy
    html = board(there)
    assert all(f'href="{address}"' in html for address in there.values())
    assert len(there) == 3


def test_a_page_leads_to_its_run_and_version_in_mlflow_and_to_its_run_in_airflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = whole()
    run = "retrain.shop/manual__2026-11-21T20:26:01+00:00"
    entry = replace(entry, night=replace(entry.night, airflow_run=run))
    monkeypatch.delenv("MLFLOW_UI", raising=False)
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    assert links.servers(entry) == {}
    monkeypatch.setenv("MLFLOW_UI", MLFLOW)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080")
    shown = page(Home.here(), lay(entry, tmp_path), [])
    for link in (
        f"{MLFLOW}/#/experiments/0/runs/0123456789abcdef0123456789abcdef?workflowType=machine_learning",
        f"{MLFLOW}/#/models/daybreak/versions/12?workflowType=machine_learning",
        "http://127.0.0.1:8080/dags/retrain.shop/runs/manual__2026-11-21T20%3A26%3A01%2B00%3A00",
    ):
        assert f'<a href="{link}">' in shown
    assert "Airflow run" not in links.servers(whole())  # of a night from the command line


def test_a_page_leads_to_the_rollback_of_the_same_home_or_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def leads(run: str) -> str:
        entry = whole()
        return links.places(replace(entry, night=replace(entry.night, airflow_run=run))).rollback

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://a")
    monkeypatch.delenv("DAYBREAK_ROLLBACK_DAG", raising=False)
    assert leads("") == leads("retrain/r") == "http://a/dags/rollback"
    assert leads("retrain.shop/r") == "http://a/dags/rollback.shop"
    assert leads("shop-nightly/r") == leads("retrain-shop/r") == ""
    monkeypatch.setenv("DAYBREAK_ROLLBACK_DAG", "shop-back")
    assert leads("shop-nightly/r") == leads("retrain.shop/r") == "http://a/dags/shop-back"


def test_an_older_page_learns_of_the_night_after_it_and_of_a_rollback(
    history: list[Entry], tmp_path: Path
) -> None:
    newest, _, oldest = history
    folder = lay(oldest, tmp_path / "nights/2011-11-06")
    path = write(Home(tmp_path), folder, [oldest])
    assert "Next night" not in path.read_text()
    renew(Home(tmp_path), oldest, history)
    assert "Next night" in path.read_text()
    path, copy = write_with_copy(Home(tmp_path), folder, history)
    assert "Next night" in path.read_text()
    assert "Next night" not in copy  # MLflow has no file of that night beside it
    assert "Promoted: version 10" in path.read_text()
    release = oldest.release
    assert release
    gone = replace(oldest, rollback=True, release=replace(release, version=9, replaced=10))
    renew(Home(tmp_path), oldest, [newest, gone, oldest])
    assert "Promoted, then rolled back: version 10" in path.read_text()

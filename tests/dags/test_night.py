"""A whole night on PostgreSQL (Airflow and MLflow), asked for in the form of a real browser.

SCREENSHOTS=FOLDER keeps what the browser saw.
"""

import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import params
from tests.dags.servers import IDENTITY, Standalone, airflow_standalone, environment, free_port, server

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REASON = "asked for in a browser"


@dataclass(frozen=True)
class House:
    """The servers of one night, and the database that both of them keep their records in."""

    airflow: Standalone
    mlflow: str
    store: str


@pytest.fixture(scope="module")
def house(checkout: Path, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("servers")
    params.override(checkout, ["train.epochs=1"], into=checkout)  # what is shown here needs no good model
    subprocess.run(
        ["git", *IDENTITY, "commit", "--all", "--quiet", "-m", "train less"], cwd=checkout, check=True
    )
    store = f"postgresql+psycopg2://airflow@/mlflow?host={postgres}"
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return bool(urllib.request.urlopen(f"{url}/health", timeout=5).status == 200)
        return False

    call = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    call += ["--backend-store-uri", store, "--artifacts-destination", str(folder / "artifacts")]
    given = environment(folder) | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with server(call, given=given, folder=folder, up=up):
        database = f"postgresql+psycopg2://airflow@/airflow?host={postgres}"
        with airflow_standalone(
            folder,
            home=checkout,
            dags=checkout / "dags",
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=database,
            AIRFLOW__CORE__EXECUTOR="LocalExecutor",
            MLFLOW_TRACKING_URI=url,
            MLFLOW_UI=url,
        ) as airflow:
            yield House(airflow, url, store)


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page of a headless Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here; install Debian's package chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1400, "height": 900})
        browser.close()


def keep(page: Any, name: str) -> None:
    """Keep what the page shows, where somebody asked for it."""
    if "/#/" in page.url and (close := page.get_by_label("Close").first).is_visible():
        close.click()  # MLflow's assistant, which covers part of the page
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def folder_of(house: House, name: str) -> Path:
    """Worktree of the night of a run."""
    return house.airflow.home / "nights" / name.replace(":", "-").replace("+", "-")


def clear_while_it_trains(house: House, name: str) -> None:
    """Clear the training task, and all after it, while its job is alive."""
    jobs = folder_of(house, name) / "data/work/jobs"
    house.airflow.until(lambda: list(jobs.glob("*/job.json")), seconds=600)
    body = {"dag_run_id": name, "task_ids": ["train"], "include_downstream": True, "dry_run": False}
    body["only_failed"] = False
    status, answer = house.airflow.ask("POST", "/api/v2/dags/retrain/clearTaskInstances", body)
    assert status == 200, answer
    assert "train" in {task["task_id"] for task in answer["task_instances"]}


@pytest.fixture(scope="module")
def night(house: House, page: Any) -> Any:
    """The run that the form made, as the interface tells of it at the end."""
    page.goto(f"{house.airflow.url}/dags/retrain")
    page.get_by_role("button", name="Trigger").first.click()
    page.locator("#element_reason").fill(REASON)
    page.locator("[name=element_train_hours]").fill("2")
    keep(page, "form")
    page.get_by_role("button", name="Trigger").last.click()
    runs = "/api/v2/dags/retrain/dagRuns"
    name = house.airflow.until(
        lambda: [r["dag_run_id"] for r in house.airflow.ask("GET", runs)[1]["dag_runs"]]
    )[0]
    page.goto(f"{house.airflow.url}/dags/retrain/runs/{name}")
    clear_while_it_trains(house, name)
    state = house.airflow.run_to_the_end(name, seconds=600)
    tasks = house.airflow.ask("GET", f"{runs}/{name}/taskInstances")[1]["task_instances"]
    assert state == "success", {task["task_id"]: task["state"] for task in tasks}
    page.reload()
    page.get_by_text("Success").nth(12).wait_for()
    keep(page, "run")
    return house.airflow.ask("GET", f"{runs}/{name}")[1]


def test_the_form_makes_a_night_that_ends_green_on_postgresql(house: House, night: Any) -> None:
    assert night["conf"]["reason"] == REASON
    folder = folder_of(house, night["dag_run_id"])
    assert f"manual: {REASON}" in (folder / "data/run/night.json").read_text()


def test_a_clear_during_the_training_makes_no_second_job_and_no_second_commit(
    house: House, night: Any
) -> None:
    folder = folder_of(house, night["dag_run_id"])
    assert len(list((folder / "data/work/jobs").glob("*/job.json"))) == 1
    log = ["git", "log", "--format=%B", "nights", "--"]
    ledger = subprocess.check_output(log, cwd=house.airflow.home, text=True)
    assert ledger.count(f"Night: {folder.name}\n") == 1, ledger


def test_the_version_serves_and_stands_in_the_registry_with_its_description(
    house: House, night: Any, page: Any
) -> None:
    asked = f"{house.mlflow}/api/2.0/mlflow/registered-models/alias?name=daybreak&alias=champion"
    with urllib.request.urlopen(asked, timeout=60) as answer:
        version = json.loads(answer.read())["model_version"]
    assert version["description"]
    page.goto(f"{house.mlflow}/#/models/daybreak/versions/{version['version']}")
    page.get_by_text(f"Version {version['version']}").first.wait_for()
    keep(page, "registry")


def test_the_links_of_the_last_task_lead_to_the_run_and_the_report(
    house: House, night: Any, page: Any
) -> None:
    path = f"/api/v2/dags/retrain/dagRuns/{night['dag_run_id']}/taskInstances/close/links"
    links = house.airflow.ask("GET", path)[1]["extra_links"]
    page.goto(links["MLflow run"])
    page.get_by_text(folder_of(house, night["dag_run_id"]).name).first.wait_for()
    keep(page, "run-in-mlflow")
    page.goto(links["Report"])
    page.frame_locator("iframe").locator("h1").first.wait_for()
    page.goto((folder_of(house, night["dag_run_id"]) / "data/run/report.html").as_uri())
    page.locator("h1").first.wait_for()
    keep(page, "report")

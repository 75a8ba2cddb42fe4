"""A whole night on PostgreSQL (Airflow and MLflow), asked for, approved and reviewed in a real browser.

SCREENSHOTS=FOLDER keeps what the browser saw.
"""

import contextlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from daybreak import warm_parent
from daybreak.contract import params
from tests.dags.servers import Standalone, airflow_standalone, environment, free_port, keep, server

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.promise, pytest.mark.timeout(3600)]

REASON = "asked for in a browser"
APPROVED_FOR = "the interval is clear of zero"
CANARY = "-".join(("canary", "8086", "night"))  # in no file: git has them all
SECRETS = {
    "SHOP_PASSWORD": CANARY,
    "CLOUD_BILLING_API_KEY": CANARY,
    "MLFLOW_TRACKING_USERNAME": "somebody",
    "MLFLOW_TRACKING_PASSWORD": CANARY,
    "AIRFLOW_CONN_SHOP": f"postgresql://shop:{CANARY}@127.0.0.1/shop",
}


@dataclass(frozen=True)
class House:
    """The servers of a night, and the database in which both keep records."""

    airflow: Standalone
    mlflow: str
    store: str
    folder: Path


@pytest.fixture(scope="module")
def house(checkout: Path, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("servers")
    overrides = ["ingest.history_days=60", "train.epochs=1", "release.approval=always"]  # needs no good model
    overrides += ["profile.batch_sizes=[32,64]", "profile.steps=2"]
    params.override(checkout, overrides, into=checkout)
    commit = ["git", "commit", "--all", "--quiet", "--message", "train less"]
    subprocess.run(commit, cwd=checkout, check=True)
    store = f"postgresql+psycopg2://airflow@/mlflow?host={postgres}"
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return bool(urllib.request.urlopen(f"{url}/health", timeout=60).status == 200)
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
            **SECRETS,
        ) as airflow:
            body = {"connection_id": "shop_too", "conn_type": "postgres", "password": CANARY}
            assert airflow.ask("POST", "/api/v2/connections", body)[0] == 201
            yield House(airflow, url, store, folder)


def folder_of(house: House, name: str) -> Path:
    """Worktree of the night of a run."""
    return house.airflow.home / "nights" / name.replace(":", "-").replace("+", "-")


def clear_while_it_trains(house: House, name: str) -> None:
    """Clear the training task, and all after it, while its job is alive.

    Between two looks: Airflow (3.3) leaves a task alone that is cleared in the instant in which it ends, for
    the five minutes until its heartbeat is missed.
    """
    train = f"/api/v2/dags/retrain/dagRuns/{name}/taskInstances/train"
    house.airflow.until(lambda: house.airflow.ask("GET", train)[1]["state"] == "up_for_reschedule")
    assert list((folder_of(house, name) / "data/work/jobs").glob("*/job.json"))
    assert Path((folder_of(house, name) / warm_parent.NOTE).read_text()).is_socket()
    body = {"dag_run_id": name, "task_ids": ["train"], "include_downstream": True, "dry_run": False}
    body["only_failed"] = False
    # Asked again after an error: the task's state may move under Airflow's hands, and a person clicks again.
    status, answer = house.airflow.ask("POST", "/api/v2/dags/retrain/clearTaskInstances", body)
    assert status == 200, answer
    assert "train" in {task["task_id"] for task in answer["task_instances"]}


def approve(house: House, name: str, page: Any) -> None:
    """Approve tonight's version once a person is asked."""
    run = f"/api/v2/dags/retrain/dagRuns/{name}"

    def asked() -> bool:
        waits = house.airflow.ask("GET", f"{run}/taskInstances/review")[1]["state"] == "awaiting_input"
        return waits or house.airflow.ask("GET", run)[1]["state"] == "failed"

    house.airflow.until(asked)
    page.goto(f"{house.airflow.url}/dags/retrain/runs/{name}/tasks/review/required_actions")
    page.set_viewport_size({"width": 1400, "height": 1040})
    assert page.locator("#element_approval_reason").input_value() == ""
    page.locator("#element_approval_reason").fill(APPROVED_FOR)
    page.get_by_role("button", name="Approve").scroll_into_view_if_needed()
    keep(page, "review")
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        page.get_by_role("button", name="Approve").click()
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto("about:blank")


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
    manual = f"{runs}?run_type=manual"  # at 03:00 there is another
    name = house.airflow.until(
        lambda: [r["dag_run_id"] for r in house.airflow.ask("GET", manual)[1]["dag_runs"]]
    )[0]
    page.goto("about:blank")  # an open page of Airflow asks it every few seconds
    clear_while_it_trains(house, name)
    approve(house, name, page)
    state = house.airflow.run_to_the_end(name)
    tasks = house.airflow.ask("GET", f"{runs}/{name}/taskInstances")[1]["task_instances"]
    assert state == "success", {task["task_id"]: task["state"] for task in tasks}
    page.goto(f"{house.airflow.url}/dags/retrain/runs/{name}")
    page.get_by_text("Success").nth(12).wait_for()
    keep(page, "run")
    return house.airflow.ask("GET", f"{runs}/{name}")[1]


def test_the_form_makes_a_night_that_ends_green_on_postgresql(house: House, night: Any) -> None:
    assert night["conf"]["reason"] == REASON
    folder = folder_of(house, night["dag_run_id"])
    assert f"manual: {REASON}" in (folder / "data/run/night.json").read_text()
    assert not (folder / warm_parent.NOTE).exists()  # it ends with its night


def test_a_clear_during_the_training_makes_no_second_job_and_no_second_commit(
    house: House, night: Any
) -> None:
    folder = folder_of(house, night["dag_run_id"])
    assert len(list((folder / "data/work/jobs").glob("*/job.json"))) == 1
    log = ["git", "log", "--format=%B", "nights", "--"]
    ledger = subprocess.check_output(log, cwd=house.airflow.home, text=True)
    assert ledger.count(f"Night: {folder.name}\n") == 1, ledger


def test_the_version_serves_and_is_reviewed_in_the_registry_by_its_description(
    house: House, night: Any, page: Any
) -> None:
    asked = f"{house.mlflow}/api/2.0/mlflow/registered-models/alias?name=daybreak&alias=champion"
    with urllib.request.urlopen(asked, timeout=60) as answer:
        version = json.loads(answer.read())["model_version"]
    tags = {tag["key"]: tag["value"] for tag in version["tags"]}
    assert tags["approval"].endswith(f": {APPROVED_FOR}")
    page.goto(f"{house.mlflow}/#/models/daybreak/versions/{version['version']}")
    page.get_by_text(f"Version {version['version']}").first.wait_for()
    drawn = "image => image.src.includes('effect.svg') && image.naturalWidth > 0"
    page.wait_for_function(f"() => [...document.images].some({drawn})")
    for text in (
        tags["approval"].partition(" at ")[0],
        "arms swapped",
        "Bottleneck:",
        "baseline/popularity",
    ):
        page.get_by_text(text).first.wait_for()
    keep(page, "registry")
    with page.expect_popup() as opened:
        page.get_by_text("The night's report").click()
    opened.value.frame_locator("iframe").locator("h1").first.wait_for()
    opened.value.close()


def test_the_ledger_says_who_approved_and_why(house: House, night: Any) -> None:
    show = ["git", "show", "nights:data/run/approval.json"]
    approval = json.loads(subprocess.check_output(show, cwd=house.airflow.home, text=True))
    assert (approval["approved"], approval["reason"]) == (True, APPROVED_FOR)
    assert night["dag_run_id"] in approval["by"]


def test_no_secret_is_in_any_database_log_record_or_page(house: House, night: Any, postgres: str) -> None:
    dump = (
        sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))[-1]
        / "pg_dump"
    )
    seen = {
        f"database {name}": subprocess.check_output([dump, "--host", postgres, "--username=airflow", name])
        for name in ("airflow", "mlflow")
    }
    objects = ["git", "cat-file", "--batch-all-objects", "--batch", "--unordered"]
    seen["git"] = subprocess.check_output(objects, cwd=house.airflow.home)
    for folder in (house.folder, house.airflow.home / "nights", house.airflow.home / "var"):
        seen |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def places_of(text: str) -> list[str]:
        forms = (text.encode(), text.encode().hex().encode())  # PostgreSQL shows bytes as digits
        return [name for name, content in seen.items() if any(form in content for form in forms)]

    assert places_of(CANARY) == []
    ours = places_of(APPROVED_FOR)
    assert {"database airflow", "database mlflow", "git"} <= set(ours)
    for ending in (".log", "approval.json", "report.html"):
        assert any(name.endswith(ending) for name in ours), ending


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

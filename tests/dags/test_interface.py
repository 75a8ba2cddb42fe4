"""The trigger form, the deadline and the links, through the REST interface of a running Airflow."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

RUNS = "/api/v2/dags/retrain/dagRuns"


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"day": "yesterday"}, "yesterday"),
        ({"train_hours": 0}, "minimum"),
        ({"train_hours": "many"}, "many"),
        ({"budget_usd": -1}, "minimum"),
        ({"objective": "fame"}, "fame"),
        ({"spot": "maybe"}, "maybe"),
        ({"plan_only": "yes"}, "yes"),
        ({"reason": "x" * 501}, "long"),
    ],
)
def test_a_form_with_a_wrong_entry_is_refused_by_name(standalone: Any, form: Any, named: str) -> None:
    status, answer = standalone.ask("POST", RUNS, {"logical_date": None, "conf": form})
    assert status == 400
    assert named in json.dumps(answer)


@pytest.fixture(scope="module")
def night(standalone: Any) -> str:
    """A run that is late, whose night has a version in the registry; it has ended well."""
    (standalone.home / "endings.json").write_text(json.dumps({"train": [75, 75, 0]}))
    now = datetime.now(UTC).isoformat()
    _, run = standalone.ask("POST", RUNS, {"logical_date": now, "conf": {"reason": "a test"}})
    name = str(run["dag_run_id"])
    folder = standalone.home / "nights" / name.replace(":", "-").replace("+", "-") / "data/run"
    standalone.until(folder.parents[1].exists)
    folder.mkdir(parents=True)
    (folder / "version.json").write_text(json.dumps({"run_id": "0123abc"}))
    assert standalone.run_to_the_end(name) == "success"
    return name


def calls(standalone: Any) -> list[list[str]]:
    lines = (standalone.home / "calls.jsonl").read_text().splitlines()
    return [json.loads(line)["arguments"] for line in lines]


def test_a_missed_deadline_is_told_through_the_notifier(standalone: Any, night: str) -> None:
    standalone.until(lambda: ["notify"] in calls(standalone))


def test_the_last_task_links_to_the_run_in_mlflow_and_to_the_report(standalone: Any, night: str) -> None:
    _, links = standalone.ask("GET", f"{RUNS}/{night}/taskInstances/close/links")
    assert links["extra_links"] == {
        "MLflow run": "http://127.0.0.1:5000/#/runs/0123abc",
        "Report": "http://127.0.0.1:5000/#/experiments/0/runs/0123abc/artifacts/report.html",
    }


def test_the_log_of_a_task_holds_the_record(standalone: Any, night: str) -> None:
    _, log = standalone.ask("GET", f"{RUNS}/{night}/taskInstances/ingest/logs/1")
    assert '{\\"stage\\": \\"ingest\\"}' in json.dumps(log)


def test_a_cleared_task_runs_in_the_same_night(standalone: Any, night: str) -> None:
    before = len(calls(standalone))
    body = {"dag_run_id": night, "task_ids": ["open"], "dry_run": False, "only_failed": False}
    status, _ = standalone.ask("POST", "/api/v2/dags/retrain/clearTaskInstances", body)
    assert status == 200
    standalone.until(lambda: len([c for c in calls(standalone)[before:] if c[0] == "open"]))
    opened = [call[2] for call in calls(standalone) if call[0] == "open"]
    assert len(opened) == 2
    assert opened[0] == opened[1]

"""The forms, a person's word, the deadline and the links, through the interface of a running Airflow.

SCREENSHOTS=FOLDER keeps what the browser saw.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.dags.servers import keep

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
    assert opened.count(night.replace(":", "-").replace("+", "-")) == 2


VERDICT = {
    "action": "reject", "inconclusive": True, "champion": 3, "challenger": 4, "checks": [],
    "reason": "inconclusive: not proven no worse than the champion",
}  # fmt: skip


def asked(standalone: Any, *, seconds: float) -> str:
    """A run whose gate has put its verdict to a person, who has so many seconds."""
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    said = {"records": {"verdict": VERDICT | {"approve_until": until}}, "promote": [99]}
    (standalone.home / "endings.json").write_text(json.dumps(said))
    _, run = standalone.ask("POST", RUNS, {"logical_date": None, "conf": {}})
    return str(run["dag_run_id"])


def states(standalone: Any, run: str) -> dict[str, str]:
    tasks = standalone.ask("GET", f"{RUNS}/{run}/taskInstances")[1]["task_instances"]
    return {task["task_id"]: task["state"] for task in tasks}


def test_a_person_is_asked_again_for_a_reason_and_nothing_in_it_is_run(standalone: Any) -> None:
    before = len(calls(standalone))
    run = asked(standalone, seconds=3600)
    reason = "$(touch pwned) `touch pwned` {{ 1 + 1 }}"

    def answer(given: dict[str, str]) -> bool:
        if states(standalone, run)["review"] != "awaiting_input":
            return False
        body = {"chosen_options": ["Approve"], "params_input": given}
        path = f"{RUNS}/{run}/taskInstances/review/-1/hitlDetails"
        return bool(standalone.ask("PATCH", path, body)[0] == 200)

    def over() -> bool:
        answer({"reason": reason})  # again, if asked: Airflow 3.3 may lose an answer of the first seconds
        return standalone.ask("GET", f"{RUNS}/{run}")[1]["state"] == "success"

    standalone.until(lambda: answer({}))
    standalone.until(over)
    said = [call for call in calls(standalone)[before:] if call[0] == "approve"]
    who = said[0][said[0].index("--by") + 1]
    assert said == [["approve", "--reason", reason, "--by", who]]
    assert who.endswith(f"(in Airflow run {run})")
    assert not list(Path(standalone.home).rglob("pwned"))


def test_without_an_answer_the_night_goes_on_when_it_has_to_be_decided(standalone: Any) -> None:
    before = len(calls(standalone))
    run = asked(standalone, seconds=0)
    assert standalone.run_to_the_end(run) == "success"
    ended = states(standalone, run)
    assert (ended["review"], ended["approve"], ended["promote"]) == ("success", "skipped", "skipped")
    assert ["approve"] not in [call[:1] for call in calls(standalone)[before:]]


def test_where_nobody_is_asked_the_task_that_asks_is_skipped(standalone: Any, night: str) -> None:
    ended = states(standalone, night)
    assert (ended["review"], ended["approve"], ended["promote"]) == ("skipped", "skipped", "success")


def test_a_rollback_is_asked_for_in_a_browser(standalone: Any, page: Any) -> None:
    (standalone.home / "endings.json").write_text("{}")
    page.goto(f"{standalone.url}/dags/rollback")
    page.get_by_role("button", name="Trigger").first.click()
    page.locator("#element_reason").fill("worse on returns")
    keep(page, "rollback")
    page.get_by_role("button", name="Trigger").last.click()
    standalone.until(lambda: ["rollback"] in [call[:1] for call in calls(standalone)])
    (said,) = [call for call in calls(standalone) if call[0] == "rollback"]
    assert said[:4] == ["rollback", "--steps", "1", "--reason"]
    assert said[4].startswith("worse on returns (by Airflow run manual__")

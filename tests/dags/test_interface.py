"""The forms, a person's word, the deadline and the links, through the interface of a running Airflow.

It runs as `make up` runs it: what dies is started again.

SCREENSHOTS=FOLDER keeps what the browser saw.
"""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from daybreak import airflow_health, airflow_question
from daybreak.contract.record_types import Stop
from daybreak.extensions.downstream import airflow_assets
from daybreak.extensions.downstream.settings import DownstreamParams
from daybreak.storage.home import Home
from tests.dags.servers import keep
from tests.minimal_records import minimal_night

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(2400)]

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
        ({"accepted_day": "yesterday"}, "yesterday"),
        ({"reason": "x" * 501}, "long"),
    ],
)
def test_a_form_with_a_wrong_entry_is_refused_by_name(standalone: Any, form: Any, named: str) -> None:
    status, answer = standalone.ask("POST", RUNS, {"logical_date": None, "conf": form})
    assert status == 400
    assert named in json.dumps(answer)


def folder_of(run: str) -> str:
    return run.replace(":", "-").replace("+", "-")


PREDICTIONS = {"day": "2011-09-01", "version": 4, "to": "s3://shop/lists/2011-09-01", "num_rows": 3}


@pytest.fixture(scope="module")
def night(standalone: Any) -> str:
    """A run that is late, whose night has a version in the registry and predicts; it has ended well."""
    said = {"train": [75, 0], "records": {"predictions": PREDICTIONS}}
    (standalone.home / "endings.json").write_text(json.dumps(said))
    name: str = standalone.trigger({"reason": "a test"}, logical_date=datetime.now(UTC))
    folder = standalone.home / "nights" / folder_of(name) / "data/run"
    standalone.until(folder.parents[1].exists)
    folder.mkdir(parents=True)
    (folder / "version.json").write_text(json.dumps({"run_id": "0123abc"}))
    assert standalone.run_to_the_end(name) == "success"
    return name


PROGRAMS = ("scheduler", "dag-processor", "triggerer", "api-server", "mlflow", "serving", "pages")


def answers(url: str) -> bool:
    """Whether a server answers there, be it to say that it waits for a model."""
    try:
        urllib.request.urlopen(url, timeout=60).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


def calls(standalone: Any) -> list[list[str]]:
    path = standalone.home / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["arguments"] for line in lines]


def test_a_missed_deadline_is_told_through_the_notifier(standalone: Any, night: str) -> None:
    standalone.until(lambda: ["notify", "--late", "--night", folder_of(night)] in calls(standalone))


def test_the_last_task_links_to_the_run_in_mlflow_and_to_the_report(standalone: Any, night: str) -> None:
    _, links = standalone.ask("GET", f"{RUNS}/{night}/taskInstances/close/links")
    assert links["extra_links"] == {
        "MLflow run": "http://127.0.0.1:5000/#/experiments/0/runs/0123abc?workflowType=machine_learning",
        "Report": "http://127.0.0.1:5000/#/experiments/0/runs/0123abc/artifacts/report.html"
        "?workflowType=machine_learning",
    }


def test_the_log_of_a_task_holds_the_record(standalone: Any, night: str) -> None:
    _, log = standalone.ask("GET", f"{RUNS}/{night}/taskInstances/ingest/logs/1")
    assert '{\\"stage\\": \\"ingest\\"}' in json.dumps(log)


def test_the_log_of_a_task_that_asks_again_has_what_it_says_and_no_more(standalone: Any, night: str) -> None:
    _, log = standalone.ask("GET", f"{RUNS}/{night}/taskInstances/train/logs/1")
    said = [line["event"] for line in log["content"] if "command_sensor.py" in json.dumps(line)]
    ran = [line for line in said if line.startswith("Running command: ")]
    assert len(ran) == 1
    assert [line for line in said if line not in ran] == ['{"stage": "train"}'] * 2
    assert "return code" not in json.dumps(log)


def test_the_watch_starts_a_night_for_a_finding_once_and_the_night_says_why(standalone: Any) -> None:
    text = "watch: drift of version 3: served rows are \"unlike\" $(touch pwned); 'so'"
    said = {"due": [0], "says": {"due": text}, "ingest": [99]}  # the rest adds nothing here
    (standalone.home / "endings.json").write_text(json.dumps(said))
    watches, name, started = "/api/v2/dags/watch/dagRuns", "watch__drift-of-version-3", []
    for _ in range(2):
        status, run = standalone.ask("POST", watches, {"logical_date": None})
        assert status == 200, run
        path = f"{watches}/{run['dag_run_id']}"
        standalone.until(lambda path=path: standalone.ask("GET", path)[1]["state"] in ("success", "failed"))
        tasks = standalone.ask("GET", f"{path}/taskInstances")[1]["task_instances"]
        started.append({task["task_id"]: task["state"] for task in tasks})
    done = {"watch": "success", "reap": "success", "due": "success"}
    assert started == [done | {"night": "success"}, done | {"night": "skipped"}]
    assert standalone.run_to_the_end(name) == "success"
    (standalone.home / "endings.json").write_text("{}")
    opened = [call for call in calls(standalone) if call[0] == "open" and name in call]
    assert opened == [["open", "--night", name, "--trigger", text, "--warm"]]
    assert not list(standalone.home.rglob("pwned"))


def test_the_menu_leads_to_the_nights(standalone: Any) -> None:
    _, answer = standalone.ask("GET", "/api/v2/plugins")
    views = [view for plugin in answer["plugins"] for view in plugin["external_views"]]
    assert [(view["name"], view["href"]) for view in views] == [("Nights", "http://127.0.0.1:8010/nights")]


def test_a_cleared_task_runs_in_the_same_night(standalone: Any, night: str) -> None:
    before = len(calls(standalone))
    body = {"dag_run_id": night, "task_ids": ["open"], "dry_run": False, "only_failed": False}
    status, _ = standalone.ask("POST", "/api/v2/dags/retrain/clearTaskInstances", body)
    assert status == 200
    standalone.until(lambda: len([c for c in calls(standalone)[before:] if c[0] == "open"]))
    opened = [call[2] for call in calls(standalone) if call[0] == "open"]
    assert opened.count(night.replace(":", "-").replace("+", "-")) == 2


VERDICT = {
    "action": "reject",
    "inconclusive": True,
    "champion": 3,
    "challenger": 4,
    "checks": [],
    "reason": "inconclusive: not proven no worse than the champion",
}


def asked(
    standalone: Any,
    *,
    seconds: float,
    records: dict[str, Any] | None = None,
    ahead: Sequence[int] = (99,),
    **endings: list[int],
) -> str:
    """A run whose gate has put its verdict to a person, who has so many seconds."""
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    written = {"verdict": VERDICT | {"approve_until": until}, **(records or {})}
    said = {"records": written, "promote": [99], "predict-ahead": [*ahead], **endings}
    (standalone.home / "endings.json").write_text(json.dumps(said))
    typed = {"reason": "typed at the trigger", "approval_reason": "typed there, too"}
    return str(standalone.trigger(typed))


def states(standalone: Any, run: str) -> dict[str, str]:
    tasks = standalone.ask("GET", f"{RUNS}/{run}/taskInstances")[1]["task_instances"]
    return {task["task_id"]: task["state"] for task in tasks}


def test_a_person_is_asked_again_for_a_reason_and_nothing_in_it_is_run(standalone: Any) -> None:
    before = len(calls(standalone))
    run = asked(standalone, seconds=3600)
    reason = "$(touch pwned) `touch pwned` {{ 1 + 1 }}"

    task = f"{RUNS}/{run}/taskInstances/review"

    def answer(given: dict[str, str], *, after: datetime) -> datetime | None:
        """Answer as a person does, some seconds after the question: when that was."""
        state, now = standalone.ask("GET", task)[1]["state"], datetime.now(UTC)
        if state != "awaiting_input" or (now - after).total_seconds() < 5:
            return None
        body = {"chosen_options": ["Approve"], "params_input": given}
        return now if standalone.ask("PATCH", f"{task}/-1/hitlDetails", body)[0] == 200 else None

    standalone.until(lambda: states(standalone, run).get("review") == "awaiting_input")
    question = datetime.now(UTC)
    form = standalone.ask("GET", f"{task}/-1/hitlDetails")[1]["params"]
    shown = {name: field["value"] for name, field in form.items()}
    assert shown == {"approval_reason": None}  # not what was typed at the trigger
    first = standalone.until(lambda: answer(shown, after=question))
    standalone.until(lambda: answer({"approval_reason": reason}, after=first))
    assert standalone.run_to_the_end(run) == "success"
    assert standalone.ask("GET", task)[1]["try_number"] == 1  # a failed try can end Airflow's scheduler
    said = [call for call in calls(standalone)[before:] if call[0] == "approve"]
    who = said[0][said[0].index("--by") + 1]
    assert said == [["approve", "--reason", reason, "--by", who]]
    assert who.endswith(f"(in Airflow run {run})")
    assert not list(Path(standalone.home).rglob("pwned"))


def test_predictions_come_before_a_stop_on_the_command_line_which_is_the_answer_and_are_told_once(
    standalone: Any,
) -> None:
    before = len(calls(standalone))
    written = {"day": "2011-09-01", "version": 3, "to": "s3://shop/lists/2011-09-01", "ahead_of": "review"}
    run = asked(standalone, seconds=3600, records={"predictions": written}, ahead=[0])

    def told() -> list[tuple[str, Any]]:
        """Updates of the predictions' asset by this run, each with the task that made it."""
        updates = standalone.ask("GET", "/api/v2/assets/events?source_dag_id=retrain&limit=100")[1]
        ours = [one for one in updates["asset_events"] if one["source_run_id"] == run]
        return [(one["source_task_id"], one["extra"]) for one in ours if "day" in one["extra"]]

    # The question is asked at the same time, and a busy machine may have either first.
    standalone.until(lambda: told() and states(standalone, run).get("review") == "awaiting_input")
    assert states(standalone, run)["predict_ahead"] == "success"
    event = {"event": "predictions", "model": "daybreak", **written}
    assert told() == [("predict_ahead", event)]
    now = datetime.now(UTC)
    night = minimal_night(now, id=folder_of(run), airflow_run=f"retrain/{run}")
    for _ in range(2):
        airflow_question.answer(Home(standalone.home), night, Stop(by="ann", reason="slow", stopped_at=now))
    assert standalone.run_to_the_end(run) == "success"
    said = [call for call in calls(standalone)[before:] if call[0] == "approve"]
    assert [call[:4] for call in said] == [["approve", "--reject", "--reason", "slow"]]
    assert states(standalone, run)["predict"] == "skipped"
    assert told() == [("predict_ahead", event)]


def test_twenty_answers_as_soon_as_they_are_asked_for_leave_the_scheduler_alive(standalone: Any) -> None:
    runs = "/api/v2/dags/reviews/dagRuns"
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for number in range(10):
        folder = standalone.home / "nights" / f"run-{number}" / "data/run"
        folder.mkdir(parents=True)
        (folder / "verdict.json").write_text(json.dumps(VERDICT | {"approve_until": until}))
        body = {"dag_run_id": f"run-{number}", "logical_date": None, "conf": {}}
        standalone.until(lambda body=body: standalone.ask("POST", runs, body)[0] in (200, 409))
    given = 0

    def answer(form: dict[str, str]) -> int:
        """Answer every question there is."""
        asked = f"{runs}/~/hitlDetails?response_received=false&state=awaiting_input&limit=100"
        details = standalone.ask("GET", asked)[1]["hitl_details"]
        body = {"chosen_options": ["Approve"], "params_input": form}
        paths = [f"{runs}/{d['task_instance']['dag_run_id']}/taskInstances/review/-1" for d in details]
        return sum(standalone.ask("PATCH", f"{path}/hitlDetails", body)[0] == 200 for path in paths)

    while given < 20:
        given += standalone.until(lambda: answer({}))

    def counted() -> bool:
        answer({"approval_reason": "why"})
        return bool(standalone.ask("GET", f"{runs}?state=success")[1]["dag_runs"])

    standalone.until(counted)
    standalone.until(lambda: not airflow_health.late(standalone.url))
    assert "IntegrityError" not in (standalone.home / "var" / "scheduler.log").read_text()
    for number in range(10):
        standalone.ask("DELETE", f"{runs}/run-{number}")


def test_where_nobody_is_asked_the_task_that_asks_is_skipped(standalone: Any, night: str) -> None:
    ended = states(standalone, night)
    assert (ended["review"], ended["approve"], ended["promote"]) == ("skipped", "skipped", "success")


def test_a_rollback_is_asked_for_in_a_browser(standalone: Any, page: Any) -> None:
    (standalone.home / "endings.json").write_text("{}")
    page.goto(f"{standalone.url}/dags/rollback")
    page.get_by_role("button", name="Trigger").first.click()
    page.locator("#element_reason").fill("worse on returns")
    page.locator("[name=element_hold_days]").fill("7")
    page.set_viewport_size({"width": 1400, "height": 1040})
    keep(page, "rollback")
    page.set_viewport_size({"width": 1400, "height": 900})
    page.get_by_role("button", name="Trigger").last.click()
    standalone.until(lambda: ["rollback"] in [call[:1] for call in calls(standalone)])
    (said,) = [call for call in calls(standalone) if call[0] == "rollback"]
    assert said[:6] == ["rollback", "--steps", "1", "--reason", "worse on returns", "--once"]
    assert said[6].startswith("by Airflow run manual__")
    assert said[7:9] == ["--hold-days", "7"]


def test_each_process_that_is_killed_during_a_night_comes_back_and_the_night_ends_without_an_answer(
    standalone: Any,
) -> None:
    before = len(calls(standalone))
    run = asked(standalone, seconds=0, train=[75])
    standalone.until(lambda: ["train"] in [call[:1] for call in calls(standalone)[before:]])
    killed = {program: standalone.process(program) for program in PROGRAMS}
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    for program, pid in killed.items():
        standalone.until(lambda program=program, pid=pid: standalone.process(program) != pid)
    standalone.until(standalone.up)
    said = json.loads((standalone.home / "endings.json").read_text())
    (standalone.home / "endings.json").write_text(json.dumps(said | {"train": [0]}))
    assert standalone.run_to_the_end(run) == "success"
    ended = states(standalone, run)
    assert (ended["review"], ended["approve"], ended["promote"]) == ("success", "skipped", "skipped")
    assert ["approve"] not in [call[:1] for call in calls(standalone)[before:]]
    standalone.until(lambda: not airflow_health.late(standalone.url))
    for port in ("MLFLOW_PORT", "SERVING_PORT", "PAGES_PORT"):
        url = f"http://127.0.0.1:{psutil.Process(standalone.process('scheduler')).environ()[port]}/health"
        standalone.until(lambda url=url: answers(url))


def test_a_night_starts_once_its_assets_were_updated_and_has_the_day_of_the_update(standalone: Any) -> None:
    """By assets rather than by the clock: the DAG file is read again, as after an edit of params.yaml."""
    path = standalone.home / "params.yaml"
    before, uris = path.read_text(), ["s3://shop/sales", "s3://shop/returns"]
    (standalone.home / "endings.json").write_text(json.dumps({"ingest": [99]}))  # the rest adds nothing here
    assert "\nnight:\n" in before

    def edit(text: str) -> None:
        path.write_text(text)
        os.utime(standalone.home.parent / "dags" / "retrain.py")  # which Airflow then reads at once

    edit(before.replace("\nnight:\n", f"\nnight:\n  assets: {uris}\n"))

    def asset(uri: str) -> int | None:
        found = standalone.ask("GET", f"/api/v2/assets?uri_pattern={uri}&dag_ids=retrain")[1]["assets"]
        return found[0]["id"] if found else None

    try:
        for uri, day in zip(uris, ("2011-09-01", "2011-09-02"), strict=True):
            number = standalone.until(lambda uri=uri: asset(uri))
            update = {"asset_id": number, "extra": {"day": day}}
            assert standalone.ask("POST", "/api/v2/assets/events", update)[0] == 200
        listed = f"{RUNS}?run_type=asset_triggered"
        (run,) = standalone.until(lambda: standalone.ask("GET", listed)[1]["dag_runs"])
        assert standalone.run_to_the_end(run["dag_run_id"]) == "success"
    finally:
        edit(before)
        dag = "/api/v2/dags/retrain"  # which others find as it was
        standalone.until(lambda: "0 3 * * *" in standalone.ask("GET", dag)[1]["timetable_summary"])
    (opened,) = [call for call in calls(standalone) if call[0] == "open" and "assets" in call]
    assert opened[1:5] == ["--night", folder_of(run["dag_run_id"]), "--day", "2011-09-01"]


def test_missed_nights_are_made_up_for_by_airflows_backfill_oldest_first(standalone: Any) -> None:
    (standalone.home / "endings.json").write_text(json.dumps({"ingest": [99]}))  # the rest adds nothing here
    before = len(calls(standalone))
    span = {"from_date": "2025-03-07T00:00:00Z", "to_date": "2025-03-09T00:00:00Z"}
    asked = {"dag_id": "retrain", "max_active_runs": 1, "reprocess_behavior": "none", **span}
    status, answer = standalone.ask("POST", "/api/v2/backfills", asked)
    assert status == 200, answer

    def ended() -> bool:
        runs = standalone.ask("GET", f"{RUNS}?run_type=backfill")[1]["dag_runs"]
        return len(runs) == 2 and all(run["state"] == "success" for run in runs)

    standalone.until(ended)
    called = calls(standalone)[before:]
    opened = [call for call in called if call[0] == "open" and call[2].startswith("backfill")]
    assert [call[call.index("--due") + 1] for call in opened] == [
        "2025-03-07T03:00:00+00:00",
        "2025-03-08T03:00:00+00:00",
    ]


def test_those_downstream_hear_of_predictions_promotions_and_rollbacks_in_a_terminal(
    standalone: Any, night: str
) -> None:
    def told(dag: str = "deployed") -> list[list[dict[str, Any]]]:
        """What each run of a DAG of the team has heard, oldest first."""
        path = f"/api/v2/dags/{dag}/dagRuns"
        runs = standalone.ask("GET", f"{path}?order_by=run_after&state=success")[1]["dag_runs"]
        values = (f"{path}/{run['dag_run_id']}/taskInstances/deploy/xcomEntries/return_value" for run in runs)
        return [json.loads(json.dumps(standalone.ask("GET", value)[1]["value"])) for value in values]

    standalone.until(lambda: [{"event": "champion", "version": 4}] in told())
    written = {"event": "predictions", "model": "daybreak", **PREDICTIONS}
    standalone.until(lambda: any(written in heard for heard in told("sent")))
    updates = standalone.ask("GET", "/api/v2/assets/events?source_dag_id=retrain&source_task_id=predict")[1]
    assert [one["extra"] for one in updates["asset_events"] if one["source_run_id"] == night] == [written]
    event = {"event": "champion", "model": "daybreak", "version": 3}
    airflow_assets.update(Home(standalone.home), DownstreamParams(), event)
    standalone.until(lambda: told()[-1] == [{**event, "from_rest_api": True}])

"""The DAG files: imports, commands, and the end of a night."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.stages import CHAIN, STAGES
from tests.dags.servers import stand_in

Airflow = Callable[..., Any]

DAYBREAK = f"{sys.executable} -P -m daybreak"
FILES = sorted((Path(__file__).parents[2] / "dags").glob("*.py"))

DESCRIBE = """
    import importlib, json, os, sys, time
    from datetime import date, timedelta
    from pathlib import Path
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.trigger import CronTriggerTimetable
    import pendulum
    def starts(home):
        from homes import schedule_of
        ended = []
        for text in ("", "night: {schedule: '30 2 * * *', time_zone: America/New_York}"):
            (home / "params.yaml").write_text(text)
            due = schedule_of(home)
            timetable = CronTriggerTimetable(due.cron, timezone=due.time_zone)
            first = pendulum.datetime(2025, 3, 7, tz="UTC")
            restriction = TimeRestriction(earliest=first, latest=None, catchup=True)
            runs, last = [], None
            while len(runs) < 4:
                info = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
                runs.append(str(info.run_after)); last = info.data_interval
            ended.append(runs)
        (home / "params.yaml").unlink()
        return ended
    def of_assets():
        from types import SimpleNamespace
        from home import day_of
        def updates(*days):
            return [SimpleNamespace(extra={"day": day} if day else None) for day in days]
        sales, returns = updates("2025-01-31", "2025-01-01"), updates("2025-01-30", None)
        both = day_of({"sales": sales, "returns": returns})
        return [both, day_of({"sales": updates(None)}), day_of({})]
    def at_once(home):
        from dataclasses import replace
        from homes import OWN, schedule_of
        from retrain import nights_of
        (home / "params.yaml").write_text("live_test: {challengers: 3}")
        dag = nights_of(replace(OWN, due=schedule_of(home)))
        (home / "params.yaml").unlink()
        return dag.max_active_runs
    def wrong(home):
        from homes import schedule_of
        said = []
        for night in (
            "{assets: s3://shop/sales}", "{assets: ['airflow://lake']}", "{assets: ['']}",
            "{decide_hours: .nan}", "{decide_hours: .inf}", "{decide_hours: 0}", "{schedule: 7}",
        ):
            (home / "params.yaml").write_text(f"night: {night}")
            try:
                schedule_of(home)
                said.append("")
            except ValueError as error:
                said.append(str(error))
        (home / "params.yaml").unlink()
        return said
    from airflow.dag_processing.dagbag import DagBag
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.sdk import BaseSensorOperator
    began = time.process_time()
    bag = DagBag()
    took = time.process_time() - began
    dag = bag.dags["retrain"]
    print(json.dumps({
        "errors": bag.import_errors,
        "took": took,
        "heavy": [name for name in ("torch", "mlflow", "pandas", "dvc", "daybreak") if name in sys.modules],
        "order": [task.task_id for task in dag.topological_sort()],
        "downstream": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
        "commands": {task.task_id: getattr(task, "bash_command", "") for task in dag.tasks},
        "watch": [getattr(task, "bash_command", task.task_id) for task in bag.dags["watch"].tasks],
        "started": [getattr(task, "trigger_dag_id", "") for task in bag.dags["watch"].tasks],
        "form": list(dag.params),
        "rollback": [bag.dags["rollback"].tasks[0].bash_command, list(bag.dags["rollback"].params)],
        "audit": [task.bash_command for task in bag.dags["audit"].tasks],
        "drill": [task.bash_command for task in bag.dags["drill"].tasks],
        "runs": [dag.max_active_runs, dag.catchup],
        "timeouts": [task.timeout for task in dag.tasks if isinstance(task, BaseSensorOperator)],
        "not_missed": importlib.import_module("retrain").NOT_MISSED,
        "schedule": starts(home=Path(os.environ["DAYBREAK_HOME"])),
        "of_assets": of_assets(),
        "at_once": at_once(home=Path(os.environ["DAYBREAK_HOME"])),
        "wrong": wrong(home=Path(os.environ["DAYBREAK_HOME"])),
    }))
"""

# Each scenario is a line of [endings of the stages, what the form says]; the DAG file is read anew for each.
NIGHTS = """
    import datetime, importlib, json, os, sys
    from pathlib import Path
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select
    import retrain
    home = Path(os.environ["DAYBREAK_HOME"])
    ended = []
    for endings, form in json.loads(sys.argv[1]):
        (home / "endings.json").write_text(json.dumps(endings))
        (home / "calls.jsonl").unlink(missing_ok=True)
        dag = importlib.reload(retrain).dag
        dag.deadline = None
        for task in dag.tasks:
            task.retry_delay = datetime.timedelta(0)
            task.poke_interval = 0.01
        run = dag.test(run_conf=form)
        states = {task.task_id: str(task.state) for task in run.get_task_instances()}
        with create_session() as session:
            verdict = session.scalar(select(XComModel.value).where(
                XComModel.run_id == run.run_id, XComModel.task_id == "verdict"
            ))
        calls = [json.loads(line) for line in (home / "calls.jsonl").read_text().splitlines()]
        how = {"run": str(run.state.value), "run_id": run.run_id, "verdict": json.loads(verdict)}
        ended.append(how | {"states": states, "calls": calls})
    print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def described(in_airflow: Airflow) -> Any:
    return in_airflow(DESCRIBE)


def test_dag_files_import_airflow_and_what_it_brings_only() -> None:
    allowed = {"airflow", "croniter", "yaml", *sys.stdlib_module_names, *(file.stem for file in FILES)}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= allowed, file


@pytest.mark.airflow
@pytest.mark.slow
def test_dag_files_parse_within_a_second_and_load_nothing_heavy(described: Any) -> None:
    assert described["errors"] == {}
    assert described["took"] < 1
    assert described["heavy"] == []


@pytest.mark.airflow
@pytest.mark.slow
def test_the_dag_is_the_chain_of_the_stages_in_a_straight_line(described: Any) -> None:
    gate = CHAIN.index("gate") + 1
    order = [task for task in described["order"] if task != "predict_ahead"]  # which is beside the question
    assert tuple(order) == (*CHAIN[:gate], "review", "approve", *CHAIN[gate:], "done", "verdict")
    following = dict(zip(order, [*order[1:], None], strict=True)) | {"done": None, "predict_ahead": None}
    past = {"gate": {"refit", "predict_ahead"}, "close": {"verdict"}}
    past |= {task: {"done"} for task in ("predict_ahead", "promote", "predict")}
    for task, downstream in described["downstream"].items():
        expected = {following[task]} - {None} | past.get(task, set())
        assert set(downstream) == expected, task


@pytest.mark.airflow
@pytest.mark.slow
def test_every_task_calls_the_command_line_with_its_own_stage(described: Any) -> None:
    for stage in CHAIN:
        assert f"&& {DAYBREAK} {stage}" in described["commands"][stage]
    assert [command.split("&& ")[-1] for command in described["watch"]] == [
        f"{DAYBREAK} watch",
        f"{DAYBREAK} reap",
        f"{DAYBREAK} due",
        "night",
    ]
    assert described["started"] == ["", "", "", "retrain"]
    assert {"watch", "reap"} < set(STAGES)
    assert described["drill"][0].endswith(f"&& {DAYBREAK} drill")
    assert described["audit"][0].endswith(f"&& {DAYBREAK} audit --deep")


@pytest.mark.airflow
@pytest.mark.slow
def test_one_night_at_a_time_and_none_made_up_for(described: Any) -> None:
    assert described["runs"] == [1, False]
    assert described["form"] == [
        "day",
        "train_hours",
        "budget_usd",
        "objective",
        "spot",
        "plan_only",
        "accepted_day",
        "reason",
    ]


@pytest.mark.airflow
@pytest.mark.slow
def test_the_day_of_a_night_by_assets_is_the_newest_that_all_have(described: Any) -> None:
    assert described["of_assets"] == ["2025-01-30", "", ""]


@pytest.mark.airflow
@pytest.mark.slow
def test_a_schedule_that_airflow_would_refuse_is_refused_before_a_dag_is_made_of_it(described: Any) -> None:
    assert "night.assets is 's3://shop/sales', not a list of URIs" in described["wrong"][0]
    assert "'airflow' is reserved" in described["wrong"][1]
    assert all("does not say when nights run: " in sentence for sentence in described["wrong"])


@pytest.mark.airflow
@pytest.mark.slow
def test_a_night_that_was_due_before_make_up_is_not_opened_unless_it_is_asked_for(described: Any) -> None:
    def opens(**given: str) -> bool:
        call = ["bash", "-c", described["not_missed"] + "exit 0"]
        done = subprocess.run(call, env=given, capture_output=True, text=True, check=False)
        assert (done.returncode, "missed: the night was due" in done.stdout) in [(0, False), (99, True)]
        return done.returncode == 0

    up = "2026-11-28T09:30:00+00:00"
    due, before, after = (f"2026-11-28T{at}+00:00" for at in ("03:00:00", "03:00:01.25", "09:30:05.5"))
    assert not opens(SCHEDULED=due, BEGAN=after, DAYBREAK_UP_AT=up)
    assert opens(SCHEDULED=due, BEGAN=before, DAYBREAK_UP_AT=up)  # its open waited while make up began again
    assert opens(SCHEDULED="2026-11-29T03:00:00+00:00", DAYBREAK_UP_AT=up)
    assert opens(SCHEDULED="", DAYBREAK_UP_AT=up)  # of a form, or cleared
    assert opens(SCHEDULED="2026-11-28T03:00:00+00:00")  # of an Airflow that make up has not started


@pytest.mark.airflow
@pytest.mark.slow
def test_as_many_nights_run_at_once_as_users_may_meet_challengers(described: Any) -> None:
    assert described["at_once"] == 3


@pytest.mark.airflow
@pytest.mark.slow
def test_a_night_starts_by_the_schedule_and_the_zone_of_params_once_each_day_of_it(described: Any) -> None:
    by_default, in_new_york = described["schedule"]
    assert by_default[0][:16] == "2025-03-07 03:00"
    assert [start[:10] for start in in_new_york] == ["2025-03-07", "2025-03-08", "2025-03-09", "2025-03-10"]


MEMBER = """
    import json, os
    from pathlib import Path
    from airflow.dag_processing.dagbag import DagBag
    home = Path(os.environ["DAYBREAK_HOME"])
    cards = home.parent / "cards"
    (cards / "var").mkdir(parents=True)
    member = {"lead": str(home), "model": "cards", "own_registry": False}
    (cards / "var/lead.json").write_text(json.dumps(member))
    (cards / "params.yaml").write_text("night: {schedule: '30 2 * * *'}")
    typo = home.parent / "typo"
    (typo / "var").mkdir(parents=True)
    (typo / "var/lead.json").write_text(json.dumps({**member, "model": "typo"}))
    (typo / "params.yaml").write_text("night: {decide_hours: 24h, schedule: '61 3 * * *'}")
    (home / "fleet.yaml").write_text("homes: [., ../cards, ../nobody, ../typo]")
    bag = DagBag()
    tasks = bag.dags["retrain.cards"].tasks
    print(json.dumps({
        "errors": bag.import_errors,
        "names": sorted(bag.dags),
        "cards": {task.task_id: getattr(task, "bash_command", "") for task in tasks},
        "own": {task.task_id: getattr(task, "bash_command", "") for task in bag.dags["retrain"].tasks},
        "watch": bag.dags["watch.cards"].tasks[0].bash_command,
        "schedule": bag.dags["retrain.cards"].timetable.expression,
        "home": str(home), "folder": str(cards.resolve()),
    }))
"""


@pytest.mark.airflow
@pytest.mark.slow
def test_each_home_of_a_fleet_has_dags_of_its_own_named_after_its_model(
    in_airflow: Airflow, described: Any, tmp_path: Path
) -> None:
    (tmp_path / "shop").mkdir()
    fleet = in_airflow(MEMBER, home=tmp_path / "shop")
    assert fleet["errors"] == {}
    names = ["audit", "drill", "retrain", "rollback", "watch"]
    of_typo = {f"{name}.typo" for name in names} - {"retrain.typo"}  # nobody knows when its nights run
    assert fleet["names"] == sorted([*names, *(f"{name}.cards" for name in names), *of_typo])
    own = json.dumps(fleet["own"]).replace(str(tmp_path / "shop"), "HOME")
    before = json.dumps(described["commands"])
    assert own == before.replace(
        re.search(r"cd (\S+)/nights", before)[1], "HOME"
    )  # a fleet changes nothing for it
    for task, command in fleet["cards"].items():
        if command:
            assert f"export DAYBREAK_HOME={fleet['folder']} && cd {fleet['folder']}" in command, task
            assert str(tmp_path / "shop") not in command, task
    assert fleet["watch"].endswith("daybreak watch")
    assert fleet["schedule"] == "30 2 * * *"


REASON = 'it\'s "$(touch pwned)" `touch pwned`; touch pwned & {{ 1 + 1 }} ${HOME} \\ end'


# Runs of the DAG rollback, each with its form: how it ended and what it called.
ROLLBACKS = """
    import importlib, json, os, sys
    from pathlib import Path
    import rollback
    home = Path(os.environ["DAYBREAK_HOME"])
    (home / "endings.json").write_text("{}")
    calls = home / "calls.jsonl"
    ended = []
    for form in json.loads(sys.argv[1]):
        calls.write_text("")
        try:
            run = importlib.reload(rollback).rollback.test(run_conf=form)
            how, run_id = str(run.state.value), run.run_id
        except Exception as error:
            how, run_id = f"{type(error).__name__}: {error}", ""
        made = [json.loads(line)["arguments"] for line in calls.read_text().splitlines()]
        ended.append({"how": how, "run_id": run_id, "calls": made})
    print(json.dumps(ended))
"""


@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.promise
def test_the_form_of_a_rollback_reaches_the_command_line_and_nothing_in_it_is_run(
    in_airflow: Airflow, database: Path, tmp_path: Path
) -> None:
    home = stand_in(tmp_path)
    forms = [{"to": 3, "reason": REASON}, {"steps": 2, "reason": "worse"}, {"reason": ""}]
    named, counted, unsaid = in_airflow(ROLLBACKS, json.dumps(forms), home=home)
    assert named["how"] == counted["how"] == "success"
    once = f"by Airflow run {named['run_id']}"
    assert named["calls"] == [
        ["rollback", "--to", "3", "--steps", "1", "--reason", REASON, "--once", once, "--by", "dag_test"]
    ]
    assert counted["calls"][0][:3] == ["rollback", "--steps", "2"]
    assert unsaid["how"] != "success"
    assert ["rollback"] not in [call[:1] for call in unsaid["calls"]]
    assert not list(home.rglob("pwned"))


@pytest.fixture(scope="module")
def ended(in_airflow: Airflow, database: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """How the nights of some scenarios ended, in the order of the list."""
    home = stand_in(tmp_path_factory.mktemp("home"))
    form = {
        "day": "2011-09-01",
        "train_hours": 2.5,
        "budget_usd": 0,
        "objective": "time",
        "spot": "not allowed",
        "accepted_day": "2011-08-31",
        "reason": REASON,
    }
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    verdict = {"action": "reject", "inconclusive": True, "reason": "not proven", "checks": []}
    verdict |= {"approve_until": until}
    said = {"by": "ann", "reason": "seen"}  # before the question, or before Airflow retried it
    ahead = {"promote": [99], "verdict": [99], "predict-ahead": [75, 1, 0]}
    endings = {"ingest": [1, 0], "train": [75, 137, 0], "gate": [75, 0], "promote": [75, 0]}
    scenarios = [
        [{**endings, "records": {"verdict": verdict, "stop": said}}, form],
        [{"ingest": [99]}, {}],
        [{"validate": [1]}, {}],
        [{}, {"plan_only": True}],
        [
            {
                **ahead,
                "records": {"verdict": verdict, "approval": said, "predictions": {"ahead_of": "review"}},
            },
            {},
        ],
        [{"open": [1]}, {}],
        [{"ingest": [99], "close": [1]}, {}],
        [{"open": [78]}, {}],
        [{"validate": [78]}, {}],
    ]
    answers = in_airflow(NIGHTS, json.dumps(scenarios), home=home)
    assert not list(home.rglob("pwned"))
    return answers


def stages_called(night: Any) -> list[str]:
    called = [call["arguments"][0] for call in night["calls"]]
    assert called.count("verdict") == 1  # whatever happened
    return [name for name in called if name != "verdict"]


@pytest.mark.airflow
@pytest.mark.slow
def test_the_form_reaches_the_command_line_word_by_word_and_nothing_in_it_is_run(ended: Any) -> None:
    name = ended[0]["run_id"].replace(":", "-").replace("+", "-")
    assert ended[0]["calls"][0] == {
        "folder": ".",
        "arguments": [
            "open",
            "--night",
            name,
            "--day",
            "2011-09-01",
            "--set",
            "night.train_hours=2.5",
            "--set",
            "night.budget_usd=0",
            "--set",
            "plan.objective=time",
            "--set",
            "plan.spot=false",
            "--set",
            "validate.accepted_days=[2011-08-31]",
            "--trigger",
            f"manual: {REASON}",
            "--warm",
        ],
    }
    assert {call["folder"] for call in ended[0]["calls"][1:-1]} == {f"nights/{name}"}
    assert ended[0]["calls"][-1] == {"folder": ".", "arguments": ["verdict", "--night", name]}


@pytest.mark.airflow
@pytest.mark.slow
def test_a_stage_that_is_not_done_or_was_killed_is_asked_again(ended: Any) -> None:
    assert ended[0]["run"] == "success"
    asked = stages_called(ended[0])
    assert [asked.count(name) for name in ("train", "gate", "promote", "close")] == [3, 2, 2, 1]


@pytest.mark.airflow
@pytest.mark.slow
def test_no_task_that_waits_ends_before_the_night_does(described: Any) -> None:
    assert min(described["timeouts"]) >= timedelta(days=365).total_seconds()  # promote waits for a person


@pytest.mark.airflow
@pytest.mark.slow
def test_an_empty_form_leaves_all_to_params(ended: Any) -> None:
    arguments = ended[1]["calls"][0]["arguments"]
    assert arguments[3:] == ["--trigger", "manual: no reason given", "--warm"]


@pytest.mark.airflow
@pytest.mark.slow
def test_a_night_with_nothing_to_do_skips_the_rest_is_closed_and_is_no_failure(ended: Any) -> None:
    assert ended[1]["run"] == "success"
    assert stages_called(ended[1]) == ["open", "ingest", "predict", "close"]
    assert {ended[1]["states"][stage] for stage in CHAIN[1:-2]} == {"skipped"}


@pytest.mark.airflow
@pytest.mark.slow
def test_a_failed_stage_is_tried_three_times_told_once_closed_and_fails_the_run(ended: Any) -> None:
    assert ended[2]["run"] == "failed"
    assert stages_called(ended[2]) == ["open", "ingest", *["validate"] * 3, "notify", "predict", "close"]


@pytest.mark.airflow
@pytest.mark.slow
def test_plan_only_stops_after_the_plan_and_closes(ended: Any) -> None:
    assert ended[3]["run"] == "success"
    assert stages_called(ended[3]) == [*CHAIN[:6], "close"]


@pytest.mark.airflow
@pytest.mark.slow
def test_a_refused_challenger_is_no_failure_and_not_all_green(ended: Any) -> None:
    assert ended[4]["run"] == "success"
    assert ended[4]["states"]["promote"] == ended[4]["states"]["verdict"] == "skipped"
    assert "notify" not in stages_called(ended[4])
    assert ended[0]["states"]["verdict"] == "success"
    assert ended[4]["verdict"] == ended[0]["verdict"] == {"stage": "verdict"}  # as the stand-in says it


@pytest.mark.airflow
@pytest.mark.slow
def test_a_stage_that_succeeds_on_the_second_try_leaves_the_night_green(ended: Any) -> None:
    assert ended[0]["run"] == "success"
    assert stages_called(ended[0]).count("ingest") == 2
    assert "notify" not in stages_called(ended[0])


@pytest.mark.airflow
@pytest.mark.slow
def test_a_night_that_cannot_be_opened_fails_the_run_and_is_not_closed(ended: Any) -> None:
    assert ended[5]["run"] == "failed"
    assert stages_called(ended[5]) == [*["open"] * 3, "notify"]
    assert ended[5]["states"]["close"] == "skipped"


@pytest.mark.airflow
@pytest.mark.slow
def test_a_night_that_cannot_be_closed_fails_the_run(ended: Any) -> None:
    assert ended[6]["run"] == "failed"


@pytest.mark.airflow
@pytest.mark.slow
def test_what_no_retry_can_fix_fails_at_once(ended: Any) -> None:
    assert [night["run"] for night in ended[7:]] == ["failed", "failed"]
    assert stages_called(ended[7]) == ["open", "notify"]
    assert stages_called(ended[8]) == ["open", "ingest", "validate", "notify", "predict", "close"]


@pytest.mark.airflow
@pytest.mark.slow
def test_predictions_beside_a_question_are_tried_until_they_are_written_and_stand(ended: Any) -> None:
    assert ended[4]["run"] == "success"
    assert stages_called(ended[4]).count("predict-ahead") == 3
    assert (ended[4]["states"]["predict_ahead"], ended[4]["states"]["predict"]) == ("success", "skipped")


@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(0, id="stop"), pytest.param(4, id="approval")])
def test_who_has_answered_on_the_command_line_is_not_asked_in_airflow(ended: Any, number: int) -> None:
    assert ended[number]["states"]["review"] == "skipped"

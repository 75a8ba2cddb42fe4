"""What a team's wishes, secrets and executor do to the DAGs of its home."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dags.servers import stand_in

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.promise]

# All answers of one process: each would import Airflow anew.
ASK = r"""
    import importlib, json, os, sys
    from datetime import UTC, datetime
    from pathlib import Path
    from types import SimpleNamespace
    connection = {
        "conn_type": "postgres", "host": "db", "login": "u", "password": "", "schema": "shop",
        "extra": {"sslmode": "require", "connect_timeout": 10, "keepalives": True, "nested": {"a": 1}},
    }
    os.environ["AIRFLOW_CONN_SHOP"] = json.dumps(connection)
    os.environ["AIRFLOW_VAR_KEY"] = "the first line of a key\n  the second line of a key\nabc"
    import command_sensor, home, notify, retrain, team
    from airflow.sdk.log import redact
    from jinja2 import Template
    folder = Path(os.environ["DAYBREAK_HOME"])
    program = folder / "program"
    program.write_text('#!/bin/sh\necho "$@ by $TOKEN$REGION: $(cat)" >> $DAYBREAK_HOME/called\n')
    program.chmod(0o755)
    notify.DAYBREAK, notify.OTHERS = [str(program)], ("PYTHONPATH", "PYTHONHOME")
    answers = {}

    def why(call, *args, **given):
        try:
            return call(*args, **given)
        except ValueError as error:
            return str(error)

    def of(**given):
        return home.Home(folder, "shop", "shop", home.Schedule(time_zone="America/New_York"), **given)

    def secret(place):
        return why(notify.given, of(secrets={"TOKEN": place}))

    answers["missing"] = secret("variable:nowhere")
    answers["malformed"] = secret("nowhere")
    answers["empty"] = secret("connection:shop.password")
    answers["part"] = secret("connection:shop.login")["TOKEN"]
    answers["uri"] = secret("connection:shop")["TOKEN"]
    secret("variable:key")
    answers["masked"] = [redact("logged: the first line of a key"), redact("the second line of a key")]
    without = of(env={"REGION": "eu"}, secrets={"TOKEN": "variable:nowhere"})
    notify.tell(without, "it failed", "--stage", "gate")
    answers["told"] = (folder / "called").read_text().strip()

    teams = of(env={"BY": "a team", "REGION": "eu"})
    with teams.dag("shown", doc="", default_args={}):
        typed = {"BY": "a person", "SEEN": str(folder / "seen")}
        once = command_sensor.Command(task_id="once", bash_command="true", env=typed, append_env=True)
        says = "echo $BY of $REGION > $SEEN"
        command_sensor.CommandSensor(task_id="again", bash_command=says, env=typed)._status()
    given = once.get_env({})
    answers["by"] = [f"{given['BY']} of {given['REGION']}", (folder / "seen").read_text().strip()]
    answers["command"] = notify.command(of(env={"PYTHONPATH": "/mine"}), "gate")

    def made(**wishes):
        nights, *_ = team.dags(of(), **wishes)
        timetable = nights.timetable
        return {
            "timetable": type(timetable).__name__, "zone": str(getattr(timetable, "timezone", "")),
            "alerts": len(nights.deadline or []),
            "looks": {name: nights.get_task(name).poke_interval for name in ("train", "ingest")},
        }

    answers["as in params"] = made()
    answers["weekdays"] = made(schedule="0 4 * * 1-5")
    answers["by hand"] = made(schedule=None)
    answers["no alert"] = made(deadline=None)
    answers["seldom"] = made(default_args={"poke_interval": 60})
    answers["unknown"] = why(made, dag_ids={"retrain.shop": "shop-nightly"})
    answers["of each"] = why(made, dag_args={"schedule": None, "tags": ["shop"]})

    monday, friday = datetime(2026, 11, 30, 4, tzinfo=UTC), datetime(2026, 11, 27, 4, tzinfo=UTC)
    due = Template(retrain.TYPED["DUE"])
    answers["due"] = [
        due.render(dag_run=SimpleNamespace(run_type=kind, run_after=monday), ts=friday.isoformat())
        for kind in ("scheduled", "backfill", "asset_triggered", "manual")
    ]

    celery = folder / "apache_airflow_providers_celery-0.dist-info"
    celery.mkdir()
    sys.path.insert(0, str(folder))

    def alerts(executors, *, provider):
        retrain.EXECUTOR = executors
        (celery / "METADATA").write_text(f"Name: apache-airflow-providers-celery\nVersion: {provider}\n")
        return retrain._executor_of_alerts()

    answers["executors"] = {name: alerts(name, provider="3.26.0") for name in json.loads(sys.argv[1])}
    answers["old celery"] = alerts("CeleryExecutor", provider="3.24.1")
    os.environ |= {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor", "AIRFLOW_IS_K8S_EXECUTOR_POD": "True"}
    before = (command_sensor.IN_PODS, "--warm" in retrain.OPEN)
    after = (importlib.reload(command_sensor).IN_PODS, "--warm" in importlib.reload(retrain).OPEN)
    answers["pods"] = [before, after]
    print(json.dumps(answers))
"""

EXECUTORS = {
    "LocalExecutor": "LocalExecutor",
    "KubernetesExecutor,near:LocalExecutor": "LocalExecutor",
    "airflow.executors.local_executor.LocalExecutor": "LocalExecutor",
    "CeleryExecutor": "CeleryExecutor",
    "KubernetesExecutor": "",  # a scheduler that asks it for a callback ends
    "own:shop.executors.Batch": "",
    "KubernetesExecutor;team=LocalExecutor": "",
}


@pytest.fixture(scope="module")
def answers(in_airflow: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    home: Path = stand_in(tmp_path_factory.mktemp("team") / "home")
    return in_airflow(ASK, json.dumps(list(EXECUTORS)), home=home)


def test_a_secret_that_is_not_there_is_named_with_its_place(answers: Any) -> None:
    assert answers["missing"].startswith("the secret TOKEN cannot be had from variable:nowhere: ")
    assert "write variable:KEY, connection:ID or connection:ID.password" in answers["malformed"]
    assert answers["empty"] == (
        "the secret TOKEN cannot be had from connection:shop.password: the connection has no password"
    )
    assert answers["part"] == "u"


def test_people_hear_of_a_failure_although_a_secret_is_missing(answers: Any) -> None:
    assert answers["told"] == "notify --stage gate by eu: it failed"


def test_a_connection_is_a_uri_that_a_driver_understands(answers: Any) -> None:
    query = "sslmode=require&connect_timeout=10&keepalives=true"
    assert answers["uri"] == f"postgresql://u:@db/shop?{query}"


def test_each_line_of_a_secret_is_masked(answers: Any) -> None:
    assert answers["masked"] == ["logged: ***", "***"]


def test_what_a_person_typed_stands_above_a_teams_variables(answers: Any) -> None:
    assert answers["by"] == ["a person of eu", "a person of eu"]


def test_a_stage_is_called_by_the_whole_path_of_its_program_with_the_python_path_that_a_team_gives(
    answers: Any,
) -> None:
    assert answers["command"].startswith("unset PYTHONHOME && ")
    assert answers["command"].endswith("/home/program gate")


def test_a_teams_cron_is_in_the_zone_of_the_home_and_starts_nights_when_they_are_due(answers: Any) -> None:
    for wish in ("as in params", "weekdays"):
        assert answers[wish]["timetable"] == "CronTriggerTimetable"
        assert answers[wish]["zone"] == "America/New_York"
        assert answers[wish]["alerts"] == 1


def test_none_is_a_wish_as_well(answers: Any) -> None:
    assert (answers["by hand"]["timetable"], answers["by hand"]["alerts"]) == ("NullTimetable", 0)
    assert (answers["no alert"]["timetable"], answers["no alert"]["alerts"]) == ("CronTriggerTimetable", 0)


def test_a_team_may_have_jobs_looked_at_less_often(answers: Any) -> None:
    assert answers["as in params"]["looks"] == {"train": 10, "ingest": 300}
    assert answers["seldom"]["looks"] == {"train": 60, "ingest": 300}


def test_wishes_that_would_be_lost_or_break_the_dags_are_refused(answers: Any) -> None:
    assert answers["unknown"] == (
        "dag_ids has retrain.shop; its keys are retrain, watch, rollback, drill, audit"
    )
    assert answers["of each"] == "dag_args has schedule; name schedule and default_args beside it"


def test_a_night_is_due_when_its_run_is_and_not_when_its_data_interval_begins(answers: Any) -> None:
    due = "2026-11-30T04:00:00+00:00"
    assert answers["due"] == [due, due, due, ""]


def test_an_alert_is_left_to_an_executor_that_can_run_it(answers: Any) -> None:
    assert answers["executors"] == EXECUTORS
    assert answers["old celery"] == ""


def test_a_pod_is_known_by_what_its_executor_says_of_it(answers: Any) -> None:
    assert answers["pods"] == [[False, True], [True, False]]

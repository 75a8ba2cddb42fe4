"""What a team's wishes, secrets and executor do to the DAGs of its home."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dags.servers import stand_in

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.promise]

# All answers of one process: each would import Airflow anew.
ASK = r"""
    import json, os
    from pathlib import Path
    connection = {
        "conn_type": "postgres", "host": "db", "login": "u", "password": "", "schema": "shop",
        "extra": {"sslmode": "require", "connect_timeout": 10, "keepalives": True, "nested": {"a": 1}},
    }
    os.environ["AIRFLOW_CONN_SHOP"] = json.dumps(connection)
    os.environ["AIRFLOW_VAR_KEY"] = "the first line of a key\n  the second line of a key\nabc"
    import command_sensor, home, notify
    from airflow.sdk.log import redact
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

    print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(in_airflow: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    home: Path = stand_in(tmp_path_factory.mktemp("team") / "home")
    return in_airflow(ASK, home=home)


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

"""The DAG file that `daybreak dags` writes for an Airflow that is already there."""

import ast
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli
from daybreak.contract import params
from daybreak.contract.errors import ParamsError
from tests.dags.servers import ROOT, environment

PASSWORD = "-".join(("canary", "of", "a", "connection"))  # in no file as it is
TOKEN = "a-value-of-a-variable"
MLFLOW = "https://mlflow.example.org"
DAGS = ["audit", "drill", "retrain", "rollback", "watch"]

# What a team might write below the last comment of the file.
TEAMS = """
from airflow.sdk import DAG
def page_somebody(context):
    pass
dags(
    HOME, dag_ids={"retrain": "shop-nightly"}, tags=["shop"], owner="ml", pool="gpus", queue="big",
    priority_weight=7, schedule="0 1 * * 1-5", deadline=[],
    dag_args={"owner_links": {"ml": "mailto:ml@shop"}},
    default_args={"on_failure_callback": page_somebody, "retries": 5},
    env={"REGION": "eu"},
    secrets={
        "SHOP_URL": "connection:shop",
        "SHOP_PASSWORD": "connection:shop.password",
        "TOKEN": "variable:token",
    },
)
"""

DESCRIBE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
def of(dag):
    task = dag.tasks[0]
    return {
        "tags": sorted(dag.tags), "schedule": getattr(dag.timetable, "expression", None), "doc": dag.doc_md,
        "owner": task.owner, "pool": task.pool, "queue": task.queue, "priority": task.priority_weight,
        "told": [call.__name__ for call in task.on_failure_callback], "retries": task.retries,
        "alerts": len(dag.deadline or []), "command": getattr(task, "bash_command", ""),
        "links": dag.owner_links,
    }
found = {name: of(dag) for name, dag in bag.dags.items()}
print(json.dumps({"errors": bag.import_errors, "dags": found}))
"""

RUN = """
import sys
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.log import configure_logging
configure_logging()
run = DagBag(sys.argv[1]).dags["watch.shop"].test()
print(sorted((task.task_id, str(task.state)) for task in run.get_task_instances()))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (tmp_path / "dags").mkdir()
    register = ["register.name=shop", f"register.tracking_uri={MLFLOW}/"]
    overrides = ["night.schedule=30 2 * * *", "night.time_zone=America/New_York"]
    params.override(ROOT, [*register, *overrides], into=folder)
    monkeypatch.setenv("DAYBREAK_HOME", str(folder))
    return folder


def written(home: Path, *options: str) -> Path:
    """The DAG file of the home, once `daybreak dags` has written it."""
    assert cli.main(["dags", str(home.parent / "dags"), *options]) == 0
    return home.parent / "dags" / "nights_shop.py"


def in_airflow(home: Path, code: str, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """What a piece of Python did beside Airflow; the DAGs of `make up` are not in its path."""
    given = environment(home.parent) | {"AIRFLOW__CORE__DAGS_FOLDER": str(home.parent / "dags")} | more
    given.pop("DAYBREAK_HOME")
    call = [sys.executable, "-c", code, *arguments]
    return subprocess.run(call, env=given, cwd=home.parent, capture_output=True, text=True, check=True)


def described(home: Path, file: Path) -> dict[str, Any]:
    answer = json.loads(in_airflow(home, DESCRIBE, str(file)).stdout.splitlines()[-1])
    assert answer["errors"] == {}
    return dict(answer["dags"])


def test_the_file_imports_airflow_and_the_standard_library_only(home: Path) -> None:
    tree = ast.parse(written(home).read_text())
    names = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= {"airflow", *sys.stdlib_module_names}
    assert "import daybreak" not in written(home).read_text()


def test_the_file_defines_each_name_once(home: Path) -> None:
    """Modules of dags/ that define the same name could not be written into one file."""
    named = Counter[str]()
    for node in ast.parse(written(home).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            named[node.name] += 1
        elif isinstance(node, ast.Assign):
            named.update(each.id for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name))
    assert [name for name, times in named.items() if times > 1] == []


def test_the_same_file_is_not_written_twice_and_a_teams_part_is_kept(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(home)
    assert "unpause retrain.shop and watch.shop" in capsys.readouterr().out
    file.write_text(file.read_text().replace("\ndags(HOME)\n", "\ndags(HOME, owner='ml')\n"))
    before = file.stat().st_mtime_ns
    assert written(home).stat().st_mtime_ns == before
    assert "is as it would be written" in capsys.readouterr().out
    params.override(home, ["night.schedule=45 2 * * *"], into=home)
    assert "'45 2 * * *'" in written(home).read_text()
    assert file.read_text().endswith("\ndags(HOME, owner='ml')\n")
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name]


@pytest.mark.parametrize("change", ["another's", "changed above", "in Latin-1"])
def test_a_file_that_is_not_ours_is_not_overwritten(
    home: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = home.parent / "dags" / "nights_shop.py"
    if change == "changed above":
        text = written(home).read_text().replace('max_active_runs": 1', 'max_active_runs": 2')
    else:
        text = "dag = None\n" if change == "another's" else "# b\xe4ckerei\n"
    file.write_text(text, encoding="latin-1")
    assert cli.main(["dags", str(file.parent)]) == ParamsError.exit_status
    assert "move it away" in caplog.text
    assert file.read_text(encoding="latin-1") == text


def test_a_home_does_not_take_over_the_file_of_another(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(home)
    before = file.read_text()
    other = home.with_name("other")
    other.mkdir()
    params.override(home, ["register.name=shop"], into=other)
    monkeypatch.setenv("DAYBREAK_HOME", str(other))
    assert cli.main(["dags", str(file.parent)]) == ParamsError.exit_status
    assert f"is of the home {home}; give {other} another register.name" in caplog.text
    assert file.read_text() == before


def test_a_file_of_the_homes_former_name_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(home)
    assert "is of this home, too" not in capsys.readouterr().out
    params.override(home, ["register.name=cards"], into=home)
    assert cli.main(["dags", str(file.parent)]) == 0
    assert f"{file} is of this home, too, and both start nights; delete it" in capsys.readouterr().out


def test_a_path_that_airflow_would_render_is_refused(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cli.main(["dags", str(home), "--command", "/opt/{{ds}}/daybreak"]) == ParamsError.exit_status
    assert "braces that Airflow takes for a template" in caplog.text


def test_a_folder_that_is_none_and_a_relative_command_are_refused(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main(["dags", str(home / "nowhere")]) == ParamsError.exit_status
    assert cli.main(["dags", str(home), "--command", "bin/daybreak"]) == ParamsError.exit_status
    assert "is not a folder" in caplog.text
    assert "write an absolute path" in caplog.text


@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.promise
def test_airflow_reads_the_file_without_the_package_or_the_home(home: Path) -> None:
    file = written(home, "--command", "/opt/daybreak/bin/daybreak")
    (home / "params.yaml").unlink()
    found = described(home, file)
    assert sorted(found) == [f"{name}.shop" for name in DAGS]
    nights = found["retrain.shop"]
    assert nights["schedule"] == "30 2 * * *"
    assert nights["tags"] == ["daybreak", "shop"]
    assert nights["alerts"] == 1
    for name, dag in found.items():
        path = 'export PATH=/opt/daybreak/bin:"$PATH"'
        assert f"{path} && export DAYBREAK_HOME={home} && cd {home}" in dag["command"], name
        assert " && /opt/daybreak/bin/daybreak " in dag["command"]
        assert "unset PYTHONPATH PYTHONHOME && " in dag["command"]
        assert dag["told"] == ["failed"]


@pytest.mark.airflow
@pytest.mark.slow
def test_names_schedule_owner_pool_queue_priority_and_callbacks_are_the_teams(home: Path) -> None:
    file = written(home)
    file.write_text(file.read_text().replace("\ndags(HOME)\n", TEAMS))
    found = described(home, file)
    assert set(found) == {"shop-nightly", *(f"{name}.shop" for name in DAGS)} - {"retrain.shop"}
    nights = found["shop-nightly"]
    assert (nights["schedule"], nights["alerts"]) == ("0 1 * * 1-5", 0)
    for dag in found.values():
        assert (dag["owner"], dag["pool"], dag["queue"], dag["priority"]) == ("ml", "gpus", "big", 7)
        assert dag["tags"] == ["shop"]
        assert dag["told"] == ["failed", "page_somebody"]
        assert dag["retries"] == 5
        assert dag["links"] == {"ml": "mailto:ml@shop"}


@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.promise
def test_secrets_of_airflow_reach_the_stages_and_nothing_keeps_them(home: Path, database: Path) -> None:
    program = home.parent / "bin" / "daybreak"
    program.parent.mkdir()
    names = ("SHOP_URL", "SHOP_PASSWORD", "TOKEN", "REGION", "MLFLOW_UI", "PYTHONPATH")
    seen = "\n".join(f'echo "{name}=${name}" >> $DAYBREAK_HOME/seen.$1' for name in names)
    says = "\n".join(
        [
            'echo "the password is $SHOP_PASSWORD"',
            'echo "the token is $TOKEN"',
            "echo done",  # Airflow keeps the last line as XCom
            "[ $1 != due ] || exit 99",
        ]
    )
    program.write_text(f"#!/bin/sh\n{seen}\n{says}")
    program.chmod(0o755)
    file = written(home, "--command", str(program))
    file.write_text(file.read_text().replace("\ndags(HOME)\n", TEAMS))
    (home.parent / "airflow").mkdir()
    shutil.copy(database, home.parent / "airflow")
    given = {
        "AIRFLOW_CONN_SHOP": f"postgres://shop:{PASSWORD}@db/shop",
        "AIRFLOW_VAR_TOKEN": TOKEN,
        "PYTHONPATH": "/of/airflow",
    }
    ran = in_airflow(home, RUN, str(file), **given)
    assert "('due', 'skipped'), ('night', 'skipped'), ('reap', 'success'), ('watch', 'success')" in ran.stdout
    for stage in ("watch", "reap"):  # one is a sensor
        assert (home / f"seen.{stage}").read_text().splitlines() == [
            f"SHOP_URL=postgresql://shop:{PASSWORD}@db/shop",
            f"SHOP_PASSWORD={PASSWORD}",
            f"TOKEN={TOKEN}",
            "REGION=eu",
            f"MLFLOW_UI={MLFLOW}",  # for links of reports
            "PYTHONPATH=",
        ]
    kept = [path.read_bytes() for path in (home.parent / "airflow").rglob("*") if path.is_file()]
    kept += [ran.stdout.encode(), ran.stderr.encode()]
    assert "the password is ***" in ran.stdout
    assert "the token is ***" in ran.stdout
    assert not any(secret.encode() in each for each in kept for secret in (PASSWORD, TOKEN))

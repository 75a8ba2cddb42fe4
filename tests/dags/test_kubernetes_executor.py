"""Airflow's scheduler as deploy/kubernetes-executor has it, and an API server whose pods are processes.

Scheduler and pods have the settings of the manifests, but for addresses and secrets. The stages are real, in
a clone of this repository. The DAG is made of the files in dags/ or, marked matrix, of the one that
`daybreak dags` writes, with a pod template that the DAG names, as a team has it.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import params
from tests.backends.fake_pods import PodCluster
from tests.clones import clone
from tests.dags.servers import Standalone, environment, free_port, server, settings
from tests.test_deploy import built, containers, needs_kustomize, stage_pod
from tests.test_deploy import environment as variables

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(2400), needs_kustomize]

# Two stages of a night, then a task that waits as one that looks after a job, and the alert of a late night.
OF_CHECKOUT = """
from command_sensor import CommandSensor
from homes import OWN as home
from notify import DEFAULT_ARGS, command
from retrain import FORM, OPEN, TYPED, nights_of, stage
"""
OF_A_TEAM = """
from dataclasses import replace
from nights_daybreak import (
    DEFAULT_ARGS, FORM, HOME, OPEN, TYPED, CommandSensor, command, nights_of, stage
)
pods = {{"pod_template_file": "{template}"}}
home = replace(HOME, dag_ids={{"part": "part"}}, default_args={{"executor_config": pods}})
"""
PART = """
from datetime import timedelta
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DeadlineAlert, DeadlineReference, chain
night = nights_of(home)
due = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_LOGICAL_DATE, interval=timedelta(seconds=1),
    callback=night.deadline[0].callback,
)
with home.dag(
    "part", doc="", params=FORM, default_args=DEFAULT_ARGS, deadline=due,
    user_defined_filters=night.user_defined_filters,
):
    look = "echo a look; [ -e $DAYBREAK_HOME/go ] || exit 75"
    chain(
        BashOperator(task_id="open", bash_command=command(home, OPEN), env=TYPED, append_env=True),
        stage(home, "ingest"),
        CommandSensor(task_id="wait", bash_command=look, retries=100),
    )
"""
SOONER = {  # than a retry is started, and a look follows another
    "timedelta(seconds=30)": "notify.py",
    "timedelta(seconds=10)": "command_sensor.py",
}
# How soon another scheduler takes a lost one's pods over; Airflow's own settings are five minutes.
TAKEN_OVER_SOON = {
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
}
RUNS = "/api/v2/dags/part/dagRuns"
TEMPLATE = "pod_of_team.yaml"


def manifest(kind: str, name: str) -> dict[str, Any]:
    """The only object of that kind and name in the overlay."""
    (only,) = [
        each
        for each in built("kubernetes-executor")
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return only


def of_scheduler() -> dict[str, str]:
    """The settings of the scheduler, those of a ConfigMap among them."""
    container, _ = containers("kubernetes-executor")["airflow-scheduler/airflow-scheduler"]
    given = variables(container)
    for each in container["env"]:
        if "valueFrom" in each:
            key = each["valueFrom"]["configMapKeyRef"]
            given[each["name"]] = manifest("ConfigMap", key["name"])["data"][key["key"]]
    return given


def with_values(pod: dict[str, Any], values: dict[str, str]) -> dict[str, Any]:
    """The pod with these values for the variables that it has."""
    for each in pod["spec"]["containers"][0]["env"]:
        each["value"] = values.get(each["name"], each["value"])
    return pod


@dataclass
class House:
    """Airflow and the cluster that it makes pods in; `start` starts its scheduler."""

    airflow: Standalone
    cluster: PodCluster
    folder: Path
    start: Callable[[], "subprocess.Popen[bytes]"]

    def lose(self, scheduler: "subprocess.Popen[bytes]") -> None:
        """The scheduler dies with all of its processes, as where its node is lost."""
        os.killpg(scheduler.pid, signal.SIGKILL)
        scheduler.wait()


@contextmanager
def running(folder: Path, *, home: Path, dags: Path, is_of_team: bool) -> Iterator[House]:
    """Airflow's interface, its reader of DAGs, and a cluster."""
    airflow = Standalone(f"http://127.0.0.1:{free_port()}", home)
    here = {"HOME": str(folder), "TMPDIR": str(folder)}
    keys = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of this test, of 32 bytes",
    }
    addresses = {
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{airflow.url}/execution/",
        "AIRFLOW__API__BASE_URL": airflow.url,
    }
    given = settings(folder, airflow.url, home=home, dags=dags) | here | keys
    given["AIRFLOW__CORE__EXECUTOR"] = "LocalExecutor"
    cluster_of_test = {
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(folder / "cluster" / "kubeconfig"),
        "AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(folder / "pod.yaml"),
    }
    scheduler = of_scheduler() | TAKEN_OVER_SOON | cluster_of_test | here | keys | addresses
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{home}/var/mlflow.db", "MLFLOW_TRACKING_PASSWORD": ""}
    pod = with_values(stage_pod(), here | addresses | store | {"DAYBREAK_LOG": ""})
    (folder / "pod.yaml").write_text(json.dumps(pod))
    if is_of_team:  # whose DAG names the template: tasks do not have the one of the executor
        (folder / TEMPLATE).write_text(json.dumps(pod))
        pod["spec"]["containers"][0]["image"] = "of-no-daybreak"
        (folder / "pod.yaml").write_text(json.dumps(pod))
    image = environment(folder) | {"DAYBREAK_HOME": str(home), "AIRFLOW__CORE__DAGS_FOLDER": str(dags)}
    subprocess.run(["airflow", "db", "migrate"], env=given, cwd=folder, check=True, capture_output=True)
    rules = manifest("Role", "stage-pods")["rules"]
    with PodCluster(folder / "cluster", image=image, rules=rules) as cluster, ExitStack() as servers:

        def start(*words: str, **more: str) -> "subprocess.Popen[bytes]":
            place = folder / words[0]
            place.mkdir(exist_ok=True)
            of = server(["airflow", *words], given=given | more, folder=place, up=lambda: True)
            return servers.enter_context(of)

        start("api-server")
        start("dag-processor", AIRFLOW__CORE__EXECUTOR=scheduler["AIRFLOW__CORE__EXECUTOR"])
        yield House(airflow, cluster, folder, lambda: start("scheduler", "--skip-serve-logs", **scheduler))


@dataclass
class Run:
    """A run of the DAG at its end, and the states seen before."""

    house: House
    path: str
    killed: str = ""  # the first pod of `ingest`
    evicted: str = ""  # the first pod of `wait`
    adopted: str = ""  # the second one
    tasks: dict[str, Any] = field(default_factory=dict)

    def ask(self, path: str = "") -> Any:
        return self.house.airflow.ask("GET", f"{self.path}{path}")[1]

    def pod_of(self, task: str, *, other_than: str = "") -> str:
        """Name of a pod of the task, once the task runs there."""

        def runs() -> str:
            names = [name for name in self.house.cluster.running(task) if name != other_than]
            return names[0] if names and self.ask(f"/taskInstances/{task}")["state"] == "running" else ""

        return str(self.house.airflow.until(runs))


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.matrix)], ids=["ours", "team's"]
)
def house(
    request: pytest.FixtureRequest,
    checkout: Path,
    empty_store: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("executor")
    home, dags = folder / "home", folder / "dags"
    clone(checkout, home)
    params.override(home, [f"notify.command=cat >> {folder}/told", "ingest.history_days=7"], into=home)
    commit = ["git", "commit", "--all", "--quiet", "--message", "tell it here"]
    subprocess.run(commit, cwd=home, check=True)
    (home / "var").mkdir(exist_ok=True)
    shutil.copy(empty_store, home / "var" / "mlflow.db")
    if request.param:
        dags.mkdir()
        subprocess.run(["daybreak", "--home", str(home), "dags", str(dags)], check=True)
        (file,) = dags.iterdir()
        file.write_text(file.read_text().removesuffix("dags(HOME)\n"))
        sooner = dict.fromkeys(SOONER, file.name)
        imports = OF_A_TEAM.format(template=folder / TEMPLATE)
    else:
        shutil.copytree(home / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
        sooner, imports = SOONER, OF_CHECKOUT
    (dags / ".airflowignore").write_text("".join(f"{path.name}\n" for path in dags.glob("*.py")))
    (dags / "part.py").write_text(imports + PART)
    for before, name in sooner.items():
        text = (dags / name).read_text()
        assert before in text
        (dags / name).write_text(text.replace(before, "timedelta(seconds=1)"))
    with running(folder, home=home, dags=dags, is_of_team=request.param) as house:
        yield house


@pytest.fixture(scope="module")
def run(house: House) -> Run:
    """A run in which a stage's pod is killed, a waiting one is evicted, and the scheduler is lost."""
    scheduler = house.start()

    def triggered() -> Any:
        with contextlib.suppress(OSError, http.client.HTTPException):
            body = {"logical_date": datetime.now(UTC).isoformat()}
            status, answer = house.airflow.ask("POST", RUNS, body)
            return answer if status == 200 else None

    run = Run(house, f"{RUNS}/{house.airflow.until(triggered)['dag_run_id']}")
    run.killed = run.pod_of("ingest")
    house.cluster.kill_pod(run.killed)
    run.evicted = run.pod_of("wait")
    house.airflow.until(lambda: house.cluster.log_of(run.evicted).count('"a look"') > 1)
    house.cluster.evict(run.evicted)
    run.adopted = run.pod_of("wait", other_than=run.evicted)
    house.lose(scheduler)
    scheduler = house.start()
    worker = house.cluster.worker_of(run.adopted)
    house.airflow.until(lambda: house.cluster.worker_of(run.adopted) != worker)
    (house.airflow.home / "go").touch()
    house.airflow.until(lambda: run.ask()["state"] in ("success", "failed"))
    house.airflow.until(lambda: not house.cluster.objects["pods"])
    run.tasks = {each["task_id"]: each for each in run.ask("/taskInstances")["task_instances"]}
    house.airflow.until((house.folder / "told").exists)
    house.lose(scheduler)  # which else waits for its watch, 20 seconds
    return run


def test_a_run_whose_pods_are_killed_and_evicted_and_whose_scheduler_is_lost_ends_well(run: Run) -> None:
    assert run.ask()["state"] == "success"
    assert {name: (task["state"], task["try_number"]) for name, task in run.tasks.items()} == {
        "open": ("success", 1),
        "ingest": ("success", 2),
        "wait": ("success", 2),
    }
    (night,) = (run.house.airflow.home / "nights").iterdir()
    assert json.loads((night / "data/run/batch.json").read_text())["num_rows"] > 0


def test_each_try_of_each_task_has_a_pod_of_its_own_of_the_image_that_is_named(run: Run) -> None:
    made = [
        (each["metadata"]["annotations"]["task_id"], each["metadata"]["annotations"]["try_number"])
        for each in run.house.cluster.made
    ]
    assert sorted(made) == [("ingest", "1"), ("ingest", "2"), ("open", "1"), ("wait", "1"), ("wait", "2")]
    images = {each["spec"]["containers"][0]["image"] for each in run.house.cluster.made}
    container, _ = containers("kubernetes-executor")["airflow-scheduler/airflow-scheduler"]
    assert images == {container["image"]}


def test_a_task_that_waits_keeps_its_pod_and_leaves_it_when_told_to(run: Run) -> None:
    cluster = run.house.cluster
    assert cluster.ended[run.killed] == 128 + signal.SIGKILL
    assert cluster.log_of(run.evicted).count('"a look"') > 1
    assert "the pod was told to end" in cluster.log_of(run.evicted)
    assert cluster.ended[run.evicted] != 128 + signal.SIGKILL  # before its grace was over


def test_a_new_scheduler_takes_over_the_pods_that_run(run: Run) -> None:
    assert run.house.cluster.ended[run.adopted] == 0


def test_the_log_of_a_task_is_read_after_its_pod_is_gone(run: Run) -> None:
    said = json.dumps(run.ask("/taskInstances/ingest/logs/2"))
    assert "rows in" in said


def test_the_scheduler_needs_each_of_its_rights_to_pods_and_no_other(run: Run) -> None:
    assert run.house.cluster.used == run.house.cluster.granted


def test_a_late_night_is_told_although_pods_cannot_run_its_alert(run: Run) -> None:
    assert "has opened no night" in (run.house.folder / "told").read_text()

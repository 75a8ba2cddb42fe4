"""The manifests in deploy/, written and as Kustomize builds them: by schemas, and against compose.yaml."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.test_compose import COMPOSE, HOLDS

ROOT = Path(__file__).parents[1]
WORKLOADS = ("Deployment", "StatefulSet", "Job", "CronJob")
# What another place needs: where the volume of PostgreSQL is, and a file that is no bind mount.
OTHER = {"PGDATA", "MLFLOW_AUTH_CONFIG_PATH", "MLFLOW_ARTIFACTS_DESTINATION"}
OVERLAYS = ("airflow", "kubernetes-executor", "cron")
needs_kustomize = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="no Kustomize here; install kubectl"
)


@cache
def written() -> list[dict[str, Any]]:
    """The objects of all manifests, before Kustomize puts them together."""
    files = [path for path in sorted((ROOT / "deploy").glob("*/*.yaml")) if path.name != "kustomization.yaml"]
    return [each for path in files for each in YAML(typ="safe").load_all(path.read_text()) if each]


@cache
def built(name: str) -> list[dict[str, Any]]:
    """The objects of deploy/NAME."""
    words = ["kubectl", "kustomize", str(ROOT / "deploy" / name)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [each for each in YAML(typ="safe").load_all(text) if each]


def pods(name: str) -> dict[str, dict[str, Any]]:
    """The templates of pods by the names of what makes them."""
    templates = {}
    for each in built(name):
        if each["kind"] in WORKLOADS:
            spec = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
            templates[each["metadata"]["name"]] = spec["template"]
    if name == "kubernetes-executor":
        templates["stage"] = stage_pod()
    return templates


def containers(name: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """All containers, also those that come first, with their pods."""
    return {
        f"{pod}/{container['name']}": (container, template)
        for pod, template in pods(name).items()
        for container in [
            *template["spec"]["containers"],
            *template["spec"].get("initContainers", ()),
        ]
    }


def stage_pod() -> dict[str, Any]:
    """The pod of a task, as Airflow finds it in deploy/kubernetes-executor."""
    (template,) = [each for each in built("kubernetes-executor") if each["metadata"]["name"] == "stage-pod"]
    pod: dict[str, Any] = YAML(typ="safe").load(template["data"]["pod.yaml"])
    return pod


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}


def secrets_of(template: dict[str, Any]) -> set[str]:
    sources = [
        source
        for volume in template["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
    ]
    return {item["key"] for source in sources for item in source.get("secret", {}).get("items", ())}


@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_every_object_is_written_as_the_api_has_it(version):
    import kubernetes_validate

    assert len(written()) > 40
    for each in written():
        kubernetes_validate.validate(each, version, strict=True)


@needs_kustomize
@pytest.mark.parametrize("name", OVERLAYS)
@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_every_object_is_built_as_the_api_has_it(name, version):
    import kubernetes_validate

    assert len(built(name)) > 30
    for each in built(name):
        kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_the_api_does_not_have_is_refused():
    import kubernetes_validate

    service = next(each for each in written() if each["kind"] == "Service")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service | {"spec": {"prots": []}}, "1.34", strict=True)


@needs_kustomize
def test_each_service_runs_as_compose_runs_it():
    by_name = {key.partition("/")[2]: value for key, value in containers("airflow").items()}
    for name, service in COMPOSE["services"].items():
        container, template = by_name[name]
        assert secrets_of(template) == HOLDS[name]
        given = {key: value for key, value in environment(container).items() if key not in OTHER}
        asked = {key: value for key, value in service["environment"].items() if key not in OTHER}
        assert given == asked, name
        if "command" in service:
            assert container["args"] == service["command"], name
            assert container["command"] == service["entrypoint"], name
        else:
            assert container["image"] == service["image"], name


@needs_kustomize
@pytest.mark.parametrize("name", OVERLAYS)
def test_no_pod_has_rights_that_it_does_not_need(name):
    for key, (container, template) in containers(name).items():
        allowed = container["securityContext"]
        assert allowed["allowPrivilegeEscalation"] is False, key
        assert allowed["readOnlyRootFilesystem"] is True, key
        assert allowed["capabilities"] == {"drop": ["ALL"]}, key
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True, key
        assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, key
        assert template["spec"]["automountServiceAccountToken"] is False, key
        assert container["resources"]["limits"]["memory"], key
        assert re.search(r":\d+\.\d+", container["image"]), key
        paths = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        # What runs the stages writes to the home, and what notes there that a night is late.
        writes = template["spec"]["serviceAccountName"] in ("stages", "scheduler")
        assert writes or "/daybreak" not in paths, key
        for variable, value in environment(container).items():
            if re.search("PASSWORD|SECRET|KEY|TOKEN", variable) and not variable.endswith(("_FILE", "_PATH")):
                assert re.fullmatch(r"\{secret \w+\}", value), variable


@needs_kustomize
@pytest.mark.parametrize("name", OVERLAYS)
def test_a_pod_may_reach_what_its_settings_name_and_nothing_else(name):
    rules = [each for each in built(name) if each["kind"] == "NetworkPolicy"]
    assert any(each["spec"]["podSelector"] == {} and "ingress" not in each["spec"] for each in rules)
    for pod, template in pods(name).items():
        texts = [
            value
            for key, (container, _) in containers(name).items()
            if key.startswith(f"{pod}/")
            for value in environment(container).values()
        ]
        labels = template["metadata"]["labels"]
        for service in ("postgres", "mlflow", "airflow-api"):
            named = any(re.search(rf"[/@]{service}[:/]", text) for text in texts) and pod != service
            reaches = labels.get(f"reaches-{service}") == "yes"
            # Whoever migrates has Airflow's settings, and talks to its database only.
            assert reaches == named or pod == "airflow-migrate", (pod, service)


@needs_kustomize
def test_a_task_in_a_pod_has_what_the_scheduler_has_where_it_runs_the_stages():
    """The same but for Airflow's database and keys, which it does not need."""
    alone, _ = containers("kubernetes-executor")["stage/base"]
    among, scheduler = containers("airflow")["airflow-scheduler/airflow-scheduler"]
    assert alone["command"] == among["command"]
    for same in ("securityContext", "resources", "volumeMounts"):
        assert alone[same] == among[same], same
    given, asked = environment(alone), environment(among)
    executor = containers("kubernetes-executor")["airflow-scheduler/airflow-scheduler"][0]
    assert given.pop("AIRFLOW__CORE__EXECUTOR") == environment(executor)["AIRFLOW__CORE__EXECUTOR"]
    assert given.items() <= asked.items()
    assert {key for key in asked.keys() - given.keys() if not key.startswith("AIRFLOW__CORE__")} == {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "AIRFLOW__API_AUTH__JWT_SECRET",
    }
    pod = stage_pod()
    assert pod["spec"]["serviceAccountName"] == "stages"
    assert pod["spec"]["securityContext"] == scheduler["spec"]["securityContext"]
    labels = {"app": "airflow-scheduler"} | {key: "yes" for key in pod["metadata"]["labels"] if key != "app"}
    assert labels == scheduler["metadata"]["labels"]
    assert secrets_of(pod) == secrets_of(scheduler) - {"airflow_database", "airflow_jwt"}


@needs_kustomize
def test_a_scheduler_that_makes_pods_has_neither_the_rights_nor_the_secrets_of_the_stages():
    container, scheduler = containers("kubernetes-executor")["airflow-scheduler/airflow-scheduler"]
    assert scheduler["spec"]["serviceAccountName"] == "scheduler"
    assert secrets_of(scheduler) == {"airflow_database", "airflow_jwt"}
    assert not [key for key in environment(container) if key.startswith(("MLFLOW_TRACKING", "DAYBREAK"))]
    granted = {each["metadata"]["name"]: each for each in built("kubernetes-executor") if "subjects" in each}
    (role,) = [each for each in granted.values() if each["subjects"][0]["name"] == "scheduler"]
    assert (role["kind"], role["metadata"]["namespace"]) == ("RoleBinding", "daybreak")
    readers = containers("kubernetes-executor")["airflow-dag-processor/airflow-dag-processor"][0]
    key = "AIRFLOW__CORE__EXECUTOR"
    assert environment(readers)[key] == environment(container)[key]


@needs_kustomize
def test_the_overlays_of_the_page_put_the_names_of_a_team_everywhere(tmp_path):
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    overlays = re.findall(r"```yaml\n# my-daybreak/kustomization.yaml[^\n]*\n(.*?)```", page, flags=re.DOTALL)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    (tmp_path / "my-daybreak").mkdir()
    for text in overlays:
        (tmp_path / "my-daybreak" / "kustomization.yaml").write_text(text)
        words = ["kubectl", "kustomize", str(tmp_path / "my-daybreak")]
        done = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        objects = YAML(typ="safe").load_all(done)
        named = {(each["kind"], each["metadata"]["name"]): each for each in objects}
        assert "my-team" in named["ConfigMap", "home"]["data"]["repository"]
        scheduler = named["Deployment", "airflow-scheduler"]["spec"]["template"]["spec"]["containers"][0]
        assert scheduler["image"] == "registry.example/daybreak:0.1.0"
        if ("ConfigMap", "stage-image") in named:  # where Kustomize sees no image
            of_stages = named["ConfigMap", "stage-image"]["data"]
            assert f"{of_stages['repository']}:{of_stages['tag']}" == scheduler["image"]
    assert ["kubernetes-executor" in text for text in overlays] == [False, True]


def test_what_reads_the_dags_also_reads_when_a_night_starts():
    (reader,) = [each for each in written() if each["metadata"]["name"] == "airflow-dag-processor"]
    (container,) = reader["spec"]["template"]["spec"]["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/daybreak/params.yaml"]
    assert mount == {
        "name": "home",
        "mountPath": "/daybreak/params.yaml",
        "subPath": "params.yaml",
        "readOnly": True,
    }
    volumes = COMPOSE["services"]["airflow-dag-processor"]["volumes"]
    assert "./params.yaml:/daybreak/params.yaml:ro" in volumes


def test_who_only_trains_on_the_cluster_is_granted_on_the_page_what_the_stages_have():
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (rights,) = re.findall(r"```yaml\n# rights.yaml\n(.*?)```", page, flags=re.DOTALL)
    accounts = (ROOT / "deploy" / "base" / "accounts.yaml").read_text()
    granted, had = (
        {each["kind"]: each["rules"] for each in YAML(typ="safe").load_all(text) if "rules" in each}
        for text in (rights, accounts)
    )
    assert granted == had


@needs_kustomize
def test_routers_and_pages_are_scaled_by_what_is_known_of_their_pods_and_what_they_say(tmp_path):
    from fastapi.testclient import TestClient

    from daybreak.extensions.pages.night_pages import make_app
    from daybreak.extensions.router.prometheus import Metrics, Together
    from daybreak.extensions.router.settings import RouterParams

    pages = TestClient(make_app(tmp_path, RouterParams(), host="0.0.0.0"))
    assert pages.get("/", follow_redirects=False).status_code == 307
    pages.get("/nights/compare")
    said = {
        "router": Together([Metrics("a")]).text().decode(),
        "pages": pages.get("/metrics").text,
    }
    assert "\ndaybreak_page_requests_total 1.0" in said["pages"]
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (text,) = re.findall(r"```yaml\nrules:\n(.*?)```", page, flags=re.DOTALL)
    rules = {each["name"]["as"]: each for each in YAML(typ="safe").load("rules:\n" + text)["rules"]}
    scalers = [each for each in built("cron") if each["kind"] == "HorizontalPodAutoscaler"]
    assert {each["spec"]["scaleTargetRef"]["name"] for each in scalers} == said.keys()
    for scaler in scalers:
        name, metrics = scaler["spec"]["scaleTargetRef"]["name"], scaler["spec"]["metrics"]
        (container,) = pods("cron")[name]["spec"]["containers"]
        measured = {each["resource"]["name"] for each in metrics if each["type"] == "Resource"}
        assert measured == container["resources"]["requests"].keys() == {"cpu", "memory"}
        memory = next(each for each in metrics if each.get("resource", {}).get("name") == "memory")
        limit, asked = (container["resources"][key]["memory"] for key in ("limits", "requests"))
        share = memory["resource"]["target"]["averageUtilization"] / 100
        assert share * bytes_of(asked) < bytes_of(limit)
        for metric in (each["pods"]["metric"]["name"] for each in metrics if each["type"] == "Pods"):
            series = re.match(r"\w+", rules.pop(metric)["seriesQuery"])
            assert series
            assert re.search(rf"\n{series[0]}[{{ ]", said[name])
    assert not rules


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) << {"Mi": 20, "Gi": 30}[quantity[-2:]]

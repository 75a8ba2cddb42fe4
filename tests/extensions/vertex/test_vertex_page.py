"""docs/vertex.md is held to what it would meet: gcloud's own parser, real classes, the bucket's client."""

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from daybreak.contract import params
from daybreak.extensions.vertex.endpoint import Endpoint
from daybreak.extensions.vertex.vertex import Vertex
from daybreak.storage import lifecycle
from tests import cloud_storage
from tests.test_docs import FENCE, ROOT, commands

PAGE = ROOT / "docs" / "vertex.md"
TEXT = PAGE.read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SWITCHES = {"--global", "--recursive", "--require-specific-reservation", "--uniform-bucket-level-access"}
ROLES = {
    "roles/aiplatform.user",
    "roles/artifactregistry.reader",
    "roles/cloudbuild.builds.builder",
    "roles/compute.networkAdmin",
    "roles/compute.viewer",
    "roles/iam.serviceAccountTokenCreator",
    "roles/iam.serviceAccountUser",
    "roles/logging.logWriter",
    "roles/storage.legacyBucketReader",
    "roles/storage.objectAdmin",
}


def run(program: str) -> list[list[str]]:
    """The commands of that program on the page, in order."""
    arguments = []
    for words in commands(PAGE):
        at = words.index(program) if program in words[:2] else -1  # after `do` of a loop
        if at >= 0:
            arguments.append(words[at + 1 :])
    return arguments


def with_values_joined(words: list[str]) -> str:
    """A command as `gcloud meta lint-gcloud-commands` takes it: arguments first, then `--flag=value`."""
    arguments, flags, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            arguments.append(word)
        else:
            flags.append(word if word in SWITCHES else f"{word}={rest.pop(0)}")
    command = shlex.join(["gcloud", *arguments, *flags])
    return command.replace("$who", "somebody@my-daybreak.iam.gserviceaccount.com")  # of a loop over accounts


def errors_of(lines: list[list[str]], *, folder: Path) -> list[str]:
    """Returns the error with which gcloud's parser refuses each command, "" if it accepts the command.

    Skips where gcloud is not installed.
    """
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not here; install google-cloud-cli")
    listed = folder / "commands.json"
    listed.write_text(json.dumps([{"command_string": with_values_joined(words)} for words in lines]))
    given = {"CLOUDSDK_CONFIG": str(folder / "gcloud"), "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true"}
    done = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", "--commands-file", str(listed)],
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    errors = {each["command_string"]: each["error_message"] or "" for each in json.loads(done.stdout)}
    assert len(errors) == len(set(map(tuple, lines)))
    return list(errors.values())


@pytest.mark.slow
def test_gcloud_takes_each_command_of_the_page(tmp_path: Path) -> None:
    lines = run("gcloud")
    assert len(lines) > 35
    assert [error for error in errors_of(lines, folder=tmp_path) if error] == []


def test_the_page_grants_the_roles_that_were_looked_up() -> None:
    """As gcloud does not know a role before it asks Google."""
    assert {words[words.index("--role") + 1] for words in run("gcloud") if "--role" in words} == ROLES


@pytest.mark.slow
def test_gcloud_sees_a_wrong_command(tmp_path: Path) -> None:
    wrong = [
        "storage buckets create gs://b --locaton us-central1",
        "storage bucket create gs://b --location x",
        "projects add-iam-policy-binding p --member user:x",
        "projects create a-project another-one",
        "compute reservations create r --zone z --vm-count 1 --reservation-sharing-policy all",
    ]
    assert all(errors_of([command.split() for command in wrong], folder=tmp_path))


def test_a_variable_is_set_on_the_page_before_it_is_used() -> None:
    known: set[str] = set()
    for _, language, block in FENCE.findall(TEXT):
        if language != "sh":
            continue
        plain = re.sub(r"<<'END'.*?^END$", "", block, flags=re.DOTALL | re.MULTILINE)
        for line in plain.splitlines():
            used = set(re.findall(r"\$\{?([A-Za-z]\w*)", line))
            set_here = set(re.findall(r"(?:^|\s)([A-Za-z]\w*)=", line)) | set(
                re.findall(r"^for (\w+) in", line)
            )
            assert used <= known | set_here, line
            known |= set_here


def test_each_image_that_params_yaml_names_is_built_for_amd64_and_pushed_before() -> None:
    built, pushed = {}, set()
    for words in run("docker"):
        if words[0] == "build":
            assert words[words.index("--platform") + 1] == "linux/amd64"
            target = words[words.index("--target") + 1]
            assert re.search(rf"^FROM \S+ AS {target}$", DOCKERFILE, re.MULTILINE)
            built[words[words.index("-t") + 1]] = target
        else:
            assert words[0] == "push"
            pushed.add(words[1])
    assert pushed == set(built)
    named = {use: plug["image"] for use, plug in plugs().items()}
    assert {use: built[image] for use, image in named.items()} == {
        "backend": "trainer",
        "endpoint": "serving",
    }
    by_cloud_build = [
        words[words.index("--substitutions") + 1] for words in run("gcloud") if words[0] == "builds"
    ]
    substitutions = [dict(pair.split("=") for pair in text.split(",")) for text in by_cloud_build]
    assert {each["_IMAGE"]: each["_TARGET"] for each in substitutions} == built
    config = (ROOT / "cloudbuild.yaml").read_text()
    steps = YAML(typ="safe").load(config)
    assert steps["images"] == ["$_IMAGE"]
    assert set(re.findall(r"\$(_\w+)", config)) == set(substitutions[0])


def blocks() -> list[Any]:
    return [YAML(typ="safe").load(text) for _, language, text in FENCE.findall(TEXT) if language == "yaml"]


def plugs() -> dict[str, dict[str, Any]]:
    """What the page says of the backend and of the endpoint."""
    merged: dict[str, Any] = {}
    for block in blocks():
        merged |= block
    return {"backend": merged["backend"], "endpoint": merged["serving"]["endpoint"]}


def test_params_yaml_of_the_page_makes_the_real_backend_and_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: dict[str, Any] = {"source": "a:B", "workload": "a:B"}
    for block in blocks():
        merged |= block
    loaded = params.check(merged)
    backend, endpoint = loaded.backend.make(), loaded.serving.endpoint.make()  # type: ignore[union-attr]
    assert isinstance(backend, Vertex)
    assert isinstance(endpoint, Endpoint)
    names = {machine.name for machine in backend.machines()}
    assert set(loaded.plan.machines) <= names
    assert loaded.train.checkpoints.startswith(f"{plugs()['backend']['bucket']}/")


@pytest.mark.parametrize(("kind", "head"), [(Vertex, "of the backend"), (Endpoint, "of the endpoint")])
def test_each_argument_of_backend_and_endpoint_is_on_the_page(kind: type, head: str) -> None:
    (further,) = re.findall(rf"^Further arguments {head}:\n\n(.*?)\n\n", TEXT, re.DOTALL | re.MULTILINE)
    named = {
        name for heads in re.findall(r"^- (.*?):", further, re.M) for name in re.findall(r"`(\w+)`", heads)
    }
    shown = plugs()["backend" if kind is Vertex else "endpoint"]
    taken = set(inspect.signature(kind).parameters) - {"retry", "home"}  # of Python only
    assert named | (set(shown) - {"use"}) == taken


@pytest.mark.slow
def test_the_lifecycle_of_the_page_is_taken_by_the_bucket_and_leaves_all_that_is_needed() -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    (rule,) = re.findall(r"rule\.json <<'END'\n(.*?)^END$", TEXT, re.DOTALL | re.MULTILINE)
    kept = [
        ("serving", True),
        ("dvc", True),
        ("mlflow", True),
        ("things", False),
        ("jobs", False),
        ("bags", False),
        ("checkpoints", False),
    ]
    with cloud_storage.served() as store, cloud_storage.emulated(store):
        bucket = storage.Client(project="p", credentials=AnonymousCredentials()).get_bucket("bucket")
        bucket.lifecycle_rules = json.loads(rule)["rule"]
        bucket.patch()
        rules = lifecycle.rules("bucket")
    places = [lifecycle.place(f"gs://bucket/{name}", name, for_ever=for_ever) for name, for_ever in kept]
    assert lifecycle.complaints(rules, [each for each in places if each]) == []
    prefixes = rules[0]["condition"]["matchesPrefix"]
    assert {name for name, for_ever in kept if not for_ever} == {each.rstrip("/") for each in prefixes}
    table = TEXT[: TEXT.index("```sh\ncat > rule.json")]
    assert all(f"| `{name}/" in table for name, _ in kept)


def test_jobs_are_listed_by_labels_that_they_have() -> None:
    asked = [word for words in run("gcloud") for word in words if word.startswith("labels.")]
    labels = set(re.findall(r"labels\.(\w+)=", " ".join(asked)))
    assert labels
    known = re.search(r"Filter by the labels (.*?)\. ", TEXT, re.DOTALL)
    assert known
    assert labels <= set(re.findall(r"`(\w+)`", known[1]))

"""docs/vertex.md is held to what it would meet: flags as documented, real classes, the bucket's real client.

`gcloud` is not here, so its commands are held against the flags that its reference names (2026), which stand
below; a flag that is not there is a mistake of the page, or is added with a look at the reference.
"""

import inspect
import json
import re
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.backends.vertex.vertex import Vertex
from pipeline.contract import params
from pipeline.rollout.endpoint import Endpoint
from pipeline.storage import lifecycle
from tests import cloud_storage
from tests.test_docs import FENCE, ROOT, commands

PAGE = ROOT / "docs" / "vertex.md"
TEXT = PAGE.read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BINDING = {"--member!", "--role!"}
# Each command, the number of its arguments, and its flags; one that ends in ! has to be given.
GCLOUD: dict[str, tuple[int, set[str]]] = {
    "ai custom-jobs list": (0, {"--region!", "--filter"}),
    "ai custom-jobs stream-logs": (1, {"--region!"}),
    "ai endpoints list": (0, {"--region!"}),
    "ai endpoints predict": (1, {"--region!", "--json-request!"}),
    "artifacts repositories create": (1, {"--repository-format!", "--location!"}),
    "artifacts repositories add-iam-policy-binding": (1, {"--location!"} | BINDING),
    "artifacts repositories delete": (1, {"--location!"}),
    "auth application-default login": (0, {"--impersonate-service-account"}),
    "auth configure-docker": (1, set()),
    "auth login": (0, set()),
    "beta services identity create": (0, {"--service!", "--project"}),
    "billing projects link": (1, {"--billing-account!"}),
    "builds submit": (0, {"--config!", "--substitutions"}),
    "compute addresses create": (1, {"--global!", "--purpose!", "--prefix-length!", "--network!"}),
    "compute network-attachments create": (1, {"--region!", "--subnets!", "--connection-preference!"}),
    "compute reservations create": (
        1,
        {"--zone!", "--machine-type!", "--vm-count!", "--require-specific-reservation",
         "--reservation-sharing-policy!"},
    ),
    "config set": (2, set()),
    "iam service-accounts add-iam-policy-binding": (1, BINDING),
    "iam service-accounts create": (1, set()),
    "iam service-accounts delete": (1, set()),
    "logging read": (1, {"--limit"}),
    "projects add-iam-policy-binding": (1, BINDING),
    "projects create": (1, set()),
    "projects delete": (1, set()),
    "projects describe": (1, {"--format"}),
    "services api-keys create": (0, {"--display-name", "--api-target"}),
    "services enable": (-1, set()),
    "services vpc-peerings connect": (0, {"--service!", "--network!", "--ranges!"}),
    "storage buckets add-iam-policy-binding": (1, BINDING),
    "storage buckets create": (1, {"--location!", "--uniform-bucket-level-access"}),
    "storage buckets update": (1, {"--lifecycle-file"}),
    "storage rm": (1, {"--recursive"}),
}  # fmt: skip
SWITCHES = {"--global", "--recursive", "--require-specific-reservation", "--uniform-bucket-level-access"}
ROLES = {
    "roles/aiplatform.user", "roles/artifactregistry.reader", "roles/cloudbuild.builds.builder",
    "roles/compute.networkAdmin", "roles/iam.serviceAccountTokenCreator", "roles/iam.serviceAccountUser",
    "roles/logging.logWriter", "roles/storage.legacyBucketReader", "roles/storage.objectAdmin",
}  # fmt: skip


def run(program: str) -> list[list[str]]:
    """The commands of that program on the page, in order."""
    found = []
    for words in commands(PAGE):
        at = words.index(program) if program in words[:2] else -1  # after `do` of a loop
        if at >= 0:
            found.append(words[at + 1 :])
    return found


def fault(words: list[str]) -> str:
    """What gcloud would refuse of a command, "" for nothing."""
    name = next((" ".join(words[:n]) for n in (4, 3, 2) if " ".join(words[:n]) in GCLOUD), "")
    if not name:
        return f"gcloud {' '.join(words)} is not known"
    number, allowed = GCLOUD[name]
    known = {flag.rstrip("!") for flag in allowed}
    given: dict[str, str] = {}
    arguments = []
    rest = words[len(name.split()) :]
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            given[word] = "" if word in SWITCHES else rest.pop(0)
        else:
            arguments.append(word)
    if unknown := given.keys() - known:
        return f"gcloud {name} has no {unknown}"
    if missing := {flag.rstrip("!") for flag in allowed if flag.endswith("!")} - given.keys():
        return f"gcloud {name} lacks {missing}"
    if number >= 0 and len(arguments) != number:
        return f"gcloud {name} takes {number} arguments, not {arguments}"
    if given.get("--role", "roles/storage.objectAdmin") not in ROLES:
        return f"there is no role {given['--role']}"
    return ""


def test_each_command_of_gcloud_has_the_flags_that_its_reference_names() -> None:
    found = run("gcloud")
    assert len(found) > 35
    assert [wrong for wrong in map(fault, found) if wrong] == []
    unused = {name for name in GCLOUD if not any(" ".join(words).startswith(name) for words in found)}
    assert not unused


@pytest.mark.parametrize(
    "command",
    [
        "storage buckets create gs://b --locaton us-central1", "storage bucket create gs://b --location x",
        "projects add-iam-policy-binding p --member user:x", "projects create",
        "projects add-iam-policy-binding p --member user:x --role roles/aiplatform.users",
    ],
)  # fmt: skip
def test_a_wrong_command_of_gcloud_is_seen(command: str) -> None:
    assert fault(command.split())


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
    told = [dict(pair.split("=") for pair in text.split(",")) for text in by_cloud_build]
    assert {each["_IMAGE"]: each["_TARGET"] for each in told} == built
    config = (ROOT / "cloudbuild.yaml").read_text()
    steps = YAML(typ="safe").load(config)
    assert steps["images"] == ["$_IMAGE"]
    assert set(re.findall(r"\$(_\w+)", config)) == set(told[0])


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
    (table,) = re.findall(rf"\| further argument {head} \| what \|\n(.*?)\n\n", TEXT, re.DOTALL)
    told = {name for row in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    shown = plugs()["backend" if kind is Vertex else "endpoint"]
    taken = set(inspect.signature(kind).parameters) - {"retry"}  # of Python only
    assert told | (set(shown) - {"use"}) == taken


@pytest.mark.slow
def test_the_lifecycle_of_the_page_is_taken_by_the_bucket_and_leaves_all_that_is_needed() -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    (rule,) = re.findall(r"rule\.json <<'END'\n(.*?)^END$", TEXT, re.DOTALL | re.MULTILINE)
    kept = [("serving", True), ("dvc", True), ("mlflow", True), ("things", False), ("jobs", False),
            ("checkpoints", False)]  # fmt: skip
    with cloud_storage.served() as store, cloud_storage.told(store):
        bucket = storage.Client(project="p", credentials=AnonymousCredentials()).get_bucket("bucket")
        bucket.lifecycle_rules = json.loads(rule)["rule"]
        bucket.patch()
        found = lifecycle.rules("bucket")
    places = [lifecycle.place(f"gs://bucket/{name}", name, for_ever=for_ever) for name, for_ever in kept]
    assert lifecycle.complaints(found, [each for each in places if each]) == []
    prefixes = found[0]["condition"]["matchesPrefix"]
    assert {name for name, for_ever in kept if not for_ever} == {each.rstrip("/") for each in prefixes}
    table = TEXT[: TEXT.index("```sh\ncat > rule.json")]
    assert all(f"| `{name}/" in table for name, _ in kept)


def test_jobs_are_listed_by_labels_that_they_have() -> None:
    asked = [word for words in run("gcloud") for word in words if word.startswith("labels.")]
    labels = set(re.findall(r"labels\.(\w+)=", " ".join(asked)))
    assert labels
    known = re.search(r"carry the labels (.*?):", TEXT, re.DOTALL)
    assert known
    assert labels <= set(re.findall(r"`(\w+)`", known[1]))

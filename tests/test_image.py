"""The images: linted, of files that are there, by no root, and each with all that its processes import."""

import ast
import fnmatch
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from daybreak.training.gpus import MOUNTED
from tests.distributions import closure, modules

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BEGINNINGS = {
    "trainer": [
        "training.worker",
        "profiling.profile_job",
        "profiling.machine_trial",
        "backends.entrypoint",
        "extensions.kubernetes.pod_entrypoint",
        "extensions.memory_limits.memory_guard",
        "extensions.band_limits.band_limited",
        "workloads.table_workload",
        "workloads.samples",
        "examples.shop.recommender",
        "examples.shop.regression",
        "examples.fraud.fraud",
    ],
    "serving": [
        "extensions.router.server",
        "extensions.vertex.container",
        "extensions.pages.night_pages",
        "registry.served",
        "workloads.served_rows",
        "evaluation.smoke_process",
        "examples.shop.recommender",
        "examples.fraud.fraud",
    ],
}
# What only functions ask for that are called elsewhere: no night is recorded there, and nothing is prepared.
# torch_xla is in the image that is built for TPUs, and the libraries of estimators in those to which a team
# adds them (docs/own-data.md).
ESTIMATORS = {"lightgbm", "xgboost", "sklearn", "skops"}
ELSEWHERE = {
    "trainer": ESTIMATORS
    | {"dvc", "dvc_objects", "tenacity", "mlflow", "torch_xla", "ibis", "tqdm", "diskcache"},
    "serving": ESTIMATORS
    | {
        "dvc",
        "dvc_objects",
        "torch_xla",
        "ibis",
        "diskcache",
        "duckdb",
        "sqlglot",
        "great_expectations",
    },
}
# What trains a small model to its end while everything that the image lacks cannot be imported.
TRAIN = """
import os, sys
from importlib.machinery import PathFinder
class Installed:
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {lacking} else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Installed()
import daybreak.backends.sync, daybreak.backends.entrypoint, daybreak.profiling.profiler
import daybreak.extensions.fsdp.fsdp, daybreak.extensions.averaging.local_sgd
import daybreak.training.checkpoint_copies, gcsfs
from pathlib import Path
from daybreak.contract import records
from daybreak.training import worker
from tests.training import nights
folder = Path(sys.argv[1])
nights.lay_out(folder)
from daybreak.jobs.launcher import recipe_of
os.chdir(folder)
plan = nights.plan(num_samples=64)
recipe = nights.recipe_of(nights.night(seconds=600), nights.dataset(), plan, None, nights.make_params())
(folder / "job").mkdir()
(folder / "job" / "job.json").write_text(records.dumps(recipe))
sys.exit(worker.main(folder / "job"))
"""


def group(name: str) -> list[Requirement]:
    """The packages that an image is built from."""
    packages: list[Requirement] = []
    for each in PROJECT["dependency-groups"][name]:
        packages += group(each["include-group"]) if isinstance(each, dict) else [Requirement(each)]
    return packages


def reached(beginnings: list[str]) -> set[str]:
    """What the modules and all that they import, at any time, import from outside."""
    begun = [f"daybreak.{name}" for name in beginnings]
    todo, seen, outside = list(begun), set[str](), set[str]()
    while todo:
        name = todo.pop()
        path = ROOT / "pipeline" / (name.replace(".", "/") + ".py")
        assert path.exists() or name not in begun, f"there is no {name}"
        if name in seen or not path.exists():
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            todo += [each for each in imported if each.startswith("daybreak.")]
            outside |= {each.partition(".")[0] for each in imported}
    return outside - {"daybreak"} - sys.stdlib_module_names


def pinned(line: str) -> tuple[str, str]:
    name, _, version = line.partition("==")
    return canonicalize_name(name), version


def test_the_linter_has_nothing_to_say_of_any_dockerfile() -> None:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*Dockerfile*"]
    known = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "Dockerfile" in known
    lint = [str(Path(sys.executable).with_name("hadolint")), *known]
    done = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_file_that_is_copied_is_there_and_is_sent_to_the_builder() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    sent = [line[1:].rstrip("/") for line in ignored if line.startswith("!")]
    assert ignored[0] == "*"
    copies = [line.split()[1:-1] for line in re.findall(r"^COPY (?!--from).*", DOCKERFILE, re.MULTILINE)]
    for name in ("x", *(name for names in copies for name in names)):
        there = (ROOT / name).exists() and any(name == one or name.startswith(f"{one}/") for one in sent)
        assert there == (name != "x"), name
    assert not any(fnmatch.fnmatch(name, "*.env") for names in copies for name in names)


def test_the_build_takes_the_torch_of_the_device_that_is_chosen(tmp_path: Path) -> None:
    """The step of the Dockerfile is run, with a program in place of uv that says what it was asked for."""
    (step,) = re.findall(r"^RUN (sed .*esac)$", DOCKERFILE, re.MULTILINE)
    (tmp_path / "uv").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "uv").chmod(0o755)
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    (tmp_path / "hashes.txt").write_text(
        "one==1 \\\n    --hash=a\ntorch==2.13.0 \\\n    --hash=b \\\n    --hash=c\nzen==2 \\\n    --hash=d\n"
    )

    def asked(device: str) -> "subprocess.CompletedProcess[str]":
        variables = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "DEVICE": device,
            "TORCH": "torch==2.13.0",
            "XLA": "2.9.0",
        }
        return subprocess.run(
            ["sh", "-c", step], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )

    assert asked("cuda").stdout == "pip install torch==2.13.0 -c hashes.txt\n"
    for device in ("cpu", "cu126"):
        words = f"pip install torch==2.13.0 --torch-backend {device} -c without_torch.txt\n"
        assert asked(device).stdout == words
    assert "torch_xla[tpu]==2.9.0" in asked("tpu").stdout
    assert (tmp_path / "constraints.txt").read_text() == "torch==2.9.0+cpu\n"
    assert (tmp_path / "hashes.txt").read_text().split() == [
        "one==1",
        "\\",
        "--hash=a",
        "zen==2",
        "\\",
        "--hash=d",
    ]
    assert asked("gpu").stderr == "DEVICE is gpu; choose cpu, cuda, cu126 or tpu\n"
    assert asked("gpu").returncode == 1
    help_of_uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--help"]
    shown = subprocess.run(help_of_uv, capture_output=True, text=True, check=True).stdout
    assert re.search(r"cu126\b", shown)


def test_what_an_image_installs_in_a_pinned_version_has_the_hash_of_its_file() -> None:
    entries = (ROOT / "hashes.txt").read_text().replace("\\\n", "").splitlines()
    hashed = {pinned(entry.split()[0]): entry.split()[1:] for entry in entries if entry[0] != "#"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert sorted(hashed) == sorted(pinned(line) for line in lines if line[0] != "#")
    for pin, hashes in hashed.items():
        assert hashes and all(one.startswith("--hash=sha256:") for one in hashes), pin
    steps = re.findall(r"uv pip install (?!\"\$TORCH\"|\"torch)[^&;\n]*", DOCKERFILE)
    assert len(steps) == len(BEGINNINGS) + 1
    assert all("-c constraints.txt -c hashes.txt" in step for step in steps)


def test_what_an_image_builds_is_built_by_what_it_has_and_fetches_nothing_for_it(tmp_path: Path) -> None:
    """A build requirement has no hash: here, one that cannot be had."""
    assert "'/^(pip|setuptools|uv)==/" in DOCKERFILE
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools==0.0.1"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "built"\nversion = "1"\n[tool.setuptools]\npy-modules = []\n'
    )
    words = [str(Path(sys.executable).with_name("uv")), "build", "--offline", "--wheel", str(tmp_path)]
    given = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    given |= {"VIRTUAL_ENV": sys.prefix, "UV_PYTHON": sys.executable}
    stage = DOCKERFILE.partition(" AS build\n")[2].partition("\nFROM ")[0]
    (name, value) = re.search(r"(UV_NO_BUILD_ISOLATION)=(\S+)", stage).groups()  # type: ignore[union-attr]
    isolated = subprocess.run(words, env=given, capture_output=True, text=True, check=False)
    assert "setuptools" in isolated.stderr and isolated.returncode
    words = [
        words[0],
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--target",
        str(tmp_path / "to"),
        str(tmp_path),
    ]
    subprocess.run(words, env={**given, name: value}, capture_output=True, text=True, check=True)
    assert (tmp_path / "to" / "built-1.dist-info").is_dir()


def test_make_setup_installs_what_has_a_known_hash_and_else_torch_alone() -> None:
    words = ["make", "--always-make", "--dry-run", "--no-print-directory", ".venv/ready"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    steps = [
        step.strip()
        for step in re.split(r"\|\||&&|;|\n", printed.replace("\\\n", " "))
        if "pip install" in step
    ]
    of_torch = [step for step in steps if re.search(r" torch==[\d.]+$", step)]
    of_daybreak = [step for step in steps if step.endswith("--no-deps --no-build-isolation -e .")]
    hashed = [step for step in steps if "--require-hashes --no-deps" in step and "hashes.txt)" in step]
    assert (len(of_torch), len(of_daybreak), len(hashed)) == (2, 2, 3)
    assert len(steps) == 7
    pins = {pinned(line)[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    needed = closure([Requirement("daybreak[dev]")])
    assert {"torch", "setuptools"} <= needed
    assert {name for name in needed - pins if not name.startswith(("cuda-", "nvidia-", "triton"))} == {
        "daybreak"
    }


def test_jobs_find_the_driver_where_rented_machines_mount_it() -> None:
    trainer = DOCKERFILE.partition("FROM run AS trainer")[2].partition("FROM")[0]
    assert f"ENV LD_LIBRARY_PATH={MOUNTED}\n" in trainer


def test_each_image_is_of_a_pinned_one_and_runs_as_somebody_who_is_not_root() -> None:
    stages: dict[str, str] = {}
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        base, name = re.match(r"(\S+) AS (\S+)", stage).groups()  # type: ignore[union-attr]
        users = re.findall(r"^USER (\S+)", stage, re.MULTILINE)
        stages[name] = users[-1] if users else stages.get(base, "root")
        assert base in stages or base == "python:${PYTHON}"
    digest = "@sha256:[0-9a-f]{64}"
    assert re.search(rf"^ARG PYTHON=3\.11\.\d+-slim-bookworm{digest}$", DOCKERFILE, re.MULTILINE)
    texts = [path.read_text() for path in (ROOT / "compose.yaml", *sorted((ROOT / "deploy").rglob("*.yaml")))]
    images = {image for text in texts for image in re.findall(r"^\s*image: (\S+)", text, re.MULTILINE)}
    [of_others] = {image for image in images if not image.startswith("daybreak")}
    assert re.fullmatch(rf"postgres:15\.\d+-bookworm{digest}", of_others)
    assert {stages[name] for name in ("trainer", "serving", "airflow")} == {"$UID"}
    assert re.search(r"^ARG UID=[1-9]\d*$", DOCKERFILE, re.MULTILINE)
    for place in YAML(typ="safe").load((ROOT / "compose.yaml").read_text())["services"].values():
        assert place.get("build", {}).get("target", "airflow") in stages


@pytest.mark.parametrize("name", BEGINNINGS)
def test_an_image_takes_a_part_of_the_dependencies_in_versions_that_ran(name: str) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    known = [*PROJECT["project"]["dependencies"], *extras["gcp"], *extras["postgres"], *extras["serve"]]
    assert {each.name for each in group(name)} <= {Requirement(each).name for each in known}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    assert {canonicalize_name(each.name) for each in group(name)} <= pinned | {"torch"}
    lacking = {"apache-airflow", "dvc", "google-cloud-aiplatform", "great-expectations"}
    lacking |= {"mlflow"} if name == "trainer" else set()
    assert not closure(group(name)) & lacking


@pytest.mark.slow
@pytest.mark.parametrize("name", BEGINNINGS)
def test_an_image_has_all_that_its_processes_import(name: str) -> None:
    missing = reached(BEGINNINGS[name]) - modules(closure(group(name)))
    assert missing <= ELSEWHERE[name]


@pytest.mark.slow
def test_a_model_is_trained_with_what_is_in_the_image(tmp_path: Path) -> None:
    installed = {canonicalize_name(each.name) for each in importlib.metadata.distributions()}
    has = closure(group("trainer"))
    lacking = modules(installed - has - {"daybreak"}) - modules(has)
    assert {"airflow", "mlflow", "dvc", "great_expectations", "pandas"} <= lacking
    script = TRAIN.format(lacking=sorted(lacking))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "job" / "model" / "model.safetensors").exists()

"""The house's rules: layers, light imports, one signature per stage, one order in all graphs."""

import ast
import doctest
import functools
import importlib
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline import records, snapshots, stages
from pipeline.params import Params, Section
from pipeline.records import Night, Record

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pipeline"
FILES = sorted(PACKAGE.rglob("*.py"))

# An import may only point up this list; a module not named here has one outside system of its own.
LAYERS = [
    {"errors"},
    {"records", "params", "source_code"},
    {"workload", "backends", "intake.source", "training.recipe"},
]
TOP = ["__main__", "cli", "commands", "check", "stages"]
PURE = {
    "source_code",
    "backends.faults", "backends.metering", "backends.orders",
    "planning.candidates", "planning.catalog", "planning.costs", "planning.efficiency",
    "planning.exploration", "planning.fallback", "planning.form", "planning.growth",
    "planning.history", "planning.measurements", "planning.options", "planning.planner",
    "planning.pricelist", "planning.quality", "planning.rates", "planning.rationale", "planning.refusals",
    "planning.scorecard", "planning.search", "planning.startup", "planning.throughput",
    "planning.updates", "planning.window",
    "profiling.bounds", "profiling.explain", "profiling.remedies",
    "spot.curves", "spot.danger", "spot.exposure", "spot.intervals", "spot.lifetimes", "spot.lives",
    "spot.optimum", "spot.policies", "spot.preemptions", "spot.replay", "spot.rivals", "spot.states",
    "spot.steering", "spot.traces",
    "training.batching", "launching.ladder", "training.noise", "training.order", "launching.outlook",
    "training.pace", "launching.pulse", "training.scaling", "training.tally",
    "release.approval", "release.betting", "release.compare", "release.forecast", "release.live",
    "release.metrics", "release.observations", "release.offpolicy", "release.quantiles", "release.ramp",
    "release.ratio", "release.selftest", "release.sequential", "release.shift", "release.unpaired",
    "report.formats",
    "serving.assignment",
}  # fmt: skip
HEAVY = {"torch", "mlflow", "dvc", "great_expectations", "google", "ibis", "airflow"}
BANNED_NAMES = {"utils", "helpers", "common", "manager", "misc"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports_of(path: Path, *, top_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rank(module: str) -> int:
    for number, names in enumerate(LAYERS):
        if module in names:
            return number
    if module in TOP:
        return 100 - TOP.index(module)
    return 10 if module not in PURE else 5


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_to_lower_layers(path: Path) -> None:
    mine = rank(module_of(path))
    for name in imports_of(path):
        if name.startswith("pipeline."):
            theirs = name.removeprefix("pipeline.")
            if (PACKAGE / (theirs.replace(".", "/") + ".py")).exists():
                assert rank(theirs) <= mine, f"{module_of(path)} imports {theirs}"


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_modules_import_no_outside_system_and_no_clock(module: str) -> None:
    path = PACKAGE / (module.replace(".", "/") + ".py")
    roots = {name.split(".")[0] for name in imports_of(path)}
    assert not roots & (HEAVY | {"time", "subprocess", "socket", "requests"})
    assert "now(" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_file_is_named_after_nothing(path: Path) -> None:
    assert not BANNED_NAMES & set(module_of(path).split("."))


def test_nothing_imports_a_workload() -> None:
    importers = [p for p in FILES if "workloads" not in p.parts
                 and any(name.startswith("pipeline.workloads") for name in imports_of(p))]  # fmt: skip
    assert importers == []


@pytest.mark.parametrize("path", sorted((ROOT / "dags").glob("*.py")), ids=lambda p: p.name)
def test_dag_files_know_only_airflow_and_the_command_line(path: Path) -> None:
    local = {p.stem for p in (ROOT / "dags").glob("*.py")}
    roots = {name.split(".")[0] for name in imports_of(path)}
    assert roots <= {"airflow", *local} | set(sys.stdlib_module_names)


@pytest.mark.slow
def test_the_command_line_starts_without_heavy_imports() -> None:
    code = (
        "import sys; before = set(sys.modules); import pipeline.cli, pipeline.stages as s; "
        "[stage.function for stage in s.STAGES.values()]; print(*set(sys.modules) - before)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert not HEAVY & set(loaded)


def test_each_record_is_written_by_a_stage_and_only_one() -> None:
    writers = [stages.written_by(name) for name in stages.CHAIN]
    kinds = [kind for kind in writers if kind]
    assert len(kinds) == len(set(kinds)) == 11
    assert {kind.__name__ for kind in kinds} == {
        "Night", "Batch", "Report", "Dataset", "Profile", "Plan", "Training",
        "Evaluation", "Version", "Verdict", "Release",
    }  # fmt: skip


def test_a_stage_reads_only_what_an_earlier_one_wrote() -> None:
    written: set[type[Record]] = {records.Champion}
    for name in stages.CHAIN:
        function = stages.STAGES[name].function
        hints = typing.get_type_hints(function)
        hints.pop("return")
        for kind in hints.values():
            if isinstance(kind, type) and issubclass(kind, Record):
                assert kind in written, f"{name} reads {kind.__name__}"
        if kind := stages.written_by(name):
            written.add(kind)


@pytest.mark.parametrize("name", list(snapshots.stages(ROOT)))
def test_dvc_declares_what_the_signature_says(name: str) -> None:
    declared = snapshots.stages(ROOT)[name]
    function = stages.STAGES[name].function
    hints = typing.get_type_hints(function)
    written = hints.pop("return")
    deps = {str(dep) for dep in declared.get("deps", ())}
    outs = {next(iter(out)) if isinstance(out, dict) else out for out in declared["outs"]}
    assert records.path_of(written).as_posix() in outs
    sections = set(declared.get("params", ()))
    assert sections <= set(YAML(typ="safe").load((ROOT / "params.yaml").read_text()))
    for option in stages.options(function):
        hints.pop(option)
    for kind in hints.values():
        if isinstance(kind, type) and issubclass(kind, Record) and kind is not Night:
            assert records.path_of(kind).as_posix() in deps
        if isinstance(kind, type) and issubclass(kind, Section) and kind is not Params:
            assert kind.__name__.removesuffix("Params").lower() in sections
        if getattr(kind, "__name__", "") in ("Workload", "Source", "Backend"):
            assert kind.__name__.lower() in sections


@pytest.mark.parametrize("path", [path for path in FILES if ">>> " in path.read_text()], ids=module_of)
def test_examples_in_docstrings_give_what_they_say(path: Path) -> None:
    tried = doctest.testmod(importlib.import_module(f"pipeline.{module_of(path)}"))
    assert tried.attempted and not tried.failed

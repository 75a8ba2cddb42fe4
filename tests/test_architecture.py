"""The house's rules: rooms in order, light imports, one signature per stage, one order in all graphs."""

import ast
import doctest
import importlib
import re
import resource
import shutil
import subprocess
import sys
import typing
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

import daybreak
from daybreak import cli, dvc_file, hooks, runner, stages
from daybreak.contract.params import load
from daybreak.contract.record_parts import Record
from daybreak.contract.record_types import Champion
from daybreak.contract.sections import LiveSections, Params
from daybreak.contract.table import Table
from daybreak.storage.home import Home
from tests import architecture, docs

ROOT = architecture.ROOT
MODULES = architecture.modules(ROOT)
EXAMPLES = sorted((ROOT / "pipeline/daybreak/examples").rglob("*.py"))  # their tests among them
PURE_ROOMS = {
    "statistics",
    "prediction",
    "planning",
    "extensions.exploration",
    "extensions.simulation",
    "extensions.spot",
    "extensions.unlike",
}
ACTING = {
    "prediction.ledger_history",
    "planning.plan_stage",
}  # in those rooms, and read the ledger
PURE = {
    "contract.formats",
    "contract.units",
    "extensions.bag.bag_forecast",
    "extensions.bag.reuse",
    "extensions.bag.state",
    "extensions.fleets.sharing",
    "backends.billing",
    "backends.faults",
    "extensions.vertex.error_codes",
    "extensions.vertex.job_spec",
    "extensions.live_test.forecast",
    "extensions.search.winner",
    "extensions.live_test.observations",
    "extensions.live_test.ramp",
    "extensions.live_test.readout",
    "gate.all_metrics",
    "gate.selftest",
    "jobs.decider",
    "jobs.escalation",
    "jobs.heartbeats",
    "jobs.moves",
    "jobs.observed_job",
    "jobs.outlook",
    "jobs.remaining_work",
    "machines.catalog",
    "machines.fees",
    "machines.losses",
    "machines.pricelist",
    "machines.rates",
    "machines.startup",
    "profiling.bounds",
    "profiling.explain",
    "profiling.remedies",
    "registry.approval",
    "training.batch_schedule",
    "training.batching",
    "training.learning_rate",
    "training.loss_watch",
    "training.noise",
    "training.sample_audit",
    "training.sample_order",
}
HEAVY = {"torch", "mlflow", "dvc", "great_expectations", "google", "ibis", "airflow"}
BANNED_NAMES = {"utils", "helpers", "common", "manager", "misc"}


def is_pure(module: str) -> bool:
    name = module.removeprefix("daybreak.")
    return name in PURE or (architecture.room(module) in PURE_ROOMS and name not in ACTING)


def test_a_room_imports_only_rooms_before_it() -> None:
    assert architecture.forbidden(architecture.graph()) == []


@pytest.mark.parametrize("name", stages.STAGES)
def test_a_stage_reaches_no_file_that_shows_what_it_decides_or_asks_users(name: str) -> None:
    behind = architecture.closure(architecture.graph(), stages.STAGES[name].path.partition(":")[0])
    shown = {"report"} if name == "predict" else {"report", "serving", "batch_inference"}
    assert not shown & set(map(architecture.room, behind))
    if name in ("open", "gate", "promote", "close", "rollback"):
        assert len([module for module in behind if MODULES[module].stem != "__init__"]) < 72


def test_only_the_publisher_and_the_command_notify_notify_people() -> None:
    edges = architecture.graph()
    callers = {name for name, targets in edges.items() if "daybreak.report.notifier" in targets}
    assert callers == {"daybreak.report.publisher", "daybreak.commands"}


def test_the_list_of_arrows_from_the_core_to_extensions_holds_only_what_is_left() -> None:
    edges = architecture.graph()
    assert {(a, b) for a, b in architecture.CORE_TO_EXTENSION if b not in edges.get(a, ())} == set()


def test_the_table_of_extensions_names_each_folder_with_a_readme_and_only_these() -> None:
    assert {path.parent.name for path in hooks.FOLDER.glob("*/README.md")} == set(hooks.EXTENSIONS)
    assert {path.parent.name for path in hooks.FOLDER.glob("*/__init__.py")} == set(hooks.EXTENSIONS)


@pytest.mark.parametrize(
    "hook", [field.name for field in fields(hooks.Extension) if field.name not in ("keys", "sections")]
)
def test_what_the_table_of_extensions_names_is_there(hook: str) -> None:
    for path in hooks.paths(hook):
        module, _, function = path.partition(":")
        assert callable(hooks.imported(path)) if function else module in MODULES


def test_keys_that_only_an_extension_reads_are_keys_which_its_readme_names() -> None:
    sections = list(docs.sections())
    for name, extension in hooks.EXTENSIONS.items():
        for asked in extension.keys.split():
            key = asked.partition("=")[0]
            section, _, field = key.partition(".")
            models = [model for known, model in sections if known == section]
            assert any(field in model.model_fields for model in models) if field else models
            assert key.removeprefix("serving.") in (hooks.FOLDER / name / "README.md").read_text()


def test_each_key_that_an_extension_brings_is_listed_as_one_that_needs_it() -> None:
    core = {field.alias or name for name, field in Params.model_fields.items()}
    for name, extension in hooks.EXTENSIONS.items():
        for section, _, path in (entry.partition("=") for entry in extension.sections.split()):
            model = hooks.imported(f"daybreak.extensions.{name}.{path}")
            keys = {f"{section}.{key}" for key in model.model_fields} if section in core else {section}
            assert keys <= set(extension.keys.split())


def test_no_files_import_each_other_in_a_circle() -> None:
    assert architecture.cycle(architecture.graph()) == []


ABSURD = [
    ("storage/ledger.py", "from daybreak.gate import judge"),
    ("contract/errors.py", "import daybreak.backends.local"),
    ("planning/search.py", "if TYPE_CHECKING:\n    from daybreak.rollout import saga"),
    ("statistics/__init__.py", "from daybreak.registry.aliases import champion"),
    ("jobs/reaper.py", "def late():\n    from daybreak.extensions.bag import folder"),
    ("night/opening.py", 'BAG = "daybreak.extensions.bag.folder:bags"'),
    ("training/engine.py", "def late():\n    from daybreak.profiling.harness import Harness"),
    ("serving/version_process.py", "from daybreak.examples.shop.recommender import Recommender"),
]


def test_the_source_root_holds_one_package_and_is_none_itself() -> None:
    """A team's repository may have a package `pipeline`, which ours must neither hide nor import."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    files = listed.stdout.splitlines()
    assert {name.split("/")[1] for name in files if name.startswith("pipeline/")} == {"daybreak"}
    imports = re.compile(r"^\s*(from|import) pipeline\b|\bpipeline\.[a-z_]+(\.[a-z_]+)*:[A-Z]", re.MULTILINE)
    texts = [ROOT / name for name in files if name.endswith((".py", ".md", ".yaml", ".toml"))]
    assert [path for path in texts if path.is_file() and imports.search(path.read_text())] == []


@pytest.mark.parametrize(("file", "line"), ABSURD, ids=[file for file, _ in ABSURD])
def test_an_absurd_import_is_seen(tmp_path: Path, file: str, line: str) -> None:
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "pipeline" / "daybreak" / file
    path.write_text(f"{path.read_text()}\n{line}\n")
    assert len(architecture.forbidden(architecture.graph(tmp_path))) == 1


def test_a_circle_of_files_in_one_room_is_seen(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "pipeline/daybreak/training/sample_order.py"
    path.write_text(f"{path.read_text()}\nfrom daybreak.training import loader\n")
    edges = architecture.graph(tmp_path)
    assert architecture.forbidden(edges) == []
    assert {"daybreak.training.loader", "daybreak.training.sample_order"} <= set(architecture.cycle(edges))


@pytest.mark.parametrize("module", sorted(filter(is_pure, MODULES)))
def test_pure_modules_import_no_outside_system_and_no_clock(module: str) -> None:
    roots = {name.split(".")[0] for name in architecture.imported(MODULES[module])}
    assert not roots & (HEAVY | {"time", "subprocess", "socket", "requests"})
    assert "now(" not in MODULES[module].read_text()


@pytest.mark.parametrize("module", MODULES)
def test_no_file_is_named_after_nothing(module: str) -> None:
    assert not BANNED_NAMES & set(module.split("."))


def test_no_two_rooms_have_a_file_of_the_same_name() -> None:
    own = ("__init__", "commands", "settings")  # each extension may have its own
    names = Counter(path.stem for path in MODULES.values() if path.stem not in own)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_files_define_a_class_of_the_same_name() -> None:
    """Examples are left out: each stands for the repository of another team."""
    files = [path for path in MODULES.values() if path not in EXAMPLES]
    trees = (ast.parse(path.read_bytes()).body for path in files)
    names = Counter(node.name for body in trees for node in body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("path", sorted((ROOT / "dags").rglob("*.py")), ids=lambda p: p.name)
def test_dag_files_know_only_airflow_and_the_command_line(path: Path) -> None:
    local = {p.stem for p in (ROOT / "dags").glob("*.py")}
    roots = {name.split(".")[0] for name in architecture.imported(path)}
    assert roots <= {"airflow", "croniter", "yaml", *local} | set(sys.stdlib_module_names)
    assert "data/run" not in path.read_text()  # records are the command line's: daybreak show


def loaded_by(code: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {code}; print(*set(sys.modules) - before)"
    command = [sys.executable, "-c", code]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split())


@pytest.mark.slow
def test_the_command_line_starts_without_heavy_imports() -> None:
    loaded = loaded_by("import daybreak.stages as s; [stage.function for stage in s.STAGES.values()]")
    assert not HEAVY & loaded


@pytest.mark.slow
def test_an_example_is_imported_without_scipy_as_each_worker_and_server_does() -> None:
    loaded = loaded_by("from daybreak.examples.fraud.fraud import Fraud; Fraud()")
    assert "torch" in loaded
    assert "scipy" not in loaded


def test_importing_daybreak_loads_no_library_and_costs_less_than_a_tenth_of_a_second() -> None:
    loaded = loaded_by("import daybreak")
    assert {name.partition(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "daybreak"}
    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, "-c", "import daybreak"], check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began < 0.1


@pytest.mark.slow
def test_each_name_of_the_api_is_there_and_has_a_line_that_says_what_it_is_for() -> None:
    assert len(set(daybreak.__all__)) == len(daybreak.__all__)
    assert set(daybreak._origins()) == set(daybreak.__all__) == set(dir(daybreak))
    for name in daybreak.__all__:
        assert getattr(daybreak, name) is not None
    lines = Path(daybreak.__file__).read_text().partition("__all__ = [")[2].partition("\n]")[0].splitlines()
    assert [line for line in lines[1:] if "# " not in line] == []


def test_a_name_that_the_api_has_not_is_refused() -> None:
    with pytest.raises(AttributeError, match="daybreak has no Tabel"):
        daybreak.Tabel  # noqa: B018


def test_a_name_of_an_absent_extension_is_refused_with_what_to_restore(tmp_path: Path) -> None:
    (tmp_path / "daybreak").mkdir()
    shutil.copy(Path(daybreak.__file__), tmp_path / "daybreak")
    command = [sys.executable, "-c", "from daybreak import Vertex"]
    asked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ImportError: daybreak.Vertex needs the extension vertex, which is not in this" in asked.stderr
    assert "installation; restore pipeline/daybreak/extensions/vertex" in asked.stderr


@pytest.mark.parametrize("module", MODULES)
def test_only_examples_import_from_the_api(module: str) -> None:
    api = {f"daybreak.{name}" for name in daybreak.__all__}
    if architecture.room(module) != architecture.EXAMPLES and module != "daybreak":
        assert not architecture.imported(MODULES[module]) & api


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_imports_nothing_of_daybreak_but_the_api(path: Path) -> None:
    ours = {name for name in architecture.imported(path) if f"{name}.".startswith("daybreak.")}
    api = {f"daybreak.{name}" for name in daybreak.__all__}
    assert {name for name in ours - api if not f"{name}.".startswith("daybreak.examples.")} <= {"daybreak"}


def test_help_of_a_stage_imports_no_library() -> None:
    loaded = loaded_by("from daybreak import cli; cli.parser(['gate'])")
    assert {name.partition(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "daybreak"}
    assert len([name for name in loaded if name.startswith("daybreak")]) < 15


@pytest.mark.parametrize("name", stages.STAGES)
def test_the_options_of_a_stage_are_the_scalars_of_its_signature(name: str) -> None:
    module, _, function = stages.STAGES[name].path.partition(":")
    read = {parameter.arg for parameter, _, _ in cli.options(cli._functions(module)[function])}
    hints = typing.get_type_hints(stages.STAGES[name].function)
    assert read == {key for key, kind in hints.items() if key != "return" and kind in runner.OPTION_TYPES}


def test_each_record_is_written_by_a_stage_and_only_one() -> None:
    writers = [runner.written_by(name) for name in stages.CHAIN]
    kinds = [kind for kind in writers if kind]
    assert len(kinds) == len(set(kinds)) == 13
    assert {kind.__name__ for kind in kinds} == {
        "Night",
        "Batch",
        "Report",
        "Dataset",
        "Profile",
        "Plan",
        "Training",
        "Evaluation",
        "Version",
        "Verdict",
        "Refit",
        "Release",
        "Predictions",
    }


def test_a_stage_reads_only_what_an_earlier_one_wrote() -> None:
    written: set[type[Record]] = {Champion, Table}  # of which the command line writes the second
    for name in stages.CHAIN:
        function = stages.STAGES[name].function
        hints = typing.get_type_hints(function)
        hints.pop("return")
        for kind in hints.values():
            if isinstance(kind, type) and issubclass(kind, Record):
                assert kind in written, f"{name} reads {kind.__name__}"
        if kind := runner.written_by(name):
            written.add(kind)


def test_dvc_yaml_is_what_the_stages_say() -> None:
    written = (ROOT / dvc_file.FILE).read_text()
    assert written == dvc_file.text(ROOT), "write it anew: python -m daybreak.dvc_file"


def test_a_cached_stage_depends_on_all_the_rooms_that_it_runs() -> None:
    edges = architecture.graph()
    own = ("daybreak.contract.params", "daybreak.contract.sections")  # DVC reads what extensions bring there
    asked = {**edges, **{module: set[str]() for module in own}}
    for name, stage in stages.STAGES.items():
        if stage.dvc == "cached":
            modules = architecture.closure(edges, stage.path.partition(":")[0])
            run = {f"pipeline/daybreak/{architecture.room(module)}" for module in modules}
            assert run <= {room.removesuffix(".py") for room in dvc_file.rooms(name)}
            hooked = "daybreak.hooks" in architecture.closure(asked, stage.path.partition(":")[0])
            assert hooked == (stages.EXTENSIONS in stage.reads)


@pytest.mark.parametrize("name", stages.STAGES)
def test_no_stage_takes_the_whole_of_params(name: str) -> None:
    assert Params not in typing.get_type_hints(stages.STAGES[name].function).values()


def test_a_stage_is_given_only_the_sections_that_it_names(tmp_path: Path) -> None:
    def stage(params: LiveSections) -> None: ...

    shutil.copy(ROOT / "params.yaml", tmp_path)
    given = runner.arguments(Home.here(), stage, tmp_path)["params"]
    assert given.gate == load(tmp_path).gate
    assert not hasattr(given, "train")


@pytest.mark.parametrize("module", [name for name, path in MODULES.items() if ">>> " in path.read_text()])
def test_examples_in_docstrings_give_what_they_say(module: str) -> None:
    tried = doctest.testmod(importlib.import_module(module))
    assert tried.attempted and not tried.failed


# Modules that find the home of their process by themselves: the command line, and entry points of processes.
FIND_HOME = {
    "backends.place": 1,  # of a team's own backend, whose constructor may take none
    "airflow_health": 1,
    "cli": 2,
    "profiling.profile_job": 1,
    "storage.home": 2,
    "storage.pretrained": 1,  # of a team's own class
    "training.run_logger": 1,
    "training.worker": 1,
}


# Modules that ask for the folder of their process: Home, entry points, and what a person typed in a folder.
ASK_FOLDER = {
    "backends.node": 1,  # entry point of a machine of a job
    "backends.submitter": 1,  # the code of the night that a job is submitted with
    "cli": 1,
    "contract.code_path": 3,  # entry point of every process
    "contract.disk": 2,  # to say in an error how to go on
    "data.file_listing": 2,  # relative URLs begin there
    "dvc_file": 1,
    "extensions.bag.request": 1,
    "extensions.init.names": 1,
    "extensions.init.survey_source": 1,
    "extensions.slurm.slurm": 1,  # likewise
    "extensions.trial.commands": 1,
    "extensions.trial.model_checks": 1,
    "storage.checkout": 1,  # git without a folder
    "storage.home": 2,
    "training.worker": 1,  # entry point
}


def test_the_folder_of_a_night_is_handed_out_by_the_home_and_params_are_read_by_it() -> None:
    asks = re.compile(r"Path\.cwd\(\)|os\.getcwd\(\)|\bPath\(\)|Path = (?:records\.)?RUN\b")
    found = {
        name.removeprefix("daybreak."): len(asks.findall(path.read_text())) for name, path in MODULES.items()
    }
    assert {name: count for name, count in found.items() if count} == ASK_FOLDER
    reads = re.compile(r"\bparams\.load\(")
    assert [name for name, path in MODULES.items() if reads.search(path.read_text())] == [
        "daybreak.storage.home"
    ]


def test_a_home_is_made_where_a_process_begins_and_passed_from_there() -> None:
    found = {
        name.removeprefix("daybreak."): path.read_text().count("Home.here")
        + path.read_text().count("cls.here()")
        for name, path in MODULES.items()
    }
    assert {name: count for name, count in found.items() if count} == FIND_HOME


NO_ROOMS = {"benchmarks", "dags", "examples", "hooks", "security", "toy"}  # of no one module
# Tests that lie elsewhere than the module that they are named after, and why.
ELSEWHERE = {
    "backends/test_slurm.py",  # with the others that share one real Slurm
    "jobs/test_recipe.py",  # the recipe as the launcher writes it
    "jobs/test_trials.py",  # nights that try a machine, on the simulated cloud
}


def test_a_test_that_is_named_after_a_module_lies_in_its_room() -> None:
    house = ROOT / "pipeline/daybreak"
    rooms: dict[str, set[Path]] = {}
    for named in (*house.rglob("*.py"), *house.glob("extensions/*/")):
        room = named.parent if named.suffix else named
        rooms.setdefault(named.stem, set()).add(room.relative_to(house))
    tests = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    of_rooms = [path for path in tests if len(path.parts) > 1 and path.parts[0] not in NO_ROOMS]
    assert {path.parts[0] for path in of_rooms} <= {path.name for path in house.iterdir()}
    wrong = {str(path) for path in of_rooms if path.parent not in rooms.get(path.stem[5:], {path.parent})}
    assert len(of_rooms) > 200
    assert wrong == ELSEWHERE

"""What many tests need: a small repository of its own, with git and params.yaml, to run nights in."""

import fcntl
import gc
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Generator
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from hypothesis import settings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import daybreak  # noqa: F401  before torch: it says how threads wait
from daybreak.storage.home import Home
from tests.distributions import closure

ROOT = Path(__file__).parents[1]

# The machine that tests has other work; what must be quick is timed in benchmarks.
# Examples are the same in each run.
settings.register_profile("patient", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("patient")
# The Makefile exports it for `up`; pages link to MLflow where it is set: a test that wants links sets it.
os.environ.pop("MLFLOW_UI", None)
# A user's git may sign commits or run hooks: of those settings, tests and what they start have none.
os.environ |= {"GIT_CONFIG_GLOBAL": str(Path(__file__).with_name("gitconfig")), "GIT_CONFIG_NOSYSTEM": "1"}
# Read when gcsfs is imported, which a test without a service may be the first to do.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


def pytest_configure(config: pytest.Config) -> None:
    """Lets all tests but those with the mark gpu, and the jobs that they start, run on the CPU."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Two workers a core and one more, where memory allows.

    Tests wait for disks and for other processes: three workers used 47 % of two cores in the quick tier
    and 58 % in the rest. A worker takes 1 GB, and the night of a test as much again.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # pytest-xdist reads it
    return max(1, min(2 * len(os.sched_getaffinity(0)) + 1, psutil.virtual_memory().total // (2 << 30)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected lives as long as the process: nobody looks for garbage in it.

    The fast part took 16 to 26 % longer where all of it was looked through again and again (2 cores).
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


DURATIONS = "daybreak/durations"  # in pytest's cache: the seconds of the slowest tests when they last ran
TOOK_S: dict[str, float] = {}  # in this run
NOTED_S = 2.0  # many tests of a few seconds make a long file, too


@pytest.hookimpl(trylast=True)  # after those that the tier leaves out are gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files in an order that lets workers of pytest-xdist wait for each other as little as may be.

    By the seconds that their tests last took, the longest first, so that workers end together; and those with
    tests that have to be alone last of all. Where these came first, all workers waited for a test of minutes
    that one of them had begun in the same second.
    """

    def with_mark(name: str) -> set[Path]:
        return {item.path for item in items if item.get_closest_marker(name)}

    alone, slow = with_mark("alone"), with_mark("slow")
    took_s: Counter[Path] = Counter()
    recorded = durations(config)
    for item in items:
        took_s[item.path] += recorded.get(item.nodeid, 0.0)
    items.sort(key=lambda item: (item.path in alone, -took_s[item.path], item.path not in slow))


def durations(config: pytest.Config) -> dict[str, float]:
    """The seconds of the slowest tests when they last ran here, or in the run whose figures are committed."""
    committed: dict[str, float] = json.loads(Path(__file__).with_name("durations.json").read_text())
    cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
    return committed | (cache.get(DURATIONS, {}) if cache else {})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts what a test and the fixtures that it was the first to need took."""
    TOOK_S[report.nodeid] = TOOK_S.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keeps the seconds of the slowest tests for the order of the next run."""
    cache = getattr(session.config, "cache", None)
    if cache and not hasattr(session.config, "workerinput"):  # of the process that all workers report to
        slowest = {name: round(took_s) for name, took_s in TOOK_S.items() if took_s >= NOTED_S}
        cache.set(DURATIONS, cache.get(DURATIONS, {}) | slowest)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Of the workers of pytest-xdist, only one runs while a test that has to be alone runs.

    Who waits for the room to be empty holds the door, so that those who come later do not go in before.
    """
    how = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with Path(__file__).open() as door, Path(__file__).with_name("__init__.py").open() as room:
        fcntl.flock(door, how)
        fcntl.flock(room, how)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # also for children of the test that have it open


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """A test that stays in a folder of its own, which is removed, would have all tests after it fail."""
    yield
    try:
        Path.cwd()
    except FileNotFoundError:
        os.chdir(item.config.rootpath)
        raise AssertionError("the current folder is gone with the test; use monkeypatch.chdir") from None


PARAMS = """\
source: {use: "tests.fakes:TwoDays"}
workload: {use: "tests.fakes:Nothing"}
backend: {use: "tests.fakes:ScriptedBackend"}
night: {train_hours: 1, decide_hours: 2, budget_usd: 3}
"""


@pytest.fixture(scope="session")
def empty_store(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database after its migrations, which take seconds: kept for all runs on this version."""
    cache = getattr(pytestconfig, "cache", None)  # none with -p no:cacheprovider
    folder = cache.mkdir("store") if cache else tmp_path_factory.mktemp("store")
    kept = folder / f"mlflow-{metadata.version('mlflow')}.db"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            from daybreak.storage import mlflow_client

            home = tmp_path_factory.mktemp("home")
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("MLFLOW_TRACKING_URI", raising=False)
                patch.setenv("DAYBREAK_HOME", str(home))
                mlflow_client.create(Home.here())
            fresh = shutil.copy(home / "var" / "mlflow.db", kept.with_suffix(".new"))
            Path(fresh).rename(kept)
    return kept


@pytest.fixture(scope="session")
def furnish(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, empty_store: Path
) -> Callable[[Path], Path]:
    """Gives a new home what is the same in all and takes seconds: an empty MLflow, the ceilings."""
    cache = getattr(pytestconfig, "cache", None)  # none with -p no:cacheprovider
    folder = cache.mkdir("ceilings") if cache else tmp_path_factory.mktemp("ceilings")
    code = (
        "import sys, pathlib; from daybreak.profiling.roofline import ceilings; from daybreak.storage.home "
        "import Home; home = pathlib.Path(sys.argv[1]); ceilings(Home(home), home / 'arrays')"
    )
    # Where they still hold, nothing is measured; of several workers one measures.
    subprocess.run([sys.executable, "-P", "-c", code, str(folder)], check=True)

    def furnish(home: Path) -> Path:
        shutil.copytree(folder / "var/machines", home / "var/machines", dirs_exist_ok=True)
        shutil.copy(empty_store, home / "var" / "mlflow.db")
        return home

    return furnish


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, as `pip wheel` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pipeline", "dags"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    code = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, check=True)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment that has the wheel and what it depends on, without any extra."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    install = [
        "uv",
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        str(python),
        str(wheel),
    ]
    subprocess.run(
        install, env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}, check=True
    )
    (packages,) = folder.glob("lib/*/site-packages")
    link_packages(closure([Requirement("daybreak")]) - {"daybreak"}, into=packages)
    code = "import daybreak; print(daybreak.__file__)"
    found = subprocess.check_output([python, "-P", "-c", code], cwd=folder, text=True)
    assert found.startswith(str(folder))
    return python.parent


def link_packages(names: set[str], *, into: Path) -> None:
    """Links the files of these packages of this environment into the packages of another.

    A folder is linked whole, unless a package that is left out has files in it too.
    """
    here = Path(sysconfig.get_path("purelib"))
    linked, divided = set[Path](), set[Path]()
    for each in metadata.distributions():
        files = [Path(str(file)) for file in each.files or () if ".." not in file.parts]
        if canonicalize_name(each.name) in names:
            linked |= set(files)
        else:
            divided |= {folder for file in files for folder in file.parents}
    for file in linked:
        whole = next((one for one in [*reversed(file.parents), file][1:] if one not in divided), file)
        if not (into / whole).is_symlink() and (here / whole).exists():
            (into / whole).parent.mkdir(parents=True, exist_ok=True)
            (into / whole).symlink_to(here / whole)


@pytest.fixture
def repository(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with one commit and an empty MLflow: the home of its nights, the current folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = make_repository(tmp_path / "home", store=empty_store)
    monkeypatch.setenv("DAYBREAK_HOME", str(home))
    monkeypatch.chdir(home)
    return home


def make_repository(home: Path, *, store: Path) -> Path:
    """A git repository with one commit, and an MLflow that is a copy of `store`."""
    (home / "var").mkdir(parents=True)
    shutil.copy(store, home / "var" / "mlflow.db")
    (home / ".dvc").mkdir()
    (home / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (home / ".gitignore").write_text("/nights/\n/var/\n/data/*\n")
    (home / "params.yaml").write_text(PARAMS)
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "A Test"],
        ["config", "user.email", "test@example.org"],
        ["add", "--all"],
        ["commit", "--quiet", "--message=Begin"],
    ):
        subprocess.run(["git", *words], cwd=home, check=True)
    return home


@pytest.fixture
def commit(repository: Path) -> Callable[[str], str]:
    """Commit everything in the repository; returns the commit."""

    def commit(message: str) -> str:
        subprocess.run(["git", "add", "--all"], cwd=repository, check=True)
        subprocess.run(["git", "commit", "--quiet", "-m", message], cwd=repository, check=True)
        return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()

    return commit

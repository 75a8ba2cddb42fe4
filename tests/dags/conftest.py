"""A real Airflow for the tests, with a folder, a database and a port of its own."""

import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.clones import clone_as_it_is
from tests.dags.servers import ROOT, Standalone, all_supervised, environment, stand_in
from tests.postgres import postgresql


@pytest.fixture(scope="session")
def in_airflow(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run a piece of Python in a process where the DAG files import; its last line is its answer, in JSON."""
    folder = tmp_path_factory.mktemp("airflow")
    (folder / "home").mkdir()

    def run(code: str, *arguments: str, home: Path | None = None, seconds: float = 1500) -> Any:
        given = environment(folder) | {"PYTHONPATH": str(ROOT / "dags")}
        given |= {"DAYBREAK_HOME": str(home)} if home else {}
        call = [sys.executable, "-c", textwrap.dedent(code), *arguments]
        done = subprocess.run(
            call, env=given, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def database(in_airflow: Callable[..., Any]) -> Path:
    """The file of Airflow's database, made once."""
    code = """
        import json
        from airflow.configuration import conf
        from airflow.utils.db import initdb
        initdb()
        print(json.dumps(conf.get("database", "sql_alchemy_conn")))
    """
    return Path(in_airflow(code).removeprefix("sqlite:///"))


# A person's word and nothing else, for as many runs at once as a test asks for.
REVIEWS = """
import homes, review  # Airflow reads only files that say airflow and dag
from functools import partial
of_home = {"question": partial(review.question, home=homes.OWN)}
with homes.OWN.dag("reviews", doc="", default_args={}, max_active_runs=99, user_defined_filters=of_home):
    review.review()
"""


# A team's own, which start whenever another version serves, or predictions are written, and say which.
DEPLOYED = """
from airflow.sdk import DAG, Asset, task
for name, what in (("deployed", "champion"), ("sent", "predictions")):
    with DAG(name, schedule=[Asset(name=f"daybreak {what}", uri=f"daybreak://daybreak/{what}")]):
        @task
        def deploy(triggering_asset_events=None):
            return [event.extra for events in triggering_asset_events.values() for event in events]
        deploy()
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Standalone]:
    """All that `make up` starts, with stages that are played by a stand-in.

    Its DAG files are the real ones with an alert after five seconds instead of a day, and looks at a question
    each second instead of each minute, and DAGs `reviews`, `deployed` and `sent`.
    """
    folder = tmp_path_factory.mktemp("standalone")
    home, dags = stand_in(folder / "home"), folder / "dags"
    (home / "var").mkdir()
    shutil.copy(empty_store, home / "var" / "mlflow.db")
    shutil.copy(ROOT / "params.yaml", home)
    shutil.copytree(ROOT / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    retrain, interval = (dags / "retrain.py").read_text(), "timedelta(hours=hours) + OPENED_WITHIN"
    for slow, quick in ((interval, "timedelta(seconds=5)"), ("EVERY_S = 60.0", "EVERY_S = 1.0")):
        assert slow in retrain
        retrain = retrain.replace(slow, quick)
    (dags / "retrain.py").write_text(retrain)
    (dags / "reviews.py").write_text(REVIEWS)
    (dags / "deployed.py").write_text(DEPLOYED)
    with all_supervised(folder, home=home, dags=dags) as airflow:
        yield airflow


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page of a headless Chromium."""
    with chromium() as browser:
        yield browser.new_page(viewport={"width": 1400, "height": 900})


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this repository, in which the files are committed as they are now."""
    folder = clone_as_it_is(tmp_path_factory.mktemp("checkout") / "daybreak")
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    message = ["commit", "--quiet", "--allow-empty", "--message", "as it is now"]
    subprocess.run(["git", *message], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL of its own on a unix socket, with databases airflow and mlflow; the socket's folder."""
    with postgresql("airflow", "mlflow") as folder:
        yield folder

"""CONTRIBUTING's first step for a workload of one's own, and an edit of it, in a fresh clone."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clones import clone_as_it_is
from tests.dags.servers import IDENTITY

SMALL = [
    "source={use: 'daybreak.examples.shop.simulated_shop:Shop', start: '2026-01-05', num_customers: 150, "
    "orders_per_day: 30}",
    "ingest.history_days=20",
    "profile.batch_sizes=[32]",
    "profile.steps=2",
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def pipeline(clone: Path, *words: str) -> str:
    """Run `daybreak` in the clone; its log, once it ended well."""
    environment = {**os.environ, "DAYBREAK_HOME": str(clone), "PYTHONPATH": str(clone)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        [sys.executable, "-m", "daybreak", *words],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.fixture
def clone(tmp_path: Path, furnish: Callable[[Path], Path]) -> Path:
    """A clone whose working tree is as here, with a team's package in it that nobody has committed."""
    folder = furnish(clone_as_it_is(tmp_path / "clone"))
    package = folder / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    text = (
        (folder / "pipeline/daybreak/examples/shop/regression.py")
        .read_text()
        .replace("class Regression", "class MyWorkload")
    )
    (package / "my_module.py").write_text(text)
    return folder


def jobs(clone: Path) -> set[str]:
    return {path.name for path in (clone / "data/work/jobs").iterdir() if path.is_dir()}


def test_the_first_step_for_a_workload_works_and_an_edit_of_it_is_what_runs(clone: Path) -> None:
    (line,) = re.findall(
        r"^daybreak (night --here --set workload=.*)$", (clone / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    small = [word for assignment in SMALL for word in ("--set", assignment)]
    log = pipeline(
        clone, *shlex.split(line), *small, "--day", "2026-03-10", "--night", "one", "--until", "train"
    )
    assert "params.yaml here is changed: workload=my_package.my_module:MyWorkload, predict.to=''" in log
    assert (clone / "data/work/jobs").exists(), log
    first = jobs(clone)
    assert len(first) == 1
    module = clone / "my_package/my_module.py"
    module.write_text(
        module.read_text()
        .replace("nn.Linear(4, self.hidden)", "nn.Linear(4, self.hidden + 1)")
        .replace("nn.Linear(self.hidden, 1)", "nn.Linear(self.hidden + 1, 1)")
    )
    pipeline(clone, "train", "--wait")
    assert len(jobs(clone) - first) == 1  # not the finished job of the model before


def test_an_edit_of_a_stage_changes_the_nights_that_open_after_it_alone(
    tmp_path: Path, furnish: Callable[[Path], Path]
) -> None:
    """By the command `daybreak`, whose installed code is a third one."""
    home = furnish(clone_as_it_is(tmp_path / "home"))
    commit = ["git", *IDENTITY, "commit", "--quiet", "--all", "--message=Edit"]
    subprocess.run(["git", "add", "--all"], cwd=home, check=True)
    subprocess.run([*commit, "--allow-empty"], cwd=home, check=True)
    small = [word for assignment in SMALL for word in ("--set", assignment)]

    def daybreak(*words: str) -> str:
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"DAYBREAK_HOME": str(home), "MLFLOW_TRACKING_URI": ""}
        command = [str(Path(sys.executable).with_name("daybreak")), *words]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
        return f"{done.returncode} {done.stdout}{done.stderr}"

    opened = daybreak("open", "--night", "before", "--day", "2026-03-10", *small)
    assert opened.startswith("0 "), opened
    stage = home / "pipeline/daybreak/data/ingest.py"
    stage.write_text(f"{stage.read_text()}\nraise SystemExit('ingest was edited')\n")
    before = daybreak("ingest", "--night", "before")
    assert before.startswith("0 "), before
    subprocess.run(commit, cwd=home, check=True)
    daybreak("stop", "--night", "before", "--reason", "its turn is over")
    daybreak("close", "--night", "before")
    opened = daybreak("open", "--night", "after", "--day", "2026-03-10", *small)
    assert opened.startswith("0 "), opened
    assert "ingest was edited" in daybreak("ingest", "--night", "after")

"""A repository with a real ledger and a real MLflow, and the chain of a night's release in it."""

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daybreak import runner, stages
from daybreak.contract import params, records
from daybreak.contract.errors import NothingToDo
from daybreak.contract.record_types import (
    Night,
    Release,
    Verdict,
    Version,
)
from daybreak.contract.sections import Params
from daybreak.registry import aliases
from daybreak.report import publisher
from daybreak.storage import branch, checkout, ledger, mlflow_client
from daybreak.storage.home import Home
from tests.conftest import make_repository
from tests.toy.nights import PARAMS, make_night


@pytest.fixture
def home(repository: Path) -> Iterator[Path]:
    """The repository, with the toy workload in its params."""
    (repository / "params.yaml").write_text(PARAMS)
    yield repository
    os.chdir(repository)


@pytest.fixture
def settings(home: Path) -> Params:
    """The params of the repository."""
    return params.load(home)


Release_ = Callable[..., Release | None]


@pytest.fixture
def release(home: Path) -> Release_:
    """Release night `number` with a model of this weight; returns None where the champion stays."""
    return functools.partial(_release, home)


def _release(home: Path, number: int, weight: float) -> Release | None:
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    folder = make_night(home, number, weight=weight, champion=champion)
    os.chdir(folder)
    judge_night()
    try:
        made = promote_night()
    except NothingToDo:
        made = None
    night = records.read(Night, records.RUN)
    ledger.commit_night(
        Home.here(), night, message=f"{night.day}: {records.read(Verdict, records.RUN).action}"
    )
    return made


Released = Callable[..., None]


@pytest.fixture
def released(home: Path, empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Released:
    """Replace the home by a copy of a home after nights 0, 1, ... with models of these weights.

    The nights are those of `release`, which takes more than a second; so each such home is built once.
    Routers and targets of the test do not hear of these nights.
    """

    def released(*weights: float) -> None:
        _copy(_kept(tmp_path_factory.getbasetemp(), empty_store, weights), home)
        os.chdir(sorted((home / "nights").iterdir())[-1])

    return released


@functools.cache
def _kept(folder: Path, store: Path, weights: tuple[float, ...]) -> Path:
    """A home after nights of these weights, for others to be copies of."""
    home = folder / "-".join(("kept", *map(str, weights)))
    if not weights:
        make_repository(home, store=store)
        (home / "params.yaml").write_text(PARAMS)
        return home
    home.mkdir()
    _copy(_kept(folder, store, weights[:-1]), home)
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(home):
        patch.setenv("DAYBREAK_HOME", str(home))
        _release(home, len(weights) - 1, weights[-1])
    return home


def _copy(original: Path, home: Path) -> None:
    from mlflow.tracking._tracking_service import utils

    shutil.rmtree(home / ".git", ignore_errors=True)  # git's files are for reading alone
    shutil.copytree(original, home, symlinks=True, dirs_exist_ok=True)
    checkout.prune_worktrees(home)
    utils._artifact_repos_cache.clear()  # by run alone, and a copy has the runs of the original


@pytest.fixture
def home_of_two(home: Path, released: Released) -> Path:
    """The repository as the current folder, after version 2 replaced 1; the last argument of a test."""
    released(1.0, 1.0)
    os.chdir(home)
    return home


def judge_night() -> Verdict:
    """Stages evaluate, register and gate, in the folder of a night, and what the runner publishes of it."""
    evaluate_night()
    register_night()
    verdict = gate_night()
    publisher.publish_night(Home.here(), Path())
    return verdict


def evaluate_night() -> None:
    """Stage evaluate, in the folder of a night."""
    _run("evaluate")


def gate_night() -> Verdict:
    """Stage gate, in the folder of a night."""
    return _run("gate")


def register_night() -> Version:
    """Stage register, in the folder of a night."""
    return _run("register")


def _run(name: str) -> Any:
    """Runs a stage as the runner does, but publishes nothing."""
    home, stage = Home.here(), stages.STAGES[name].function
    made = stage(**runner.arguments(home, stage, home.tonight))
    records.write(made, home.records)
    return made


def close_night() -> None:
    """Stage close, in the folder of a night, and what the runner publishes of it."""
    runner.run(Home.here(), "close")


def promote_night() -> Release:
    """Stage promote, in the folder of a night, and what the runner publishes of it."""
    made = promote_only()
    publisher.publish_night(Home.here(), Path())
    publisher.publish_ledger(Home.here())
    return made


def promote_only() -> Release:
    """Stage promote, in the folder of a night."""
    return _run("promote")


def client() -> Any:
    """A client of the home's MLflow."""
    from mlflow import MlflowClient

    return MlflowClient(mlflow_client.tracking_uri(Home.here()))


def versions() -> list[int]:
    """The numbers of all versions in MLflow."""
    return sorted(int(version.version) for version in client().search_model_versions("name = 'daybreak'"))


def serving() -> tuple[int, int]:
    """What the ledger and what the alias says."""
    now = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    return now.version if now else 0, aliases.alias(client(), "daybreak")

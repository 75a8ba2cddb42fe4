"""A repository with a real ledger and a real MLflow, and the chain of a night's release in it."""

import os
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
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
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

    def release(number: int, weight: float) -> Release | None:
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

    return release


@pytest.fixture
def home_of_two(home: Path, release: Release_) -> Path:
    """The repository as the current folder, after version 2 replaced 1; the last argument of a test."""
    for number in range(2):
        release(number, 1.0)
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

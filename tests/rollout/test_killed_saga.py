"""Promotion and rollback as one saga, killed at any step: real git, real MLflow, and a second target."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError, NothingToDo, ReleaseError
from daybreak.contract.record_types import Night, Release, Version
from daybreak.contract.sections import Params
from daybreak.extensions.care import audit
from daybreak.extensions.care.drill import drill
from daybreak.extensions.router.routers import Routers
from daybreak.gate import watch
from daybreak.registry import aliases
from daybreak.report import publisher
from daybreak.rollout import promote, rollback, saga
from daybreak.rollout.targets import Alias, Target, release_targets
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import open_log
from tests.fakes import FolderTarget
from tests.toy.nights import PARAMS, files_of_version, make_night
from tests.toy.stages import judge_night, promote_night

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


# Before each of these a kill leaves other traces: nothing, a journal, what is prepared, a ledger that moved,
# some targets that show it, all, no journal. benchmarks/bench_saga.py kills before every step.
STEPS = (
    "write the journal",
    "prepare MLflow's alias champion",
    "move the ledger",
    "show MLflow's alias champion",
    "show the routers",
    "remove the journal",
    "done",
)


ALL_STEPS = (
    "write the journal",
    *("prepare MLflow's alias champion", "prepare the folder", "prepare the routers"),
    "move the ledger",
    *("show MLflow's alias champion", "show the folder", "show the routers"),
    *("read back the targets", "read back the ledger"),
    "remove the journal",
    "done",
)


class Killer(logging.Handler):
    """Kills at a step of a saga, by its name, or by its number from 1 on."""

    def __init__(self, at: str | int) -> None:
        super().__init__(logging.DEBUG)
        self.steps: list[str] = []
        self.at = at

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("saga: "):
            self.steps.append(record.getMessage().removeprefix("saga: "))
            if self.at in (self.steps[-1], len(self.steps)):
                raise Killed


@contextlib.contextmanager
def killing(at: str | int) -> Any:
    killer = Killer(at)
    log = logging.getLogger(saga.__name__)
    before = log.level
    log.addHandler(killer)
    log.setLevel(logging.DEBUG)
    try:
        yield killer
    finally:
        log.removeHandler(killer)
        log.setLevel(before)


@pytest.fixture
def folder_target(home: Path, monkeypatch: pytest.MonkeyPatch) -> FolderTarget:
    """A second target, beside the alias and the routers, of which none lives."""
    target = FolderTarget(home / "var" / "target")
    open_log(f"sqlite:///{home / 'var' / 'serving.db'}").close()

    def both(home: Home, client: Any, model: str) -> list[Target]:
        return [Alias(home, client, model), target, routers_of(client)]

    for module in (promote, rollback, watch, audit):
        monkeypatch.setattr(module, "release_targets", both)
    return target


def routers_of(client: Any) -> Routers:
    (routers,) = (one for one in release_targets(Home.here(), client, "daybreak") if isinstance(one, Routers))
    return routers


def standing(folder_target: FolderTarget) -> tuple[int, ...]:
    """What ledger, alias, folder and the traffic of routers say."""
    now = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    with mlflow_client.session(Home.here()) as client:
        target = routers_of(client)
        assert target.log.traffic.read().ready == 0
        versions = (
            now.version if now else 0,
            aliases.alias(client, "daybreak"),
            folder_target.shown(),
            target.shown(),
        )
        target.log.close()
        return versions


def faults(settings: Params) -> list[str]:
    return [f"{check.name}: {check.text}" for check in audit.audit(Home.here(), settings) if not check.ok]


def prepared(home: Path, number: int) -> Callable[[], Release]:
    """Promotion of a night that has been judged, ready to be called."""
    folder = make_night(
        home, number, weight=1.0, champion=ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    )
    os.chdir(folder)
    judge_night()
    return promote_night


@pytest.mark.promise
def test_a_promotion_killed_at_any_step_is_all_old_or_all_new(
    home: Path, folder_target: FolderTarget, release: Any, settings: Params
) -> None:
    release(0, 1.0)
    night, new = 0, [True]
    for at in STEPS:
        if new[-1]:
            night += 1
            promote = prepared(home, night)
        with killing(at) as killer, pytest.raises(Killed):
            promote()
        ended = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
        assert ended is not None
        with mlflow_client.session(Home.here()) as client:
            saga.recover(Home.here(), rollback.release_targets(Home.here(), client, "daybreak"))
        new.append(ended.version == night + 1)
        assert standing(folder_target) == (night + new[-1],) * 4, killer.steps
        assert folder_target.ready() == (), killer.steps
    assert killer.steps == [*ALL_STEPS]
    assert new[1:] == [False] * 3 + [True] * 4
    assert promote().version == night + 1
    assert faults(settings) == []
    with mlflow_client.session(Home.here()) as client:
        assert client.get_model_version("daybreak", "1").tags["status"] == "replaced"


def test_a_target_that_cannot_get_ready_stops_a_promotion_with_all_as_it_was(
    home: Path, folder_target: FolderTarget, release: Any, settings: Params
) -> None:
    release(0, 1.0)
    promote = prepared(home, 1)
    folder_target.broken = True
    with pytest.raises(ReleaseError, match="the folder has no room"):
        promote()
    assert standing(folder_target) == (1, 1, 1, 1)
    assert not Home.here().release_journal.path.exists()
    assert not records.path_of(Release, records.RUN).exists()
    folder_target.broken = False
    assert promote().version == 2


def test_a_rollback_killed_at_any_step_goes_back_once(
    home_of_two: Path, folder_target: FolderTarget, settings: Params
) -> None:
    heard = home_of_two.with_name("heard")
    (home_of_two / "params.yaml").write_text(
        f"{PARAMS}notify: {{command: 'cat >> {heard}; echo >> {heard}'}}\n"
    )
    kept = home_of_two.with_name("kept")
    shutil.copytree(home_of_two, kept)
    for at in STEPS:
        for name in ("var", ".git"):  # once more from where it was
            shutil.rmtree(home_of_two / name)
            shutil.copytree(kept / name, home_of_two / name)
        heard.write_text("")
        with killing(at) as killer, pytest.raises(Killed):
            rollback.rollback(Home.here(), settings.register_, reason="a test")
        with contextlib.suppress(NothingToDo):  # where it was killed when all was done
            rollback.rollback(Home.here(), settings.register_, to=1, reason="a test")
        publisher.publish_home(Home.here())  # as the runner does then
        assert heard.read_text().count("version 1 serves again in place of version 2") == 1, killer.steps
        assert standing(folder_target) == (1, 1, 1, 1), killer.steps
        assert [entry.rollback for entry in ledger.history(Home.here())] == [True, False, False]


def test_an_audit_names_what_disagrees(folder_target: FolderTarget, settings: Params, release: Any) -> None:
    for number in range(2):
        release(number, 1.0)
    assert faults(settings) == []
    folder_target.show(Release(version=1, replaced=0))
    with mlflow_client.session(Home.here()) as client:
        aliases.tag(client, "daybreak", 1, status="serving", model_digest="other")
    Home.here().release_journal.write({})
    named = faults(settings)
    assert named[0] == "journal: a release was interrupted; run watch"
    assert named[1] == "targets: the folder shows 1, the ledger says 2"
    assert "version 1 has model_digest other" in named[2]
    assert "version 1 is tagged serving, but version 2 serves" in named[2]
    with pytest.raises(DataError, match="is not a valid journal"):
        saga.recover(Home.here(), [folder_target])


def test_the_drill_restores_what_a_rollback_would_bring_back(
    home: Path, release: Any, settings: Params
) -> None:
    release(0, 1.0)
    with pytest.raises(NothingToDo, match="no drill: cannot take back 1 promotion"):
        list(drill(Home.here(), settings))
    release(1, 1.0)
    os.chdir(home)
    checks = list(drill(Home.here(), settings))
    assert [(check.name, check.ok) for check in checks] == [
        ("model of version 1", True),
        ("code of version 1", True),
        ("data of version 1", True),
    ], checks
    with mlflow_client.session(Home.here()) as client:
        assert aliases.alias(client, "daybreak") == 2
        assert dict(client.get_registered_model("daybreak").aliases) == {"champion": 2}
    weights = files_of_version(home, 1) / "artifacts" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    broken = next(iter(drill(Home.here(), settings)))
    assert not broken.ok
    assert "the files of models:/daybreak@drill have digest" in broken.text


def test_the_journal_says_what_is_going_on(home: Path, folder_target: FolderTarget, release: Any) -> None:
    promote = prepared(home, 0)
    with killing("prepare the folder"), contextlib.suppress(Killed):
        promote()
    journal = Home.here().release_journal.read()
    assert (journal["kind"], journal["tip"], journal["release"]["version"]) == ("promote", "", 1)
    assert journal["release"]["night"] == records.read(Night, records.RUN).id
    assert records.read(Version, records.RUN).number == 1

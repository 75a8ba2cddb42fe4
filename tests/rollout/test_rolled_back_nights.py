"""Rollback moves ledger, alias and data back together, or nothing."""

import contextlib
import os
import pty
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli
from daybreak.contract.errors import NothingToDo, ParamsError, ReleaseError
from daybreak.contract.sections import Params
from daybreak.rollout import rollback
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.toy.nights import files_of_version
from tests.toy.stages import Released, client, serving

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def test_rollback_moves_alias_and_data_back_and_once_more(
    home: Path, released: Released, settings: Params
) -> None:
    released(1.0, 1.0, 1.0)
    os.chdir(home)
    made = rollback.rollback(Home.here(), settings.register_, reason="customers complain")
    assert (made.version, made.replaced, made.night) == (2, 3, "2025-01-11")
    assert serving() == (2, 2)
    assert "data of night 1" in str(branch.text_at(Home.here(), branch.ledger_tip(Home.here()), "dvc.lock"))
    assert client().get_model_version("daybreak", "3").tags["status"] == "replaced"
    assert "rolled back from version 3 to 2: customers complain" in (
        client().get_model_version("daybreak", "3").description
    )
    assert rollback.rollback(Home.here(), settings.register_, reason="a test").version == 1
    assert rollback.rollback(Home.here(), settings.register_, to=3, reason="a test").version == 3
    assert serving() == (3, 3)
    with pytest.raises(NothingToDo, match="version 3 serves already"):
        rollback.rollback(Home.here(), settings.register_, to=3, reason="a test")
    assert rollback.rollback(Home.here(), settings.register_, to="2025-01-11", reason="a test").version == 2
    with pytest.raises(ReleaseError, match=r"monday is not a version, nor a night .*; the newest that made"):
        rollback.rollback(Home.here(), settings.register_, to="monday", reason="a test")
    with pytest.raises(ReleaseError, match="version 9 was never promoted; choose one of: 1, 2, 3"):
        rollback.rollback(Home.here(), settings.register_, to=9, reason="a test")


def test_a_rollback_to_a_version_whose_files_are_gone_is_refused_and_changes_nothing(
    settings: Params, home_of_two: Path
) -> None:
    shutil.rmtree(files_of_version(home_of_two, 1))
    tip = branch.ledger_tip(Home.here())
    with pytest.raises(ReleaseError, match=r"daybreak/1.* restore MLflow's artifacts"):
        rollback.rollback(Home.here(), settings.register_, reason="a test")
    assert (
        serving(),
        branch.ledger_tip(Home.here()),
        Home.here().release_journal.path.exists(),
    ) == (
        (2, 2),
        tip,
        False,
    )


def test_a_rollback_needs_a_reason(settings: Params, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ParamsError, match=r"a rollback needs a reason, .*; give --reason TEXT"):
        rollback.rollback(Home.here(), settings.register_, reason="  ")
    with pytest.raises(SystemExit):
        cli.main(["rollback"])
    assert "the following arguments are required: --reason" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "serves"), [("n", 2), ("y", 1)])
def test_a_person_at_a_terminal_is_asked_before_a_rollback(
    settings: Params, monkeypatch: pytest.MonkeyPatch, answer: str, serves: int, home_of_two: Path
) -> None:
    person, here = pty.openpty()
    os.write(person, f"{answer}\n".encode())
    with os.fdopen(here) as given, os.fdopen(os.dup(here), "w") as shown, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", given)
        patch.setattr(sys, "stderr", shown)
        with contextlib.suppress(NothingToDo):
            rollback.rollback(Home.here(), settings.register_, reason="a test")
    asked = ""
    while "[y/N]" not in asked:  # what a person typed comes back first, in a piece of its own or not
        asked += os.read(person, 1000).decode()
    os.close(person)
    assert "Version 2 of daybreak serves. Let version 1, of night 2025-01-10, serve again? [y/N]" in asked
    assert serving() == (serves, serves)


def test_a_request_that_is_made_again_goes_back_once(
    home: Path, released: Released, settings: Params
) -> None:
    released(1.0, 1.0, 1.0)
    os.chdir(home)
    first = rollback.rollback(Home.here(), settings.register_, reason="complaints", by="ann", once="run 7")
    assert (
        rollback.rollback(Home.here(), settings.register_, reason="complaints", by="ann", once="run 7")
        == first
    )
    assert serving() == (2, 2)
    assert (
        rollback.rollback(
            Home.here(), settings.register_, reason="complaints", by="ann", once="run 8"
        ).version
        == 1
    )


def test_the_night_after_a_rollback_follows_it(release: Any, settings: Params, home_of_two: Path) -> None:
    rollback.rollback(Home.here(), settings.register_, reason="a test", hold_days=0)
    made = release(2, 1.0)
    assert (made.version, made.replaced) == (3, 1)
    assert [entry.rollback for entry in ledger.history(Home.here())] == [False, True, False, False]
    with pytest.raises(ReleaseError, match="versions that serve or served are 1, 3"):
        rollback.rollback(Home.here(), settings.register_, steps=2, reason="a test")


def test_with_nothing_promoted_there_is_nothing_to_roll_back(released: Released, settings: Params) -> None:
    with pytest.raises(ReleaseError, match="no version was ever promoted"):
        rollback.rollback(Home.here(), settings.register_, reason="a test")
    released(1.0)
    with pytest.raises(ReleaseError, match=r"cannot take back 1 promotion: .* are 1;"):
        rollback.rollback(Home.here(), settings.register_, reason="a test")

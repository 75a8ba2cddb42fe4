"""What the watch does with releases that were interrupted, moved by hand or proven worse."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.record_parts import Chain, Difference
from daybreak.contract.record_types import Evaluation
from daybreak.contract.sections import Params
from daybreak.extensions.lineage import provenance
from daybreak.gate import watch
from daybreak.rollout import rollback
from daybreak.storage import branch, checkout, ledger, ledger_notes
from daybreak.storage.home import Home
from tests.toy.nights import files_of_version
from tests.toy.stages import client, serving

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def test_an_alias_moved_by_hand_to_a_version_whose_files_are_gone_is_not_adopted(
    settings: Params, home_of_two: Path
) -> None:
    shutil.rmtree(files_of_version(home_of_two, 1))
    client().set_registered_model_alias("daybreak", "champion", "1")
    edits = settings.watch.model_copy(update={"alias_edits": "adopt"})
    said = watch.watch(Home.here(), settings, edits).reason
    assert "moved back to version 2" in said and "restore MLflow's artifacts" in said
    assert serving() == (2, 2)


def test_watch_finishes_what_was_interrupted_and_reverts_edits_by_hand(
    home: Path, release: Any, settings: Params
) -> None:
    assert watch.watch(Home.here(), settings, settings.watch).reason == "no version was ever promoted"
    for number in range(2):
        release(number, 1.0)
    os.chdir(home)
    assert (
        watch.watch(Home.here(), settings, settings.watch).reason
        == "no night has compared version 2 with version 1 yet"
    )
    client().set_registered_model_alias("daybreak", "champion", "1")
    reporting = settings.model_copy(
        update={"watch": settings.watch.model_copy(update={"alias_edits": "report"})}
    )
    assert (
        "moved by hand to version 1, the ledger says 2"
        in watch.watch(Home.here(), reporting, reporting.watch).reason
    )
    assert serving() == (2, 1)
    assert (
        "moved by hand to version 1, moved back to version 2"
        in watch.watch(Home.here(), settings, settings.watch).reason
    )
    edits = [text for name, text in provenance.why(Home.here(), "2") if name == "by hand"]
    assert [text.partition("UTC: ")[2] for text in edits] == [
        "alias champion was moved by hand to version 1, moved back to version 2"
    ]
    assert [str(note) for note in ledger_notes.read(Home.here())] == edits
    assert serving() == (2, 2)
    adopting = settings.model_copy(
        update={"watch": settings.watch.model_copy(update={"alias_edits": "adopt"})}
    )
    client().set_registered_model_alias("daybreak", "champion", "1")
    assert (
        "moved by hand to version 1, which the ledger adopted"
        in watch.watch(Home.here(), adopting, adopting.watch).reason
    )
    assert "to 1: the alias champion was moved by hand" in ledger.commits(Home.here())[0].subject
    assert "to 1: the alias champion was moved by hand)" in dict(provenance.why(Home.here(), "2"))["served"]
    assert ("by hand", edits[0]) in provenance.why(Home.here(), "1")
    assert serving() == (1, 1)
    rollback.rollback(Home.here(), settings.register_, to=2, reason="a test")
    client().set_registered_model_alias("daybreak", "champion", "1")
    client().set_model_version_tag("daybreak", "2", "status", "challenger")
    assert "finished the release of version 2" in watch.watch(Home.here(), reporting, reporting.watch).reason
    assert serving() == (2, 2)


def test_a_record_that_only_users_are_judged_by_ends_no_watch_where_nobody_is_held_back(
    settings: Params, home_of_two: Path
) -> None:
    def damaged(tip: str, index: Path) -> None:
        checkout.git("read-tree", tip, folder=home_of_two, index=index)
        branch.put_text(Home.here(), records.path_of(Evaluation, records.RUN), "{}", index=index)

    serving = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert serving
    trailers = f"Night: {serving.night}\nServes: {serving.version}\n"
    branch.append(Home.here(), damaged, after=None, subject="damaged", trailers=trailers)
    with pytest.raises(DataError, match="is not a valid Evaluation"):
        ledger.evaluation_of(Home.here(), serving)
    said = watch.watch(Home.here(), settings, settings.watch).reason
    assert said == "no night has compared version 2 with version 1 yet"


def test_an_alias_moved_by_hand_after_a_rollback_is_no_interrupted_rollback(
    settings: Params, home_of_two: Path
) -> None:
    rollback.rollback(Home.here(), settings.register_, to=1, reason="a test")
    client().set_registered_model_alias("daybreak", "champion", "2")
    edits = settings.watch.model_copy(update={"alias_edits": "adopt"})
    said = watch.watch(Home.here(), settings, edits).reason
    assert "moved by hand to version 2, which the ledger adopted" in said
    assert serving() == (2, 2)
    rollback.rollback(Home.here(), settings.register_, to=1, reason="a test")
    client().set_registered_model_alias("daybreak", "champion", "2")
    made = rollback.rollback(Home.here(), settings.register_, to=2, reason="a test")
    assert made.version == 2
    assert serving() == (2, 2)


def test_watch_rolls_back_a_champion_that_is_proven_worse(settings: Params, home_of_two: Path) -> None:
    newest, *before = ledger.history(Home.here())
    assert newest.verdict
    lost = Difference(mean=-0.2, error=0.001)
    chain = Chain(anchor=1, since=newest.night.day, margin=0.03, step=lost, challenger=lost)
    compared = replace(newest, verdict=replace(newest.verdict, chain=chain))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "since_release", lambda home: [compared, *before])
        seen = watch.watch(Home.here(), settings, settings.watch)
    assert (seen.outcome, seen.serving, seen.predecessor) == ("rolled back", 2, 1)
    assert seen.effect is not None and seen.effect.mean < 0  # serving - predecessor
    assert serving() == (1, 1)
    again = watch.watch(Home.here(), settings, settings.watch)
    assert again.outcome == "no data"
    assert serving() == (1, 1)

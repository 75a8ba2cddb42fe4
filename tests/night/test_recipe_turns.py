"""The champion's recipe has its turn after a night of a recipe under test, or the checkout's is trained."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from daybreak import runner
from daybreak.contract import records
from daybreak.contract.record_parts import RecipeTest
from daybreak.contract.record_types import Champion, Night, Release, Verdict, Version
from daybreak.contract.sections import Params
from daybreak.registry import lineage
from daybreak.storage import checkout, ledger
from daybreak.storage.home import Home
from tests.minimal_records import promotion

FIRST = date(2025, 1, 2)
WORKLOAD = "daybreak.examples.shop.regression:Regression"  # of few files, none of which is run


def opened(home: Path, number: int, **options: object) -> Night:
    os.chdir(home)
    day = FIRST + timedelta(days=number)
    night = runner.run(Home.here(), "open", day=day, night=f"n{number}", **options)
    assert isinstance(night, Night)
    return night


def closed(night: Night, verdict: Verdict, release: Release | None = None) -> None:
    for record in (verdict, *([release] if release else [])):
        records.write(record, records.RUN)
    ledger.commit_night(Home.here(), night, message=verdict.action)


def recipe_of(params: Params) -> str:
    return lineage.recipe(params.workload, params.train)


@pytest.fixture
def under_test(repository: Path, commit: Callable[[str], str]) -> Callable[..., str]:
    """Two nights: one promotes, the next one tests an edited recipe; returns the first night's commit."""

    def under_test(*, champions: str = "") -> str:
        path = repository / "params.yaml"
        path.write_text(path.read_text().replace("tests.fakes:Nothing", WORKLOAD))
        before = commit("The champion's recipe")
        night = opened(repository, 0)
        made_by = {"recipe": champions or recipe_of(Home.here().params)}
        release = Release(version=1, replaced=0, night=night.id, lineage=made_by)
        closed(night, promotion(champion=0, challenger=1), release)
        os.chdir(repository)
        path.write_text(f"{path.read_text()}train: {{epochs: 9}}\n")
        commit("An edit")
        night = opened(repository, 1, trigger="schedule")
        asked = Home.here().params
        records.write(lineage.ingredients(asked.workload, asked.train), records.RUN)
        records.write(
            Version(name="m", number=2, night=night.id, data_digest="", model_digest="", run_id=""),
            records.RUN,
        )
        tested = recipe_of(asked)
        test = RecipeTest(recipe=tested, against=made_by["recipe"], days=(night.day,), least_nights=7)
        waiting = Verdict(action="reject", champion=1, challenger=2, reason="1 night", recipe=tested)
        closed(night, replace(waiting, recipe_test=test))
        return before

    return under_test


@pytest.mark.parametrize("trigger", ["schedule", "assets", "nights 2025-01-01 to 2025-01-09"])
def test_the_next_night_that_no_person_asked_for_is_the_champions(
    repository: Path, under_test: Callable[..., str], trigger: str
) -> None:
    before = under_test()
    night = opened(repository, 2, trigger=trigger, set=["night.budget_usd=7"])
    champion = records.read(Champion, records.RUN)
    assert (night.code_commit, night.budget_usd) == (before, 7)
    assert champion.candidate
    assert (champion.candidate.version, champion.candidate.night) == (2, "n1")
    assert recipe_of(Home.here().params_of(Path.cwd())) == champion.lineage["recipe"]


@pytest.mark.parametrize(
    "options",
    [{"trigger": "manual: look"}, {"trigger": "try it"}, {"trigger": "schedule", "set": ["train.epochs=8"]}],
    ids=["by hand", "by a trigger of one's own", "with another recipe"],
)
def test_a_night_that_a_person_asks_for_is_the_checkouts(
    repository: Path, under_test: Callable[..., str], options: dict[str, object]
) -> None:
    under_test()
    night = opened(repository, 2, **options)
    assert night.code_commit == checkout.git("rev-parse", "HEAD", folder=repository)
    assert records.read(Champion, records.RUN).candidate is None


def test_a_recipe_that_its_commit_does_not_make_again_has_no_turn(
    repository: Path, under_test: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    under_test(champions="of another Python")
    night = opened(repository, 2, trigger="schedule")
    assert night.code_commit == checkout.git("rev-parse", "HEAD", folder=repository)
    assert "does not make it again (its recipe is another one there); tonight trains the" in caplog.text
    assert "epochs: 9" in Path("params.yaml").read_text()

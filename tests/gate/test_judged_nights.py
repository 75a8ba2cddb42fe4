"""Verdicts on nights that follow a promotion: a real ledger and a real MLflow."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import records
from daybreak.contract.record_types import Dataset, Evaluation, Night, Training, Verdict, Version
from daybreak.contract.sections import Params
from daybreak.evaluation import evaluator
from daybreak.gate import judge
from daybreak.registry import aliases
from daybreak.report import publisher
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.toy.nights import PARAMS, make_night
from tests.toy.stages import Released, client, judge_night, register_night, serving

FIRST_CHANCE = pytest.approx(0.0254, abs=1e-4)  # of the first changed recipe of a year

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def test_a_worse_model_is_refused_and_changes_nothing(released: Released, release: Any) -> None:
    released(1.0)
    assert release(1, 0.2) is None
    assert serving() == (1, 1)
    version = client().get_model_version("daybreak", "2")
    assert version.tags["status"] == "rejected"
    assert version.description.startswith("**Verdict: reject.** refresh: worse than the champion")
    assert aliases.alias(client(), "daybreak", "challenger") == 0


def test_a_refresh_is_promoted_and_a_changed_recipe_is_not(
    home: Path, released: Released, release: Any
) -> None:
    released(1.0)
    assert release(1, 1.0).replaced == 1
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    folder = make_night(home, 2, weight=1.0, champion=champion)
    os.chdir(folder)
    Path("params.yaml").write_text(Path("params.yaml").read_text() + "train: {rate: 0.5}\n")
    verdict = judge_night()
    assert (verdict.action, verdict.inconclusive) == ("reject", True)
    assert verdict.reason.startswith("1 night of at least 7: not yet proven better over nights")
    Path("params.yaml").write_text(Path("params.yaml").read_text() + "gate: {min_nights: 1}\n")
    assert judge_night().reason.startswith("inconclusive: not proven better than the champion")


def test_a_changed_recipe_that_is_better_every_night_serves_after_a_week(
    home: Path, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And waits before, each night with a version of its own."""
    release(0, 0.9)
    monkeypatch.setattr("tests.toy.nights.PARAMS", PARAMS + "train: {rate: 0.5}\n")
    assert [release(number, 1.0) for number in range(1, 7)] == [None] * 6
    waiting = records.read(Verdict, records.RUN)
    assert (waiting.action, waiting.inconclusive) == ("reject", True)
    assert waiting.reason.startswith("6 nights of at least 7: not yet proven better over nights: +0.0")
    assert release(7, 1.0).version == 8
    verdict = records.read(Verdict, records.RUN)
    assert verdict.reason.startswith("changed recipe: proven better over nights: +0.0")
    assert (verdict.recipe_test.num_nights, verdict.effect) == (7, verdict.recipe_test.effect)
    assert (verdict.false_promotion_chance, verdict.false_promotions_expected) == (FIRST_CHANCE,) * 2
    assert (
        "Over 7 nights of at least 7, the recipe under test is +0.0"
        in client().get_model_version("daybreak", "8").description
    )
    assert release(8, 1.0).version == 9  # a refresh
    assert records.read(Verdict, records.RUN).recipe_test is None


def judged_night(home: Path, released: Released, settings: Params) -> tuple[Night, tuple[Any, ...], Params]:
    """Returns a night after a promotion, the records that `gate` reads, and params of another recipe."""
    released(1.0)
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    os.chdir(make_night(home, 1, weight=1.0, champion=champion))
    judge_night()
    night, inputs = (
        records.read(Night, records.RUN),
        (records.read(Evaluation, records.RUN), records.read(Version, records.RUN), champion),
    )
    another = settings.model_copy(update={"train": settings.train.model_copy(update={"epochs": 9})})
    return night, inputs, another


@pytest.mark.parametrize(("days", "action"), [(0, "promote"), (1, "reject")])
def test_a_model_of_data_that_ends_before_the_champions_is_not_a_refresh(
    home: Path, released: Released, settings: Params, days: int, action: str
) -> None:
    night, inputs, _ = judged_night(home, released, settings)
    of_champion = ledger.history(Home.here())[0].dataset
    assert of_champion
    earlier = of_champion.last_day - timedelta(days)
    dataset = replace(records.read(Dataset, records.RUN), last_day=earlier)
    verdict = judge.gate(night, *inputs, settings, dataset=dataset, home=Home.here())
    older = (
        f"its data ends on {earlier}, and that of version 1 on {of_champion.last_day}, so it is not a refresh"
    )
    assert (verdict.action, older in verdict.reason) == (action, bool(days)), verdict.reason
    assert verdict.false_promotion_chance == (FIRST_CHANCE if days else None)


def test_the_verdict_on_another_recipe_says_what_was_changed_and_how_to_declare_it_the_same(
    home: Path, released: Released, settings: Params
) -> None:
    night, inputs, another = judged_night(home, released, settings)
    verdict = judge.gate(night, *inputs, another, home=Home.here())
    assert verdict.reason.endswith(
        "; the recipe is not that of version 1 (train.epochs 3.0 -> 9.0); if it learns the same, declare "
        'it: daybreak same-recipe --reason "why it does"'
    )
    assert "same-recipe" not in judge.gate(night, *inputs, settings, home=Home.here()).reason


def test_a_night_that_goes_on_after_it_was_closed_has_the_same_verdict(
    home: Path, released: Released, settings: Params
) -> None:
    """Its own entry of the ledger is none of an earlier night."""
    night, inputs, another = judged_night(home, released, settings)
    first = judge.gate(night, *inputs, another, home=Home.here())
    records.write(first, records.RUN)
    ledger.commit_night(Home.here(), night, message="promote failed")
    again = judge.gate(night, *inputs, another, home=Home.here())
    assert first.false_promotion_chance == FIRST_CHANCE
    assert replace(again, decided_at=first.decided_at) == first


def test_the_version_of_a_night_that_failed_before_its_gate_is_no_challenger(
    home: Path, released: Released, settings: Params
) -> None:
    released(1.0)
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    os.chdir(make_night(home, 1, weight=1.0, champion=champion))
    inputs = (
        records.read(Dataset, records.RUN),
        records.read(Training, records.RUN),
        champion,
        settings.workload.make(),
    )
    records.write(
        evaluator.evaluate(*inputs, settings.evaluate, registered=settings.register_, home=Home.here()),
        records.RUN,
    )
    register_night()
    assert aliases.alias(client(), "daybreak", "challenger") == 2
    night = records.read(Night, records.RUN)
    records.write(
        replace(
            records.read(Verdict, home / "nights/2025-01-10" / records.RUN),
            action="no data",
            challenger=0,
            reason="gate failed: no space left",
        ),
        records.RUN,
    )
    ledger.commit_night(Home.here(), night, message="gate failed")
    publisher.publish_closed(Home.here())
    version = client().get_model_version("daybreak", "2")
    assert (version.tags["status"], aliases.alias(client(), "daybreak", "challenger")) == ("rejected", 0)
    assert version.description.startswith("**Verdict: no data.** gate failed: no space left.")

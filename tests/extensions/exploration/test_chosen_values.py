"""Days and width of a night are chosen when it opens, by a real ledger, and stand in its params.yaml."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from daybreak import runner
from daybreak.contract import params, records
from daybreak.contract.record_parts import Chosen, JobForecast, PlanReasons, Rental
from daybreak.contract.record_types import Champion, Dataset, Evaluation, Night, Plan
from daybreak.contract.sections import Params
from daybreak.extensions.exploration import chosen_values
from daybreak.registry.lineage import recipe
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from daybreak.training.recipe import FACTS
from tests.conftest import PARAMS
from tests.minimal_records import minimal_training
from tests.planning.jobs import profile

FIRST = date(2024, 1, 1)
DAYS, WIDTH = "prepare.window_days", "workload.width"
DATASET = Dataset(digest="d.dir", num_samples=1000, num_bytes=1, first_day=FIRST, last_day=FIRST)
PLAN = Plan(
    rental=Rental(machine="local"),
    batch_size=64,
    micro_batch_size=64,
    num_samples=3000,
    checkpoint_every_s=60,
    fallbacks=(),
    forecast=JobForecast(expected_s=100, expected_usd=0, interval=(90, 120)),
    reasons=PlanReasons(runner_up="none"),
)


def choosing(home: Path, choices: str, commit) -> None:
    plan = f"plan: {{objective: quality, explore_usd: 5, quality_choices: {{{choices}}}}}\n"
    train = "prepare: {window_days: 30}  # of the recipe\ntrain: {cold_every: 1}\n"
    (home / "params.yaml").write_text(f"{PARAMS}{train}{plan}")
    commit("Let nights choose")


def closed(pattern: Night, key: str, values: Sequence[int], *, worth: float) -> None:
    """Closes a night for each value; every value but the first adds `worth` to the score."""
    for number, value in enumerate(values):
        opened = replace(
            pattern,
            id=f"night-{number}",
            previous=branch.ledger_tip(Home.here()),
            started_at=pattern.started_at + timedelta(days=number),
            chosen=pattern.chosen and replace(pattern.chosen, values={**pattern.chosen.values, key: value}),
        )
        training = minimal_training(
            model_digest="m.dir",
            num_samples=3000,
            num_updates=47,
            elapsed_s=60,
            noise_scale=1e3,
            warm=False,
            ended_at=opened.started_at + timedelta(minutes=10),
        )
        score = 0.3 + worth * (value != values[0]) + 0.001 * (number % 3)
        evaluation = Evaluation(
            model_digest="m.dir", data_digest="d.dir", num_samples=90, metrics={"score": score}, slices=()
        )
        for record in (opened, DATASET, profile(), PLAN, training, evaluation):
            records.write(record, records.RUN)
        ledger.commit_night(Home.here(), opened, message="rejected")


def opened(home: Path, day: int, **options: object) -> tuple[Night, Params]:
    os.chdir(home)
    night = runner.run(Home.here(), "open", day=FIRST + timedelta(days=day), **options)
    assert isinstance(night, Night)
    return night, params.load(Path())


def give_up_nights(home: Path) -> None:
    """Removes the folders of nights that are open, as nights of one home take turns."""
    os.chdir(home)
    shutil.rmtree(home / "nights")


def chosen_of(night: Night) -> Chosen:
    assert night.chosen is not None
    return night.chosen


@pytest.mark.slow
def test_days_that_paid_in_the_ledger_are_written_to_the_params_of_the_night_unless_a_person_sets_them(
    repository: Path, commit
) -> None:
    choosing(repository, f"{DAYS}: [30, 60]", commit)
    first, at_first = opened(repository, 0)
    assert chosen_of(first).values == {DAYS: 30}
    os.chdir(repository)
    closed(replace(first, chosen=None), DAYS, [30] * 2, worth=0)
    closed(replace(first, id="x"), DAYS, [30, 60] * 8, worth=0.05)
    text = (repository / "params.yaml").read_text()

    give_up_nights(repository)
    tonight, loaded = opened(repository, 20)
    assert (chosen_of(tonight).values, chosen_of(tonight).tried) == ({DAYS: 60}, "")
    assert chosen_of(tonight).reason.startswith(
        "prepare.window_days is 60, not 30, as 8 nights with 60 added 0.0499 "
    )
    assert (at_first.prepare.window_days, loaded.prepare.window_days) == (30, 60)
    assert "# of the recipe" in Path("params.yaml").read_text()
    assert (repository / "params.yaml").read_text() == text
    assert opened(repository, 20) == (tonight, loaded)

    give_up_nights(repository)
    by_form, loaded = opened(repository, 21, set=[f"{DAYS}=45"])
    assert (loaded.prepare.window_days, chosen_of(by_form).values) == (45, {DAYS: 45})
    assert chosen_of(by_form).reason == "prepare.window_days is 45, as a person set it"
    give_up_nights(repository)
    as_before, loaded = opened(repository, 22, set=[f"{DAYS}=30"])
    assert (loaded.prepare.window_days, chosen_of(as_before).reason) == (
        30,
        "prepare.window_days is 30, as a person set it",
    )
    give_up_nights(repository)
    cheapest, loaded = opened(repository, 23, set=["plan.objective=cost"])
    assert (loaded.prepare.window_days, cheapest.chosen) == (30, None)


@pytest.mark.slow
def test_a_width_that_paid_is_a_refresh_of_the_champion_and_one_that_is_only_tried_is_not(
    repository: Path, commit
) -> None:
    choosing(repository, f"{WIDTH}: [64, 128]", commit)
    first, loaded = opened(repository, 0)
    champion = Champion(version=1, replaced=0, lineage={"recipe": recipe(loaded.workload, loaded.train)})
    facts = {"workload": loaded.workload.use, "arguments": {}}
    records.replace_text(FACTS, json.dumps(facts))
    champion = replace(champion, model_digest=records.digest(FACTS.parent))

    def choose(*assignments: str) -> tuple[Chosen, Params]:
        folder = Path("params.yaml").read_text()
        after = replace(first, previous=branch.ledger_tip(Home.here()))
        chosen = chosen_values.choose_for(Home.here(), after, champion, params.load(Path()), assignments)
        assert chosen is not None
        tonight = params.load(Path())
        Path("params.yaml").write_text(folder)
        return chosen, tonight

    closed(first, WIDTH, [64], worth=0)
    tried, tonight = choose()
    assert (tried.tried, tried.is_refresh) == (WIDTH, False)
    assert tonight.workload.model_extra == {"width": 128}
    closed(replace(first, id="x"), WIDTH, [64, 128] * 8, worth=0.05)
    bought, _ = choose()
    assert (bought.values, bought.tried, bought.is_refresh) == ({WIDTH: 128}, "", True)
    edited = replace(champion, lineage={"recipe": "another"})
    champion = edited
    assert not choose()[0].is_refresh

"""How far a night trains: cold on all samples, warm on the newest."""

import dataclasses
import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from daybreak.contract import records
from daybreak.contract.record_parts import Rental
from daybreak.contract.record_types import Champion, Dataset
from daybreak.contract.sections import Params
from daybreak.contract.workload import ARRAYS, write_state
from daybreak.training import recipe
from tests.training import nights, recipes

WARM_DAY, COLD_DAY = date(2026, 1, 2), date(2026, 1, 1)  # ordinals 1 and 0 modulo 7


def make_params(**train: object) -> Params:
    plugs = {name: "tests.fakes:LineWorkload" for name in ("source", "workload", "backend")}
    return Params.model_validate({**plugs, "train": train})


@pytest.fixture
def champion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Champion:
    monkeypatch.chdir(tmp_path)
    recipe.CHAMPION.mkdir(parents=True)
    facts = {"workload": "tests.fakes:LineWorkload", "arguments": {}, "last_day": "2026-01-01"}
    (recipe.CHAMPION / "model.json").write_text(json.dumps(facts))
    return Champion(version=3, replaced=2, model_digest=records.digest(recipe.CHAMPION))


def course(day: date, dataset: Dataset, champion: Champion | None, params: Params) -> recipe.Course:
    """The course of a night of that day."""
    return recipe.course(nights.night(day=day), dataset, champion, params.workload, params.train)


def test_a_cold_start_trains_on_all_samples(champion: Champion) -> None:
    dataset = nights.dataset()
    days = [date.fromordinal(WARM_DAY.toordinal() + n) for n in range(7)]
    courses = [course(day, dataset, champion, make_params(epochs=2)) for day in days]
    cold = [course for course in courses if not course.warm]
    assert len(cold) == 1
    assert (cold[0].first_sample, cold[0].num_samples) == (0, 2 * dataset.num_samples)
    assert course(WARM_DAY, dataset, None, make_params()).warm is False


@pytest.mark.parametrize(("until", "is_told"), [("2025-12-31", True), ("2026-01-01", False), ("", False)])
def test_a_warm_start_without_a_value_of_a_further_label_is_told(
    champion: Champion, caplog: pytest.LogCaptureFixture, until: str, is_told: bool
) -> None:
    dataset = replace(nights.dataset(), num_of_days=DAYS, known_until={"refunded": until})
    assert course(WARM_DAY, dataset, champion, make_params(warm_share=0.2)).newest
    told = (
        "the 200 newest samples, which a warm start trains on, have no value of the auxiliary label "
        "refunded, known until 2025-12-31, so the night learns nothing by it; set train.warm_share above "
        "0.2, or train.cold_every to 1"
    )
    assert caplog.messages == [told] * is_told


DAYS = {"2025-12-29": 100, "2025-12-30": 300, "2025-12-31": 400, "2026-01-01": 200}


@pytest.mark.parametrize(
    ("share", "days", "num_validated"),
    [
        (0.0, DAYS, 0),
        (0.1, DAYS, 200),  # one day at least
        (0.45, DAYS, 200),  # whole days
        (0.2, {}, 200),
        (0.2, {"2025-12-31": 400, "2026-01-01": 600}, 200),  # not most of all
    ],
)
def test_whole_days_before_the_held_out_ones_are_validated_on_where_all_samples_are_trained_on(
    champion: Champion, share: float, days: dict[str, int], num_validated: int
) -> None:
    dataset = dataclasses.replace(nights.dataset(), num_of_days=days)
    params = make_params(epochs=2, validation=share)
    cold = course(WARM_DAY, dataset, None, params)
    assert (cold.num_validated, cold.num_samples) == (num_validated, 2 * (1000 - num_validated))
    warm = course(WARM_DAY, dataset, champion, params)
    assert warm.newest
    assert warm.num_validated == 0


@pytest.mark.parametrize(
    ("days", "num_validated", "last"),
    [
        (DAYS, 0, date(2026, 1, 1)),
        (DAYS, 200, date(2025, 12, 31)),
        (DAYS, 250, date(2025, 12, 30)),  # a day in part
        ({}, 200, date(2025, 12, 31)),  # of five days, if alike
    ],
)
def test_the_night_after_one_that_was_validated_also_trains_on_what_that_was_not(
    champion: Champion, days: dict[str, int], num_validated: int, last: date
) -> None:
    dataset = dataclasses.replace(
        nights.dataset(), num_of_days=days, first_day=date(2025, 12, 28), last_day=date(2026, 1, 1)
    )
    assert recipe.last_trained_day(dataset, num_validated) == last
    facts = json.loads(recipe.FACTS.read_text()) | {"last_trained_day": str(last)}
    recipe.FACTS.write_text(json.dumps(facts))
    champion = dataclasses.replace(champion, model_digest=records.digest(recipe.CHAMPION))
    warm = course(WARM_DAY, dataset, champion, make_params(warm_share=0.01))
    assert warm.first_sample <= 1000 - num_validated


def test_shares_by_speed_are_the_same_training() -> None:
    assert recipes.recipe(batching="by_speed").identity == recipes.recipe(batching="even").identity


@pytest.mark.parametrize(
    ("batching", "num_machines", "expected"),
    [("auto", 1, "even"), ("auto", 2, "by_speed"), ("even", 2, "even"), ("by_speed", 1, "by_speed")],
)
def test_workers_of_one_machine_take_even_shares_unless_told(batching, num_machines, expected) -> None:
    plan = dataclasses.replace(nights.plan(), rental=Rental(machine="a", num_machines=num_machines))
    made = nights.recipe_of(nights.night(), nights.dataset(), plan, None, make_params(batching=batching))
    assert made.batching == expected


def test_a_warm_start_trains_on_the_newest_at_its_own_rate(champion: Champion) -> None:
    dataset = nights.dataset()
    day = next(day for day in (WARM_DAY, COLD_DAY) if course(day, dataset, champion, make_params()).warm)
    made = course(day, dataset, champion, make_params(warm_share=0.25, warm_epochs=2, warm_rate=1e-4))
    newest = round(0.25 * dataset.num_samples)
    assert made.first_sample == dataset.num_samples - newest
    assert (made.num_samples, made.rate) == (2 * newest, 1e-4)


@pytest.mark.parametrize(
    ("num_of_days", "newest"),
    [
        (
            {"2025-12-31": 100, "2026-01-01": 500, "2026-01-02": 50, "2026-01-03": 350},
            400,
        ),
        ({"2025-12-31": 500, "2026-01-01": 450, "2026-01-03": 50}, 100),
        ({}, 500),  # two of four days
    ],
)
def test_a_warm_start_trains_on_all_days_that_the_champion_has_not_seen(
    champion: Champion, num_of_days: dict[str, int], newest: int
) -> None:
    dataset = dataclasses.replace(
        nights.dataset(), first_day=date(2025, 12, 31), last_day=date(2026, 1, 3), num_of_days=num_of_days
    )
    night, params = nights.night(day=WARM_DAY), make_params(warm_share=0.1, warm_epochs=2)
    made = recipe.course(night, dataset, champion, params.workload, params.train)
    assert (made.first_sample, made.num_samples) == (1000 - newest, 2 * newest)
    fewer = made.without_missed()
    assert (fewer.first_sample, fewer.num_samples, fewer.num_missed) == (900, 200, 0)
    plan = dataclasses.replace(nights.plan(), num_left_out=made.num_missed)
    assert nights.recipe_of(night, dataset, plan, champion, params).first_sample == 900


@pytest.mark.parametrize("change", ["edited", "other arguments", "fitted again"])
def test_a_changed_workload_trains_on_all_samples_from_the_champions_weights(
    champion: Champion, change: str
) -> None:
    params = make_params(epochs=2, validation=0.1)  # which its weights have seen
    if change == "edited":
        champion = dataclasses.replace(champion, lineage={"source": "before"})
    elif change == "other arguments":
        assert params.workload.model_extra is not None
        params.workload.model_extra["dropout"] = 0.5
    else:
        ARRAYS.mkdir(parents=True)
        write_state(ARRAYS, {"edges": np.array([0.0, 2.0])})
    made = course(WARM_DAY, nights.dataset(), champion, params)
    assert (made.warm, made.newest, made.num_validated) == (True, False, 0)
    assert (made.num_samples, made.rate) == (2 * nights.dataset().num_samples, params.train.rate)

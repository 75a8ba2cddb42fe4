"""The recipe of a worker: the time between saves, the end of training, the initial weights."""

import json
import shutil
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest

from daybreak.contract import records
from daybreak.contract.record_parts import Placement, Portion, Rental, Size
from daybreak.contract.record_types import Champion
from daybreak.contract.workload import ARRAYS, STATE, write_state
from daybreak.jobs import launcher, observed_job
from daybreak.training import recipe as recipe_module
from daybreak.training.recipe import name_of
from tests.jobs.calls import NIGHT
from tests.training import nights

pytestmark = pytest.mark.usefixtures("folder")


@pytest.mark.parametrize(
    ("rental", "hours"),
    [
        (Rental(machine="n1-standard-4", strategy="spot", num_machines=2), 16.9 / 2),
        (Rental(machine="local"), 24),
        (Rental(machine="n1-standard-4"), 54 * 24 * 16_384 / 8 / 419),
    ],
)
def test_the_interval_may_be_made_anew_by_how_long_machines_live(rental, hours):
    plan = replace(nights.plan(), rental=rental)
    recipe = nights.recipe_of(
        NIGHT, nights.dataset(), plan, None, nights.make_params(checkpoint_every_s=None)
    )
    assert recipe.saves.mean_time_to_loss_s == pytest.approx(hours * 3600)
    assert recipe.saves.every_s == plan.checkpoint_every_s
    fixed = nights.recipe_of(NIGHT, nights.dataset(), plan, None, nights.make_params(checkpoint_every_s=7))
    assert (fixed.saves.every_s, fixed.saves.mean_time_to_loss_s) == (7, None)


@pytest.mark.parametrize(("after_s", "earlier_s"), [(30.0, 0.0), (90.5, 31.0)])
def test_training_leaves_the_time_that_the_decision_needs(after_s, earlier_s):
    """The night gives a minute to what follows training."""
    after = (Portion(name="evaluation", expected_s=after_s, expected_usd=0.0),)
    made = nights.recipe_of(
        NIGHT, nights.dataset(), replace(nights.plan(), after=after), None, nights.make_params()
    )
    assert made.train_until == NIGHT.train_until - timedelta(seconds=earlier_s)


def test_samples_that_are_bought_beyond_the_recipe_lengthen_the_schedule_in_batches_of_its_size_too():
    longer = replace(nights.plan(num_samples=8000), base_samples=6000)
    params = nights.make_params()
    recipes = [
        nights.recipe_of(NIGHT, nights.dataset(), plan, None, params) for plan in (nights.plan(), longer)
    ]
    assert [recipe.rate.base_samples for recipe in recipes] == [3000, 6000]


@pytest.fixture
def champion() -> Champion:
    path = launcher.CHAMPION
    path.mkdir(parents=True)
    facts = {"workload": "tests.fakes:LineWorkload", "arguments": {}, "last_day": "2026-01-02"}
    (path / "model.json").write_text(json.dumps(facts))
    (path / "model.safetensors").write_bytes(b"weights")
    return Champion(version=3, replaced=2, model_digest=records.digest(path))


@pytest.mark.parametrize(("is_cold", "last_day"), [(False, date(2026, 1, 2)), (True, date(2026, 1, 1))])
def test_a_warm_start_has_seen_what_the_weights_have_that_it_begins_with(champion, is_cold, last_day):
    """A champion that was refitted on held-out days has seen later ones than tonight's training split has."""
    params = nights.make_params(cold_every=1 if is_cold else 7)
    made = nights.recipe_of(nights.night(), nights.dataset(), nights.plan(), champion, params)
    assert (made.warm_start is not None, made.last_day) == (not is_cold, last_day)


def warm(champion: Champion | None, *, day: date = date(2026, 1, 2), **arguments) -> bool:
    params = nights.make_params(**arguments)
    recipe = nights.recipe_of(nights.night(day=day), nights.dataset(), nights.plan(), champion, params)
    return recipe.warm_start is not None


def test_training_starts_from_the_champion_except_every_so_many_nights(champion):
    first = date(2026, 1, 1)
    cold = [day for day in range(14) if not warm(champion, day=first + timedelta(days=day))]
    assert len(cold) == 2
    assert cold[1] - cold[0] == 7
    assert not warm(champion, day=first + timedelta(days=cold[0] + 1), cold_every=1)


def test_an_update_of_daybreak_makes_another_job_that_goes_on_from_the_same_checkpoints():
    recipe = nights.recipe_of(NIGHT, nights.dataset(), nights.plan(), None, nights.make_params())
    updated = replace(recipe, frame_digest="another")
    assert recipe.frame_digest
    assert recipe.identity == updated.identity
    names = {name_of(one, Rental(machine="local"), num_workers=1) for one in (recipe, updated)}
    assert len(names) == 2


def test_another_form_of_checkpoints_makes_another_job_which_begins_anew(monkeypatch):
    made = nights.recipe_of(NIGHT, nights.dataset(), nights.plan(), None, nights.make_params())
    before = made.identity
    monkeypatch.setattr("daybreak.training.recipe.FORM", recipe_module.FORM + 1)
    assert made.identity != before


def test_a_placement_brings_its_own_passes_and_batch_sizes_and_none_makes_another_job():
    sizes = tuple(Size(batch_size=n, micro_batch_size=16, update_s=1.0) for n in (32, 64))
    slow = tuple(replace(size, micro_batch_size=4, update_s=size.batch_size) for size in sizes)
    plan = replace(nights.plan(), sizes=sizes)
    placement = Placement(
        rental=Rental(machine="d"),
        expected_s=1,
        expected_usd=1,
        latest_start=NIGHT.train_until,
        micro_batch_size=4,
        sizes=slow,
    )
    recipe, stays = (
        nights.recipe_of(NIGHT, nights.dataset(), each, None, nights.make_params())
        for each in (plan, replace(plan, sizes=()))
    )
    assert (recipe.on(placement).micro_batch_size, recipe.on(placement).sizes) == (4, slow)
    assert recipe.on(replace(placement, micro_batch_size=0, sizes=())) == recipe
    assert stays.on(placement) == replace(
        stays, micro_batch_size=4
    )  # where only one size is allowed, it stays
    for made in (recipe, stays):
        assert made.on(placement).identity == made.identity
    planned = observed_job.first(plan, train_until=NIGHT.train_until, confidence=0.9)
    assert recipe.on(placement).on(planned) == recipe


def test_training_starts_cold_from_no_champion_or_another_or_a_changed_one(champion, caplog):
    assert warm(champion)
    assert not warm(None)
    facts = launcher.CHAMPION / "model.json"
    before = facts.read_text()
    facts.write_text(before.replace("LineWorkload", "OtherWorkload"))
    assert not warm(replace(champion, model_digest=records.digest(launcher.CHAMPION)))
    assert "the champion is another workload" in caplog.text
    facts.write_text(before)
    (launcher.CHAMPION / "model.safetensors").write_bytes(b"other")
    assert not warm(champion)
    assert "is not the model of version 3" in caplog.text
    shutil.rmtree(launcher.CHAMPION)
    launcher.CHAMPION.mkdir()
    assert not warm(champion)


@pytest.mark.parametrize(
    ("names", "edges", "is_warm"),
    [(["a", "b"], [0.0, 2.0], True), (["b", "a"], [0.0, 1.0], False), (["a", "c"], [0.0, 1.0], False)],
)
def test_weights_of_names_that_moved_are_not_begun_from(champion, caplog, names, edges, is_warm):
    write_state(launcher.CHAMPION, {"values_kind": np.array(["a", "b"]), "edges": np.array([0.0, 1.0])})
    ARRAYS.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(ARRAYS / STATE, ignore_errors=True)
    write_state(ARRAYS, {"values_kind": np.array(names), "edges": np.array(edges)})
    assert warm(replace(champion, model_digest=records.digest(launcher.CHAMPION))) == is_warm
    assert ("values_kind has other places; starting cold" in caplog.text) != is_warm

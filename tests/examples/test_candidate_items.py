import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daybreak.examples.shop.candidate_items import CandidateDataset
from daybreak.examples.shop.purchase_history import NUM_OWN, WINDOWS
from daybreak.examples.shop.recommender import Recommender
from tests.examples.arrays import Shop, make_shop, write

SMALL = {"num_candidates": 40, "num_popular": 10, "num_neighbours": 4, "neighbour_days": 7, "num_rows": 64}
ANSWERS = {"bought", "num_bought", "num_first", "home", "repeated", "popular"}  # may know of the sample's day


def dataset(folder: Path, split: str = "train", **arguments: int) -> CandidateDataset:
    return Recommender(**{**SMALL, **arguments}).dataset(folder, split)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(make_shop(), tmp_path_factory.mktemp("arrays"))


def test_the_splits_hold_the_samples_that_meta_counts(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    assert len(dataset(folder)) == meta["num_samples_train"]
    assert len(dataset(folder, "test")) == meta["num_samples_test"]


def test_train_days_leaves_only_the_newest_training_days(folder: Path) -> None:
    recent = dataset(folder, train_days=7)
    days = recent.lines.samples_day[recent.samples]
    assert days.max() == recent.lines.last_day
    assert days.min() > recent.lines.last_day - 7


@pytest.mark.slow
@given(cut=st.integers(5, 39), seed=st.integers(0, 1000))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_sample_sees_lines_of_its_own_day_or_later(cut: int, seed: int, tmp_path: Path) -> None:
    shop = make_shop(seed=seed)
    few = {"num_candidates": 12}  # so that the best are chosen
    one = dataset(write(shop, tmp_path / "one", num_test_days=1), **few)
    other = dataset(write(shop.altered_from(cut, seed), tmp_path / "other", num_test_days=1), **few)
    first_day = int(np.load(tmp_path / "one" / "day.npy")[0]) - int(shop.day.min())
    before = np.flatnonzero(one.lines.samples_day[one.samples] <= first_day + cut).tolist()
    if before:
        this, that = one.__getitems__(before), other.__getitems__(before)
        for name in this.keys() - ANSWERS:
            assert torch.equal(this[name], that[name]), name


def test_a_sample_is_the_same_in_any_batch(folder: Path) -> None:
    samples = dataset(folder)
    together = samples.__getitems__([3, 50, 3, 100])
    for place, index in enumerate([3, 50, 3, 100]):
        alone = samples[index]
        for name, values in together.items():
            assert torch.allclose(values[place].double(), alone[name].double(), atol=1e-4), name


def test_own_counts_and_recency_are_those_of_a_plain_loop(folder: Path) -> None:
    samples = dataset(folder)
    lines, indices = samples.lines, [10, 60, 200, 300]
    batch = samples.__getitems__(indices)
    row_of = lines.keys["items"] % SMALL["num_rows"]
    for b, index in enumerate(indices):
        day = int(lines.samples_day[samples.samples[index]])
        customer = int(lines.samples_customer[samples.samples[index]])
        for c in torch.nonzero(batch["own"][b])[:, 0].tolist():
            item = int(np.flatnonzero(row_of == int(batch["items"][b, c]))[0])
            bought = (lines.customer == customer) & (lines.item == item) & (lines.day < day)
            ages = day - lines.day[bought]
            expected = [np.log1p((ages <= window).sum()) for window in WINDOWS] + [np.log1p(len(ages))]
            assert batch["own"][b, c] == len(ages)
            assert batch["features"][b, c, : len(expected)].tolist() == pytest.approx(expected, abs=1e-5)
            assert batch["features"][b, c, len(expected) + 3] == pytest.approx(np.log1p(ages.min()), abs=1e-5)


def test_what_was_bought_is_marked_and_counted(folder: Path) -> None:
    samples = dataset(folder, "test")
    lines, batch = samples.lines, samples.__getitems__(list(range(len(samples))))
    row_of = lines.keys["items"] % SMALL["num_rows"]
    for b, sample in enumerate(samples.samples.tolist()):
        line = (lines.customer == lines.samples_customer[sample]) & (lines.day == lines.samples_day[sample])
        bought = set(row_of[lines.item[line]].tolist())
        marked = set(batch["items"][b][batch["bought"][b]].tolist())
        candidates = set(batch["items"][b][batch["mask"][b]].tolist())
        assert batch["num_bought"][b] == len(bought)
        assert marked == bought & candidates


def test_candidates_are_distinct_and_begin_with_the_mask(folder: Path) -> None:
    batch = dataset(folder, num_candidates=12).__getitems__(list(range(200)))
    for mask, items in zip(batch["mask"], batch["items"], strict=True):
        held = items[mask].tolist()
        assert len(set(held)) == len(held)
        assert mask[: len(held)].all()
    assert batch["items"].shape == (200, 12)


def test_a_first_visit_has_no_own_features_and_an_unknown_customer(folder: Path) -> None:
    batch = dataset(folder).__getitems__(list(range(100)))
    new = ~batch["known"]
    assert new.any()
    assert not batch["features"][new][..., :NUM_OWN].any()
    assert not batch["customer"][new].any()
    assert batch["mask"][new].any() or not batch["features"].any()


def test_few_tracked_items_still_give_every_own_item(folder: Path) -> None:
    samples = dataset(folder, num_tracked=9, num_neighbours=3, num_popular=3, num_neighbour_items=6)
    batch = samples.__getitems__(list(range(len(samples))))
    assert torch.isfinite(batch["features"]).all()
    assert ((batch["own"] > 0).sum(1) > 5).any()


def test_candidates_fill_up_with_what_sells(folder: Path) -> None:
    samples = dataset(folder, num_candidates=12, num_popular=12)
    late = list(range(len(samples) // 2, len(samples)))
    assert samples.__getitems__(late)["mask"].all()


def test_an_item_that_customers_buy_with_ones_own_comes_before_one_that_sells_alike(tmp_path: Path) -> None:
    """Items 1 and 2 sell alike, but 1 to those who have bought item 0, as the last customer has."""
    customer = [0, 0, 1, 1, 2, 2, 3, 3, 4]
    item = [0, 1, 0, 1, 3, 2, 3, 2, 0]
    day = [20] * 8 + [22]
    shop = Shop(np.array(day), np.array(customer), np.array(item), np.ones(9), 5, 4, 40)
    visit = Shop(
        np.append(shop.day, 30), np.append(shop.customer, 4), np.append(shop.item, 3), np.ones(10), 5, 4, 40
    )
    samples = dataset(write(visit, tmp_path, num_test_days=10), "test", num_candidates=2)
    batch = samples.__getitems__([0])
    row = (samples.lines.keys["items"] % SMALL["num_rows"]).tolist()
    assert batch["items"][0].tolist() == [row[0], row[1]]

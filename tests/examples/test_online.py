"""Online and offline must agree: what is recommended is what the held-out score judges."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from daybreak.examples.shop.recommender import Recommender
from tests.examples.arrays import Shop, make_shop, write

SMALL = {"num_candidates": 30, "num_popular": 20, "num_rows": 64, "dim": 4, "hidden": 16}


def known_before(shop: Shop, day: int) -> Shop:
    """The shop as it was known before a day; its codes stay."""
    known = shop.day < day
    columns = {name: getattr(shop, name)[known] for name in ("day", "customer", "item", "quantity")}
    return replace(shop, **columns)


@pytest.fixture(scope="module")
def ranker() -> torch.nn.Module:
    torch.manual_seed(1)
    model = Recommender(**SMALL).model().eval()
    for parameter in model.parameters():  # as after training: nothing is zero
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("seed", range(4))
def test_what_is_recommended_is_what_the_score_judges(
    tmp_path: Path, ranker: torch.nn.Module, seed: int
) -> None:
    shop = make_shop(seed=seed, num_lines=1500)
    workload, last = Recommender(**SMALL), shop.num_days - 1
    offline = workload.dataset(write(shop, tmp_path / "after", num_test_days=1), "test")
    online = workload.dataset(write(known_before(shop, last), tmp_path / "before", num_test_days=1), "serve")
    batch = offline.__getitems__(range(len(offline)))
    users = [str(offline.lines.samples_customer[sample]) for sample in offline.samples]
    ranked = workload.recommend(ranker, online, users, 20)
    row = offline.lines.keys["items"] % SMALL["num_rows"]
    best = ranker(batch).topk(20).indices
    assert len(offline) > 3
    for place, items in enumerate(ranked):
        judged = best[place][batch["mask"][place][best[place]]]
        assert [row[int(item)] for item in items] == batch["items"][place][judged].tolist()


def test_an_answer_hangs_on_nobody_else_and_a_short_one_is_the_head_of_a_long_one(
    tmp_path: Path, ranker: torch.nn.Module
) -> None:
    workload = Recommender(**SMALL)
    samples = workload.dataset(write(make_shop(num_lines=1500), tmp_path), "serve")
    users = [*samples.customers, "nobody"]
    together = workload.recommend(ranker, samples, users, 20)
    assert together[-1] == []
    assert all(len(set(items)) == 20 for items in together[:-1])
    for user, items in zip(users, together, strict=True):
        assert workload.recommend(ranker, samples, [user], 7) == [items[:7]]
    assert workload.recommend(ranker, samples, ["nobody"], 7) == [[]]


def test_what_is_popular_is_what_customers_bought_most_lately(tmp_path: Path) -> None:
    shop = make_shop(num_lines=1500)
    samples = Recommender(**SMALL).dataset(write(shop, tmp_path), "serve")
    popular = Recommender(**SMALL).popular(samples, 5)
    day, items = shop.num_days, [int(code) for code in popular]

    def trend(item: int) -> float:
        lines = np.flatnonzero(shop.item == item)
        known = lines[shop.customer[lines] >= 0]
        first = {who: int(shop.day[known][shop.customer[known] == who].min()) for who in shop.customer[known]}
        new = sum(day - since <= 7 for since in first.values())
        return new + (day - shop.day[known] <= 28).sum() + (day - shop.day[lines] <= 28).sum() / 10

    others = [trend(item) for item in range(shop.num_items) if item not in items]
    assert min(map(trend, items)) >= max(others)


def test_likely_to_come_is_who_bought_last(tmp_path: Path) -> None:
    shop = make_shop(num_lines=1500)
    samples = Recommender(**SMALL).dataset(write(shop, tmp_path), "serve")
    likely = Recommender(**SMALL).likely(samples, 5)
    assert len(set(likely)) == 5
    last = [int(shop.day[shop.customer == int(user)].max()) for user in likely]
    assert last == sorted(last, reverse=True)
    assert last[0] == shop.day[shop.customer >= 0].max()

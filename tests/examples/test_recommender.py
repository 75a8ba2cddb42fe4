import math
from pathlib import Path

import numpy as np
import pytest
import torch

from daybreak.examples.shop.recommender import Recommender
from daybreak.statistics.ranking import ndcg
from tests.examples.arrays import make_shop, write

SMALL = {"num_candidates": 30, "num_popular": 20, "num_rows": 64, "dim": 4, "hidden": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(make_shop(num_lines=1500), tmp_path_factory.mktemp("arrays"))


class Fixed(torch.nn.Module):
    """Scores candidates as it was told."""

    def __init__(self, scores: list[list[float]]) -> None:
        super().__init__()
        self.scores = torch.tensor(scores)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.scores


def test_loss_score_and_metrics_are_per_sample(folder: Path) -> None:
    workload = Recommender(**SMALL)
    batch = workload.dataset(folder, "test").__getitems__([0, 1, 2])
    model = workload.model().eval()
    values = [workload.loss(model, batch), workload.score(model, batch)]
    values += [*workload.metrics(model, batch).values(), *workload.slices(batch).values()]
    assert all(value.shape == (3,) for value in values)
    assert all(torch.isfinite(value.float()).all() for value in values)


def test_items_that_are_no_candidates_count_against_the_score() -> None:
    batch = {"bought": torch.tensor([[True, False, True]]), "num_bought": torch.tensor([4])}
    score = Recommender().score(Fixed([[3.0, 2.0, 1.0]]), batch)
    best = sum(1 / math.log2(rank + 2) for rank in range(4))
    assert score.tolist() == pytest.approx([(1 + 1 / 2) / best])


def test_the_score_agrees_with_that_of_the_baselines(folder: Path) -> None:
    workload = Recommender(**SMALL)
    samples = workload.dataset(folder, "test")
    batch = samples.__getitems__(list(range(len(samples))))
    model = workload.model().eval()
    scores, ranking = workload.score(model, batch), model(batch).topk(20).indices
    lines = samples.lines
    row = lines.keys["items"] % SMALL["num_rows"]
    for b, sample in enumerate(samples.samples.tolist()):
        line = (lines.customer == lines.samples_customer[sample]) & (lines.day == lines.samples_day[sample])
        assert batch["mask"][b][ranking[b]].all()
        ranked = batch["items"][b][ranking[b]].numpy()
        bought = np.unique(row[lines.item[line]])
        expected = ndcg(np.isin(ranked, bought), num_relevant=len(bought))
        assert float(scores[b]) == pytest.approx(expected, abs=1e-5)


def test_candidate_recall_is_that_of_a_plain_loop(folder: Path) -> None:
    workload = Recommender(**SMALL | {"num_candidates": 12})
    samples = workload.dataset(folder, "test")
    batch = samples.__getitems__(list(range(len(samples))))
    model = workload.model().eval()
    metrics = {name: values.tolist() for name, values in workload.metrics(model, batch).items()}
    some = workload.slices(batch)[workload.metric_slices["candidate recall, first-time"]]
    lines, row = samples.lines, samples.lines.keys["items"] % SMALL["num_rows"]
    for b, sample in enumerate(samples.samples.tolist()):
        own = lines.customer == lines.samples_customer[sample]
        bought = set(lines.item[own & (lines.day == lines.samples_day[sample])].tolist())
        first = bought - set(lines.item[own & (lines.day < lines.samples_day[sample])].tolist())
        candidates = set(batch["items"][b][batch["mask"][b]].tolist())
        held = {item for item in bought if row[item] in candidates}
        assert metrics["candidate recall"][b] == pytest.approx(len(held) / len(bought))
        share = len(held & first) / len(first) if first else 0
        assert metrics["candidate recall, first-time"][b] == pytest.approx(share)
        assert some[b] == bool(first)
    assert some.any()
    assert 0 < sum(metrics["candidate recall"]) < len(samples)


def test_slices_come_in_complementary_pairs(folder: Path) -> None:
    workload = Recommender(**SMALL)
    masks = list(workload.slices(workload.dataset(folder, "test").__getitems__([0, 1, 2, 3])).values())
    assert all(torch.equal(one, ~other) for one, other in zip(masks[::2], masks[1::2], strict=True))


@pytest.mark.parametrize("sparse", [False, True])
def test_training_lowers_the_loss(folder: Path, sparse: bool) -> None:
    torch.manual_seed(0)
    workload = Recommender(**SMALL, sparse=sparse, dropout=0.0)
    samples = workload.dataset(folder, "train")
    batch = samples.__getitems__(list(range(len(samples) - 128, len(samples))))
    model = workload.model().train()
    optimizer = workload.optimizer(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = workload.loss(model, batch).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05


def test_a_seed_gives_the_same_model() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(Recommender(**SMALL).model().state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_an_untrained_model_already_beats_popularity(folder: Path) -> None:
    torch.manual_seed(0)
    workload = Recommender(**SMALL)
    samples = workload.dataset(folder, "test")
    batch = samples.__getitems__(list(range(len(samples))))
    untrained = workload.score(workload.model().eval(), batch).mean()
    assert untrained > workload.baselines(folder)["popularity"].mean()


def test_baselines_score_every_test_sample(folder: Path) -> None:
    workload = Recommender(**SMALL)
    scores = workload.baselines(folder)
    assert set(scores) == {"popularity", "counts", "counts_popularity", "knn", "ease"}
    for values in scores.values():
        assert len(values) == len(workload.dataset(folder, "test"))
        assert ((values >= 0) & (values <= 1)).all()


def test_ndcg_of_a_perfect_ranking_is_one() -> None:
    assert ndcg([True] * 20, num_relevant=30) == pytest.approx(1)
    assert ndcg([False, True, False], num_relevant=1) == pytest.approx(1 / math.log2(3))
    assert ndcg([], num_relevant=0) == 0

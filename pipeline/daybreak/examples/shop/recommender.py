"""Recommends to customers what they will buy the next day: the default workload.

A DLRM-style ranker (Naumov et al. 2019): embeddings of customer, item and country, a bottom MLP over
dense features of a candidate, dot products of all pairs of these vectors, and a top MLP. Two additions
matter on shops where most purchases are repeats: a linear path from the features to the score, initialized to
the customer's own past counts plus a little popularity, so that training corrects that strong rule; and the
customer's past items as one vector, the mean of their embeddings weighted by how often they were bought.

Loss of a sample: for each bought candidate, cross entropy of picking it among all candidates not bought (so
that bought candidates do not compete with each other), averaged over bought candidates. Score of a sample:
NDCG@20 over all items, candidates or not.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from daybreak import Split
from daybreak.examples.shop import simple_recommenders
from daybreak.examples.shop.candidate_items import NUM_CONTEXT, NUM_FEATURES, CandidateDataset
from daybreak.examples.shop.catalogue import Catalogue
from daybreak.examples.shop.item_tables import POPULARITY
from daybreak.examples.shop.purchase_history import NUM_OWN, WINDOWS
from daybreak.examples.shop.simple_recommenders import TOP
from daybreak.examples.shop.sold_lines import SoldLines

NUM_COUNTRIES = 1024  # rows of the table of countries
Batch = dict[str, Tensor]


class Ranker(nn.Module):
    """Scores a batch's candidates, shape [b, c]; padding scores lowest."""

    def __init__(self, *, dim: int, hidden: int, num_rows: int, dropout: float, sparse: bool) -> None:
        super().__init__()
        self.customer = nn.Embedding(num_rows, dim, sparse=sparse)
        self.item = nn.Embedding(num_rows, dim, sparse=sparse)
        self.country = nn.Embedding(NUM_COUNTRIES, dim, sparse=sparse)
        self.bias = nn.Embedding(num_rows, 1, sparse=sparse)
        for table in (self.customer, self.item, self.country, self.bias):
            nn.init.normal_(table.weight, std=0.05)
        nn.init.zeros_(self.bias.weight)
        self.context = nn.Sequential(nn.Linear(NUM_CONTEXT, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.bottom = nn.Sequential(nn.Linear(2 * NUM_FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.mix = nn.Linear(NUM_CONTEXT, hidden)
        self.inside = nn.Linear(2 * NUM_FEATURES + 15, hidden)
        last = nn.Linear(hidden, 1)
        self.top = nn.Sequential(nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(), last)
        self.linear = nn.Linear(NUM_FEATURES, 1, bias=False)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        with torch.no_grad():
            self.linear.weight[0, len(WINDOWS)] = 2.0  # log(1 + times bought before)
            self.linear.weight[0, NUM_OWN + POPULARITY.index(("all", 14))] = 0.3  # log(1 + lines sold)

    def forward(self, batch: Batch) -> Tensor:
        """Returns scores, float32 [b, c]."""
        mask, features, context = batch["mask"], batch["features"], batch["context"]
        count = mask.sum(1).clamp(min=1)[:, None, None]
        valid = mask[:, :, None].to(features.dtype)
        centred = (features - (features * valid).sum(1, keepdim=True) / count) * valid
        scale = (centred.square().sum(1, keepdim=True) / count + 0.05).sqrt()
        dense = torch.cat([features, centred / scale], dim=2)

        item = self.item(batch["items"])
        own = batch["own"].log1p()
        own = own / own.sum(1, keepdim=True).clamp(min=1)
        past = torch.bmm(own[:, None, :], item)
        customer, country = self.customer(batch["customer"]), self.country(batch["country"] % NUM_COUNTRIES)
        side = torch.stack([past[:, 0], customer, country, self.context(context)], dim=1)
        bottom = self.bottom(dense)
        pairs = [item @ side.transpose(1, 2), bottom @ side.transpose(1, 2)]
        upper = torch.triu_indices(4, 4, offset=1, device=item.device)
        among = (side @ side.transpose(1, 2))[:, upper[0], upper[1]]
        both = (item * bottom).sum(2, keepdim=True)
        crossed = torch.cat([dense, *pairs, both, among[:, None, :].expand(-1, item.shape[1], -1)], dim=2)
        deep = self.top(self.inside(crossed) + self.mix(context)[:, None])
        score = deep[..., 0] + self.linear(features)[..., 0] + self.bias(batch["items"])[..., 0]
        masked: Tensor = score.masked_fill(~mask, -1e4)
        return masked


class Recommender(SoldLines):
    """The default workload; see daybreak/contract/workload.py.

    Its arguments come from params.yaml, `workload: {use: ..., dim: 8}`.
    """

    metric_slices: ClassVar = {"candidate recall, first-time": "some first-time"}

    def __init__(
        self,
        *,
        dim: int = 8,
        hidden: int = 64,
        num_rows: int = 1 << 14,
        num_candidates: int = 300,
        num_popular: int = 300,
        num_tracked: int = 1 << 14,
        num_neighbours: int = 16,
        num_neighbour_items: int = 4096,
        num_neighbour_customers: int = 20_000,
        neighbour_days: int = 28,
        max_history: int = 2000,
        train_days: int = 0,
        dropout: float = 0.1,
        weight_decay: float = 1e-4,
        sparse: bool = False,
        leave_out_items: Collection[str] = (),
    ) -> None:
        super().__init__(leave_out_items=leave_out_items)
        self.ranker = {
            "dim": dim,
            "hidden": hidden,
            "num_rows": num_rows,
            "dropout": dropout,
            "sparse": sparse,
        }
        self.candidates = {
            "num_rows": num_rows,
            "num_candidates": num_candidates,
            "num_popular": num_popular,
            "num_tracked": num_tracked,
            "num_neighbours": num_neighbours,
            "num_neighbour_items": num_neighbour_items,
            "num_neighbour_customers": num_neighbour_customers,
            "neighbour_days": neighbour_days,
            "max_history": max_history,
            "train_days": train_days,
        }
        self.weight_decay, self.sparse = weight_decay, sparse

    def dataset(self, folder: Path, split: Split) -> CandidateDataset:
        """Returns the samples of `split`; opens in seconds, writes nothing."""
        kind = Catalogue if split == "serve" else CandidateDataset
        return kind(folder, split, **self.candidates)

    def model(self) -> nn.Module:
        """Returns a new ranker."""
        return Ranker(**self.ranker)  # type: ignore[arg-type]

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Returns AdamW, or Adagrad if the embeddings' gradients are sparse, which AdamW does not support."""
        if self.sparse:
            torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]  # else it warns
            return torch.optim.Adagrad(parameters)
        return torch.optim.AdamW(parameters, weight_decay=self.weight_decay)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the cross entropy, [b]; 0 if no candidate was bought."""
        score: Tensor = model(batch)
        bought = batch["bought"].float()
        others = score.masked_fill(batch["bought"], -1e4).logsumexp(1, keepdim=True)
        each = nn.functional.softplus(others - score)
        return (each * bought).sum(1) / bought.sum(1).clamp(min=1)

    def score(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns NDCG@20 against all items bought that day, [b]."""
        hits, gain = self._hits(model, batch)
        best = (1 / torch.log2(torch.arange(2.0, TOP + 2, device=gain.device))).cumsum(0)
        return (hits * gain).sum(1) / best[batch["num_bought"].clamp(1, TOP) - 1]

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns recall@20, hit rate@20, and which share of the bought items are candidates, each [b].

        The last also of the items that the customer had not bought before; 0 where there are none.
        """
        hits, _ = self._hits(model, batch)
        bought, new = batch["bought"], batch["bought"] & (batch["own"] == 0)
        return {
            "recall@20": hits.sum(1) / batch["num_bought"].clamp(min=1),
            "hit_rate@20": (hits.sum(1) > 0).float(),
            "candidate recall": bought.sum(1) / batch["num_bought"].clamp(min=1),
            "candidate recall, first-time": new.sum(1) / batch["num_first"].clamp(min=1),
        }

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """Returns masks of samples by slice, [b]."""
        return {
            "known customers": batch["known"],
            "new customers": ~batch["known"],
            "country: home": batch["home"],
            "country: other": ~batch["home"],
            "mostly repeats": batch["repeated"],
            "mostly first-time": ~batch["repeated"],
            "some first-time": batch["num_first"] > 0,
            "only repeats": batch["num_first"] == 0,
            "mostly popular items": batch["popular"],
            "mostly other items": ~batch["popular"],
        }

    def baselines(self, folder: Path) -> dict[str, Tensor]:
        """Returns NDCG@20 of simple rules on the test split, each [n]."""
        return simple_recommenders.baselines(folder)

    def recommend(
        self, model: nn.Module, samples: Catalogue, users: Sequence[str], top: int
    ) -> list[list[str]]:
        """Returns codes of the best items of each customer, the day after the newest line; [] if unknown."""
        numbers = [samples.customers.get(user, -1) for user in users]
        items: list[list[str]] = [[] for _ in users]
        known = [place for place, number in enumerate(numbers) if number >= 0]
        if not known:
            return items
        batch = samples.__getitems__([numbers[place] for place in known])
        device = next(model.parameters()).device
        with torch.inference_mode():
            score = model({name: value.to(device) for name, value in batch.items()}).cpu()
        best = score.topk(min(top, score.shape[1]), dim=1).indices
        number, count = batch["number"].gather(1, best).tolist(), batch["mask"].sum(1).tolist()
        for row, place in enumerate(known):
            items[place] = [samples.items[item] for item in number[row][: count[row]]]
        return items

    def popular(self, samples: Catalogue, top: int) -> list[str]:
        """Returns codes of the items that sell most now."""
        return [samples.items[number] for number in samples.popularity.top[0, :top].tolist()]

    def users(self, samples: Catalogue) -> list[str]:
        """Returns codes of all customers, whose lists for the next day each night can write."""
        return list(samples.customers)

    def likely(self, samples: Catalogue, num: int) -> list[str]:
        """Returns codes of the customers that bought last."""
        codes = list(samples.customers)
        return [codes[number] for number in samples.newest_customers(num)]

    def _hits(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Which of the best 20 were bought, float [b, 20], and the gain at each rank, [20]."""
        score = model(batch)
        best = score.topk(min(TOP, score.shape[1]), dim=1).indices
        hits = batch["bought"].gather(1, best).float()
        gain = 1 / torch.log2(torch.arange(2, 2 + best.shape[1], device=score.device, dtype=torch.float32))
        return hits, gain

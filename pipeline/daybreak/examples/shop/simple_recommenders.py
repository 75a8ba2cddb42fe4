"""Scores simple rules on the same samples: popularity, own past counts, item-kNN and EASE.

Each ranks all items for each test sample from the lines of earlier days. The ranking of equal counts matters,
since most counts are 1: `counts` keeps the order of items, `counts_popularity` ranks by popularity, which is
much harder to beat.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from daybreak import ndcg
from daybreak.examples.shop.item_tables import Array, Lines

TOP = 20  # items of a ranking that its NDCG counts


def baselines(folder: Path, *, num_items: int = 4000, ridge: float = 300.0) -> dict[str, Tensor]:
    """Returns NDCG@20 of each test sample, in the order of the test split, by the name of the rule.

    Item-kNN is the cosine of co-purchase by the same customers; EASE the closed form
    B = I - P / diag(P), P = (X'X + ridge I)^-1 (Steck 2019). Both know the `num_items` most sold items
    and rank by the customer's past items, the count of each damped by log(1 + count).
    """
    lines = Lines(folder)
    wanted = np.flatnonzero(np.isin(lines.samples_day, lines.test_days))
    scores: dict[str, list[float]] = {
        name: [] for name in ("popularity", "counts", "counts_popularity", "knn", "ease")
    }
    day, rules = -1, dict[str, Callable[[Array], Array]]()
    for sample in wanted.tolist():
        if int(lines.samples_day[sample]) != day:
            day = int(lines.samples_day[sample])
            rules = _rules(lines, day, num_items=num_items, ridge=ridge)
        customer = int(lines.samples_customer[sample])
        line = lines.by_customer[lines.customer_start[customer] : lines.customer_start[customer + 1]]
        when = lines.day[line]
        counts = np.bincount(lines.item[line[when < day]], minlength=lines.num_items).astype(np.float32)
        bought = np.unique(lines.item[line[when == day]])
        for name, rule in rules.items():
            score = rule(counts)
            ranked = np.argsort(-score, kind="stable")[:TOP]
            scores[name].append(ndcg(np.isin(ranked, bought), num_relevant=len(bought)))
    return {name: torch.tensor(values) for name, values in scores.items()}


def _rules(lines: Lines, day: int, *, num_items: int, ridge: float) -> dict[str, Callable[[Array], Array]]:
    """Rules that score all items for a vector of own counts, from what was known before `day`."""
    end = int(np.searchsorted(lines.day, day))
    begin = int(np.searchsorted(lines.day, day - 14))
    total = np.bincount(lines.item[begin:end], minlength=lines.num_items).astype(np.float32)
    popular = total / (total.max(initial=0) + 1)  # below 1, so that it only breaks ties of counts

    order = lines.by_customer[lines.by_customer < end]
    sold = np.bincount(lines.item[order], minlength=lines.num_items)
    top = np.argsort(-sold, kind="stable")[:num_items]
    column = np.full(lines.num_items, -1)
    column[top] = np.arange(len(top))
    order = order[column[lines.item[order]] >= 0]
    bought = sparse.csr_matrix(
        (np.ones(len(order), np.float32), (lines.customer[order], column[lines.item[order]])),
        shape=(int(lines.customer.max(initial=0)) + 1, len(top)),
    )
    bought.data[:] = 1
    gram = np.asarray((bought.T @ bought).todense(), dtype=np.float32)
    size = np.sqrt(np.diag(gram) + 1)
    cosine = gram / size[:, None] / size[None, :]
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram), dtype=np.float32))
    ease = inverse / -np.diag(inverse)
    np.fill_diagonal(ease, 0)

    def along(similar: Array) -> Callable[[Array], Array]:
        def score(counts: Array) -> Array:
            out: Array = 1e-6 * popular
            out[top] += np.log1p(counts[top]) @ similar
            return out

        return score

    return {
        "popularity": lambda counts: popular,
        "counts": lambda counts: counts,
        "counts_popularity": lambda counts: counts + popular,
        "knn": along(cosine),
        "ease": along(ease),
    }

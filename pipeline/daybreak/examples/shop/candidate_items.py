"""Selects the items that a customer might buy on a day, with features known before that day.

A sample is a customer on a day. Its candidates are the customer's own past items, popular items, and
items that others bought together with the customer's (daybreak/examples/shop/item_tables.py). They are
computed on the fly from lines mapped into memory, vectorised over the batch. A sample uses nothing of its own
day or later, except for the label: what was bought.

Of these, the most promising are kept. An item that the customer has bought before promises by how often and
how lately; any other by its demand, times how much it is bought with the customer's items. The factors were
fitted on July and August 2011 of Online Retail, to hold as many of the bought items as can be.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from daybreak import UNIT, Split
from daybreak.examples.shop.item_tables import POPULARITY, Array, Lines, Neighbours, Popularity
from daybreak.examples.shop.purchase_history import NUM_HISTORY, NUM_OWN, Groups, History

NUM_FEATURES = NUM_OWN + len(POPULARITY) + 3 + 4
NUM_CONTEXT = NUM_HISTORY + 7  # and the day of the week


class CandidateDataset(Dataset[dict[str, Tensor]]):
    """Samples of one split; `__getitems__` makes a batch of b samples with c candidates each.

    items [b, c], customer [b], country [b]   int64, rows of the embedding tables (`key % num_rows`)
    features [b, c, NUM_FEATURES]             float32, about the customer and the candidate
    context [b, NUM_CONTEXT]                  float32, about the customer and the day
    mask, bought [b, c]                       bool: is a candidate; was bought that day
    own [b, c]                                float32, times bought before
    num_bought [b]                            items bought that day, candidates or not
    num_first [b]                             items bought that day and never before by the customer
    known, home, repeated, popular [b]        bool, for slices
    unit [b]                                  int64, number of the customer
    number [b, c]                             int64, of the item; of the split `serve` only

    The split `serve` has every customer, on the day after the newest line.
    """

    def __init__(
        self,
        folder: Path,
        split: Split,
        *,
        num_rows: int,
        num_candidates: int,
        num_popular: int,
        num_tracked: int,
        num_neighbours: int,
        num_neighbour_items: int,
        num_neighbour_customers: int,
        neighbour_days: int,
        max_history: int,
        train_days: int,
    ) -> None:
        self.lines, self.split = Lines(folder), split
        self._day, self._customer = self.lines.samples_day, self.lines.samples_customer
        if split == "serve":
            self._customer = np.arange(len(self.lines.keys["customers"]))
            self._day = np.full(len(self._customer), self.lines.day.max(initial=-1) + 1)
        days = np.asarray(self._day)
        if split == "train":
            wanted = days <= self.lines.last_day
            if train_days:
                wanted &= days > self.lines.last_day - train_days
        else:
            wanted = np.isin(days, self.lines.test_days) | (split == "serve")
        self.samples = np.flatnonzero(wanted)
        self.num_candidates, self.max_history, self.num_rows = num_candidates, max_history, num_rows
        self.popularity = Popularity(
            self.lines, np.unique(days[self.samples]), num_tracked=num_tracked, num_popular=num_popular
        )
        self.neighbours = Neighbours(
            self.lines,
            self.popularity,
            every=neighbour_days,
            num=num_neighbours,
            num_items=num_neighbour_items,
            num_customers=num_neighbour_customers,
        )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        sample = self.samples[np.asarray(indices, dtype=np.int64)]
        day = self._day[sample].astype(np.int64)
        customer = self._customer[sample].astype(np.int64)
        begin, end, after = self._bounds(customer, day)
        history = History(self.lines, day, np.maximum(begin, end - self.max_history), end)
        candidates = _Candidates(self, history, day)
        return candidates.batch(customer, end, after)

    def _bounds(self, customer: Array, day: Array) -> tuple[Array, Array, Array]:
        """Where in `by_customer` each history begins and ends, and where the sample's day ends."""
        start = self.lines.customer_start
        low = np.tile(start[customer], 2)
        high = np.tile(start[customer + 1], 2)
        wanted = np.concatenate([day, day + 1])
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) >> 1
            line = self.lines.by_customer[np.minimum(middle, len(self.lines.by_customer) - 1)]
            right = (self.lines.day[line] < wanted) & (low < high)
            low = np.where(right, middle + 1, low)
            high = np.where(right, high, middle)
        return start[customer], low[: len(day)], low[len(day) :]


class _Candidates:
    """The candidates of a batch, sorted by sample and by how promising they are."""

    def __init__(self, dataset: CandidateDataset, history: History, day: Array) -> None:
        self.dataset, self.history, self.day = dataset, history, day
        self.num_items, popularity = dataset.lines.num_items, dataset.popularity
        self.now = popularity.of(day)
        top = popularity.top[self.now]
        popular = (np.arange(len(day))[:, None] * self.num_items + top).ravel()
        near, near_sum, near_max, seed_weight = self._near(day)
        key = _distinct(np.concatenate([history.key, popular, near]))
        own = np.full(len(key), -1)
        own[np.searchsorted(key, history.key)] = np.arange(len(history.key))
        value = np.zeros((3, len(key)), dtype=np.float32)
        value[:2, np.searchsorted(key, near)] = near_sum, near_max
        share = np.linspace(1, 0.2, top.shape[1], dtype=np.float32)
        value[2, np.searchsorted(key, popular)] = np.tile(share, len(day))

        sample = key // self.num_items
        demand = popularity.demand[self.now[sample], popularity.slot[key % self.num_items]]
        similar = value[0] / seed_weight[sample] + 0.01  # 0.01: of an item that is nobody's neighbour
        promise = similar * demand
        np.maximum(promise, 3 * np.append(history.weight, 0)[own], out=promise)
        order = _descending(sample, promise)
        start = np.searchsorted(sample, np.arange(len(day)))
        place = np.arange(len(key)) - start[sample]
        kept = place < dataset.num_candidates
        order = order[kept]
        self.key, self.own, self.value = key[order], own[order], value[:, order]
        self.sample, self.place = sample[order], place[kept]

    def _near(self, day: Array, num_seeds: int = 32) -> tuple[Array, Array, Array, Array]:
        """Keys of neighbours of the best items, sum and maximum of similarity, and weights of best items."""
        history, popularity = self.history, self.dataset.popularity
        neighbours = self.dataset.neighbours
        slot = popularity.slot[history.key % self.num_items]
        order = _descending(history.sample, history.weight)
        start = np.searchsorted(history.sample, np.arange(len(day)))
        seeds = order[np.arange(len(order)) - start[history.sample] < num_seeds]
        period = neighbours.of(day)[history.sample[seeds]]
        item = popularity.tracked[
            np.minimum(neighbours.item[period, slot[seeds]], len(popularity.tracked) - 1)
        ]
        similar = neighbours.similar[period, slot[seeds]]
        root = np.sqrt(history.weight[seeds])
        seed_weight = np.bincount(history.sample[seeds], weights=root, minlength=len(day)).astype(np.float32)
        seed_weight = np.maximum(seed_weight, np.finfo(np.float32).tiny)
        weight = root[:, None] * similar
        near = Groups((history.sample[seeds][:, None] * self.num_items + item).ravel())
        total, most = near.total(weight.ravel()[near.order]), near.largest(similar.ravel()[near.order])
        return near.key, total, most, seed_weight

    def batch(self, customer: Array, end: Array, after: Array) -> dict[str, Tensor]:
        """Returns a batch as CandidateDataset describes it; `by_customer[end:after]` are the day's lines."""
        return self._of_customers(customer) | self._of_items() | self._bought(end, after)

    def _of_customers(self, customer: Array) -> dict[str, Tensor]:
        keys, rows, history = self.dataset.lines.keys, self.dataset.num_rows, self.history
        weekday = np.eye(7, dtype=np.float32)[self.day % 7]
        return {
            UNIT: torch.from_numpy(customer),
            "customer": torch.from_numpy(np.where(history.known, keys["customers"][customer] % rows, 0)),
            "country": torch.from_numpy(np.append(keys["countries"], 0)[history.country] % rows),
            "known": torch.from_numpy(history.known),
            "context": torch.from_numpy(np.concatenate([history.context, weekday], axis=1)),
        }

    def _of_items(self) -> dict[str, Tensor]:
        dataset, item = self.dataset, self.key % self.num_items
        served = {"number": self._padded(item, np.int64)} if dataset.split == "serve" else {}
        return served | {
            "items": self._padded(dataset.lines.keys["items"][item] % dataset.num_rows, np.int64),
            "features": self._features(item),
            "mask": self._padded(np.ones(len(item), dtype=bool), bool),
            "own": self._padded(np.append(self.history.count, 0)[self.own], np.float32),
        }

    def _features(self, item: Array) -> Tensor:
        dataset, is_own = self.dataset, self.own >= 0
        sold = dataset.popularity.features[self.now[self.sample], dataset.popularity.slot[item]]
        total, most, rank = self.value
        features = np.zeros((len(self.day), dataset.num_candidates, NUM_FEATURES), dtype=np.float32)
        own = self.history.features.T[self.own[is_own]]
        features[self.sample[is_own], self.place[is_own], :NUM_OWN] = own
        others = np.column_stack([sold, np.log1p(total), most * 4, rank, is_own])
        features[self.sample, self.place, NUM_OWN:] = others
        return torch.from_numpy(features)

    def _bought(self, end: Array, after: Array) -> dict[str, Tensor]:
        """Returns the labels of a batch: the items bought on the day, and the kind of each basket."""
        lines = self.dataset.lines
        line, sample = lines.between(end, after)
        target = _distinct(sample * self.num_items + lines.item[line])
        sellers = self.dataset.popularity.top[self.now][:, :100]
        best = np.sort((np.arange(len(self.day))[:, None] * self.num_items + sellers).ravel())

        def num_of(key: Array) -> Array:
            return np.bincount(key // self.num_items, minlength=len(self.day))

        num_bought = num_of(target)
        num_repeated = num_of(target[_within(target, self.history.key)])
        num_popular = num_of(target[_within(target, best)])
        home = np.zeros(len(self.day), dtype=bool)
        some = after > end
        home[some] = lines.country[lines.by_customer[end[some]]] == lines.home
        return {
            "bought": self._padded(_within(self.key, target), bool),
            "num_bought": torch.from_numpy(num_bought),
            "num_first": torch.from_numpy(num_bought - num_repeated),
            "home": torch.from_numpy(home),
            "repeated": torch.from_numpy(2 * num_repeated >= num_bought),
            "popular": torch.from_numpy(2 * num_popular >= num_bought),
        }

    def _padded(self, value: Array, dtype: Any) -> Tensor:
        """Returns a value per candidate as a tensor of shape [b, c]."""
        out = np.zeros((len(self.day), self.dataset.num_candidates), dtype=dtype)
        out[self.sample, self.place] = value
        return torch.from_numpy(out)


def _distinct(key: Array) -> Array:
    """Sorted distinct values; several times faster than np.unique, which hashes integers."""
    key = np.sort(key)
    return key[np.diff(key, prepend=-1) > 0]


def _within(key: Array, among: Array) -> Array:
    """Mask of the keys that are in the sorted `among`."""
    if not len(among):
        return np.zeros(len(key), dtype=bool)
    mask: Array = among[np.minimum(np.searchsorted(among, key), len(among) - 1)] == key
    return mask


def _descending(sample: Array, value: Array) -> Array:
    """Order by sample, within a sample by falling value, none of them negative; ties in their order."""
    bits = value.astype(np.float32).view(np.int32).astype(np.int64)  # rise with the value
    order: Array = np.argsort((sample << 32) - bits, kind="stable")
    return order

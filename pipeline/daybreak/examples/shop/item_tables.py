"""Computes tables of the popularity and neighbours of items before each day, when a dataset is opened.

Memory and time are bounded by arguments, not by the shop: popularity covers the `num_tracked` most sold
items, neighbours the `num_neighbour_items` most sold, from at most `num_neighbour_customers` customers.
Only the choice of tracked items uses the whole split at once, with its last day known.
"""

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[Any]
POPULARITY = (  # which purchases are counted, over how many days back
    *(("all", days) for days in (1, 3, 7, 14, 28, 90)),
    *(("first", days) for days in (3, 7, 14, 28)),  # by a known customer, for the first time
    *(("repeat", days) for days in (7, 28, 90)),  # by a known customer, once more
)


class Lines:
    """The arrays of a folder, mapped into memory, and the facts of meta.json."""

    def __init__(self, folder: Path) -> None:
        def load(name: str) -> Array:
            return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))

        self.day, self.item, self.customer = load("day"), load("item"), load("customer")
        self.invoice, self.country = load("invoice"), load("country")
        self.quantity, self.price = load("quantity"), load("price")
        self.by_customer, self.customer_start = load("by_customer"), load("customer_start")
        self.samples_day, self.samples_customer = load("samples_day"), load("samples_customer")
        meta = json.loads((folder / "meta.json").read_text())
        self.num_items: int = meta["num_items"]
        self.last_day = to_number(meta["last_day"])
        self.test_days = [to_number(day) for day in meta["test_days"]]
        self.keys = {
            name: pq.read_table(folder / f"{name}.parquet", columns=["key"])["key"].to_numpy()
            for name in ("customers", "items", "countries")
        }
        codes = pq.read_table(folder / "countries.parquet", columns=["code"])["code"].to_pylist()
        self.home = codes.index("United Kingdom") if "United Kingdom" in codes else -1

    def between(self, begin: Array, end: Array) -> tuple[Array, Array]:
        """Returns the lines `by_customer[begin[b]:end[b]]` of all samples b, and the sample of each line."""
        num = end - begin
        sample = np.repeat(np.arange(len(num)), num)
        first = np.cumsum(num) - num  # place of a sample's first line in the row
        return self.by_customer[np.arange(len(sample)) + (begin - first)[sample]], sample


def to_number(day: str) -> int:
    """Returns the days since 1970-01-01 of an ISO date."""
    return date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()


class Popularity:
    """How many lines each tracked item sold in the days before each day: a table per window.

    `slot[item]` is the column of a tracked item; all others share the last one, which is zero.
    `features[d, slot]` holds, for day `days[d]`: log(1 + lines sold) over each window, then the log of
    the days since the item was last and first sold, and its share of repeat purchases. `demand[d, slot]` says
    how often the item was new to a customer lately; `top[d]` are the items that customers bought most lately,
    best first: guests count a tenth, as a customer who comes for the first time buys what customers buy.
    """

    def __init__(self, lines: Lines, days: Array, *, num_tracked: int, num_popular: int) -> None:
        start = int(days.min()) if len(days) else 0
        past = int(np.searchsorted(lines.day, days.max() if len(days) else 0))
        sold = np.bincount(lines.item[:past], minlength=lines.num_items)
        num_tracked = min(num_tracked, lines.num_items)
        self.tracked = np.sort(np.argpartition(-sold, num_tracked - 1)[:num_tracked])
        self.slot = np.full(lines.num_items, num_tracked, dtype=np.int32)
        self.slot[self.tracked] = np.arange(num_tracked, dtype=np.int32)
        self.days, self.start = days, start
        width = num_tracked + 1
        self.features = np.zeros((len(days), width, len(POPULARITY) + 3), dtype=np.float16)
        self.demand = np.zeros((len(days), width), dtype=np.float32)
        self.top = np.zeros((len(days), min(num_popular, num_tracked)), dtype=np.int64)
        slots, day, again = self.slot[lines.item[:past]], lines.day[:past], repeats(lines, past)
        known = lines.customer[:past] >= 0
        weights = {"all": np.ones(past, np.float32), "first": (known & (again == 0)) * 1.0, "repeat": again}
        counts = {window: np.zeros(width) for window in POPULARITY}
        position = dict.fromkeys(POPULARITY, 0)
        first, last = np.full(width, 1 << 30), np.full(width, -(1 << 30))
        total, repeated, seen = np.zeros(width), np.zeros(width), 0
        for d, now in enumerate(days.tolist()):
            end = int(np.searchsorted(day, now))
            new = slots[seen:end]
            np.minimum.at(first, new, day[seen:end])
            last[new] = day[seen:end]
            total += np.bincount(new, minlength=width)
            repeated += np.bincount(new, weights=again[seen:end], minlength=width)
            for f, window in enumerate(POPULARITY):
                count, old = counts[window], int(np.searchsorted(day, now - window[1]))
                weight, gone = weights[window[0]], slice(position[window], old)
                count += np.bincount(new, weights=weight[seen:end], minlength=width)
                count -= np.bincount(slots[gone], weights=weight[gone], minlength=width)
                position[window] = old
                self.features[d, :, f] = np.log1p(np.maximum(count, 0))
            seen = end
            self.features[d, :, -3] = np.log1p(np.clip(now - last, 0, 400))
            self.features[d, :, -2] = np.log1p(np.clip(now - first, 0, 400))
            self.features[d, :, -1] = 4 * (repeated + 1) / (total + 10)
            self.features[d, -1] = 0
            two_weeks, four_weeks = (np.maximum(counts["first", back], 0) for back in (14, 28))
            self.demand[d] = ((1 + two_weeks) * (1 + four_weeks)) ** 0.35
            self.demand[d, -1] = 1
            trend = counts["first", 7] + counts["first", 28] + counts["repeat", 28] + counts["all", 28] / 10
            trend[-1] = -1
            best = np.argpartition(-trend, self.top.shape[1] - 1)[: self.top.shape[1]]
            self.top[d] = self.tracked[best[np.argsort(-trend[best], kind="stable")]]

    def of(self, day: Array) -> Array:
        """Returns the rows of the tables for `day`, each of which must be one of `days`."""
        return np.searchsorted(self.days, day)


def repeats(lines: Lines, num_lines: int) -> Array:
    """Returns whether the customer of each line had bought the item before; float32, [num_lines]."""
    again = np.zeros(num_lines, dtype=np.float32)
    order = lines.by_customer[lines.by_customer < num_lines]
    key = lines.customer[order].astype(np.int64) * lines.num_items + lines.item[order]
    _, first = np.unique(key, return_index=True)
    again[order] = 1
    again[order[first]] = 0
    return again


class Neighbours:
    """Items bought by the same customers: cosine of co-purchase, `similar[period, slot, n]`.

    Computed again every `every` days from earlier lines, so that a sample sees nothing of its future:
    among the `num_items` most sold items, from at most `num_customers` customers.
    """

    def __init__(
        self,
        lines: Lines,
        popularity: Popularity,
        *,
        every: int,
        num: int,
        num_items: int,
        num_customers: int,
    ) -> None:
        self.first, self.every = int(lines.day[0]) if len(lines.day) else 0, every
        self.periods = np.unique((popularity.days - self.first) // every)
        shape = (len(self.periods), len(popularity.tracked) + 1, num)
        self.item = np.zeros(shape, dtype=np.int32)
        self.similar = np.zeros(shape, dtype=np.float32)
        order = lines.by_customer
        order = order[_chosen(lines.customer[order], num_customers)]
        for p, period in enumerate(self.periods.tolist()):
            known = order[lines.day[order] < self.first + period * every]
            slot, customer = popularity.slot[lines.item[known]], lines.customer[known]
            sold = np.bincount(slot, minlength=shape[1])[:-1]
            best = np.sort(np.argsort(-sold, kind="stable")[:num_items])
            column = np.full(shape[1], -1)
            column[best] = np.arange(len(best))
            kept = column[slot] >= 0
            if kept.any():
                self._fill(p, best, column[slot[kept]], customer[kept])

    def of(self, day: Array) -> Array:
        """Returns the rows of the tables for `day`, each of which must be among the days of `popularity`."""
        return np.searchsorted(self.periods, (day - self.first) // self.every)

    def _fill(self, p: int, slots: Array, column: Array, customer: Array) -> None:
        bought = sparse.csr_matrix((np.ones(len(column), np.float32), (column, customer)))
        bought.data[:] = 1
        norm = np.sqrt(bought.getnnz(axis=1).astype(np.float32) + 5)  # shrinks the cosine of rare items
        scaled = (sparse.diags(1 / norm) @ bought).tocsr()
        num_best = min(self.item.shape[2], scaled.shape[0])
        for begin in range(0, scaled.shape[0], 512):
            block = (scaled[begin : begin + 512] @ scaled.T).toarray()
            rows = np.arange(len(block))
            block[rows, begin + rows] = 0
            best = np.argpartition(-block, num_best - 1, axis=1)[:, :num_best]
            into = slots[begin : begin + len(block)]
            self.item[p, into, :num_best] = slots[best]
            self.similar[p, into, :num_best] = block[rows[:, None], best]


def _chosen(customer: Array, num_customers: int) -> Array:
    """Mask of about `num_customers` customers (all of them if there are fewer), spread by a hash."""
    num = int(customer.max(initial=0)) + 1
    if num <= num_customers:
        return np.ones(len(customer), dtype=bool)
    scattered = customer.astype(np.int64) * 2654435761 % (1 << 32)
    chosen: Array = scattered < (num_customers << 32) // num
    return chosen

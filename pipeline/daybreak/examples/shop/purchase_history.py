"""Summarizes what customers bought before a day: one entry per sample and item, with counts and recency."""

import numpy as np

from daybreak.examples.shop.item_tables import Array, Lines

WINDOWS = (1, 3, 7, 14, 28, 90)  # days that own counts look back; then the whole history
DECAYS = (10.0, 40.0, 150.0)  # days in which the weight of a purchase falls to 1/e
NUM_OWN = len(WINDOWS) + 1 + len(DECAYS) + 11
NUM_HISTORY = 8  # features of a whole history


class History:
    """What the customers of a batch bought before: one entry per sample and item, sorted by both.

    key, sample [e]                  of an entry: sample * num_items + item
    count, weight [e]                how often it was bought; the same, lately more
    features [NUM_OWN, e]            about the customer and the item
    context [b, NUM_HISTORY]         about the customer
    known, country [b]               has bought before; where, -1 for the others
    """

    def __init__(self, lines: Lines, day: Array, begin: Array, end: Array) -> None:
        past = _Purchases(lines, day, begin, end)
        entries = Groups(past.sample * lines.num_items + lines.item[past.line])
        self.key = entries.key
        self.sample = self.key // lines.num_items
        self.count = (entries.last - entries.first + 1).astype(np.float32)
        age = past.age[entries.order]
        decayed = [entries.total(np.exp(age * np.float32(-1 / decay))) for decay in DECAYS]
        self.weight = decayed[1] + 0.05 * self.count
        self.features = self._features(lines, past, entries, decayed)
        self.context = _context(past, np.bincount(self.sample, minlength=len(day)))
        self.known = past.known
        self.country = np.full(len(day), -1, dtype=np.int64)
        self.country[self.known] = lines.country[past.line[past.last[self.known]]]

    def _features(self, lines: Lines, past: "_Purchases", entries: "Groups", decayed: list[Array]) -> Array:
        order, last = entries.order, entries.last
        age, visits_ago = past.age[order], past.visits_ago[order]
        bought, paid = lines.quantity[past.line][order], lines.price[past.line][order]
        newest, oldest, latest = age[last], age[entries.first], visits_ago[last]
        gap = (oldest - newest) / np.maximum(self.count - 1, 1)
        amounts = [  # taken by their logarithm
            *(entries.total((age <= window).astype(np.float32)) for window in WINDOWS),
            self.count,
            *decayed,
            newest,
            oldest,
            latest,
            gap * (self.count > 1),
        ]
        others = [
            self.count / past.num_visits[self.sample],
            latest == 0,
            entries.total(np.exp(visits_ago.astype(np.float32) / -2)),
            entries.total(np.exp(visits_ago.astype(np.float32) / -6)),
            np.minimum(newest / (gap + 7), 4) * (self.count > 1),
            np.log1p(entries.total(bought)) / 4,
            np.log1p(bought[last] * paid[last]) / 4,
        ]
        features = np.empty((NUM_OWN, len(self.key)), dtype=np.float32)
        for row, amount in enumerate(amounts):
            np.log1p(amount, out=features[row])
        for row, other in enumerate(others, start=len(amounts)):
            features[row] = other
        return features


class _Purchases:
    """The earlier purchases of a batch in a row: by sample, of a sample from old to new."""

    def __init__(self, lines: Lines, day: Array, begin: Array, end: Array) -> None:
        self.num = end - begin  # of each sample
        self.known = self.num > 0
        self.last = np.cumsum(self.num) - 1  # places in the row
        self.first = self.last - self.num + 1
        self.line, self.sample = lines.between(begin, end)
        sold = lines.day[self.line]
        self.age = (day[self.sample] - sold).astype(np.float32)  # in days

        is_new = np.ones(len(sold), dtype=np.int64)  # visit: another day
        is_new[1:] = (np.diff(self.sample) != 0) | (np.diff(sold) != 0)
        visit = np.cumsum(is_new)
        self.visits_ago = visit[self.last[self.sample]] - visit
        self.num_visits = np.zeros(len(day), dtype=np.int64)
        self.num_visits[self.known] = self.visits_ago[self.first[self.known]] + 1


def _context(past: _Purchases, num_items: Array) -> Array:
    """Returns the features of whole histories, of `num_items` different items each."""
    newest, oldest = np.zeros((2, len(past.num)), dtype=np.float32)
    newest[past.known] = past.age[past.last[past.known]]
    oldest[past.known] = past.age[past.first[past.known]]
    return np.stack(
        [
            past.known,
            np.log1p(past.num_visits),
            np.log1p(num_items),
            np.log1p(past.num),
            np.log1p(newest),
            np.log1p(oldest),
            past.num / np.maximum(past.num_visits, 1) / 20,
            num_items / np.maximum(past.num, 1),
        ],
        axis=1,
    ).astype(np.float32)


class Groups:
    """Entries of the same key, which follow each other in `order`; the keys rise."""

    def __init__(self, key: Array) -> None:
        bits = max(len(key), 1).bit_length()
        packed = np.sort((key << bits) | np.arange(len(key)))  # much faster than argsort
        self.order, ordered = packed & ((1 << bits) - 1), packed >> bits
        self.first = np.flatnonzero(np.diff(ordered, prepend=-1))  # places in `order`
        self.last = np.append(self.first, len(key))[1:] - 1
        self.key = ordered[self.first]

    def total(self, value: Array) -> Array:
        """Returns the sum of each group, of values in `order`."""
        return np.add.reduceat(value, self.first)

    def largest(self, value: Array) -> Array:
        """Returns the maximum of each group, of values in `order`."""
        return np.maximum.reduceat(value, self.first)

"""Summarizes what customers bought before a day: one entry per sample and item, with counts and recency."""

import numpy as np

from daybreak.examples.shop.item_tables import Array, Lines

WINDOWS = (1, 3, 7, 14, 28, 90)  # days that own counts look back; then the whole history
DECAYS = (10.0, 40.0, 150.0)  # days in which the weight of a purchase falls to 1/e
NUM_OWN = len(WINDOWS) + 1 + len(DECAYS) + 11
NUM_HISTORY = 8  # features of a whole history


class History:
    """What the customers of a batch bought before: one entry per sample and item, sorted by both."""

    def __init__(self, lines: Lines, day: Array, begin: Array, end: Array) -> None:
        self.lines, num = lines, len(day)
        length = end - begin
        sample = np.repeat(np.arange(num), length)
        position = np.arange(len(sample)) + np.repeat(begin - (np.cumsum(length) - length), length)
        line = lines.by_customer[position]
        item, sold = lines.item[line].astype(np.int64), lines.day[line]
        age = (day[sample] - sold).astype(np.float32)
        new_visit = np.ones(len(sample), dtype=np.int64)
        new_visit[1:] = (sample[1:] != sample[:-1]) | (sold[1:] != sold[:-1])
        visit = np.cumsum(new_visit)
        last = np.cumsum(length) - 1
        some = length > 0
        visits = np.zeros(num, dtype=np.int64)
        visits[some] = visit[last[some]] - visit[(last - length + 1)[some]] + 1

        # One sort of (sample, item, position) in a single integer; a group is a sample and an item.
        bits = max(len(sample), 1).bit_length()
        code = ((sample * lines.num_items + item) << bits) | np.arange(len(sample))
        code.sort()
        order, key = code & ((1 << bits) - 1), code >> bits
        first = np.flatnonzero(np.diff(key, prepend=-1))
        final = np.append(first, len(key))[1:] - 1
        self.key = key[first]
        self.sample = self.key // lines.num_items
        self.count = (final - first + 1).astype(np.float32)
        by_age = age[order]

        def total(value: Array) -> Array:
            return np.add.reduceat(value, first) if len(first) else value

        newest, oldest = by_age[final], by_age[first]
        last_visit = np.zeros(num, dtype=np.float32)
        last_visit[some] = age[last[some]]
        latest = visit[last[self.sample]] - visit[order[final]]  # visits since the item was bought
        ago = (visit[last[sample]] - visit).astype(np.float32)[order]
        share = self.count / visits[self.sample]
        gap = (oldest - newest) / np.maximum(self.count - 1, 1)
        decayed = [total(np.exp(by_age * np.float32(-1 / decay))) for decay in DECAYS]
        self.weight = decayed[1] + 0.05 * self.count
        bought = lines.quantity[line][order]
        paid = lines.price[line][order]
        columns = [total((by_age <= window).astype(np.float32)) for window in WINDOWS]
        self.features = np.empty((NUM_OWN, len(first)), dtype=np.float32)
        logs = [*columns, self.count, *decayed, newest, oldest, latest, gap * (self.count > 1)]
        for row, value in enumerate(logs):
            np.log1p(value, out=self.features[row])
        for row, value in enumerate(
            (
                share,
                latest == 0,
                total(np.exp(ago / -2)),
                total(np.exp(ago / -6)),
                np.minimum(newest / (gap + 7), 4) * (self.count > 1),
                np.log1p(total(bought)) / 4,
                np.log1p(bought[final] * paid[final]) / 4,
            ),
            start=len(logs),
        ):
            self.features[row] = value

        groups = np.bincount(self.sample, minlength=num)
        self.context = np.stack(
            [
                some,
                np.log1p(visits),
                np.log1p(groups),
                np.log1p(length),
                np.log1p(last_visit),
                np.log1p(np.where(some, age[np.minimum(last - length + 1, max(len(age) - 1, 0))], 0))
                if len(age)
                else np.zeros(num),
                length / np.maximum(visits, 1) / 20,
                groups / np.maximum(length, 1),
            ],
            axis=1,
        ).astype(np.float32)
        self.known = some
        self.country = np.full(num, -1, dtype=np.int64)
        self.country[some] = lines.country[line[last[some]]]

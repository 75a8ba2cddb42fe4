"""Predicts each label of a day from its features and neighbouring labels, and tells how far off it is.

Labels that were dealt out anew, moved by a row or joined to other rows may keep their mean, and follow
features in outline; they do not go on from row to row as before. So the label of each row is predicted from
its features and from the labels of the rows before and after it, also of those with the same value of a
category: by a ridge regression with squares and products of numbers, and by gradient-boosted trees of what
that leaves over. Both learn from the days before the week of the day, in `BLOCKS` models that each leave out
a block of days. The days left out give the errors that are usual; where the models differ from one another, a
row is unlike those learned from, and larger errors are usual. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]  # hashes of values, 0 for a null
    Numbers = NDArray[np.float64]

LEARNED_DAYS = 42
BLOCKS = 3
MOST_LEARNED = 1 << 12  # rows
LEAST_LABELS = 100
MOST_FEATURES = 30
MOST_GROUPS = 3  # categories within which labels are beside one another
MOST_PRODUCTS = 12  # numbers that are multiplied with one another
MOST_VALUES, LEAST_VALUES = 32, 4  # of a category
MOST_INDICATORS = 240  # of values of all categories, as a ridge regression takes long with more
AROUND = 8  # rows on each side of one, of whose labels the mean is known
USUAL = 0.95  # share of the errors of labels that are usual
TINY = 1e-9


class Rows(NamedTuple):
    """The rows of several days, by day and time.

    Attributes:
        label: shape [rows], NaN where it is not known.
        numbers: features, shape [rows, numbers].
        keys: categories, shape [rows, categories].
        beside: labels of other rows of the day, shape [rows, places].
    """

    label: "Numbers"
    numbers: "Numbers"
    keys: "Keys"
    beside: "Numbers"

    def of(self, places: Any) -> "Rows":
        """Returns the rows at these places."""
        return Rows(*(column[places] for column in self))


def rows_of(
    label: "Numbers",
    numbers: "Mapping[str, Numbers]",
    keys: "Mapping[str, Keys]",
    groups: Sequence[str],
    at: "NDArray[np.int64]",
) -> Rows:
    """Returns rows with the labels beside each.

    Args:
        label: by day and time, shape [rows].
        numbers: features.
        keys: categories.
        groups: names of the categories within which rows are beside one another, too.
        at: number of the day of each row, rising.
    """
    every = [np.zeros(len(label), dtype=np.uint64), *(keys[name] for name in groups[:MOST_GROUPS])]
    beside = [_moved(label, at, group, by) for group in every for by in (-1, 1)]
    beside += [_moved(label, at, every[0], by) for by in (-2, 2)]
    shape = (len(label), -1)
    return Rows(
        label,
        np.stack([*numbers.values()][:MOST_FEATURES], axis=1),
        np.array([*keys.values()][:MOST_FEATURES], dtype=np.uint64).T.reshape(
            shape if keys else (len(label), 0)
        ),
        np.stack([*beside, _around(label, at)], axis=1),
    )


def _moved(label: "Numbers", at: "NDArray[np.int64]", group: "Keys", by: int) -> "Numbers":
    """Returns the label so many rows on in the group on the same day, NaN where there is none."""
    order = np.lexsort((group, at))
    moved = np.full(len(label), np.nan)
    far = abs(by)
    first, second = order[:-far], order[far:]
    same = (at[first] == at[second]) & (group[first] == group[second])
    one, other = (first, second) if by > 0 else (second, first)
    moved[one[same]] = label[other[same]]
    return moved


def _around(label: "Numbers", at: "NDArray[np.int64]") -> "Numbers":
    """Returns the mean of the labels up to `AROUND` rows before and after each on its day."""
    known = np.isfinite(label)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, label, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    places = np.arange(len(label))
    first = np.maximum(places - AROUND, np.searchsorted(at, at, side="left"))
    last = np.minimum(places + AROUND + 1, np.searchsorted(at, at, side="right"))
    total = sums[last] - sums[first] - np.where(known, label, 0.0)
    number = counts[last] - counts[first] - known
    means = np.divide(total, number, out=np.full(len(label), np.nan), where=number > 0)
    return np.asarray(means, dtype=np.float64)


class LabelModel:
    """What is expected of labels, learned from the rows of earlier days, and how far off that usually is."""

    def __init__(self, rows: Rows, at: "NDArray[np.int64]") -> None:
        """Learns from these rows of which each label is known; `at` is the number of the day of each."""
        self._scale = _Scale(rows.label)
        self._design = _Design(rows, self._scale)
        target = self._scale(rows.label)
        linear, trees = self._design.linear(rows), self._design.of_trees(rows)
        ordinal = np.unique(at, return_inverse=True)[1]
        block = ordinal * BLOCKS // (int(ordinal.max()) + 1)
        self._models, errors = [], []
        for number in range(BLOCKS):
            left_out = block == number
            model = _fitted(linear[~left_out], trees[~left_out], target[~left_out], self._design.categories)
            self._models.append(model)
            errors.append(target[left_out] - _predicted(model, linear[left_out], trees[left_out]))
        sizes = np.abs(np.concatenate(errors))
        self._mean = max(float(sizes.mean()), TINY)
        self.limit = float(np.quantile(sizes, USUAL)) / self._mean

    def errors(self, rows: Rows) -> "Numbers":
        """Returns how far each label is from what is expected, in mean sizes of usual errors.

        A share of `USUAL` of these are within `limit`.
        """
        linear, trees = self._design.linear(rows), self._design.of_trees(rows)
        predicted = np.stack([_predicted(model, linear, trees) for model in self._models])
        variance = (BLOCKS - 1) * predicted.var(axis=0)  # of the jackknife
        beside = self._scale(rows.label) - predicted.mean(axis=0)
        return np.asarray(beside / np.hypot(self._mean, np.sqrt(variance)), dtype=np.float64)


def learned(rows: Rows, at: "NDArray[np.int64]") -> LabelModel | None:
    """Returns the model of the labels of these days; None where too few are known."""
    known = np.flatnonzero(np.isfinite(rows.label))
    known = known[:: max(1, -(-len(known) // MOST_LEARNED))]
    if len(known) < LEAST_LABELS or len(np.unique(at[known])) < BLOCKS:
        return None
    return LabelModel(rows.of(known), at[known])


def _fitted(linear: "Numbers", trees: "Numbers", target: "Numbers", categories: "NDArray[np.bool_]") -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from threadpoolctl import threadpool_limits

    ridge = RidgeCV(alphas=(0.1, 1.0, 10.0, 100.0)).fit(linear, target)
    boosted = HistGradientBoostingRegressor(
        max_iter=40, max_leaf_nodes=15, early_stopping=False, random_state=0, categorical_features=categories
    )
    empty = ~(np.isfinite(trees).any(axis=0) | categories)
    trees = np.where(empty, 0.0, trees)  # scikit-learn does not bin a number without a value
    with threadpool_limits(1):  # threads that wait for one another cost more than so few rows
        return ridge, boosted.fit(trees, target - ridge.predict(linear))


def _predicted(model: Any, linear: "Numbers", trees: "Numbers") -> "Numbers":
    ridge, boosted = model
    return np.asarray(ridge.predict(linear) + boosted.predict(trees), dtype=np.float64)


class _Scale:
    """Puts labels on a scale without a long tail (Yeo and Johnson 2000); a rate stays as it is."""

    def __init__(self, labels: "Numbers") -> None:
        from scipy.stats import yeojohnson_normmax

        self._is_rate = bool(np.isin(labels, (0, 1)).all())
        low, high = np.quantile(labels, (0.001, 0.999))
        self._low, self._high = 2 * low - high, 2 * high - low  # so that no outlier leads
        self._middle = float(np.median(labels))
        self._spread = float(np.quantile(np.abs(labels - self._middle), 0.75)) or 1.0
        self._power = 1.0
        if low < high and not self._is_rate:
            plain = (np.clip(labels, self._low, self._high) - self._middle) / self._spread
            self._power = float(np.clip(yeojohnson_normmax(plain), 0, 2))

    def __call__(self, labels: "Numbers") -> "Numbers":
        """Returns labels on the scale."""
        from scipy.stats import yeojohnson

        if self._is_rate:
            return np.clip(labels, -1.0, 2.0)
        plain = (np.clip(labels, self._low, self._high) - self._middle) / self._spread
        return np.asarray(yeojohnson(plain, self._power), dtype=np.float64)


class _Design:
    """The columns that models read."""

    def __init__(self, rows: Rows, scale: _Scale) -> None:
        self._scale = scale
        numbers = np.where(np.isfinite(rows.numbers), rows.numbers, np.nan)
        known = np.isfinite(numbers).any(axis=0)
        self._known = np.flatnonzero(known)
        numbers = numbers[:, self._known]
        self._middle = np.nanmedian(numbers, axis=0)
        low, high = np.nanquantile(numbers, (0.1, 0.9), axis=0)
        spread = np.where(high > low, high - low, np.nanstd(numbers, axis=0))
        self._spread = np.where(spread > 0, spread, 1.0)
        most = MOST_INDICATORS // max(1, rows.keys.shape[1])
        most = max(LEAST_VALUES, min(MOST_VALUES, most))
        self._values = [_frequent(column, most) for column in rows.keys.T]
        num = len(self._known)
        self.categories = np.zeros(num + len(self._values) + rows.beside.shape[1], dtype=np.bool_)
        self.categories[num : num + len(self._values)] = True

    def _codes(self, rows: Rows) -> "Numbers":
        """Returns the place of each value among the frequent ones, NaN for any other."""
        codes = np.full(rows.keys.shape, np.nan)
        for place, values in enumerate(self._values):
            column = rows.keys[:, place]
            if len(values):
                at = np.minimum(np.searchsorted(values, column), len(values) - 1)
                codes[:, place] = np.where(values[at] == column, at, np.nan)
        return codes

    def of_trees(self, rows: Rows) -> "Numbers":
        """Returns numbers, codes of categories and labels beside each row, shape [rows, columns]."""
        numbers = np.where(np.isfinite(rows.numbers), rows.numbers, np.nan)[:, self._known]
        return np.concatenate([numbers, self._codes(rows), self._scale(rows.beside)], axis=1)

    def linear(self, rows: Rows) -> "Numbers":
        """Returns numbers and their products, indicators of categories and labels beside each row."""
        plain = np.clip((rows.numbers[:, self._known] - self._middle) / self._spread, -3, 3)
        plain = np.where(np.isfinite(plain), plain, 0.0)
        columns = [plain]
        if plain.shape[1] <= MOST_PRODUCTS:
            one, other = np.triu_indices(plain.shape[1])
            columns.append(plain[:, one] * plain[:, other])
        columns += [
            (codes[:, None] == np.arange(len(values))).astype(np.float64)
            for codes, values in zip(self._codes(rows).T, self._values, strict=True)
        ]
        beside = self._scale(rows.beside)
        known = np.isfinite(beside)
        sums = np.where(known, beside, 0.0).sum(axis=1, keepdims=True)
        usual = sums / np.maximum(1, known.sum(axis=1, keepdims=True))
        return np.concatenate([*columns, np.where(known, beside, usual)], axis=1)


def _frequent(keys: "Keys", most: int) -> "Keys":
    """Returns at most so many of the most frequent values of a category, sorted."""
    values, counts = np.unique(keys[keys != 0], return_counts=True)
    return np.sort(values[np.argsort(-counts, kind="stable")[:most]])

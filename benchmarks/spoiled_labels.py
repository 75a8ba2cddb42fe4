"""Lists what can go wrong with the labels of a day, and with joins, in tables whose rows have a label.

The list was fixed in a commit before anything was measured on it. A fault takes a day and returns its rows as
they would have come with the fault, in the columns and types of the table. Each is defined for labels of 0 or
1 and for numbers, so that the same faults are planted on every set. They are drawn with the day's own
generator, so that they can be repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Rows = pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a table that faults are planted in."""

    label: str
    number: str  # that tells most of the label
    other: str  # another number
    category: str


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A day's rows by time, those of the day before and of a week before, and the columns of the table."""

    rows: Rows
    yesterday: Rows
    last_week: Rows
    columns: Columns
    draw: np.random.Generator

    @property
    def label(self) -> NDArray[np.float64]:
        """Returns the labels."""
        return self.rows[self.columns.label].to_numpy(dtype=np.float64)

    @property
    def is_rate(self) -> bool:
        """Returns whether labels are 0 or 1."""
        return bool(np.isin(self.label, (0, 1)).all())

    @property
    def opposite(self) -> NDArray[np.float64]:
        """Returns each label as it is not: 0 for 1, a number as far on the other side of the median."""
        return 1 - self.label if self.is_rate else 2 * np.median(self.label) - self.label

    @property
    def high(self) -> float:
        """Returns the largest label."""
        return float(self.label.max())

    @property
    def hours(self) -> NDArray[np.int64]:
        """Returns the hour of each row."""
        return self.rows["time"].dt.hour.to_numpy(dtype=np.int64)

    @property
    def quarters(self) -> NDArray[np.int64]:
        """Returns the quarter of the day of each row."""
        return self.hours // 6

    @property
    def largest(self) -> NDArray[np.bool_]:
        """Returns which rows are of the most frequent category."""
        values = self.rows[self.columns.category]
        return np.asarray(values == values.mode().iloc[0])

    def some(self, share: float) -> NDArray[np.bool_]:
        """Returns a share of the rows, drawn at random."""
        return self.draw.random(len(self.rows)) < share

    def with_labels(self, values: NDArray[np.float64], where: NDArray[np.bool_] | None = None) -> Rows:
        """Returns the rows with these labels, all of them or those at some places."""
        return self.with_column(self.columns.label, values, where)

    def with_column(
        self,
        name: str,
        values: "NDArray[np.float64] | pd.Series[float]",
        where: NDArray[np.bool_] | None = None,
    ) -> Rows:
        """Returns the rows with these values in a column, of the type that it has."""
        old, new = self.rows[name].to_numpy(), np.asarray(values)
        merged = new if where is None else np.where(where, new, old)
        if pd.api.types.is_integer_dtype(self.rows[name]):
            merged = np.round(merged.astype(np.float64)).astype(np.int64)
        return self.rows.assign(**{name: merged})


Fault = Callable[[Delivery], Rows]


def _resized(values: NDArray[np.float64], num: int) -> NDArray[np.float64]:
    """Returns these values again from the beginning, as often as they are needed."""
    return np.resize(values, num)


def _of_other_day(day: Delivery, other: Rows, name: str) -> NDArray[np.float64]:
    return _resized(other[name].to_numpy(dtype=np.float64), len(day.rows))


def _within(
    groups: NDArray[np.int64], values: NDArray[np.float64], draw: np.random.Generator
) -> NDArray[np.float64]:
    """Returns values that are dealt out anew within each group."""
    dealt = values.copy()
    for group in np.unique(groups):
        there = np.flatnonzero(groups == group)
        dealt[there] = values[draw.permutation(there)]
    return dealt


def _another_unit(day: Delivery) -> Rows:
    """A number is in another unit; of a rate only half of the positives are, those of the largest numbers."""
    if not day.is_rate:
        return day.with_labels((day.label - 32) / 1.8)
    numbers = day.rows[day.columns.number].to_numpy(dtype=np.float64)
    positive = day.label == 1
    least = np.median(numbers[positive]) if positive.any() else np.inf
    return day.with_labels(np.where(positive & (numbers < least), 0.0, day.label))


def _wrong(share: float) -> Fault:
    """A share of the labels is another row's, or of a rate the opposite."""

    def fault(day: Delivery) -> Rows:
        wrong = day.opposite if day.is_rate else day.draw.permutation(day.label)
        return day.with_labels(wrong, day.some(share))

    return fault


def _as_usual(day: Delivery) -> Rows:
    """Labels are what a model said, which knows hour and category of yesterday's rows alone."""
    label, category = day.columns.label, day.columns.category

    def keys(rows: Rows) -> "list[pd.Series[int]]":
        return [rows["time"].dt.hour.rename("hour"), rows[category]]

    usual = day.yesterday.groupby(keys(day.yesterday))[label].mean().rename("usual")
    known = day.rows.assign(hour=keys(day.rows)[0]).merge(usual, on=["hour", category], how="left")["usual"]
    said = known.fillna(day.yesterday[label].mean()).to_numpy(dtype=np.float64)
    return day.with_labels((said > 0.5).astype(np.float64) if day.is_rate else said)


def _another_column(day: Delivery) -> Rows:
    """The label is another number of the row, of a rate whether that is in the upper quarter."""
    values = day.rows[day.columns.other].to_numpy(dtype=np.float64)
    return day.with_labels((values > np.quantile(values, 0.75)).astype(np.float64) if day.is_rate else values)


def _more(day: Delivery) -> Rows:
    """Numbers are a fifth larger; a tenth of the negatives of a rate are positive."""
    if not day.is_rate:
        return day.with_labels(day.label * 1.2)
    return day.with_labels(np.ones(len(day.rows)), (day.label == 0) & day.some(0.1))


def _survivors(day: Delivery) -> Rows:
    """Eight in ten rows of a large label are lost."""
    large = day.label > (0 if day.is_rate else np.median(day.label))
    return day.rows[~(large & day.some(0.8))]


def _carried_forward(day: Delivery) -> Rows:
    """Three in four labels are those of the row that came before."""
    places = np.arange(len(day.rows))
    return day.with_labels(day.label[places - places % 4])


def _later(day: Delivery) -> Rows:
    """The label is that of the category's row before."""
    label, category = day.columns.label, day.columns.category
    before = day.rows.groupby(category)[label].shift(1)
    return day.with_labels(before.fillna(day.rows[label]).to_numpy(dtype=np.float64))


def _averaged(day: Delivery) -> Rows:
    """Labels are the mean of a quarter of the day, of a rate whether that is above a quarter."""
    mean = day.rows.groupby(day.quarters)[day.columns.label].transform("mean").to_numpy(dtype=np.float64)
    return day.with_labels((mean > 0.25).astype(np.float64) if day.is_rate else mean)


LABELS: dict[str, Fault] = {
    "labels of yesterday": lambda day: day.with_labels(_of_other_day(day, day.yesterday, day.columns.label)),
    "labels of last week": lambda day: day.with_labels(_of_other_day(day, day.last_week, day.columns.label)),
    "labels dealt out anew within a quarter of the day": lambda day: day.with_labels(
        _within(day.quarters, day.label, day.draw)
    ),
    "labels of one category dealt out anew": lambda day: day.with_labels(
        np.where(day.largest, _within(day.largest.astype(np.int64), day.label, day.draw), day.label)
    ),
    "labels from noon on are 0": lambda day: day.with_labels(np.zeros(len(day.rows)), day.hours >= 12),
    "labels from noon on are the opposite": lambda day: day.with_labels(day.opposite, day.hours >= 12),
    "labels by another definition": _another_unit,
    "a tenth of the labels wrong": _wrong(0.1),
    "three in ten labels wrong": _wrong(0.3),
    "labels carried forward": _carried_forward,
    "labels a row late in their category": _later,
    "rows of large labels lost": _survivors,
    "labels as a model said": _as_usual,
    "another column as the label": _another_column,
    "labels of one category are 0": lambda day: day.with_labels(np.zeros(len(day.rows)), day.largest),
    "labels of one category are the largest": lambda day: day.with_labels(
        np.full(len(day.rows), day.high), day.largest
    ),
    "labels larger": _more,
    "labels sorted": lambda day: day.with_labels(np.sort(day.label)),
    "labels in the opposite order": lambda day: day.with_labels(day.label[::-1]),
    "labels of a quarter of the day": _averaged,
}


def _category_renamed(day: Delivery) -> Rows:
    """A mapping of codes is off by one: each category has the rows of another."""
    values = np.sort(day.rows[day.columns.category].unique())
    others = dict(zip(values, np.roll(values, 1), strict=True))
    return day.rows.assign(**{day.columns.category: day.rows[day.columns.category].map(others)})


def _half_of_categories(day: Delivery) -> Rows:
    """An inner join finds half of the categories, every other one."""
    values = np.sort(day.rows[day.columns.category].unique())
    return day.rows[day.rows[day.columns.category].isin(values[::2])]


def _swapped(day: Delivery) -> Rows:
    """Two numbers stand in each other's column."""
    number, other = day.columns.number, day.columns.other
    swapped = day.with_column(number, day.rows[other].to_numpy(dtype=np.float64))
    return swapped.assign(
        **{other: day.with_column(other, day.rows[number].to_numpy(dtype=np.float64))[other]}
    )


def _number(
    values: "Callable[[Delivery, NDArray[np.float64]], NDArray[np.float64]]", *, share: float = 1.0
) -> Fault:
    """The number that tells most comes from elsewhere, in a share of the rows."""

    def fault(day: Delivery) -> Rows:
        own = day.rows[day.columns.number].to_numpy(dtype=np.float64)
        where = day.some(share) if share < 1 else None
        return day.with_column(day.columns.number, values(day, own), where)

    return fault


JOINS: dict[str, Fault] = {
    "a number of yesterday": _number(lambda day, _: _of_other_day(day, day.yesterday, day.columns.number)),
    "a quarter of the rows three times": lambda day: pd.concat(
        [day.rows, *[day.rows[day.some(0.25)]] * 2], ignore_index=True
    ),
    "a number of half of the rows is 0": _number(lambda day, own: np.zeros(len(own)), share=0.5),
    "categories by the codes of others": _category_renamed,
    "a number of the row before": _number(lambda day, own: np.roll(own, 1)),
    "half of the categories lost": _half_of_categories,
    "a number of the hour": _number(
        lambda day, own: pd.Series(own).groupby(day.hours).transform("mean").to_numpy(dtype=np.float64)
    ),
    "half of a number of other rows": _number(lambda day, own: day.draw.permutation(own), share=0.5),
    "two numbers exchanged": _swapped,
    "one number for all rows": _number(lambda day, own: np.full(len(own), float(np.median(own)))),
}
FAULTS = LABELS | JOINS

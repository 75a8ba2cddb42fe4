"""Explains a comparison for the report: columns that the models rest on, and samples on which they differ.

**Columns**: a column's values are shuffled among the rows of each held-out day, features are made of the rows
anew, and the score falls by as much as a model rests on that column (Breiman 2001, permutation importance).
Columns that say the same, as a price in two currencies, stand in for each other, so that neither seems to
matter.

**Samples**: the values of categories, fifths of numbers and quarters of the day are groups of samples;
statistics/slice_search.py tells on which of them challenger and champion differ by another amount than
elsewhere.

No verdict rests on this. A column that would take longer than the time allowed is left out, and named.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.record_parts import ColumnUse, Differences, DifferingSamples
from daybreak.contract.table import Bool, Category, Float, Int, Table
from daybreak.contract.workload import ARRAYS, UNIT, State, read_state
from daybreak.data.features import features_of, labels_of, past_of, rows_of
from daybreak.data.partitions import CLEAN, partitions
from daybreak.evaluation.scores import Columns
from daybreak.evaluation.scoring import ScoredModel, declared, predict
from daybreak.registry.weights import MODEL
from daybreak.statistics.slice_search import Search, differing

if TYPE_CHECKING:
    import pyarrow as pa

SHARE, MOST_S = 0.05, 300.0  # of the night's time, and seconds: the verdict waits for it
NIGHT_S = 60.0  # a night takes, beside its training
MOST_SHUFFLED, MOST_GROUPED = 5_000, 200_000  # rows
MOST_VALUES = 20  # of a category, the most frequent ones
MOST_NAMED = 5  # groups


def seconds_for(training_s: float) -> float:
    """Returns the seconds that may be taken in a night that trained this long."""
    return min(SHARE * (training_s + NIGHT_S), MOST_S)


def find(
    models: Sequence[ScoredModel], scores: Columns, days: Sequence[date], *, limit_s: float, batch_size: int
) -> Differences:
    """Returns how challenger and champion differ on the held-out rows.

    Args:
        models: that are today's code: the challenger first, the champion where it is one of them.
        scores: columns of scores.npy, shape [n] each.
        days: that are held out.
        limit_s: seconds that it may take.
        batch_size: samples scored at once.
    """
    began = time.monotonic()
    shown = [model for model in models if model.name in ("challenger", "champion")]
    rows = [*_labelled(shown[0].workload, days)]
    table: Table = shown[0].workload.table
    search = Search(differing=(), num_groups=0)
    if "champion" in scores and sum(map(len, rows)) == len(scores["champion"]):
        grouped, places = _part(rows, MOST_GROUPED)
        lead = scores["challenger"][places].astype(np.float64) - scores["champion"][places]
        if np.isfinite(lead).all():
            units = scores[UNIT][places] if UNIT in scores else None
            search = differing(lead, _groups(table, grouped), units=units)
    shuffled = _Shuffled(shown, _part(rows, MOST_SHUFFLED)[0], days, batch_size=batch_size)
    uses, left_out, longest = [], [], 0.0
    for name in table.features:
        started = time.monotonic()
        if started - began + longest > limit_s:
            left_out.append(name)
            continue
        use = shuffled.use(name)
        if math.isfinite(use.challenger + (use.champion or 0.0)):  # AUC of a single label is not
            uses.append(use)
        longest = max(longest, time.monotonic() - started)
    return Differences(
        columns=tuple(sorted(uses, key=lambda one: -max(abs(one.challenger), abs(one.champion or 0.0)))),
        left_out=tuple(left_out),
        num_shuffled=shuffled.num_rows,
        samples=tuple(
            DifferingSamples(
                name=one.name, num_samples=one.num_samples, difference=one.within, elsewhere=one.elsewhere
            )
            for one in search.differing[:MOST_NAMED]
        ),
        num_groups=search.num_groups,
        elapsed_s=round(time.monotonic() - began, 3),
    )


def _labelled(workload: Any, days: Sequence[date]) -> "Iterator[pa.Table]":
    """Yields the rows of each day whose label is known: those of which samples were made."""
    import pyarrow.compute as pc

    here = partitions(CLEAN)
    last = date.fromisoformat(json.loads((ARRAYS / "meta.json").read_text())["last_day"])
    for day in days:
        rows = rows_of(workload, day, here, last=last)
        label = workload.table.label
        yield rows.filter(pc.is_valid(rows[label.column])) if label else rows


def _part(rows: "Sequence[pa.Table]", most: int) -> "tuple[list[pa.Table], NDArray[np.int64]]":
    """Returns every k-th row of each day, about `most` of all, and their places among all rows."""
    step = max(-(-sum(map(len, rows)) // most), 1)
    kept = [np.arange(0, len(day), step) for day in rows]
    starts = np.cumsum([0, *map(len, rows)])
    places = np.concatenate([start + day for start, day in zip(starts, kept, strict=False)])
    return [day.take(places) for day, places in zip(rows, kept, strict=True)], places


class _Shuffled:
    """The rows on which models are scored once more, with a column shuffled."""

    def __init__(
        self,
        models: Sequence[ScoredModel],
        rows: "Sequence[pa.Table]",
        days: Sequence[date],
        *,
        batch_size: int,
    ) -> None:
        self._models, self._rows, self._days, self._batch_size = models, rows, days, batch_size
        self._workload = models[0].workload
        self._state: State = read_state(MODEL)
        self._here = partitions(CLEAN)
        self.num_rows = sum(map(len, rows))
        self._usual = self._scores(rows)

    def use(self, column: str) -> ColumnUse:
        """Returns by how much the score of each model falls where this column is shuffled."""
        rows = []
        for day in self._rows:
            order = np.random.default_rng(len(day)).permutation(len(day))
            rows.append(day.set_column(day.column_names.index(column), column, day[column].take(order)))
        falls = {name: self._usual[name] - score for name, score in self._scores(rows).items()}
        return ColumnUse(column=column, challenger=falls["challenger"], champion=falls.get("champion"))

    def _scores(self, rows: "Sequence[pa.Table]") -> dict[str, float]:
        """Returns the mean score of each model: its first metric, turned round where lower is better."""
        parts = [
            features_of(self._workload, day_rows, self._state, past_of(self._workload, day, self._here))
            | labels_of(self._workload.table, day_rows)
            for day, day_rows in zip(self._days, rows, strict=True)
        ]
        samples = _Arrays({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
        metric = declared(self._workload)[0]
        label = self._workload.table.label
        truth = samples.arrays[label.column] if label else np.zeros(self.num_rows)
        scores = {}
        for model in self._models:
            arm = ScoredModel(name=model.name, workload=self._workload, model=model.model, samples=samples)
            value = metric.values(predict(arm, batch_size=self._batch_size)[metric.prediction], truth)
            scores[model.name] = float(value.mean()) * (1 if metric.higher_is_better else -1)
        return scores


class _Arrays:
    """Samples in memory: batches are dicts of tensors, as those of `Samples`."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        import torch

        where = np.asarray(indices)
        return {name: torch.from_numpy(values[where]) for name, values in self.arrays.items()}


def _groups(table: Table, rows: "Sequence[pa.Table]") -> "Iterator[tuple[str, NDArray[np.bool_]]]":
    """Yields names and masks of rows that have a value of a column, or one within a range.

    Unit and key are left out: the ledger keeps these names, and they would name persons.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    everything = pa.concat_tables(rows)
    for name, column in table.features.items():
        if name == table.unit or (name in table.key and name != table.time):
            continue
        values = everything[name]
        missing = values.is_null().to_numpy()
        yield f"{name} is missing", missing
        if isinstance(column, Category | Bool):
            yield from _by_value(name, values)
        elif isinstance(column, Int) or (isinstance(column, Float) and not column.size):
            yield from _by_fifth(name, values.to_numpy().astype(np.float64), missing)
        elif name == table.time:
            hours = pc.hour(values).to_numpy()  # in the table's zone
            for start in range(0, 24, 6):
                yield f"{name} from {start}:00 to {start + 5}:59", hours // 6 == start // 6


def _by_value(name: str, values: "pa.ChunkedArray") -> "Iterator[tuple[str, NDArray[np.bool_]]]":
    import pyarrow.compute as pc

    counts = values.drop_null().value_counts().to_pylist()
    for one in sorted(counts, key=lambda one: -one["counts"])[:MOST_VALUES]:
        mask = pc.fill_null(pc.equal(values, one["values"]), False)
        yield f"{name} is {one['values']}", mask.to_numpy()


def _by_fifth(
    name: str, values: NDArray[np.float64], missing: NDArray[np.bool_]
) -> "Iterator[tuple[str, NDArray[np.bool_]]]":
    if missing.all():
        return
    edges = np.unique(np.quantile(values[~missing], np.linspace(0, 1, 6)))
    if len(edges) <= 3:  # few values: each is a group
        for value in np.unique(values[~missing])[:MOST_VALUES]:
            yield f"{name} is {value:.17g}", values == value
        return
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    words = _apart(edges)
    for number, (low, high) in enumerate(pairwise(words)):
        yield f"{name} from {low} to {high}", (place == number) & ~missing


def _apart(numbers: NDArray[np.float64]) -> list[str]:
    """Returns numbers in words of as few digits as tell them apart, four at least."""
    for digits in range(4, 17):
        rounded = [float(f"{number:.{digits}g}") for number in numbers]
        if len(set(rounded)) == len(rounded):
            return [f"{number:.0f}" if number.is_integer() else f"{number:.{digits}g}" for number in rounded]
    return [repr(float(number)) for number in numbers]

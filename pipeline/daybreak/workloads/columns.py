"""Turns the columns of a table into features by their types, for workloads without `features` of their own.

    numbers      float32 [b, f]     numbers, vectors, lengths of texts, and the time of day and of week
    missing      bool [b, f]        where a number is null; it is 0 in `numbers`
    categories   int64 [b, c]       place among the values that `fit` saw; 0 for null and any other
    words        int16 [b, t, 64]   place of each word among those of the text that `fit` saw; 0 as above, and
                                    after the last word. There where the table has a text with known words

In a batch, features stand beside the label, which may not have a feature's name. Ids are left out, since
training has not seen tomorrow's ids.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.table import Bool, Category, Float, Int, Table, Text, Time
from daybreak.contract.workload import State

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow as pa

NUMBERS, MISSING, CATEGORIES, WORDS = "numbers", "missing", "categories", "words"
PART, COUNT = "(part)", "(count)"  # columns beside those of a table
MOST_VALUES = 1000  # of a category; rarer ones share place 0
WORD_ENDS = r"[^\pL\pM\pN]+"  # in texts, which are compared in lower case
MOST_KNOWN, MOST_WORDS = 5000, 64  # words of all rows, and those of one that are looked at
LEAST_USED = 5  # units, or rows where there are none, that use a word; a rarer one may be a name
MOST_TEXTS, AT_ONCE = 200_000, 20_000  # rows whose words are counted, and those that are split at once
MOST_NUMBERS = 10_000_000  # that quantiles are found of; of more rows only a part is looked at
NUM_EDGES = 32
CLOCK = 4  # sine and cosine of the time of day and of week
HOUR, DAY = 3_600_000_000, 86_400_000_000  # in microseconds
Clock = Callable[["pa.Table", Table], NDArray[Any]]  # makes numbers of the times of rows, [b, numbers]


def fitted(rows: "ir.Table", table: Table) -> State:
    """Returns the values of each category, most frequent first, and the quantiles of each number.

    `edges` is float32 [f, NUM_EDGES], rising in each row; `values_NAME` and `words_NAME` are text, [values].
    """
    clock = np.tile(np.linspace(-1, 1, NUM_EDGES), (CLOCK, 1))
    edges = np.concatenate([_edges(rows, table), clock]).astype(np.float32)
    return {**vocabularies(rows, table), "edges": edges}


def vocabularies(rows: "ir.Table", table: Table) -> State:
    """Returns the values of each category and the words of each text, most frequent first."""
    import ibis

    state: dict[str, Any] = {}
    for name, column in table.features.items():
        if isinstance(column, Category):
            counted = rows.filter(rows[name].notnull()).group_by(name).agg(**{COUNT: ibis._.count()})
            top = counted.order_by([ibis.desc(COUNT), name]).limit(MOST_VALUES).to_pyarrow()
            state[f"values_{name}"] = np.array(top[name].to_pylist(), dtype=np.str_)
        elif isinstance(column, Text) and (words := _vocabulary(rows, name, table)):
            state[f"words_{name}"] = np.array(words, dtype=np.str_)
    return state


def _vocabulary(rows: "ir.Table", name: str, table: Table) -> list[str]:
    """Returns the words of a text that most units use, or most rows where there are none, most used first."""
    import pyarrow as pa

    there = rows.filter(rows[name].notnull())
    whose = table.unit or PART
    step = there.count().to_pyarrow().as_py() // MOST_TEXTS + 1
    texts = _one_in(there, step, table).select(name, *filter(None, [table.unit])).to_pyarrow()
    if not table.unit:
        texts = texts.append_column(PART, pa.array(np.arange(len(texts))))
    used = []
    for part in texts.to_batches(max_chunksize=AT_ONCE):
        words, of = _split(part[name])
        pairs = pa.table({COUNT: words, whose: part[whose].take(of)})
        used.append(pairs.group_by([COUNT, whose]).aggregate([]))
    if not used:
        return []
    pairs = pa.concat_tables(used).group_by([COUNT, whose]).aggregate([])
    counted = pairs.group_by(COUNT).aggregate([(whose, "count")])
    counted = counted.sort_by([(f"{whose}_count", "descending"), (COUNT, "ascending")]).to_pylist()
    return [each[COUNT] for each in counted[:MOST_KNOWN] if each[f"{whose}_count"] >= LEAST_USED]


def _split(texts: "pa.Array") -> "tuple[pa.Array, pa.Array]":
    """Returns the words of texts, and the row of each."""
    import pyarrow.compute as pc

    listed = pc.split_pattern_regex(pc.utf8_lower(texts), WORD_ENDS)
    words, of = listed.flatten(), pc.list_parent_indices(listed)
    is_word = pc.not_equal(words, "")
    return words.filter(is_word), of.filter(is_word)


def _edges(rows: "ir.Table", table: Table) -> NDArray[np.float64]:
    """Returns the quantiles of each number, shape [f, NUM_EDGES]; zeros where none is finite."""
    numbers = [number for name, column in table.features.items() for number in _numbers(rows, name, column)]
    if not numbers:
        return np.zeros((0, NUM_EDGES))
    step = rows.count().to_pyarrow().as_py() * len(numbers) // MOST_NUMBERS + 1
    named = {f"({place})": number.cast("float64") for place, number in enumerate(numbers)}
    looked_at = _one_in(rows.mutate(**named), step, table).select(*named).to_pyarrow()
    edges = np.zeros((len(numbers), NUM_EDGES))
    for place, values in enumerate(looked_at.columns):
        there = values.drop_null().to_numpy()
        there = there[np.abs(there) <= np.finfo(np.float32).max]  # as `by_type` takes others for missing
        if len(there):
            edges[place] = np.quantile(there, np.linspace(0, 1, NUM_EDGES))
    return edges


def _one_in(rows: "ir.Table", step: int, table: Table) -> "ir.Table":
    """Returns one row in `step`, by a hash of time and unit, so that the sample is always the same."""
    if step == 1:
        return rows
    keys = [rows[name].hash() % step for name in (table.time, table.unit) if name]
    rows = rows.mutate(**{PART: sum(keys[1:], keys[0]) % step})
    return rows.filter(rows[PART] == 0)


def _numbers(rows: "ir.Table", name: str, column: Any) -> "list[ir.NumericColumn]":
    """Returns the numbers that a column comes to, as expressions."""
    value: Any = rows[name]
    if isinstance(column, Float) and column.size:
        return [value[place] for place in range(column.size)]
    if isinstance(column, Float | Int):
        return [value]
    if isinstance(column, Bool):
        return [value.cast("int8")]
    return [value.length()] if isinstance(column, Text) else []


def by_type(
    rows: "pa.Table", state: State, table: Table, *, clock: "Clock | None" = None
) -> dict[str, NDArray[Any]]:
    """Returns the features of rows, as the head of this file says; the time as `clock` has it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers, categories = [], []
    for key in sorted(name for name in state if name.startswith("values_")):
        known = pa.array(state[key].tolist(), pa.string())
        places = pc.index_in(rows[key.removeprefix("values_")], value_set=known)
        categories.append(pc.add(pc.fill_null(places, -1), 1).to_numpy().astype(np.int64))
    for name, column in table.features.items():
        values = rows[name]
        if isinstance(column, Float) and column.size:
            flat = np.full((len(rows), column.size), np.nan)
            there = values.is_valid().to_numpy()
            flat[there] = (
                values.drop_null()
                .combine_chunks()
                .flatten()
                .to_numpy(zero_copy_only=False)
                .reshape(-1, column.size)
            )
            numbers.append(flat)
        elif isinstance(column, Float | Int | Bool | Text):
            measured = pc.utf8_length(values) if isinstance(column, Text) else values
            rounded = measured.cast(pa.float64(), safe=False)  # a whole number beyond 2 ** 53 is
            numbers.append(rounded.to_numpy(zero_copy_only=False)[:, None])
    numbers.append((clock or turns_of_clock)(rows, table))
    with np.errstate(over="ignore"):  # beyond float32 is infinity, and so missing
        every = np.concatenate(numbers, axis=1).astype(np.float32)
    missing = ~np.isfinite(every)
    made = {
        NUMBERS: np.where(missing, np.float32(0), every),
        MISSING: missing,
        CATEGORIES: np.stack(categories, axis=1) if categories else np.zeros((len(rows), 0), np.int64),
    }
    texts = sorted(name for name, column in table.features.items() if isinstance(column, Text))
    if known := {name: state[f"words_{name}"] for name in texts if f"words_{name}" in state}:
        made[WORDS] = np.stack([_words(rows[name], words) for name, words in known.items()], axis=1)
    return made


def _words(texts: "pa.ChunkedArray", known: NDArray[Any]) -> NDArray[np.int16]:
    """Returns the place of each word of texts among those that are known, int16 [b, MOST_WORDS]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    among = pa.array(known.tolist(), pa.string())
    made = np.zeros((len(texts), MOST_WORDS), np.int16)
    for first in range(0, len(texts), AT_ONCE):
        part = texts.slice(first, AT_ONCE).combine_chunks()
        words, of = _split(pc.fill_null(part, ""))
        places, row = pc.fill_null(pc.index_in(words, value_set=among), -1).to_numpy() + 1, of.to_numpy()
        number = np.arange(len(row)) - np.searchsorted(row, row)  # of a word in its text
        seen = number < MOST_WORDS
        made[first + row[seen], number[seen]] = places[seen]
    return made


def turns_of_clock(rows: "pa.Table", table: Table) -> NDArray[Any]:
    """Returns sine and cosine of the time of day and of week, float64 [b, 4]."""
    time = _microseconds(rows, table) / DAY
    turns = 2 * np.pi * np.stack([time % 1, time % 7 / 7], axis=1)
    return np.concatenate([np.sin(turns), np.cos(turns)], axis=1)


def hour_and_weekday(rows: "pa.Table", table: Table) -> NDArray[Any]:
    """Returns the hour, 0 to 23, and the weekday, 0 for Monday, float64 [b, 2]."""
    time = _microseconds(rows, table)
    since_monday = time // DAY + 3  # 1970 began on a Thursday
    return np.stack([time % DAY // HOUR, since_monday % 7], axis=1).astype(np.float64)


def _microseconds(rows: "pa.Table", table: Table) -> NDArray[np.int64]:
    """Returns the times of rows since 1970."""
    assert isinstance(table.columns[table.time], Time)
    time: NDArray[np.int64] = rows[table.time].to_numpy().astype("datetime64[us]").astype(np.int64)
    return time

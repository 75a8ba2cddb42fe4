"""Describes the columns that `init` proposes: type, values, use by the model, and why one is left out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract.formats import count, counted, one_line, percent
from daybreak.contract.table import AnyColumn, Bool, Bytes, Category, Float, Id, Int, Table, Text, Time
from daybreak.extensions.init.survey_days import Unlimited

MOST_LINES = 20  # of the table in a terminal
MOST_CHARS = {"name": 24, "values": 36}  # there
SHOWN = 3  # values of a category
FEWEST = 10  # other values, for one to be far from them
LEAST_ROWS = 3  # that share a value which stands for a missing one
SEEN = "yes"


@dataclass(frozen=True, kw_only=True)
class ColumnNote:
    """What was made of a column."""

    name: str
    kind: str  # its type; "" if it is left out
    nulls: float  # share of the rows
    values: str
    use: str  # whether and how the model sees it


def described(
    rows: pa.Table,
    table: Table,
    *,
    unlimited: Mapping[str, Unlimited],
    left_out: Mapping[str, str],
    image: str = "",
) -> tuple[ColumnNote, ...]:
    """Returns a note of each column.

    Args:
        rows: of all days, in the columns of the table.
        table: what they are.
        unlimited: columns that have no limits, and why.
        left_out: columns that the table has not, and why.
        image: the only column that the model sees; "" if it sees all by their types.
    """
    notes = []
    for name, column in table.columns.items():
        values = rows[name]
        use = _use(name, column, values, table, image=image)
        if use.startswith(SEEN) and name in unlimited:
            no_limits = "no limits" if "limits" in unlimited[name].off else "no limit of drift"
            use = f"{SEEN}; {unlimited[name].why}: {no_limits}"
        of_label = table.label is not None and name == table.label.column
        shown = _values(column, values, classes=table.label.classes if table.label and of_label else ())
        notes.append(
            ColumnNote(
                name=name,
                kind=type(column).__name__,
                nulls=values.null_count / max(len(values), 1),
                values=shown,
                use=use,
            )
        )
    notes += [
        ColumnNote(name=name, kind="", nulls=0, values="", use=f"no: {why}") for name, why in left_out.items()
    ]
    return tuple(notes)


def _use(name: str, column: AnyColumn, values: pa.ChunkedArray, table: Table, *, image: str) -> str:
    """Returns whether and how the model sees a column, as `daybreak/workloads/columns.py` makes features."""
    if table.label and name == table.label.column:
        after = table.label.ripe_after.days
        return f"is predicted, known {counted(after, 'day')} later" if after else "is predicted"
    if image:
        return f"{SEEN}, its pixels" if name == image else f"no: it sees {image} alone"
    if name == table.time:
        at_midnight = pc.all(pc.equal(values, pc.floor_temporal(values, unit="day"))).as_py()
        return f"{SEEN}, the {'day of the week' if at_midnight else 'time of day and of week'}"
    if isinstance(column, Float) and column.size:
        return SEEN  # Arrow counts no distinct vectors
    num = count(pc.count_distinct(values).as_py())
    if name == table.unit:
        return f"no: the unit, {num} of them" if isinstance(column, Id) else f"{SEEN}, and the unit"
    constant = f"{SEEN}, but it is the same in all rows" if num in ("0", "1") else SEEN
    by_type = {
        Id: f"no: an id, {num} values",
        Time: "no: a second time",
        Bytes: "no: bytes",
        Text: f"{SEEN}, its length and words",
    }
    return by_type.get(type(column), constant)


def _values(column: AnyColumn, values: pa.ChunkedArray, *, classes: Sequence[str]) -> str:
    known = values.drop_null()
    if not len(known) or isinstance(column, Bytes) or (isinstance(column, Float) and column.size):
        return f"vectors of {column.size}" if isinstance(column, Float) and column.size else ""
    if isinstance(column, Id | Text):  # README.md is committed, and these may be names of people
        return f"{count(pc.count_distinct(known).as_py())} different"
    if isinstance(column, Category | Bool) or classes or _is_few(column, known):
        counts = sorted(known.value_counts().to_pylist(), key=lambda each: -each["counts"])
        names = [classes[each["values"]] if classes else str(each["values"]) for each in counts]
        if len(counts) <= SHOWN:
            shares = [percent(each["counts"] / len(known)) for each in counts]
            return ", ".join(f"{name} ({share})" for name, share in zip(names, shares, strict=True))
        return f"{count(len(names))}, as {', '.join(names[:SHOWN])}"
    ends = pc.min_max(known).as_py()
    if isinstance(column, Time):
        return f"{ends['min']:%Y-%m-%d} to {ends['max']:%Y-%m-%d}"
    return f"{ends['min']:.6g} to {ends['max']:.6g}"


def _is_few(column: AnyColumn, known: pa.ChunkedArray) -> bool:
    return isinstance(column, Int) and pc.count_distinct(known).as_py() <= SHOWN


def stand_ins(rows: pa.Table, table: Table) -> list[str]:
    """Returns a sentence for each number that seems to stand for a missing value, such as -999.

    Such a number is in several rows, and further from all others than the others are from each other.
    """
    sentences = []
    for name, column in table.features.items():
        if not isinstance(column, Int) and (not isinstance(column, Float) or column.size):
            continue
        known = rows[name].filter(pc.is_finite(rows[name]))
        for value, num, low, high in _far_ends(known):
            sentences.append(
                f"{name} is {value:g} in {count(num)} of {count(len(rows))} rows, far from the others, "
                f"{low:g} to {high:g}; if it stands for a missing value, have null delivered there"
            )
    return sentences


def _far_ends(known: pa.ChunkedArray) -> list[tuple[float, int, float, float]]:
    """Returns the least and the largest value where it is far from the others: how often, and their ends."""
    if len(known) <= FEWEST:
        return []
    ends, far = pc.min_max(known).as_py(), []
    for value in {ends["min"], ends["max"]}:
        others = known.filter(pc.not_equal(known, value))
        num = len(known) - len(others)
        if num < LEAST_ROWS or pc.count_distinct(others).as_py() < FEWEST:
            continue
        low, high = pc.min_max(others).as_py().values()
        if max(low - value, value - high) > high - low:
            far.append((value, num, low, high))
    return far


def lines(notes: Sequence[ColumnNote]) -> list[str]:
    """Returns the notes as a table for the terminal; of a wide table those that say most, and a count."""
    telling = [note for note in notes if note.use != SEEN or note.nulls]
    shown = telling[:MOST_LINES] if len(notes) > MOST_LINES else notes
    rows = [("column", "type", "null", "values", "seen by the model")]
    rows += [
        (
            _cut(note.name, "name"),
            note.kind,
            percent(note.nulls) if note.kind else "",
            _cut(note.values, "values"),
            one_line(note.use),
        )
        for note in shown
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(4)]
    text = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]])
        for row in rows
    ]
    if len(shown) < len(notes):
        names = {note.name for note in shown}
        kinds = Counter(note.kind or "left out" for note in notes if note.name not in names)
        listed = ", ".join(f"{count(num)} {kind}" for kind, num in kinds.most_common())
        text.append(f"and {count(len(notes) - len(shown))} more columns, {listed}; README.md lists all")
    return text


def markdown(notes: Sequence[ColumnNote]) -> str:
    """Returns the notes as a table of Markdown."""
    rows: list[tuple[Any, ...]] = [("column", "type", "null", "values", "seen by the model"), ("---",) * 5]
    rows += [
        (
            f"`{_escaped(note.name)}`",
            note.kind,
            percent(note.nulls) if note.kind else "",
            _escaped(_cut(note.values, "values")),
            _escaped(note.use),
        )
        for note in notes
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _escaped(text: str) -> str:
    return one_line(text).replace("`", "'").replace("|", "\\|")


def _cut(text: str, what: str) -> str:
    text, most = one_line(text), MOST_CHARS[what]
    return text if len(text) <= most else f"{text[: most - 1]}…"

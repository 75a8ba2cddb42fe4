"""Declares a team's rows: the columns by type, their time, what is independent, and the label.

A `Table` is the only source of truth about rows. From it come how delivered files are read and cast, when a
schema has changed, the rules that rows are judged by, the figures of a day, drift, and the signature of what
serves. It is a record as well, `data/run/table.json`, so that stages need not import the class that has it:

    table = Table(
        time="ts", unit="account",
        columns={"amount": Float(min=0), "mcc": Category(), "account": Id(), "ts": Time(), "fraud": Int()},
        label=Label("fraud", ripe_after=days(14)),
    )
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from daybreak.contract.days import check_zone
from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Record

if TYPE_CHECKING:
    import pyarrow as pa

Off = Literal[
    "nulls", "range", "values", "drift", "null drift", "limits"
]  # what is derived from a column's type
CLASSES = b"classes"  # of a label, as metadata of its field
OURS = re.compile(r"\(.*\)")  # names of Daybreak's own among those of a team, which no column may have
MAX_EXACT = 2.0**53  # whole numbers beyond are not exact as floats
WHOLE_FLOAT = r"(-?[0-9]+)\.0"  # as tools write whole numbers where a column has gaps


@dataclass(frozen=True, kw_only=True)
class Column(Record):
    """A column of rows; `off` names what is not to be derived from it."""

    nullable: bool = False
    off: tuple[Off, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Float(Column):
    """A number; a vector of `size` numbers where that is not 0, which is never null.

    Where it is delivered as text, `symbol` stands before or after each number, as `$` or `%`; 12 % is 12.
    """

    min: float | None = None
    max: float | None = None
    size: int = 0
    symbol: str = ""
    kind: Literal["float"] = "float"


@dataclass(frozen=True, kw_only=True)
class Int(Column):
    """A whole number; `symbol` as of `Float`."""

    min: int | None = None
    max: int | None = None
    symbol: str = ""
    kind: Literal["int"] = "int"


@dataclass(frozen=True, kw_only=True)
class Bool(Column):
    """True or false."""

    kind: Literal["bool"] = "bool"


@dataclass(frozen=True, kw_only=True)
class Category(Column):
    """Text with few values, only those of `values` where it names any.

    A whole number is kept without `.0`, unless `values` name it so.
    """

    values: tuple[str, ...] = ()
    kind: Literal["category"] = "category"


@dataclass(frozen=True, kw_only=True)
class Id(Column):
    """Text that names one of many things; no drift is measured. A whole number is kept without `.0`."""

    kind: Literal["id"] = "id"


@dataclass(frozen=True, kw_only=True)
class Text(Column):
    """Text that people wrote; drift is of its length."""

    kind: Literal["text"] = "text"


@dataclass(frozen=True, kw_only=True)
class Time(Column):
    """A moment, in the zone of the table, to the microsecond."""

    kind: Literal["time"] = "time"


@dataclass(frozen=True, kw_only=True)
class Bytes(Column):
    """An image or other bytes; drift is of their number."""

    kind: Literal["bytes"] = "bytes"


AnyColumn = Float | Int | Bool | Category | Id | Text | Time | Bytes


@dataclass(frozen=True)
class Label(Record):
    """What the model is to predict: a column that is null until its value is known.

    A partition is trained on and judged from `ripe_after` its end; a row whose label is null then is not.
    """

    column: str
    ripe_after: timedelta = timedelta()
    classes: tuple[str, ...] = ()  # what 0, 1, ... stand for, where it is delivered as text


@dataclass(frozen=True, kw_only=True)
class Table(Record):
    """The rows of a partition.

    Raises ParamsError where a column has a name reserved for Daybreak, where time, unit, key or a label is
    not among the columns, where a vector may be null, where a label with classes is not declared as their
    number, where an auxiliary label is no number or is another label, or where the zone is unknown.
    """

    columns: dict[str, AnyColumn]
    time: str  # column whose day is that of the partition
    unit: str = ""  # column of what is independent of each other, as accounts; "": each row is
    key: tuple[str, ...] = ()  # columns that no two rows of a partition share; (): rows may repeat
    label: Label | None = None
    auxiliary: tuple[Label, ...] = ()  # further labels that a loss may use; nothing is judged by them
    zone: str = "UTC"  # in which a day begins and times are kept

    def __post_init__(self) -> None:
        if ours := [name for name in self.columns if OURS.fullmatch(name)]:
            raise ParamsError(
                f"a column is called {ours[0]}, and names in parentheses are Daybreak's own; rename it at "
                f"the source, or under source.columns"
            )
        named = {"time": self.time, "unit": self.unit, "label": self.label.column if self.label else ""}
        named |= {f"key {number}": name for number, name in enumerate(self.key, 1)}
        named |= {f"auxiliary label {number}": each.column for number, each in enumerate(self.auxiliary, 1)}
        for what, name in named.items():
            if name and name not in self.columns:
                raise ParamsError(
                    f"the table's {what} is {name!r}, which is not among its columns "
                    f"{', '.join(self.columns)}; add it to columns, or name another"
                )
        kind = type(self.columns[self.time])
        if kind is not Time:
            raise ParamsError(f"the table's time {self.time!r} is {kind.__name__}; declare it Time()")
        self._expect_vectors()
        self._expect_auxiliary()
        if self.label and self.label.classes:
            label, last = self.columns[self.label.column], len(self.label.classes) - 1
            if not isinstance(label, Int) or (label.min, label.max) != (
                0,
                last,
            ):  # else none would be refused
                raise ParamsError(
                    f"the table's label {self.label.column!r} has {last + 1} classes; declare it "
                    f"Int(min=0, max={last})"
                )
        check_zone(self.zone, of="the table's zone")

    def _expect_vectors(self) -> None:
        """Raises ParamsError for a vector that may be null, which Parquet does not keep."""
        vectors = [name for name, column in self.columns.items() if getattr(column, "size", 0)]
        if nullable := next((name for name in vectors if self.columns[name].nullable), ""):
            raise ParamsError(
                f"{nullable} is a vector that may be null, and none is kept; declare it without nullable, "
                f"have zeros delivered where it is missing, and a Bool() column that says so"
            )
        if self.label and self.label.column in vectors and self.label.ripe_after:
            raise ParamsError(
                f"the label {self.label.column} is a vector that is null until ripe_after, and none is kept; "
                f"have its rows delivered once it is known, and leave ripe_after out"
            )

    def _expect_auxiliary(self) -> None:
        """Raises ParamsError for an auxiliary label that no batch could hold."""
        taken = {self.time, self.unit, *self.key, self.label.column if self.label else ""}
        for each in self.auxiliary:
            column = self.columns[each.column]
            if self.label is None or each.column in taken:
                why = (
                    "the table has no label" if self.label is None else "that is the table's for another use"
                )
                raise ParamsError(
                    f"{each.column} is an auxiliary label, and {why}; name in label what is judged, and in "
                    f"auxiliary other columns, each once"
                )
            if not isinstance(column, Float | Int | Bool) or (isinstance(column, Float) and column.size):
                raise ParamsError(
                    f"the auxiliary label {each.column} is no single number; declare it Float(), Int() or "
                    f"Bool(), and number its values at the source"
                )
            if each.classes:
                raise ParamsError(
                    f"the auxiliary label {each.column} has classes, which only the label may have; number "
                    f"its values at the source"
                )
            taken.add(each.column)

    @property
    def labels(self) -> dict[str, Label]:
        """Returns the label and the auxiliary ones, by their columns."""
        return {each.column: each for each in (self.label, *self.auxiliary) if each}

    @property
    def features(self) -> dict[str, AnyColumn]:
        """Returns the columns that a model may see: all but labels."""
        return {name: column for name, column in self.columns.items() if name not in self.labels}

    def schema(self) -> "pa.Schema":
        """Returns the columns' types in Arrow, in order; that of a label has its classes as metadata."""
        import pyarrow as pa

        fields = {name: pa.field(name, arrow_type(column)) for name, column in self.columns.items()}
        if self.label and self.label.classes:
            field = fields[self.label.column]
            fields[field.name] = field.with_metadata({CLASSES: json.dumps(self.label.classes)})
        return pa.schema([*fields.values()])


def classes_of(field: "pa.Field") -> tuple[str, ...]:
    """Returns the classes that the numbers of a label's column stand for; none if it does not say."""
    return tuple(json.loads((field.metadata or {}).get(CLASSES, b"[]")))


def code(text: str) -> str:
    """Returns an id as a table has it: a whole number without `.0`, whatever else is in its column.

    >>> code("17850.0"), code("1.50"), code("v2.0")
    ('17850', '1.50', 'v2.0')
    """
    match = re.fullmatch(WHOLE_FLOAT, text)
    return match[1] if match else text


def codes(array: "pa.ChunkedArray", *, declared: Collection[str] = ()) -> "pa.ChunkedArray":
    """Returns ids or categories as text, however they were delivered; raises pyarrow's errors.

    Whole numbers are without the `.0` of tools that keep them as floats where a column has gaps. Each value
    is looked at by itself, so that it is the same text on every day and in a request. `declared` ones stay.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_floating(array.type):  # Arrow alone would write 123456789012 as 1.23456789012e+11
        numbers = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
        whole = pc.and_(pc.equal(numbers, pc.round(numbers)), pc.less(pc.abs(numbers), MAX_EXACT))
        in_full = pc.if_else(whole, numbers, pa.scalar(None, numbers.type)).cast(pa.int64())
        return pc.coalesce(in_full.cast(pa.string()), numbers.cast(pa.string()))
    texts = array.cast(pa.string())
    if not pc.any(pc.ends_with(texts, ".0")).as_py():
        return texts
    short = pc.replace_substring_regex(texts, f"^{WHOLE_FLOAT}$", r"\1")
    return pc.if_else(pc.is_in(texts, pa.array(declared, texts.type)), texts, short) if declared else short


def spellings(code: str) -> tuple[str, ...]:
    """Returns an id as a table has it, and as clients may write it."""
    return (code, f"{code}.0") if re.fullmatch("-?[0-9]+", code) else (code,)


def arrow_type(column: AnyColumn) -> "pa.DataType":
    """Returns the type of a column in Arrow."""
    import pyarrow as pa

    if isinstance(column, Float) and column.size:
        return pa.list_(pa.float64(), column.size)
    types: dict[str, Any] = {
        "float": pa.float64(),
        "int": pa.int64(),
        "bool": pa.bool_(),
        "time": pa.timestamp("us"),
        "bytes": pa.binary(),
    }
    return types.get(column.kind, pa.string())


def days(number: float) -> timedelta:
    """Returns that many days."""
    return timedelta(days=number)


def hours(number: float) -> timedelta:
    """Returns that many hours."""
    return timedelta(hours=number)

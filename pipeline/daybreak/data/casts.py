"""Casts columns as they were delivered to those of a workload's table.

Missing values become null, and codes and times are brought into one form. The text of a value that cannot be
cast is kept beside the row (bad_cells.py), unless so many cannot that the column has another type.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from daybreak.contract.errors import DataError
from daybreak.contract.table import (
    Bytes,
    Category,
    Float,
    Id,
    Int,
    Label,
    Table,
    Text,
    classes_of,
    codes,
)
from daybreak.data import bad_cells, numbers
from daybreak.data.numbers import NumberFormat, is_text

NO_CLASS = -1  # below the least of a label, so that the row is quarantined
SINCE_1970 = {"s": 1_000_000.0, "ms": 1000.0, "us": 1.0, "ns": 0.001}  # microseconds of a unit
TIME, MOMENT = pa.timestamp("us"), pa.timestamp("us", "UTC")
MIDNIGHT = r"[ T](0?0:00(:00(\.0+)?)?|12:00(:00)? AM)$"
DAY_OF_NONE = r"^\S*1899\S*[ T]"  # of Access and Excel, before a time of day
FRACTION = re.compile(r"[.,]%f")
IN_UTC = re.compile(r"(UTC|GMT|(?<!%)Z|\+00:?00)$")
END_US = int(datetime(2200, 1, 1, tzinfo=UTC).timestamp() * 1e6)  # later times are of another unit


def conform(rows: pa.Table, table: Table, *, origin: str, absent_is_null: bool = False) -> pa.Table:
    """Returns the rows in the columns and types of the table; other columns are left out.

    Times with a zone become times of the table's zone; NaN becomes null; ids and categories are as `codes`
    has them. `origin` is what an error calls the rows. With `absent_is_null` a
    nullable column that is not there is null, as in rows that are older than the column. Where single values
    cannot be cast, the rows have the column `bad_cells.AS_DELIVERED` as well.

    Raises:
        DataError: columns are missing or of another type; the sentence names all of them.
    """
    if absent_is_null:
        for field in table.schema():
            if table.columns[field.name].nullable and field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    given = Counter(rows.column_names)
    faults = [f"no {name}" for name in table.columns if name not in given]
    faults += [f"two columns {name}" for name in table.columns if given[name] > 1]
    if faults:
        faults[-1] += f" among its columns {', '.join(rows.column_names)}"
    arrays = []
    texts: dict[str, pa.Array] = {}
    for field in table.schema():
        if given[field.name] == 1:
            try:
                values, bad = _conformed(rows, field, table)
                arrays.append(values)
                if bad is not None:
                    texts[field.name] = bad
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                reason = str(error).splitlines()[0]
                faults.append(f"{field.name} is {rows[field.name].type}, not {field.type}: {reason}")
    if faults:
        raise DataError(
            f"{origin} has another schema: {'; '.join(faults)}; have it delivered in the old schema, name "
            f"the right columns under source.columns in params.yaml, or declare them in the workload's table"
        )
    return bad_cells.with_texts(pa.table(arrays, schema=table.schema()), texts)


def _conformed(rows: pa.Table, field: pa.Field, table: Table) -> tuple[pa.ChunkedArray, pa.Array | None]:
    """A column of the rows as a field of the table, and the texts of bad cells; raises pyarrow's errors."""
    column, delivered = table.columns[field.name], rows.schema.field(field.name)
    form, before = numbers.format_of(delivered), classes_of(delivered)
    classes = table.label.classes if table.label and field.name == table.label.column else ()

    def cast(array: pa.ChunkedArray) -> pa.ChunkedArray:
        if isinstance(column, Id | Category):
            return codes(array, declared=getattr(column, "values", ()))
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        if is_text(array.type) and not isinstance(column, Text | Bytes):
            if isinstance(column, Float | Int) and not classes:
                array = numbers.plain(array, form, column.symbol)
            else:
                array = numbers.without_words(array, form, but=classes)
        if table.label and classes:
            array = _numbered(array, table.label, before=before)
        return _cast(array, field.type, table.zone)

    return bad_cells.cast_column(rows, field, cast)


def joined(parts: Sequence[pa.Table], *, zone: str) -> pa.Table:
    """Returns the rows of several files, one after the other; raises pyarrow's errors.

    A column that is text in some files and typed in others, as in CSV beside Parquet, is text. One of
    numbers, and of true and false, is numbers; one of several types of times is times in `zone`.
    """
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        fields = {
            name: [part.schema.field(name) for part in parts if part.column_names.count(name) == 1]
            for name in {name for part in parts for name in part.column_names}
        }
        return pa.concat_tables([_alike(part, fields, zone) for part in parts], promote_options="permissive")


def _alike(rows: pa.Table, fields: Mapping[str, Sequence[pa.Field]], zone: str) -> pa.Table:
    """Returns rows with one type for each column that has others in other files, where there is one."""
    for place, name in enumerate(rows.column_names):
        kinds = {value_type(field.type) for field in fields[name]} - {pa.null()}
        values, text = rows.column(place), next((each for each in fields[name] if is_text(each.type)), None)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if text is not None and len(kinds) > 1:
            values = _as_text(values, numbers.format_of(text))
        elif len(kinds) > 1 and all(map(pa.types.is_temporal, kinds)):
            values = _cast(values, TIME, zone)
        elif len(kinds) > 1 and pa.types.is_boolean(values.type):
            values = values.cast(pa.int8())
        field = pa.field(name, values.type, metadata=text.metadata if text is not None else None)
        rows = rows.set_column(place, field, values)
    return rows


def value_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values, which is that of a dictionary's."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _as_text(values: pa.ChunkedArray, form: NumberFormat) -> pa.ChunkedArray:
    """Returns values as a file of text has them whose numbers are in a format; lists stay lists."""
    if pa.types.is_floating(values.type):
        values = _without_nan(values)
    if pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        return pc.replace_substring(values.cast(pa.string()), ".", form.decimal)
    return values if pa.types.is_nested(values.type) else values.cast(pa.string())


def times(values: pa.ChunkedArray, form: str, *, name: str) -> pa.ChunkedArray:
    """Returns values of the column `name` as times, in a unit of `SINCE_1970` or in a format of strptime.

    Times, and with a format of strptime all values that are not text, are returned unchanged. Raises
    ArrowInvalid, which names the row of the first value that cannot be read.
    """
    if pa.types.is_temporal(values.type):
        return values
    if form in SINCE_1970:
        return _since_1970(values, form, name)
    if not is_text(values.type):
        return values
    values = numbers.without_words(values)
    read = times_or_null(values, form)
    if read.null_count > values.null_count:
        first = pc.and_(read.is_null(), values.is_valid()).index(pa.scalar(True)).as_py()
        raise pa.ArrowInvalid(f"{name} of row {first + 1} is {values[first].as_py()!r}, not a time as {form}")
    return read


def with_clock(dates: pa.ChunkedArray, clocks: pa.ChunkedArray) -> pa.ChunkedArray:
    """Joins dates and times of day to texts such as `31/01/2025 09:05`; null where either is missing.

    Some programs write a date with midnight, or a time of day with a date; both additions are dropped. Hours
    get two digits.
    """
    if not is_text(dates.type):
        dates = dates.cast(pa.date32()).cast(pa.string())
    days = pc.replace_substring_regex(numbers.without_words(dates), MIDNIGHT, "")
    hours = numbers.without_words(clocks if is_text(clocks.type) else clocks.cast(pa.string()))
    hours = pc.replace_substring_regex(hours, DAY_OF_NONE, "")
    hours = pc.replace_substring_regex(hours, r"^(\d[:.])", r"0\1")
    return pc.binary_join_element_wise(days.cast(pa.string()), hours.cast(pa.string()), " ")


def times_or_null(texts: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """Returns texts in a format of strptime as times; null for a text that is not in the format.

    `%f` is a fraction of a second after a point or a comma. A format that ends with `UTC`, `GMT`, `Z` or
    `+0000` is of moments.
    """
    whole, fraction = texts, None
    if FRACTION.search(form):
        parts = pc.extract_regex(texts, r"^(?P<head>.*\d)[.,](?P<fraction>\d{1,9})(?P<tail>.*)$")
        head, fraction, tail = (pc.struct_field(parts, name) for name in ("head", "fraction", "tail"))
        between = pa.scalar("", head.type)  # large texts too, which pandas writes
        whole, form = pc.binary_join_element_wise(head, tail, between), FRACTION.sub("", form)
    read = pc.strptime(whole, format=form, unit="us", error_is_null=True)
    read = _without_overflow(whole, read, form)
    if fraction is not None:
        digits = pc.utf8_slice_codeunits(pc.utf8_rpad(fraction, 6, "0"), 0, 6)
        read = pc.add(read, digits.cast(pa.int64()).cast(pa.duration("us")))
    return pc.assume_timezone(read, "UTC") if IN_UTC.search(form) and not read.type.tz else read


def iso_times(texts: pa.ChunkedArray, kind: pa.DataType = TIME) -> pa.ChunkedArray:
    """Returns texts in ISO 8601 as times of `kind`, or in UTC where they have offsets; raises ArrowInvalid.

    A comma before the fraction of a second, which may have any number of digits, a blank before the offset,
    and ` UTC` instead of `Z` are read too.
    """
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        pass
    regular = pc.replace_substring_regex(texts, r"(:\d\d)[.,](\d{1,6})\d*", r"\1.\2")
    regular = pc.replace_substring_regex(regular, r"(:\d\d(?:\.\d+)?)\s*(?:Z|UTC|GMT)$", r"\1Z")
    regular = pc.replace_substring_regex(regular, r"(:\d\d(?:\.\d+)?)\s+([+-]\d\d)", r"\1\2")
    try:
        return _parsed(regular, kind, delivered=texts)
    except pa.ArrowInvalid as error:
        try:
            return regular.cast(MOMENT)
        except pa.ArrowInvalid:
            raise _mixed(texts) or error from None


def moments_us(array: pa.ChunkedArray, zone: str, *, twice: Literal["earliest", "latest"]) -> pa.ChunkedArray:
    """Returns times as microseconds since 1970 UTC; raises ArrowInvalid where they are none.

    Times without a zone are in `zone`. Where its clocks showed a time twice, `twice` picks the moment.
    """
    array, local = _as_delivered(array, pa.timestamp("us")), pa.timestamp("us")
    if not (pa.types.is_timestamp(array.type) and array.type.tz):
        array = pc.assume_timezone(array.cast(local, safe=False), zone, ambiguous=twice, nonexistent=twice)
    return array.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())


def in_zone(array: pa.ChunkedArray, zone: str) -> pa.ChunkedArray:
    """Returns times in `zone`, without it; raises pyarrow's errors where they are none."""
    return _cast(array, pa.timestamp("us"), zone)


def _since_1970(values: pa.ChunkedArray, unit: str, name: str) -> pa.ChunkedArray:
    """Returns the moments that numbers of a unit stand for; raises ArrowInvalid where one is none."""
    try:
        numbers = values.cast(pa.int64())
        times = pc.multiply(numbers, int(SINCE_1970[unit])) if unit != "ns" else pc.divide(numbers, 1000)
    except pa.ArrowInvalid:  # a part of a second
        numbers = _parsed(values, pa.float64()) if is_text(values.type) else values.cast(pa.float64())
        times = pc.round(pc.multiply(numbers, SINCE_1970[unit])).cast(pa.int64())
    wrong = pc.or_(pc.less(times, 0), pc.greater(times, END_US)).index(pa.scalar(True)).as_py()
    if wrong >= 0:
        raise pa.ArrowInvalid(
            f"{name} of row {wrong + 1} is {values[wrong].as_py()}, not a time in {unit} since 1970"
        )
    return times.cast(pa.timestamp("us", "UTC"))


def _without_overflow(texts: pa.ChunkedArray, times: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """Returns the times with null for a day that its month does not have, such as 30 February.

    The reader takes it for one of the first three days of the next month.
    """
    early = pc.fill_null(pc.less_equal(pc.day(times), 3), False)
    wrong = []
    for text in pc.unique(texts.filter(early)).to_pylist():
        try:
            datetime.strptime(text.strip(), form)
        except ValueError as error:
            if "day is out of range" in str(error):
                wrong.append(text)
    if not wrong:
        return times
    return pc.if_else(pc.is_in(texts, pa.array(wrong, texts.type)), pa.scalar(None, times.type), times)


def _numbered(values: pa.ChunkedArray, label: Label, *, before: Sequence[str]) -> pa.ChunkedArray:
    """Returns the numbers of classes that are given by name; NO_CLASS for a name that is not among them.

    Values that are numbers already stand for the classes of `before`, if there are any, and are renumbered.
    """
    if not is_text(values.type):
        places = {name: place for place, name in enumerate(label.classes)}
        moved = pa.array([places.get(name, NO_CLASS) for name in before], pa.int64())
        known = pc.and_(pc.greater_equal(values, 0), pc.less(values, len(before)))
        return pc.if_else(known, moved.take(pc.if_else(known, values, 0)), values) if before else values
    places = pc.index_in(values, pa.array(label.classes, values.type))
    return pc.if_else(pc.and_(places.is_null(), values.is_valid()), pa.scalar(NO_CLASS, pa.int32()), places)


def _cast(array: pa.ChunkedArray, kind: pa.DataType, zone: str) -> pa.ChunkedArray:
    """The column as `kind`, times in `zone`; raises pyarrow's errors."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_floating(array.type):
        array = _without_nan(array)
    if pa.types.is_timestamp(kind):
        return _in_zone(array, kind, zone)
    if pa.types.is_string(kind):
        return array.cast(kind)
    if pa.types.is_boolean(kind) and not is_text(array.type):
        array = array.cast(pa.int64())
        if not pc.all(pc.is_in(array, pa.array([0, 1, None]))).as_py():
            raise pa.ArrowInvalid("a number other than 0 and 1 is neither true nor false")
    if pa.types.is_temporal(array.type):
        raise pa.ArrowInvalid("a time is not a number")
    if pa.types.is_fixed_size_list(kind) and array.null_count:
        first = array.is_null().index(pa.scalar(True)).as_py()
        raise pa.ArrowInvalid(f"row {first + 1} is null, and Parquet keeps no missing vector")
    if is_text(array.type) and pa.types.is_integer(kind):  # tools write 1.0 where a column has gaps
        array = pc.replace_substring_regex(array.cast(pa.large_string()), r"^(-?\d+)\.0+$", r"\1")
    cast = _parsed(array, kind) if is_text(array.type) else array.cast(kind)
    return _without_nan(cast) if pa.types.is_floating(kind) else cast


def _without_nan(array: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)


def _in_zone(array: pa.ChunkedArray, kind: pa.DataType, zone: str) -> pa.ChunkedArray:
    """Moments without a zone, those of `zone`."""
    array = _as_delivered(array, kind)
    if pa.types.is_timestamp(array.type) and array.type.tz:
        array = pc.local_timestamp(array.cast(pa.timestamp(array.type.unit, zone)))
    return array.cast(kind, safe=False)


def _as_delivered(array: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Times with the zone that they came with, if any; text becomes `kind`, in UTC where it has offsets."""
    if is_text(array.type):
        return iso_times(numbers.without_words(array), kind)
    if not pa.types.is_temporal(array.type) and not pa.types.is_null(array.type):
        raise pa.ArrowInvalid("a number is not a time")
    return array


def _mixed(texts: pa.ChunkedArray) -> pa.ArrowInvalid | None:
    """Returns the error of times of which some have an offset; None where all have, or none has."""
    have = pc.match_substring_regex(texts, r":\d\d([.,]\d+)?\s*(Z|UTC|GMT|[+-]\d\d(:?\d\d)?)$")
    one, other = (have.index(pa.scalar(value)).as_py() for value in (True, False))
    if min(one, other) < 0:
        return None
    return pa.ArrowInvalid(
        f"row {one + 1} is {texts[one].as_py()!r}, with an offset, and row {other + 1} is "
        f"{texts[other].as_py()!r}, without"
    )


def _parsed(
    texts: pa.ChunkedArray, kind: pa.DataType, *, delivered: pa.ChunkedArray | None = None
) -> pa.ChunkedArray:
    """Text as `kind`; the error names the first value that is none, found by halving, as it was delivered."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        low, high = 0, len(texts)  # all texts before `low` can be cast, some text before `high` cannot
        while high - low > 1:
            middle = (low + high) // 2
            try:
                texts.slice(low, middle - low).cast(kind)
                low = middle
            except pa.ArrowInvalid:
                high = middle
        value = (texts if delivered is None else delivered)[low].as_py()
        raise pa.ArrowInvalid(f"row {low + 1} is {value!r}") from None

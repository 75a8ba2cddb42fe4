"""Keeps the text of values that the type of their column cannot hold, beside the typed rows.

A partition is typed, so such a cell is null in it. The delivered text is kept in an extra column,
`AS_DELIVERED`, in partitions with such cells only: null for a good row, else the texts by column, as JSON.
The row is counted, restated and erased like any other, and `validate` sends it to quarantine by the rule that
X is a Float. A column that most values do not fit has changed its type, which is an error of its own.
"""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

AS_DELIVERED = "(as delivered)"
TOO_BAD = 0.5  # of a column's values; as many are another type
FEWEST_TO_STOP = 1000  # different values that do not fit, before it is asked whether most do not

Cast = Callable[[pa.ChunkedArray], pa.ChunkedArray]


def cast_each(values: pa.ChunkedArray, cast: Cast) -> tuple[pa.ChunkedArray, pa.Array | None]:
    """Returns the values cast, with null for a value that cannot be cast, and a mask of those or None.

    Raises pyarrow's error where half of the values or more cannot be cast, or where each value can be cast
    alone but not all together, such as times with and without an offset.
    """
    try:
        return cast(values), None
    except pa.ArrowInvalid as error:
        reason = error
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_dictionary(whole.type):
        whole = whole.cast(whole.type.value_type)
    is_text = pa.types.is_string(whole.type) or pa.types.is_large_string(whole.type)
    encoded = whole.dictionary_encode() if is_text else None  # a text that comes again is looked at once
    wrong = _wrong(encoded.dictionary if encoded is not None else whole, cast)
    if wrong is None or not wrong.any():
        raise reason
    if encoded is not None:
        wrong = np.append(wrong, False)[encoded.indices.fill_null(len(wrong)).to_numpy()]
    bad = pa.array(wrong)
    if wrong.sum() >= TOO_BAD * pc.sum(pc.or_(bad, whole.is_valid())).as_py():
        raise reason
    good = cast(pa.chunked_array([whole.filter(pc.invert(bad))])).combine_chunks()
    empty = pa.nulls(1, good.type)
    if pa.types.is_fixed_size_list(good.type):  # Parquet keeps no missing vector
        empty = pa.array([[float("nan")] * good.type.list_size], good.type)
    places = np.where(wrong, len(good), np.cumsum(~wrong) - 1)
    return pa.chunked_array([pa.concat_arrays([good, empty]).take(pa.array(places))]), bad


def _wrong(values: pa.Array, cast: Cast) -> "NDArray[np.bool_] | None":
    """Returns which values cannot be cast; None if more cannot than it is worth looking for."""
    wrong = np.zeros(len(values), dtype=np.bool_)
    num_wrong, left = 0, [(0, len(values))]
    while left:
        start, length = left.pop()
        try:
            cast(pa.chunked_array([values.slice(start, length)]))
        except pa.ArrowInvalid:
            if length > 1:
                left += [(start + length // 2, length - length // 2), (start, length // 2)]
                continue
            wrong[start] = True
            num_wrong += 1
            if num_wrong > max(FEWEST_TO_STOP, TOO_BAD * len(values)):
                return None
    return wrong


def cast_column(rows: pa.Table, field: pa.Field, cast: Cast) -> tuple[pa.ChunkedArray, pa.Array | None]:
    """Returns a column of the rows as `field`, and the text of each bad cell; None where none is bad.

    Rows of a partition may have texts of cells that were bad before: they are cast anew with the others where
    the field is text, and else stay bad. Raises pyarrow's errors as `cast_each` does.
    """
    values = rows[field.name]
    before = texts_of(rows, field.name)
    if before is not None and pa.types.is_string(field.type):
        return pc.coalesce(before, cast(values)), None
    made, bad = cast_each(values, cast)
    if bad is None:
        return made, before
    texts = pc.if_else(bad, _as_text(values), pa.scalar(None, pa.string()))
    return made, texts if before is None else pc.coalesce(before, texts)


def _as_text(values: pa.ChunkedArray) -> pa.Array:
    whole = values.combine_chunks()
    try:
        return whole.cast(pa.string()).fill_null("null")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # lists, and bytes that are no text
        return pa.array(["null" if value is None else str(value) for value in whole.to_pylist()], pa.string())


def with_texts(rows: pa.Table, texts: Mapping[str, pa.Array]) -> pa.Table:
    """Returns the rows with the column `AS_DELIVERED`, of texts by column, null where a cell is good."""
    if not texts:
        return rows
    columns = {name: values.to_pylist() for name, values in texts.items()}
    cells = [
        json.dumps(bad, ensure_ascii=False) if bad else None
        for bad in (
            {name: values[n] for name, values in columns.items() if values[n] is not None}
            for n in range(len(rows))
        )
    ]
    return rows.append_column(AS_DELIVERED, pa.array(cells, pa.string()))


def without_texts(rows: pa.Table) -> pa.Table:
    """Returns the rows in the columns of the table alone."""
    return rows.drop_columns([AS_DELIVERED]) if AS_DELIVERED in rows.column_names else rows


def texts_of(rows: pa.Table, name: str) -> "pa.Array | None":
    """Returns what was delivered where the cells of a column are bad, null elsewhere; None where none is."""
    if rows.schema.get_field_index(AS_DELIVERED) < 0:  # not by a list of all names, for each column
        return None
    cells = rows[AS_DELIVERED]
    named = pc.match_substring(cells, json.dumps(name, ensure_ascii=False))
    if not pc.any(named).as_py():  # of most columns, whose number must not multiply the work
        return None
    texts = [json.loads(text).get(name) if text else None for text in cells.to_pylist()]
    return pa.array(texts, pa.string()) if any(text is not None for text in texts) else None


def with_delivered_texts(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with the texts that were delivered in the place of its empty cells."""
    texts: dict[str, Any] = json.loads(row.get(AS_DELIVERED) or "{}")
    return {name: value for name, value in row.items() if name != AS_DELIVERED} | texts

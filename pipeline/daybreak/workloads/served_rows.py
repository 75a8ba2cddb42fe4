"""Predicts raw rows, as a client sends them, by the features that training had.

Rows are brought into the columns and types of the table, less the label; those of one day become features
together, by the same function as in training (daybreak/data/features.py), and know the days before through
`past`; then the model predicts all of them as one batch. What is not a row of the table is refused in one
sentence that names all that is wrong.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from datetime import time as clock
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.table import AnyColumn, Table, codes
from daybreak.contract.workload import CALIBRATION, EPOCH, State
from daybreak.data.features import features_of, past_of, read_clean

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import Tensor, nn

BATCH_SIZE = 8192
# Names of column types in errors, by `kind`, since a version may bring its own classes.
WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "category": "text",
    "id": "text",
    "text": "text",
    "time": "a time, as 2025-01-31T09:30:00 or seconds since 1970",
    "bytes": "bytes, in base64 where they are text",
}
FIRST_YEAR, LAST_YEAR = 1900, 2200  # of a row's own time


@dataclass(frozen=True, kw_only=True)
class ServedRows:
    """A model that predicts rows, with all that their features need; threads may share it."""

    workload: Any
    model: "nn.Module"
    state: State
    days: Sequence[date] = ()  # partitions that the features of later days may look back on
    read: "Callable[[date], pa.Table]" = read_clean  # returns one of these

    def predict(self, rows: Any) -> "dict[str, NDArray[Any]]":
        """Returns what the model predicts of each row, shape [n, ...], by the names of `predict`.

        Raises DataError where the rows are not rows of the table.
        """
        return self.of(conformed(rows, self.workload.table))

    def of(self, rows: "pa.Table") -> "dict[str, NDArray[Any]]":
        """Returns what `predict` does of rows that are conformed."""
        import numpy as np
        import torch

        batch = {name: torch.from_numpy(values) for name, values in self.features(rows).items()}
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        parts: dict[str, list[NDArray[Any]]] = {}
        with torch.inference_mode():
            for start in range(0, len(rows), BATCH_SIZE):
                some = {name: values[start : start + BATCH_SIZE].to(device) for name, values in batch.items()}
                size = min(BATCH_SIZE, len(rows) - start)
                for name, made in predictions(self.workload, self.model, some, size=size).items():
                    parts.setdefault(name, []).append(made.cpu().numpy())
        return {name: np.concatenate(values) for name, values in parts.items()}

    def features(self, rows: "pa.Table") -> "dict[str, NDArray[Any]]":
        """Returns the features of conformed rows of any days, in their order."""
        import numpy as np

        numbers = _day_numbers(rows, self.workload.table)
        made, places = [], []
        for number in np.unique(numbers).tolist():
            where = np.flatnonzero(numbers == number)
            day = date.fromordinal(EPOCH.toordinal() + number)
            past = past_of(self.workload, day, self.days, read=self.read)
            made.append(features_of(self.workload, rows.take(where), self.state, past))
            places.append(where)
        if len(made) == 1:
            return made[0]
        back = np.argsort(np.concatenate(places))
        return {name: np.concatenate([of_day[name] for of_day in made])[back] for name in made[0]}


def predictions(workload: Any, model: "nn.Module", batch: Any, *, size: int) -> "dict[str, Tensor]":
    """Returns what `predict` makes of a batch of `size` samples; a tensor alone is named `prediction`.

    Raises ParamsError where there is not one prediction for each sample, or a prediction has the name of a
    column that is beside it in files of predictions.
    """
    made = workload.predict(model, batch)
    named: dict[str, Tensor] = dict(made) if isinstance(made, Mapping) else {"prediction": made}
    if clash := sorted(set(beside_predictions(workload.table)) & set(named)):
        raise ParamsError(
            f"{type(workload).__qualname__}.predict returns {clash[0]!r}, which is a column of the rows and "
            f"stands beside the predictions; give it another name"
        )
    for name, values in named.items():
        if not hasattr(values, "shape") or not values.shape or values.shape[0] != size:
            shape = list(getattr(values, "shape", ())) or type(values).__name__
            raise ParamsError(
                f"{type(workload).__qualname__}.predict: {name!r} has shape {shape} for {size:,} samples; "
                f"return one prediction a sample, shape [{size}, ...]"
            )
    return named | _calibrated(workload, model, named)


def _calibrated(workload: Any, model: "nn.Module", named: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Returns the prediction that the workload calibrates, calibrated; empty without a calibrator."""
    calibrator = getattr(workload, "calibrator", None)
    if calibrator is None:
        return {}
    name = calibrator.prediction
    if name not in named:
        raise ParamsError(
            f"calibrator is of {name!r}, and {type(workload).__qualname__}.predict returns "
            f"{', '.join(named)}; name one of these in its `prediction`"
        )
    chances = named[name]
    return {name: calibrator.apply(chances, model.get_buffer(CALIBRATION).to(chances.device))}


def beside_predictions(table: Table) -> tuple[str, ...]:
    """Returns the columns of the rows that files of predictions have, to know which row is which."""
    return tuple(dict.fromkeys(name for name in (table.unit, *table.key, table.time) if name))


def conformed(rows: Any, table: Table) -> "pa.Table":
    """Returns rows in the columns and types of the table, less the label.

    A column that may be null may be left out; a column of the label is left out. Times with a zone come into
    that of the table; numbers are seconds since 1970.

    Args:
        rows: at least one, as dicts, or as a table of pandas or of Arrow.
        table: what they are to be rows of.

    Raises:
        DataError: columns are missing, unknown or of another type; the sentence names all of them.
    """
    import pyarrow as pa

    num_rows, given = _columns(rows)
    if not num_rows:
        raise DataError("there are no rows; send at least one")
    schema, arrays, wrong = table.schema(), {}, []
    for name, column in table.features.items():
        kind = schema.field(name).type
        try:
            array = (
                _cast(given[name], column, kind, table.zone) if name in given else pa.nulls(num_rows, kind)
            )
            if name == table.time:
                _expect_days(array)
        except (ValueError, TypeError, OverflowError, NotImplementedError) as error:  # Arrow's among them
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            wrong.append(f"{name} is to be {WORDS[column.kind]} ({why:.100})")
            continue
        if array.null_count and (not column.nullable or name == table.time):
            where = f"is null in {array.null_count:,} of {num_rows:,} rows" if name in given else "is missing"
            wrong.append(f"{name} {where}")
        arrays[name] = array
    if unknown := sorted(str(name) for name in set(given) - set(table.columns)):
        wrong.append(f"there is no column {', '.join(unknown)}")
    if wrong:
        raise DataError(
            f"these are not rows of the table: {'; '.join(wrong)}; send {', '.join(_wanted(table))}"
        )
    return pa.table(arrays, schema=pa.schema([schema.field(name) for name in arrays]))


def as_records(rows: "pa.Table") -> list[dict[str, Any]]:
    """Returns rows as a client would send them: in JSON's types, times as ISO text, bytes in base64.

    Raises DataError for a value that JSON has no type for, such as a length of time.
    """
    return [{name: _plain(value, name) for name, value in row.items()} for row in rows.to_pylist()]


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | clock):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list):
        return [_plain(each, name) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each, name) for key, each in value.items()}
    if value is not None and not isinstance(value, str | int | float):
        raise DataError(
            f"{name} has a {type(value).__name__}, which no row that a client sends can have; give it as a "
            f"number or as text"
        )
    return value


def _wanted(table: Table) -> Iterator[str]:
    for name, column in table.features.items():
        kind = "numbers" if getattr(column, "size", 0) else column.kind
        yield f"{name} ({kind}{' or null' if column.nullable and name != table.time else ''})"


def _columns(rows: Any) -> tuple[int, dict[str, Any]]:
    """Returns the number of rows, and their values by column."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return len(rows), {name: rows[name] for name in rows.column_names}
    if isinstance(rows, pd.DataFrame):
        plain = {str(name): isinstance(kind, np.dtype) for name, kind in rows.dtypes.items()}
        return len(rows), {
            name: rows[name].to_numpy() if of_numpy else rows[name].tolist()
            for name, of_numpy in plain.items()
        }
    names = dict.fromkeys(name for row in rows for name in row)
    return len(rows), {name: [row.get(name) for row in rows] for name in names}


def _cast(values: Any, column: AnyColumn, to: "pa.DataType", zone: str) -> Any:
    """Returns the values as an array of Arrow; ValueError, TypeError or the like where they are not such."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    array = values if isinstance(values, pa.ChunkedArray) else pa.array(values, from_pandas=True)
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    dtype = array.type
    if types.is_null(dtype):
        return pa.nulls(len(array), to)
    if types.is_floating(dtype):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, dtype), array)
    if column.kind == "time":
        return _times(array, zone)
    number, text = types.is_integer(dtype) or types.is_floating(dtype), _is_text(dtype)
    if column.kind == "bytes" and text:
        coded = array.to_pylist()
        return pa.array([None if one is None else base64.b64decode(one, validate=True) for one in coded], to)
    fits = {
        "float": _is_list(dtype) if types.is_fixed_size_list(to) else number,
        "int": number,
        "bool": types.is_boolean(dtype),
        "bytes": types.is_binary(dtype) or types.is_large_binary(dtype),
    }.get(column.kind, text or types.is_integer(dtype))
    if not fits:
        raise TypeError(f"it is {dtype}")
    if column.kind in ("id", "category"):
        return codes(array, declared=getattr(column, "values", ()))
    return array.cast(to)


def _is_text(kind: "pa.DataType") -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_list(kind: "pa.DataType") -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _times(array: Any, zone: str) -> Any:
    """Returns moments in the zone of the table, without a zone."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    to = pa.timestamp("us")
    if _is_text(array.type):
        return pa.array([None if text is None else _moment(text, zone) for text in array.to_pylist()], to)
    if types.is_integer(array.type) or types.is_floating(array.type):
        seconds = array.to_pylist()
        return pa.array([None if one is None else _local(one, zone) for one in seconds], to)
    if not (types.is_timestamp(array.type) or types.is_date(array.type)):
        raise TypeError(f"it is {array.type}")
    if getattr(array.type, "tz", None):
        array = pc.local_timestamp(array.cast(pa.timestamp(array.type.unit, zone)))
    return array.cast(to, safe=False)


def _expect_days(moments: Any) -> None:
    """Raises ValueError where a row's own time is far from any day that a table has.

    Features look back from it by days, which must be dates as well.
    """
    import pyarrow.compute as pc

    ends = pc.min_max(moments).as_py()
    for moment in filter(None, ends.values()):
        if not FIRST_YEAR <= moment.year <= LAST_YEAR:
            raise ValueError(f"{moment} is not of a year from {FIRST_YEAR} to {LAST_YEAR}")


def _moment(text: str, zone: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None) if moment.tzinfo else moment


def _local(seconds: float, zone: str) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, ZoneInfo(zone)).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{seconds:g} seconds since 1970 is not a time that exists") from None


def _day_numbers(rows: "pa.Table", table: Table) -> "NDArray[Any]":
    """Returns the day of each row, counted from EPOCH, shape [n]."""
    import pyarrow as pa

    numbers: NDArray[Any] = rows[table.time].cast(pa.date32()).cast(pa.int32()).to_numpy()
    return numbers

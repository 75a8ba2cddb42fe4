"""Writes the rows that a page shows as CSV or JSON, for a spreadsheet or a program."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Response

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # by which a text is a formula in a spreadsheet


def as_json(values: object, *, name: str) -> Response:
    """Returns values as a file of JSON."""
    return _file(json.dumps(values), name=f"{name}.json", media_type="application/json")


def as_csv(rows: Sequence[Mapping[str, Any]], *, name: str) -> Response:
    """Returns rows as a file of CSV; a column for each key of any row, empty where a row has no value.

    What people typed stays text in a spreadsheet: a text that would be a formula there begins with '.
    """
    written = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(written, list(columns))
    writer.writeheader()
    writer.writerows({key: _as_text(value) for key, value in row.items()} for row in rows)
    return _file(written.getvalue(), name=f"{name}.csv", media_type="text/csv")


def _as_text(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _file(text: str, *, name: str, media_type: str) -> Response:
    return Response(
        text,
        media_type=media_type,
        headers={
            "content-disposition": f'attachment; filename="{name}"',
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
        },
    )

"""Fields of the forms by which people start a DAG or answer it."""

from typing import Any

from airflow.sdk import Param


def optional(kind: str, title: str, description: str, **limits: Any) -> Param:
    """Returns a field of this JSON type that may be left empty; `limits` are those of JSON Schema."""
    return Param(None, type=["null", kind], title=title, description=description, **limits)

"""Describes what clients may send to a router, for its page of documentation (/docs).

The router checks bodies by itself, since that costs a fraction of the time.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from daybreak.contract.workload import MAX_NAME

TOP = 20  # items, if a request does not say
MAX_ROWS = 1_000  # of a request
MAX_NESTING = 20  # objects and lists within each other; a row may hold a list of objects


Rows = Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_ROWS)]


Attributes = Annotated[
    dict[str, str | float | bool | None] | None,
    Field(
        description="of the user, such as the device: at most 10 short texts, numbers or booleans",
        examples=[{"device": "phone", "country": "FR"}],
    ),
]


class RecommendBody(BaseModel):
    """Asks for items for a user."""

    user: str = Field(min_length=1, max_length=MAX_NAME, examples=["17850"])
    top: int = Field(TOP, ge=1, description="how many, serving.max_top of params.yaml at most")
    attributes: Attributes = None


class PredictBody(BaseModel):
    """Asks for predictions of rows, all of one unit of the table where that has one."""

    rows: Rows = Field(
        description="columns of the table less the label; those that may be null may be left out; times as "
        "ISO 8601 or seconds since 1970, bytes in base64",
        examples=[[{"ts": "2025-01-31T09:30:00", "account": "a1", "amount": 12.5}]],
    )
    attributes: Attributes = None


class AssignmentBody(BaseModel):
    """Asks which version a user meets, where a team serves by itself."""

    user: str = Field(min_length=1, max_length=MAX_NAME, examples=["17850"])


class ObservationsBody(BaseModel):
    """Rows from a team's own serving: the versions that users met, and the outcomes."""

    rows: Rows = Field(
        description="user, or unit as the assignment has it; version that answered; time as ISO 8601 or "
        "seconds since 1970; metric once it is known; error, latency_s and attributes where they are known",
        examples=[[{"user": "17850", "version": 4, "time": "2025-01-31T09:30:00Z", "metric": 12.5}]],
    )


class OutcomeBody(BaseModel):
    """Tells what came of an answer; the first that is told stays."""

    exposure: str = Field(pattern="^[0-9a-f]{32}$", description="the id that came with the answer")
    user: Any = Field(None, description="whom the answer was for, or what its rows have as their unit")
    items: list[str] | None = Field(None, description="codes of the items that were taken")
    labels: list[float | bool | str | None] | None = Field(None, description="of the rows, in their order")

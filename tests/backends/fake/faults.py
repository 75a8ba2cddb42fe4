"""What goes wrong with a call: scripted by a test, or answered by the service."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


def missing(kind: str, name: str) -> Refusal:
    return Refusal(404, "NOT_FOUND", f"The {kind} {name!r} does not exist.")


def nonsense(message: str) -> Refusal:
    return Refusal(400, "INVALID_ARGUMENT", message)


@dataclass(frozen=True)
class Trouble:
    """The fault of a call: refused before acting, or the reply lost afterwards.

    `late`: its reply is lost, and it acts when `FakeVertex.let_late_ones_act` is called.
    """

    how: Literal["refuse", "cut before", "cut after", "hang", "hang after", "late"]
    status: int = 503
    reason: str = "UNAVAILABLE"
    message: str = "The service is currently unavailable."


def refuse_bad_labels(labels: Any) -> None:
    for key, value in labels.items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
            raise nonsense(f"Label {key}={value} is not valid.")


def filtered(text: str) -> Callable[[Any], bool]:
    """`labels.KEY="VALUE" AND ...`, also by state, as the service documents it."""
    tests: list[Callable[[Any], bool]] = []
    for part in filter(None, (part.strip() for part in text.split(" AND "))):
        group = [term.strip() for term in part.strip("()").split(" OR ")]
        tests.append(lambda one, group=group: any(_term(term)(one) for term in group))
    return lambda one: all(test(one) for test in tests)


def _term(text: str) -> Callable[[Any], bool]:
    if match := re.fullmatch(r'labels\.([a-z0-9_-]+)="([^"]*)"', text):
        return lambda one: one.labels.get(match[1]) == match[2]
    if match := re.fullmatch(r'state="([A-Z_]+)"', text):
        return lambda one: one.state.name == match[1]
    raise nonsense(f"Invalid filter: {text}")


def page(matching: list[Any], request: Any) -> tuple[list[Any], str]:
    """A page of what was found, and the token of the next one."""
    first, size = int(request.page_token or 0), request.page_size or 100
    token = str(first + size) if first + size < len(matching) else ""
    return matching[first : first + size], token

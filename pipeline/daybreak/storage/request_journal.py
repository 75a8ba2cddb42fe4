"""Journals requests before they are made, so that a kill or a lost reply leaves one thing made, not two.

A request has a name that goes out with it, as a label or as the name of the thing. It is on the disk before
it is made; its `handle`, the maker's name of what was made, follows with the reply. Whoever meets a request
without a handle looks for what carries its name and adopts that, or makes it again.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from daybreak.contract import records
from daybreak.contract.record_parts import Record
from daybreak.storage.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Request(Record):
    """A request for something that others make."""

    name: str
    handle: str = ""  # "": whether it was made is not known


Q = TypeVar("Q", bound=Request)


class RequestJournal(Journal, Generic[Q]):
    """Requests in a file; a change is on the disk before its method returns, whole or not at all."""

    def __init__(self, path: Path, kind: type[Q]) -> None:
        super().__init__(path, empty=[])
        self._kind = kind

    def read(self) -> dict[str, Q]:
        """Returns the requests by name, oldest first; DataError where one is not valid."""
        source = str(self.path)
        requests = (records.loads(self._kind, json.dumps(each), source=source) for each in super().read())
        return {request.name: request for request in requests}

    def put(self, request: Q) -> Q:
        """Adds a request, or replaces the one of its name."""
        self._write({**self.read(), request.name: request})
        return request

    def change(self, name: str, **facts: Any) -> Q | None:
        """Changes a request and returns it; None if there is none of that name."""
        if (before := self.read().get(name)) is None:
            return None
        changed = replace(before, **facts)
        return changed if changed == before else self.put(changed)

    def drop(self, name: str) -> None:
        """Removes a request, if there is one of that name."""
        requests = self.read()
        if requests.pop(name, None):
            self._write(requests)

    def _write(self, requests: dict[str, Q]) -> None:
        self.write([json.loads(records.dumps(each)) for each in requests.values()])

"""Long-running operations: begun at a call, ended by time, at the next look of anybody."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.longrunning import operations_pb2
from google.protobuf.message import Message

from tests.backends.fake.faults import missing

RPC_CODES = {400: 3, 403: 7, 404: 5, 409: 6, 429: 8, 500: 13, 503: 14}


@dataclass
class Work:
    """An operation. `finish` makes the object asked for and returns it, or None while it takes longer."""

    name: str
    finish: Callable[[], Message | None]
    metadata: Message
    ready_at: float
    fails: str = ""
    done: bool = False
    answer: Message | None = None
    error: tuple[int, str] | None = None

    def look(self) -> None:
        if self.done or time.monotonic() < self.ready_at:
            return
        if self.fails:
            self.error, self.done = (13, self.fails), True
            return
        try:
            self.answer = self.finish()
        except Failed as failed:
            self.error = (failed.code, str(failed))
        self.done = self.answer is not None or self.error is not None

    def message(self) -> operations_pb2.Operation:
        operation = operations_pb2.Operation(name=self.name, done=self.done)
        operation.metadata.Pack(self.metadata)
        if self.error:
            operation.error.code, operation.error.message = self.error
        elif self.answer is not None:
            operation.response.Pack(self.answer)
        return operation


class Failed(Exception):
    """What was asked for cannot be done after all."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Operations:
    """All operations. `takes_s` and `fails` are of the next ones, by method; `fails` is used up by one."""

    takes_s: dict[str, float] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)  # methods, in order

    def begin(self, method: str, parent: str, finish: Callable[[], Any], metadata: Any) -> Any:
        metadata.generic_metadata.create_time = datetime.now(UTC)
        name = f"{parent}/operations/{7_000_000 + len(self.works)}"
        work = Work(
            name=name,
            finish=lambda: None if (made := finish()) is None else type(made).pb(made),
            metadata=type(metadata).pb(metadata),
            ready_at=time.monotonic() + self.takes_s.get(method, 0.0),
            fails=self.fails.pop(method, ""),
        )
        self.works[name] = work
        self.begun.append(method)
        return work.message()

    def settle(self) -> None:
        """What has become due happens."""
        for work in list(self.works.values()):
            work.look()

    def get_operation(self, request: Any) -> Any:
        if request.name not in self.works:
            raise missing("Operation", request.name)
        return self.works[request.name].message()

    def list_operations(self, request: Any) -> Any:
        prefix = f"{request.name.removesuffix('/operations')}/operations/"
        operations = [work.message() for name, work in self.works.items() if name.startswith(prefix)]
        return operations_pb2.ListOperationsResponse(operations=operations)

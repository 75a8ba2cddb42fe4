"""Vertex AI on loopback: the services of tests/backends/fake, over the client's own routes and messages.

Jobs, models, endpoints and predictions are held in memory; each replica of a job and each deployed model is a
process. What goes wrong with calls is scripted by `Trouble`, and with long operations by `operations`.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.backends.fake.containers import Predictions
from tests.backends.fake.endpoints import Endpoints
from tests.backends.fake.faults import Refusal, Trouble
from tests.backends.fake.jobs import Jobs, Market
from tests.backends.fake.models import Models
from tests.backends.fake.operations import Operations
from tests.backends.fake.running import Running
from tests.backends.fake.transport import GrpcServer, RestServer

__all__ = ["FakeVertex", "Trouble"]


class FakeVertex:
    """The service; `with FakeVertex() as service: ... service.url`."""

    def __init__(self, *, image: Mapping[str, str]) -> None:
        self.image = dict(image)  # the environment of every container
        self.projects = {"p"}
        self.calls: list[str] = []
        self.trouble: Callable[[str], Trouble | None] = lambda method: None
        self.late: list[Callable[[], Any]] = []  # requests that were cut and act later
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self._scratch = tempfile.TemporaryDirectory(prefix="fake-vertex-")
        self.folder = Path(self._scratch.name)
        self.operations = Operations()
        self.custom, self.models, self.endpoints = Jobs(self), Models(self), Endpoints(self)
        self.predictions = Predictions(self)
        self.server = RestServer(self)
        self.url = self.server.url

    def __enter__(self) -> "FakeVertex":
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.custom.close()
        self.endpoints.close()
        if "grpc" in vars(self):
            self.grpc.close()
        self.server.shutdown()
        self.server.server_close()
        self._scratch.cleanup()

    @cached_property
    def grpc(self) -> GrpcServer:
        """The services over gRPC, begun at the first look."""
        return GrpcServer(self)

    # What tests do and ask

    @property
    def market(self) -> Market:
        return self.custom.market

    @property
    def jobs(self) -> dict[str, Running]:
        return self.custom.jobs

    def live(self) -> list[Running]:
        return [running for running in self.jobs.values() if running.thread.is_alive()]

    def only(self) -> Running:
        (running,) = self.jobs.values()
        return running

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    @contextmanager
    def troubled(self, *script: Trouble | None, method: str = "") -> Iterator[None]:
        """Lets the next calls (of one method) fail one after the other; later calls succeed."""
        left = list(script)

        def next_one(called: str) -> Trouble | None:
            return left.pop(0) if left and method in ("", called) else None

        self.trouble = next_one
        try:
            yield
        finally:
            self.trouble = lambda method: None

    def let_late_ones_act(self) -> None:
        """The requests that were cut, and were only on their way, arrive."""
        while self.late:
            self.late.pop(0)()

    # What the transports ask

    def has(self, method: str) -> bool:
        return any(hasattr(part, method) for part in self._parts)

    def call(self, method: str, request: Any) -> Any:
        part = next(part for part in self._parts if hasattr(part, method))
        if part is not self.custom:
            with self.lock:  # operations have no threads: they move on at each call
                self.operations.settle()
                if part is not self.predictions:
                    return getattr(part, method)(request)
        return getattr(part, method)(request)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.custom, self.models, self.endpoints, self.predictions, self.operations

    def known(self, name: str) -> None:
        """Refuses a name in a project that is not ours."""
        project = name.split("/")[1]
        if project not in self.projects:
            raise Refusal(403, "PERMISSION_DENIED", f"Permission denied on resource project {project}.")

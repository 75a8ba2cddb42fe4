"""Journals long-running operations at Vertex AI, so that a restarted process can resume them.

A request's handle is the name of its operation. A version that is to be undeployed as soon as that is
possible is a request, too, which stays without a handle.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import NoReturn

from daybreak.backends.place import NotDone
from daybreak.contract import clock
from daybreak.contract.errors import NotYet, ReleaseError
from daybreak.extensions.vertex.client import Denied
from daybreak.extensions.vertex.deployments import Deployments
from daybreak.storage.request_journal import Request, RequestJournal

log = logging.getLogger(__name__)

# google.rpc: deadline exceeded, no capacity or quota, aborted, internal, unavailable
RETRIABLE = (4, 8, 10, 13, 14)
UNDEPLOY = "undeploy "  # and the number of a version


@dataclass(frozen=True, kw_only=True)
class OperationRequest(Request):
    """A request that starts a long-running operation."""

    at: float = field(default_factory=clock.now)  # by the clock of the process that made it
    boot: str = field(default_factory=clock.boot)  # of the machine, and when that was by this clock
    booted_at: float = field(default_factory=clock.booted_at)

    @property
    def age_s(self) -> float:
        """Returns how long ago it was made, in seconds, also where the clock was set since."""
        return clock.now_by(self.boot, self.booted_at) - self.at


class OperationJournal(RequestJournal[OperationRequest]):
    """The requests whose operations are not known to have ended."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, OperationRequest)

    def to_undeploy(self) -> list[int]:
        """Returns the versions that are to be undeployed."""
        return sorted(int(name.removeprefix(UNDEPLOY)) for name in self.read() if name.startswith(UNDEPLOY))

    def keep(self, *versions: int) -> None:
        """Removes these versions from the undeploy list."""
        for version in versions:
            self.drop(f"{UNDEPLOY}{version}")

    def undeploy(self, *versions: int) -> None:
        """Adds these versions to the undeploy list."""
        for version in versions:
            self.put(OperationRequest(name=f"{UNDEPLOY}{version}"))


class Operations:
    """Starts each long-running operation of `who` once, by the journal.

    A request without a reply reaches the service within `settle_s` seconds, or never.
    """

    def __init__(
        self, journal: OperationJournal, deployments: Deployments, *, who: str, settle_s: float
    ) -> None:
        self.journal, self.deployments, self.who, self.settle_s = journal, deployments, who, settle_s

    def is_pending(self, name: str) -> bool:
        """Returns whether the operation may still succeed without another request."""
        request = self.journal.read().get(name)
        if request and request.handle:
            operation = self.deployments.operation(request.handle)
            return operation is not None and (not operation.done or not operation.code)
        return request is not None and self._may_still_arrive(request)

    def start(self, name: str, parent: str, call: Callable[[], str]) -> NoReturn:
        """Starts an operation once by `call`, and raises NotYet as long as it has not ended.

        Raises ReleaseError where the service says that it cannot be done.
        """
        request = self.journal.read().get(name)
        if request and not request.handle:
            request = self._adopted(parent, request)
        if request:
            self._check(request)
        self.journal.put(OperationRequest(name=name))
        try:
            operation = call()
        except (NotDone, Denied) as error:
            self.journal.drop(name)
            if isinstance(error, Denied) and error.status != HTTPStatus.CONFLICT:
                raise
            raise NotYet(f"{self.who}: {name}: {error}") from error
        self.journal.change(name, handle=operation)
        raise NotYet(f"{self.who}: {name} has begun")

    def _adopted(self, parent: str, request: OperationRequest) -> OperationRequest | None:
        """Returns a request without a reply with its operation, one that no other request has.

        None where the request never arrived. Raises NotYet while it may still arrive.
        """
        known = {each.handle for each in self.journal.read().values()}
        for operation in self.deployments.going_on(parent):
            begun = operation.begun_at.timestamp() if operation.begun_at else request.at
            if operation.name not in known and begun >= request.at - self.settle_s:
                log.info("%s: %s is taken for %s", self.who, operation.name, request.name)
                return self.journal.change(request.name, handle=operation.name)
        if self._may_still_arrive(request):
            raise NotYet(f"{self.who}: whether the request to {request.name} has arrived is not known yet")
        return None

    def _may_still_arrive(self, request: OperationRequest) -> bool:
        """Returns whether a request was made so lately; one of another boot that is dated later was not."""
        return 0 <= request.age_s < self.settle_s

    def _check(self, request: OperationRequest) -> NoReturn:
        name, operation = request.name, self.deployments.operation(request.handle)
        if operation and not operation.done:
            raise NotYet(f"{self.who}: {name} has been running for {request.age_s:,.0f} s")
        self.journal.drop(name)
        if operation and operation.code and operation.code not in RETRIABLE:
            raise ReleaseError(
                f"{self.who}: {name} failed ({operation.message}); look at its log in Cloud Logging, and at "
                f"serving.endpoint in params.yaml"
            )
        if operation and operation.code:
            log.warning("%s: %s failed (%s)", self.who, name, operation.message)
            raise NotYet(f"{self.who}: {name} failed ({operation.message}), and is retried")
        raise NotYet(f"{self.who}: {name} has ended")

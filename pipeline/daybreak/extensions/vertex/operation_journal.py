"""Journals long-running operations at Vertex AI, so that a restarted process can resume them.

Its document has two keys:

asked      the requests by a name of ours: when each was sent, and the name of its operation, "" until the
           reply came; an entry is written before the request is sent
unwanted   the versions to undeploy as soon as that is possible
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import NoReturn

from daybreak.backends.place import NotDone
from daybreak.contract import clock
from daybreak.contract.errors import NotYet, ReleaseError
from daybreak.extensions.vertex.client import Denied
from daybreak.extensions.vertex.deployments import Deployments
from daybreak.storage.journal import Journal

log = logging.getLogger(__name__)

# google.rpc: deadline exceeded, no capacity or quota, aborted, internal, unavailable
RETRIABLE = (4, 8, 10, 13, 14)


@dataclass(frozen=True, kw_only=True)
class OperationRequest:
    """A request that starts a long-running operation."""

    at: float  # seconds since 1970, by the clock of the process that made it
    operation: str = ""
    boot: str  # of the machine, and when that was by this clock
    booted_at: float

    @property
    def age_s(self) -> float:
        """Returns how long ago it was made, in seconds, also where the clock was set since."""
        return clock.now_by(self.boot, self.booted_at) - self.at


class OperationJournal:
    """The journal at a path. Every change is on the disk before the method returns."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path, empty={"asked": {}, "unwanted": []})
        self.alone = self._journal.alone

    def request(self, name: str) -> OperationRequest | None:
        """Returns the request of that name, unless its operation is known to have ended."""
        entry = self._journal.read()["asked"].get(name)
        return OperationRequest(**entry) if entry else None

    def operations(self) -> set[str]:
        """Returns the names of the operations that are known to be ours."""
        return {entry["operation"] for entry in self._journal.read()["asked"].values()} - {""}

    def record(self, name: str, request: OperationRequest) -> None:
        """Records a request before it is sent, or with the operation that the reply named."""
        document = self._journal.read()
        self._journal.write({**document, "asked": {**document["asked"], name: asdict(request)}})

    def remove(self, name: str) -> None:
        """Removes the request `name`, whose operation has ended; does nothing if there is none."""
        document = self._journal.read()
        if document["asked"].pop(name, None):
            self._journal.write(document)

    def to_undeploy(self) -> list[int]:
        """Returns the versions that are to be undeployed."""
        return list(self._journal.read()["unwanted"])

    def keep(self, *versions: int) -> None:
        """Removes these versions from the undeploy list."""
        self._set_to_undeploy(set(self.to_undeploy()) - set(versions))

    def undeploy(self, *versions: int) -> None:
        """Adds these versions to the undeploy list."""
        self._set_to_undeploy({*self.to_undeploy(), *versions})

    def _set_to_undeploy(self, versions: set[int]) -> None:
        document = self._journal.read()
        if sorted(versions) != document["unwanted"]:
            self._journal.write({**document, "unwanted": sorted(versions)})


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
        request = self.journal.request(name)
        if request and request.operation:
            operation = self.deployments.operation(request.operation)
            return operation is not None and (not operation.done or not operation.code)
        return request is not None and self._may_still_arrive(request)

    def start(self, name: str, parent: str, call: Callable[[], str]) -> NoReturn:
        """Starts an operation once by `call`, and raises NotYet as long as it has not ended.

        Raises ReleaseError where the service says that it cannot be done.
        """
        request = self.journal.request(name)
        if request and not request.operation:
            request = self._adopted(name, parent, request)
        if request:
            self._check(name, request)
        request = OperationRequest(at=clock.now(), boot=clock.boot(), booted_at=clock.booted_at())
        self.journal.record(name, request)
        try:
            operation = call()
        except (NotDone, Denied) as error:
            self.journal.remove(name)
            if isinstance(error, Denied) and error.status != HTTPStatus.CONFLICT:
                raise
            raise NotYet(f"{self.who}: {name}: {error}") from error
        self.journal.record(name, replace(request, operation=operation))
        raise NotYet(f"{self.who}: {name} has begun")

    def _adopted(self, name: str, parent: str, request: OperationRequest) -> OperationRequest | None:
        """Returns a request without a reply with its operation, one that no other request has.

        None where the request never arrived. Raises NotYet while it may still arrive.
        """
        known = self.journal.operations()
        for operation in self.deployments.going_on(parent):
            begun = operation.begun_at.timestamp() if operation.begun_at else request.at
            if operation.name not in known and begun >= request.at - self.settle_s:
                log.info("%s: %s is taken for %s", self.who, operation.name, name)
                adopted = replace(request, operation=operation.name)
                self.journal.record(name, adopted)
                return adopted
        if self._may_still_arrive(request):
            raise NotYet(f"{self.who}: whether the request to {name} has arrived is not known yet")
        return None

    def _may_still_arrive(self, request: OperationRequest) -> bool:
        """Returns whether a request was made so lately; one of another boot that is dated later was not."""
        return 0 <= request.age_s < self.settle_s

    def _check(self, name: str, request: OperationRequest) -> NoReturn:
        operation = self.deployments.operation(request.operation)
        if operation and not operation.done:
            raise NotYet(f"{self.who}: {name} has been running for {request.age_s:,.0f} s")
        self.journal.remove(name)
        if operation and operation.code and operation.code not in RETRIABLE:
            raise ReleaseError(
                f"{self.who}: {name} failed ({operation.message}); look at its log in Cloud Logging, and at "
                f"serving.endpoint in params.yaml"
            )
        if operation and operation.code:
            log.warning("%s: %s failed (%s)", self.who, name, operation.message)
            raise NotYet(f"{self.who}: {name} failed ({operation.message}), and is retried")
        raise NotYet(f"{self.who}: {name} has ended")

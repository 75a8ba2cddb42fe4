"""What was begun that takes long, and what shall go? A small book, so that whoever comes after a kill knows.

asked      what was asked of the service, by a name of ours: when, and the name of its operation, ""
           until its reply came; written before the service is asked
unwanted   versions that are to be taken down when they can be
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import NoReturn

from pipeline.backends.vertex.client import Denied, Throttled
from pipeline.backends.vertex.deployments import Deployments
from pipeline.contract.errors import NotYet, ReleaseError
from pipeline.storage.journal import Journal

log = logging.getLogger(__name__)

AGAIN = (4, 8, 10, 13, 14)  # google.rpc: too late, no capacity or quota, aborted, internal, unavailable


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One thing that takes long."""

    at: float  # seconds since 1970
    operation: str = ""


class Book:
    """The book at a path. Every change is on the disk before the method returns."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path, empty={"asked": {}, "unwanted": []})
        self.alone = self._journal.alone

    def asked(self, name: str) -> Asked | None:
        """What was asked for under that name, and is not known to have ended."""
        found = self._journal.read()["asked"].get(name)
        return Asked(**found) if found else None

    def operations(self) -> set[str]:
        """The operations that are known to be ours."""
        return {found["operation"] for found in self._journal.read()["asked"].values()} - {""}

    def ask(self, name: str, asked: Asked) -> None:
        """Write down what is about to be asked for, or what came back."""
        told = self._journal.read()
        self._journal.write({**told, "asked": {**told["asked"], name: asdict(asked)}})

    def drop(self, name: str) -> None:
        """It has ended."""
        told = self._journal.read()
        if told["asked"].pop(name, None):
            self._journal.write(told)

    def unwanted(self) -> list[int]:
        """Versions that are to be taken down."""
        return list(self._journal.read()["unwanted"])

    def want(self, *versions: int) -> None:
        """They may stay."""
        self._mark(set(self.unwanted()) - set(versions))

    def unwant(self, *versions: int) -> None:
        """They are to be taken down."""
        self._mark({*self.unwanted(), *versions})

    def _mark(self, versions: set[int]) -> None:
        told = self._journal.read()
        if sorted(versions) != told["unwanted"]:
            self._journal.write({**told, "unwanted": sorted(versions)})


class Begun:
    """What `who` has begun at the service, by the book. Requests settle in `settle_s`, or never came."""

    def __init__(self, book: Book, there: Deployments, *, who: str, settle_s: float) -> None:
        self.book, self.there, self.who, self.settle_s = book, there, who, settle_s

    def is_coming(self, name: str) -> bool:
        """Whether it may still come of itself."""
        asked = self.book.asked(name)
        if asked and asked.operation:
            told = self.there.operation(asked.operation)
            return told is not None and (not told.done or not told.code)
        return asked is not None and time.time() < asked.at + self.settle_s

    def begin(self, name: str, parent: str, call: Callable[[], str]) -> NoReturn:
        """Begin something that takes long, once, and raise NotYet as long as it has not ended.

        ReleaseError where the service says that it cannot be done.
        """
        asked = self.book.asked(name)
        if asked and not asked.operation:
            asked = self._adopted(name, parent, asked)
        if asked:
            self._look(name, asked)
        asked = Asked(at=time.time())
        self.book.ask(name, asked)
        try:
            operation = call()
        except (Throttled, Denied) as error:
            self.book.drop(name)
            if isinstance(error, Denied) and error.status != HTTPStatus.CONFLICT:
                raise
            raise NotYet(f"{self.who}: {name}: {error}") from error
        self.book.ask(name, Asked(at=asked.at, operation=operation))
        raise NotYet(f"{self.who}: {name} has begun")

    def _adopted(self, name: str, parent: str, asked: Asked) -> Asked | None:
        """What came of a request without a reply: an operation that nobody knows; None once nothing did."""
        known = self.book.operations()
        for operation in self.there.going_on(parent):
            begun = operation.begun_at.timestamp() if operation.begun_at else asked.at
            if operation.name not in known and begun >= asked.at - self.settle_s:
                log.info("%s: %s is taken for %s", self.who, operation.name, name)
                found = Asked(at=asked.at, operation=operation.name)
                self.book.ask(name, found)
                return found
        if time.time() < asked.at + self.settle_s:
            raise NotYet(f"{self.who}: whether the request to {name} has arrived is not known yet")
        return None

    def _look(self, name: str, asked: Asked) -> NoReturn:
        told = self.there.operation(asked.operation)
        if told and not told.done:
            raise NotYet(f"{self.who}: {name} has gone on for {time.time() - asked.at:,.0f} s")
        self.book.drop(name)
        if told and told.code and told.code not in AGAIN:
            raise ReleaseError(
                f"{self.who}: {name} failed ({told.message}); look at its log in Cloud Logging, and at "
                f"serving.endpoint in params.yaml"
            )
        if told and told.code:
            log.warning("%s: %s failed (%s)", self.who, name, told.message)
            raise NotYet(f"{self.who}: {name} failed ({told.message}), and is begun again")
        raise NotYet(f"{self.who}: {name} has ended")

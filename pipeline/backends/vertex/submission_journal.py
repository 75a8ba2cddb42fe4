"""What was asked of a service that rents, and what became of it? `orders.json` in the folder of the job.

An order is written before the service is asked, so that whoever comes after a kill knows that a job may be
on its way. It is found there by its token, which is a label of the job. Orders are also what the bill is
made from.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from pipeline.backends.vertex.billing import Stretch
from pipeline.contract import records
from pipeline.contract.backend import State
from pipeline.contract.records import Record, Rental, replace_text

FILE = "orders.json"


@dataclass(frozen=True, kw_only=True)
class Order(Record):
    """One time that machines were asked for."""

    attempt: str  # token, a label of the job
    job: str
    rental: Rental
    asked_at: str  # ISO; of the last request
    resource: str = ""  # the service's name of the job; "" while that is not known
    state: State = "queued"
    started_at: str = ""
    ended_at: str = ""
    reason: str = ""  # why it ended

    @property
    def stretch(self) -> Stretch:
        """What is paid for."""
        return Stretch(rental=self.rental, started=_time(self.started_at), ended=_time(self.ended_at))


class Book:
    """The orders of a job, oldest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One at a time asks for machines; the kernel lets go of the lock of a killed one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "ordering").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def orders(self) -> list[Order]:
        """All of them."""
        path = self.folder / FILE
        kept = json.loads(path.read_text()) if path.exists() else []
        return [records.loads(Order, json.dumps(order), source=str(path)) for order in kept]

    def put(self, order: Order) -> Order:
        """Add the order, or put it in the place of the one of that attempt."""
        kept = self.orders()
        places = [number for number, other in enumerate(kept) if other.attempt == order.attempt]
        if places:
            kept[places[0]] = order
        else:
            kept.append(order)
        replace_text(self.folder / FILE, json.dumps([asdict(one) for one in kept], indent=1) + "\n")
        return order

    def change(self, attempt: str, **changes: str) -> Order | None:
        """The order of that attempt, with these values from now on; None where it is not ours."""
        found = next((order for order in self.orders() if order.attempt == attempt), None)
        if found is None:
            return None
        changed = replace(found, **changes)  # type: ignore[arg-type]
        return changed if changed == found else self.put(changed)

    def unanswered(self, job: str) -> Order | None:
        """The newest order of the job, if it is not known what came of it."""
        mine = [order for order in self.orders() if order.job == job]
        return mine[-1] if mine and not mine[-1].resource else None

    def of(self, resource: str) -> Order | None:
        """The order that came to be that job of the service."""
        return next((order for order in self.orders() if order.resource == resource), None)


def stretches(folder: Path) -> list[Stretch]:
    """What was rented for the job in `folder`, all attempts."""
    return [order.stretch for order in Book(folder).orders()]


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None

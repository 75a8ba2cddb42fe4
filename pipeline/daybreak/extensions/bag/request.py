"""Makes a bag from a person's request: chooses name, machines and rental.

The machine is that of the newest plan. Where `plan.spot` allows spot, it is rented in the way by which a run
is expected to cost less: a long run that does not save may be cheaper on a machine that is not lost.
"""

import hashlib
import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.backend import Backend
from daybreak.contract.errors import ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.extensions.bag.bag_estimates import POLL_REMOTE_S, POLL_S, Setup, lifetime_of
from daybreak.extensions.bag.dispatcher import Dispatcher
from daybreak.extensions.bag.folder import BAGS, Bag, BagFolder
from daybreak.extensions.bag.reuse import Runs, mean_s
from daybreak.machines import startup
from daybreak.storage.home import Home


@dataclass(frozen=True, kw_only=True)
class BagRequest:
    """What a person asked for; 0 and "" mean that the default is wanted."""

    command: str
    num_runs: int
    num_needed: int = 0
    num_machines: int
    run_s: float = 0.0
    save_s: float = 0.0
    hours: float = 24.0
    name: str = ""

    def check(self) -> None:
        """Raises ParamsError if it cannot be done."""
        needed = self.num_needed or self.num_runs
        if not 1 <= needed <= self.num_runs:
            raise ParamsError(
                f"{needed} of {self.num_runs} runs cannot be done; --needed is between 1 and --runs"
            )
        if self.num_machines < 1 or self.hours <= 0 or min(self.run_s, self.save_s) < 0:
            raise ParamsError("a bag needs machines and time; --machines, --minutes and --hours are positive")
        if self.name and not records.names_folder(self.name):
            raise ParamsError(
                f"{self.name!r} is not a name of a folder; use up to 200 letters, digits, _, . and -"
            )
        try:
            words = self.words
        except ValueError as error:
            raise ParamsError(
                f"the command {self.command!r} cannot be split as a shell does ({error}); check its quotes "
                "and backslashes"
            ) from error
        if not words:
            raise ParamsError("the command is empty; name a program and its arguments")

    @property
    def words(self) -> tuple[str, ...]:
        """Returns the command, split as a shell does."""
        return tuple(shlex.split(self.command))


def dispatcher(
    home: Home,
    request: BagRequest,
    *,
    backend: Backend,
    machine: Machine,
    rental: Rental,
    spot: bool,
    lives: Sequence[tuple[float, bool]],
) -> Dispatcher:
    """Returns the dispatcher of a bag, which may have begun before.

    Args:
        home: whose nights these are.
        request: what is to run.
        backend: that rents the machine.
        machine: each of the bag's machines.
        rental: how the newest plan rents it.
        spot: whether it may be rented as spot.
        lives: seconds that spot machines of earlier nights lived, and whether a preemption ended each.

    Raises:
        ParamsError: the request cannot be done, a bag of that name runs another command, or its machines
            have no place to meet.
    """
    request.check()
    name = request.name or _name(request.words)
    path = home.folder / BAGS / name
    before = records.find(Bag, path)
    if before and before.command != request.words:
        raise ParamsError(
            f"bag {name} runs {shlex.join(before.command)}; give this one another --name, or remove {path}"
        )
    rented = _rental(request, rental, machine, spot=spot, lives=lives)
    url = _url(path, before, backend, rented)
    bag = Bag(
        name=name,
        command=request.words,
        cwd=str(Path.cwd()),
        num_runs=request.num_runs,
        num_needed=request.num_needed or request.num_runs,
        save_s=request.save_s,
        rental=rented,
        url=url,
        until=datetime.now(UTC) + timedelta(hours=request.hours),
    )
    setup = Setup(
        backend=backend,
        machine=machine,
        num_machines=request.num_machines,
        run_s=request.run_s,
        lives=lives,
        poll_s=POLL_REMOTE_S if url else POLL_S,
    )
    return Dispatcher(path, bag, setup)


def _url(path: Path, before: Bag | None, backend: Backend, rental: Rental) -> str:
    """Returns the folder in a bucket by which machines meet; "" where they see the disk of the bag."""
    place = backend.part_for(rental)
    if before and before.url:
        return before.url
    if rental.is_local or place.shares_disk:
        return ""
    if not place.bucket_url:
        raise ParamsError(
            f"machines of {rental} do not see {path}, where the runs of a bag meet; set backend.bucket to a "
            f"folder that they and this machine reach"
        )
    if before and BagFolder(path, before).refreshed().live:
        raise ParamsError(
            f"bag {before.name} has machines that meet on this disk, which those of {rental} do not see; "
            f"wait until they have ended, or give this bag another --name"
        )
    return f"{place.bucket_url.rstrip('/')}/bags/{path.name}-{secrets.token_hex(4)}"


def _rental(
    request: BagRequest, planned: Rental, machine: Machine, *, spot: bool, lives: Sequence[tuple[float, bool]]
) -> Rental:
    """Returns how one machine is rented: as spot, unless runs of that length cost less on demand."""
    one = replace(planned.one, strategy="on-demand", max_wait_s=0.0)
    if machine.is_local:
        return one
    allowed = replace(one, strategy="spot"), one
    priced = [each for each in allowed[not spot :] if machine.price(each.strategy) is not None]
    if len(priced) < 2 or not request.run_s:
        return priced[0] if priced else one
    boot_s = startup.wait(machine, num_bytes=0).start_s
    runs = Runs(run_s=request.run_s, save_s=request.save_s, boot_s=boot_s)

    def usd(each: Rental) -> float:
        lifetime = lifetime_of(each, lives=lives)
        return (machine.price(each.strategy) or 0.0) * mean_s(lifetime, runs, num_runs=request.num_runs)

    return min(priced, key=usd)


def _name(words: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '', Path(words[0]).stem)[:20] or 'bag'}-{digest}"

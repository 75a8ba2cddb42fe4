"""Runs a bag: asks for machines, notices those that are lost, and ends them once enough runs are done.

A machine is an ordinary job of the backend, in its own folder below leases/, so that bill, journal and the
hourly `reap` work as for any job. It is recorded before it is submitted. Workers take seeds by themselves: if
this process is killed, machines go on until enough runs are done, no seed is left, or the bag's time is over,
and the same command, run again, continues from their events.

Where machines do not see this disk, all that goes by way of the bucket by which the backend's jobs get their
code (`bucket_bag.py`), and results are fetched as runs end.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

from daybreak.backends import staging
from daybreak.backends.place import RetryPolicy
from daybreak.contract import records
from daybreak.contract.backend import LIVE, Job
from daybreak.contract.errors import JobError, NotYet, PipelineError
from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Record
from daybreak.extensions.bag.bag_estimates import BagEstimates, Setup
from daybreak.extensions.bag.bag_forecast import BagForecast
from daybreak.extensions.bag.bucket_bag import opened
from daybreak.extensions.bag.folder import LOG, Bag
from daybreak.extensions.bag.seed_worker import ORDER, LeaseOrder
from daybreak.extensions.bag.state import BagState, Lease
from daybreak.storage.journal import Timeout, alone
from daybreak.training import gpus, worker_errors

log = logging.getLogger(__name__)

PATIENCE_S = 3600.0  # with a bucket that does not answer, while machines go on
REFUSED_S = 30.0  # until one machine is asked for where there were none; doubled each time
MOST_REFUSED_S = 600.0  # at most
MOST_CANCELS = 16  # at once
MOST_BROKEN = 3  # machines in a row whose worker fails


@dataclass(frozen=True, kw_only=True)
class BagOutcome(Record):
    """What a bag came to."""

    name: str
    folder: str
    num_done: int
    given_up: tuple[int, ...]  # seeds whose runs fail
    num_preempted: int  # machines that were taken away
    num_lost: int  # runs that a machine took with it, and that were run again
    num_machines: int  # that were rented in turn
    elapsed_s: float  # from the first machine to the last run
    machine_s: float  # of all machines together
    usd: float | None  # by the backend's bill; None: it costs nothing, or is not known


class Dispatcher:
    """One process that runs a bag."""

    def __init__(self, folder: Path, bag: Bag, setup: Setup) -> None:
        self._folder, self._setup = opened(folder, bag), setup
        self._began_at, self._ask_at = time.time(), 0.0
        self._pause_s = 0.0  # between requests for one machine, after a refusal and until one begins
        self._begun: set[str] = set()  # leases
        self._estimates = BagEstimates(bag, setup)
        self._refusal = ""  # reason, if the backend will never take such a machine

    @property
    def bag(self) -> Bag:
        """Returns the bag that it runs."""
        return self._folder.bag

    @property
    def folder(self) -> Path:
        """Returns the folder of the bag."""
        return self._folder.path

    def run(self, show: Callable[[BagState], None]) -> BagOutcome:
        """Runs the bag until enough runs are done; `show` is called with the state at each look.

        Raises JobError if too many seeds fail, workers fail, the backend refuses machines for good, time is
        up, or another process runs the bag. Machines are ended in any case, on Ctrl-C too.
        """
        try:
            with alone(self._folder.path / "dispatching", wait=False):
                records.write(self.bag, self._folder.path)
                self._folder.publish()
                self._folder = opened(self.folder, self.bag, retry=RetryPolicy(give_up_s=PATIENCE_S))
                try:
                    self._run(show)
                finally:
                    self._close()
        except Timeout:
            raise JobError(f"bag {self.bag.name} is run by another process; wait for it") from None
        return self._outcome()

    def _run(self, show: Callable[[BagState], None]) -> None:
        self._folder.add("open")
        state = self._folder.state
        while not state.enough:
            self._look()
            self._folder.fetch()
            show(state)
            self._complain(state)
            self._ask_for(state.num_wanted(num_machines=self._setup.num_machines))
            time.sleep(self._setup.poll_s)
            self._folder.refreshed()
        show(state)

    def forecast(self) -> BagForecast | None:
        """Returns what the runs that are left take; None if nobody knows how long one is."""
        return self._estimates.forecast(self._folder.refreshed())

    def _outcome(self) -> BagOutcome:
        state = self._folder.refreshed()
        began_at = min((lease.asked_at for lease in state.leases.values()), default=state.done_at)
        bills = [self._setup.backend.usd(self._folder.lease(name)) for name in state.leases]
        known = [usd for usd in bills if usd is not None]
        return BagOutcome(
            name=self.bag.name,
            folder=str(self._folder.path),
            num_done=len(state.done),
            given_up=tuple(state.given_up),
            num_preempted=sum(preempted for _, preempted in state.lives()),
            num_lost=len(state.lost),
            num_machines=len(state.leases),
            elapsed_s=state.done_at - began_at,
            machine_s=state.machine_s(),
            usd=sum(known) if known else None,
        )

    def _look(self) -> None:
        """Notes which machines have ended."""
        backend = self._setup.backend
        for lease in self._folder.refreshed().live:
            if not lease.handle:  # the process that asked was killed, or got no answer
                self._submit(lease.name)
            elif (job := backend.state(lease.handle)) not in LIVE:
                self._end(lease, job)
            elif job == "running" and lease.name not in self._begun:
                self._begun.add(lease.name)
                self._pause_s = self._ask_at = 0.0

    def _end(self, lease: Lease, state: str) -> None:
        self._folder.add("end", lease=lease.name, state=state, time=time.time())
        if state == "refused":
            self._pause_s = self._pause_s or REFUSED_S
            self._ask_at = max(self._ask_at, time.time() + self._pause_s)
            self._refusal = worker_errors.final(self._folder.lease(lease.name))

    def _ask_for(self, num_wanted: int) -> None:
        """Asks for machines; for one, less and less often, while the place has none."""
        now = time.time()
        if not num_wanted or now < self._ask_at:
            return
        if self._pause_s:
            num_wanted = 1
            self._pause_s = min(2 * self._pause_s, MOST_REFUSED_S)
            self._ask_at = now + self._pause_s
        for _ in range(num_wanted):
            self._ask()

    def _ask(self) -> None:
        """Asks for one more machine, by a name that no other home has in the same bucket."""
        name = f"{len(self._folder.state.leases) + 1:04d}-{secrets.token_hex(4)}"
        self._folder.add("lease", lease=name, time=time.time())
        self._submit(name)

    def _order(self) -> LeaseOrder:
        """Returns what the worker of a new machine is to do."""
        bag, state = self.bag, self._folder.state
        rule = self._estimates.reuse(state)
        sees_disk = bag.rental.is_local or self._setup.backend.part_for(bag.rental).shares_disk
        return LeaseOrder(
            bag=bag,
            cwd=bag.cwd if sees_disk else staging.CODE,
            replace_at_s=rule.replace_at_s if isfinite(rule.replace_at_s) else None,
            saves=rule.saves,
            booted_s=self._estimates.boot_s(state),
        )

    def _submit(self, name: str) -> None:
        """Submits the job of a machine, or attaches to it."""
        bag, folder = self.bag, self._folder.lease(name)
        records.replace_text(folder / ORDER, records.dumps(self._order()))
        left_s = (bag.until - datetime.now(UTC)).total_seconds()
        paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]  # of this Daybreak
        job = Job(
            name=f"{bag.night}-{name}",
            module="daybreak.extensions.bag.seed_worker",
            arguments=(str(folder),),
            rental=bag.rental,
            folder=str(folder),
            timeout_s=max(1.0, left_s),
            environment={
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                **gpus.environment(self._setup.machine.name, self._setup.machine.gpus),
            },
            night=bag.night,
            model="bag",
            until=bag.until,
        )
        try:
            handle = self._setup.backend.submit(job)
        except NotYet as error:
            log.warning("%s; asking again", error)
            return
        self._folder.add("handle", lease=name, handle=handle)

    def _complain(self, state: BagState) -> None:
        """Raises JobError if the bag cannot go on."""
        bag = self.bag
        done = f"{len(state.done)} of {counted(bag.num_needed, 'run')} done"
        if state.hopeless:
            worst = state.given_up[0]
            raise JobError(
                f"{counted(len(state.given_up), 'seed')} of bag {bag.name} failed twice, {done}; look at "
                f"{self._folder.work(worst) / LOG}, or lower --needed"
            )
        if self._refusal and not state.live:
            raise JobError(f"bag {bag.name} gets no machines, {done}: {self._refusal}")
        own = [lease for lease in state.leases.values() if lease.asked_at >= self._began_at]
        ended = [lease for lease in own if not lease.live][-MOST_BROKEN:]
        if len(ended) == MOST_BROKEN and all(lease.state == "failed" for lease in ended):
            logs = self._setup.backend.logs(ended[-1].handle)
            raise JobError(f"{MOST_BROKEN} machines of bag {bag.name} failed in turn, {done}; look at {logs}")
        if datetime.now(UTC) >= bag.until:
            raise JobError(f"the time of bag {bag.name} is over, {done}; the same command goes on")

    def _close(self) -> None:
        """Ends all machines, records that none is wanted any more, and fetches what they left.

        Raises JobError if some could not be ended, once it has tried all; the hourly `reap` ends those. The
        machines come first: on a full disk nothing can be recorded.
        """
        live = self._folder.state.live
        try:
            with ThreadPoolExecutor(MOST_CANCELS) as pool:  # each returns once its machine has ended
                faults = list(pool.map(self._cancel, live))
        finally:
            self._record_end()
        for lease, fault in zip(live, faults, strict=True):
            if not fault:
                try:
                    self._end(lease, "cancelled")
                except OSError as error:
                    log.warning("machine %s has ended, which cannot be recorded: %s", lease.name, error)
        self._folder.fetch()
        if any(faults):
            raise JobError("; ".join(filter(None, faults)))

    def _record_end(self) -> None:
        try:
            records.write(replace(self.bag, closed_at=datetime.now(UTC)), self._folder.path)
        except OSError as error:
            log.warning("bag %s cannot be recorded as closed: %s; free some space", self.bag.name, error)

    def _cancel(self, lease: Lease) -> str:
        """Cancels a machine; returns why it may still run, or ""."""
        try:
            if lease.handle:
                self._setup.backend.cancel(lease.handle)
        except (PipelineError, OSError) as error:
            return f"machine {lease.name} of bag {self.bag.name} may still run: {error}"
        return ""

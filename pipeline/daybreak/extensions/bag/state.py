"""Folds the events of a bag into its state, and picks the next seed.

    open     a dispatcher begins: failed seeds are tried again, as their cause may be fixed
    lease    a machine is asked for, by this name          handle   the backend has taken it
    begin    its worker began to run                       end      it was seen ended, and in which state
    take     a worker began a run of a seed                done     that run succeeded
    failed   that run ended otherwise, with a status
    saved    that run has saved its state, for another machine to go on from

With a bucket, the last three events name the `thing` as which the folder of the run was sent there. A lease
is one machine for as long as it lives. If it ends or begins anew, its current run is lost, and the seed is
free again. Times are seconds since 1970.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from daybreak.storage.request_journal import Request

MOST_FAILURES = 2  # of one seed: a run is repeatable, so a third would fail as well


@dataclass(frozen=True, kw_only=True)
class Lease(Request):
    """A request for one machine. 0 and "" mean not yet."""

    asked_at: float
    began_at: float = 0.0
    ended_at: float = 0.0
    state: str = ""  # that it ended in

    @property
    def live(self) -> bool:
        """Returns whether it may run."""
        return not self.ended_at


class BagState:
    """What is known of a bag."""

    def __init__(self, *, num_runs: int, num_needed: int) -> None:
        self.num_runs, self.num_needed = num_runs, num_needed
        self.leases: dict[str, Lease] = {}
        self.taken: dict[int, tuple[str, float]] = {}  # by seed: the lease, and when
        self.done: dict[int, float] = {}  # by seed: the seconds of its run
        self.done_at = 0.0  # when the newest of them was
        self.failures: Counter[int] = Counter()  # by seed
        self.lost: list[float] = []  # seconds since each lost run began
        self.first_runs: dict[str, float] = {}  # by lease: when its first run began
        self.things: dict[int, str] = {}  # by seed: what its newest run left in the bucket

    def fold(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Adds events in their order."""
        for event in events:
            _FOLDS[event["event"]](self, event)
            if "thing" in event:
                self.things[event["seed"]] = event["thing"]

    @property
    def enough(self) -> bool:
        """Returns whether as many runs as needed are done."""
        return len(self.done) >= self.num_needed

    @property
    def given_up(self) -> list[int]:
        """Returns the seeds whose runs fail."""
        return sorted(
            seed
            for seed, number in self.failures.items()
            if number >= MOST_FAILURES and seed not in self.done
        )

    @property
    def hopeless(self) -> bool:
        """Returns whether so many seeds fail that the others are too few."""
        return self.num_runs - len(self.given_up) < self.num_needed

    @property
    def live(self) -> list[Lease]:
        """Returns the machines that may run."""
        return [lease for lease in self.leases.values() if lease.live]

    def free(self) -> list[int]:
        """Returns the seeds that nobody runs and that are not done, in the order in which they are run."""
        skipped = {*self.done, *self.taken, *self.given_up}
        return [seed for seed in range(self.num_runs) if seed not in skipped]

    def next_seed(self, lease: str, *, age_s: float, replace_at_s: float) -> int | None:
        """Returns the seed that a machine of that age runs next; None if the machine has to go."""
        if self.enough or age_s >= replace_at_s or not self.leases[lease].live:
            return None
        return next(iter(self.free()), None)

    def holds(self, lease: str, seed: int) -> bool:
        """Returns whether the run of that seed is this machine's to end."""
        return self.taken.get(seed, ("", 0.0))[0] == lease

    def num_wanted(self, *, num_machines: int) -> int:
        """Returns how many machines are to be asked for beside those that live."""
        if self.enough or self.hopeless:
            return 0
        live = len(self.live)
        idle = live - len(self.taken)  # they take a seed as soon as they begin
        return max(0, min(num_machines - live, len(self.free()) - idle))

    def lives(self) -> list[tuple[float, bool]]:
        """Returns the seconds that each machine that has ended lived, and whether it was preempted."""
        return [
            (lease.ended_at - (lease.began_at or lease.asked_at), lease.state == "preempted")
            for lease in self.leases.values()
            if lease.ended_at and (lease.began_at or lease.state == "preempted")
        ]

    def machine_s(self) -> float:
        """Returns the seconds that all machines that have ended were held, from when they were asked for."""
        held = [lease for lease in self.leases.values() if lease.ended_at and lease.state != "refused"]
        return sum(lease.ended_at - lease.asked_at for lease in held)

    def start_s(self) -> list[float]:
        """Returns the seconds from asking for a machine to its first run, of each machine that had one."""
        return [began - self.leases[name].asked_at for name, began in self.first_runs.items()]


def _open(bag: BagState, _: Mapping[str, Any]) -> None:
    bag.failures.clear()


def _lease(bag: BagState, event: Mapping[str, Any]) -> None:
    bag.leases[event["lease"]] = Lease(name=event["lease"], asked_at=event["time"])


def _handle(bag: BagState, event: Mapping[str, Any]) -> None:
    _change(bag, event["lease"], handle=event["handle"])


def _begin(bag: BagState, event: Mapping[str, Any]) -> None:
    _release(bag, event)
    _change(bag, event["lease"], began_at=event["time"])


def _end(bag: BagState, event: Mapping[str, Any]) -> None:
    _release(bag, event)
    _change(bag, event["lease"], ended_at=event["time"], state=event["state"])


def _take(bag: BagState, event: Mapping[str, Any]) -> None:
    bag.taken[event["seed"]] = event["lease"], event["time"]
    bag.first_runs.setdefault(event["lease"], event["time"])


def _done(bag: BagState, event: Mapping[str, Any]) -> None:
    bag.taken.pop(event["seed"], None)
    if event["seed"] < bag.num_runs:  # a bag may go on with fewer seeds than it began with
        bag.done[event["seed"]] = event["elapsed_s"]
        bag.done_at = event["time"]


def _failed(bag: BagState, event: Mapping[str, Any]) -> None:
    bag.taken.pop(event["seed"], None)
    bag.failures[event["seed"]] += 1


def _saved(bag: BagState, _: Mapping[str, Any]) -> None:
    """Nothing beside the thing has changed."""


def _release(bag: BagState, event: Mapping[str, Any]) -> None:
    """Frees the seed of a run that a machine took with it."""
    for seed, (lease, since) in list(bag.taken.items()):
        if lease == event["lease"]:
            del bag.taken[seed]
            if event.get("state") != "cancelled":  # as enough runs are done, or by Ctrl-C
                bag.lost.append(event["time"] - since)


def _change(bag: BagState, lease: str, **facts: Any) -> None:
    bag.leases[lease] = replace(bag.leases[lease], **facts)


_FOLDS = {
    "open": _open,
    "lease": _lease,
    "handle": _handle,
    "begin": _begin,
    "end": _end,
    "take": _take,
    "done": _done,
    "failed": _failed,
    "saved": _saved,
}

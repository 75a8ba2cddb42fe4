"""Joins machines of two kinds in one job, where machines of one kind would cost more.

A batch is shared by speed (training/batching.py), so that all machines finish an update together. With N
machines in all and b_k samples for machine k, its update takes T_k(b_k): the time of N machines of its kind
with batches of N b_k, which holds its own network and memory. Shares are those that the trainer comes to,

    b_k <- batch * (b_k / T_k(b_k)) / sum over all machines of (b_i / T_i(b_i)),

from equal ones on, and the job takes as long as on its slowest machine. Two kinds at most, on demand: each
further kind is one more thing to wait for, and a job that loses one machine loses all.

A catalog has tens of thousands of pairs, so a pair is weighed only if lower bounds of its time and cost keep
the limits. With W_k the work of the whole job on one machine of kind k, in seconds, c_k machines of that
kind, and the start-up S of the kind that starts sooner, a job on both is billed for at least

    S + (1 - N / 2 batch) / sum over kinds of (c_k / W_k)

seconds on each machine: no machine trains more samples a second than alone with the whole batch. Three things
lie between the two, and W_k is lowered by each (`_alone`): shares are whole samples, hence N / 2; passes that
memory makes small may be larger for a share; and loaders that would hardly help are left out. Each pair is
then bounded for all numbers at once, with one machine of each kind starting and the cheaper kind working.
Corrections by earlier nights may differ from one share to the next, so W_k is then the least over all
numbers.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, inf
from typing import TYPE_CHECKING

from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import EVERY_UPDATE, Pool, Rental
from daybreak.contract.units import HOUR_S
from daybreak.planning.candidates import TrainingTask, hindrance
from daybreak.planning.search import Candidate, PlanChoice, PlanLimits
from daybreak.prediction.costs import Estimate, predict, predict_counts
from daybreak.prediction.update_time import HARDLY, largest_pass, updates

if TYPE_CHECKING:
    from daybreak.contract.sections import PlanParams, PlanSections

Kinds = tuple[Machine, Machine]
Counts = tuple[int, int]  # of each kind
Way = tuple[Kinds, Counts]
ROUNDS = 8  # of the shares, which then stand still to a sample


def candidates(
    job: TrainingTask,
    machines: Sequence[Machine],
    params: "PlanSections",
    *,
    available: Collection[Machine],
    num_samples: int,
    limits: PlanLimits,
    than: PlanChoice | None,
) -> Iterator[Candidate]:
    """Yields `cheaper` rentals, where class and `train.batching` let unlike machines share a batch."""
    if params.train.batching != "even" and not job.profile.wants_one_worker:
        yield from cheaper(
            job,
            machines,
            params.plan,
            available=available,
            num_samples=num_samples,
            limits=limits,
            than=than,
        )


def cheaper(
    job: TrainingTask,
    machines: Sequence[Machine],
    params: "PlanParams",
    *,
    available: Collection[Machine],
    num_samples: int,
    limits: PlanLimits,
    than: PlanChoice | None,
) -> Iterator[Candidate]:
    """Yields the rentals of unlike machines that keep the limits for less than any of machines alike.

    Args:
        job: what is trained.
        machines: to choose among; only those that their backend joins.
        params: how many machines a plan may have, and the batch sizes.
        available: the machines that the backend has.
        num_samples: to train on, in batches of the job's own size.
        limits: the deadline and the budget.
        than: the choice among machines alike; None where none keeps the limits.
    """
    least_usd = min((each.expected_usd for each in than.ranked), default=0.0) if than else float("inf")
    if not least_usd or params.max_machines < 2:
        return
    joining = [
        machine
        for machine in machines
        if machine.joins and machine.price("on-demand") is not None and not hindrance(machine, available)
    ]
    pairs = [pair for pair in _pairs(joining) if _may_meet(job, *pair)]
    for batch_size in params.batch_sizes or (job.batch_size,):
        count = job.samples(num_samples, batch_size)
        bounds = _Joined(job, batch_size=batch_size, num_samples=count, most=params.max_machines)
        ways = [
            (kinds, counts)
            for kinds in pairs
            if bounds.may_pay(kinds, limits, least_usd)
            for counts in _counts(*kinds, most=params.max_machines)
            if bounds.may_keep(kinds, counts, limits, least_usd)
        ]
        for candidate in bounds.candidates(ways, limits, least_usd):
            if candidate.expected_usd < least_usd and limits.hold(candidate):
                yield candidate


def _pairs(machines: Sequence[Machine]) -> Iterator[Kinds]:
    """Yields each two machines that are at the same place."""
    places: dict[tuple[str, str], list[Machine]] = {}
    for machine in machines:
        places.setdefault((machine.backend, machine.region), []).append(machine)
    for kinds in places.values():
        yield from combinations(kinds, 2)


@dataclass(frozen=True, kw_only=True)
class _Alone:
    """Seconds of the whole job on one machine: before work, and at least of work at any share of a batch."""

    queue_s: float
    start_s: float
    work_s: float


class _Joined:
    """Rentals of unlike machines in batches of one size; a machine is equally fast in all regions."""

    def __init__(self, job: TrainingTask, *, batch_size: int, num_samples: int, most: int) -> None:
        self._job, self._batch_size, self._num_samples, self._most = job, batch_size, num_samples, most
        self._known_alone: dict[tuple[str, str], _Alone | None] = {}
        self._known: dict[tuple[object, ...], Candidate | None] = {}

    def may_pay(self, kinds: Kinds, limits: PlanLimits, least_usd: float) -> bool:
        """Returns whether some numbers of both may keep the deadline, for less."""
        first, other = kinds
        alone = self._alone(first), self._alone(other)
        if alone[0] is None or alone[1] is None:
            return False  # the job does not fit one of the kinds
        start_s, whole = _start_s(alone[0], alone[1]), self._whole(self._most)
        fastest_s = min(each.work_s for each in alone if each) / self._most
        work_usd = min(alone[0].work_s * _price(first), alone[1].work_s * _price(other))
        usd = start_s * (_price(first) + _price(other)) + whole * work_usd
        return start_s + whole * fastest_s <= limits.deadline_s and usd / HOUR_S < least_usd

    def may_keep(self, kinds: Kinds, counts: Counts, limits: PlanLimits, least_usd: float) -> bool:
        """Returns whether so many machines may keep the deadline, for less, by what each does alone."""
        first, other = self._alone(kinds[0]), self._alone(kinds[1])
        assert first
        assert other
        together = counts[0] / first.work_s + counts[1] / other.work_s
        seconds = _start_s(first, other) + self._whole(sum(counts)) / together
        return self._keeps(seconds, kinds, counts, limits, least_usd)

    def candidates(self, ways: Sequence[Way], limits: PlanLimits, least_usd: float) -> Iterator[Candidate]:
        """Yields those of the ways that may keep the limits by the time of their updates."""
        unlike = {_speeds_of(way): way for way in ways}  # whatever the region
        timed = dict(
            zip(unlike, divided(self._job, list(unlike.values()), batch_size=self._batch_size), strict=True)
        )
        known: dict[object, Candidate | None] = {}
        num_updates = max(0, ceil(self._num_samples / self._batch_size) - 1)
        for kinds, counts in ways:
            key = _speeds_of((kinds, counts))
            found, alone = timed[key], (self._alone(kinds[0]), self._alone(kinds[1]))
            if found is None or alone[0] is None or alone[1] is None:
                continue
            seconds = _start_s(alone[0], alone[1]) + num_updates * found.update_s
            if not self._keeps(seconds, kinds, counts, limits, least_usd):
                continue
            if key not in known:
                known[key] = joined(
                    self._job,
                    kinds,
                    counts,
                    found.shares,
                    batch_size=self._batch_size,
                    num_samples=self._num_samples,
                )
            if candidate := known[key]:
                yield _at(candidate, kinds, counts)

    def _keeps(
        self, seconds: float, kinds: Kinds, counts: Counts, limits: PlanLimits, least_usd: float
    ) -> bool:
        usd_per_hour = sum(number * _price(machine) for machine, number in zip(kinds, counts, strict=True))
        return seconds <= limits.deadline_s and seconds / HOUR_S * usd_per_hour < least_usd

    def _whole(self, total: int) -> float:
        """Returns the share of a batch that shares of whole samples have at least."""
        return max(0.0, 1 - total / (2 * self._batch_size))

    def _alone(self, machine: Machine) -> _Alone | None:
        """Returns the seconds on one machine; None where not even a sample fits it."""
        key = machine.name, machine.backend
        if key not in self._known_alone:
            self._known_alone[key] = _alone(
                self._job,
                machine,
                batch_size=self._batch_size,
                num_samples=self._num_samples,
                most=self._most,
            )
        return self._known_alone[key]


def _alone(
    job: TrainingTask, machine: Machine, *, batch_size: int, num_samples: int, most: int
) -> _Alone | None:
    counts = range(1, 1 + (most if job.known and job.known.past else 1))
    estimated = predict_counts(
        job.profile,
        machine,
        measured=job.at_hand,
        num_workers=machine.num_workers,
        counts=counts,
        rentals=[Rental(machine=machine.name, backend=machine.backend)],
        batch_size=batch_size,
        num_samples=num_samples,
        num_bytes=job.dataset.num_bytes,
        known=job.known,
        sync=job.sync or EVERY_UPDATE,
    )
    if not estimated:
        return None
    queue_s, start_s, pull_s, *work = (row.tolist() for row in estimated[0].seconds)
    work_s = min(count * sum(parts) for count, *parts in zip(counts, *work, strict=True))
    setting = estimated[0].timed.settings[0]
    samples = ceil(batch_size / machine.num_workers)
    passes = samples / setting.num_passes / largest_pass(job.profile, machine, most=samples)
    num_updates = ceil(num_samples / batch_size)
    less = min(1.0, passes) / (1 + HARDLY) * max(0, num_updates - 1) / num_updates
    return _Alone(queue_s=queue_s[0], start_s=start_s[0] + pull_s[0], work_s=max(work_s * less, 1e-9))


def _start_s(first: _Alone, other: _Alone) -> float:
    """Returns the billed seconds before work, at least: the slower job of both may have the shorter queue."""
    return max(0.0, min(first.start_s, other.start_s) - abs(first.queue_s - other.queue_s))


def _may_meet(job: TrainingTask, first: Machine, other: Machine) -> bool:
    """Returns whether a job may have both, and they are not the same machine under two names."""
    if _hardware(first) == _hardware(other):
        return False
    # Weights are divided among devices of one type.
    return not (job.profile.tuning.sharded_weights and (first.num_devices == 0) != (other.num_devices == 0))


def _price(machine: Machine) -> float:
    return machine.price("on-demand") or 0.0


def _hardware(machine: Machine) -> tuple[str, int, int]:
    """Returns what makes machines unlike: a node may be listed in several partitions."""
    return machine.device, machine.num_devices, machine.vcpus


def _counts(first: Machine, other: Machine, *, most: int) -> Iterator[tuple[int, int]]:
    for number in range(1, 1 + min(most - 1, first.count or most)):
        for beside in range(1, 1 + min(most - number, other.count or most)):
            yield number, beside


def _speeds_of(way: Way) -> object:
    """Returns what a way has in common with the same machines in other regions."""
    (first, other), counts = way
    return first.name, other.name, first.backend, counts


def _at(candidate: Candidate, kinds: Kinds, counts: Counts) -> Candidate:
    """Returns a candidate in the region of these machines."""
    first, other = kinds
    rental = replace(candidate.rental, region=first.region)
    estimate = replace(candidate.estimate, machine=first, others=((other, counts[1]),), rental=rental)
    return Candidate(estimate=estimate, num_samples=candidate.num_samples)


def joined(
    job: TrainingTask,
    kinds: Kinds,
    counts: Counts,
    shares: tuple[int, int],
    *,
    batch_size: int,
    num_samples: int,
) -> Candidate | None:
    """Returns `counts` machines of two kinds as one way to run the job; None where the job does not fit."""
    total = sum(counts)
    estimates: list[Estimate] = []
    for machine, share in zip(kinds, shares, strict=True):
        as_if = share * total  # the batch, if all machines were of this kind
        estimated = predict(
            job.profile,
            machine,
            measured=job.at_hand,
            num_workers=machine.num_workers,
            rental=Rental(machine=machine.name, num_machines=total, backend=machine.backend),
            batch_size=as_if,
            num_samples=round(num_samples / batch_size * as_if),
            num_bytes=job.dataset.num_bytes,
            known=job.known,
            sync=job.sync or EVERY_UPDATE,
        )
        if estimated is None:
            return None
        estimates.append(estimated)
    first, other = kinds
    slowest = replace(
        max(estimates, key=lambda each: each.expected_s),
        machine=first,
        others=((other, counts[1]),),
        rental=Rental(
            machine=first.name,
            num_machines=total,
            region=first.region,
            backend=first.backend,
            others=(Pool(machine=other.name, num_machines=counts[1]),),
        ),
        batch_size=batch_size,
        num_samples=num_samples,
        micro_batch_size=min(each.micro_batch_size for each in estimates),
        num_loaders=min(each.num_loaders for each in estimates),
    )
    return Candidate(estimate=slowest, num_samples=num_samples)


@dataclass(frozen=True, kw_only=True)
class Divided:
    """Samples of an update for one machine of each kind, and the seconds that the slower one takes."""

    shares: tuple[int, int]
    update_s: float


def divided(job: TrainingTask, ways: Sequence[Way], *, batch_size: int) -> list[Divided | None]:
    """Returns how each way divides a batch, all of them at once.

    None where a worker would have no sample, or memory does not suffice for one.
    """
    shares = [(batch_size / sum(counts),) * 2 for _, counts in ways]
    for _ in range(ROUNDS):
        took_s = _updates_s(job, ways, shares)
        for number, (_, counts) in enumerate(ways):
            speeds = [share / s for share, s in zip(shares[number], took_s[number], strict=True)]
            together = (counts[0] * speeds[0] + counts[1] * speeds[1]) or inf
            shares[number] = batch_size * speeds[0] / together, batch_size * speeds[1] / together
    return [
        Divided(shares=_whole_shares(kinds, each), update_s=max(seconds))
        if max(seconds) < inf and all(s >= m.num_workers for m, s in zip(kinds, each, strict=True))
        else None
        for (kinds, _), each, seconds in zip(ways, shares, _updates_s(job, ways, shares), strict=True)
    ]


def _updates_s(
    job: TrainingTask, ways: Sequence[Way], shares: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Returns the seconds of an update on each of the two kinds of all ways; infinite where none fits."""
    asked: dict[tuple[str, str], list[tuple[int, int]]] = {}  # way and place in it, by machine
    machines: dict[tuple[str, str], Machine] = {}
    for number, (kinds, _) in enumerate(ways):
        for place, machine in enumerate(kinds):
            machines[machine.name, machine.backend] = machine
            asked.setdefault((machine.name, machine.backend), []).append((number, place))
    took_s = [[inf, inf] for _ in ways]
    for key, places in asked.items():
        machine = machines[key]
        counts = [sum(ways[number][1]) for number, _ in places]
        timed = updates(
            job.profile,
            machine,
            measured=job.at_hand,
            counts=counts,
            batch_sizes=[
                _whole_shares(ways[number][0], shares[number])[place] * count
                for (number, place), count in zip(places, counts, strict=True)
            ],
            num_workers=machine.num_workers,
            num_bytes=job.dataset.num_bytes,
            known=job.known,
            syncs=[job.sync or EVERY_UPDATE] * len(counts),
        )
        if timed is not None:
            for (number, place), seconds in zip(places, timed.seconds.sum(axis=0).tolist(), strict=True):
                took_s[number][place] = seconds
    return [(first, other) for first, other in took_s]


def _whole_shares(kinds: Kinds, shares: tuple[float, float]) -> tuple[int, int]:
    """Returns shares in samples, one a worker at least."""
    first, other = (max(m.num_workers, round(share)) for m, share in zip(kinds, shares, strict=True))
    return first, other

"""Joins unlike machines in one job, where no machines alike would do it for as little.

A batch is shared by speed (training/batching.py), so that all machines finish an update together. With N
machines in all and b_k samples for machine k, its update takes T_k(b_k): the time of N machines of its kind
with batches of N b_k, which holds its own network and memory. Shares are those that the trainer comes to,

    b_k <- batch * (b_k / T_k(b_k)) / sum over all machines of (b_i / T_i(b_i)),

from equal ones on, and the job takes as long as on its slowest machine. Two kinds at most, on demand: each
further kind is one more thing to wait for, and a job that loses one machine loses all.

A catalog has tens of thousands of pairs, so only those are weighed that would be in time for less if their
speeds, each alone, simply added up: a bound that only machines which read from disk what they could share in
memory may beat.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from pipeline.contract.machine import Machine
from pipeline.contract.records import EVERY_UPDATE, Pool, Rental
from pipeline.contract.units import HOUR_S
from pipeline.machines.startup import QUEUE
from pipeline.planning.candidates import Job, hindrance
from pipeline.planning.search import Candidate, Choice, Limits
from pipeline.prediction.costs import Estimate, predict
from pipeline.prediction.update_time import update

if TYPE_CHECKING:
    from pipeline.contract.params import PlanParams

ROUNDS = 8  # of the shares, which then stand still to a sample


def cheaper(
    job: Job,
    machines: Sequence[Machine],
    params: "PlanParams",
    *,
    available: Collection[Machine],
    num_samples: int,
    limits: Limits,
    than: Choice | None,
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
    kinds = [
        machine
        for machine in machines
        if machine.joins and machine.price("on-demand") is not None and not hindrance(machine, available)
    ]
    for batch_size in params.batch_sizes or (job.batch_size,):
        alone = _alone(job, kinds, batch_size=batch_size, num_samples=num_samples)
        for (first, first_s), (other, other_s) in combinations(zip(kinds, alone, strict=True), 2):
            if not _may_meet(job, first, other):
                continue
            for counts in _counts(first, other, most=params.max_machines):
                least_s = 1 / (counts[0] / first_s + counts[1] / other_s)
                usd_per_hour = counts[0] * _price(first) + counts[1] * _price(other)
                if least_s > limits.deadline_s or least_s / HOUR_S * usd_per_hour >= least_usd:
                    continue
                candidate = _joined(
                    job, (first, other), counts, batch_size=batch_size, num_samples=num_samples
                )
                if candidate and candidate.expected_usd < least_usd and limits.hold(candidate):
                    yield candidate


def _alone(job: Job, kinds: Sequence[Machine], *, batch_size: int, num_samples: int) -> list[float]:
    """Returns the billed seconds of the whole job on one machine of each kind; about 0 if it does not fit.

    A machine is equally fast in every region.
    """
    known: dict[tuple[str, str], float] = {}
    for machine in kinds:
        key = machine.name, machine.backend
        if key not in known:
            estimated = predict(
                job.profile, machine, measured=job.at_hand, num_workers=machine.num_workers,
                rental=Rental(machine=machine.name), batch_size=batch_size,
                num_samples=job.samples(num_samples, batch_size), num_bytes=job.dataset.num_bytes,
                known=job.known, sync=job.sync or EVERY_UPDATE,
            )  # fmt: skip
            parts = estimated.parts if estimated else ()
            known[key] = sum(part.seconds for part in parts if part.name != QUEUE) or 1e-9
    return [known[machine.name, machine.backend] for machine in kinds]


def _may_meet(job: Job, first: Machine, other: Machine) -> bool:
    """Returns whether a job may have both, and they are not the same machine under two names."""
    if _place(first) != _place(other) or _hardware(first) == _hardware(other):
        return False
    # Weights are divided among devices of one type.
    return not (job.profile.tuning.sharded_weights and (first.num_devices == 0) != (other.num_devices == 0))


def _price(machine: Machine) -> float:
    return machine.price("on-demand") or 0.0


def _place(machine: Machine) -> tuple[str, str]:
    """Returns where a job has all its machines: at one backend, in one region."""
    return machine.backend, machine.region


def _hardware(machine: Machine) -> tuple[str, int, int]:
    """Returns what makes machines unlike: a node may be listed in several partitions."""
    return machine.device, machine.num_devices, machine.vcpus


def _counts(first: Machine, other: Machine, *, most: int) -> Iterator[tuple[int, int]]:
    for number in range(1, 1 + min(most - 1, first.count or most)):
        for beside in range(1, 1 + min(most - number, other.count or most)):
            yield number, beside


def _joined(
    job: Job, kinds: tuple[Machine, Machine], counts: tuple[int, int], *, batch_size: int, num_samples: int
) -> Candidate | None:
    """Returns so many machines of two kinds as one way to run the job; None where it does not fit them."""
    shares = _shares(job, kinds, counts, batch_size=batch_size)
    if shares is None:
        return None
    total, count = sum(counts), job.samples(num_samples, batch_size)
    estimates: list[Estimate] = []
    for machine, share in zip(kinds, shares, strict=True):
        as_if = max(machine.num_workers, round(share)) * total  # the batch, if all machines were of this kind
        estimated = predict(
            job.profile, machine, measured=job.at_hand, num_workers=machine.num_workers,
            rental=Rental(machine=machine.name, num_machines=total, backend=machine.backend),
            batch_size=as_if, num_samples=round(count / batch_size * as_if),
            num_bytes=job.dataset.num_bytes, known=job.known, sync=job.sync or EVERY_UPDATE,
        )  # fmt: skip
        if estimated is None:
            return None
        estimates.append(estimated)
    first, other = kinds
    joined = replace(
        max(estimates, key=lambda each: each.expected_s),
        machine=first,
        others=((other, counts[1]),),
        rental=Rental(
            machine=first.name, num_machines=total, region=first.region, backend=first.backend,
            others=(Pool(machine=other.name, num_machines=counts[1]),),
        ),
        batch_size=batch_size,
        num_samples=count,
        micro_batch_size=min(each.micro_batch_size for each in estimates),
        num_loaders=min(each.num_loaders for each in estimates),
    )  # fmt: skip
    return Candidate(estimate=joined, num_samples=count)


def _shares(
    job: Job, kinds: tuple[Machine, Machine], counts: tuple[int, int], *, batch_size: int
) -> list[float] | None:
    """Returns the samples of an update for one machine of each kind.

    None where a worker would have none, or memory does not suffice for one.
    """
    total = sum(counts)
    shares = [batch_size / total] * len(kinds)
    for _ in range(ROUNDS):
        speeds = []
        for machine, share in zip(kinds, shares, strict=True):
            timed = update(
                job.profile, machine, measured=job.at_hand, num_machines=total,
                num_workers=machine.num_workers, batch_size=max(machine.num_workers, round(share)) * total,
                num_bytes=job.dataset.num_bytes, known=job.known, sync=job.sync or EVERY_UPDATE,
            )  # fmt: skip
            if timed is None:
                return None
            speeds.append(share / timed.seconds)
        together = sum(count * speed for count, speed in zip(counts, speeds, strict=True))
        shares = [batch_size * speed / together for speed in speeds]
    enough = all(share >= machine.num_workers for machine, share in zip(kinds, shares, strict=True))
    return shares if enough else None

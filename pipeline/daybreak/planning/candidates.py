"""Enumerates the ways to run the job: machine, region, count, batch size, and rental strategy.

A candidate is allowed by params.yaml, has a price and fits the memory, and no other number of the same
machines is better in every way (dominance.py). Where `plan.batch_sizes` leaves a
choice, each batch size trains on as many samples as the same quality needs (efficiency.py): a larger one has
to pay for itself. So do averages now and then of what workers learned (local_updates.py), where `train.sync`
leaves that to the plan.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from daybreak import hooks
from daybreak.contract.errors import PlanError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import EVERY_UPDATE, Rental, Strategy, Sync
from daybreak.contract.record_types import Dataset, Profile
from daybreak.contract.units import HOUR_S
from daybreak.machines import catalog
from daybreak.machines.pricelist import STRATEGIES
from daybreak.planning.dominance import undominated
from daybreak.planning.search import Candidate
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.costs import Estimate, predict_counts
from daybreak.prediction.efficiency import Efficiency

if TYPE_CHECKING:
    from daybreak.contract.sections import PlanParams

log = logging.getLogger(__name__)

NAMED = 5  # most machines that a sentence lists


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """What is to be trained, as far as all candidates share it."""

    profile: Profile
    at_hand: Machine  # that the profile was measured on
    dataset: Dataset
    batch_size: int  # that `num_samples` refers to
    num_workers: int  # training processes on the machine at hand
    efficiency: Efficiency
    grows: bool = False  # the batch may, within a run
    known: CostCalibration | None = None  # what earlier nights taught
    sync: Sync | None = (
        EVERY_UPDATE  # when workers agree; None: whenever is best, on more samples as they need
    )

    @property
    def noise_scale(self) -> float:
        """Noise scale by which averages need more samples; infinite where their number is given."""
        return self.efficiency.noise_scale if self.sync is None else float("inf")

    def samples(self, num_samples: int, batch_size: int) -> int:
        """Returns the samples that progress as far in this batch size as `num_samples` in the job's own."""
        if batch_size == self.batch_size:
            return num_samples
        return max(1, round(num_samples * self.efficiency.ratio(batch_size, self.batch_size)))


Way = tuple[Rental, int]  # what is rented, and the batch size


def way_of(candidate: Candidate) -> Way:
    """Returns a candidate's way to run the job, whatever the number of samples."""
    return candidate.rental, candidate.estimate.batch_size


def line_of(candidate: Candidate) -> Way:
    """Returns a candidate's way to run the job, whatever the number of samples and of machines."""
    return replace(candidate.rental, num_machines=1), candidate.estimate.batch_size


def candidates(
    job: TrainingTask,
    machines: Sequence[Machine],
    params: "PlanParams",
    *,
    available: Collection[Machine],
    num_samples: int,
    among: Collection[Way] | None = None,
    dominated: bool = False,
) -> Iterator[Candidate]:
    """Yields every way to run the job that has a price and fits the memory, or only those of some lines.

    Numbers of machines that another number dominates are left out, unless `dominated`. Machines that are not
    `available` are weighed too, and never chosen. `num_samples` refers to the job's own batch size. `among`
    are lines (`line_of`).
    """
    sizes = params.batch_sizes or (job.batch_size,)
    predicted: dict[tuple[str, str, int, int], dict[bool, list[Estimate]]] = {}
    for machine in machines:
        reason, most = hindrance(machine, available), most_machines(machine, params)
        if job.profile.wants_one_worker:
            most = 1
        rentals = [_rental(machine, strategy, params) for strategy in strategies(machine, params)]
        for rental, size in product(rentals, sizes):
            if among is not None and (rental, size) not in among:
                continue
            # A machine is equally fast in every region and at every price; only spot machines are preempted.
            key, count = (machine.name, machine.backend, most, size), job.samples(num_samples, size)
            if key not in predicted:
                predicted[key] = _estimates(
                    job, machine, params, most=most, batch_size=size, num_samples=count, dominated=dominated
                )
            on = job.at_hand if machine.is_local else machine
            for each in predicted[key].get(rental.is_spot, ()):
                rented = _rental(machine, rental.strategy, params, num_machines=each.rental.num_machines)
                estimate = replace(each, machine=on, rental=rented)
                yield Candidate(estimate=estimate, num_samples=estimate.num_samples, hindrance=reason)


def strategies(machine: Machine, params: "PlanParams") -> list[Strategy]:
    """Returns how the machine may be rented: the strategies that params allow and that have a price."""
    allowed = {"on-demand": True, "spot": may_be_spot(params), "flex-start": params.flex_wait_hours > 0}
    return [each for each in STRATEGIES if allowed[each] and machine.price(each) is not None]


def may_be_spot(params: "PlanParams") -> bool:
    """Returns whether spot machines may be rented: params allow it, and an extension knows when to."""
    return params.spot and bool(hooks.paths("steering"))


def most_machines(machine: Machine, params: "PlanParams") -> int:
    """Returns the most of these machines that a job may have."""
    alone = machine.is_local or machine.is_tpu
    return 1 if alone else min(params.max_machines, machine.count or params.max_machines)


def _rental(machine: Machine, strategy: Strategy, params: "PlanParams", *, num_machines: int = 1) -> Rental:
    return Rental(
        machine=machine.name,
        num_machines=num_machines,
        region=machine.region,
        strategy=strategy,
        max_wait_s=params.flex_wait_hours * HOUR_S if strategy == "flex-start" else 0.0,
        backend=machine.backend,
    )


def _estimates(
    job: TrainingTask,
    machine: Machine,
    params: "PlanParams",
    *,
    most: int,
    batch_size: int,
    num_samples: int,
    dominated: bool,
) -> dict[bool, list[Estimate]]:
    """Returns estimates of a machine on spot (True) and not, in the numbers of it that are worth weighing.

    Each worker has a sample of a batch at least. Both ways have the same numbers: spot that stays away is
    continued on as many machines on demand.
    """
    here = machine.is_local
    ways: list[Strategy] = ["on-demand", "spot"] if may_be_spot(params) and machine.spot else ["on-demand"]
    num_workers = job.num_workers if here else machine.num_workers
    whole = min(batch_size, num_samples)  # of the largest update that runs
    counts = range(1, 1 + min(most, whole // num_workers))
    estimates = (
        predict_counts(
            job.profile,
            job.at_hand if here else machine,
            measured=job.at_hand,
            rentals=[_rental(machine, each, params) for each in ways],
            counts=counts,
            batch_size=batch_size,
            num_workers=num_workers,
            num_samples=num_samples,
            num_bytes=job.dataset.num_bytes,
            known=job.known,
            sync=job.sync,
            noise_scale=job.noise_scale,
        )
        if counts
        else []
    )
    places = list(range(len(estimates[0].counts))) if estimates else []
    if not dominated:
        places = sorted(set().union(*(undominated(each, confidence=params.confidence) for each in estimates)))
    return {each.rental.is_spot: each.of(places) for each in estimates}


def hindrance(machine: Machine, available: Collection[Machine]) -> str:
    """Returns why no job can run on that machine; "" where one can."""
    return "" if machine in available else "the backend does not have it"


def everything(available: Sequence[Machine], listed: Sequence[Machine]) -> tuple[Machine, ...]:
    """Returns the machines of the backend, and those of a list that it does not have."""
    places = {(machine.name, machine.region) for machine in available}
    return (*available, *(each for each in listed if (each.name, each.region) not in places))


def allowed(
    known: Sequence[Machine], params: "PlanParams", *, available: Collection[Machine]
) -> tuple[Machine, ...]:
    """Returns the machines that params name, in their regions, that have a price.

    Raises PlanError if none has a price, or if none is available.
    """
    named = catalog.choose(params.machines, regions=params.regions, machines=known)
    priced = tuple(machine for machine in named if strategies(machine, params))
    if not priced:
        raise PlanError(
            f"plan.machines names {', '.join(dict.fromkeys(m.name for m in named))}, for which there is no "
            f"{'' if params.spot else 'on-demand '}price in {', '.join(params.regions)}; name another machine"
            f"{'' if params.spot else ', or allow plan.spot'}, or read it: "
            f"daybreak prices --refresh"
        )
    if not any(machine in available for machine in priced):
        names = list(dict.fromkeys(machine.name for machine in available))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise PlanError(
            f"plan.machines names {', '.join(params.machines)}, and the backend has none of them; "
            f"add one that it has ({', '.join(names[:NAMED])}{more}) to plan.machines, "
            f"or set backend to another"
        )
    return priced

"""Enumerates the ways to run the job: machine, region, count, batch size, and rental strategy.

A candidate is allowed by params.yaml, has a price and fits the memory. Where `plan.batch_sizes` leaves a
choice, each batch size trains on as many samples as the same quality needs (efficiency.py): a larger one has
to pay for itself.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.contract.errors import PlanError
from pipeline.contract.machine import Machine
from pipeline.contract.records import Dataset, Profile, Rental, Strategy
from pipeline.contract.units import HOUR_S
from pipeline.machines import catalog
from pipeline.machines.pricelist import STRATEGIES
from pipeline.planning.search import Candidate
from pipeline.prediction.calibration import Calibration
from pipeline.prediction.costs import Estimate, predict
from pipeline.prediction.efficiency import Efficiency

if TYPE_CHECKING:
    from pipeline.contract.params import PlanParams

NAMED = 5  # most machines that a sentence lists
ONE_CHIP = "the trainer drives one TPU chip a job"  # pipeline/training/tpu.py


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be trained, as far as all candidates share it."""

    profile: Profile
    at_hand: Machine  # that the profile was measured on
    dataset: Dataset
    batch_size: int  # that `num_samples` refers to
    num_workers: int  # training processes on the machine at hand
    efficiency: Efficiency
    known: Calibration | None = None  # what earlier nights taught

    def samples(self, num_samples: int, batch_size: int) -> int:
        """Returns the samples that progress as far in this batch size as `num_samples` in the job's own."""
        if batch_size == self.batch_size:
            return num_samples
        return max(1, round(num_samples * self.efficiency.ratio(batch_size, self.batch_size)))


# By machine, backend, spot, batch size and count.
Estimates = dict[tuple[str, str, bool, int, int], Estimate | None]
Way = tuple[Rental, int]  # what is rented, and the batch size


def way_of(candidate: Candidate) -> Way:
    """Returns a candidate's way to run the job, whatever the number of samples."""
    return candidate.rental, candidate.estimate.batch_size


def candidates(
    job: Job,
    machines: Sequence[Machine],
    params: "PlanParams",
    *,
    available: Collection[Machine],
    num_samples: int,
    among: Collection[Way] | None = None,
) -> Iterator[Candidate]:
    """Yields every way to run the job that has a price and fits the memory, or only those in `among`.

    Machines that are not `available` are weighed too, and never chosen. `num_samples` refers to the job's own
    batch size.
    """
    sizes = params.batch_sizes or (job.batch_size,)
    estimates: Estimates = {}
    for machine in machines:
        reason = hindrance(machine, available)
        for strategy in strategies(machine, params):
            for size in sizes:
                counts = _counts(
                    job, machine, strategy, params,
                    batch_size=size, num_samples=num_samples, among=among, estimates=estimates,
                )  # fmt: skip
                yield from (replace(each, hindrance=reason) for each in counts) if reason else counts


def strategies(machine: Machine, params: "PlanParams") -> list[Strategy]:
    """Returns how the machine may be rented: the strategies that params allow and that have a price."""
    allowed = {"on-demand": True, "spot": params.spot, "flex-start": params.flex_wait_hours > 0}
    return [each for each in STRATEGIES if allowed[each] and machine.price(each) is not None]


def _counts(
    job: Job,
    machine: Machine,
    strategy: Strategy,
    params: "PlanParams",
    *,
    batch_size: int,
    num_samples: int,
    among: Collection[Way] | None,
    estimates: Estimates,
) -> Iterator[Candidate]:
    """Yields one machine, two machines and so on, as long as each worker has a sample of a batch."""
    here = machine.is_local
    alone = here or machine.is_tpu
    count = job.samples(num_samples, batch_size)
    num_workers = job.num_workers if here else machine.num_workers
    most = 1 if alone else min(params.max_machines, machine.count or params.max_machines)
    for num_machines in range(1, 1 + most):
        if num_workers * num_machines > batch_size:
            break
        rental = Rental(
            machine=machine.name,
            num_machines=num_machines,
            region=machine.region,
            strategy=strategy,
            max_wait_s=params.flex_wait_hours * HOUR_S if strategy == "flex-start" else 0.0,
            backend=machine.backend,
        )
        if among is not None and (rental, batch_size) not in among:
            continue
        # A machine is equally fast in every region and at every price; only spot machines are preempted.
        key = (machine.name, machine.backend, rental.is_spot, batch_size, num_machines)
        if key not in estimates:
            estimates[key] = predict(
                job.profile,
                job.at_hand if here else machine,
                measured=job.at_hand,
                rental=rental,
                batch_size=batch_size,
                num_workers=num_workers,
                num_samples=count,
                num_bytes=job.dataset.num_bytes,
                known=job.known,
            )
        estimated = estimates[key]
        if estimated is not None:
            if estimated.rental != rental:
                estimated = replace(estimated, machine=machine, rental=rental)
            yield Candidate(estimate=estimated, num_samples=count)


def hindrance(machine: Machine, available: Collection[Machine]) -> str:
    """Returns why no job can run on that machine; "" where one can."""
    if machine not in available:
        return "the backend does not have it"
    return ONE_CHIP if _of_many_chips(machine) else ""


def everything(available: Sequence[Machine], listed: Sequence[Machine]) -> tuple[Machine, ...]:
    """Returns the machines of the backend, and those of a list that it does not have."""
    places = {(machine.name, machine.region) for machine in available}
    return (*available, *(each for each in listed if (each.name, each.region) not in places))


def allowed(
    known: Sequence[Machine], params: "PlanParams", *, available: Collection[Machine]
) -> tuple[Machine, ...]:
    """Returns the machines that params name, in their regions, that have a price.

    Raises PlanError if none has a price, if all have several TPU chips, or if none is available.
    """
    named = catalog.choose(params.machines, regions=params.regions, machines=known)
    priced = tuple(machine for machine in named if strategies(machine, params))
    if not priced:
        raise PlanError(
            f"plan.machines names {', '.join(dict.fromkeys(m.name for m in named))}, for which there is no "
            f"{'' if params.spot else 'on-demand '}price in {', '.join(params.regions)}; name another machine"
            f"{'' if params.spot else ', or allow plan.spot'}, or read it: "
            f"python -m pipeline prices --refresh"
        )
    if all(map(_of_many_chips, priced)):
        raise PlanError(
            f"plan.machines names {', '.join(dict.fromkeys(m.name for m in priced))}, and {ONE_CHIP}; "
            f"name a machine with one chip, or with GPUs"
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


def _of_many_chips(machine: Machine) -> bool:
    return machine.is_tpu and machine.num_devices > 1

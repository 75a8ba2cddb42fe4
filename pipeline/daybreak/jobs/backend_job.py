"""Builds the job that a backend gets: the same workers on every placement, under a name of its own."""

from pathlib import Path

from daybreak.contract import code_path
from daybreak.contract.backend import Job
from daybreak.contract.record_parts import Placement, Rental
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from daybreak.training import gpus


def job_of(
    home: Home, folder: Path, placement: Placement, *, planned: bool, num_workers: int, timeout_s: float
) -> Job:
    """Returns the job in `folder` on a placement; `planned`: it is the placement that the plan names."""
    place = str(folder.resolve())
    return Job(
        # Another rental gets another name, as a backend attaches to a job of the same name.
        name=folder.name if planned else "-".join([folder.name, *_words(placement.rental)]),
        module="daybreak.training.worker",
        arguments=(place,),
        num_workers=num_workers,
        rental=placement.rental,
        folder=place,
        timeout_s=timeout_s,
        environment={**_environment(home), **gpus.environment(placement.rental.machine, placement.gpus)},
    )


def _words(rental: Rental) -> list[str]:
    words = [rental.machine, str(rental.num_machines), rental.strategy]
    words += [f"{pool.machine}-{pool.num_machines}" for pool in rental.others]
    return [*words, *filter(None, (rental.region, rental.backend))]


def _environment(home: Home) -> dict[str, str]:
    """Returns the variables of the workers.

    The night's own code comes first; live metrics go where the night's do (nowhere, if set to "").
    """
    return {
        **mlflow_client.environment(home),
        **code_path.environment(home.tonight),
        # Else restarted workers may rendezvous by addresses of dead ones (pytorch issue 135712).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }

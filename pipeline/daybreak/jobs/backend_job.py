"""Builds the job that a backend gets: the same workers on every rung, under a name of its own."""

import os
from pathlib import Path

from daybreak.contract import code_path
from daybreak.contract.backend import Job
from daybreak.contract.record_types import Rental, Rung
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from daybreak.training import gpus


def job_of(home: Home, folder: Path, rung: Rung, *, planned: bool, num_workers: int, timeout_s: float) -> Job:
    """Returns the job in `folder` on a rung; `planned`: it is the rung that the plan names."""
    place = str(folder.resolve())
    return Job(
        # Another rental gets another name, as a backend attaches to a job of the same name.
        name=folder.name if planned else "-".join([folder.name, *_words(rung.rental)]),
        module="daybreak.training.worker",
        arguments=(place,),
        num_workers=num_workers,
        rental=rung.rental,
        folder=place,
        timeout_s=timeout_s,
        environment={**_environment(home), **gpus.environment(rung.rental.machine, rung.gpus)},
    )


def _words(rental: Rental) -> list[str]:
    words = [rental.machine, str(rental.num_machines), rental.strategy]
    words += [f"{pool.machine}-{pool.num_machines}" for pool in rental.others]
    return [*words, *filter(None, (rental.region, rental.backend))]


def _environment(home: Home) -> dict[str, str]:
    """Returns the variables of the workers.

    The night's own code comes first; live metrics go where the night's do (nowhere, if set to "").
    """
    mlflow = {
        name: os.environ[name] for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID") if name in os.environ
    }
    if "MLFLOW_TRACKING_URI" not in mlflow:
        mlflow["MLFLOW_TRACKING_URI"] = mlflow_client.tracking_uri(home)
    return {
        **mlflow,
        **code_path.environment(home.tonight),
        # Else restarted workers may rendezvous by addresses of dead ones (pytorch issue 135712).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }

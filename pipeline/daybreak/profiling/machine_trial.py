"""Tries a machine before a night depends on it: `daybreak check --rent`.

A short job runs on the machine that the newest plan rents, through the same backend, image and check of GPUs
as a training job. The job compares devices and speed of the machine with the catalog, so a machine that would
train on its CPU, or at a fraction of its speed, is noticed for cents.

The job itself is `python -m daybreak.profiling.machine_trial FOLDER`.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.backend import Backend
from daybreak.contract.errors import JobError
from daybreak.contract.formats import dollars, duration, operations, percent, size
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Check, Record, Rental
from daybreak.contract.units import HOUR_S
from daybreak.profiling import short_job
from daybreak.storage.home import Home
from daybreak.training import gpus, supervision
from daybreak.training.termination import die_with_parent

LIMIT_S = 900.0  # to wait for a machine, start it, and measure
LEAST = 0.05  # share of the listed FLOP/s; a T4, which has no tensor cores for bfloat16, reaches an eighth
WHAT = "the trial"


@dataclass(frozen=True, kw_only=True)
class MachineTrial(Record):
    """Hardware and speed that a job measured on its machine. Rates are of one device, per second."""

    devices: str  # `2 x NVIDIA L4`
    driver: str  # of NVIDIA, as the kernel has it; "" for none
    torch: str
    cuda: str  # that torch was built for; "" for none
    flops_per_s: float  # of a large product, in the faster of float32 and bfloat16
    copy_bytes_per_s: float  # read and written
    elapsed_s: float  # that the process ran


def trial(
    home: Home, rental: Rental, machine: Machine, backend: Backend, *, folder: Path
) -> tuple[Check, ...]:
    """Runs the job, and returns what it found as checks; a failure is a check, never an exception.

    `folder` is the job's own, and new.
    """
    records.replace_text(folder / "job.json", "{}\n")  # it needs nothing beside its code
    job = short_job.job_of(home, folder, rental, module=__name__, machine=machine, timeout_s=LIMIT_S)
    began = time.monotonic()
    try:
        handle = short_job.run(job, backend, what=WHAT, otherwise="name another machine in plan.machines")
    except JobError as error:
        return (Check(name="trial", ok=False, text=str(error)),)
    held_s = time.monotonic() - began
    usd = backend.usd(folder)
    result = records.find(MachineTrial, folder)
    most_usd = held_s * (machine.price(rental.strategy) or 0.0) / HOUR_S
    at_most = ", at most" if usd is None and most_usd else ""
    paid = (
        f"{dollars(most_usd if usd is None else usd)} for {duration(held_s)} from asking to answer{at_most}"
    )
    if result is None:
        text = short_job.failure(folder, what=WHAT, logs=backend.logs(handle))
        return Check(name="trial", ok=False, text=text), Check(name="cost", ok=True, text=paid)
    return (*judged(result, machine, rental=rental), Check(name="cost", ok=True, text=paid))


def judged(result: MachineTrial, machine: Machine, *, rental: Rental) -> Sequence[Check]:
    """Returns the checks of a machine's devices and speed against the catalog."""
    built = f"torch {result.torch}" + (
        f" for CUDA {result.cuda}, driver {result.driver}" if result.cuda else ""
    )
    checks = [Check(name="device", ok=True, text=f"{rental} has {result.devices}; {built}")]
    speed = f"{operations(result.flops_per_s)}FLOP/s, {size(result.copy_bytes_per_s)}/s"
    if machine.is_tpu:
        return checks  # only the CPU beside its chip could be measured
    listed = machine.speeds.flops_per_s
    if not listed:  # the machine at hand
        return (*checks, Check(name="speed", ok=True, text=speed))
    share = result.flops_per_s / listed
    text = f"{speed}: {percent(share)} of the {operations(listed)}FLOP/s that the catalog has"
    if share < LEAST:
        text += f", where at least {percent(LEAST)} is expected; name another machine in plan.machines"
    return (*checks, Check(name="speed", ok=share >= LEAST, text=text))


def main(folder: Path) -> None:
    """Measures this machine, and writes the record to `folder`."""
    die_with_parent()
    sys.excepthook = lambda kind, error, trace: supervision.leave_error(folder, 0, error)
    began = time.monotonic()
    gpus.check()
    import torch  # takes seconds to import

    from daybreak.profiling import roofline
    from daybreak.training.devices import device, device_names, name

    own = device()  # JobError where a TPU is given and cannot be used
    measured = roofline.measure(folder)
    count = torch.cuda.device_count()
    records.write(
        MachineTrial(
            devices=device_names([name(own)] * max(1, count)),
            driver=gpus.driver(),
            torch=str(torch.__version__),
            cuda=torch.version.cuda or "",
            flops_per_s=max(measured.float32_flops_per_s, measured.bfloat16_flops_per_s),
            copy_bytes_per_s=measured.copy_bytes_per_s,
            elapsed_s=time.monotonic() - began,
        ),
        folder,
    )


if __name__ == "__main__":
    supervision.set_up_process()
    main(Path(sys.argv[1]))

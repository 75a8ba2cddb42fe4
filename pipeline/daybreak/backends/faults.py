"""Says why a job ended without a model, and what to do: a table of causes, each with its sentence. Pure.

A place adds its own causes to the common ones, `COMMON`, or replaces the text of a common cause.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from daybreak.contract.backend import JobState
from daybreak.contract.record_parts import Rental

CANCELLED, GONE, NOT_TAKEN = "cancelled", "gone", "not taken"
KILLED, OVERTIME = "killed", "overtime"
GOES_ON = "it goes on from its last checkpoint"
NEXT = "the plan's next machine is asked for"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A cause for which a job ends without a model, or waits in vain."""

    state: JobState  # that a backend reports for it
    text: str  # what happened, and what to do; the names in braces are those of `sentence`
    final: bool = False  # a retry of the same request would fail in the same way
    patience_s: float = inf  # for which a job may wait for this cause


COMMON: Mapping[str, Fault] = MappingProxyType(
    {
        "preempted": Fault(
            state="preempted", text=f"job {{job}} was preempted on {{machine}}{{said}}; {GOES_ON}"
        ),
        KILLED: Fault(state="preempted", text=f"job {{job}} was killed on {{machine}}{{said}}; {GOES_ON}"),
        CANCELLED: Fault(
            state="preempted", text=f"job {{job}} was cancelled{{said}}; {GOES_ON} if submitted"
        ),
        GONE: Fault(state="preempted", text=f"job {{job}} is gone from {{place}}; {GOES_ON}"),
        NOT_TAKEN: Fault(
            state="refused", text=f"{{place}} does not take job {{job}} on {{machine}}{{said}}; {NEXT}"
        ),
        OVERTIME: Fault(
            state="preempted",
            text="job {job} was ended after its time{said}; its last checkpoint is what the night has; "
            "allow more by night.train_hours",
        ),
        "out of memory": Fault(
            state="failed",
            final=True,
            text="job {job} ran out of the memory of {machine}{said}; "
            "name a machine with more in plan.machines, or lower train.batch_size",
        ),
        "error": Fault(
            state="failed",
            text="job {job} ended with status {status}, an error of its own code{said}; "
            "look at {logs}, fix the workload, and run train again",
        ),
    }
)


def fault_sentence(
    fault: Fault,
    *,
    job: str,
    rental: Rental,
    place: str = "",
    said: str = "",
    logs: str = "",
    status: int | None = None,
) -> str:
    """Returns the sentence of a fault; `said` are the place's words, `logs` says where a person reads on."""
    said = " ".join(said.split()).rstrip(".")[:300]
    kinds = " or ".join(pool.machine for pool in rental.pools)
    machines = " + ".join(f"{pool.num_machines} x {pool.machine}" for pool in rental.pools)
    return fault.text.format(
        job=job,
        machine=kinds,
        place=place,
        said=f" ({said})" if said else "",
        logs=logs or "its log",
        status="?" if status is None else status,
        wait=f"{rental.max_wait_s:,.0f} s",
        what=f"{machines} as {rental.strategy} in {rental.region}",
    )

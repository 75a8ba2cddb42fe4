"""Classifies why a job on Vertex AI ended or never began, and says what to do.

The service reports a state, a code (google.rpc.Code) and a message, and puts a replica's own output into the
message: its traceback can hold any word (a file named stockout.py, `Disk quota exceeded`, `bloom_filter`). So
the cause is read from structure, in this order:

1. the state: EXPIRED and CANCELLED say all;
2. how a replica ended, which the service says in sentences of a fixed form: its exit status, the reason of
   its termination, or that it was low on memory;
3. the code, where it has one meaning: 8 (used up) is a lack of machines or of quota before the job ran, and a
   machine that was taken away after; 4 is time;
4. errors that the job's own workers have recorded (training/worker_errors.py): then it is its code;
5. the words of the service's own sentence, up to its first line break, and only before the job ran: what was
   not found, or not allowed; and which of the two a code 8 is;
6. the code.
"""

import re
from dataclasses import dataclass
from typing import Literal

from pipeline.contract.backend import State
from pipeline.contract.records import Rental

Kind = Literal[
    "stock-out", "quota", "expired", "no such thing", "not allowed", "user error", "out of memory",
    "preempted", "cancelled", "overtime", "internal",
]  # fmt: skip

EXITED = re.compile(
    r"exited with a non-zero (?:exit )?(?:status|code)(?: of)?:? (\d+)(?:\.?\s*Termination reason: (\w+))?",
    re.IGNORECASE,
)
LOW_ON_MEMORY = re.compile(
    r"^(?:The )?Replicas? (?:workerpool\d+-\d+ )?(?:ran out-of-memory|low on memory)\b", re.I
)
# 137 is SIGKILL, as for memory; 143: ended on SIGTERM by entrypoint.py. Others: user error.
STATUSES: dict[int, Kind] = {137: "out of memory", 143: "overtime"}
REASONS: dict[str, Kind] = {"oomkilled": "out of memory", "preempted": "preempted", "evicted": "preempted"}
ENDS: dict[str, Kind] = {"EXPIRED": "expired", "CANCELLED": "cancelled"}
USED_UP = 8
STOCK_OUT = r"insufficient|stock.?out|resource_pool_exhausted|not (?:have )?enough resources"
BEFORE_IT_RAN: tuple[tuple[Kind, str], ...] = (
    ("no such thing", r"not found|does not exist|no such|imagepullbackoff|failed to pull|cannot pull"),
    ("not allowed", r"permission|denied|unauthorized|forbidden"),
)
TRACEBACK = "Traceback (most recent call last)"
CODES: dict[int, Kind] = {
    1: "cancelled", 3: "user error", 4: "overtime", 5: "no such thing", 7: "not allowed", 8: "quota",
    9: "user error", 10: "internal", 13: "internal", 14: "internal", 16: "not allowed",
}  # fmt: skip
AMBIGUOUS = frozenset((3, 9, 10, 13, 14))  # an argument or the user's code; a fault of either side
STATES: dict[Kind, State] = {
    "stock-out": "refused", "quota": "refused", "expired": "refused",
    "no such thing": "failed", "not allowed": "failed", "user error": "failed", "out of memory": "failed",
    "preempted": "preempted", "cancelled": "preempted", "overtime": "preempted", "internal": "preempted",
}  # fmt: skip
FINAL: frozenset[Kind] = frozenset(("no such thing", "not allowed", "out of memory"))
# Device quotas of training; others are of calls per minute, which waiting restores.
DEVICES = re.compile(r"custom_model_training|(?:gpu|tpu|cpu|accelerator)s?\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was requested, for the sentence of a fault."""

    job: str
    rental: Rental
    logs: str = ""  # where a person reads them; "" for a request that did not become a job


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a job ended without a model."""

    kind: Kind
    text: str  # one sentence, and what to do

    @property
    def state(self) -> State:
        """The state that a backend reports for it."""
        return STATES[self.kind]

    @property
    def final(self) -> bool:
        """Whether a retry of the same request would fail in the same way."""
        return self.kind in FINAL


def classify(
    request: Request, *, state: str, code: int, message: str, ran: bool, failed: bool = False
) -> Fault:
    """Returns the fault behind the end of a job.

    `state` is the service's (FAILED, EXPIRED, CANCELLED), `ran` whether its command was ever started: a
    stock-out before it is a lack of capacity, a stock-out after it a spot machine that was preempted and
    could not be replaced in six attempts. `failed`: workers of this attempt have recorded errors.
    """
    kind = _kind(state=state, code=code, message=message, ran=ran, failed=failed)
    return Fault(kind=kind, text=_sentence(kind, request, message=" ".join(message.split())))


def _kind(*, state: str, code: int, message: str, ran: bool, failed: bool) -> Kind:
    if state in ENDS:
        return ENDS[state]
    said = message.partition(TRACEBACK)[0].strip().partition("\n")[0]
    if replica := _of_a_replica(said):
        return replica
    if code == USED_UP:
        return "preempted" if ran else "stock-out" if re.search(STOCK_OUT, said, re.IGNORECASE) else "quota"
    if code in CODES and code not in AMBIGUOUS:
        return CODES[code]
    if failed:
        return "user error"
    signs = () if ran else BEFORE_IT_RAN
    kinds = (kind for kind, sign in signs if re.search(sign, said, re.IGNORECASE))
    return next(kinds, CODES.get(code, "internal"))


def _of_a_replica(said: str) -> Kind | None:
    """Returns what the service says of how a replica ended; None if it says nothing of one."""
    if LOW_ON_MEMORY.match(said):
        return "out of memory"
    exited = EXITED.search(said)
    if exited is None:
        return None
    by_status = STATUSES.get(int(exited[1]))
    return by_status or REASONS.get((exited[2] or "").lower()) or "user error"


def is_device_quota(message: str) -> bool:
    """Whether a 429 is of the device quota, where waiting does not help, rather than of calls per minute."""
    return bool(DEVICES.search(message)) and "per minute" not in message


def _sentence(kind: Kind, request: Request, *, message: str) -> str:
    job, rental = request.job, request.rental
    what = f"{rental.num_machines} x {rental.machine} as {rental.strategy} in {rental.region}"
    said = f" ({message.rstrip('.')[:300]})" if message else ""
    return {
        "stock-out": f"there is no capacity for {what}{said}; the plan's next machine is asked for; "
        f"more choice comes from plan.machines and plan.regions",
        "quota": f"the project's quota does not allow {what}{said}; the plan's next machine is asked for; "
        f"ask Google Cloud for more of it (IAM & Admin, Quotas), or allow other plan.regions",
        "expired": f"{what} did not come within {rental.max_wait_s:,.0f} s{said}; the plan's next machine is "
        f"asked for; a longer wait comes from plan.flex_wait_hours",
        "no such thing": f"job {job} names something that is not there{said}; look at backend.image in "
        f"params.yaml, and at what python -m pipeline check says",
        "not allowed": f"job {job} may not use something that it needs{said}; give "
        f"backend.service_account the roles that docs/vertex.md lists",
        "user error": f"job {job} ended with an error of its own code{said}; look at "
        f"{request.logs or 'its log'}, fix the workload, and run train again",
        "out of memory": f"job {job} ran out of the memory of {rental.machine}{said}; "
        f"name a machine with more in plan.machines, or lower train.batch_size",
        "preempted": f"{what} was taken away{said}; the job goes on from its last checkpoint",
        "cancelled": f"job {job} was cancelled{said}; it goes on from its last checkpoint if submitted",
        "overtime": f"job {job} was ended after its time{said}; "
        f"its last checkpoint is what the night has; allow more by night.train_hours",
        "internal": f"Vertex AI lost job {job} by a fault of its own{said}; it is submitted again",
    }[kind]

"""Classifies why a job on Vertex AI ended or never began, and says what to do.

The service reports a state, a code (google.rpc.Code) and a sentence. Codes are ambiguous: 8 is a quota that
is used up as well as a region without machines, and 3 an exception of the user as well as memory that ran
out; so known sentences are matched. The output of a replica may follow the sentence: its traceback can hold
any word (a file named stockout.py), so that part is never read. The exit status of a replica takes precedence
over words, and an invalid argument (3) is never a lack of capacity.
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

# Patterns in the sentence, and the kind they mean; the first match counts.
SIGNS: tuple[tuple[Kind, str], ...] = (
    (
        "stock-out",
        r"resources are insufficient|stockout|stock.?out|resource_pool_exhausted|not enough resources",
    ),
    ("quota", r"quota"),
    ("expired", r"max.?wait|wait duration|did not obtain"),
    ("out of memory", r"low on memory|out of memory|out-of-memory|\boom"),
    ("preempted", r"preempt"),
    ("user error", r"exited with"),
    ("no such thing", r"not found|does not exist|no such|imagepullbackoff|failed to pull|cannot pull"),
    ("not allowed", r"permission|denied|unauthorized|forbidden"),
    ("overtime", r"timed? ?out|timeout"),
)
CAPACITY: frozenset[Kind] = frozenset(("stock-out", "quota", "expired", "preempted"))
INVALID_ARGUMENT = 3
EXITED = re.compile(r"non-zero (?:exit )?(?:status|code)(?: of)?:? (\d+)\b", re.IGNORECASE)
# 137 is SIGKILL, as for memory; 143: ended on SIGTERM by entrypoint.py. Others: user error.
STATUSES: dict[int, Kind] = {137: "out of memory", 143: "overtime"}
REASON = re.compile(r"\.?\s*Termination reason: \w+", re.IGNORECASE)
TRACEBACK = "Traceback (most recent call last)"
CODES: dict[int, Kind] = {
    1: "cancelled", 3: "user error", 4: "overtime", 5: "no such thing", 7: "not allowed", 8: "quota",
    9: "user error", 10: "internal", 13: "internal", 14: "internal", 16: "not allowed",
}  # fmt: skip
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


def classify(request: Request, *, state: str, code: int, message: str, ran: bool) -> Fault:
    """Returns the fault behind the end of a job.

    `state` is the service's (FAILED, EXPIRED, CANCELLED), `ran` whether its command was ever started: a
    stock-out before it is a lack of capacity, a stock-out after it a spot machine that was preempted and
    could not be replaced in six attempts.
    """
    kind = _kind(state=state, code=code, message=message)
    if kind == "stock-out" and ran:
        kind = "preempted"
    return Fault(kind=kind, text=_sentence(kind, request, message=" ".join(message.split())))


def _kind(*, state: str, code: int, message: str) -> Kind:
    if state == "EXPIRED":
        return "expired"
    if state == "CANCELLED":
        return "cancelled"
    said = _own_words(message)
    exited = EXITED.search(said)
    if exited and int(exited[1]) in STATUSES:
        return STATUSES[int(exited[1])]
    for kind, sign in SIGNS:
        if kind in CAPACITY and code == INVALID_ARGUMENT:
            continue
        if re.search(sign, said, re.IGNORECASE):
            return kind
    return "user error" if exited else CODES.get(code, "internal")


def _own_words(message: str) -> str:
    """Returns what the service says itself, without what a replica printed."""
    said = message.partition(TRACEBACK)[0]
    exited = EXITED.search(said)
    if exited is None:
        return said
    reason = REASON.match(said, exited.end())
    return said[: reason.end() if reason else exited.end()]


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

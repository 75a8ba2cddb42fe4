"""Classifies why a job on Vertex AI ended or never began, and says what to do.

The service reports a state, a code (google.rpc.Code) and a message, and puts a replica's own output into the
message: its traceback can hold any word (a file named stockout.py, `Disk quota exceeded`, `bloom_filter`). So
the cause is read from structure, in this order:

1. the state: EXPIRED and CANCELLED need no more;
2. the end of a replica, in the service's sentences of fixed form: low on memory, the reason of a termination,
   or else the exit status, which is 137 or 143 for a process that was killed or ended;
3. the code, where it has one meaning: 8 (used up) is a lack of machines or of quota before the job ran, and a
   machine that was taken away after; 4 is time;
4. errors that the job's own workers have recorded (training/worker_errors.py): then the job's code is at
fault; 5. words of the service's own sentence, up to the first line break, and only before the job ran:
something was
   not found, or not allowed; or the kind of lack behind a code 8;
6. the code.
"""

import re
from typing import Literal

from daybreak.backends.faults import COMMON, NEXT, NOT_TAKEN, Fault

NEVER = "never"  # a request that is wrong for its machine or region, and remains so

Kind = Literal[
    "stock-out",
    "quota",
    "expired",
    "no such thing",
    "not allowed",
    "user error",
    "out of memory",
    "preempted",
    "cancelled",
    "killed",
    "overtime",
    "internal",
]

EXITED = re.compile(
    r"exited with a non-zero (?:exit )?(?:status|code)(?: of)?:? (\d+)(?:\.?\s*Termination reason: (\w+))?",
    re.IGNORECASE,
)
LOW_ON_MEMORY = re.compile(
    r"^(?:The )?Replicas? (?:workerpool\d+-\d+ )?(?:ran out-of-memory|low on memory)\b", re.I
)
# 137 is SIGKILL, as for memory; 143: ended on SIGTERM. Others: user error.
STATUSES: dict[int, Kind] = {137: "out of memory", 143: "killed"}
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
    1: "cancelled",
    3: "user error",
    4: "overtime",
    5: "no such thing",
    7: "not allowed",
    8: "quota",
    9: "user error",
    10: "internal",
    13: "internal",
    14: "internal",
    16: "not allowed",
}
AMBIGUOUS = frozenset((3, 9, 10, 13, 14))  # an argument or the user's code; a fault of either side
FAULTS: dict[str, Fault] = {
    **COMMON,
    NOT_TAKEN: Fault(
        state="refused",
        text=f"Vertex AI does not take job {{job}} for {{what}}{{said}}; {NEXT}; where it takes none, look "
        "at backend in params.yaml",
    ),
    NEVER: Fault(
        state="refused",
        final=True,
        text=f"Vertex AI does not take job {{job}} for {{what}}{{said}}; {NEXT}, if it has one; else look at "
        "backend in params.yaml, or allow other plan.machines or plan.regions",
    ),
    "stock-out": Fault(
        state="refused",
        text=f"there is no capacity for {{what}}{{said}}; {NEXT}; more choice comes from plan.machines and "
        "plan.regions",
    ),
    "quota": Fault(
        state="refused",
        text=f"the project's quota does not allow {{what}}{{said}}; {NEXT}; ask Google Cloud for more of it "
        "(IAM & Admin, Quotas), or allow other plan.regions",
    ),
    "expired": Fault(
        state="refused",
        text=f"{{what}} did not come within {{wait}}{{said}}; {NEXT}; a longer wait comes from "
        "plan.flex_wait_hours",
    ),
    "no such thing": Fault(
        state="failed",
        final=True,
        text="job {job} names something that is not there{said}; look at backend.image in params.yaml, and "
        "at what daybreak check says",
    ),
    "not allowed": Fault(
        state="failed",
        final=True,
        text="job {job} may not use something that it needs{said}; give backend.service_account the roles "
        "that docs/vertex.md lists",
    ),
    "user error": Fault(
        state="failed",
        text="job {job} ended with an error of its own code{said}; look at {logs}, fix the workload, and run "
        "train again",
    ),
    "preempted": Fault(
        state="preempted", text="{what} was taken away{said}; the job goes on from its last checkpoint"
    ),
    "internal": Fault(
        state="preempted",
        text="Vertex AI lost job {job} by a fault of its own{said}; it is submitted again",
    ),
}
# Device quotas of training; others are of calls per minute, which waiting restores.
DEVICES = re.compile(r"custom_model_training|(?:gpu|tpu|cpu|accelerator)s?\b", re.IGNORECASE)


def classify(*, state: str, code: int, message: str, ran: bool, failed: bool = False) -> Kind:
    """Returns why a job ended, as a key of the table of faults.

    `state` is the service's (FAILED, EXPIRED, CANCELLED), `ran` whether its command was ever started: a
    stock-out before it is a lack of capacity, a stock-out after it a spot machine that was preempted and
    could not be replaced in six attempts. `failed`: workers of this attempt have recorded errors.
    """
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
    """Returns how a replica ended by the service's text; None if the text is not about a replica."""
    if LOW_ON_MEMORY.match(said):
        return "out of memory"
    exited = EXITED.search(said)
    if exited is None:
        return None
    by_reason = REASONS.get((exited[2] or "").lower())
    return by_reason or STATUSES.get(int(exited[1]), "user error")


def is_device_quota(message: str) -> bool:
    """Whether a 429 is of the device quota, where waiting does not help, rather than of calls per minute."""
    return bool(DEVICES.search(message)) and "per minute" not in message

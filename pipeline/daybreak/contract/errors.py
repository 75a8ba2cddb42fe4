"""Sorts errors by who fixes them, and defines the two ways a stage ends that are not errors.

PipelineError              exit 1    one sentence with its numbers, then "; " and what to do
├── ParamsError            exit 78   edit params.yaml
├── DataError              exit 78   fix the data
│   └── SourceUnreachable  exit 1    try again: the source does not answer
├── PlanError              exit 78   relax a limit
├── JobError               exit 1    try again
│   ├── NotFinite                    the same, of a loss: fixed by trying again, once
│   └── Interrupted                  nothing to do: the job goes on from its last checkpoint
└── ReleaseError           exit 1    look at the registry or the ledger
    └── LostLedger                   restore the ledger
NotYet                     exit 75   ask again later: a job runs, a gate waits
NothingToDo                exit 99   no new data, nothing to promote
"""

import errno
import os
import re

from daybreak.contract import extras
from daybreak.contract.formats import one_line

FINAL = 78  # exit status of what fails again however often it is called


class PipelineError(Exception):
    """A fault that the user can fix; its text is shown without a traceback."""

    exit_status = 1


class ParamsError(PipelineError):
    """Fixed by editing params.yaml, a trigger form or a command line."""

    exit_status = FINAL


class DataError(PipelineError):
    """Fixed in the data, or in the expectations that judge it."""

    exit_status = FINAL


class SourceUnreachable(DataError):
    """Fixed by trying again: what holds the data does not answer."""

    exit_status = PipelineError.exit_status


class NoFiles(DataError):
    """No file is delivered where the source looks for them."""


class PlanError(PipelineError):
    """Fixed by relaxing a deadline, a budget or a size."""

    exit_status = FINAL


class JobError(PipelineError):
    """Fixed by trying again: a job, a machine or a server failed."""


class Interrupted(JobError):
    """A worker was ended from outside, and a restart goes on without a change; never a final error."""


class NotFinite(JobError):
    """The loss of update number `update` is not finite."""

    def __init__(self, text: str, *, update: int) -> None:
        super().__init__(text)
        self.update = update


class ReleaseError(PipelineError):
    """Fixed by looking at the registry or the ledger."""


class LostLedger(ReleaseError):
    """The ledger lacks what others know of it."""


class NotYet(Exception):
    """The stage can do no more now and has to be called again; `share` of the work is done.

    A call sooner than `again_s` is not worth its cost; None leaves it to the caller.
    """

    exit_status = 75

    def __init__(self, text: str = "", *, share: float | None = None, again_s: float | None = None) -> None:
        super().__init__(text)
        self.share, self.again_s = share, again_s


class NothingToDo(Exception):
    """The stage has nothing to do tonight, and says why."""

    exit_status = 99


_USER = re.compile(r"//[^/@\s?#]+@")
_PASSWORD = re.compile(r"//[^/@\s:?#]*:(?!\d+(?:[/?#]|$))[^@\s'\"]+@")  # also one with a slash; no port
_TOKEN = re.compile(r"https?://[^/@\s:?#]+@", re.IGNORECASE)  # the only use of a user alone on the web
# As of a query, or of ODBC within one, where `=` and `;` may be escaped and a value be in braces.
_KEY = re.compile(
    r"((?:[?&;=]|%3B|%3D)(?:[\w.-]*(?:key|passwd|password|pwd|secret|sig|signature|token)"
    r"|(?:[\w.-]*[_.-])?(?:auth|pass))(?:=|%3D))"
    r"(?:\{[^}]*\}|%7B(?:(?!%7D).)*%7D|(?:(?!%3B)[^&;\s'\"])+)",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)


def without_password(text: str) -> str:
    """Returns the text without the user, password or key that an address in it may carry.

    >>> without_password("no answer from http://me:secret@host:5000/api?day=1&sig=abc")
    'no answer from http://host:5000/api?day=1&sig=...'
    """
    return _KEY.sub(r"\1...", _USER.sub("//", _PASSWORD.sub("//", text)))


def has_password(url: str) -> bool:
    """Returns whether a URL carries a password, a token or a key, so that it may not be committed.

    A variable that the environment has does not count in its place; any other is a text with a dollar sign.

    >>> has_password("https://me:secret@host/a.csv"), has_password("https://me:$PATH@host/a.csv")
    (True, False)
    """
    fixed = _VARIABLE.sub(lambda name: "" if (name[1] or name[2]) in os.environ else name[0], url)
    return any(pattern.search(fixed) for pattern in (_PASSWORD, _TOKEN, _KEY))


_OF_A_NETWORK = (
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.EPIPE,
    errno.ESTALE,
    errno.ETIMEDOUT,
)


def is_unreachable(error: BaseException) -> bool:
    """Returns whether a host did not answer, or its name was not resolved, rather than refused.

    Libraries of HTTP raise OSErrors of their own with the number of the system's, negative for a name.
    """
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    number = getattr(error, "errno", None)
    return isinstance(error, OSError) and number is not None and (number < 0 or number in _OF_A_NETWORK)


# The texts of Linux, C++ and torch: on a CPU, torch names the cause in its text alone.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether Python, numpy or torch could not get memory."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)


def sentence(error: Exception) -> str:
    """Returns an exception as a sentence; its class is named only where the text is not our own.

    Where the disk is the cause, the sentence is about the disk.
    """
    from daybreak.contract import disk

    if about_disk := disk.fault(error):
        return about_disk
    if isinstance(error, PipelineError):
        return without_password(one_line(str(error)))
    return extras.missing(error) or without_password(f"{type(error).__name__}: {error}")

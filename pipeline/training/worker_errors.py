"""What has ended workers of a job, and would trying again help? `errors.jsonl`, one line a fault.

A fault is `final` where trying again would end the same: an error that we raise, as its text says what to
do. A loss that is no number is final the second time that an update meets it: the first time all start again
from the last good checkpoint, as a device or a machine may have been at fault.
"""

import os
from pathlib import Path

from pipeline.contract.errors import NotFinite, PipelineError
from pipeline.storage import jsonl

ATTEMPT = "PIPELINE_ATTEMPT"  # in the environment: which start of the job a worker belongs to
RESTART = "TORCHELASTIC_RESTART_COUNT"  # which start by torchrun, in that one
FILE = "errors.jsonl"


def leave(folder: Path, error: BaseException | str, *, rank: int) -> None:
    """Add a fault of this worker."""
    told = isinstance(error, PipelineError | str)
    facts, final = {}, isinstance(error, PipelineError)
    if isinstance(error, NotFinite):
        facts, final = {"update": error.update}, met_not_finite(folder, update=error.update)
    attempt, restart = _own()
    line = {
        "attempt": attempt,
        "restart": restart,
        "rank": rank,
        "error": str(error) if told else f"{type(error).__name__}: {error}",
        "final": final,
        **facts,
    }
    jsonl.append(folder / FILE, line)


def met_not_finite(folder: Path, *, update: int | None = None) -> bool:
    """Whether an earlier start met a loss that is no number, at that update or at any."""
    met = [line for line in jsonl.whole(folder / FILE) if "update" in line]
    earlier = [line for line in met if (line["attempt"], line["restart"]) != _own()]
    return any(update in (None, line["update"]) for line in earlier)


def hopeless(folder: Path) -> bool:
    """Whether this start of the job has met a fault that trying again does not mend."""
    return any(line["final"] and line["attempt"] == _own()[0] for line in jsonl.whole(folder / FILE))


def final(folder: Path) -> str:
    """The newest fault that trying again does not mend; "" if there is none."""
    found = [str(line["error"]) for line in jsonl.whole(folder / FILE) if line["final"]]
    return found[-1] if found else ""


def reason(folder: Path) -> str:
    """Why the job ended, as its first worker to fail in the newest start has it."""
    told = jsonl.whole(folder / FILE)
    newest = [line for line in told if line["attempt"] == told[-1]["attempt"]]
    return str(newest[0]["error"]) if newest else "killed from outside"


def forget(folder: Path) -> None:
    """Begin to count anew."""
    (folder / FILE).unlink(missing_ok=True)


def _own() -> tuple[str, str]:
    return os.environ.get(ATTEMPT, ""), os.environ.get(RESTART, "")

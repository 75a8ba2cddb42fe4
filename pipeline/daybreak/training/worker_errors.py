"""Records what ended the workers of a job, and whether a retry would help: `errors.jsonl`, one line an error.

An error is `final` where a retry would end the same way: an error of our own, whose text says what to do,
unless something outside the worker has ended it. A loss that is not finite is final the second time that it
happens at an update: the first time all workers restart from the last good checkpoint, since a device or a
machine may have been at fault. The same holds for any other error, such as one in the workload's code, unless
it is of a kind that machines and networks cause.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from daybreak.contract.errors import Interrupted, NotFinite, PipelineError, is_out_of_memory
from daybreak.contract.records import replace_text
from daybreak.storage import jsonl

ATTEMPT = "DAYBREAK_ATTEMPT"  # in the environment: which start of the job a worker belongs to
RESTART = "TORCHELASTIC_RESTART_COUNT"  # which restart by torchrun within that attempt
FILE = "errors.jsonl"
FORGOTTEN = "forgotten.json"  # starts whose errors no longer count: a bucket has their lines still


def leave(folder: Path, error: BaseException | str, *, rank: int, update: int | None = None) -> None:
    """Records an error of this worker, and the update that it was taking."""
    has_sentence = isinstance(error, PipelineError | str)
    text = str(error) if has_sentence else f"{type(error).__name__}: {error}"
    facts: dict[str, int] = {}
    is_own, passes = isinstance(error, PipelineError), isinstance(error, Interrupted)
    final = is_own and not passes
    if isinstance(error, NotFinite):
        facts, final = {"update": error.update}, met_not_finite(folder, update=error.update)
    elif update is not None and isinstance(error, Exception) and not is_own and not _may_pass(error):
        facts = {"in_update": update}
        again = {"in_update": update, "error": text}.items()
        if final := any(again <= line.items() for line in _earlier(folder)):
            text += f", at update {update} of two starts in turn; correct the workload, or the samples it met"
    attempt, restart = _own()
    line = {
        "attempt": attempt,
        "restart": restart,
        "rank": rank,
        "error": text,
        "final": final,
        **facts,
    }
    jsonl.append(folder / FILE, line)


def explain(folder: Path, error: str, *, attempt: str, final: bool, refused: str) -> None:
    """Records why the backend ended an attempt, or that it refused the machine named `refused`."""
    line = {"attempt": attempt, "rank": -1, "error": error, "final": final}
    jsonl.append(folder / FILE, {**line, "refused": refused} if refused else line)


def met_not_finite(folder: Path, *, update: int | None = None) -> bool:
    """Returns whether an earlier start met a loss that is not finite, at that update or at any."""
    met = [line["update"] for line in _earlier(folder) if "update" in line]
    return bool(met) if update is None else update in met


def hopeless(folder: Path) -> bool:
    """Returns whether this start of the job has met an error that a retry does not fix."""
    return any(line["final"] and line["attempt"] == _own()[0] for line in jsonl.whole(folder / FILE))


def has_failed(folder: Path, *, attempt: str) -> bool:
    """Returns whether a worker of that start of the job recorded an error."""
    return any(line["attempt"] == attempt and line["rank"] >= 0 for line in jsonl.whole(folder / FILE))


def final(folder: Path, *, names: Callable[[], Iterable[str]] = tuple) -> str:
    """Returns the newest error that a retry does not fix; "" if there is none.

    A job that its backend refuses for good may be taken elsewhere, by another of its `names`.
    """
    lines = [line for line in jsonl.whole(folder / FILE) if line["final"]]
    refused = {str(line["refused"]) for line in lines if "refused" in line}
    everywhere = bool(refused) and refused.issuperset(names())
    errors = [str(line["error"]) for line in lines if everywhere or "refused" not in line]
    return errors[-1] if errors else ""


def reason(folder: Path) -> str:
    """Returns why the job ended: the error of the first worker to fail in the newest start."""
    lines = jsonl.whole(folder / FILE)
    newest = [line for line in lines if line["attempt"] == lines[-1]["attempt"]]
    return str(newest[0]["error"]) if newest else "killed from outside, or ended before it could say why"


def forget(folder: Path) -> None:
    """Deletes the errors recorded so far, and remembers their starts: a bucket still has the lines."""
    starts = {str(line["attempt"]) for line in jsonl.whole(folder / FILE)} - {""}
    if new := starts - _forgotten(folder):
        replace_text(folder / FORGOTTEN, json.dumps(sorted(_forgotten(folder) | new)) + "\n")
    (folder / FILE).unlink(missing_ok=True)


def remembered(folder: Path, lines: Sequence[str]) -> list[str]:
    """Returns the lines of errors.jsonl without those of starts whose errors were forgotten."""
    starts = [json.dumps(start) for start in _forgotten(folder)]
    return [line for line in lines if not any(f'"attempt": {start}' in line for start in starts)]


def _forgotten(folder: Path) -> set[str]:
    path = folder / FORGOTTEN
    return set(json.loads(path.read_text())) if path.exists() else set()


def _earlier(folder: Path) -> list[dict[str, Any]]:
    """Returns the errors of workers of earlier starts."""
    lines = [line for line in jsonl.whole(folder / FILE) if line["rank"] >= 0]
    return [line for line in lines if (line["attempt"], line["restart"]) != _own()]


def _may_pass(error: Exception) -> bool:
    """Returns whether a machine or a network may have caused an error, so that it may not come elsewhere."""
    if isinstance(error, OSError) or is_out_of_memory(error):
        return True
    # torch and its process groups raise plain RuntimeErrors where a device fails, or another worker is lost.
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return isinstance(error, RuntimeError) and (several or "CUDA error" in str(error))


def _own() -> tuple[str, str]:
    return os.environ.get(ATTEMPT, ""), os.environ.get(RESTART, "")

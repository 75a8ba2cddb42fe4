"""Jobs for Vertex AI, and a backend that retries after moments."""

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from daybreak.backends.place import RetryPolicy
from daybreak.contract.backend import Job, JobState
from daybreak.contract.record_parts import Rental
from daybreak.extensions.vertex.vertex import Vertex

OF_RENTAL = {field.name for field in fields(Rental)}
QUICK = RetryPolicy(first_pause_s=0.02, give_up_s=3.0, settle_s=0.2, cancel_s=300.0)


def vertex(url: str, *, retry: RetryPolicy = QUICK, **arguments: Any) -> Vertex:
    return Vertex(
        **{"project": "p", "image": "eu.example/daybreak:1", "endpoint": url, "retry": retry, **arguments}
    )


def job(home: Path, script: str = "exit 0", /, **changes: Any) -> Job:
    rental = {"machine": "g2-standard-8", **{name: changes.pop(name) for name in OF_RENTAL & changes.keys()}}
    given: dict[str, Any] = {
        "name": "j",
        "module": "tests.backends.script",
        "arguments": (script,),
        "rental": Rental(**rental),
        "folder": str(home / "job"),
        "timeout_s": 60,
        "night": "2026-01-02",
        "model": "daybreak",
    }
    return Job(**{**given, **changes})


def wait(condition: Callable[[], Any], *, timeout_s: float = 300) -> Any:
    until = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.03)
    return value


def end(backend: Any, handle: str, *, timeout_s: float = 300) -> JobState:
    """The state that the job ends in."""

    def ended() -> JobState | None:
        state: JobState = backend.state(handle)
        return None if state in ("queued", "running") else state

    last: JobState = wait(ended, timeout_s=timeout_s)
    return last

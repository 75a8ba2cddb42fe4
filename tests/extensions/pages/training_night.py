"""A night that trains: its records, and a job on a scripted backend that sends heartbeats when it is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from daybreak.contract.errors import NotYet
from daybreak.contract.record_types import Night
from tests.fakes import ScriptedBackend
from tests.jobs.calls import NIGHT, call
from tests.report.nights import lay, only, whole
from tests.training import nights

SAMPLES, STEP, EVERY_S = 3001, 40, 4
BEGAN_S = 5  # after the opening of the night


@contextmanager
def training(folder: Path, *, night: Night = NIGHT) -> Iterator[Path]:
    """Yield the folder of a job that was seen running five seconds after its night was opened."""
    with nights.surroundings():
        nights.lay_out(folder)
        entry = only(whole(), "batch", "report", "dataset", "profile")
        lay(replace(entry, night=night, plan=nights.plan(num_samples=SAMPLES)), folder, scores=False)
        for at_s in (0, BEGAN_S):
            with suppress(NotYet):
                call(
                    ScriptedBackend("running"), night=night, plan=nights.plan(num_samples=SAMPLES), at_s=at_s
                )
        (path,) = folder.glob("data/work/jobs/*/submissions.json")
        yield path.parent


def beat(job: Path, number: int, *, night: Night = NIGHT) -> None:
    """Send the heartbeat of that number, from 1 on."""
    at = night.started_at + timedelta(seconds=BEGAN_S + EVERY_S * number)
    fact = {
        "time": at.isoformat(),
        "seen": STEP * number,
        "num_updates": 2 * number,
        "loss": 2.0 / (1 + number),
        "rate": 1e-3,
        "samples_per_s": STEP / EVERY_S,
        "memory_bytes": 5,
        "device": "CPU",
    }
    with (job / "progress.jsonl").open("a") as file:
        file.write(json.dumps(fact) + "\n")

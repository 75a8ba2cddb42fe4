"""Does a night cost what the plan, the meter and the ledger say? A month of nights against a bill from SKUs.

The bill is written by benchmarks/invoice.py from the provider's SKUs and its log of when machines were
there, and knows nothing of our prices. The nights are planned by the real planner on the machines of the
Vertex backend (8 x H100, on demand and by flex-start) and run by the real launcher and trainer in a cloud
with a clock of its own (tests/jobs/cloud.py), in which jobs wait, start sooner or later than planned, run
faster or slower, and fail: what they leave is what Vertex AI reports, when a command began and ended, in the
real journal, from which the backend reckons. What the ledger keeps of a night is its record `Training`.

Plan and bill differ by how long the nights took, so the plan is also compared at the hours of the bill.
Vertex AI does not report when machines were there, and start-ups take longer or shorter than planned; the
machines here say when they were booted, as the first worker on a real one does, ten seconds after the bill
begins.
"""

import logging
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import exp, inf
from pathlib import Path

from benchmarks import frame, invoice
from daybreak.backends import billing
from daybreak.backends.submission_journal import Submission, SubmissionJournal, stretches
from daybreak.contract import params
from daybreak.contract.backend import Job, JobState
from daybreak.contract.machine import Machine
from daybreak.contract.record_types import Night, Plan, Training
from daybreak.contract.sections import Params
from daybreak.extensions.vertex.vertex import Vertex
from daybreak.jobs.cost_tracker import JOBS, spent_usd
from daybreak.machines.startup import DATA, START, TWICE
from daybreak.planning import planner
from tests.jobs import cloud
from tests.planning.jobs import DATASET, profile
from tests.training import nights

NIGHTS = 8 if frame.QUICK else 30
A3 = "a3-highgpu-8g"
STEP_S = 120.0  # of a sample, on the two cores of the profile: an hour or two on 8 H100


class Metered(cloud.Cloud):
    """The cloud as Vertex AI reports it: times in the journal, and the backend's reading of the times."""

    def __init__(self, night: Night, plan: Plan, luck: cloud.Luck, given: Params, vertex: Vertex) -> None:
        self.vertex = vertex
        super().__init__(night, plan, luck, given)

    def machines(self) -> Sequence[Machine]:
        """What Vertex AI rents."""
        return self.vertex.machines()

    def submit(self, job: Job) -> str:
        """Write the submission down, as the backend does."""
        handle = super().submit(job)
        journal = SubmissionJournal(Path(job.folder))
        if journal.of(handle) is None:
            rental = replace(job.rental, region=job.rental.region or "us-central1")
            asked_at = _iso(self._live(handle).asked)
            journal.put(
                Submission(name=handle, job=job.name, rental=rental, handle=handle, asked_at=asked_at)
            )
        return handle

    def state(self, handle: str) -> JobState:
        """Look at the job, and write down what is said."""
        live = self._live(handle)
        began = live.begins <= self.now
        SubmissionJournal(Path(live.job.folder)).change(
            handle,
            state=live.state,
            started_at=_iso(live.begins - self._median_s(DATA)) if began else "",
            ended_at=_iso(live.ended) if began and live.ended < inf else "",
        )
        return super().state(handle)

    def usd(self, folder: Path) -> float | None:
        """What the backend says that a job has cost."""
        for live in self.jobs:
            self.state(live.handle)
        now = datetime.fromtimestamp(self.now, UTC)
        return billing.usd(stretches(folder), now=now, known=self.machines())

    def _start_s(self) -> float:
        """Machine and image, about as long as planned, and then the data; the queue is before."""
        return self._median_s(START) * exp(self.random.gauss(0, TWICE)) + self._median_s(DATA)

    def _median_s(self, name: str) -> float:
        return sum(portion.expected_s for portion in self.plan.forecast.portions if portion.name == name)

    @property
    def uses(self) -> list[invoice.Use]:
        """The provider's log."""
        return [
            invoice.Use(
                strategy=live.job.rental.strategy,
                num_machines=live.job.rental.num_machines,
                there_s=live.granted,
                gone_s=live.ended,
            )
            for live in self.jobs
            if live.granted < live.ended
        ]


def one_night(number: int, folder: Path, vertex: Vertex) -> tuple[Metered, float, float]:
    """Plans and runs a night; returns the cloud, the plan's cost, and the cost tracker's."""
    chance = random.Random(number)
    given = _params(flex_wait_hours=2.0 if number % 2 else 0.0)
    begun = cloud.BEGUN + timedelta(days=number)
    night = replace(
        nights.night(name=f"{begun:%Y-%m-%d}", budget_usd=900),
        started_at=begun,
        train_until=begun + timedelta(hours=36),
        decide_until=begun + timedelta(days=365),
    )
    data = replace(DATASET, num_samples=chance.randint(60_000, 160_000))
    machines = vertex.machines()
    plan = planner.plan(night, data, profile(step_s=STEP_S), None, given, available=machines, listed=machines)
    luck = cloud.Luck(
        seed=number,
        factors={A3: chance.uniform(0.85, 1.15)},
        fails_at=[plan.num_samples * chance.random()] if number % 5 == 0 else (),
    )
    folder.mkdir()
    with nights.surroundings():
        nights.lay_out(folder)
        world = Metered(night, plan, luck, given, vertex)
        world.run()
        return world, plan.forecast.expected_usd, spent_usd(JOBS, night=night.id)


def _params(*, flex_wait_hours: float) -> Params:
    return params.check(
        {
            "source": "tests.fakes:TwoDays",
            "workload": {"use": "tests.fakes:LineWorkload"},
            "backend": "daybreak:Local",
            "plan": {
                "machines": [A3],
                "regions": ["us-central1"],
                "spot": False,
                "flex_wait_hours": flex_wait_hours,
            },
            "train": {"epochs": 1, "batch_size": 1024, "rate": 0.01},
        }
    )


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def main() -> None:
    """Compare prices of an hour to a cent, then a month."""
    logging.disable(logging.CRITICAL)
    os.environ["MLFLOW_TRACKING_URI"] = ""
    vertex = Vertex(project="p", image="i")
    machine = next(m for m in vertex.machines() if (m.name, m.region) == (A3, "us-central1"))
    assert machine.disk
    cents: dict[str, float] = {}
    for strategy in ("on-demand", "flex-start"):
        usd = machine.price(strategy)
        assert usd is not None
        ours = usd - machine.disk.usd_per_hour
        theirs = float(invoice.usd_per_hour(strategy, with_disk=False))
        cents[f"A3 {strategy} without disk $ an hour"] = float(invoice.to_a_cent(ours))
        cents[f"A3 {strategy}, off the SKUs by cents"] = abs(ours - theirs) * 100
    with tempfile.TemporaryDirectory() as folder:
        month = [one_night(number, Path(folder) / str(number), vertex) for number in range(NIGHTS)]
    rows, at_their_hours = [], 0.0
    for world, planned, metered in month:
        assert isinstance(world.decision, Training)
        at_their_hours += sum(
            (machine.price(u.strategy) or 0.0) * u.num_machines * (u.gone_s - u.there_s) / 3600  # type: ignore[arg-type]
            for u in world.uses
        )
        rows.append((planned, metered, world.decision.cost_usd, float(invoice.total_usd(world.uses))))
    planned, metered, _, billed = (sum(column) for column in zip(*rows, strict=True))
    bill = invoice.total_usd([use for world, _, _ in month for use in world.uses])
    strategies = [use.strategy for world, _, _ in month for use in world.uses]
    frame.finish(
        "bill",
        {
            **cents,
            "nights": NIGHTS,
            "jobs on demand": strategies.count("on-demand"),
            "jobs by flex-start": strategies.count("flex-start"),
            "bill $": billed,
            "plan $": planned,
            "plan off the bill, month %": 100 * abs(planned / billed - 1),
            "plan's prices at the bill's hours, off by cents": float(
                abs(invoice.to_a_cent(at_their_hours) - invoice.to_a_cent(bill)) * 100
            ),
            "meter $": metered,
            "meter off the bill, month %": 100 * abs(metered / billed - 1),
            "meter off the bill, worst night %": max(100 * abs(row[1] / row[3] - 1) for row in rows),
            "ledger off the meter, worst night $": max(abs(row[2] - row[1]) for row in rows),
        },
        {
            "A3 on-demand without disk $ an hour": ("==", 101.01),
            "A3 flex-start without disk $ an hour": ("==", 51.50),
            "A3 on-demand, off the SKUs by cents": ("<=", 0.5),
            "A3 flex-start, off the SKUs by cents": ("<=", 0.5),
            "plan off the bill, month %": ("<=", 20),
            "plan's prices at the bill's hours, off by cents": ("<=", 1),
            "meter off the bill, month %": ("<=", 3),
            "meter off the bill, worst night %": ("<=", 20),
            "ledger off the meter, worst night $": ("==", 0),
        },
    )


if __name__ == "__main__":
    main()

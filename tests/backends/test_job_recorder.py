"""What is recorded of a job is what it costs, whatever becomes of its machines."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.backends.job_recorder import JobRecorder
from daybreak.backends.place import Rented
from daybreak.backends.submission_journal import Submission, SubmissionJournal
from daybreak.contract.record_parts import Rental
from tests.backends.small_place import MACHINE, Cloud, SmallPlace


def test_a_job_whose_first_machine_is_lost_and_comes_again_is_paid_from_its_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    journal = SubmissionJournal(tmp_path / "job")
    recorder = JobRecorder(SmallPlace(Cloud()), journal)
    asked = datetime(2026, 1, 2, tzinfo=UTC)
    rental = Rental(machine=MACHINE.name, num_machines=2)
    journal.put(Submission(name="t", job="j", rental=rental, asked_at=asked.isoformat(), handle="thing-0"))

    def seen(started: float, state: str = "running", **more: datetime) -> None:
        at = asked + timedelta(hours=started)
        rented = Rented(
            name="thing-0", state="running", created_at=asked, attempt="t", there_at=at, started_at=at
        )
        recorder.record(journal.read()["t"], replace(rented, state=state, **more))

    seen(1)
    seen(3)  # the oldest machine that is left
    assert journal.read()["t"].stretch.started == asked + timedelta(hours=1)
    seen(0.5)  # the place knows better
    seen(4, "succeeded", ended_at=asked + timedelta(hours=5))
    stretch = journal.read()["t"].stretch
    assert (stretch.started, stretch.there) == (asked + timedelta(hours=0.5),) * 2
    assert stretch.ended == asked + timedelta(hours=5)

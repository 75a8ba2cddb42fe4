"""What is recorded of a job is what it costs, whatever becomes of its machines."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.backends import submission_journal
from daybreak.backends.faults import Fault
from daybreak.backends.job_recorder import JobRecorder
from daybreak.backends.place import Rented
from daybreak.backends.submission_journal import Submission, SubmissionJournal
from daybreak.contract.record_parts import Rental
from daybreak.storage.home import Home
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


CROWDED = Fault(state="refused", text="no node{said}", patience_s=60)


def unschedulable(cloud: Cloud, *, ends: bool) -> SmallPlace:
    """A place whose job waits for a node that does not come, and may take long to end."""

    class Crowded(SmallPlace):
        faults: Mapping[str, Fault] = {**SmallPlace.faults, "crowded": CROWDED}
        alive = True

        def get(self, name: str) -> Rented | None:
            asked = datetime.now(UTC) - timedelta(hours=1)
            state, cause = ("queued", "crowded") if self.alive else ("ended", "cancelled")
            return Rented(
                name=name, state=state, created_at=asked, attempt="t", job="j", cause=cause, since=asked
            )

        def end(self, name: str) -> None:
            self.alive = self.alive and not ends

    place = Crowded(cloud)
    place.retry = replace(place.retry, cancel_s=0.01, first_pause_s=0.01)
    return place


@pytest.mark.parametrize("ends", [True, False])
def test_a_job_that_waits_in_vain_has_ended_only_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    journal = SubmissionJournal(tmp_path / "job")
    place = unschedulable(Cloud(), ends=ends)
    rental, asked_at = Rental(machine=MACHINE.name), datetime.now(UTC).isoformat()
    asked = Submission(name="t", job="j", rental=rental, asked_at=asked_at, handle="thing-0")
    journal.put(replace(asked, home=place.home_token))
    recorder = JobRecorder(place, journal)
    if not ends:
        for _ in range(2):
            assert recorder.state(journal.read()["t"]) == "queued"
            assert not journal.read()["t"].ended_at
        place.alive = False
    assert recorder.state(journal.read()["t"]) == "refused"
    assert journal.read()["t"].reason.startswith("no node")


def test_a_copy_of_a_home_does_not_pay_for_the_machines_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    journal, place = SubmissionJournal(tmp_path / "job"), SmallPlace(Cloud())
    began = (datetime.now(UTC) - timedelta(hours=10)).isoformat()
    rental = Rental(machine=MACHINE.name, region=MACHINE.region)
    theirs = Submission(
        name="t",
        job="j",
        rental=rental,
        asked_at=began,
        started_at=began,
        handle="h",
        state="running",
        home="original",
    )
    journal.put(theirs)
    assert JobRecorder(place, journal).state(theirs) == "preempted"
    assert submission_journal.usd(tmp_path / "job", place.machines) == 0
    assert journal.read()["t"].state == "preempted"


def test_a_copy_of_a_home_leaves_the_updates_of_jobs_that_the_original_only_found(tmp_path: Path) -> None:
    """As a second job of one name, of which the place tells."""

    class Busy(SmallPlace):
        def get(self, name: str) -> Rented | None:
            return Rented(name=name, state="running", created_at=datetime.now(UTC), attempt="t", job="j")

    def recorder(name: str) -> JobRecorder:
        place = Busy(Cloud(), bucket=str(tmp_path / "bucket"), home=Home(tmp_path / name))
        return JobRecorder(place, SubmissionJournal(tmp_path / name / "job"))

    original = recorder("original")
    rented = original.place.get("thing-0")
    assert rented
    original.adopt(rented, job="j", rental=Rental(machine=MACHINE.name, region=MACHINE.region))
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    (original.journal.folder / "batch.json").write_text("{}")
    assert original.state(original.journal.read()["t"]) == "running"
    copy = recorder("copy")
    assert copy.state(copy.journal.read()["t"]) == "preempted"
    assert original.place.bucket and original.place.bucket.text("jobs", "job", "down", "batch.json") == "{}"

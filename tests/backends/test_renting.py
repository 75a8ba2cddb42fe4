"""What a team's own place gets by inheriting: adoption, one job, the last known state, a reaper, a meter."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.backends import staging
from daybreak.backends.submission_journal import SubmissionJournal
from daybreak.contract.backend import Job, OutOfTime
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.record_parts import Pool
from daybreak.jobs import reaper
from daybreak.storage.home import Home
from tests.backends import rented
from tests.backends.small_place import MACHINE, Cloud, SmallPlace
from tests.fakes import read_lines

SLEEP = "sleep 60"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path / "home"))
    made = Cloud()
    yield made
    for thing in made.things.values():
        thing.end()


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    def make(script: str = SLEEP, **changes: Any) -> Job:
        return rented.job(tmp_path, script, **{"machine": MACHINE.name, **changes})

    return make


def test_a_job_whose_reply_was_lost_is_adopted_and_so_is_one_whose_journal_was(cloud, job, tmp_path):
    cloud.replies_lost = 1
    handle = SmallPlace(cloud).submit(job())
    assert SmallPlace(cloud).submit(job()) == handle
    (tmp_path / "job" / "orders.json").unlink()
    assert SmallPlace(cloud).submit(job()) == handle
    assert len(cloud.things) == 1


def test_a_place_that_takes_machines_of_one_kind_says_so_of_unlike_ones(cloud, job):
    unlike = job(num_machines=2, others=(Pool(machine=MACHINE.name),))
    with pytest.raises(JobError, match="such a job on the small place has machines of one kind; name one"):
        SmallPlace(cloud).submit(unlike)
    assert not cloud.things


def test_while_the_place_is_away_the_last_known_state_counts_and_nothing_is_asked_for(cloud, job):
    handle = SmallPlace(cloud).submit(job())
    assert SmallPlace(cloud).state(handle) == "running"
    cloud.away = True
    assert SmallPlace(cloud).state(handle) == "running"
    SmallPlace(cloud).cancel(handle)
    with pytest.raises(NotYet, match="job j is not known to be taken: the small place does not answer"):
        SmallPlace(cloud).submit(job())
    cloud.away = False
    assert SmallPlace(cloud).submit(job()) == handle


def test_while_the_bucket_is_away_a_job_that_has_ended_is_as_it_was_known(cloud, job, tmp_path, monkeypatch):
    backend = SmallPlace(cloud, bucket=f"file://{tmp_path}/bucket")
    handle = backend.submit(job("true"))

    def away(*parts: Any) -> None:
        raise OSError("no route to the bucket")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "pull_results", away)
        cloud.things["thing-0"].process.wait()
        assert backend.state(handle) == "queued"
    assert backend.state(handle) == "succeeded"


def test_a_job_is_cancelled_while_the_bucket_is_away_and_as_it_was_known(cloud, job, tmp_path, monkeypatch):
    backend = SmallPlace(cloud, bucket=f"file://{tmp_path}/bucket")
    handle = backend.submit(job())
    assert backend.state(handle) == "running"

    def away(*parts: Any) -> None:
        raise OSError("no route to the bucket")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "pull_results", away)
        backend.cancel(handle)
        assert cloud.things["thing-0"].process.poll() is not None
        assert backend.state(handle) == "running"
    assert backend.state(handle) == "preempted"


def test_of_two_jobs_of_a_name_the_younger_is_ended_at_the_next_look_and_paid(cloud, job, tmp_path):
    first, second = (job(folder=str(tmp_path / host / "job")) for host in "ab")
    handle = SmallPlace(cloud).submit(first)
    kept = cloud.things.pop("thing-0")
    SmallPlace(cloud).submit(second)  # by a host that does not see the first yet
    cloud.things = {"thing-9": cloud.things["thing-0"], "thing-0": kept}
    assert SmallPlace(cloud).state(handle) == "running"
    assert [name for name, thing in cloud.things.items() if thing.process.poll() is None] == ["thing-0"]
    journal = SubmissionJournal(tmp_path / "a" / "job").submissions()
    assert [each.state for each in journal] == ["running", "preempted"]
    assert journal[1].ended_at


def test_a_refusal_has_its_sentence_and_the_next_request_is_a_new_one(cloud, job, tmp_path):
    cloud.full = True
    handle = SmallPlace(cloud).submit(job())
    assert SmallPlace(cloud).state(handle) == "refused"
    (line,) = read_lines(tmp_path / "job" / "errors.jsonl")
    assert line["error"].startswith(
        f"all of 1 x {MACHINE.name} as on-demand in {MACHINE.region} is taken (no rack"
    )
    cloud.full = False
    assert SmallPlace(cloud).submit(job()) != handle


def test_what_it_costs_is_the_price_of_its_machine_and_an_orphan_is_ended(cloud, job, tmp_path, monkeypatch):
    backend = SmallPlace(cloud)
    backend.submit(job())
    assert backend.usd(tmp_path / "none") is None
    began = cloud.things["thing-0"].created_at - timedelta(hours=1)
    journal = SubmissionJournal(tmp_path / "job")
    (made,) = journal.submissions()
    journal.change(made.name, there_at=began.isoformat(), started_at=began.isoformat())
    assert backend.usd(tmp_path / "job") == pytest.approx(MACHINE.price("on-demand"), rel=0.01)
    (live,) = backend.live()
    assert (live.job, live.night, live.state) == ("j", "2026-01-02", "running")
    (tmp_path / "job" / "orders.json").unlink()  # whose folder is gone
    monkeypatch.setattr(reaper, "standings", lambda home: {})
    monkeypatch.setattr(reaper, "YOUNG", timedelta(0))
    reaper.reap(Home.here(), backend=backend)
    assert not backend.live()


def test_what_cannot_be_is_said_before_the_place_is_asked(cloud, job):
    backend = SmallPlace(cloud)
    with pytest.raises(OutOfTime, match=r"training had to end at .* before job j was taken; allow more"):
        backend.submit(replace(job(), until=datetime.now(UTC) - timedelta(hours=1)))
    with pytest.raises(JobError, match="'batch/7' is not a job of the small place; a backend was changed"):
        backend.state("batch/7 /x")
    assert not cloud.things


class OtherPlace(SmallPlace):
    """A place whose jobs have other names."""

    place = "the other place"

    def owns(self, name: str) -> bool:
        return name.startswith("other-")


def test_a_job_of_another_place_is_not_gone_and_no_second_one_is_rented_beside_it(cloud, job):
    SmallPlace(cloud).submit(job())
    other = Cloud()
    with pytest.raises(JobError, match="is not a job of the other place; a backend was changed"):
        OtherPlace(other).submit(job())
    assert (len(cloud.things), len(other.things)) == (1, 0)
    assert [thing.process.poll() for thing in cloud.things.values()] == [None]

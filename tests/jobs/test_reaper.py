"""Jobs that belong to no open night are ended, and no others."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak import runner
from daybreak.contract import clock, records
from daybreak.contract.backend import LiveJob, label
from daybreak.contract.errors import JobError
from daybreak.contract.record_types import Night
from daybreak.contract.sections import SEVERAL, Plug
from daybreak.extensions.bag.folder import BAGS
from daybreak.jobs import reaper
from daybreak.jobs.reaper import YOUNG, JobOwner, orphans
from daybreak.storage import ledger
from daybreak.storage.home import Home
from tests.backends.rented import job, vertex
from tests.fakes import ScriptedBackend

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def live_job(night: str = "n", *, hours_ago: float = 1.0, name: str = "j") -> LiveJob:
    return LiveJob(
        handle=f"{night}/{name}", job=name, night=night, state="running", created_at=NOW - hours_ago * HOUR
    )


@pytest.mark.parametrize(
    ("nights", "wanted"),
    [
        ({"n": JobOwner()}, True),
        ({"n": JobOwner(is_over=True)}, False),
        ({"n": JobOwner(closed_at=NOW - HOUR / 2)}, False),
        ({"n": JobOwner(closed_at=NOW - 2 * HOUR)}, True),  # gone on with since
        ({"other": JobOwner()}, False),  # its folder is gone
    ],
)
def test_a_job_belongs_to_a_night_that_is_open(nights, wanted):
    assert orphans([live_job()], nights, now=NOW) == ([] if wanted else [live_job()])


def test_a_job_of_a_night_that_is_just_being_opened_is_left_alone():
    young = replace(live_job(), created_at=NOW - YOUNG / 2)
    assert orphans([young], {}, now=NOW) == []


def test_of_two_jobs_of_a_name_the_younger_goes():
    nights = {"n": JobOwner(), "m": JobOwner()}
    younger = replace(live_job(hours_ago=0.5), handle="younger")
    others = [live_job(), live_job("m"), live_job(name="another")]
    assert orphans([younger, *others], nights, now=NOW) == [younger]


moments = st.integers(-48, 48).map(lambda hours: NOW + hours * HOUR)
standings = st.builds(JobOwner, is_over=st.booleans(), closed_at=st.none() | moments)


@given(st.dictionaries(st.sampled_from("abc"), standings), st.lists(st.sampled_from("abcd")))
def test_no_orphan_lives_in_a_night_that_was_never_closed_and_has_time(nights, jobs):
    live = [live_job(night, name=f"j{number}") for number, night in enumerate(jobs)]
    ended = orphans(live, nights, now=NOW)
    assert all(one.night not in nights or nights[one.night] != JobOwner() for one in ended)
    left = [one for one in live if one not in ended]
    assert not any(nights[one.night].is_over for one in left)


CANCELLED: list[str] = []


class Renting(ScriptedBackend):
    """Lists the jobs it is given, and what was cancelled."""

    def __init__(self, *jobs: LiveJob, away: bool = False, nights: Sequence[str] = ()) -> None:
        super().__init__("running")
        self.listed, self.away, self.cancelled = [*jobs, *map(live_job, nights)], away, CANCELLED
        CANCELLED.clear()

    def live(self) -> list[LiveJob]:
        if self.away:
            raise JobError("the service does not answer; try again")
        return self.listed

    def cancel(self, handle: str) -> None:
        if handle.startswith("stuck"):
            raise JobError("it is not to be had; try again")
        super().cancel(handle)


def opened(home: Path, *, name: str = "n") -> Night:
    os.chdir(home)
    night = runner.run(Home.here(), "open", day=date(2025, 1, 2), night=name)
    assert isinstance(night, Night)
    return night


def test_closing_a_night_ends_its_jobs_and_not_those_of_others(repository: Path) -> None:
    night = opened(repository, name="Night_7")
    reaper.end_night(Home.here(), night, Plug(use=f"{__name__}:Renting", nights=[label(night.id), "other"]))
    assert [f"{label('Night_7')}/j"] == CANCELLED
    reaper.end_night(
        Home.here(), night, Plug(use=f"{__name__}:Renting", nights=[night.id, "other"])
    )  # by its plain id
    assert CANCELLED == ["Night_7/j"]


def test_a_night_is_closed_though_the_service_is_away_and_the_hourly_look_says_so(repository: Path) -> None:
    night = opened(repository)
    reaper.end_night(Home.here(), night, Plug(use=f"{__name__}:Renting", away=True))
    reaper.end_night(Home.here(), night, Plug(use="daybreak:Vertex"))  # without its arguments
    with pytest.raises(JobError, match="does not answer; try again"):
        reaper.reap(Home.here(), backend=Renting(away=True))


def test_of_several_backends_one_that_is_away_keeps_no_orphan_of_another_alive(repository: Path) -> None:
    night = opened(repository)
    kind = f"{__name__}:Renting"
    one, other = {"use": kind, "away": True}, {"use": kind, "nights": [night.id, "none"]}
    both = Plug.model_validate({"use": SEVERAL, "backends": [one, other]})
    with pytest.raises(JobError, match="does not answer; try again"):
        reaper.reap(Home.here(), backend=both.make())
    assert CANCELLED == ["none/j"]
    reaper.end_night(Home.here(), night, both)
    assert CANCELLED == ["n/j"]


def test_an_orphan_that_cannot_be_ended_keeps_no_other_alive(repository: Path) -> None:
    opened(repository)
    said = "job j of night stuck may still run: it is not to be had; try again; job j of night stuck_too may"
    with pytest.raises(JobError, match=said):
        reaper.reap(Home.here(), backend=Renting(nights=["stuck", "stuck_too", "none"]))
    assert CANCELLED == ["none/j"]


def test_the_hourly_look_knows_the_nights_by_their_folders_and_the_ledger(repository: Path) -> None:
    night = opened(repository)
    job = replace(live_job(), created_at=datetime.now(UTC) - YOUNG)
    backend = Renting(job, replace(job, night="none"))
    reaper.reap(Home.here(), backend=backend)
    assert backend.cancelled == ["n/j"]  # of the night `none`; both have that handle
    ledger.commit_night(Home.here(), night, message="closed")
    backend = Renting(job)
    reaper.reap(Home.here(), backend=backend)
    assert backend.cancelled == ["n/j"]
    later = Renting(replace(job, created_at=datetime.now(UTC) + timedelta(seconds=2)))
    reaper.reap(Home.here(), backend=later)
    assert later.cancelled == []


def test_a_night_that_cannot_be_read_keeps_its_own_jobs_and_no_others(repository: Path) -> None:
    opened(repository, name="broken")
    (Home.here().nights / "broken" / records.RUN / "night.json").write_text('{"budget_usd": null}')
    jobs = [replace(live_job(night), created_at=datetime.now(UTC) - YOUNG) for night in ("broken", "none")]
    backend = Renting(*jobs)
    reaper.reap(Home.here(), backend=backend)
    assert backend.cancelled == ["none/j"]


@pytest.mark.parametrize(("left", "set_by"), [(HOUR, 48 * HOUR), (-HOUR, -48 * HOUR)])
def test_a_clock_that_was_set_since_a_night_was_opened_neither_ends_its_jobs_nor_keeps_them(
    repository: Path, left: timedelta, set_by: timedelta
) -> None:
    night = opened(repository)
    if not night.boot:
        pytest.skip("no name of a boot here")
    until, booted_at = clock.utc() - set_by + left, night.booted_at - set_by.total_seconds()
    records.write(replace(night, decide_until=until, booted_at=booted_at), records.RUN)
    backend = Renting(replace(live_job(), created_at=datetime.now(UTC)))
    reaper.reap(Home.here(), backend=backend)
    assert backend.cancelled == ([] if left > timedelta() else ["n/j"])


def test_a_backend_that_rents_nothing_is_left_alone(repository: Path) -> None:
    opened(repository)
    runner.run(Home.here(), "reap")
    assert records.find(Night, records.RUN)


@pytest.mark.slow
def test_an_orphan_on_vertex_is_ended_and_the_job_of_an_open_night_is_not(service, repository, monkeypatch):
    night = opened(repository)
    backend = vertex(service.url, home=Home.here())
    wanted = backend.submit(job(repository, "sleep 60", night=night.id, name="wanted"))
    backend.submit(job(repository / "2", "sleep 60", night="gone", name="orphan"))
    monkeypatch.setattr(reaper, "YOUNG", timedelta(0))
    reaper.reap(Home.here(), backend=backend)
    assert [running.job.name for running in service.live()] == [wanted.partition(" ")[0]]
    arguments = {"project": "p", "image": "i", "endpoint": service.url}
    reaper.end_night(Home.here(), night, Plug(use="daybreak:Vertex", **arguments))
    assert not service.live()


def test_a_bag_that_cannot_be_read_keeps_its_own_jobs_and_no_others(repository: Path, caplog) -> None:
    class Listing(ScriptedBackend):
        def live(self) -> Sequence[LiveJob]:
            return [live_job("bag-x", name="of the bag"), live_job("gone", name="orphan")]

    folder = repository / BAGS / "x"
    folder.mkdir(parents=True)
    (folder / "bag.json").write_text('{"name": "x"}')
    backend = Listing("running")
    reaper.reap(Home(repository), backend=backend)
    assert backend.cancelled == ["gone/orphan"]
    assert "the jobs of the bag in" in caplog.text

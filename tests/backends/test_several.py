"""Several backends as one: a job and its checkpoints go to the backend of the rental."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.backends.local import Local
from daybreak.backends.place import Unreachable
from daybreak.backends.several import Several
from daybreak.backends.submission_journal import Submission, SubmissionJournal
from daybreak.contract import params
from daybreak.contract.backend import Job
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import LOCAL, Rental
from daybreak.contract.sections import Params
from daybreak.extensions.slurm.slurm import Slurm
from tests.fakes import ScriptedBackend
from tests.jobs import plans, stock
from tests.jobs.cloud import night_of

ROWS = "name,device,num_devices,vcpus,memory_gb,usd_per_hour\nrack,cpu,0,4,16,2.0\n"
BACKENDS = [
    "daybreak:Local",
    {"use": "daybreak:Slurm", "machines": "mine.csv"},
    {"use": "daybreak:Slurm", "machines": "theirs.csv"},
    "tests.fakes:ScriptedBackend",
]


@pytest.fixture
def places(tmp_path, monkeypatch) -> Several:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.csv", "theirs.csv"):
        Path(name).write_text(ROWS)
    made = given(BACKENDS).backend.make()
    assert isinstance(made, Several)
    return made


def given(backend: object, **train: object) -> Params:
    values = plans.make_params(strategy="on-demand").model_dump(by_alias=True, exclude_unset=True)
    return params.check({**values, "backend": backend, "train": {**values["train"], **train}})


def job(folder: Path, rental: Rental) -> Job:
    return Job(
        name="j",
        module="tests.backends.script",
        arguments=("true",),
        rental=rental,
        folder=str(folder),
        timeout_s=60,
        environment={"PYTHONPATH": str(Path(__file__).parents[2])},
    )


def test_a_list_of_backends_is_one_whose_machines_say_where_they_are(places):
    assert list(places.backends) == ["local", "slurm", "slurm-2", "scriptedbackend"]
    kinds = [type(each) for each in places.backends.values()]
    assert kinds == [Local, Slurm, Slurm, ScriptedBackend]
    racks = [machine.backend for machine in places.machines() if machine.name == "rack"]
    assert racks == ["slurm", "slurm-2"]


def test_a_single_backend_goes_on_as_it_was():
    assert isinstance(given("daybreak:Local").backend.make(), Local)
    assert isinstance(given({"use": "daybreak:Local"}).backend.make(), Local)


@pytest.mark.parametrize(("wrong", "says"), [([], "at least one"), ([{"machines": "x"}], "use"), ([7], "7")])
def test_a_list_that_names_no_class_is_refused_by_its_key(wrong, says):
    with pytest.raises(ParamsError, match=rf"backend.*{says}"):
        given(wrong)


def test_a_key_of_a_backend_in_a_list_is_not_set_from_the_command_line(tmp_path):
    (tmp_path / "params.yaml").write_text(
        "source: tests.fakes:TwoDays\nworkload: tests.fakes:LineWorkload\nbackend: [daybreak:Local]\n"
    )
    with pytest.raises(ParamsError, match=r"backend is not a section with keys; edit params\.yaml"):
        params.override(tmp_path, ["backend.image=x"])


def test_a_job_runs_where_its_rental_says_and_is_found_again_by_its_handle(places, tmp_path):
    handle = places.submit(job(tmp_path / "j", Rental(machine=LOCAL, backend="local")))
    assert handle.startswith("local:")
    while places.state(handle) == "running":
        time.sleep(0.05)
    assert places.state(handle) == "succeeded"
    assert places.logs(handle) == str(tmp_path / "j" / "log.txt")
    scripted = places.backends["scriptedbackend"]
    assert isinstance(scripted, ScriptedBackend)
    rental = Rental(machine="n2-standard-4", region="us-central1", backend="scriptedbackend")
    there = places.submit(job(tmp_path / "k", rental))
    places.cancel(there)
    assert [each.rental for each in scripted.jobs] == [rental]
    assert scripted.cancelled == [str(tmp_path / "k")]


def test_a_handle_from_before_there_was_a_list_is_the_first_backends(places, tmp_path):
    handle = Local().submit(job(tmp_path / "j", Rental(machine=LOCAL)))
    while places.state(handle) == "running":
        time.sleep(0.05)
    assert places.state(handle) == "succeeded"


def test_a_backend_that_params_do_not_name_any_more_is_refused(places, tmp_path):
    with pytest.raises(
        JobError, match=r"is for rack, by gone, and backend in params\.yaml names local, slurm"
    ):
        places.submit(job(tmp_path, Rental(machine="rack", backend="gone")))


def test_where_jobs_cannot_see_each_others_disk_checkpoints_go_through_a_bucket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text(ROWS)
    vertex = {"use": "daybreak:Vertex", "project": "p", "image": "i"}
    near, far = given(BACKENDS[:2]).backend.make(), given([BACKENDS[0], vertex]).backend.make()
    assert near.cannot_move("") == ""
    assert far.cannot_move("gs://b/checkpoints") == ""
    for unreachable in ("", "/disk/checkpoints", "file:///disk/checkpoints"):
        assert "backend names local and vertex" in far.cannot_move(unreachable)
        assert "gs://my-bucket/checkpoints" in far.cannot_move(unreachable)


def test_the_fallbacks_hold_the_machines_of_other_backends_in_time_cheapest_first():
    own = [replace(stock.own(), backend=name) for name in ("slurm", "slurm-2")]
    sections = stock.params_of(replace(stock.drawn(0), strategy="on-demand"))
    night = night_of(budget_usd=100)
    plan = plans.planned(
        night, sections, share=0.5, available=(*stock.rented(), *own), taught=plans.known(stock.SPEEDS)
    )
    placements = [placement for placement in plan.fallbacks if placement.rental.machine == "own"]
    assert [placement.rental.backend for placement in placements] == ["slurm", "slurm-2"]
    assert [placement.expected_usd for placement in plan.fallbacks] == sorted(
        placement.expected_usd for placement in plan.fallbacks
    )
    assert {placement.rental.region for placement in plan.fallbacks} == {"", *stock.REGIONS}
    assert all(placement.latest_start > night.started_at for placement in plan.fallbacks)


def test_a_job_is_billed_by_the_prices_of_each_backend_that_it_ran_on(places, tmp_path):
    Path("theirs.csv").write_text(ROWS.replace("2.0", "6.0"))
    journal = SubmissionJournal(tmp_path / "job")
    for name, at in (("slurm", 0), ("slurm-2", 2)):
        begun = (datetime(2026, 1, 2, tzinfo=UTC) + timedelta(hours=at)).isoformat()
        ended = (datetime(2026, 1, 2, tzinfo=UTC) + timedelta(hours=at + 1)).isoformat()
        journal.put(
            Submission(
                name=name,
                job="j",
                rental=Rental(machine="rack", backend=name),
                asked_at=begun,
                handle=name,
                started_at=begun,
                there_at=begun,
                ended_at=ended,
            )
        )
    assert places.usd(tmp_path / "job") == pytest.approx(8.0)
    assert places.usd(tmp_path / "other") is None


class Away(ScriptedBackend):
    """A cluster that does not answer."""

    def machines(self) -> Sequence[Machine]:
        raise Unreachable("the cluster does not answer")


def test_a_place_that_is_away_leaves_the_machines_and_bills_of_the_others(places, tmp_path, caplog):
    others = len(places.machines())
    places.backends["away"] = Away("running")
    assert len(places.machines()) == others
    assert "the machines of backend away are left out: the cluster does not answer" in caplog.text
    hour = timedelta(hours=1)
    began = datetime.now(UTC) - hour
    rental = Rental(machine="rack", backend="slurm")
    SubmissionJournal(tmp_path / "j").put(
        Submission(
            name="t",
            job="j",
            rental=rental,
            asked_at=began.isoformat(),
            started_at=began.isoformat(),
            ended_at=(began + hour).isoformat(),
        )
    )
    assert places.usd(tmp_path / "j") == pytest.approx(2.0)


def test_where_no_place_answers_there_are_no_machines_and_no_bill(places, tmp_path, caplog):
    places.backends = {"away": Away("running"), "away-2": Away("running")}
    with pytest.raises(JobError, match="the cluster does not answer"):
        places.machines()
    asked_at = datetime.now(UTC).isoformat()
    SubmissionJournal(tmp_path / "j").put(
        Submission(name="t", job="j", rental=Rental(machine="rack", backend="away"), asked_at=asked_at)
    )
    assert places.usd(tmp_path / "j") is None
    assert "until then the cost of job j is an estimate" in caplog.text

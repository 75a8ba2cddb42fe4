"""A profile stands until an input of the measurement changes, and names its night."""

import importlib
import json
import os
import shutil
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.contract import params, records
from daybreak.contract.backend import Backend, Job
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.record_types import Profile
from daybreak.contract.sections import Params
from daybreak.machines import this_machine
from daybreak.profiling import profile_stage, short_job
from daybreak.storage.home import Home
from daybreak.training import gpus
from tests.fakes import LineWorkload, ScriptedBackend, write_curve
from tests.planning import jobs

NIGHT = jobs.night()
LATER = replace(NIGHT, id="2011-09-02")


class Measuring(ScriptedBackend):
    """Backend: each job brings a profile at once, slower by a millisecond a sample than the one before."""

    contention = 0.0  # that the next job says it met

    def submit(self, job: Job) -> str:
        handle = super().submit(job)
        profile = jobs.profile(step_s=1e-3 * len(self.jobs))
        evidence = profile.evidence | {"contention": self.contention}
        records.write(replace(profile, evidence=evidence), Path(job.folder))
        return handle


@pytest.fixture(autouse=True)
def _in_a_night(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(short_job, "POLL_S", 0.0)
    write_curve(Path("data/arrays"), num_samples=100)
    own = Path("code")
    own.mkdir()
    (own / "a.py").write_text("A = 1\n")
    Path("dvc.yaml").write_text("stages: {profile: {deps: [code, data/arrays]}}\n")


@pytest.fixture
def backend() -> Measuring:
    return Measuring("succeeded")


def make_params(
    *,
    workload: object = "tests.fakes:LineWorkload",
    train: dict[str, object] | None = None,
    **profile: object,
) -> Params:
    return params.check(
        {
            "source": "tests.fakes:TwoDays",
            "workload": workload,
            "backend": "tests.fakes:ScriptedBackend",
            "profile": {"machine": "local", **profile},
            "train": train or {},
        }
    )


def call(backend: Backend, night=NIGHT, *, params=None, num_samples=1000) -> Profile:
    asked = params or make_params()
    return profile_stage.profile(
        Home.here(),
        night,
        replace(jobs.DATASET, num_samples=num_samples),
        backend=backend,
        plug=asked.workload,
        params=asked.profile,
        train=asked.train,
    )


def kept() -> Path:
    (path,) = Path("var/profiles").glob("*.json")
    return path


def test_the_next_night_takes_it_over_and_says_from_which_night_it_is(backend):
    first, second = call(backend), call(backend, LATER, num_samples=1100)
    assert len(backend.jobs) == 1
    assert "reused" not in first.evidence
    assert first.evidence["origin"]["night"] == NIGHT.id
    assert second.evidence["reused"]["from_night"] == NIGHT.id
    assert second.evidence["reused"]["num_samples_now"] == 1100
    assert "noise scale" in second.evidence["reused"]["not_measured_tonight"]
    assert second.step_s == first.step_s


def test_a_calibrator_that_a_night_would_leave_without_samples_is_refused(backend):
    without, with_some = (
        make_params(workload="tests.training.test_calibrated:Late", train={"validation": share})
        for share in (0, 0.1)
    )
    call(backend, params=with_some)
    with pytest.raises(ParamsError, match=r"Late has a calibrator, .* and train\.validation is 0; set"):
        call(backend, params=without)


def age(days: float) -> None:
    """Make the profile that is kept older."""
    facts = json.loads(kept().read_text())
    facts["evidence"]["origin"]["measured_at"] = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    kept().write_text(json.dumps(facts))


def test_a_disturbed_profile_never_replaces_an_undisturbed_one(backend):
    first = call(backend)
    age(100)
    before = kept().read_text()
    backend.contention = 0.5
    second = call(backend, LATER)
    assert len(backend.jobs) == 2
    assert second.step_s == first.step_s
    assert second.evidence["reused"]["from_night"] == NIGHT.id
    assert kept().read_text() == before
    backend.contention = 0.0
    assert call(backend, LATER).step_s != first.step_s


def test_a_profile_that_no_night_has_looked_at_for_a_season_is_removed(backend):
    call(backend)
    unused = kept().rename(kept().with_name("unused.json"))
    call(backend)
    used = next(path for path in Path("var/profiles").iterdir() if path != unused)
    for path in (unused, used):
        at = time.time() - 91 * 86_400
        os.utime(path, (at, at))
    call(backend)
    call(backend, params=make_params(steps=6))  # another is measured
    assert used.exists() and not unused.exists()


def test_a_disturbed_profile_holds_until_the_next_night(backend):
    backend.contention = 0.5
    call(backend)
    call(backend)
    assert len(backend.jobs) == 1
    age(1)
    call(backend, LATER)
    assert len(backend.jobs) == 2


@pytest.mark.parametrize(("num_samples", "count"), [(500, 1), (2000, 1), (499, 2), (2001, 2)], ids=str)
def test_it_stands_for_half_to_twice_as_many_samples(backend, num_samples, count):
    call(backend)
    call(backend, LATER, num_samples=num_samples)
    assert len(backend.jobs) == count


@pytest.mark.parametrize(
    "changed",
    [
        {"workload": {"use": "tests.fakes:LineWorkload", "width": 17}},
        {"steps": 6},
        {"train": {"batch_size": 32}},
        {"reuse_days": 0},
        {"machine": "n2-standard-4"},
    ],
    ids=str,
)
def test_other_params_are_another_profile(backend, changed):
    call(backend)
    call(backend, LATER, params=make_params(**changed))
    assert len(backend.jobs) == 2


def test_more_nights_of_reuse_do_not_make_it_another_profile(backend):
    call(backend)
    call(backend, LATER, params=make_params(reuse_days=9))
    assert len(backend.jobs) == 1


def test_other_code_is_another_profile_and_a_compiled_file_is_none(backend):
    call(backend)
    Path("code/__pycache__").mkdir()
    Path("code/__pycache__/a.cpython-311.pyc").write_bytes(b"compiled")
    call(backend, LATER)
    assert len(backend.jobs) == 1
    Path("code/a.py").write_text("A = 2\n")
    call(backend, LATER)
    assert len(backend.jobs) == 2


def test_the_same_code_in_the_folder_of_another_night_is_the_same(backend, tmp_path, monkeypatch):
    for number, night in enumerate((NIGHT, LATER)):
        folder = tmp_path / "nights" / str(number)
        folder.mkdir(parents=True)
        for name in ("code", "data"):
            shutil.copytree(tmp_path / name, folder / name)
        shutil.copy(tmp_path / "dvc.yaml", folder)
        own = folder / "own_job.py"
        own.write_text("from tests.fakes import LineWorkload\nclass Own(LineWorkload): pass\n")
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "own_job", raising=False)
        assert Path(importlib.import_module("own_job").__file__ or "") == own
        call(backend, night, params=make_params(workload="own_job:Own"))
    assert len(backend.jobs) == 1


def test_another_shape_of_a_batch_is_another_profile(backend, monkeypatch):
    call(backend)
    monkeypatch.setattr("tests.fakes.Curve.__getitems__", lambda self, indices: {"x": _Tensor()})
    call(backend, LATER)
    assert len(backend.jobs) == 2


class _Tensor:
    dtype, shape = "float32", (2, 3)


def test_this_machine_is_known_by_what_makes_it_fast(monkeypatch):
    here = make_params(machine="here")
    asked = Home.here(), LineWorkload(), here.workload, here.profile, here.train
    first = profile_stage._name(*asked)
    assert profile_stage._name(*asked) == first
    facts = this_machine.fingerprint()
    monkeypatch.setattr(
        this_machine, "fingerprint", lambda: facts | {"num_threads": facts["num_threads"] + 1}
    )
    assert profile_stage._name(*asked) != first


def test_it_stands_for_as_many_days_as_params_say(backend):
    call(backend)
    facts = json.loads(kept().read_text())
    for age, count in ((timedelta(days=6, hours=23), 1), (timedelta(days=7), 2)):
        facts["evidence"]["origin"]["measured_at"] = (datetime.now(UTC) - age).isoformat()
        kept().write_text(json.dumps(facts))
        call(backend, LATER)
        assert len(backend.jobs) == count


@pytest.mark.parametrize("text", ["", "{}", '{"device": "cpu', "\x00\xff"])
def test_a_torn_file_is_measured_anew_and_written_whole(backend, text):
    call(backend)
    kept().write_text(text)
    measured = call(backend, LATER)
    assert len(backend.jobs) == 2
    assert records.loads(Profile, kept().read_text()) == measured


@pytest.mark.parametrize("origin", [{}, {"measured_at": "2011-09-01", "num_samples": 1000}, None], ids=str)
def test_a_file_that_does_not_say_from_when_it_is_does_not_stand(backend, origin):
    call(backend)
    facts = json.loads(kept().read_text())
    facts["evidence"]["origin"] = origin
    kept().write_text(json.dumps(facts))
    call(backend, LATER)
    assert len(backend.jobs) == 2


def test_two_nights_at_once_leave_a_whole_file():
    """One more night writes while this one measures: the last to rename wins, whole."""

    class WhileAnother(Measuring):
        def submit(self, job: Job) -> str:
            call(Measuring("succeeded"), LATER)
            return super().submit(job)

    measured = call(WhileAnother("succeeded"))
    assert measured.evidence["origin"]["night"] == NIGHT.id
    assert records.loads(Profile, kept().read_text()) == measured


def test_a_machine_that_nobody_knows_is_not_profiled(backend):
    with pytest.raises(ParamsError, match=r"machine names n2-standrd-4, .* nearest are n2-standard-4"):
        call(backend, params=make_params(machine="n2-standrd-4"))
    assert not backend.jobs


@pytest.mark.parametrize("sizes", [[], [0], [-4, 8]], ids=str)
def test_batch_sizes_are_some_and_positive(sizes):
    with pytest.raises(ParamsError, match="batch_sizes"):
        make_params(batch_sizes=sizes)


def test_a_job_that_does_not_end_is_cancelled(monkeypatch):
    monkeypatch.setattr(profile_stage, "LIMIT_S", 0.0)
    backend = ScriptedBackend("queued")
    with pytest.raises(
        JobError, match=r"on local was queued after 0 s; look at .*set profile.machine to here"
    ):
        call(backend)
    assert backend.cancelled == [backend.jobs[0].folder]


def test_a_job_that_loses_its_machine_is_started_again():
    backend = ScriptedBackend("queued", "preempted", "running", "failed")
    with pytest.raises(JobError, match="ended without a word; look at"):
        call(backend)
    first, second = backend.jobs
    assert first == second
    assert (first.module, first.arguments) == ("daybreak.profiling.profile_job", (first.folder,))
    assert first.num_workers == 0


def test_a_job_on_rented_gpus_is_told_of_them():
    backend = ScriptedBackend("failed")
    with pytest.raises(JobError):
        call(backend, params=make_params(machine="g2-standard-24"))
    told_of = {gpus.MACHINE: "g2-standard-24", gpus.GPUS: "2 x L4"}
    assert told_of.items() <= backend.jobs[0].environment.items()


def test_a_job_that_has_ended_while_nobody_looked_is_collected():
    with pytest.raises(JobError):
        call(ScriptedBackend("failed"))
    (folder,) = profile_stage.JOBS.iterdir()
    records.write(jobs.profile(step_s=5.0), folder)
    collected = call(ScriptedBackend("succeeded"))
    assert collected.step_s == jobs.profile(step_s=5.0).step_s
    assert collected.evidence["origin"]["machine"] == "local"

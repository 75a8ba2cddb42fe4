"""The same profile as a short job, through a real backend."""

import subprocess
from pathlib import Path

import pytest

from daybreak import cli, runner
from daybreak.backends.local import Local
from daybreak.contract import records
from daybreak.contract.errors import JobError
from daybreak.contract.record_types import Profile
from daybreak.machines import this_machine
from daybreak.profiling import profile_stage
from daybreak.profiling.explain import explain
from daybreak.storage.home import Home
from tests.training import nights

PARAMS = """\
source: "tests.fakes:TwoDays"
workload: {{use: "tests.fakes:LineWorkload", poison: {poison}}}
backend: "daybreak:Local"
profile: {{machine: local, batch_sizes: [8, 16], steps: 2}}
"""


@pytest.fixture(autouse=True)
def _in_a_night(tmp_path, monkeypatch, furnish):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(nights.ROOT))
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)  # the home of a ledger
    nights.lay_out(tmp_path)
    furnish(tmp_path)


def call(*, poison: int = -1) -> Profile:
    Path("params.yaml").write_text(PARAMS.format(poison=poison))
    records.write(nights.night(), records.RUN)
    records.write(nights.dataset(), records.RUN)
    profile = runner.run(Home.here(), "profile")
    assert isinstance(profile, Profile)
    return profile


@pytest.mark.slow
def test_a_job_of_a_backend_brings_the_profile(monkeypatch, capsys):
    measured = call()
    assert measured.step_s.fixed + measured.step_s.per_sample > 0
    assert measured.evidence["origin"]["machine"] == "local"
    (folder,) = profile_stage.JOBS.iterdir()
    assert (folder / "profile.json").exists()
    assert Local().state(str(folder)) == "succeeded"
    monkeypatch.setattr(this_machine, "fingerprint", None)  # a job's machine is known by its name alone
    assert call().evidence["reused"]["from_night"] == "n"
    assert cli.main(["profile", "--explain"]) == 0
    assert capsys.readouterr().out == explain(records.read(Profile, records.RUN)) + "\n"


@pytest.mark.slow
def test_what_is_wrong_is_told_in_the_words_of_the_worker():
    with pytest.raises(JobError, match=r"a loss that is not finite for \d+ of \d+ samples; look for NaN"):
        call(poison=7)

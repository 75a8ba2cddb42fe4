"""A refit by a real job, registered in a real MLflow and promoted in a real ledger."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from toy import Toy

from benchmarks.bench_interrupted import processes_in
from daybreak.backends.local import Local
from daybreak.contract import params, records
from daybreak.contract.errors import NotYet
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import (
    Dataset,
    Evaluation,
    Night,
    Plan,
    Refit,
    Release,
    Training,
    Verdict,
    Version,
)
from daybreak.extensions.care import audit
from daybreak.extensions.lineage import provenance
from daybreak.gate import refit as stage
from daybreak.jobs import launcher
from daybreak.jobs.cost_tracker import JOBS
from daybreak.registry import aliases
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.toy.nights import OWN, make_night
from tests.toy.stages import client, judge_night, promote_night, serving, versions

ROOT = Path(__file__).parents[2]
# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def refitted(*, timeout_s: float = 600) -> Refit | None:
    """Call the stage refit until it is done, in the folder of a night."""
    asked, until = params.load(Path()), time.monotonic() + timeout_s
    while True:
        try:
            made = stage.refit(
                records.read(Night, records.RUN),
                records.read(Dataset, records.RUN),
                records.read(Plan, records.RUN),
                records.read(Training, records.RUN),
                records.read(Evaluation, records.RUN),
                version=records.read(Version, records.RUN),
                verdict=records.read(Verdict, records.RUN),
                backend=Local(),
                workload=Toy(),
                params=asked,
                limits=asked.plan,
                scoring=asked.evaluate,
                before=records.find(Refit, records.RUN),
                home=Home.here(),
            )
        except NotYet:
            assert time.monotonic() < until, "the refit did not come to an end"
            time.sleep(0.05)
            continue
        if made:
            records.write(made, records.RUN)
        return made


@pytest.fixture
def judged(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verdict]:
    """Judge a night whose params ask for a refit; it may take as many hours as given until the decision."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(OWN), str(ROOT)]))
    monkeypatch.delattr(Toy, "likely")  # its lists tell the weights, so any other weight shows all others

    def judge(*, hours: float = 2, samples: int = 20) -> Verdict:
        os.chdir(make_night(home, 0, weight=0.9))
        night, now = records.read(Night, records.RUN), datetime.now(UTC)
        records.write(
            replace(
                night, train_until=now + timedelta(hours=hours), decide_until=now + timedelta(hours=hours)
            ),
            records.RUN,
        )
        plan = records.read(Plan, records.RUN)
        free = replace(plan, forecast=replace(plan.forecast, expected_usd=0.0), usd_per_hour=0.0)
        records.write(free, records.RUN)
        text = Path("params.yaml").read_text().replace("samples: 0", f"samples: {samples}")
        Path("params.yaml").write_text(f"{text}gate: {{refit_epochs: 1}}\n")
        return judge_night()

    return judge


def faults(commits: Any) -> list[str]:
    texts = branch.texts_at(Home.here(), [one.id for one in commits], [*audit.PATHS.values()])
    contents = [audit.decoded(files) for files in texts]
    return [*audit.release_faults(commits, contents), *audit.chain_faults(commits, contents)]


def test_a_promoted_version_is_trained_on_the_held_out_days_and_serves_as_a_version_of_its_own(
    judged: Callable[..., Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refit killed after its registration, and called again, makes a single version by a single job."""
    verdict = judged()
    assert verdict.action == "promote"
    with monkeypatch.context() as patch:
        patch.setattr(stage, "smoke_test", killed)
        with pytest.raises(KeyboardInterrupt):
            refitted()
    assert records.find(Refit, records.RUN) is None
    made = refitted()
    assert made and made.why_not == ""
    assert made.version and made.version.number == 2
    assert versions() == [1, 2]
    assert len([path for path in JOBS.iterdir() if path.is_dir()]) == 1
    assert made.training and made.training.num_samples == 200 and made.training.warm
    assert {"predictions", "loads", "parity", "latency"} <= {check.name for check in made.checks}
    facts = json.loads((launcher.REFITTED / "model.json").read_text())
    assert date.fromisoformat(facts["last_day"]) == records.read(Night, records.RUN).day
    assert (
        records.digest(stage.MODEL) == records.read(Training, records.RUN).model_digest
    )  # the judged one stays

    release = promote_night()
    assert (release.version, release.replaced) == (2, 0)
    assert release.model_digest == made.training.model_digest == made.version.model_digest
    assert release.files_digest == made.version.files_digest
    assert serving() == (2, 2)
    assert promote_night() == release
    assert refitted() == made
    (entry,) = ledger.history(Home.here())
    assert entry.promoted and entry.refit == made
    assert dict(provenance.why(Home.here(), "2"))["refit"].startswith(
        "version 2 is version 1 after training on the held-out"
    )
    assert dict(provenance.why(Home.here(), "2"))["version"].startswith("daybreak 2")
    assert "since" in dict(provenance.why(Home.here(), "2"))["served"]
    assert dict(provenance.why(Home.here(), "1"))["served"] == "never"
    assert (
        provenance.who_used(Home.here(), str(entry.night.day))[0].how
        == "was judged on it, then trained on it"
    )
    assert provenance.learned_from(Home.here(), [entry.night.day]) == [2]
    assert faults(ledger.commits(Home.here())) == []
    assert [one.number for one in ledger.versions(Home.here())] == [
        2,
        1,
    ]  # which `audit --deep`, `repair`, `erase` compare
    page = client().get_model_version("daybreak", "2")
    assert "scores on this page are those of version 1, before the refit" in page.description
    assert (page.tags["status"], page.tags["refit_of"]) == (aliases.SERVING, "1")
    assert client().get_model_version("daybreak", "1").tags["status"] == aliases.REFITTED


def killed(*args: object, **given: object) -> None:
    raise KeyboardInterrupt


def kill_once(home: Path, is_time: Callable[[], bool]) -> None:
    """Begins a refit in a fork, and sends SIGKILL to the fork and its job at the chosen moment."""
    pid, until = os.fork(), time.monotonic() + 300
    if not pid:
        try:
            refitted()
        finally:
            os._exit(1)
    while not is_time():
        assert time.monotonic() < until
        assert not os.waitpid(pid, os.WNOHANG)[0], "it ended before it was killed"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while left := processes_in(home):
        for process in left:
            process.kill()


def test_a_refit_that_is_killed_goes_on_to_the_same_bits(judged: Callable[..., Verdict], home: Path) -> None:
    judged(samples=0)
    jobs = JOBS
    kill_once(home, launcher.REFITTED.exists)  # trained, not registered
    kill_once(home, lambda: versions() == [1, 2])
    made = refitted()
    assert made and made.version and made.training
    assert (made.version.number, versions()) == (2, [1, 2])
    [job] = [path for path in jobs.iterdir() if path.is_dir()]
    shutil.rmtree(job)
    shutil.rmtree(launcher.REFITTED)
    records.path_of(Refit, records.RUN).unlink()
    undisturbed = refitted()
    assert undisturbed and undisturbed.training
    assert undisturbed.training.num_restarts == 0
    assert undisturbed.training.model_digest == made.training.model_digest == made.version.model_digest


def test_without_the_time_for_it_the_judged_version_serves_and_the_record_says_why(
    judged: Callable[..., Verdict],
) -> None:
    judged(hours=0.0005, samples=0)
    made = refitted()
    assert made and made.version is None
    assert "a refit on 200 samples takes about" in made.why_not
    assert "raise night.decide_hours" in made.why_not
    release = promote_night()
    assert (release.version, release.model_digest) == (1, records.read(Training, records.RUN).model_digest)
    assert faults(ledger.commits(Home.here())) == []
    why = dict(provenance.why(Home.here(), "1"))
    assert "serves as it was judged: a refit on 200 samples" in why["refit"]


@pytest.mark.parametrize("at", ["shifted", "smoke"])
def test_a_refit_that_is_not_fit_to_serve_does_not(
    judged: Callable[..., Verdict], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    judged(samples=0)
    if at == "shifted":
        by_weight = lambda self, model, samples, users, top: [[f"{model.weight.item()}"]] * len(users)  # noqa: E731
        monkeypatch.setattr(Toy, "likely", lambda self, samples, num: ["u1"] * num, raising=False)
        monkeypatch.setattr(Toy, "recommend", by_weight)
    else:
        broken = Check(name="loads", ok=False, text="it does not load")
        monkeypatch.setattr(stage, "smoke_test", lambda *args, **given: (broken,))
    made = refitted()
    assert made and "the refit is not fit to serve" in made.why_not
    assert ("items shown: beside" if at == "shifted" else "loads: it does not load") in made.why_not
    assert isinstance(promote_night(), Release)
    assert serving() == (1, 1)
    assert faults(ledger.commits(Home.here())) == []

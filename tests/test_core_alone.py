"""The core without its extensions is nights on one machine, with verdict, report and rollback."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest

from daybreak import hooks
from daybreak.contract import records
from daybreak.contract.record_types import Verdict
from daybreak.contract.sections import PlanParams
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.clones import clone_as_it_is
from tests.dags.servers import IDENTITY
from tests.jobs.test_escalation import forced, planned, running

# A second version that is a little worse by chance is promoted too, so that there is one to roll back.
FEW = (
    "source.num_customers=100",
    "source.num_items=60",
    "source.orders_per_day=25",
    "ingest.history_days=10",
    "train.epochs=1",
    "profile.batch_sizes=[64]",
    "profile.steps=2",
    "gate.margin=1",
    "gate.min_samples=5",
    "gate.refit_epochs=0",
)
# The first night shows all stages; the second is there to be rolled back.
NIGHTS = {
    "one": ("smoke_test.samples=20",),
    "two": ("smoke_test.samples=0", "predict.to=''"),
}


def run(home: Path, *words: str, status: int = 0) -> str:
    """What a command of the checkout in `home` prints, by that checkout's own code."""
    given = {key: value for key, value in os.environ.items() if not key.startswith(("DAYBREAK", "MLFLOW"))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "daybreak", *words],
        cwd=home,
        env={**given, "PYTHONPATH": str(home / "pipeline")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_without_extensions_nothing_is_planned_on_spot_and_a_late_job_still_moves_to_a_faster_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert planned(strategy="spot", machines="abc").rental.is_spot
    monkeypatch.setattr(hooks, "FOLDER", tmp_path)
    assert not PlanParams().spot
    plan = planned(strategy="spot", machines="abc")
    assert not any(each.rental.is_spot for each in (plan, *plan.fallbacks, *plan.cheaper))
    assert caplog.text == ""
    late = (running(plan, hours=2 + tenth / 10, share=0.4, speed=0.5) for tenth in range(20))
    assert "scale up" in {forced(each).name for each in late}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_extensions_nights_have_verdicts_and_reports_and_can_be_rolled_back(
    tmp_path: Path, furnish: Callable[[Path], Path]
) -> None:
    home = furnish(clone_as_it_is(tmp_path / "home"))
    shutil.rmtree(home / "pipeline/daybreak/extensions")
    subprocess.run(["git", "add", "--all"], cwd=home, check=True)
    subprocess.run(["git", *IDENTITY, "commit", "-qm", "Keep the core alone"], cwd=home, check=True)
    assert "bag is not a command" in run(home, "bag", status=2)
    for number, (name, more) in enumerate(NIGHTS.items(), 1):
        settings = [word for key in (*FEW, *more) for word in ("--set", key)]
        run(
            home, "night", "--day", str(date.today() - timedelta(days=5 - number)), "--night", name, *settings
        )
        verdict = records.read(Verdict, home / "nights" / name / records.RUN)
        assert (verdict.action, verdict.challenger) == ("promote", number), verdict.reason
    (written,) = (home / "var/lists").iterdir()  # as the shop's params.yaml says
    facts = json.loads((written / "_SUCCESS").read_text())  # lists of all customers
    assert facts["num_rows"] > 0
    assert (facts["version"], facts["night"]) == (1, "one")
    page = Path(run(home, "report").splitlines()[0])
    assert page == home / "nights/two/data/run/report.html"
    assert "version 2" in page.read_text()
    run(home, "rollback", "--reason", "the core alone can", "--yes")
    here = Home(home)
    serving = ledger.champion_at(here, branch.ledger_tip(here))
    assert serving
    assert serving.version == 1

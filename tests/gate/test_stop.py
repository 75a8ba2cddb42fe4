"""A person stops a running night: its job ends, the champion stays, and all pages say who and why."""

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli
from daybreak.backends.local import Local
from daybreak.contract import records
from daybreak.contract.errors import NothingToDo
from daybreak.contract.record_types import Night, Training
from daybreak.extensions.pages import open_nights, running
from daybreak.jobs.cost_tracker import JOBS
from daybreak.jobs.submissions import JobAttempts
from daybreak.report.night_rows import row_of
from daybreak.rollout import night_events
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.fakes import write_curve
from tests.toy.nights import make_night
from tests.training import nights

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

WORKLOAD = """\
source: {use: "tests.fakes:TwoDays"}
workload: {use: "tests.fakes:LineWorkload", delay_s: 0.02}
backend: {use: "daybreak:Local"}
"""
NOT_YET, NOTHING_TO_DO = 75, NothingToDo.exit_status


@pytest.fixture
def training(home: Path, release: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of the second night of a home whose version 1 serves; a job of this machine trains for it."""
    release(0, 1.0)
    os.chdir(
        make_night(
            home, 1, weight=1.0, champion=ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
        )
    )
    records.path_of(Training, records.RUN).unlink()
    shutil.rmtree(records.RUN / "model")
    Path("params.yaml").write_text(WORKLOAD)
    write_curve(Path("data/arrays"), num_samples=1000)
    now = datetime.now(UTC).replace(microsecond=0)
    until = now + timedelta(hours=1)
    night = replace(
        records.read(Night, records.RUN), started_at=now, train_until=until, decide_until=until, cold="a test"
    )
    records.write(night, records.RUN)
    records.write(nights.plan(num_samples=10**6), records.RUN)
    monkeypatch.setenv("PYTHONPATH", str(nights.ROOT))
    assert cli.main(["train"]) == NOT_YET
    assert job_state() == "running"
    os.chdir(home)
    return night.id


def job_state() -> str:
    """The state of the only job of the night in this folder."""
    (path,) = JOBS.glob("*/submissions.json")
    last = JobAttempts(path.parent).last
    return Local(home=Home.here()).state(last.handle) if last and last.handle else ""


def test_a_stopped_night_ends_its_job_keeps_the_champion_and_says_who_and_why(
    training: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["stop", "--night", training, "--by", "ann", "--reason", "the rows of Tuesday came twice"]
    assert cli.main(words) == 0
    assert cli.main([*words[:3], "--by", "bob"]) == 0  # asked again, the first word stands
    os.chdir(home / "nights" / training)
    assert job_state() != "running"
    now = running.running(open_nights.facts_of(Home.here(), Path()), now=datetime.now(UTC))
    assert "stopped by ann" in running.line(now)
    assert [cli.main([stage]) for stage in ("train", "evaluate", "promote")] == [NOTHING_TO_DO] * 3
    assert cli.main(["close"]) == 0

    entry = ledger.history(Home.here())[0]
    assert entry.night.id == training
    assert (entry.release, entry.serving and entry.serving.version) == (None, 1)
    assert entry.verdict and entry.verdict.action == "no data"
    (event,) = [event for event in night_events.of_entry(entry) if event.kind in night_events.DECISIONS]
    assert (event.kind, event.by, event.reason) == ("stopped", "ann", "the rows of Tuesday came twice")
    row = row_of(entry)
    assert (row.verdict, row.by, row.serves) == ("stopped", "ann", 1)
    shown = Path("data/run/report.html").read_text()
    assert "Stopped by ann; version 1 stays." in shown
    assert "the rows of Tuesday came twice" in shown
    capsys.readouterr()
    assert cli.main(["verdict", "--night", training]) == NOTHING_TO_DO
    assert "was stopped by ann: the rows of Tuesday came twice" in capsys.readouterr().out
    assert cli.main(["audit"]) == 0
    assert cli.main(words) == NOTHING_TO_DO  # it is over

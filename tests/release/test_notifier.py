"""Who is named by notify.command hears of promotions, refusals, rollbacks, questions and failures, once."""

import os
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline import commands, night
from pipeline.contract import params, records
from pipeline.contract.records import Night
from pipeline.gate import judge
from pipeline.report import notifier
from pipeline.rollout import rollback
from pipeline.storage import ledger
from tests.release.conftest import judge_night, promote_night
from tests.release.folders import PARAMS, make_night

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]


@pytest.fixture
def heard(home: Path) -> Any:
    """The messages so far; the home's notifier writes each as a line."""
    file = home / "var" / "heard"
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{command: 'cat >> {file}; echo >> {file}'}}\n")
    return lambda: file.read_text().splitlines() if file.exists() else []


def go(home: Path, number: int, weight: float, *, more: str = "") -> None:
    """Judge and promote night `number`, and close it; all twice, as after a kill."""
    champion = ledger.champion_at(ledger.ledger_tip())
    os.chdir(make_night(home, number, weight=weight, champion=champion))
    Path("params.yaml").write_text(PARAMS + more)
    verdict = judge_night()
    if verdict.action == "promote":
        for _ in range(2):
            records.write(promote_night())
    for _ in range(2):
        night.close(records.read(Night), params.load())


def test_promotions_refusals_and_rollbacks_are_told_once_each_with_their_reason(
    home: Path, heard: Any
) -> None:
    go(home, 0, 0.6)
    go(home, 1, 1.0)
    go(home, 2, -3.0)
    os.chdir(home)
    rollback.rollback(params.load(), steps=1, reason="complaints")
    first, second, refused, back = heard()
    assert first.startswith("Daybreak: version 1 serves, promoted by night 2025-01-10: no champion yet: ")
    assert second.startswith("Daybreak: version 2 serves in place of version 1, promoted by night 2025-01-11")
    assert refused.startswith("Daybreak: version 2 stays after night 2025-01-12 (reject): ")
    assert back.startswith("Daybreak: rolled back from version 2 to 1: complaints; version 1 serves")


def test_a_question_is_told_with_its_reason_and_until_when(home: Path, heard: Any) -> None:
    champion = ledger.champion_at(ledger.ledger_tip())
    os.chdir(make_night(home, 0, weight=1.0, champion=champion))
    Path("params.yaml").write_text(f"{PARAMS}release: {{approval: always}}\n")
    verdict = judge_night()
    told = params.load()
    evaluation, version = records.read(records.Evaluation), records.read(records.Version)
    before = records.find(records.Verdict)
    judge.gate(records.read(Night), evaluation, version, champion, told, before=before)  # as after a clear
    (question,) = heard()
    assert verdict.approve_until
    assert question.startswith(
        f"Daybreak: version 1 waits for a person until {verdict.approve_until:%Y-%m-%d}"
    )
    assert "promote: no champion yet: " in question
    assert "python -m pipeline approve --night 2025-01-10 --reason TEXT [--reject]" in question


def test_what_a_notifier_prints_is_not_on_standard_output(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{command: cat}}\n")
    assert notifier.tell("hello")
    assert capfd.readouterr() == ("", "hello")  # where the record of a stage belongs


def test_a_notifier_that_fails_stops_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{command: 'exit 3'}}\n")
    assert not notifier.tell("hello")
    assert "the notifier ended with exit status 3; look at notify.command" in caplog.text


def test_after_a_rollback_board_status_and_report_show_it(
    home: Path,
    heard: Any,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go(home, 0, 0.6)
    go(home, 1, 1.0)
    os.chdir(home)
    caplog.set_level("INFO")
    rollback.rollback(params.load(), steps=1, reason="complaints")
    monkeypatch.setenv("COLUMNS", "80")
    assert commands.status() == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("20")]
    now = f"{datetime.now(UTC):%Y-%m-%d}"
    assert rows[0].split()[0] == now
    assert "rolled back" in rows[0]
    assert ["promoted" in line for line in rows[1:]] == [True, True]
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    assert commands.report(open=True) == 0
    board, page = map(Path, capsys.readouterr().out.split())
    assert opened == [board.as_uri()]
    assert page == home / "nights" / "2025-01-11" / records.RUN / "report.html"  # not that of the older night
    assert "complaints" in board.read_text()
    older = home / "nights" / "2025-01-10" / records.RUN / "report.html"
    for link in ("../nights/2025-01-10/data/run/report.html", "../nights/2025-01-11/data/run/report.html"):
        assert f'href="{link}"' in board.read_text()
        assert (board.parent / link).exists()
    assert 'href="../../../2025-01-10/data/run/report.html">Previous night' in page.read_text()
    assert 'href="../../../../var/board.html">Board' in page.read_text()
    assert 'href="../../../2025-01-11/data/run/report.html">Next night' in older.read_text()
    assert "Promoted, then rolled back: version 2 replaced version 1." in page.read_text()
    assert f"Version 2 was rolled back at {now}" in page.read_text()
    page.unlink()
    monkeypatch.delenv("DISPLAY")
    assert commands.report(open=True) == 0
    assert len(opened) == 1
    assert f"there is no desktop here; open {board}" in caplog.text
    assert "2025-01-10" in capsys.readouterr().out
    assert "no report of 2025-01-11, the newest night, is here; that of 2025-01-10 is" in caplog.text

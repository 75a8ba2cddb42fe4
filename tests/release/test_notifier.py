"""Who is named by notify.command and notify.urls hears of each decision, once."""

import json
import os
import socket
import threading
import time
import webbrowser
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest

from pipeline import cli, commands, night
from pipeline.contract import params, records
from pipeline.contract.records import Night, Release, Training, Verdict
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
    judged = judge_night()
    if judged.action == "promote":
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
    first, second, refused, late, back = heard()
    assert first.startswith("Daybreak: version 1 serves, promoted by night 2025-01-10: no champion yet: ")
    assert second.startswith("Daybreak: version 2 serves in place of version 1, promoted by night 2025-01-11")
    assert refused.startswith("Daybreak: version 2 stays after night 2025-01-12 (reject): ")
    assert late.startswith("Daybreak: night 2025-01-12 is late: ")  # this test is closed long after that day
    assert back.startswith("Daybreak: rolled back from version 2 to 1: complaints; version 1 serves")


def test_a_question_is_told_with_its_reason_and_until_when(home: Path, heard: Any) -> None:
    champion = ledger.champion_at(ledger.ledger_tip())
    os.chdir(make_night(home, 0, weight=1.0, champion=champion))
    Path("params.yaml").write_text(f"{PARAMS}release: {{approval: always}}\n")
    asked = judge_night()
    told = params.load()
    evaluation, version = records.read(records.Evaluation), records.read(records.Version)
    judge.gate(records.read(Night), evaluation, version, champion, told)  # as after a clear
    (question,) = heard()
    assert asked.approve_until
    assert question.startswith(f"Daybreak: version 1 waits for a person until {asked.approve_until:%Y-%m-%d}")
    assert "promote: no champion yet: " in question
    assert " UTC (" in question
    assert " left): " in question
    assert "python -m pipeline approve --night 2025-01-10 --reason TEXT [--reject]" in question


NOW = datetime(2025, 1, 10, 4, tzinfo=UTC)
UNTIL = NOW + timedelta(hours=1.5)
NIGHT = Night(
    id="n1", day=date(2025, 1, 9), started_at=NOW, train_until=NOW, decide_until=UNTIL, budget_usd=3,
    trigger="schedule", code_commit="c", previous="",
)  # fmt: skip
RELEASE = Release(version=2, replaced=1, model_digest="d", files_digest="d", night="n1", lineage={})
TRAINING = Training(
    model_digest="d", num_samples=8, num_updates=1, num_restarts=0, elapsed_s=1, cost_usd=3.5,
    stopped_by="budget",
)  # fmt: skip


def verdict(action: Literal["reject", "promote"]) -> Verdict:
    return Verdict(
        action=action, champion=1, challenger=2, effect=None, low=None, high=None, num_samples=0,
        reason="why", approve_until=UNTIL,
    )  # fmt: skip


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[str]]]:
    """The URL of a webhook on loopback, for Apprise, and the messages that arrived there, in order."""
    arrived: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            arrived.append(json.loads(body)["message"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}/hook", arrived
        server.shutdown()
        thread.join()


def test_a_message_of_each_kind_arrives_at_a_webhook_once_as_one_line(
    home: Path, webhook: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, arrived = webhook
    monkeypatch.setenv("HOOK", f"json://{address}")
    monkeypatch.setattr(notifier, "LIMIT_S", 60)  # of a machine that is busy
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{urls: [$HOOK]}}\n")
    records.RUN.mkdir(parents=True, exist_ok=True)
    for _ in range(2):  # as after a kill
        notifier.promoted(NIGHT, RELEASE, "better\nby 0.1")
        notifier.refused(NIGHT, verdict("reject"), "worse")
        notifier.asks(NIGHT, verdict("promote"), now=NOW)
        notifier.late(NIGHT)
        notifier.over_budget(NIGHT, TRAINING)
    notifier.rolled_back(RELEASE, "rolled back from version 3 to 2: complaints")
    notifier.failed(NIGHT, "train failed")
    notifier.alarm("2 files have rotted")
    see = "; see: python -m pipeline report --night n1"
    assert arrived == [
        f"Daybreak: version 2 serves in place of version 1, promoted by night n1: better by 0.1{see}",
        f"Daybreak: version 1 stays after night n1 (reject): worse{see}",
        "Daybreak: version 2 waits for a person until 2025-01-10 05:30 UTC (1 h 30 min left): promote: "
        "why; answer with: python -m pipeline approve --night n1 --reason TEXT [--reject]",
        f"Daybreak: night n1 is late: it was to be decided until 2025-01-10 05:30 UTC{see}",
        f"Daybreak: night n1 is over its budget: its jobs cost $3.50 of $3.00{see}",
        "Daybreak: rolled back from version 3 to 2: complaints; version 2 serves, of night n1; "
        "see: python -m pipeline status",
        "Daybreak: night n1 failed: train failed; go on with: python -m pipeline night --night n1",
        "Daybreak: 2 files have rotted",
    ]


def test_only_what_notify_on_names_is_told(
    home: Path, webhook: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, arrived = webhook
    monkeypatch.setattr(notifier, "LIMIT_S", 60)
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{urls: ['json://{address}'], on: [rolled back]}}\n")
    notifier.alarm("2 files have rotted")
    notifier.rolled_back(RELEASE, "rolled back from version 3 to 2: complaints")
    (message,) = arrived
    assert "rolled back" in message


def test_a_service_that_does_not_answer_delays_nobody_and_its_url_is_in_no_log(
    home: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifier, "LIMIT_S", 3)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes a connection and says nothing
        url = f"json://127.0.0.1:{silent.getsockname()[1]}/canary-4711?rto=600"
        (home / "params.yaml").write_text(f"{PARAMS}notify: {{urls: ['{url}']}}\n")
        began = time.monotonic()
        assert not notifier.tell("hello")
        assert time.monotonic() - began < 30
    assert "the message was not sent to URL 1 of 1: it did not answer in 3 s" in caplog.text
    assert "canary" not in caplog.text + "".join(capfd.readouterr())


def test_a_url_that_fails_keeps_the_message_from_no_other(
    home: Path,
    webhook: tuple[str, list[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, arrived = webhook
    monkeypatch.setattr(notifier, "LIMIT_S", 60)  # of a machine that is busy
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{urls: [$UNSET, 'json://{address}']}}\n")
    assert not notifier.tell("hello")
    assert arrived == ["hello"]
    assert "the message was not sent to URL 1 of 2: Apprise ended with exit status" in caplog.text
    assert "URL 2 of 2" not in caplog.text


def test_what_a_kill_left_untold_is_told_by_close(home: Path, heard: Any) -> None:
    os.chdir(make_night(home, 0, weight=0.6, champion=None))
    Path("params.yaml").write_text(PARAMS)
    judge_night()
    promote_night()  # killed before its record was written, and, as the next line has it, before it told
    (records.RUN / notifier.TOLD).unlink()
    for _ in range(2):
        night.close(records.read(Night), params.load())
    lines = heard()
    assert len(lines) == 2
    assert all(line.startswith("Daybreak: version 1 serves, promoted by night 2025-01-10") for line in lines)


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
    assert cli.main(["status", "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)[0]
    assert (newest["verdict"], newest["champion"]) == ("rolled back", 1)
    assert cli.main(["why", "2", "--json"]) == 0
    assert "served" in [part["name"] for part in json.loads(capsys.readouterr().out)]
    status = cli.main(["audit", "--json"])
    checks = json.loads(capsys.readouterr().out)
    assert checks
    assert status == (0 if all(check["ok"] for check in checks) else 1)
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

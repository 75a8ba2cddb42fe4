"""Who is named by notify.command and notify.urls hears of each decision, once."""

import email.policy
import html
import json
import os
import re
import shutil
import socket
import time
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from daybreak import cli, commands, runner
from daybreak.contract import params, records
from daybreak.contract.record_parts import Event, EventKind
from daybreak.contract.record_types import Evaluation, Night, Version
from daybreak.contract.sections import NotifyEvent
from daybreak.gate import judge
from daybreak.report import notifier, publisher
from daybreak.report.messages import NightState, message
from daybreak.rollout import night_events, rollback
from daybreak.storage import branch, checkout, events, ledger
from daybreak.storage.home import Home
from tests.loopback import Quiet, served
from tests.toy.nights import PARAMS, make_night, make_version
from tests.toy.stages import close_night, judge_night, promote_night

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
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    os.chdir(make_night(home, number, weight=weight, champion=champion))
    Path("params.yaml").write_text(PARAMS + more)
    judged = judge_night()
    if judged.action == "promote":
        for _ in range(2):
            records.write(promote_night(), records.RUN)
    for _ in range(2):
        close_night()


def test_promotions_refusals_and_rollbacks_are_told_once_each_with_their_reason(
    home: Path, heard: Any
) -> None:
    go(home, 0, 0.6)
    go(home, 1, 1.0)
    go(home, 2, -3.0)
    os.chdir(home)
    rollback.rollback(Home.here(), params.load(Path()).register_, steps=1, reason="complaints", by="ann")
    for _ in range(2):
        publisher.publish_home(Home.here())  # as the hourly watch does, in case whoever made it was killed
    late, first, _, second, _, refused, back = heard()
    assert late.startswith("Daybreak: night 2025-01-10 is late: ")  # this test is run long after that day
    assert first.startswith("Daybreak: version 1 serves, promoted by gate in night 2025-01-10: no champion ")
    assert second.startswith("Daybreak: version 2 serves in place of version 1, promoted by gate in night ")
    assert refused.startswith("Daybreak: version 2 stays after night 2025-01-12: reject: ")
    assert back == (
        "Daybreak: version 1 serves again in place of version 2, rolled back by ann: complaints; "
        "whoever owns the model should find out why before the next night; see: daybreak status"
    )


def test_a_rollback_tells_of_the_predictions_that_stand_and_not_of_those_of_the_night_that_once_promoted(
    home: Path, heard: Any
) -> None:
    with (home / "params.yaml").open("a") as file:
        file.write("predict: {to: predictions}\n")
    go(home, 0, 0.6)
    folder = Home.here().tonight
    night = records.read(Night, folder / records.RUN)  # of a day long ago, whose predictions are not there
    records.write(replace(night, predict_until=night.decide_until), folder / records.RUN)
    go(home, 1, 1.0)
    os.chdir(home)
    rollback.rollback(Home.here(), params.load(Path()).register_, steps=1, reason="complaints", by="ann")
    publisher.publish_home(Home.here())
    back = heard()[-1]
    assert "rolled back by ann: complaints; predictions that are written stay as they are until the " in back
    assert "2025-01-10" not in back


def test_a_question_is_told_with_its_reason_and_until_when(home: Path, heard: Any) -> None:
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    os.chdir(make_night(home, 0, weight=1.0, champion=champion))
    Path("params.yaml").write_text(f"{PARAMS}release: {{approval: always}}\n")
    night = records.read(Night, records.RUN)  # of a day long ago, when nobody could answer any more
    records.write(replace(night, decide_until=datetime.now(UTC) + timedelta(hours=3)), records.RUN)
    asked = judge_night()
    loaded = params.load(Path())
    evaluation, version = (
        records.read(Evaluation, records.RUN),
        records.read(Version, records.RUN),
    )
    records.write(
        judge.gate(records.read(Night, records.RUN), evaluation, version, champion, loaded, home=Home.here()),
        records.RUN,
    )
    publisher.publish_night(Home.here(), Path())  # as after a clear
    (question,) = heard()
    assert asked.approve_until
    assert question.startswith(f"Daybreak: version 1 waits for a person until {asked.approve_until:%Y-%m-%d}")
    assert "promote: no champion yet: " in question
    assert " UTC (" in question
    assert " left): " in question
    assert "daybreak approve --night 2025-01-10 --reason TEXT [--reject]" in question


NOW = datetime(2025, 1, 10, 4, tzinfo=UTC)
UNTIL = datetime.now(UTC) + timedelta(days=400, minutes=29)  # tests run a while after they are read


def event(kind: EventKind, reason: str = "why", **more: Any) -> Event:
    return Event(kind=kind, at=NOW, night="n1", reason=reason, **{"version": 2, "champion": 1} | more)


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[str]]]:
    """The URL of a webhook on loopback, for Apprise, and the messages that arrived there, in order."""
    arrived: list[str] = []

    class Handler(Quiet):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            arrived.append(json.loads(body)["message"])
            self.send_response(200)
            self.end_headers()

    with served(Handler) as address:
        yield f"{address}/hook", arrived


@pytest.fixture
def mailbox() -> Iterator[tuple[str, list[str]]]:
    """The URL of a mail server on loopback, for Apprise, and the texts that arrived there, in order."""
    arrived: list[str] = []

    class Handler:
        async def handle_DATA(self, server: object, session: object, envelope: Envelope) -> str:
            mail = email.message_from_bytes(envelope.content or b"", policy=email.policy.default)
            body = mail.get_body(("plain", "html"))
            arrived.append(html.unescape(re.sub("<[^>]*>", "", body.get_content())).strip())
            return "250 OK"

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Controller(Handler(), hostname="127.0.0.1", port=port)
    server.start()
    try:
        yield f"mailto://127.0.0.1:{port}/?from=a@example.org&to=team@example.org&mode=insecure", arrived
    finally:
        server.stop()


SEE = "; see: daybreak report --night n1"
TOLD = {  # an event of each kind that people hear of, and its message
    "promoted": (
        event("promoted", "better\nby 0.1", by="gate"),
        f"version 2 serves in place of version 1, promoted by gate in night n1: better by 0.1; "
        f"nobody has to act{SEE}; take it back with: daybreak rollback --to 1 --reason TEXT",
    ),
    "refused": (
        event("refused", "reject: worse"),
        f"version 1 stays after night n1: reject: worse; nobody has to act{SEE}",
    ),
    "stopped": (
        event("stopped", "bad rows", by="ann"),
        f"version 1 stays, and night n1 was stopped by ann: bad rows; nobody has to act{SEE}",
    ),
    "rolled back": (
        event("rolled back", "complaints", by="ann"),
        "version 2 serves again in place of version 1, rolled back by ann: complaints; whoever owns the "
        "model should find out why before the next night; see: daybreak status",
    ),
    "question": (
        event("question", "promote: why", until=UNTIL),
        f"version 2 waits for a person until {UNTIL:%Y-%m-%d %H:%M} UTC (400 d left): promote: why; "
        "without an answer version 1 stays; "
        "whoever approves should answer with: daybreak approve --night n1 --reason TEXT [--reject]",
    ),
    "late": (
        event("late", "it was to be decided until 05:30"),
        f"night n1 is late: it was to be decided until 05:30; whoever is on call should look at it now{SEE}",
    ),
    "over budget": (
        event("over budget", "its jobs cost $3.50 of $3.00"),
        "night n1 is over its budget: its jobs cost $3.50 of $3.00; that takes nothing from the next "
        "night's budget_usd; whoever keeps the budget should check before then what this one cost"
        f"{SEE}",
    ),
    "failed": (
        event("failed", "no room", subject="train"),
        "night n1 failed at train: no room; whoever is on call should go on before the next night with: "
        "daybreak night --night n1",
    ),
    "month budget": (
        event("month budget", "$240.00 of this month's $300.00 are spent", subject="80%"),
        "$240.00 of this month's $300.00 are spent; nights go on within what is left, and whoever keeps the "
        f"budget should decide before that is spent whether to raise it{SEE}",
    ),
    "calibration lost": (
        event("calibration lost", "the interval held on 40 %"),
        "the interval held on 40 %; meanwhile nights may miss deadlines or budgets, and whoever keeps the "
        f"machines should check them before the next night{SEE}",
    ),
    "disk low": (
        event("disk low", "the disk has 1 GB free"),
        "the disk has 1 GB free; a night that finds no room fails, and whoever keeps the machine should "
        "free space before the next night; see what can be deleted: daybreak prune --dry-run",
    ),
    "alarm": (
        event("alarm", "2 files have rotted"),
        "2 files have rotted; whoever keeps the home should see to it before the next night",
    ),
    "digest": (event("digest", "Daybreak: all is well"), "all is well"),
}


def test_a_message_of_each_kind_arrives_at_a_webhook_and_by_mail_once_as_one_line(
    home: Path,
    webhook: tuple[str, list[str]],
    mailbox: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (address, at_hook), (mailto, by_mail) = webhook, mailbox
    monkeypatch.setenv("HOOK", f"json://{address}")
    monkeypatch.setattr(notifier, "LIMIT_S", 60)  # of a machine that is busy
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{urls: [$HOOK, '{mailto}']}}\n")
    assert set(TOLD) == set(get_args(NotifyEvent))
    for _ in range(2):  # as after a kill
        assert notifier.tell(
            Home.here(), *(happened for happened, _ in TOLD.values()), event("opened"), event("drift")
        )
    assert at_hook == [f"Daybreak: {message}" for _, message in TOLD.values()]
    assert by_mail == at_hook


def test_a_message_links_to_where_the_night_is_shown_and_a_question_to_its_form(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_night(home, 0, weight=1.0)
    night = replace(records.read(Night, folder / records.RUN), airflow_run="retrain/manual__1+00:00")
    records.write(night, folder / records.RUN)
    records.write(make_version(3, model_digest="d", night=night.id), folder / records.RUN)
    monkeypatch.setenv("MLFLOW_UI", "http://mlflow:5000")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow:8080")
    report = "http://mlflow:5000/#/experiments/0/runs/r/artifacts/report.html?workflowType=machine_learning"
    file = home / "var" / "heard"
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{command: 'cat >> {file}'}}\n")
    refused = event("refused", "reject: worse", subject="3")
    assert notifier.tell(Home.here(), replace(refused, night=night.id))
    assert file.read_text().endswith(f"reject: worse; nobody has to act; see: {report}")
    assert notifier.tell(Home.here(), replace(event("question", until=UNTIL), night=night.id))
    form = "http://airflow:8080/dags/retrain/runs/manual__1%2B00%3A00/tasks/review/required_actions"
    asked = (
        f"why; without an answer version 1 stays; see: {report}; whoever approves should answer at {form} or "
        "with: "
    )
    assert asked in file.read_text()
    assert notifier.tell(Home.here(), replace(event("promoted", "better"), night=night.id))
    back = (
        "take it back at http://airflow:8080/dags/rollback, with 1 as the version in its form, or with: "
        "daybreak rollback --to 1 --reason TEXT"
    )
    assert file.read_text().endswith(f"better; nobody has to act; see: {report}; {back}")


def test_a_failure_says_what_serves_whether_predictions_are_there_and_by_when_to_go_on(
    home: Path, heard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(home, 0, 0.6)
    folder = make_night(
        home, 1, weight=1.0, champion=ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    )
    os.chdir(folder)
    now = datetime.now(UTC)
    night = replace(
        records.read(Night, folder / records.RUN),
        predict_until=now - timedelta(hours=1),
        decide_until=UNTIL,
        airflow_run="retrain/r1",
    )
    records.write(night, folder / records.RUN)
    (folder / records.RUN / "train.error").write_text("JobError: no machine is left\n")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow:8080")
    publisher.publish_failure(Home.here(), "train")
    assert heard()[-1] == (
        f"Daybreak: night {night.day} failed at train: JobError: no machine is left; version 1 serves on; "
        f"predictions of {night.day}: not there, late since {now - timedelta(hours=1):%Y-%m-%d %H:%M} UTC; "
        f"whoever is on call should go on by {night.decide_until:%Y-%m-%d %H:%M} UTC (400 d left) at "
        f"http://airflow:8080/dags/retrain/runs/r1 or with: daybreak night --night {night.id}"
    )


def test_what_is_about_no_night_says_what_serves_and_what_becomes_of_predictions(home: Path) -> None:
    disk = event("disk low", "the disk has 1 GB free")
    back = event("rolled back", "complaints", by="ann")

    def text(happened: Event) -> str:
        return notifier.text_of(Home.here(), replace(happened, night=""), now=NOW)

    assert "1 GB free; a night that finds no room fails" in text(disk)  # the ledger may also be lost
    go(home, 0, 0.6)
    assert "1 GB free; version 1 serves on; a night that finds no room fails" in text(disk)
    assert "predictions" not in text(back)
    (home / "params.yaml").write_text(f"{PARAMS}predict: {{to: predictions}}\n")
    stay = "predictions that are written stay as they are until the next night writes its own; whoever owns"
    assert f"complaints; {stay}" in text(back)
    no_night = event("month budget", "all is spent", subject="80% of the fleet")
    assert text(no_night).endswith("; see: daybreak status")


def test_no_message_says_that_no_version_serves_because_the_ledger_is_lost(home: Path) -> None:
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    folder = make_night(home, 0, weight=1.0, champion=champion)
    failed = replace(event("failed", "no room", subject="train"), night=folder.name)

    def text(happened: Event) -> str:
        return notifier.text_of(Home.here(), happened, now=NOW)

    assert "no room; no version serves yet; whoever" in text(failed)  # no night was before it
    go(home, 1, 0.6)
    folder = make_night(home, 2, weight=1.0)
    night = records.read(Night, folder / records.RUN)
    tip = branch.ledger_tip(Home.here())
    records.write(replace(night, previous=tip), folder / records.RUN)
    failed = replace(failed, night=folder.name)
    assert "no room; version 1 serves on; whoever" in text(failed)
    checkout.git("update-ref", "-d", branch.BRANCH, folder=home)
    lost = replace(event("alarm", "the ledger is lost"), night="")
    assert (
        text(lost) == "Daybreak: the ledger is lost; whoever keeps the home should see to it before the "
        "next night"
    )
    assert "no room; whoever" in text(failed)


def test_the_last_dollars_of_a_month_are_told_with_what_the_rest_of_it_is_like() -> None:
    spent = event("month budget", "$300.00 of this month's $300.00 are spent", subject="100% of the fleet")
    told = message(spent, NightState(name="n1"), now=NOW)
    assert "are spent; until the month ends, only nights that cost nothing will train, and whoever" in told


def test_a_night_over_its_budget_says_whether_a_month_pays_for_that() -> None:
    over = event("over budget", "its jobs cost $3.50 of $3.00")
    told = message(over, NightState(name="n1", has_month=True), now=NOW)
    assert "takes nothing from the next night's budget_usd, but counts towards the month's budget; " in told


NOT_THERE = {"predictions": "of 2025-01-10: not there, late since 05:30", "lacks_predictions": True}
LOOK = "whoever is on call should look at the predictions now"
OWNER = "whoever owns the model should see to it before the next night"
NO_DATA = "no data: AUC of the champion is not a number; hold out more days"


@pytest.mark.parametrize(
    ("happened", "state", "who"),
    [
        (event("promoted"), NOT_THERE, LOOK),
        (event("stopped"), NOT_THERE, LOOK),
        (event("refused", NO_DATA), {}, OWNER),
        (event("refused", NO_DATA), NOT_THERE, f"{LOOK}, and {OWNER}"),
        (event("refused", "no data: the source has no new day", version=0), {}, "nobody has to act"),
        (event("refused", "reject: 3 scores are not finite"), {"unjudged": True}, OWNER),
        (event("failed"), {"released": 3}, "nobody has to act"),
        (event("failed"), {"released": 3, **NOT_THERE}, LOOK),
        (event("failed"), {"ended": True}, "nobody has to act"),
        (event("late"), {"released": 3}, "nobody has to act"),
        (event("late"), {"ended": True}, "nobody has to act"),
        (event("late", subject="predictions"), {"predictions": "of 2025-01-10: there"}, "nobody has to act"),
        (event("late", subject="predictions"), NOT_THERE, "whoever is on call should look at it now"),
        (event("question", until=NOW - timedelta(hours=1)), {}, "nobody has to act"),
        (event("question", until=NOW + timedelta(hours=1)), {"ended": True}, "nobody has to act"),
    ],
)
def test_a_message_names_who_has_to_act_and_nobody_where_nothing_is_left_to_do(
    happened: Event, state: dict[str, Any], who: str
) -> None:
    told = message(happened, NightState(name="n1", serves=1, **state), now=NOW)
    parts = told.split("; ")
    assert who in parts
    acts = [part for part in parts if part.startswith(("whoever", "nobody"))]
    assert acts == [who]


def test_a_version_whose_scores_are_not_finite_is_for_its_owner_to_see_to(home: Path, heard: Any) -> None:
    go(home, 0, 0.6)
    go(home, 1, float("nan"))
    refused = next(line for line in heard() if "stays after night 2025-01-11: reject: " in line)
    assert "not finite" in refused
    assert f"; {OWNER}; see: " in refused


def test_a_night_that_is_decided_late_sends_nobody_to_look_at_it(home: Path) -> None:
    go(home, 0, 0.6)
    go(home, 1, -3.0)
    by_kind = {one.kind: one for one in events.read(Home.here().tonight)}
    at_once = replace(by_kind["late"], at=by_kind["refused"].at)  # both noted by `close`
    for late in (by_kind["late"], at_once):
        told = notifier.text_of(Home.here(), late, now=datetime.now(UTC))
        assert "; it has ended since; version 1 serves on; nobody has to act; see: " in told


def test_a_night_that_is_late_but_can_still_be_decided_says_until_when() -> None:
    late = event("late", "its predictions were to be written until 05:30")
    told = message(late, NightState(name="n1", serves=4, until=NOW + timedelta(hours=2)), now=NOW)
    assert (
        "until 05:30; version 4 serves on; whoever is on call should look at it by 2025-01-10 06:00 UTC (2 h"
        in told
    )


def test_a_message_that_waited_says_what_has_become_of_the_night_since(home: Path) -> None:
    go(home, 0, 0.6)
    first = Home.here().tonight
    before = datetime.now(UTC) - timedelta(days=1)
    overtaken = make_night(home, 1, weight=1.0)
    night = records.read(Night, overtaken / records.RUN)
    records.write(replace(night, previous=night.code_commit), overtaken / records.RUN)

    def text(folder: Path, happened: Event) -> str:
        told = replace(happened, night=folder.name, at=before)
        return notifier.text_of(Home.here(), told, now=datetime.now(UTC))

    failed = text(first, event("failed", "no room", subject="train"))
    assert "no room; it has gone on since, and brought version 1 to serve" in failed
    assert "daybreak night" not in failed
    asked = event("question", "promote: why", until=before + timedelta(hours=1))
    assert "waited for a person until" in text(first, asked)
    assert "version 1 came to serve; nobody has to act; see: daybreak report" in text(first, asked)
    assert "that time is over; nobody has to act; see: daybreak report" in text(overtaken, asked)
    again, command = text(overtaken, event("failed", "no room", subject="train")), ledger.new_night
    open_another = "whoever is on call should open another night for its day with: "
    assert again.endswith(f"{open_another}{command(Home.here(), night)}")
    assert ledger.overtaken(Home.here(), night) == ""  # as it was opened after the promotion


def test_only_what_notify_on_names_is_told(
    home: Path, webhook: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, arrived = webhook
    monkeypatch.setattr(notifier, "LIMIT_S", 60)
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{urls: ['json://{address}'], on: [rolled back]}}\n")
    notifier.tell(Home.here(), event("alarm"), event("rolled back", "complaints"))
    (message,) = arrived
    assert "complaints" in message


def test_in_quiet_hours_urgent_messages_ring_at_once_and_the_others_wait_and_are_not_lost(
    home: Path, webhook: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, rang = webhook
    monkeypatch.setattr(notifier, "LIMIT_S", 60)
    now, file = datetime.now(UTC), home / "var" / "heard"
    quiet = f"{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=1):%H:%M}"
    notify = f"command: 'cat >> {file}', urgent_urls: ['json://{address}']"
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{{notify}, quiet_hours: '{quiet}'}}\n")
    assert notifier.tell(
        Home.here(), event("refused", "reject: worse"), event("failed", "no room", subject="train")
    )
    (message,) = rang
    assert "no room" in message
    assert not file.exists()
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{{notify}}}\n")  # the quiet hours have ended
    for _ in range(2):
        assert notifier.tell(Home.here())
    assert file.read_text().count("Daybreak: ") == 2
    assert file.read_text().index("reject: worse") < file.read_text().index("no room")
    assert len(rang) == 1
    (home / "params.yaml").write_text(
        f"{PARAMS}notify: {{command: 'cat >> {file}', quiet_hours: '{quiet}'}}\n"
    )
    assert notifier.tell(
        Home.here(), event("late", "too late"), event("promoted", "better")
    )  # nobody else is there to ring
    assert "too late" in file.read_text()
    assert "better" not in file.read_text()


def test_what_no_notifier_took_is_tried_again_and_a_full_disk_keeps_no_message_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "var" / "heard"
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{command: 'exit 3'}}\n")
    assert not notifier.tell(Home.here(), event("refused", "reject: worse"), event("late"))
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{command: 'cat >> {file}; echo >> {file}'}}\n")
    assert notifier.tell(Home.here())
    assert len(file.read_text().splitlines()) == 1  # the one that was not tried; the other one has time
    monkeypatch.setattr(notifier, "AGAIN_AFTER", timedelta(0))
    assert notifier.tell(Home.here())
    assert "reject: worse" in file.read_text().splitlines()[1]
    (home / "var" / "messages.json").unlink()
    (home / "var" / "messages.json").mkdir()  # nothing can be written there
    assert notifier.tell(Home.here(), event("failed", "no room"))
    assert "no room" in file.read_text()


def test_where_nobody_is_named_nothing_is_kept(home: Path) -> None:
    assert notifier.tell(Home.here(), event("failed"))
    assert not (home / "var" / "messages.json").exists()


def test_the_watch_tells_of_an_open_night_that_missed_its_own_deadline_and_of_a_disk_nearly_full(
    home: Path, heard: Any
) -> None:
    folder = make_night(home, 0, weight=1.0)
    night, now = records.read(Night, folder / records.RUN), datetime.now(UTC)
    records.write(replace(night, decide_until=now + timedelta(hours=1)), folder / records.RUN)
    for _ in range(2):
        runner.run(Home.here(), "watch")
    assert heard() == []
    assert cli.main(["notify", "--text", "t", "--late", "--night", night.id]) == 99
    records.write(replace(night, decide_until=now - timedelta(hours=1)), folder / records.RUN)
    with (home / "params.yaml").open("a") as file:
        file.write("night: {time_zone: UTC}\n")
    text = (home / "params.yaml").read_text()
    (home / "params.yaml").write_text(text.replace("notify: {", "notify: {min_free_gb: 1.0e+9, "))
    for _ in range(2):
        runner.run(Home.here(), "watch")
    assert cli.main(["notify", "--text", "t", "--late", "--night", night.id]) == 0
    late, disk = heard()
    assert late.startswith(f"Daybreak: night 2025-01-10 is late: it was to be decided until {now.year}")
    assert disk.startswith(f"Daybreak: the disk of {home} has ")


def test_a_night_with_late_predictions_is_not_late_itself(home: Path, heard: Any) -> None:
    folder, now = make_night(home, 0, weight=1.0), datetime.now(UTC).replace(microsecond=0)
    night = replace(records.read(Night, folder / records.RUN), decide_until=now + timedelta(hours=1))
    records.write(night, folder / records.RUN)
    night_events.note_event(night_events.late_predictions(replace(night, predict_until=now), at=now), folder)
    assert cli.main(["notify", "--text", "t", "--late", "--night", night.id]) == 99
    assert heard() == []


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
        assert not notifier.send(Home.here(), "hello")
        assert time.monotonic() - began < 300
    assert "the message was not sent to URL 1 of 1: it did not answer in 3 s" in caplog.text
    assert "canary" not in caplog.text + "".join(capfd.readouterr())


def test_a_command_that_does_not_end_is_ended_with_what_it_has_started(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifier, "LIMIT_S", 1)
    started = tmp_path / "started"
    command = f"sleep 600 & echo $! > {started}; wait"
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{command: '{command}'}}\n")
    assert not notifier.send(Home.here(), "hello")
    assert "the notifier took more than 1 s" in caplog.text
    while is_running(int(started.read_text())):
        pass  # until the system has taken it away


def is_running(process: int) -> bool:
    """Returns whether a process has not ended; in a container, nobody may reap one that has."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_url_that_fails_keeps_the_message_from_no_other(
    home: Path,
    webhook: tuple[str, list[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, arrived = webhook
    monkeypatch.setattr(notifier, "LIMIT_S", 60)  # of a machine that is busy
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{urls: [$UNSET, 'json://{address}']}}\n")
    assert not notifier.send(Home.here(), "hello")
    assert arrived == ["hello"]
    assert "the message was not sent to URL 1 of 2: Apprise ended with exit status" in caplog.text
    assert "URL 2 of 2" not in caplog.text


def test_what_a_kill_left_untold_is_told_by_close(home: Path, heard: Any) -> None:
    os.chdir(make_night(home, 0, weight=0.6, champion=None))
    Path("params.yaml").write_text(PARAMS)
    judge_night()
    promote_night()
    (home / "var" / "messages.json").unlink()  # as if killed before people were told
    for _ in range(2):
        close_night()
    promoted = [line for line in heard() if "version 1 serves, promoted by gate in night 2025-01-10" in line]
    assert len(promoted) == 2


def test_what_a_notifier_prints_is_not_on_standard_output(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{command: cat}}\n")
    assert notifier.send(Home.here(), "hello")
    assert capfd.readouterr() == ("", "hello")  # where the record of a stage belongs


def test_a_notifier_that_fails_stops_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{command: 'exit 3'}}\n")
    assert not notifier.send(Home.here(), "hello")
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
    rollback.rollback(Home.here(), params.load(Path()).register_, steps=1, reason="complaints")
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["status"]) == 0
    out = capsys.readouterr().out
    assert "took back version 2" in out  # and what that means, in lines that may begin with a day, too
    rows = [line for line in out.splitlines() if line.startswith("20")][:3]
    now = f"{datetime.now(UTC):%Y-%m-%d}"
    assert rows[0].split()[0] == now
    assert "rolled back" in rows[0]
    assert ["promoted" in line for line in rows[1:]] == [True, True]
    assert cli.main(["status", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(held["what"], held["versions"]) for held in shown["holds"]] == [("took back", [2])]
    newest = shown["nights"][0]
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
    assert commands.report(Home.here(), open=True) == 0
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
    waiting = home / "nights" / "2025-01-12" / records.RUN  # of a night that is open, as the gate wrote it
    shutil.copytree(older.parent, waiting)
    night = (waiting / "night.json").read_text().replace("2025-01-10", "2025-01-12")
    (waiting / "night.json").write_text(night)
    assert commands.report(Home.here(), night="2025-01-12") == 0
    assert str(waiting / "report.html") in capsys.readouterr().out
    shutil.rmtree(waiting.parents[1])
    page.unlink()
    monkeypatch.delenv("DISPLAY")
    assert commands.report(Home.here(), open=True) == 0
    assert len(opened) == 1
    assert f"there is no desktop here; open {board}" in caplog.text
    assert "2025-01-10" in capsys.readouterr().out
    assert "no report of 2025-01-11, the newest night, is here; that of 2025-01-10 is" in caplog.text

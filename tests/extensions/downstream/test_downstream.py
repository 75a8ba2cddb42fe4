"""A webhook on loopback hears once of promotions, rollbacks and predictions, signed, also if it was away."""

import hashlib
import hmac
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest

from daybreak.contract import params, records
from daybreak.contract.errors import ParamsError
from daybreak.contract.record_types import Predictions
from daybreak.extensions.downstream import airflow_assets, payloads, teller, webhook
from daybreak.extensions.downstream.settings import DownstreamParams
from daybreak.report import publisher
from daybreak.storage import branch, ledger_notes
from daybreak.storage.home import Home
from tests.conftest import PARAMS
from tests.loopback import Quiet, served
from tests.minimal_records import minimal_night
from tests.rollout.ledgers import close, make_home, release_of, rolling_back

SECRET, HOUR = "a secret", timedelta(hours=1)


@dataclass
class Receiver:
    """What arrived, and the statuses that are still to be answered before 200."""

    address: str
    arrived: list[tuple[str, bytes]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(body) for _, body in self.arrived]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    class Handler(Quiet):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = made.statuses.pop(0) if made.statuses else 200
            if status == 200:
                made.arrived.append((self.headers[webhook.HEADER], body))
            self.send_response(status)
            self.end_headers()

    with served(Handler) as address:
        made = Receiver(address)
        monkeypatch.setenv("HOOK", f"http://{address}/hook?key=hidden")
        monkeypatch.setenv("HOOK_SECRET", SECRET)
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    folder = make_home(tmp_path, monkeypatch)
    notify = "notify: {webhooks: [$HOOK], webhook_secret: $HOOK_SECRET}\n"
    (folder / "params.yaml").write_text(f"{PARAMS}register: {{name: shop}}\n{notify}")
    return Home(folder)


def test_each_promotion_and_rollback_is_heard_once(home: Home, receiver: Receiver) -> None:
    close(1, after="", release=release_of(1))
    publisher.publish_ledger(home)
    close(2, after=branch.ledger_tip(home), release=release_of(2))
    publisher.publish_ledger(home)
    publisher.publish_ledger(home)
    back = rolling_back(to=1).commit()
    publisher.publish_home(home)
    close(3, after=back)  # refused
    publisher.publish_home(home)
    assert [(one["how"], one["version"], one["replaced"]) for one in receiver.events] == [
        ("promoted", 1, 0),
        ("promoted", 2, 1),
        ("rolled back", 1, 2),
    ]
    last = receiver.events[-1]
    assert (last["model"], last["model_uri"], last["ledger"]) == ("shop", "models:/shop/1", back)
    assert last == payloads.champion(home)


def predictions_of(night: str, *, at: datetime) -> Predictions:
    return Predictions(
        night=night,
        day=at.date(),
        version=1,
        to="s3://shop/lists",
        of="clean rows",
        num_rows=60,
        digest="d",
        elapsed_s=1.0,
        written_at=at,
    )


def test_predictions_are_heard_once_of_a_night_that_is_in_the_ledger_or_open(
    home: Home, receiver: Receiver
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    close(1, after="", release=release_of(1))
    closed, ahead = predictions_of(release_of(1).night, at=now), predictions_of("open", at=now + HOUR)
    ledger_notes.add(home, "predictions", versions=(), predictions=closed)
    for _ in range(2):
        publisher.publish_ledger(home)
    for record in (minimal_night(now, id="open"), ahead):
        records.write(record, home.nights / "open" / records.RUN)
    for _ in range(2):
        publisher.publish_home(home)
    heard = [one for one in receiver.events if one["event"] == "predictions"]
    assert [(one["model"], one["night"], one["num_rows"]) for one in heard] == [
        ("shop", closed.night, 60),
        ("shop", "open", 60),
    ]
    assert heard[-1] == payloads.predictions(home)


def test_the_signature_can_be_checked_without_daybreak(home: Home, receiver: Receiver) -> None:
    close(1, after="", release=release_of(1))
    publisher.publish_ledger(home)
    ((header, body),) = receiver.arrived
    parts = dict(part.split("=") for part in header.split(","))
    signed = hmac.new(SECRET.encode(), f"{parts['t']}.".encode() + body, hashlib.sha256).hexdigest()
    assert parts["v1"] == signed


def test_a_busy_receiver_is_asked_again(home: Home, receiver: Receiver) -> None:
    receiver.statuses = [503, 429]
    close(1, after="", release=release_of(1))
    assert teller.tell(home)
    assert len(receiver.arrived) == 1


def test_one_that_refuses_is_told_of_the_newest_version_by_the_next_look(
    home: Home, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses = [404, 307]
    close(1, after="", release=release_of(1))
    publisher.publish_ledger(home)
    assert "webhook 1 has not heard that version 1 serves: it answered with HTTP status 404" in caplog.text
    publisher.publish_home(home)  # a redirect leads elsewhere
    close(2, after=branch.ledger_tip(home), release=release_of(2))
    publisher.publish_home(home)
    assert [one["version"] for one in receiver.events] == [2]
    assert "hidden" not in caplog.text


def test_one_that_is_away_keeps_its_address_to_itself(
    home: Home, receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "http://127.0.0.1:9/?key=hidden")
    close(1, after="", release=release_of(1))
    assert not teller.tell(home)
    assert "webhook 1 has not heard that version 1 serves: it did not answer (ConnectionError)" in caplog.text
    assert "hidden" not in caplog.text
    monkeypatch.setenv("HOOK", f"http://{receiver.address}/")
    assert teller.tell(home)


def test_two_processes_that_tell_at_once_tell_once(home: Home, receiver: Receiver) -> None:
    close(1, after="", release=release_of(1))
    forked = get_context("fork")
    both = [forked.Process(target=teller.tell, args=(home,)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert ([one.exitcode for one in both], len(receiver.arrived)) == ([0, 0], 1)


def test_before_the_first_version_there_is_nothing_to_tell(home: Home, receiver: Receiver) -> None:
    close(1, after="")
    assert teller.tell(home)
    assert receiver.arrived == []


def test_what_is_not_set_is_said(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"names \$HOOK_SECRET, which is not set"):
        webhook.post("http://127.0.0.1:9", "$HOOK_SECRET", {})
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    with pytest.raises(ParamsError, match=r"names \$HOOK, which is not set"):
        webhook.post("$HOOK", "$HOOK_SECRET", {})
    monkeypatch.delenv("HOOK_SECRET")
    found = {text: ok for _, ok, text in airflow_assets.checks(home, home.params)}
    assert not found["notify.webhook_secret names $HOOK_SECRET, which is not set; set it"]
    (home.folder / "params.yaml").write_text(f"{PARAMS}notify: {{webhooks: [$HOOK]}}\n")
    with pytest.raises(ParamsError, match="name the variable of their secret in webhook_secret"):
        params.load(home.folder)


@pytest.mark.parametrize(
    ("given", "token", "ok", "says"),
    [
        (
            {},
            "",
            True,
            "no asset of Airflow follows a release of a terminal; make up, or set notify.airflow_url",
        ),
        ({"airflow_url": "http://airflow:8080"}, "", False, "$DAYBREAK_AIRFLOW_TOKEN is not set"),
        ({"airflow_url": "http://airflow:8080"}, "t", True, "daybreak://shop/champion follows each release"),
    ],
)
def test_check_says_whether_an_asset_follows(
    home: Home, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], token: str, ok: bool, says: str
) -> None:
    monkeypatch.setenv(airflow_assets.TOKEN, token)
    notify = json.dumps(given)
    (home.folder / "params.yaml").write_text(f"{PARAMS}register: {{name: shop}}\nnotify: {notify}\n")
    ((_, found, text),) = airflow_assets.checks(home, home.params)
    assert (found, says in text) == (ok, True)


def test_a_task_of_airflow_that_has_the_asset_as_an_outlet_asks_no_airflow(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    given = DownstreamParams(airflow_url="http://127.0.0.1:9")
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "promote")
    airflow_assets.update(home, given, {"event": "champion", "model": "shop"})
    with pytest.raises(Exception, match=r"Airflow at http://127\.0\.0\.1:9 did not take it"):
        airflow_assets.update(home, given, {"event": "predictions", "model": "shop"})
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "predict")
    airflow_assets.update(home, given, {"event": "predictions", "model": "shop"})
    with pytest.raises(Exception, match=r"Airflow at http://127\.0\.0\.1:9 did not take it"):
        airflow_assets.update(home, given, {"event": "champion", "model": "shop"})

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
from typing import ClassVar

import pytest

from daybreak import runner
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


class AirflowOfATeam(Quiet):
    """Gives a token for a login, of which it takes the newest alone."""

    tokens: ClassVar[list[str]] = []
    updates: ClassVar[list[dict[str, object]]] = []

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/auth/token":
            is_right = given == {"username": "me", "password": "right"}
            self.tokens.append(f"token {len(self.tokens)}")
            return self.answer(201 if is_right else 401, {"access_token": self.tokens[-1]})
        self.updates.append(given)
        return self.answer(200, {})

    def do_GET(self) -> None:
        is_ours = self.headers["Authorization"] == f"Bearer {self.tokens[-1]}" if self.tokens else False
        asset = {"id": 7, "uri": "daybreak://shop/champion"}
        self.answer(200 if is_ours else 401, {"assets": [asset]})

    def answer(self, status: int, body: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "it has no login; set $DAYBREAK_AIRFLOW_USER and $DAYBREAK_AIRFLOW_PASSWORD"),
        ({"TOKEN": "expired"}, "HTTP Error 401: Unauthorized; see that it is up, and set"),
        ({"USER": "me", "PASSWORD": "wrong"}, "HTTP Error 401: Unauthorized; see that it is up, and set"),
        ({"USER": "me", "PASSWORD": "right"}, ""),
    ],
)
def test_check_asks_the_airflow_of_a_team_and_a_login_renews_its_token(
    home: Home, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], says: str
) -> None:
    for name in ("TOKEN", "USER", "PASSWORD"):
        monkeypatch.setenv(f"DAYBREAK_AIRFLOW_{name}", given.get(name, ""))
    AirflowOfATeam.tokens.clear()
    AirflowOfATeam.updates.clear()
    event = {"event": "champion", "model": "shop"}
    with served(AirflowOfATeam) as address:
        notify = f"notify: {{airflow_url: 'http://{address}'}}"
        (home.folder / "params.yaml").write_text(f"{PARAMS}register: {{name: shop}}\n{notify}\n")
        ((_, found, text),) = airflow_assets.checks(home, home.params)
        assert (found, says in text) == (not says, True)
        if not says:
            for _ in range(2):  # another token each time
                airflow_assets.update(home, home.params.section(DownstreamParams), event)
    assert AirflowOfATeam.updates == ([] if says else [{"asset_id": 7, "extra": event}] * 2)


def test_check_says_that_no_asset_follows_without_an_airflow(home: Home) -> None:
    (home.folder / "params.yaml").write_text(f"{PARAMS}register: {{name: shop}}\n")
    ((_, found, text),) = airflow_assets.checks(home, home.params)
    assert (found, text[:46]) == (True, "no asset of Airflow follows a release of a ter")


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


def test_a_rollback_task_that_fails_has_updated_no_asset(
    home: Home, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    close(1, after="", release=release_of(1))
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "rollback")
    with pytest.raises(ParamsError, match="a rollback needs a reason"):
        runner.run(home, "rollback", reason=" ")
    assert not (home.folder / teller.TOLD).exists()
    assert receiver.events == []
    publisher.publish_home(home)  # as once a rollback is done
    assert "champion airflow" in json.loads((home.folder / teller.TOLD).read_text())

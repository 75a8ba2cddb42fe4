"""A word on the command line reaches the Airflow of `make up`, by its login."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from daybreak import airflow_question
from daybreak.contract.record_types import Stop
from daybreak.storage.home import Home
from tests.loopback import Quiet, served
from tests.minimal_records import minimal_night
from tests.test_airflow_health import supervisor

NOW = datetime(2025, 1, 2, tzinfo=UTC)
NIGHT = minimal_night(NOW, airflow_run="retrain.cards/scheduled__2025-01-02T03:00:00+00:00")
STOP = Stop(by="ann", reason="not tonight", stopped_at=NOW)


@pytest.fixture
def airflow() -> Iterator[tuple[str, list[Any]]]:
    """URL of an interface with a new question, busy the second time, and what it was asked and told."""
    heard: list[Any] = []

    class Interface(Quiet):
        def answer(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
            heard.append((self.command, self.path, self.headers.get("Authorization"), body))
            if len(heard) == 2:
                self.send_error(500, "database is locked")
                return
            self.send_response(200)
            self.end_headers()
            asked = {"responded_at": None, "created_at": datetime.now(UTC).isoformat()}
            self.wfile.write(json.dumps({"access_token": "t", **asked}).encode())

        do_GET = do_POST = do_PATCH = answer

    with served(Interface) as address:
        yield f"http://{address}", heard


def test_the_question_is_answered_by_the_login_of_make_up(
    repository: Path, airflow: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, heard = airflow
    monkeypatch.setattr(airflow_question, "SETTLED_S", 0.5)
    began = time.monotonic()
    kept = repository / "var" / "passwords.json"
    kept.write_text(json.dumps({"admin": "secret"}))
    marks = {"DAYBREAK_UP": str(repository), "AIRFLOW__API__BASE_URL": url}
    passwords = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(kept)}
    with supervisor(repository, **marks, **passwords) as process:
        airflow_question.answer(Home.here(), NIGHT, STOP)
        process.kill()
    assert time.monotonic() - began > 1 + 0.5  # Airflow was asked again, and then the question was as old
    task = (
        "/api/v2/dags/retrain.cards/dagRuns/scheduled__2025-01-02T03%3A00%3A00%2B00%3A00/taskInstances/review"
    )
    body = {"chosen_options": ["Reject"], "params_input": {"approval_reason": "not tonight"}}
    assert heard == [
        ("POST", "/auth/token", None, {"username": "admin", "password": "secret"}),
        ("GET", f"{task}/-1/hitlDetails", "Bearer t", None),
        ("GET", f"{task}/-1/hitlDetails", "Bearer t", None),
        ("PATCH", f"{task}/-1/hitlDetails", "Bearer t", body),
    ]


def test_where_airflow_is_elsewhere_a_person_is_told_to_answer_there(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    airflow_question.answer(Home.here(), NIGHT, STOP)
    assert "if its run scheduled__2025-01-02T03:00:00+00:00 waits for a person, answer Reject there" in (
        caplog.text
    )

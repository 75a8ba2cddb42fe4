"""What an OpenLineage server on loopback is told of a promotion, predictions, a refusal and a rollback."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import params, records
from daybreak.contract.record_types import Dataset, Predictions
from daybreak.report import publisher
from daybreak.rollout import rollback
from daybreak.storage import ledger_notes
from daybreak.storage.home import Home
from tests.loopback import Quiet, served
from tests.rollout.test_committed_events import judge
from tests.toy.nights import FIRST, PARAMS
from tests.toy.stages import close_night, promote_night

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
]


DAY = FIRST + timedelta(days=1)
PREDICTIONS = Predictions(
    night=str(DAY),
    day=DAY,
    version=2,
    to="s3://shop/lists",
    of="clean rows",
    num_rows=60,
    digest="d",
    elapsed_s=1.0,
    written_at=datetime(2025, 1, 12, tzinfo=UTC),
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The events that arrived at the server that the environment names, in order."""
    arrived: list[dict[str, Any]] = []

    class Handler(Quiet):
        def do_POST(self) -> None:
            arrived.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

    with served(Handler) as address:
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://{address}")
        yield arrived


def versions(datasets: list[dict[str, Any]]) -> dict[str, str]:
    return {one["name"]: one["facets"]["version"]["datasetVersion"] for one in datasets}


def test_a_server_is_told_of_data_and_versions_of_nights_and_rollbacks_where_params_name_a_namespace(
    home: Path, server: list[dict[str, Any]]
) -> None:
    judge(home, 0, 0.6)
    promote_night()
    close_night()
    assert server == []  # off by default
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{openlineage: shop}}\n")
    judge(home, 1, 1.0)
    promote_night()
    arrays = records.read(Dataset, records.RUN).digest
    for _ in range(2):
        close_night()
    ledger_notes.add(Home.here(), "predictions", versions=(), predictions=PREDICTIONS)
    for _ in range(2):
        publisher.publish_ledger(Home.here())
    rollback.rollback(Home.here(), params.load(home).register_, steps=1, reason="worse")
    publisher.publish_home(Home.here())
    started, ended, _, predicted, _, back = server  # once, however often it is closed
    assert (started["eventType"], ended["eventType"], back["eventType"]) == ("START", "COMPLETE", "COMPLETE")
    assert started["run"]["runId"] == ended["run"]["runId"] != back["run"]["runId"]
    assert ended["job"] | {"facets": {}} == {"namespace": "shop", "name": "daybreak.night", "facets": {}}
    assert versions(ended["inputs"]) == {"daybreak.champion": "1"}
    made = {"daybreak.arrays": arrays, "daybreak.model": "2", "daybreak.champion": "2"}
    assert versions(ended["outputs"]) == made
    assert predicted["run"]["runId"] == ended["run"]["runId"]
    assert versions(predicted["outputs"]) == made | {"daybreak.predictions": PREDICTIONS.digest}
    assert back["job"]["name"] == "daybreak.rollback"
    assert versions(back["outputs"]) == {"daybreak.champion": "1"}


def test_a_server_that_is_away_fails_no_night(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
    (home / "params.yaml").write_text(f"{PARAMS}notify: {{openlineage: shop}}\n")
    judge(home, 0, -3.0)
    close_night()
    assert "no event was sent to OpenLineage: " in caplog.text

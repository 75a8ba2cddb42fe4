"""What Prometheus reads of nights, and the queries of the dashboard and the alerts against it."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from ruamel.yaml import YAML

from daybreak import runner
from daybreak.contract import records
from daybreak.contract.record_types import Night, Release, Verdict
from daybreak.extensions.router.night_metrics import NightMetrics
from daybreak.extensions.router.prometheus import Together
from daybreak.rollout import night_events
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.extensions.router.running import Running, until
from tests.minimal_records import minimal_training, promotion
from tests.toy.nights import make_night

MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"
PROMETHEUS = shutil.which("prometheus")


def sample(metrics: NightMetrics, name: str) -> float | None:
    metrics.refresh()
    lines = Together([metrics]).text().decode().splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"daybreak_{name} ")), None)


def close(home: Path, day: int, *, failed: str = "") -> str:
    """Close the night of a day, and return its commit."""
    os.chdir(home)
    night = runner.run(Home.here(), "open", day=date(2025, 1, day))
    assert isinstance(night, Night)
    if failed:
        (records.RUN / f"{failed}.error").write_text("no room\n")
    else:
        records.write(promotion(champion=0, challenger=1), records.RUN)
        records.write(
            minimal_training(num_samples=8, elapsed_s=60, cost_usd=3.5),
            records.RUN,
        )
        records.write(Release(version=1, replaced=0, night=night.id), records.RUN)
    runner.run(Home.here(), "close")
    return branch.ledger_tip(Home.here())


@pytest.mark.slow
def test_nights_failures_rollbacks_and_dollars_are_counted_once_and_anew_where_the_ledger_is_cut_back(
    repository: Path,
) -> None:
    metrics = NightMetrics("m", Home(repository))
    assert sample(metrics, 'nights_total{model="m",verdict="promote"}') == 0
    first = close(repository, 1)
    for _ in range(2):
        assert sample(metrics, 'nights_total{model="m",verdict="promote"}') == 1
    assert sample(metrics, 'night_cost_usd_total{model="m"}') == 3.5
    assert sample(metrics, 'night_events_total{kind="over budget",model="m"}') == 1
    opened = runner.run(Home.here(), "open", day=date(2025, 1, 2))
    assert isinstance(opened, Night)
    assert sample(metrics, 'night_open{model="m",stage="ingest"}') == 1
    assert sample(metrics, 'night_deadline_timestamp_seconds{model="m"}') == opened.decide_until.timestamp()
    tip = close(repository, 2, failed="train")
    assert sample(metrics, 'night_open{model="m",stage="ingest"}') is None
    assert sample(metrics, 'nights_total{model="m",verdict="failed"}') == 1
    assert sample(metrics, 'night_failures_total{model="m",stage="train"}') == 1
    release, verdict = Release(version=1, replaced=2, night="2025-01-01"), records.read(Verdict, records.RUN)
    event = night_events.rolled_back(release, by="ann", reason="worse", at=opened.started_at)
    ledger.commit_rollback(Home.here(), first, release, verdict, event, after=tip, message="back")
    assert sample(metrics, 'rollbacks_total{model="m"}') == 1
    assert sample(metrics, 'nights_total{model="m",verdict="promote"}') == 1  # the rollback is no night
    branch.move_to(Home.here(), first, expected=branch.ledger_tip(Home.here()), message="restored")
    assert sample(metrics, 'rollbacks_total{model="m"}') == 0
    assert sample(metrics, 'nights_total{model="m",verdict="promote"}') == 1


@pytest.fixture
def late_night(home: Path) -> Iterator[None]:
    """A night that is open past its deadline, and waits for a person."""
    folder, now = make_night(home, 9, weight=1.0), datetime.now(UTC)
    night = records.read(Night, folder / records.RUN)
    late = replace(night, started_at=now - timedelta(hours=3), decide_until=now - timedelta(hours=1))
    asked = promotion(champion=2, challenger=3, approve_until=now + timedelta(hours=1))
    for record in (late, asked):
        records.write(record, folder / records.RUN)
    yield
    subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=home, check=True)


@pytest.fixture
def prometheus(router: Running, late_night: None, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that has read the router twice and evaluated the alerts."""
    if PROMETHEUS is None:
        pytest.skip("no Prometheus here; install Debian's package prometheus")
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    config = YAML(typ="safe").load(MONITORING / "prometheus.yml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [router.url.removeprefix("http://")]}]
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [PROMETHEUS, f"--web.listen-address={address}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--config.file={tmp_path}/prometheus.yml"], stderr=log)
    try:
        until(lambda: asked(address, "query", query="count_over_time(daybreak_champion[1m]) > 1"))
        until(lambda: all(rule["lastEvaluation"] > "0002" for rule in rules_of(address)))
        yield address
    finally:
        process.terminate()
        process.wait()


def asked(address: str, path: str, **options: str) -> Any:
    """What Prometheus answers; "" while it does not."""
    try:
        answer = requests.get(f"http://{address}/api/v1/{path}", params=options, timeout=300)
    except requests.ConnectionError:
        return ""
    if answer.status_code == requests.codes.unavailable:  # it starts
        return ""
    body = answer.json()
    assert answer.status_code == requests.codes.ok, body
    data = body.get("data", {})
    return data.get("result", data)


def rules_of(address: str) -> list[dict[str, Any]]:
    groups = asked(address, "rules")["groups"]
    return [rule for group in groups for rule in group["rules"]]


# Panels that are empty in a home whose nights nobody failed and whose router nobody asks much.
EMPTY = {
    "Nights that failed in a week, by stage",
    "P99 until an answer is ready",
    "Rows of the newest night",
    "Decided before the deadline",
}


@pytest.mark.slow
def test_every_query_of_the_dashboard_and_the_alerts_is_answered_by_a_real_prometheus(
    prometheus: str,
) -> None:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    assert len({panel["title"] for panel in panels}) == len(panels) > 10
    for panel in panels:
        for target in panel["targets"]:
            query = target["expr"].replace("$model", ".*").replace("$__rate_interval", "1m")
            answer = asked(prometheus, "query", query=query)
            assert answer or panel["title"] in EMPTY, (panel["title"], query)
            assert all(one["metric"]["model"] == "daybreak" for one in answer)
    rules = {rule["name"]: rule for rule in rules_of(prometheus)}
    assert {rule["health"] for rule in rules.values()} == {"ok"}
    firing = {name for name, rule in rules.items() if rule["state"] == "firing"}
    assert firing == {"DaybreakNightLate", "DaybreakPersonIsWaitedFor"}
    (alert,) = rules["DaybreakNightLate"]["alerts"]
    assert alert["annotations"]["summary"] == "A night of daybreak is open past its own deadline"

"""A team that serves by itself: a real ledger, MLflow and log; its servers and users are played here."""

import itertools
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from daybreak.contract import params
from daybreak.contract.errors import NotYet
from daybreak.contract.record_types import Night, Verdict
from daybreak.extensions.live_test import own_serving
from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.extensions.router import assigner
from daybreak.extensions.router.assigner import Assigner
from daybreak.gate import watch
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, open_log
from tests.extensions.live_test.test_live_test import begin, over
from tests.extensions.router.moves import pass_time
from tests.extensions.router.running import running
from tests.test_docs import FENCE, ROOT
from tests.toy.nights import PARAMS, halfway
from tests.toy.stages import gate_night, promote_night

pytestmark = [pytest.mark.slow]
METRIC = "metric: {name: revenue, low: 0, high: 10, margin: 0.3}"
TEXT = PARAMS.replace(
    "smoke_test: {samples: 0}",
    "smoke_test: {samples: 0}\ngate: {scores: live}\n"
    f"live_test: {{ramp: [0.05, 0.5], ramp_users: 60, ramp_hours: 0, outcome_hours: 0.01, {METRIC}OWN}}",
)
CROWD = itertools.count(0, 10**6)


class Team:
    """Servers of a team: who comes meets the version that the assigner names, and spends by it."""

    def __init__(self, home: Path) -> None:
        self.url = f"sqlite:///{home / 'var' / 'serving.db'}"
        self.assigner, self.log = Assigner(self.url), open_log(self.url)
        self.file = home / "shown.jsonl"

    def come(self, number: int, spends: dict[int, float], **more: Any) -> list[dict[str, Any]]:
        """Rows of so many new users, a minute ago, an hour after the last move; by what a version earns."""
        pass_time(self.log, 3600)
        first, start = next(CROWD), time.time() - 90
        draw = np.random.default_rng(first)
        rows = []
        for place in range(number):
            user = str(first + place)
            version = self.assigner.assign(user).version
            value = float(np.clip(draw.normal(spends.get(version, 5.0), 1.5), 0, 10))
            at = datetime.fromtimestamp(start + place * 1e-3, UTC).isoformat()
            rows.append({"user": user, "version": version, "time": at, "metric": value, **more})
        return rows

    def deliver(self, rows: list[dict[str, Any]]) -> None:
        """Append rows to the file that each look reads."""
        with self.file.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def team(home: Path, release: Any, monkeypatch: pytest.MonkeyPatch) -> Team:
    """A team whose champion is version 1, and that no router serves."""
    monkeypatch.setattr(assigner, "READ_S", 0.0)
    made = Team(home)
    release(0, 1.0)
    made.deliver(made.come(200, {}))
    return made


def night_of(home: Path, *, file: Path | None = None) -> Night:
    """A night before the gate, with users judged by the team's own reports."""
    plug = f', observations: {{use: "daybreak:Files", url: "{file}"}}' if file else ""
    return begin(home, 1, text=TEXT.replace("OWN", plug))


def until_decided(come: Callable[[], None], log: Log) -> tuple[Verdict, list[float]]:
    """Ask and let users come in turn, until there is a verdict; the shares there were."""
    shares = []
    for _ in range(12):
        halfway()
        try:
            return gate_night(), shares
        except NotYet as wait_reason:
            assert "no router" not in str(wait_reason)
            shares.append(log.traffic.read().share)
            come()
    raise AssertionError("the gate never decided")


def test_a_better_challenger_is_promoted_by_a_file_with_no_router_anywhere(
    home: Path, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = night_of(home, file=team.file)
    verdict, shares = until_decided(lambda: team.deliver(team.come(1500, {2: 6.0})), team.log)
    assert verdict.action == "promote", verdict.reason
    assert set(shares) == {0.05, 0.5}
    assert verdict.live is not None
    assert verdict.live.effect.low > 0.5
    assert verdict.effect.mean == pytest.approx(1.0, abs=0.3)
    assert "proven no worse than the champion by the margin 0.3" in verdict.reason
    assert [check.name for check in verdict.live.checks] == [
        "arms as drawn",
        "errors",
        "latency",
        "returning users",
        "labels",
        "score",
    ]
    counted = len(list(team.log.exposures.of(night.id)))
    assert (
        own_serving.read(team.log, params.load(Path()).section(LiveTestParams), now=datetime.now(UTC))
        > counted - 1
    )
    assert len(list(team.log.exposures.of(night.id))) == counted
    for limit in (
        "LOAD_S",
        "SHOW_S",
    ):  # a promotion that waited for routers would last longer than a test may
        monkeypatch.setattr(f"daybreak.extensions.router.routers.{limit}", 3600.0)
    assert promote_night().version == 2
    assert team.assigner.assign("anybody").version == 2


def test_a_harmful_challenger_is_stopped(home: Path, team: Team) -> None:
    night_of(home, file=team.file)
    verdict, shares = until_decided(lambda: team.deliver(team.come(1500, {2: 3.0})), team.log)
    assert verdict.action == "reject"
    assert verdict.reason.startswith("live: stopped by score: revenue ")
    assert shares == [0.05]
    assert (team.log.traffic.read().challenger, team.assigner.assign("anybody").version) == (0, 1)


def test_a_challenger_that_fails_is_stopped_by_the_errors_that_the_team_reports(
    home: Path, team: Team
) -> None:
    night_of(home, file=team.file)

    def come() -> None:
        rows = team.come(1500, {})
        team.deliver([{**row, "error": "no answer" if row["version"] == 2 else ""} for row in rows])

    verdict, shares = until_decided(come, team.log)
    assert (verdict.action, shares) == ("reject", [0.05])
    assert "stopped by errors: the model did not answer 100 %" in verdict.reason


def test_where_the_team_assigns_otherwise_nothing_is_believed(home: Path, team: Team) -> None:
    night_of(home, file=team.file)

    def come() -> None:
        rows = team.come(400, {2: 6.0})
        team.deliver([{**row, "version": 1 + number % 2} for number, row in enumerate(rows)])

    verdict, _ = until_decided(come, team.log)
    assert verdict.action == "no data"
    assert "answers came from an arm that the user could not be in" in verdict.reason


def test_a_metric_that_comes_after_its_row_is_taken_in(home: Path, team: Team) -> None:
    night = night_of(home, file=team.file)
    with pytest.raises(NotYet):
        gate_night()
    rows = team.come(1500, {2: 3.0})
    team.deliver([{**row, "metric": None} for row in rows])
    halfway()
    with pytest.raises(NotYet, match="an outcome was told of 0 of"):
        gate_night()
    team.deliver(rows)
    halfway()
    assert gate_night().reason.startswith("live: stopped by score: revenue ")
    assert len(list(team.log.exposures.of(night.id))) == 1500


def test_a_malformed_row_holds_the_gate_and_ends_the_test_at_the_hourly_look(home: Path, team: Team) -> None:
    night = night_of(home, file=team.file)
    with pytest.raises(NotYet):
        gate_night()
    rows = team.come(100, {})
    team.deliver([*rows, {**rows[0], "user": "later", "version": 0}])
    with pytest.raises(NotYet, match=r"what users met cannot be read: live_test.observations, .*, row 301: "):
        gate_night()
    assert list(team.log.exposures.of(night.id)) == []
    os.chdir(home)
    (home / "params.yaml").write_text((home / "nights" / night.id / "params.yaml").read_text())
    seen = watch.watch(Home.here(), loaded := params.load(home), loaded.watch)
    assert "ended the experiment 2025-01-11: what users met cannot be read" in seen.reason
    assert team.log.traffic.read().challenger == 0
    os.chdir(home / "nights" / night.id)
    over()
    assert (gate_night().action, "row 301: version is 0" in gate_night().reason) == ("no data", True)


def test_the_example_of_the_docs_reports_to_a_router_by_which_a_challenger_is_promoted(
    home: Path, team: Team
) -> None:
    night = night_of(home)
    page = (ROOT / "docs" / "live-test.md").read_text()
    (example,) = [block for _, language, block in FENCE.findall(page) if language == "python"]
    settings = params.load(Path())
    with running(home, token="secret", limits=settings.section(LiveTestParams)) as router:
        authorized = {"headers": {"Authorization": "Bearer secret"}}
        names = {
            "url": team.url,
            "router": router.url,
            "time": time,
            "requests": requests,
            "token": "secret",
            "models": {1: lambda user: 5.0, 2: lambda user: 6.0},
        }
        exec(example, names)
        assert [one.version for one in team.log.exposures.of(None)] == [1, 1]

        def come() -> None:
            rows = team.come(1500, {2: 6.0})
            for start in range(0, len(rows), 1000):
                body = {"rows": rows[start : start + 1000]}
                assert router.post("observations", body, **authorized) == (200, {"kept": True})

        verdict, _ = until_decided(come, team.log)
        assert verdict.action == "promote", verdict.reason
        assert promote_night().version == 2
        assert router.get("health").json()["champion"] == 2
    assert len(list(team.log.exposures.of(night.id))) >= 3000


def test_before_anybody_met_anything_a_named_file_counts_as_serving(home: Path, release: Any) -> None:
    release(0, 1.0)
    file = home / "shown.csv"
    file.write_text("user,version,time,metric\n")
    night_of(home, file=file)
    with pytest.raises(NotYet, match="5% of users meet version 2; 0 have"):
        gate_night()
    assert (home / "var" / "serving.db").exists()


def test_a_file_that_is_missing_is_said_and_costs_nobody_the_champion(home: Path, team: Team) -> None:
    night_of(home, file=team.file)
    team.file.unlink()
    with pytest.raises(NotYet, match=r"what users met cannot be read: .*does not exist"):
        gate_night()
    over()
    assert gate_night().action == "no data"
    assert team.log.traffic.read().challenger == 0

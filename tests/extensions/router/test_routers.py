"""Routers that live follow promotions and rollbacks, or stop them with all as it was."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from daybreak.contract import params
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Release
from daybreak.extensions.care.audit import audit
from daybreak.extensions.router import routers
from daybreak.extensions.router.routers import Routers
from daybreak.rollout import rollback
from daybreak.rollout.targets import release_targets
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.live_servers import RouterState
from daybreak.storage.traffic_log import Log, open_log
from tests.extensions.router.homes import add_version
from tests.extensions.router.running import running
from tests.toy.nights import PARAMS

ANY = MlflowClient.__new__(MlflowClient)  # never asked here


def test_where_no_router_lives_the_traffic_is_what_counts(log: Log) -> None:
    target = Routers(Home.here(), log)
    target.prepare(Release(version=4, replaced=3))
    assert log.traffic.read().wanted == (4,)
    target.show(Release(version=4, replaced=3))
    assert (log.traffic.read().champion, log.traffic.read().ready, target.shown()) == (4, 0, 4)


def test_what_was_prepared_is_forgotten(log: Log) -> None:
    target = Routers(Home.here(), log)
    target.show(Release(version=3, replaced=0))
    target.prepare(Release(version=4, replaced=3))
    target.discard(Release(version=4, replaced=3))
    assert log.traffic.read().wanted == (3,)
    revision = log.traffic.read().revision
    target.discard(Release(version=4, replaced=3))
    assert log.traffic.read().revision == revision


def test_a_test_goes_on_when_its_champion_is_shown_again_and_ends_with_its_winner(log: Log) -> None:
    target = Routers(Home.here(), log)
    target.show(Release(version=3, replaced=0))
    log.traffic.change(lambda now: replace(now, challenger=4, share=0.05, experiment="a"))
    target.show(Release(version=3, replaced=0))
    assert (log.traffic.read().challenger, log.traffic.read().share) == (4, 0.05)
    target.prepare(Release(version=4, replaced=3))
    assert log.traffic.read().ready == 0  # it is loaded for the test
    target.show(Release(version=4, replaced=3))
    now = log.traffic.read()
    assert (now.champion, now.challenger, now.share, now.experiment) == (4, 0, 0.0, "")


def test_a_router_that_differs_is_seen(log: Log) -> None:
    target = Routers(Home.here(), log)
    target.show(Release(version=3, replaced=0))
    log.servers.beat(RouterState(id="one", champion=3))
    assert target.shown() == 3
    log.servers.beat(RouterState(id="two", champion=2))
    assert target.shown() == 2


def test_a_router_that_cannot_load_a_version_stops_it_before_anything_is_moved(log: Log) -> None:
    target = Routers(Home.here(), log)
    log.servers.beat(
        RouterState(id="one", champion=3, loaded=(3,), revision=9, fault="version 4: no such file")
    )
    with pytest.raises(ReleaseError, match="router one cannot load version 4: no such file"):
        target.prepare(Release(version=4, replaced=3))


def test_a_router_that_never_follows_is_named(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "LOAD_S", 0.1)
    monkeypatch.setattr(routers, "SHOW_S", 0.1)
    target, now = Routers(Home.here(), log), time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now - 11)  # its own clock is behind, which makes it no less alive
        log.servers.beat(RouterState(id="one", champion=3, loaded=(3,)))
    with pytest.raises(ReleaseError, match=r"not every router has loaded version 4 after 0.1 s: one has not"):
        target.prepare(Release(version=4, replaced=3))
    with pytest.raises(ReleaseError, match=r"not every router serves version 4 after 0.1 s: one has not"):
        target.show(Release(version=4, replaced=3))


def test_no_log_means_no_target(repository: Path) -> None:
    (repository / "params.yaml").write_text(PARAMS)
    assert [one.name for one in release_targets(Home.here(), ANY, "daybreak")] == ["MLflow's alias champion"]
    open_log(f"sqlite:///{repository / 'var' / 'serving.db'}").close()
    assert [one.name for one in release_targets(Home.here(), ANY, "daybreak")][1:] == ["the routers"]


@pytest.mark.slow
def test_a_promotion_and_a_rollback_reach_users_before_success_is_said(home: Path) -> None:
    settings = params.load(home)
    with running(home) as router:
        assert router.recommend("u1")["version"] == 2
        assert add_version(home, 3, weight=4.0) == 4
        assert router.recommend("u1", top=1) | {"exposure": ""} == {
            "items": ["4/u1/0"],
            "exposure": "",
            "version": 4,
        }
        assert rollback.rollback(Home.here(), settings.register_, reason="a test").version == 2
        assert router.recommend("u1")["version"] == 2
        [state] = router.log.servers.routers()
        assert (state.champion, state.fault) == (2, "")
        assert [
            check.text for check in audit(Home.here(), settings) if check.name == "targets" and not check.ok
        ] == []


@pytest.mark.slow
def test_the_first_promotion_reaches_a_router_that_waited_for_it(
    repository: Path,
) -> None:
    (repository / "params.yaml").write_text(PARAMS)
    with running(repository, ready=False) as router:
        assert router.get("health").status_code == 503
        add_version(repository, 0, weight=1.0)
        assert router.recommend("u1", top=1)["items"] == ["1/u1/0"]
    assert router.log.servers.routers() == ()
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"batcher", "writer", "model manager", "heartbeat"}
    with mlflow_client.session(Home.here()) as client:
        _, routers = release_targets(Home.here(), client, "daybreak")
        assert routers.shown() == 1

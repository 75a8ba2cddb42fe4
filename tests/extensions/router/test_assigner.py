import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from daybreak.extensions.router import assigner
from daybreak.extensions.router.assigner import Assigner
from daybreak.statistics.assignment import CHALLENGER, CHAMPION
from daybreak.storage.traffic_log import Log
from daybreak.storage.traffic_row import Traffic
from tests.extensions.router.running import Running, until

EXPERIMENT = "2025-01-12"
USERS = [f"u{number}" for number in range(100, 160)]


def test_a_user_meets_the_version_of_the_traffic_row(log: Log) -> None:
    log.traffic.set(Traffic(champion=3, challenger=4, share=0.5, experiment=EXPERIMENT))
    made = Assigner(str(log.url))
    drawn = [made.assign(user) for user in USERS]
    assert {(one.arm, one.version) for one in drawn} == {(CHAMPION, 3), (CHALLENGER, 4)}
    assert [one.unit for one in drawn] == [log.unit_of(user) for user in USERS]
    assert {(one.experiment, one.share) for one in drawn} == {(EXPERIMENT, 0.5)}
    made.close()


def test_a_move_is_followed_and_the_row_is_not_read_for_each_user(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.traffic.set(Traffic(champion=3))
    made = Assigner(str(log.url))
    log.traffic.change(lambda now: replace(now, champion=4))
    assert made.assign("u1").version == 3
    began = time.process_time()
    for number in range(10_000):
        made.assign(str(number))
    assert (time.process_time() - began) / 10_000 < 1e-3  # a hash, far below the time of any answer
    monkeypatch.setattr(assigner, "READ_S", 0.0)
    assert made.assign("u1").version == 4
    made.close()


def test_users_meet_what_they_met_where_the_log_is_gone(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assigner, "READ_S", 0.0)
    log.traffic.set(Traffic(champion=3))
    made = Assigner(str(log.url))
    made.close()
    log.close()
    for path in tmp_path.glob("var/*"):
        path.unlink()
    (tmp_path / "var" / "serving.db").write_text("no database any more" * 100)
    assert made.assign("u1").version == 3
    made.close()


@pytest.mark.slow
def test_it_agrees_with_the_router_on_every_user(router: Running) -> None:
    traffic = Traffic(champion=2, challenger=3, share=0.5, experiment=EXPERIMENT)
    moved = router.log.traffic.change(lambda now: replace(traffic, revision=now.revision))
    until(lambda: router.log.servers.routers()[0].revision >= moved.revision)
    made = Assigner(str(router.log.url))
    for user in USERS:
        ours, answer = made.assign(user), router.recommend(user)
        assert ours.version == answer["version"]
        assert (ours.experiment, ours.share) == (EXPERIMENT, 0.5)
        assert router.post("assignment", {"user": user}) == (200, asdict(ours))
    made.close()
    status, answer = router.post("assignment", {"user": 1})
    assert (status, answer["error"]) == (422, "user is 1; name one by 1 to 200 characters")
    router.log.traffic.change(lambda now: Traffic(revision=now.revision))  # as other tests expect it

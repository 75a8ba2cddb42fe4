"""Promotion and rollback over ledger, MLflow and an endpoint of Vertex AI, through the stages."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import params, records
from daybreak.contract.errors import NotYet, ReleaseError
from daybreak.contract.record_types import Champion, Evaluation, Night, Release, Verdict, Version
from daybreak.contract.sections import Params
from daybreak.evaluation.scores import SCORES, read_scores
from daybreak.extensions.care.audit import audit
from daybreak.extensions.live_test.by_users import ByUsers
from daybreak.extensions.router.deployed import POLL_S
from daybreak.extensions.vertex.endpoint import CONTAINER, OnVertex
from daybreak.gate import judge, watch
from daybreak.night import closing
from daybreak.registry import aliases
from daybreak.rollout import rollback, saga, targets
from daybreak.rollout.prune import prune
from daybreak.rollout.targets import endpoint
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, open_log
from tests.backends.rented import wait
from tests.extensions.vertex.endpoints import (
    MODEL,
    QUICK,
    arguments,
    asked,
    asked_for,
    until_done,
)
from tests.rollout.test_killed_saga import Killed as KilledAtAStep
from tests.rollout.test_killed_saga import killing
from tests.toy.nights import PARAMS, halfway, make_night
from tests.toy.stages import judge_night, promote_night

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def deployed(service: Any) -> list[str]:
    """Ids of what is deployed anywhere."""
    return sorted(one.id for one in service.endpoints.deployed())


@pytest.fixture
def home_with_endpoint(home: Path, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository of nights, served on Vertex AI; its containers start at once."""
    text = json.dumps({key: value for key, value in arguments(service, tmp_path).items() if key != "retry"})
    endpoint = f'{{"use": "daybreak:Endpoint", {text[1:]}'
    text_with_endpoint = f'{PARAMS}serving: {{"endpoint": {endpoint}}}\n'
    monkeypatch.setattr("tests.toy.nights.PARAMS", text_with_endpoint)
    (home / "params.yaml").write_text(text_with_endpoint)
    monkeypatch.setattr("daybreak.extensions.vertex.endpoint.RetryPolicy", lambda: QUICK)
    return home


def standing(service: Any) -> tuple[int, int, int, int]:
    """What ledger, alias, endpoint and a user's request say."""
    now = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    with mlflow_client.session(Home.here()) as client:
        (target,) = (
            one for one in targets.release_targets(Home.here(), client, MODEL) if hasattr(one, "split")
        )
        (answer,) = asked(service, target)
        return now.version if now else 0, aliases.alias(client, MODEL), target.shown(), answer


def prepared(home: Path, number: int) -> None:
    """A night that has been judged, ready for `promote`."""
    os.chdir(
        make_night(
            home, number, weight=1.0, champion=ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
        )
    )
    judge_night()


def close() -> None:
    night = records.read(Night, records.RUN)
    ledger.commit_night(Home.here(), night, message=f"{night.day}: promote")


def faults(settings: Params) -> list[str]:
    return [f"{check.name}: {check.text}" for check in audit(Home.here(), settings) if not check.ok]


def test_promotion_and_rollback_move_ledger_alias_and_endpoint_together_though_killed(
    home_with_endpoint: Path, service: Any
) -> None:
    settings = params.load(home_with_endpoint)
    prepared(home_with_endpoint, 0)
    assert until_done(promote_night)
    close()
    prepared(home_with_endpoint, 1)
    for at in range(1, 60, 3):  # killed at later and later steps on its way
        with killing(at), suppress(KilledAtAStep, NotYet):
            promote_night()
            break
    assert at > 6
    close()
    assert standing(service) == (2, 2, 2, 2)
    assert len(service.endpoints.started) == 2
    os.chdir(home_with_endpoint)
    assert (
        until_done(lambda: rollback.rollback(Home.here(), settings.register_, reason="a test")) == []
    )  # its spare is deployed: at once
    assert standing(service) == (1, 1, 1, 1)
    assert deployed(service) == ["1"]
    assert faults(settings) == []
    assert watch.watch(Home.here(), settings, settings.watch).outcome != "rolled back"

    with mlflow_client.session(Home.here()) as client:
        (vertex,) = (
            one for one in targets.release_targets(Home.here(), client, MODEL) if hasattr(one, "split")
        )
        service.endpoints.served[vertex.deployments.endpoint].endpoint.traffic_split = {}
    assert faults(settings) == ["targets: Vertex AI's endpoint of daybreak shows 0, the ledger says 1"]
    assert (
        "Vertex AI's endpoint of daybreak showed version 0, moved to 1"
        in watch.watch(Home.here(), settings, settings.watch).reason
    )
    assert standing(service) == (1, 1, 1, 1)


def test_a_promotion_waits_for_its_endpoint_and_a_rollback_takes_its_place(
    home_with_endpoint: Path, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = params.load(home_with_endpoint)
    for number in (0, 1):
        prepared(home_with_endpoint, number)
        until_done(promote_night)
        close()
    prepared(home_with_endpoint, 2)
    service.operations.takes_s = {"deploy_model": 0.6}
    with monkeypatch.context() as patch:
        patch.setattr(saga, "PREPARE_LIMIT", timedelta(0))
        with pytest.raises(ReleaseError, match=r"is not ready at .* UTC: .*; nothing was changed"):
            promote_night()
    assert not Home.here().release_journal.path.exists()
    with pytest.raises(NotYet):
        promote_night()
    until = Home.here().release_journal.read()["until"]
    assert datetime.fromisoformat(until) > datetime.now(UTC)
    assert watch.watch(Home.here(), settings, settings.watch).outcome != "rolled back"
    assert Home.here().release_journal.path.exists()  # the hourly look lets it wait
    assert standing(service)[:3] == (2, 2, 2)
    until_done(lambda: rollback.rollback(Home.here(), settings.register_, reason="a test"))
    assert standing(service) == (1, 1, 1, 1)
    with pytest.raises(ReleaseError):  # it was decided against version 2
        until_done(promote_night)
    os.chdir(home_with_endpoint)
    for _ in range(5):
        assert standing(service) == (1, 1, 1, 1)
    assert not Home.here().release_journal.path.exists()
    assert deployed(service) == ["1"]


def test_the_images_own_container_answers_as_the_version_was_judged(
    home_with_endpoint: Path, service: Any
) -> None:
    prepared(home_with_endpoint, 0)
    text = (
        (home_with_endpoint / "params.yaml")
        .read_text()
        .replace("tests.backends.fake.answering", CONTAINER[-1])
    )
    (home_with_endpoint / "params.yaml").write_text(text)
    wait(lambda: is_done(promote_night), timeout_s=600)
    with mlflow_client.session(Home.here()) as client:
        (target,) = (
            one for one in targets.release_targets(Home.here(), client, MODEL) if hasattr(one, "split")
        )
        answers = asked_for(service.url, target, [{"sample": number} for number in range(5)])
    scores = read_scores(SCORES)
    assert scores
    assert answers == pytest.approx(list(scores["challenger"][:5]), abs=1e-6)
    (container,) = next(iter(service.endpoints.served.values())).containers.values()
    assert b"instances are missing" in refused(container, b'{"instances": [7]}')
    assert b"samples are numbered from 0 to 199" in refused(container, b'{"instances": [{"sample": 200}]}')


def served_from(home: Path, service: Any) -> tuple[OnVertex, Any, Path]:
    """The endpoint after a promotion, the model that it serves as registered, and the folder of its files."""
    prepared(home, 0)
    wait(lambda: is_done(promote_night), timeout_s=600)
    with mlflow_client.session(Home.here()) as client:
        (target,) = (
            one for one in targets.release_targets(Home.here(), client, MODEL) if hasattr(one, "split")
        )
    ((model,),) = service.models.models.values()
    return target, model, Path(model.artifact_uri)


def test_what_a_deployed_version_starts_from_is_put_back_when_something_removes_it(
    home_with_endpoint: Path, service: Any
) -> None:
    target, _, folder = served_from(home_with_endpoint, service)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in files:
        path.unlink()
    assert target.shown() == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_what_no_version_starts_from_any_more_is_pruned_and_all_else_stays(
    home_with_endpoint: Path, service: Any
) -> None:
    target, _, folder = served_from(home_with_endpoint, service)
    for name in ("version-7-gone", "version-8-fresh"):
        (folder.parent / name).mkdir()
        (folder.parent / name / "x").write_bytes(b"xyz")
    long_ago = time.time() - timedelta(days=15).total_seconds()
    for path in folder.parent.rglob("*"):
        if "version-8-fresh" not in path.parts:
            os.utime(path, (long_ago, long_ago))
    assert target.unneeded({1}) == {"version-7-gone": 3}
    assert target.unneeded(set()) == {"version-7-gone": 3}  # the other one is deployed
    loaded = params.load(home_with_endpoint)
    freed = list(prune(Home.here(), loaded.night, loaded.register_, loaded.serving))[-1]
    assert (freed.num, freed.num_bytes) == (1, 3)
    left = {path.name for path in folder.parent.iterdir() if any(path.iterdir())}
    assert left == {folder.name, "arrays of 0", "version-8-fresh"}


def is_done(call: Any) -> bool:
    try:
        call()
    except NotYet:
        return False
    return True


def refused(container: Any, body: bytes) -> bytes:
    from tests.backends.fake.faults import Refusal

    with pytest.raises(Refusal) as refusal:
        container.ask(body)
    return str(refusal.value).encode()


def test_a_night_that_does_not_promote_leaves_nothing_deployed_that_costs(
    home_with_endpoint: Path, service: Any
) -> None:
    prepared(home_with_endpoint, 0)
    until_done(promote_night)
    close()
    prepared(home_with_endpoint, 1)
    settings = params.load(Path())
    settings = settings.model_copy(update={"gate": settings.gate.model_copy(update={"scores": "live"})})
    made = records.read(Version, records.RUN)
    release = Release(
        version=2,
        replaced=1,
        model_digest=made.model_digest,
        files_digest=made.files_digest,
        files=made.files,
    )
    with vertex() as there:
        until_done(lambda: there.prepare(release))
        assert deployed(service) == ["1", "2"]
        closing._end_experiment(Home.here(), records.read(Night, records.RUN), settings)
        until_done(lambda: only(there, service, "1"))


LIVE = (
    "smoke_test: {samples: 0}\ngate: {scores: live, min_samples: 20, margin: 0.3}\n"
    "live_test: {ramp: [0.1, 0.5], ramp_users: 20, ramp_hours: 0, outcome_hours: 0.0003, max_p99_rise_s: 60}"
)


@pytest.fixture
def night_with_users(home_with_endpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """A champion that serves by the image's own container; the log of who meets whom."""
    home = home_with_endpoint
    kept = open_log(f"sqlite:///{home / 'var' / 'serving.db'}")
    (tmp_path / "log").write_text(f"{kept.url}\n")
    text = (home / "params.yaml").read_text().replace("tests.backends.fake.answering", CONTAINER[-1])
    text = text.replace('"bucket"', f'"log": "{tmp_path / "log"}", "bucket"')
    monkeypatch.setattr("tests.toy.nights.PARAMS", text)
    (home / "params.yaml").write_text(
        text.replace("smoke_test: {samples: 0}", "live_test: {max_p99_rise_s: 60}")
    )
    prepared(home, 0)
    wait(lambda: is_done(promote_night), timeout_s=600)
    close()
    monkeypatch.setattr("daybreak.extensions.vertex.endpoint.STALE_S", 2.0)
    monkeypatch.setattr("tests.toy.nights.PARAMS", text.replace("smoke_test: {samples: 0}", LIVE))
    with vertex() as there:
        come(kept, there, 30)
    return kept


@contextmanager
def vertex() -> Iterator[OnVertex]:
    with endpoint(Home.here(), MODEL) as target:
        assert target is not None
        yield target


def come(log: Log, there: OnVertex, number: int, taken: Callable[[dict[str, Any]], list[str]] = list) -> None:
    """Let requests come to the endpoint, and tell it what was taken of each answer."""
    for first in range(0, number, 10):
        users = [{"user": f"u{100 + place}"} for place in range(first, first + 10)]
        answers = [asked_for(there.config.address, there, [user])[0] for user in users]
        outcomes = [
            {**user, "exposure": one["exposure"], "items": taken(one)}
            for user, one in zip(users, answers, strict=True)
        ]
        assert asked_for(there.config.address, there, outcomes) == [{"kept": True}] * len(outcomes)
    wait(lambda: sum(1 for _ in log.exposures.of(None)) >= number, timeout_s=300)


@pytest.mark.parametrize("liked", [1, 2])
def test_users_of_the_endpoint_judge_a_challenger_and_what_they_refuse_is_taken_down(
    night_with_users: Log, home_with_endpoint: Path, service: Any, liked: int
) -> None:
    log = night_with_users
    folder = make_night(
        home_with_endpoint,
        1,
        weight=1.0,
        champion=ledger.champion_at(Home.here(), branch.ledger_tip(Home.here())),
    )
    os.chdir(folder)
    night = replace(records.read(Night, records.RUN), decide_until=datetime.now(UTC) + timedelta(hours=2))
    records.write(night, records.RUN)
    with pytest.raises(NotYet, match="Vertex AI's endpoint of daybreak: upload 2 has begun"):
        judge_night()
    assert (log.traffic.read().challenger, log.traffic.read().share) == (2, 0.0)
    shares, until = [], time.monotonic() + 500
    while time.monotonic() < until:
        try:
            ask_gate()
        except NotYet as wait_reason:
            with vertex() as there:
                split = dict(there.deployments.served().traffic_split)
                shares.append(split.get("2", 0))
                loaded = params.load(home_with_endpoint)
                assert watch.watch(Home.here(), loaded, loaded.watch).outcome != "rolled back"
                assert dict(there.deployments.served().traffic_split) == split  # the watch lets it go on
                if shares[-1]:
                    wait(lambda: followed(log, there), timeout_s=300)
                    come(log, there, 60, taken=lambda answer: first_of(answer, liked))
                    halfway()
                else:
                    assert "has " in str(wait_reason)
                    time.sleep(0.2)
        else:
            break
    verdict = records.read(Verdict, records.RUN)
    assert verdict.action == ("promote" if liked == 2 else "reject"), verdict.reason
    assert sorted({*shares} - {0}) in ([10], [10, 50])
    assert verdict.live is not None
    seen = list(log.exposures.of(night.id))
    assert {one.arm: one.version for one in seen} == {"champion": 1, "challenger": 2}
    assert len({one.unit for one in seen}) == len(seen)  # each request is drawn anew
    assert (log.traffic.read().champion, log.traffic.read().challenger) == (1, 0)
    with vertex() as there:
        assert dict(there.deployments.served().traffic_split) == {"1": 100}
        if liked == 1:
            until_done(lambda: only(there, service, "1"))
            return
    assert deployed(service) == ["1", "2"]
    promote_night()  # it is deployed: at once
    with vertex() as there:
        assert there.shown() == 2
        assert asked_for(service.url, there, [{"user": "u1"}])[0]["version"] == 2
    assert len(service.endpoints.started) == 2


def first_of(answer: dict[str, Any], liked: int) -> list[str]:
    """Users take the first item of the version that they like, and nothing of the other's."""
    return [answer["items"][0] if answer["version"] == liked else "nothing of it"]


def followed(log: Log, there: OnVertex) -> bool:
    """Whether containers count by now."""
    revision, since = log.servers.followed(there.deployments.endpoint)
    return revision == log.traffic.read().revision and time.time() > since + 2 * POLL_S


def only(there: OnVertex, service: Any, version: str) -> None:
    there.shown()
    if deployed(service) != [version]:
        raise NotYet(str(deployed(service)))


def ask_gate() -> None:
    inputs = [records.read(kind, records.RUN) for kind in (Night, Evaluation, Version)]
    records.write(
        judge.gate(
            *inputs,
            records.find(Champion, records.RUN),
            params.load(Path()),
            home=Home.here(),
            live=ByUsers(),
        ),
        records.RUN,
    )  # type: ignore[arg-type]

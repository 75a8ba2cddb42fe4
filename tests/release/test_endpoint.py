"""Serving on Vertex AI, on loopback with real containers: whatever goes wrong, one deployment a version."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline import ledger, params, records
from pipeline.errors import NotYet, ParamsError, ReleaseError
from pipeline.params import Params
from pipeline.records import Night
from pipeline.release import aliases, gate, registry, saga, tracking
from pipeline.release.audit import audit
from pipeline.release.endpoint import CONTAINER
from pipeline.release.scores import SCORES, read_scores
from tests.backends.rented import wait
from tests.release.conftest import judge_night, promote_night
from tests.release.endpoints import (
    MODEL,
    QUICK,
    Killed,
    arguments,
    asked,
    asked_for,
    follower,
    killed_at,
    make_versions,
    until_done,
)
from tests.release.folders import FIRST, PARAMS, make_model, make_night
from tests.release.test_saga import Killed as KilledAtAStep
from tests.release.test_saga import killing

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def trouble(how: Any, **told: Any) -> Any:
    from tests.backends.fake_vertex import Trouble

    return Trouble(how, **told)


@pytest.fixture
def client(repository: Path) -> Iterator[Any]:
    """A client of the repository's MLflow."""
    with tracking.session() as found:
        yield found


def deployed(service: Any) -> list[str]:
    """Ids of what is deployed anywhere."""
    return sorted(one.id for one in service.endpoints.deployed())


def test_a_version_is_registered_deployed_and_shown_and_both_registries_tell_of_each_other(
    client: Any, service: Any, tmp_path: Path
) -> None:
    first, second = make_versions(client, tmp_path, 2)
    told = until_done(lambda: follower(service, tmp_path, client).prepare(first))
    assert [sentence.partition(": ")[2] for sentence in told][:3] == [
        "make the endpoint has begun", "upload 1 has begun", "deploy 1 has begun",
    ]  # fmt: skip
    here = follower(service, tmp_path, client)
    assert (here.shown(), deployed(service)) == (0, ["1"])
    here.show(first)
    assert (here.shown(), asked(service, here)) == (1, [1])
    until_done(lambda: here.prepare(second))
    assert (here.shown(), deployed(service), asked(service, here)) == (1, ["1", "2"], [1])
    here.show(second)
    assert (here.shown(), asked(service, here)) == (2, [2])

    (model,) = service.models.models.values()
    assert [dict(one.labels)["version"] for one in model] == ["1", "2"]
    assert dict(model[1].labels)["night"] == "2026-01-02"
    assert client.get_model_version(MODEL, "2").tags["vertex_model"] == f"{here.there.model}@2"
    where = Path(model[1].artifact_uri)
    assert json.loads((where / "artifacts/model/model.json").read_text()) == {"version": 2}
    assert service.operations.begun == ["create_endpoint", *["upload_model", "deploy_model"] * 2]


@pytest.mark.parametrize("how", ["refuse", "cut after"])
@pytest.mark.parametrize("method", ["create_endpoint", "upload_model", "deploy_model", "update_endpoint"])
def test_whatever_becomes_of_a_request_there_is_one_deployment_of_a_version(
    client: Any, service: Any, tmp_path: Path, method: str, how: Any
) -> None:
    (first,) = make_versions(client, tmp_path, 1)
    service.operations.takes_s = {"deploy_model": 0.5}
    with service.troubled(trouble(how), trouble(how), method=method):
        until_done(lambda: follower(service, tmp_path, client).prepare(first), most=2000)
        until_done(lambda: follower(service, tmp_path, client).show(first))
    assert follower(service, tmp_path, client).shown() == 1
    assert len(service.endpoints.started) == 1
    assert Counter(service.operations.begun)["upload_model"] == 1


def test_killed_at_any_line_a_version_is_deployed_once_and_ends_up_serving(
    client: Any, service: Any, tmp_path: Path
) -> None:
    releases = make_versions(client, tmp_path, 10)

    def serve(release: Any) -> None:
        until_done(lambda: follower(service, tmp_path, client, spare=False).prepare(release), most=2000)
        until_done(lambda: follower(service, tmp_path, client, spare=False).show(release))

    serve(releases[0])
    counted = [0]
    with killed_at(0, counted=counted):
        serve(releases[1])
    num_points, num_killed = len(releases) - 2, 0
    for number, release in enumerate(releases[2:]):
        line = 1 + number * counted[0] // num_points
        try:
            with killed_at(line, counted=[0]):
                serve(release)  # done before that line where the container was quick
        except Killed:
            num_killed += 1
        serve(release)
        assert follower(service, tmp_path, client, spare=False).shown() == release.champion, line
    assert len(service.endpoints.served) == 1
    assert num_killed >= num_points / 2
    versions = Counter(one.rpartition("@")[2] for one in service.endpoints.started)
    assert set(versions.values()) == {1}
    assert len(versions) == len(releases)
    until_done(lambda: none_but(service, follower(service, tmp_path, client), len(releases)))


def none_but(service: Any, here: Any, version: int) -> None:
    here.shown()  # each look goes on with what is to be taken down
    if deployed(service) != [str(version)]:
        raise NotYet(str(deployed(service)))


def test_while_a_deployment_goes_on_nobody_waits_and_the_sentence_says_for_how_long(
    client: Any, service: Any, tmp_path: Path
) -> None:
    (first,) = make_versions(client, tmp_path, 1)
    service.operations.takes_s = {"deploy_model": 3600.0}
    told = []
    for _ in range(8):
        with pytest.raises(NotYet) as sentence:
            follower(service, tmp_path, client).prepare(first)
        told.append(str(sentence.value))
    assert told[-1].startswith(f"Vertex AI's endpoint of {MODEL}: deploy 1 has gone on for ")
    assert Counter(service.operations.begun)["deploy_model"] == 1
    with service.troubled(*[trouble("refuse")] * 999), pytest.raises(NotYet, match="does not answer"):
        follower(service, tmp_path, client).prepare(first)


def test_a_deployment_that_fails_late_is_begun_again_unless_it_is_the_containers_fault(
    client: Any, service: Any, tmp_path: Path
) -> None:
    first, second = make_versions(client, tmp_path, 2)
    service.operations.fails = {"deploy_model": "Internal error occurred."}
    told = until_done(lambda: follower(service, tmp_path, client).prepare(first))
    assert any("deploy 1 failed (Internal error occurred), and is begun again" in one for one in told)
    assert deployed(service) == ["1"]
    broken = ("python", "-c", "import sys; sys.exit('no model here')")
    with pytest.raises(ReleaseError, match=r"unexpectedly: no model here\); look at its log"):
        until_done(lambda: follower(service, tmp_path, client, command=broken).prepare(second), most=2000)
    assert deployed(service) == ["1"]


def test_traffic_is_shared_in_whole_percent_among_what_is_deployed(
    client: Any, service: Any, tmp_path: Path
) -> None:
    first, second = make_versions(client, tmp_path, 2)
    here = follower(service, tmp_path, client)
    until_done(lambda: here.prepare(first))
    here.show(first)
    with pytest.raises(ReleaseError, match=r"version 2 of daybreak is not deployed, so it cannot get 25 %"):
        here.share(1, 2, 0.25)
    until_done(lambda: here.prepare(second))
    here.share(1, 2, 0.25)
    assert here.shown() == 1
    found = Counter(asked(service, here, times=80))
    assert 5 <= found[2] <= 40
    assert found.total() == 80
    with pytest.raises(ParamsError, match=r"a share of 0\.005 is no whole percent"):
        here.share(1, 2, 0.005)
    here.share(1, 0, 0.0)
    assert dict(here.there.served().traffic_split) == {"1": 100}
    with pytest.raises(ReleaseError, match="does not add up to 100"), here._asking():
        here.there.split({"1": 90, "2": 5})


def test_what_is_not_to_serve_is_taken_down_even_if_it_comes_up_later(
    client: Any, service: Any, tmp_path: Path
) -> None:
    first, second = make_versions(client, tmp_path, 2)
    here = follower(service, tmp_path, client, spare=False)
    until_done(lambda: here.prepare(first))
    here.show(first)
    service.operations.takes_s = {"deploy_model": 0.3}
    with pytest.raises(NotYet, match="deploy 2 has begun"):
        while True:
            try:
                here.prepare(second)
            except NotYet as told:
                if "deploy 2" in str(told):
                    raise
    here.forget(second)
    while service.operations.begun[-1] != "undeploy_model":
        assert here.shown() == 1
    assert here.shown() == 1
    assert (deployed(service), here.book.unwanted()) == (["1"], [])
    until_done(lambda: here.prepare(second))  # it may come back
    here.show(second)
    assert here.shown() == 2
    assert deployed(service) == ["2"]


# With the ledger and a night


@pytest.fixture
def home_with_endpoint(home: Path, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository of nights, served on Vertex AI; its containers start at once."""
    text = json.dumps(
        {key: value for key, value in arguments(service, tmp_path).items() if key != "patience"}
    )
    endpoint = f'{{"use": "pipeline.release.endpoint:Endpoint", {text[1:]}'
    told = f'{PARAMS}serving: {{"endpoint": {endpoint}}}\n'
    monkeypatch.setattr("tests.release.folders.PARAMS", told)
    (home / "params.yaml").write_text(told)
    monkeypatch.setattr("pipeline.release.endpoint.Patience", lambda: QUICK)
    return home


def standing(service: Any) -> tuple[int, int, int, int]:
    """What ledger, alias, endpoint and a user's request say."""
    now = ledger.champion_at(ledger.ledger_tip())
    with tracking.session() as client:
        (found,) = (one for one in registry.followers(client, MODEL) if hasattr(one, "share"))
        (answer,) = asked(service, found)
        return now.champion if now else 0, aliases.alias(client, MODEL), found.shown(), answer


def prepared(home: Path, number: int) -> None:
    """A night that has been judged, ready for `promote`."""
    os.chdir(make_night(home, number, weight=1.0, champion=ledger.champion_at(ledger.ledger_tip())))
    judge_night()


def close() -> None:
    night = records.read(Night)
    ledger.commit_night(night, message=f"{night.day}: promote")


def faults(told: Params) -> list[str]:
    return [f"{check.name}: {check.text}" for check in audit(told) if not check.ok]


def test_promotion_and_rollback_move_ledger_alias_and_endpoint_together_though_killed(
    home_with_endpoint: Path, service: Any
) -> None:
    told = params.load(home_with_endpoint)
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
    assert until_done(lambda: registry.rollback(told)) == []  # its spare is deployed: at once
    assert standing(service) == (1, 1, 1, 1)
    assert deployed(service) == ["1"]
    assert faults(told) == []
    assert gate.watch(told).action in ("wait", "no data")

    with tracking.session() as client:
        (vertex,) = (one for one in registry.followers(client, MODEL) if hasattr(one, "share"))
        service.endpoints.served[vertex.there.endpoint].endpoint.traffic_split = {}
    assert faults(told) == ["followers: Vertex AI's endpoint of daybreak shows 0, the ledger says 1"]
    assert "Vertex AI's endpoint of daybreak showed version 0, moved to 1" in gate.watch(told).reason
    assert standing(service) == (1, 1, 1, 1)


def test_a_promotion_waits_for_its_endpoint_and_a_rollback_takes_its_place(
    home_with_endpoint: Path, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = params.load(home_with_endpoint)
    for number in (0, 1):
        prepared(home_with_endpoint, number)
        until_done(promote_night)
        close()
    prepared(home_with_endpoint, 2)
    service.operations.takes_s = {"deploy_model": 0.6}
    with monkeypatch.context() as patch:
        patch.setattr(saga, "PATIENCE", timedelta(0))
        with pytest.raises(ReleaseError, match=r"is not ready at .* UTC: .*; all stays as it was"):
            promote_night()
    assert not saga.journal().exists()
    with pytest.raises(NotYet):
        promote_night()
    until = json.loads(saga.journal().read_text())["until"]
    assert datetime.fromisoformat(until) > datetime.now(UTC)
    assert gate.watch(told).action in ("wait", "no data")
    assert saga.journal().exists()  # the hourly look lets it wait
    assert standing(service)[:3] == (2, 2, 2)
    until_done(lambda: registry.rollback(told))
    assert standing(service) == (1, 1, 1, 1)
    with pytest.raises(ReleaseError):  # it was decided against version 2
        until_done(promote_night, most=5000)
    os.chdir(home_with_endpoint)
    for _ in range(5):
        assert standing(service) == (1, 1, 1, 1)
    assert not saga.journal().exists()
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
    wait(lambda: is_done(promote_night), timeout_s=120)
    with tracking.session() as client:
        (found,) = (one for one in registry.followers(client, MODEL) if hasattr(one, "share"))
        told = asked_for(service, found, [{"sample": number} for number in range(5)])
    scores = read_scores(SCORES)
    assert scores
    assert told == pytest.approx(list(scores["challenger"][:5]), abs=1e-6)
    (container,) = next(iter(service.endpoints.served.values())).containers.values()
    assert b"TypeError" in refused(container, b'{"instances": [7]}')
    assert b"samples are numbered from 0 to 199" in refused(container, b'{"instances": [{"sample": 200}]}')


def is_done(call: Any) -> bool:
    try:
        call()
    except NotYet:
        return False
    return True


def refused(container: Any, body: bytes) -> bytes:
    from tests.backends.fake.faults import Refusal

    with pytest.raises(Refusal) as told:
        container.ask(body)
    return str(told.value).encode()


def test_a_container_recommends_to_whom_the_version_knows_and_shows_others_what_sells(tmp_path: Path) -> None:
    from pipeline.release.container import Answers

    model = tmp_path / "version" / "artifacts" / "model"
    make_model(model, 0.5, last_day=FIRST)
    facts = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**facts, "workload": "tests.release.endpoints:Recommends"}))
    answers = Answers(tmp_path)
    told = answers.predict([{"user": "known", "top": 2}, {"user": "new", "top": 1}, {"user": "known"}])
    assert told[0] == {"items": ["known/0.5/0", "known/0.5/1"], "known": True}
    assert told[1] == {"items": ["sells/0"], "known": False}
    assert len(told[2]["items"]) == 20
    with pytest.raises(KeyError, match="user"):
        answers.predict([{"top": 3}])

"""Serving on Vertex AI, on loopback with real containers: whatever goes wrong, one deployment a version."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract.errors import NotYet, ParamsError, ReleaseError
from daybreak.statistics.assignment import STALE_S
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import open_log
from daybreak.storage.traffic_row import Traffic
from tests.extensions.vertex.endpoints import (
    MODEL,
    QUICK,
    Killed,
    asked,
    killed_at,
    make_versions,
    target,
    until_done,
)

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def trouble(how: Any, **arguments: Any) -> Any:
    from tests.backends.fake_vertex import Trouble

    return Trouble(how, **arguments)


@pytest.fixture
def client(repository: Path) -> Iterator[Any]:
    """A client of the repository's MLflow."""
    with mlflow_client.session(Home.here()) as session:
        yield session


def deployed(service: Any) -> list[str]:
    """Ids of what is deployed anywhere."""
    return sorted(one.id for one in service.endpoints.deployed())


def test_a_version_is_registered_deployed_and_shown_and_both_registries_tell_of_each_other(
    client: Any, service: Any, tmp_path: Path
) -> None:
    first, second = make_versions(client, tmp_path, 2)
    sentences = until_done(lambda: target(service, tmp_path, client).prepare(first))
    assert [sentence.partition(": ")[2] for sentence in sentences][:3] == [
        "make the endpoint has begun",
        "upload 1 has begun",
        "deploy 1 has begun",
    ]
    here = target(service, tmp_path, client)
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
    assert client.get_model_version(MODEL, "2").tags["vertex_model"] == f"{here.deployments.model}@2"
    environment = {one.name: one.value for one in model[1].container_spec.env}
    assert json.loads(environment["SERVING"]) == {"timeout_s": 1.0, "max_top": 100, "keep_users": 100_000}
    where = Path(model[1].artifact_uri)
    assert where.is_relative_to(tmp_path / "bucket" / "serving")  # where no rule for jobs' files reaches
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
        until_done(lambda: target(service, tmp_path, client).prepare(first))
        until_done(lambda: target(service, tmp_path, client).show(first))
    assert target(service, tmp_path, client).shown() == 1
    assert len(service.endpoints.started) == 1
    assert Counter(service.operations.begun)["upload_model"] == 1


def test_killed_at_any_line_a_version_is_deployed_once_and_ends_up_serving(
    client: Any, service: Any, tmp_path: Path
) -> None:
    releases = make_versions(client, tmp_path, 5)

    def serve(release: Any) -> None:
        until_done(lambda: target(service, tmp_path, client, spare=False).prepare(release))
        until_done(lambda: target(service, tmp_path, client, spare=False).show(release))

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
        assert target(service, tmp_path, client, spare=False).shown() == release.version, line
    assert len(service.endpoints.served) == 1
    assert num_killed >= num_points / 2
    versions = Counter(one.rpartition("@")[2] for one in service.endpoints.started)
    assert set(versions.values()) == {1}
    assert len(versions) == len(releases)
    until_done(lambda: none_but(service, target(service, tmp_path, client), len(releases)))


def none_but(service: Any, here: Any, version: int) -> None:
    here.shown()  # each look goes on with what is to be taken down
    if deployed(service) != [str(version)]:
        raise NotYet(str(deployed(service)))


def test_while_a_deployment_goes_on_nobody_waits_and_the_sentence_says_for_how_long(
    client: Any, service: Any, tmp_path: Path
) -> None:
    (first,) = make_versions(client, tmp_path, 1)
    service.operations.takes_s = {"deploy_model": 3600.0}
    sentences = []
    for _ in range(8):
        with pytest.raises(NotYet) as sentence:
            target(service, tmp_path, client).prepare(first)
        sentences.append(str(sentence.value))
    assert sentences[-1].startswith(f"Vertex AI's endpoint of {MODEL}: deploy 1 has been running for ")
    assert Counter(service.operations.begun)["deploy_model"] == 1
    with service.troubled(*[trouble("refuse")] * 999), pytest.raises(NotYet, match="does not answer"):
        target(service, tmp_path, client).prepare(first)


def test_a_deployment_that_fails_late_is_begun_again_unless_it_is_the_containers_fault(
    client: Any, service: Any, tmp_path: Path
) -> None:
    first, second = make_versions(client, tmp_path, 2)
    service.operations.fails = {"deploy_model": "Internal error occurred."}
    sentences = until_done(lambda: target(service, tmp_path, client).prepare(first))
    assert any("deploy 1 failed (Internal error occurred), and is retried" in one for one in sentences)
    assert deployed(service) == ["1"]
    broken = ("python", "-c", "import sys; sys.exit('no model here')")
    with pytest.raises(ReleaseError, match=r"unexpectedly: no model here\); look at its log"):
        until_done(lambda: target(service, tmp_path, client, command=broken).prepare(second))
    assert deployed(service) == ["1"]


def test_requests_are_shared_out_as_the_traffic_row_says_and_the_log_learns_since_when(
    client: Any, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daybreak.extensions.vertex.endpoint.STALE_S", 0.1)
    first, second = make_versions(client, tmp_path, 2)
    kept = open_log(f"sqlite:///{tmp_path / 'serving.db'}")
    here = target(service, tmp_path, client, kept)
    here.split()  # nothing is asked of it yet
    until_done(lambda: here.prepare(first))
    here.show(first)
    row = kept.traffic.set(Traffic(champion=1, challenger=2, share=0.25, experiment="a"))
    with pytest.raises(ReleaseError, match=r"version 2 of daybreak is not deployed, so it cannot get 25 %"):
        here.split()
    until_done(lambda: here.prepare(second))
    assert kept.servers.followed(here.deployments.endpoint)[0] != row.revision
    asked_at = kept.now()
    here.split()
    revision, since = kept.servers.followed(here.deployments.endpoint)
    assert revision == row.revision
    assert asked_at <= since - QUICK.settle_s <= kept.now()
    here.split()
    assert kept.servers.followed(here.deployments.endpoint) == (revision, since)  # it did so before
    assert here.shown() == 1
    answers = Counter(asked(service, here, times=80))
    assert 5 <= answers[2] <= 40
    assert answers.total() == 80

    service.endpoints.served[here.deployments.endpoint].endpoint.traffic_split = {"1": 10, "2": 90}
    assert here.shown() == 2  # somebody's hand
    here.show(first)  # an experiment goes on
    assert dict(here.deployments.served().traffic_split) == {"1": 75, "2": 25}
    assert kept.servers.followed(here.deployments.endpoint)[1] > since
    row = kept.traffic.set(replace(row, share=0.005))
    with pytest.raises(ParamsError, match=r"a share of 0\.005 is not a whole percent"):
        here.split()
    here.discard(second)
    assert deployed(service) == ["1", "2"]  # as long as users meet it
    kept.traffic.set(replace(row, challenger=0, share=0.0, experiment=""))
    here.split()
    assert dict(here.deployments.served().traffic_split) == {"1": 100}
    until_done(lambda: none_but(service, here, 1))
    with pytest.raises(ReleaseError, match="does not add up to 100"), here._exclusively():
        here.deployments.split({"1": 90, "2": 5})
    kept.close()


def test_what_is_drawn_otherwise_than_the_row_says_counts_for_nothing(
    client: Any, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = make_versions(client, tmp_path, 2)
    kept = open_log(f"sqlite:///{tmp_path / 'serving.db'}")
    here = target(service, tmp_path, client, kept)
    for release in releases:
        until_done(lambda release=release: here.prepare(release))
    row = kept.traffic.set(Traffic(champion=1, challenger=2, experiment="a"))
    here.show(releases[0])
    row = kept.traffic.set(replace(row, share=0.25))
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    here.split()
    assert 0 < waited[-1] <= STALE_S  # containers may have read the row before
    assert kept.servers.followed(here.deployments.endpoint)[0] == row.revision
    with service.troubled(*[trouble("refuse")] * 99, method="update_endpoint"):
        kept.traffic.set(replace(row, share=0.5))
        with pytest.raises(NotYet):
            here.split()
    assert kept.servers.followed(here.deployments.endpoint)[0] == -1
    here.split()
    assert kept.servers.followed(here.deployments.endpoint)[0] == row.revision + 1
    kept.close()


def test_what_is_not_to_serve_is_taken_down_even_if_it_comes_up_later(
    client: Any, service: Any, tmp_path: Path
) -> None:
    first, second = make_versions(client, tmp_path, 2)
    here = target(service, tmp_path, client, spare=False)
    until_done(lambda: here.prepare(first))
    here.show(first)
    service.operations.takes_s = {"deploy_model": 0.3}
    with pytest.raises(NotYet, match="deploy 2 has begun"):
        while True:
            try:
                here.prepare(second)
            except NotYet as wait_reason:
                if "deploy 2" in str(wait_reason):
                    raise
    here.discard(second)
    while service.operations.begun[-1] != "undeploy_model":
        assert here.shown() == 1
    assert here.shown() == 1
    assert (deployed(service), here.journal.to_undeploy()) == (["1"], [])
    until_done(lambda: here.prepare(second))  # it may come back
    here.show(second)
    assert here.shown() == 2
    assert deployed(service) == ["2"]

"""A version on an endpoint that draws the arms itself: which exposures count, how its instances answer."""

import asyncio
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import HTTPException

from daybreak.extensions.live_test.observations import observe
from daybreak.extensions.router.answers import Answers
from daybreak.extensions.router.deployed import Deployed
from daybreak.extensions.vertex.vertex_app import MAX_INSTANCES, Loaded, VertexReplies, params_of
from daybreak.registry import carried_code
from daybreak.statistics.assignment import STALE_S
from daybreak.storage.traffic_log import Log
from daybreak.storage.traffic_row import Traffic
from tests.toy.nights import FIRST, make_arrays, make_model

HERE = "projects/p/locations/here/endpoints/one"


def version(number: int) -> Answers:
    return Answers(number, night="", process=None, popular=(), top=20, keep=10)  # it is asked for nothing


def following(log: Log, number: int) -> Deployed:
    made = Deployed(version(number), log, endpoint=HERE)
    made.look()
    return made


def test_answers_count_for_the_arm_that_the_row_gives_the_version(log: Log) -> None:
    row = log.traffic.set(Traffic(champion=1, challenger=2, share=0.25, experiment="a"))
    log.servers.follow(HERE, row.revision, since=log.now() - 1)
    arms = {}
    for number in (1, 2, 3):
        keeper = following(log, number)
        now = keeper.standing
        arms[number] = (keeper.draw("u1", now)[1], now.experiment, now.share)
    assert arms[1] == ("champion", "a", 0.25)
    assert arms[2] == ("challenger", "a", 0.25)
    assert arms[3] == ("champion", "", 0.0)  # it is no part of this
    units = {keeper.draw("u1", keeper.standing)[0] for _ in range(100)}
    assert len(units) == 100  # each request was drawn anew


def test_nothing_counts_while_the_endpoint_does_not_do_what_the_row_says(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = log.traffic.set(Traffic(champion=1, challenger=2, share=0.25, experiment="a"))
    assert following(log, 2).standing.experiment == ""  # nobody has asked the endpoint
    log.servers.follow(HERE, row.revision, since=log.now() + 60)
    assert following(log, 2).standing.experiment == ""  # it needs a moment
    log.servers.follow(HERE, row.revision, since=log.now())
    keeper = following(log, 2)
    assert keeper.standing.experiment == "a"
    log.traffic.set(replace(row, share=0.5))
    keeper.look()
    assert keeper.standing.experiment == ""
    log.servers.follow(HERE, row.revision + 1, since=log.now())
    keeper.look()
    assert (keeper.standing.experiment, keeper.standing.share) == ("a", 0.5)
    later = time.monotonic() + STALE_S
    monkeypatch.setattr("time.monotonic", lambda: later)
    assert keeper.standing.experiment == ""  # the log does not answer any more


def make_version(folder: Path) -> Path:
    model = folder / "version" / "artifacts" / "model"
    make_model(model, 0.5, last_day=FIRST)
    archive = folder / "version" / carried_code.CODE / carried_code.ARCHIVE
    archive.parent.mkdir()
    carried_code.pack({"toy.py": Path(__file__).parents[2] / "toy" / "own" / "toy.py"}, archive)
    make_arrays(folder / "arrays", FIRST)
    return folder


def loaded(folder: Path, *, number: int = 0, **environment: str) -> Loaded:
    return Loaded(folder, params=params_of(environment), number=number)


def ask(folder: Path, log: str, *requests: Any, number: int = 2, **environment: str) -> list[Any]:
    """The answers to requests in turn, in Vertex AI's form; a request may be made of earlier answers."""

    async def answered() -> list[Any]:
        named = {"MODEL_VERSION": str(number), "ENDPOINT": HERE, **environment}
        made = VertexReplies(loaded(folder, number=number, **environment), named, log=log)
        assert made.deployed is not None
        made.deployed.start()
        made.deployed.look()
        answers: list[Any] = []
        for request in requests:
            try:
                answers.append(await made.predict(request(answers) if callable(request) else request))
            except HTTPException as error:
                answers.append((error.status_code, error.detail))
        assert made.router is not None
        await asyncio.to_thread(made.router.close)
        return answers

    return asyncio.run(answered())


def test_instances_are_the_routers_questions_and_end_in_its_log(tmp_path: Path, log: Log) -> None:
    row = log.traffic.set(Traffic(champion=1, challenger=2, share=0.25, experiment="a"))
    log.servers.follow(HERE, row.revision, since=log.now() - 1)
    answers, kept, scores, mixed = ask(
        make_version(tmp_path),
        str(log.url),
        [{"user": "u1", "top": 2}, {"user": "stranger", "top": 1}],
        lambda logged: [{"exposure": logged[0][0]["exposure"], "user": "u1", "items": ["0.5/u1/1"]}],
        [{"sample": 3}, {"sample": 0}],
        [{"user": 7}, {"user": "u2", "top": 1}],
    )
    assert [one["items"] for one in answers] == [["0.5/u1/0", "0.5/u1/1"], ["popular/0"]]
    assert {one["version"] for one in answers} == {2}
    assert kept == [{"kept": True}]
    assert scores == pytest.approx(loaded(tmp_path).scores([3, 0]))
    assert mixed[0] == {"error": "user is 7; name one by 1 to 200 characters"}
    assert mixed[1]["items"] == ["0.5/u2/0"]
    logged = list(log.exposures.of("a"))
    assert [(one.arm, one.version, one.share, one.propensity) for one in logged] == [
        ("challenger", 2, 0.25, 0.25)
    ] * 3
    assert [one.taken for one in logged] == [("0.5/u1/1",), None, None]
    seen = observe(logged, window_s=60.0)
    assert (len(seen.observations), seen.impossible) == (3, 0)


def test_without_a_log_users_are_answered_and_nothing_is_promised(tmp_path: Path) -> None:
    answer, outcome = ask(
        make_version(tmp_path), "", [{"user": "u1", "top": 1}], [{"exposure": "0" * 32, "items": []}]
    )
    assert answer == [{"items": ["0.5/u1/0"], "version": 2}]
    assert outcome == (404, "no log of exposures is kept here; name one by serving.endpoint.log")


def test_the_limits_are_those_of_params_yaml(tmp_path: Path) -> None:
    folder, many = make_version(tmp_path), [{"user": "u1", "top": 3}]
    assert len(ask(folder, "", many)[0][0]["items"]) == 3
    assert ask(folder, "", many, SERVING='{"max_top": 2}') == [(422, "top is 3; ask for 1 to 2 items")]


def test_a_score_that_is_not_finite_is_an_error_of_its_own_sample(tmp_path: Path) -> None:
    folder = make_version(tmp_path)
    (there,) = ask(folder, "", [{"sample": 3}, {"sample": 0}])
    labels = np.load(folder / "arrays" / "test_y.npy")
    labels[3] = np.nan
    np.save(folder / "arrays" / "test_y.npy", labels)
    both, one = ask(folder, "", [{"sample": 3}, {"sample": 0}], [{"sample": 3}])
    assert both == [{"error": "the version's score of this sample is not a finite number"}, there[1]]
    assert one == (503, both[0]["error"])


def test_what_makes_no_sense_is_a_sentence(tmp_path: Path) -> None:
    folder = make_version(tmp_path)
    answers = ask(
        folder,
        "",
        None,
        [7],
        [{"top": 3}],
        [{"sample": 200}],
        [{"sample": 1}, {"user": "u1"}],
        [{"user": "u1"}] * (MAX_INSTANCES + 1),
        [{"sample": math.inf}],
    )
    assert [status for status, _ in answers] == [400, 400, 422, 400, 400, 400, 400]
    assert answers[0][1] == 'instances are missing; send {"instances": [{"user": "17850"}]}'
    assert answers[2][1] == "user is None; name one by 1 to 200 characters"
    assert answers[3][1] == "ValueError: samples are numbered from 0 to 199; name samples alone"
    assert answers[5][1] == "1,001 instances, at most 1,000 are answered at once"
    (folder / "arrays").rename(folder / "gone")

    async def asked() -> None:
        await VertexReplies(loaded(folder), {}, log="").predict([{"user": "u1"}])

    with pytest.raises(HTTPException) as error:
        asyncio.run(asked())
    assert error.value.detail == "Toy answers no users here: it scores samples only, or has no arrays"

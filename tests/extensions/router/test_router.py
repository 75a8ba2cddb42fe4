"""A real router on loopback, in front of a real registry."""

import json
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
import toy

from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.extensions.router import model_manager
from daybreak.statistics.assignment import CHALLENGER, CHAMPION, arm_of
from daybreak.storage import branch, checkout, erasures
from daybreak.storage.exposures import Exposure
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log
from tests.extensions.router.running import Running, running, until

pytestmark = [pytest.mark.slow]
EXPERIMENT = "2025-01-12"
USERS = [f"u{number}" for number in range(100, 160)]


def move(router: Running, **changes: Any) -> None:
    """Move the traffic, and wait until the router does it."""
    moved = router.log.traffic.change(lambda now: replace(now, **changes))
    until(lambda: router.log.servers.routers()[0].revision >= moved.revision)


def kept(log: Log, exposure: str, experiment: str = EXPERIMENT) -> Exposure:
    """The exposure, once it is written."""
    matching: list[Exposure] = []

    def written() -> bool:
        matching[:] = [shown for shown in log.exposures.of(experiment) if shown.id == exposure]
        return bool(matching)

    until(written)
    return matching[0]


def test_the_champion_of_the_ledger_answers_where_the_traffic_names_none(router: Running) -> None:
    router.log.traffic.change(lambda now: replace(now, champion=0))  # whatever other files left in it
    answer = router.recommend("u7", top=3)
    assert answer["items"] == ["2/u7/0", "2/u7/1", "2/u7/2"]
    assert answer["version"] == 2
    assert len(router.recommend("u7")["items"]) == 20
    logged = kept(router.log, answer["exposure"], "")
    assert (logged.arm, logged.version, logged.share, logged.propensity) == (CHAMPION, 2, 0.0, 1.0)
    assert (logged.items, logged.error, logged.fallback) == (("2/u7/0", "2/u7/1", "2/u7/2"), "", False)
    assert logged.unit == router.log.unit_of("u7")
    assert 0 < logged.latency_s < 60


def test_a_user_who_is_not_known_sees_what_is_popular(router: Running) -> None:
    answer = router.recommend("somebody", top=2)
    assert answer["items"] == ["popular/0", "popular/1"]
    assert kept(router.log, answer["exposure"], "").fallback
    assert router.recommend("\ud800 \0")["items"][0] == "popular/0"


def test_what_a_client_says_of_its_user_is_logged_with_the_answer(router: Running) -> None:
    shown = router.recommend("u8", attributes={"device": "phone", "signed in": True})
    assert kept(router.log, shown["exposure"], "").attributes == (("device", "phone"), ("signed in", "true"))
    assert kept(router.log, router.recommend("u8")["exposure"], "").attributes == ()


def test_an_outcome_is_on_the_disk_once_it_is_acknowledged(router: Running) -> None:
    shown = router.recommend("u8")
    outcome = {"exposure": shown["exposure"], "user": "u8", "items": [shown["items"][1], "another"]}
    assert router.post("outcomes", outcome) == (200, {"kept": True})
    assert router.post("outcomes", {**outcome, "items": []}) == (200, {"kept": True})
    assert kept(router.log, shown["exposure"], "").taken == ("2/u8/1", "another")
    status, answer = router.post("outcomes", {**outcome, "exposure": "0" * 32})
    assert (status, answer["error"]) == (
        404,
        "there is no such exposure of this user; give the id that came with the answer, and as user whom it "
        "was for, or the unit of its rows",
    )


def test_only_the_user_who_saw_an_exposure_can_tell_its_outcome(router: Running) -> None:
    first, second = (router.recommend(user)["exposure"] for user in ("u8", "u9"))
    assert first[:8] <= second[:8]  # in order of time
    assert len({first[8:16], second[8:16]}) == 2
    for wrong in (
        {"exposure": first, "user": "u9"},
        {"exposure": first},
        {"exposure": first[:-1] + "x"},
        {"exposure": first, "user": ["u8"]},
        {"exposure": second[:22] + first[22:], "user": "u8"},
    ):
        assert router.post("outcomes", {"items": [], **wrong})[0] in (404, 422), wrong
    assert kept(router.log, first, "").taken is None
    assert router.post("outcomes", {"exposure": first, "user": "u8", "items": []})[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "why"),
    [
        ("recommend", {}, 422, "user is None"),
        ("recommend", {"user": ""}, 422, "user is ''"),
        ("recommend", {"user": 17850}, 422, "user is 17850"),
        ("recommend", {"user": "u1", "top": 0}, 422, "ask for 1 to 100 items"),
        ("recommend", {"user": "u1", "top": 101}, 422, "ask for 1 to 100 items"),
        ("recommend", {"user": "u1", "top": True}, 422, "ask for 1 to 100 items"),
        ("recommend", {"user": "u1", "attributes": "phone"}, 422, "attributes is 'phone'"),
        ("recommend", {"user": "u1", "attributes": {"a": [1]}}, 422, "attribute 'a' is [1]"),
        ("recommend", ["u1"], 400, "not a JSON object"),
        ("predict", {"rows": [json.loads("[" * 30 + "]" * 30)]}, 400, "nested more than 20 deep"),
        ("outcomes", {"exposure": "x", "items": []}, 422, "exposure is 'x'"),
        ("outcomes", {"exposure": "\ud800" * 32, "items": []}, 422, "exposure is '"),
        ("outcomes", {"exposure": "0" * 32, "items": "22423"}, 422, "items is '22423'"),
        (
            "outcomes",
            {"exposure": "0" * 32, "items": ['{"metric": 1e9}']},
            422,
            "/observations tell a metric",
        ),
        ("outcomes", {"exposure": "0" * 32, "labels": "22423"}, 422, "labels is '22423'"),
        ("outcomes", {"exposure": "0" * 32, "labels": [1, "l" * 300]}, 422, 'labels has "lll'),
        ("recommend", {"user": "u" * 1_200_000}, 413, "1,000,000 are allowed"),
        ("predict", {"rows": [{"user": "u1"}]}, 404, "version 2 predicts no rows; POST a user to /recommend"),
    ],
)
def test_what_is_asked_wrongly_is_refused_in_a_sentence(
    router: Running, path: str, body: Any, status: int, why: str
) -> None:
    answered, answer = router.post(path, body)
    assert answered == status
    assert why in answer["error"]


def test_a_body_that_does_not_say_its_size_is_limited_as_it_comes(router: Running) -> None:
    def body() -> Any:
        yield b'{"user": "'
        for _ in range(40):
            yield b"u" * 50_000

    answer = requests.post(f"{router.url}/recommend", data=body(), timeout=300)
    assert (answer.status_code, "more than 1,000,000 bytes" in answer.json()["error"]) == (413, True)
    assert requests.post(f"{router.url}/recommend", data=b"no JSON", timeout=300).status_code == 400
    deep = b'{"user": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    answer = requests.post(f"{router.url}/recommend", data=deep, timeout=300)
    assert (answer.status_code, "nested more than 20 deep" in answer.json()["error"]) == (400, True)
    assert router.get("recommend").status_code == 405
    assert router.get("nothing").status_code == 404


def test_a_model_that_fails_shows_what_is_popular_and_counts_as_an_error(router: Running) -> None:
    answer = router.recommend("u13", top=1)
    assert answer["items"] == ["popular/0"]
    logged = kept(router.log, answer["exposure"], "")
    assert (logged.error, logged.fallback) == ("ValueError: u13 brings bad luck", True)
    assert 'daybreak_errors_total{arm="champion",model="daybreak"} 1.0' in router.get("metrics").text


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Host", "evil.example"),
        ("Host", "127.0.0.1.evil.example:8000"),
        ("Host", "[::1"),
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
    ],
)
def test_a_page_of_a_stranger_asks_nothing_by_a_name_that_leads_here(
    router: Running, header: str, value: str
) -> None:
    status, answer = router.post("recommend", {"user": "u1"}, headers={header: value})
    assert (status, answer["error"].partition(" is no name")[0]) == (403, repr(value))
    for path in ("health", "metrics", "docs"):
        shown = requests.get(f"{router.url}/{path}", headers={header: value}, timeout=300)
        assert (shown.status_code, "champion" in shown.text) == (403, False)
    for own in ("127.0.0.1:8000", "localhost", "[::1]:8000"):
        assert router.post("recommend", {"user": "u1"}, headers={"Host": own})[0] == 200
    assert router.post("recommend", {"user": "u1"}, headers={"Origin": "http://localhost:3000"})[0] == 200


def test_the_page_of_what_may_be_asked_loads_nothing(router: Running) -> None:
    page = router.get("docs").text
    assert "POST /recommend" in page and "GET /health" in page and "attributes" in page
    assert not re.findall(r"src=|href=|<script|https?://", page)


def test_a_challenger_meets_its_share_of_users_and_the_same_ones_again(router: Running) -> None:
    move(router, champion=2, challenger=3, share=0.5, experiment=EXPERIMENT)
    met = {user: router.recommend(user)["version"] for user in USERS}
    arms = {user: arm_of(router.log.unit_of(user), experiment=EXPERIMENT, share=0.5) for user in USERS}
    assert met == {user: 3 if arm == CHALLENGER else 2 for user, arm in arms.items()}
    assert {2, 3} == set(met.values())
    move(router, share=0.8)
    more = {user: router.recommend(user)["version"] for user in USERS}
    assert all(more[user] == 3 for user in USERS if met[user] == 3)
    last = kept(router.log, router.recommend(USERS[-1])["exposure"])
    logged = list(router.log.exposures.of(EXPERIMENT))
    assert last in logged
    assert {(one.arm, one.version) for one in logged} == {(CHAMPION, 2), (CHALLENGER, 3)}
    assert all(
        one.propensity == pytest.approx(one.share if one.arm == CHALLENGER else 1 - one.share)
        for one in logged
    )
    assert all(one.arm == arm_of(one.unit, experiment=EXPERIMENT, share=one.share) for one in logged)
    health = router.get("health").json()
    assert (health["champion"], health["challenger"], health["share"]) == (2, 3, 0.8)
    assert health["loaded"] == [2, 3]
    move(router, challenger=0, share=0.0)
    assert {router.recommend(user)["version"] for user in USERS} == {2}
    assert router.get("health").json()["loaded"] == [2]


def test_versions_are_swapped_without_dropping_a_request(router: Running) -> None:
    stop, answers = threading.Event(), []

    def ask() -> None:
        with requests.Session() as session:
            number = 0
            while not stop.is_set():
                number += 1
                body = {"user": f"u{number % 500}"} if number % 500 not in (13, 14, 15) else {"user": "u1"}
                answer = session.post(f"{router.url}/recommend", json=body, timeout=300)
                shown = answer.json()
                weight = shown["items"][0].split("/")[0]
                answers.append((answer.status_code, shown["version"], float(weight)))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for champion in (3, 1, 2):
            move(router, champion=champion, challenger=0, share=0.0)
            until(lambda champion=champion: router.manager.standing.champion.version == champion)
            seen = len(answers)
            until(lambda seen=seen: len(answers) > seen + 30)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert {status for status, _, _ in answers} == {200}
    assert all(version == weight for _, version, weight in answers)
    assert {version for _, version, _ in answers} == {1, 2, 3}


def test_a_version_that_is_not_what_was_registered_is_never_served(router: Running, home: Path) -> None:
    move(router, champion=2, challenger=0, ready=0, share=0.0)
    weights = sorted((home / "var" / "artifacts").rglob("artifacts/model/model.safetensors"))
    before = {path: path.read_bytes() for path in weights}
    try:
        for path in weights:
            path.write_bytes(before[path][:-1] + b"x")
        move(router, champion=1)
        [state] = router.log.servers.routers()
        assert "have digest" in state.fault
        assert state.fault.startswith("version 1: ")
        assert (state.champion, router.recommend("u1")["version"]) == (2, 2)
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    move(router, champion=2)
    until(lambda: not router.log.servers.routers()[0].fault)


def test_the_meters_count_by_arm(router: Running) -> None:
    def count(name: str) -> float:
        lines = router.get("metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))

    asked = 'daybreak_requests_total{arm="champion",model="daybreak"}'
    timed = 'daybreak_latency_seconds_count{arm="champion",model="daybreak"}'
    before = count(asked), count(timed), count('daybreak_fallbacks_total{arm="champion",model="daybreak"}')
    router.recommend("u9")
    router.recommend("a stranger")
    after = count(asked), count(timed), count('daybreak_fallbacks_total{arm="champion",model="daybreak"}')
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 2, 1]
    assert count('daybreak_champion{model="daybreak"}') == router.get("health").json()["champion"]


def test_who_asks_needs_the_token_and_keeps_to_the_rate(home: Path) -> None:
    with running(home, token="sesame", max_requests_per_s=5, timeout_s=0.2, ready=False) as router:
        right = {"headers": {"Authorization": "Bearer sesame"}}
        until(lambda: router.manager.standing.champion)
        assert router.post("recommend", {"user": "u1"})[0] == 401
        assert router.post("recommend", {"user": "u1"}, headers={"Authorization": "Bearer sesamE"})[0] == 401
        assert router.get("metrics").status_code == 401
        assert router.get("health").status_code in (200, 429)
        with ThreadPoolExecutor(30) as users:  # at once: more than 5 a second, however slow the answers are
            asked = list(users.map(lambda _: router.post("recommend", {"user": "u1"}, **right)[0], range(30)))
        assert 429 in asked
        assert router.get("health").status_code == 200  # it has a rate of its own


def test_where_a_token_is_set_outcomes_come_from_its_holders_only(home: Path) -> None:
    with running(home, token="sesame", ready=False) as router:
        right = {"headers": {"Authorization": "Bearer sesame"}}
        until(lambda: router.manager.standing.champion)
        shown = router.post("recommend", {"user": "u1"}, **right)[1]["exposure"]
        for taken in ({"items": ["a"]}, {"labels": [1]}):
            outcome = {"exposure": shown, "user": "u1", **taken}
            assert router.post("outcomes", outcome)[0] == 401
        assert kept(router.log, shown, "").taken is None
        assert router.post("outcomes", outcome, **right) == (200, {"kept": True})


def test_a_model_that_is_late_is_not_waited_for(home: Path) -> None:
    toy.LATE.clear()
    with running(home, timeout_s=0.2) as router:
        answer = router.recommend("u14", top=1)
        toy.LATE.set()
        assert answer["items"] == ["popular/0"]
        assert kept(router.log, answer["exposure"], "").error == "no answer within 0.2 s"


def test_before_anything_serves_it_waits_and_says_so(home: Path, tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    with running(tmp_path, ready=False) as router:
        router.manager._models.name = "nobody"
        answer = router.get("health")
        assert answer.status_code == 503
        assert not answer.json()["ready"]
        status, refusal = router.post("recommend", {"user": "u1"})
        assert (status, "no version serves" in refusal["error"]) == (503, True)


def test_a_challenger_that_fails_is_stopped_by_the_router_itself(router: Running) -> None:
    """No gate looks here: the router sees it, ends the experiment, and says why."""
    move(router, champion=2, challenger=3, share=0.5, experiment="a night that fails")
    crowd = [f"u{number}" for number in range(700, 800)]
    until(lambda: router.manager.standing.challenger is not None)
    for user in crowd:
        router.recommend(user)
        if not router.log.traffic.read().experiment:
            break
        time.sleep(0.03)
    until(lambda: not router.log.traffic.read().experiment)
    why = router.log.traffic.why_stopped("a night that fails")
    assert why.startswith("lately ")
    assert "of the challenger met an error, and 0 of " in why
    assert {router.recommend(user)["version"] for user in crowd[:20]} == {2}
    move(router, champion=2, challenger=3, share=0.5, experiment=EXPERIMENT)  # another test
    until(lambda: router.manager.standing.challenger is not None)
    assert router.log.traffic.why_stopped(EXPERIMENT) == ""


def test_a_version_that_ends_its_process_is_an_error_and_is_loaded_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_manager, "RETRY_S", 1.0)
    with running(home) as router:
        move(router, champion=2, challenger=0, share=0.0, experiment="")
        until(lambda: router.manager.standing.challenger is None)
        before = router.manager.standing.champion
        answer = router.recommend("u15", top=1)
        assert answer["items"] == ["popular/0"]
        logged = kept(router.log, answer["exposure"], "")
        assert (logged.error, logged.fallback) == ("its process ended by SIGKILL", True)
        assert router.get("health").status_code == 200
        until(lambda: router.manager.standing.champion is not before)
        assert router.recommend("u333")["items"][0].endswith("/u333/0")
        until(lambda: not router.manager.fault)


def test_processes_that_were_killed_leave_no_threads_behind(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_manager, "RETRY_S", 0.1)
    others = {*threading.enumerate()}  # of routers of other tests
    with running(home) as router:
        move(router, champion=2, challenger=0, share=0.0, experiment="")
        until(lambda: router.manager.standing.challenger is None)
        unanswered = iter(range(16, 200))  # of whom none was answered ahead of time
        for _ in range(5):
            before = router.manager.standing.champion
            os.kill(before.process.pid, signal.SIGKILL)
            while not before.process.ended:  # as requests notice
                router.recommend(f"u{next(unanswered)}", top=1)
                time.sleep(0.05)
            until(lambda before=before: router.manager.standing.champion is not before)  # type: ignore[misc]
            assert router.recommend(f"u{next(unanswered)}", top=1)["version"] == 2
        until(
            lambda: sum(each.name.startswith("version 2") for each in {*threading.enumerate()} - others) == 1
        )


def test_a_challenger_whose_process_ends_is_stopped_and_the_champion_answers_on(home: Path) -> None:
    experiment = "a process that ends"
    with running(home) as router:
        move(router, champion=2, challenger=3, share=0.5, experiment=experiment)
        until(lambda: router.manager.standing.challenger is not None)
        os.kill(router.manager.standing.challenger.process.pid, signal.SIGKILL)
        for number in range(16, 200):  # of whom none was answered ahead of time
            router.recommend(f"u{number}")
            if not router.log.traffic.read().experiment:
                break
            time.sleep(0.05)
        until(lambda: not router.log.traffic.read().experiment)
        why = router.log.traffic.why_stopped(experiment)
        last = router.recommend("u199", top=1)
        assert last["items"] == ["2/u199/0"]
        kept(router.log, last["exposure"], "")
        met = list(router.log.exposures.of(experiment))
        move(router, champion=2, challenger=0, share=0.0, experiment="")
    assert "of the challenger met an error, and 0 of " in why
    assert {one.error for one in met if one.arm == CHAMPION} == {""}
    assert {one.error for one in met if one.arm == CHALLENGER} == {"its process ended by SIGKILL"}


def test_rows_of_a_teams_own_serving_are_on_the_disk_once_they_are_acknowledged(home: Path) -> None:
    metric = {"name": "revenue", "low": 0, "high": 10, "margin": 0.1}
    limits, now = LiveTestParams.model_validate({"metric": metric}), time.time()
    rows = [{"user": user, "version": 2, "time": now, "metric": 1.5} for user in USERS]
    with running(home, token="secret", limits=limits, max_body_bytes=10_000) as router:
        authorized = {"headers": {"Authorization": "Bearer secret"}}
        before = len(list(router.log.exposures.of("")))
        for _ in range(2):
            assert router.post("observations", {"rows": rows}, **authorized) == (200, {"kept": True})
            assert len(list(router.log.exposures.of(""))) == before + len(USERS)
        assert router.post("observations", {"rows": rows})[0] == 401
        assert router.post("observations", {"rows": rows * 9}, **authorized)[0] == 413
        for wrong, why in (
            ({"rows": [{**rows[0], "user": "new"}, {"user": "u1"}]}, "row 2: time is None; give seconds"),
            ({"rows": []}, "rows is []; list 1 to 1,000 rows, each an object"),
            ({"rows": ["u1"]}, "row 1: it is 'u1'; give an object; none of these rows is kept"),
            ({}, "rows is None"),
        ):
            status, answer = router.post("observations", wrong, **authorized)
            assert (status, why in answer["error"]) == (422, True), answer
        assert len(list(router.log.exposures.of(""))) == before + len(USERS)


def test_rows_of_erased_users_stay_out_and_all_do_while_it_is_not_known_whose_they_are(home: Path) -> None:
    metric = {"name": "revenue", "low": 0, "high": 10, "margin": 0.1}
    limits, now = LiveTestParams.model_validate({"metric": metric}), time.time()
    tip = branch.ledger_tip(Home.here())
    authorized: Any = {"headers": {"Authorization": "Bearer secret"}}
    rows = [{"user": user, "version": 2, "time": now, "metric": 1.5} for user in ("erased", "other")]
    key = erasures.make_key(Home.here())
    try:
        erasures.note(Home.here(), erasures.by("erased", key, num_rows=1, days=(), digests={}, versions=()))
        with running(home, token="secret", limits=limits) as router:
            assert router.post("observations", {"rows": rows}, **authorized) == (200, {"kept": True})
            units = [one.unit for one in router.log.exposures.of("") if one.time == now]
            assert units == [router.log.unit_of("other")]
            (home / erasures.KEY).unlink()
            status, answer = router.post("observations", {"rows": rows}, **authorized)
            assert (status, "put it back from a backup" in answer["error"]) == (503, True), answer
    finally:  # other tests have the same home
        checkout.git("update-ref", branch.BRANCH, tip)
        (home / erasures.KEY).unlink(missing_ok=True)


def test_rows_of_a_team_are_refused_without_a_metric_and_without_a_token(home: Path, router: Running) -> None:
    body = {"rows": [{"user": "u1", "version": 2, "time": 0, "metric": 9}]}
    status, answer = router.post("observations", body)
    assert (status, "name live_test.metric in params.yaml" in answer["error"]) == (404, True)
    metric = {"name": "revenue", "low": 0, "high": 10, "margin": 0.1}
    with running(home, limits=LiveTestParams.model_validate({"metric": metric})) as open_to_all:
        status, answer = open_to_all.post("observations", body)
        assert (status, "start the router with DAYBREAK_TOKEN" in answer["error"]) == (403, True)

"""Rows that routers keep: which, for how long, of whom, by several routers, and after a kill."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import requests

from daybreak.contract import params
from daybreak.extensions.router.row_sample import checks
from daybreak.extensions.router.settings import RouterParams
from daybreak.storage import kept_rows
from daybreak.storage.exposures import Exposure
from daybreak.storage.home import Home
from daybreak.storage.kept_rows import KeptRows, place_of
from daybreak.storage.traffic_log import Log, open_log
from tests.extensions.router.conftest import live_in
from tests.extensions.router.running import running, until
from tests.extensions.router.test_answers import ROW, home_of_rows  # noqa: F401  the fixture
from tests.extensions.router.test_server import started
from tests.storage.test_traffic_log import postgres  # noqa: F401  the fixture
from tests.toy.nights import PARAMS
from tests.toy.own.card_payments import Payments

DAY = "2026-03-01"


def request(number: int, *, num_rows: int = 1, version: int = 3, kept: bool = True) -> Exposure:
    """An exposure with kept rows, and a scrambled place as a real one has."""
    place = number * 2_654_435_761 % 2**32
    return Exposure(
        id=f"{number:08x}{place:08x}{0:016x}",
        time=float(number),
        experiment="",
        unit=f"unit {number % 7}",
        arm="champion",
        version=version,
        share=0.0,
        propensity=1.0,
        items=(),
        latency_s=0.001,
        kept=KeptRows(day=DAY, rows=[{"account": f"a{number % 7}", "n": number}] * num_rows, predictions="[]")
        if kept
        else None,
    )


def numbers(log: Log, version: int = 3) -> list[int]:
    return [one.rows[0]["n"] for one in log.kept_rows.of(version, DAY)]


@pytest.fixture
def home(home_of_rows: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    live_in(home_of_rows, monkeypatch)
    return home_of_rows


def test_a_day_keeps_what_its_requests_sent_by_version(log: Log) -> None:
    log.exposures.write([request(1), request(2, version=4), request(3, kept=False), request(5)], [])
    assert numbers(log) == [1, 5]
    (day,) = log.kept_rows.days(3)
    assert (day.day, day.since, day.num_requests) == (DAY, 1.0, 2)
    assert log.kept_rows.days(9) == []


def test_rows_go_with_their_exposures_and_with_their_unit(log: Log) -> None:
    log.exposures.write([request(number) for number in range(14)], [])
    assert log.exposures.forget(before=7.0) == 7
    assert numbers(log) == list(range(7, 14))
    assert log.exposures.erase("unit 1") == 1
    assert numbers(log) == [7, *range(9, 14)]


def test_an_erasure_finds_rows_by_their_own_column(log: Log) -> None:
    both = replace(
        request(9), kept=KeptRows(day=DAY, rows=[{"account": 17.0}, {"account": "b"}, {}], predictions="[]")
    )
    log.exposures.write([request(1), both], [])
    assert log.kept_rows.erase("account", "17", dry_run=True) == 1
    assert len(list(log.kept_rows.of(3, DAY))) == 2
    assert log.kept_rows.erase("account", "17") == 1
    assert numbers(log) == [1]
    assert log.kept_rows.erase("account", "17") == 0


def expect_one_sample_of_two_routers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have two routers write at once, more than a day keeps; those with the smallest numbers stay."""
    monkeypatch.setattr(kept_rows, "MAX_ROWS_A_DAY", 60)
    asked = [request(number, num_rows=1 + number % 3) for number in range(500)]
    logs = [open_log(url) for _ in range(2)]

    def write(which: int) -> None:
        for start in range(10 * which, 500, 20):
            logs[which].exposures.write(asked[start : start + 10], [])

    with ThreadPoolExecutor(2) as routers:
        list(routers.map(write, range(2)))
    expected, so_far = [], 0
    for one in sorted(asked, key=lambda one: place_of(one.id)):
        assert one.kept
        if so_far >= 60:
            break
        so_far += len(one.kept.rows)
        expected.append(one.kept.rows[0]["n"])
    assert numbers(logs[0]) == sorted(expected)
    assert Counter(number // 250 for number in expected).most_common()[-1][1] > 8  # of both halves
    (day,) = logs[0].kept_rows.days(3)
    assert day.num_requests <= 60 * kept_rows.ROOM
    assert logs[0].kept_rows.erase("account", "a3") > 0
    assert logs[0].kept_rows.erase("account", "a3", dry_run=True) == 0
    for log in logs:
        log.close()


def test_of_too_many_rows_those_stay_that_one_sample_of_the_whole_day_has(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_one_sample_of_two_routers(str(log.url), monkeypatch)


def test_long_rows_count_as_several_so_that_strangers_cannot_fill_the_disk(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_rows, "MAX_ROWS_A_DAY", 60)
    for number in range(40):
        long = KeptRows(day=DAY, rows=[{"n": number, "note": "x" * 99_000}], predictions="[]")
        log.exposures.write([replace(request(number), kept=long)], [])
    assert len(numbers(log)) == 6
    (day,) = log.kept_rows.days(3)
    assert day.num_requests <= 8


@pytest.mark.slow
def test_postgresql_keeps_the_same_sample(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    expect_one_sample_of_two_routers(postgres, monkeypatch)


def kept_in(home: Path) -> Iterator[KeptRows]:
    log = open_log(f"sqlite:///{home / 'var' / 'serving.db'}")
    for day in log.kept_rows.days(1):
        yield from log.kept_rows.of(1, day.day)
    log.close()


def real(test: Any) -> Any:
    """Mark a test of real routers, whose version predicts payments."""
    # MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
    return pytest.mark.slow(pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")(test))


@real
def test_several_routers_keep_the_rows_that_they_predict_with_their_answers(home: Path) -> None:
    sent = [{**ROW, "account": f"c{number}", "amount": float(number)} for number in range(40)]
    answers: dict[str, Any] = {}
    with ExitStack() as stack:
        routers = [stack.enter_context(running(home, keep_rows=1.0)) for _ in range(2)]
        for number, row in enumerate(sent):
            status, answer = routers[number % 2].post("predict", {"rows": [row]})
            assert status == 200
            answers[row["account"]] = answer["predictions"]
        assert routers[0].post("predict", {"rows": [{**ROW, "mcc": "fails"}]})[0] == 503
        assert routers[0].post("predict", {"rows": [{"account": "c1"}]})[0] == 422
    kept = [one for one in kept_in(home) if one.rows[0]["account"] in answers]
    assert sorted(one.rows[0]["amount"] for one in kept) == [row["amount"] for row in sent]
    assert all(json.loads(one.predictions) == answers[one.rows[0]["account"]] for one in kept)
    now = datetime.now(ZoneInfo(Payments.table.zone))
    assert {one.day for one in kept} <= {str((now - timedelta(days=back)).date()) for back in (0, 1)}


@real
def test_a_share_of_the_requests_is_kept_and_none_by_default(home: Path) -> None:
    assert RouterParams().keep_rows == 0
    before = len(list(kept_in(home)))
    for share in (0.0, 0.25):
        with running(home, keep_rows=share) as router:
            rows = [{**ROW, "account": f"d{number}"} for number in range(40)]
            ids = [router.post("predict", {"rows": [row]})[1]["exposure"] for row in rows]
        expected = sum(place_of(name) < share for name in ids)
        assert len(list(kept_in(home))) - before == expected
    assert 0 < expected < 40


@real
def test_rows_that_were_written_outlive_a_kill(home: Path) -> None:
    before = len(list(kept_in(home)))
    text = (home / "params.yaml").read_text()
    (home / "params.yaml").write_text(f"{text}serving: {{keep_rows: 1.0, timeout_s: 30}}\n")
    with started(home) as (process, url):
        for number in range(5):
            row = {**ROW, "account": f"e{number}"}
            assert requests.post(f"{url}/predict", json={"rows": [row]}, timeout=300).status_code == 200
        until(lambda: len(list(kept_in(home))) - before == 5)
        process.kill()
    (home / "params.yaml").write_text(text)
    accounts = {one.rows[0]["account"] for one in kept_in(home)}
    assert accounts >= {f"e{number}" for number in range(5)}


def test_check_says_which_rows_are_kept_and_who_is_in_them(repository: Path) -> None:
    def said(keeps: str, workload: str = "card_payments:Payments") -> list[tuple[str, bool, str]]:
        text = PARAMS.replace("toy:Toy", workload) + keeps
        return list(checks(Home(repository), params.loads(text, source="params.yaml")))

    assert said("") == []
    assert said("serving: {keep_rows: 0.01, keep_days: 30}\n") == [
        (
            "serving.keep_rows",
            True,
            "the log of serving keeps the rows of 0.01 of the requests for predictions, at most 10,000 a "
            "day, for 30 days: account may name persons, daybreak erase finds them by account",
        )
    ]
    [(_, ok, text)] = said("serving: {keep_rows: 0.01}\n", "tests.fakes:Nothing")
    assert not ok and text == "tests.fakes:Nothing predicts no rows; remove serving.keep_rows"

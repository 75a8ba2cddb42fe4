"""Rows of a team's own serving, held against a real log; nights with them: test_own_serving_nights.py."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from daybreak.contract.errors import DataError
from daybreak.extensions.live_test import own_serving
from daybreak.extensions.live_test.live_score import OwnScore, reported
from daybreak.extensions.live_test.observations import observe
from daybreak.extensions.live_test.own_serving import take_in
from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.statistics.assignment import CHALLENGER, CHAMPION, arm_of
from daybreak.storage import erasures
from daybreak.storage.exposures import Exposure
from daybreak.storage.traffic_log import Log, open_log
from daybreak.storage.traffic_row import Traffic
from tests.postgres import postgresql

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
AT = NOW.timestamp()
METRIC: dict[str, Any] = {"name": "revenue", "low": 0, "high": 10, "margin": 0.1}
USERS = [f"u{number}" for number in range(200)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log whose users meet version 4 instead of 3 in an hour of halves, an hour ago."""
    made = open_log(f"sqlite:///{tmp_path / 'serving.db'}")
    move(made, 3 * 3600, champion=3)
    move(made, 2 * 3600, challenger=4, share=0.5, experiment="a")
    move(made, 3600, challenger=0, share=0.0, experiment="")
    yield made
    made.close()


def move(log: Log, ago_s: float, **changes: Any) -> None:
    """Move the traffic so long before NOW."""
    moved = log.traffic.set(replace(log.traffic.read(), **changes))
    with sa.create_engine(log.url).begin() as connection:
        for table in ("traffic", "moves"):
            where = f"update {table} set changed_at = :at where revision = :number"
            connection.execute(sa.text(where), {"at": AT - ago_s, "number": moved.revision})


def row(user: str = "u1", *, ago_s: float = 5400, **changes: Any) -> dict[str, Any]:
    return {"user": user, "version": 3, "time": AT - ago_s, **changes}


def drawn(log: Log, user: str) -> int:
    """The version that the user meets in the experiment."""
    return 4 if arm_of(log.unit_of(user), experiment="a", share=0.5) == CHALLENGER else 3


def all_of(log: Log, experiment: str | None = None) -> list[Exposure]:
    return list(log.exposures.of(experiment))


def test_the_arm_follows_from_the_traffic_as_it_stood_then(log: Log) -> None:
    assert take_in(log, [row(user, version=drawn(log, user), metric=2) for user in USERS], now=NOW) == 200
    kept = all_of(log, "a")
    assert {(one.arm, one.version, one.share, one.propensity) for one in kept} == {
        (CHAMPION, 3, 0.5, 0.5),
        (CHALLENGER, 4, 0.5, 0.5),
    }
    assert {one.unit for one in kept} == {log.unit_of(user) for user in USERS}
    seen = observe(kept, window_s=60)
    assert (len(seen.observations), seen.impossible) == (200, 0)


def test_a_version_that_the_user_could_not_meet_is_impossible(log: Log) -> None:
    take_in(log, [row(user, version=7 - drawn(log, user)) for user in USERS], now=NOW)
    seen = observe(log.exposures.of("a"), window_s=60)
    assert (len(seen.observations), seen.impossible) == (0, 200)


@pytest.mark.parametrize(
    "changes",
    [
        {"ago_s": 600},
        {"ago_s": 8000},
        {"ago_s": 1e6},
        {"version": 9},
        {"ago_s": 7205},
        {"ago_s": 7195},
        {"ago_s": 3604},
        {"ago_s": 3596},
    ],
    ids=str,
)
def test_what_is_outside_the_experiment_or_near_a_move_is_kept_for_forecasts_alone(
    log: Log, changes: dict[str, Any]
) -> None:
    take_in(log, [row(user, **changes) for user in USERS], now=NOW)
    assert all_of(log, "a") == []
    assert {(one.share, one.experiment) for one in all_of(log)} == {(0.0, "")}


def test_a_move_that_loads_another_version_is_none_for_users(log: Log) -> None:
    move(log, 5403, challenger=4, share=0.5, experiment="a")
    move(log, 5402, ready=8)
    take_in(log, [row(user, ago_s=5380, version=drawn(log, user)) for user in USERS], now=NOW)
    assert len(all_of(log, "a")) == 200


def test_the_same_rows_again_add_nothing_and_a_late_metric_completes_them(log: Log) -> None:
    shown = row(version=drawn(log, "u1"))
    for _ in range(2):
        take_in(log, [shown, shown], now=NOW)
    (kept,) = all_of(log)
    assert kept.taken is None
    for metric in (0.25, 7):  # the first that is told stays
        take_in(log, [{**shown, "metric": metric}], now=NOW)
    (kept,) = all_of(log)
    assert [reported(text) for text in kept.taken or ()] == [0.25]


def test_texts_of_a_csv_and_numbers_of_json_are_the_same_row(log: Log) -> None:
    plain = {"user": "17850", "version": 3, "time": AT - 60, "metric": 1.5, "latency_s": 0.2, "error": ""}
    moment = datetime.fromtimestamp(AT - 60, UTC)
    same = [
        plain,
        {key: str(value) for key, value in plain.items()},
        {**plain, "user": 17850, "time": moment},
        {**plain, "user": 17850.0, "version": 3.0, "time": moment.isoformat()},
        {**plain, "time": moment.replace(tzinfo=None).isoformat(), "error": float("nan")},
        {**plain, "user": None, "unit": log.unit_of("17850")},
    ]
    for one in same:
        take_in(log, [one], now=NOW)
    (kept,) = all_of(log)
    assert (kept.latency_s, kept.error, kept.unit) == (0.2, "", log.unit_of("17850"))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"user": None}, "user is None; name one by 1 to 200 characters"),
        ({"user": True}, "user is True"),
        ({"user": "u" * 201}, "user is 'uuu"),
        ({"unit": "u1"}, "unit is 'u1'; give it as the assignment has it, or name the user"),
        ({"version": "new"}, "version is 'new'; give a number"),
        ({"version": 3.5}, "version is 3.5; give the number of the version that answered"),
        ({"version": None}, "version is None"),
        ({"version": 0}, "version is 0"),
        ({"version": 1e300}, "version is 1e+300; give the number of the version that answered"),
        ({"version": 2**31}, "version is 2147483648; give"),
        ({"time": -1e308}, "time is -1e+308, which is before 1970; give seconds since 1970"),
        ({"time": "0001-01-01T00:00:00+14:00"}, "which is before 1970"),
        ({"time": "yesterday"}, "time is 'yesterday'; give a number"),
        ({"time": None}, "time is None; give seconds since 1970, or ISO 8601"),
        ({"time": True}, "time is True"),
        ({"time": AT * 1000}, "which is in the future; give seconds since 1970"),
        ({"metric": "many"}, "metric is 'many'; give a number"),
        ({"metric": float("inf")}, "metric is inf; give a number"),
        ({"metric": [1]}, "metric is [1]; give a number"),
        ({"latency_s": "slow"}, "latency_s is 'slow'; give a number"),
    ],
)
def test_of_rows_with_a_malformed_one_none_is_kept_and_its_number_is_told(
    log: Log, wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises(DataError) as refusal:
        take_in(log, [row(), row("u2"), {**row("u3"), **wrong}], now=NOW)
    assert str(refusal.value).startswith("row 3: ")
    assert why in str(refusal.value)
    assert all_of(log) == []
    with pytest.raises(DataError, match="row 1: it is 'text'; give an object"):
        take_in(log, ["text"], now=NOW)  # type: ignore[list-item]


def test_a_unit_of_digits_may_come_as_a_number(log: Log) -> None:
    told = {**row(), "unit": 1234567890123456, "metric": 1.0}
    for one in (told, {**told, "unit": "1234567890123456"}):
        take_in(log, [one], now=NOW)
    assert [one.unit for one in all_of(log)] == ["1234567890123456"]


ODD_ERROR = "\0broken: \ud800 caf\u00e9"


def test_an_error_is_kept_in_ascii(log: Log) -> None:
    take_in(log, [row(error=ODD_ERROR), row("u2", error="\u00e9" * 200)], now=NOW)
    errors = {one.error for one in all_of(log)}
    assert " broken: \\ud800 caf\\xe9" in errors
    assert max(map(len, errors)) == 200


def test_a_log_of_the_release_before_goes_on_from_its_traffic_row(log: Log) -> None:
    move(log, 1800, challenger=4, share=0.5, experiment="b")
    with sa.create_engine(log.url).begin() as connection:
        connection.execute(sa.text("drop table moves"))
    again = open_log(str(log.url))
    assert again.traffic.moves() == (again.traffic.read(),)
    assert again.traffic.read().changed_at == AT - 1800
    take_in(again, [row(user, ago_s=600, version=9) for user in USERS], now=NOW)
    take_in(again, [row(user, ago_s=600) for user in USERS], now=NOW)
    assert len(all_of(again, "b")) == 200
    again.close()


def test_moves_begin_with_the_traffic_as_it_stood(log: Log) -> None:
    assert [moved.experiment for moved in log.traffic.moves(since=AT - 5400)] == ["a", ""]
    assert [moved.revision for moved in log.traffic.moves()] == [0, 1, 2, 3]
    assert log.traffic.moves(since=AT) == (log.traffic.read(),)
    with pytest.raises(Exception, match="is at revision 3"):
        log.traffic.set(Traffic(champion=9))
    assert len(log.traffic.moves()) == 4


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """Writes rows to a file of the type of its suffix, and returns the file's URL."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    else:
        lines = [",".join(rows[0]), *(",".join(str(value) for value in one.values()) for one in rows)]
        path.write_text("\n".join(lines))
    return str(path)


def told_of(url: str, **arguments: Any) -> LiveTestParams:
    plug = {"use": "daybreak:Files", "url": url, **arguments}
    return LiveTestParams.model_validate({"metric": METRIC, "observations": plug})


@pytest.mark.parametrize("name", ["shown.parquet", "shown.jsonl", "shown.csv"])
def test_a_file_is_read_at_each_look_under_the_teams_own_names(log: Log, tmp_path: Path, name: str) -> None:
    rows = [
        {
            "customer": user,
            "version": drawn(log, user),
            "time": datetime.fromtimestamp(AT - 5400, UTC),
            "revenue": 2.5,
        }
        for user in USERS
    ]
    if name != "shown.parquet":
        rows = [{**one, "time": one["time"].isoformat()} for one in rows]
    params = told_of(write(tmp_path / name, rows), columns={"user": "customer", "metric": "revenue"})
    assert [own_serving.read(log, params, now=NOW) for _ in range(2)] == [200, 200]
    kept = all_of(log, "a")
    assert len(kept) == 200
    assert {reported(one.taken[0]) for one in kept if one.taken} == {2.5}


def test_a_metric_in_text_is_read_in_the_format_of_its_file(log: Log, tmp_path: Path) -> None:
    lines = ["user;version;time;metric"]
    lines += [f"{user};{drawn(log, user)};2026-11-23T10:30:00Z;2,5" for user in USERS]
    (tmp_path / "shown.csv").write_text("\n".join(lines))
    params = told_of(str(tmp_path / "shown.csv"), delimiter=";", decimal=",")
    assert own_serving.read(log, params, now=NOW) == 200
    assert {reported(one.taken[0]) for one in all_of(log, "a") if one.taken} == {2.5}


def test_only_the_newest_days_are_read_and_a_malformed_row_is_told_with_its_day(
    log: Log, tmp_path: Path
) -> None:
    for day, version in (("2026-11-01", "old"), ("2026-11-22", 3), ("2026-11-23", "new")):
        write(tmp_path / f"{day}.jsonl", [{"user": "u1", "version": version, "time": f"{day}T01:00:00Z"}])
    with pytest.raises(DataError, match=r"live_test.observations, 2026-11-23, row 1: version is 'new'"):
        own_serving.read(log, told_of(str(tmp_path / "{day}.jsonl")), now=NOW)
    assert len(all_of(log)) == 1


def test_a_table_of_a_database_is_read(log: Log, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    table = sa.Table(
        "shown",
        sa.MetaData(),
        sa.Column("user", sa.String),
        sa.Column("version", sa.Integer),
        sa.Column("time", sa.DateTime),
        sa.Column("metric", sa.Double),
    )
    rows = [
        {"user": user, "version": drawn(log, user), "time": datetime(2026, 11, 23, 10, 30), "metric": 1.0}
        for user in USERS
    ]
    engine = sa.create_engine(url)
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(table), rows)
    plug = {"use": "daybreak:Database", "url": url, "table": "shown"}
    params = LiveTestParams.model_validate({"metric": METRIC, "observations": plug})
    assert own_serving.read(log, params, now=NOW) == 200
    assert len(all_of(log, "a")) == 200
    engine.dispose()


def test_a_user_is_scored_by_the_mean_of_the_metric_whenever_it_came(log: Log) -> None:
    for ago_s, metric in ((5400, 1.0), (5390, 4.0), (5380, None)):
        take_in(log, [row("u1", ago_s=ago_s, version=drawn(log, "u1"), metric=metric)], now=NOW)
    params = LiveTestParams.model_validate({"metric": METRIC}).metric
    assert params
    by = OwnScore(metric=params, low=params.low, high=params.high)
    (one,) = observe(log.exposures.of("a"), window_s=60).observations
    assert one.score(by, window_s=0.0) == 2.5
    lower = replace(by, metric=params.model_copy(update={"higher_is_better": False}))
    assert one.score(lower, window_s=60) == -2.5
    assert by.in_words(2.5, 1.0) == "revenue 2.5000 with the challenger and 1.0000 with the champion"


def test_items_and_labels_are_no_metric_of_a_team(log: Log) -> None:
    assert [reported(text) for text in ("22423", "0.5", "null", '{"metric"', '{"items": 1}')] == [None] * 5
    odd = ["true", '"x"', "null", "[1]", "NaN", "1e999", "9" * 400, "9" * 5000]
    assert [reported(f'{{"metric": {value}}}') for value in odd] == [None] * len(odd)


def test_a_source_without_a_metric_is_refused_and_a_range_upside_down() -> None:
    with pytest.raises(ValueError, match="observations are not scored without metric"):
        LiveTestParams.model_validate({"observations": {"use": "daybreak:Files", "url": "x"}})
    with pytest.raises(ValueError, match="low 10 is not below high 0"):
        LiveTestParams.model_validate({"metric": {**METRIC, "low": 10, "high": 0}})


@pytest.mark.slow
def test_a_log_of_postgresql_takes_rows_in() -> None:
    with postgresql("serving") as folder:
        made = open_log(f"postgresql+psycopg2://airflow@/serving?host={folder}")
        move(made, 2 * 3600, champion=3, challenger=4, share=0.5, experiment="a")
        rows = [row(user, version=drawn(made, user), error=ODD_ERROR) for user in USERS]
        take_in(made, rows, now=NOW)
        for _ in range(2):
            take_in(made, [{**one, "metric": 1.0} for one in rows], now=NOW)
        kept = all_of(made, "a")
        assert {reported(one.taken[0]) for one in kept if one.taken} == {1.0}
        assert len(observe(kept, window_s=60).observations) == len(USERS)
        made.close()


def test_rows_of_an_erased_user_do_not_come_in_again(log: Log) -> None:
    key = b"k" * 32
    erased = erasures.ErasedUnits(key=key, hashes=frozenset({erasures.hash_of("1", key)}))
    rows = [row("1", metric=2), row("2", metric=2), row(user=1.0)]  # type: ignore[arg-type]
    assert take_in(log, rows, now=NOW, erased=erased) == 1
    assert {one.unit for one in all_of(log)} == {log.unit_of("2")}

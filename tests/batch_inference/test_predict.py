"""The stage `predict`: what the version that serves predicts, once for each row, wherever a team reads it."""

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from daybreak import cli, runner
from daybreak.batch_inference import day_drift, destinations, predict, scorer
from daybreak.contract import params, records
from daybreak.contract.errors import DataError, JobError, NothingToDo, NotYet, ParamsError, ReleaseError
from daybreak.contract.record_types import Approval, Champion, Events, Night, Predictions, Verdict
from daybreak.data.partitions import part_of
from daybreak.rollout import night_events
from daybreak.serving.version_process import VersionProcess
from daybreak.storage import branch, checkout, events, ledger, ledger_notes
from daybreak.storage.home import Home
from tests import s3_storage
from tests.extensions.router.conftest import live_in
from tests.extensions.router.test_answers import USE, expected, home_of_rows  # noqa: F401  the fixture
from tests.minimal_records import promotion
from tests.postgres import postgresql
from tests.workloads.payments import rows_of

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

DAY, NIGHT = date(2025, 1, 11), "2025-01-11"  # its version 1 was promoted


@pytest.fixture
def home(home_of_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: F811
    """A home whose night writes to a folder `out` beside this test's files, a few rows a file.

    One process of the version scores them: each takes seconds to start.
    """
    live_in(home_of_rows, monkeypatch)
    monkeypatch.setattr(scorer, "MOST_PROCESSES", 1)
    folder = home_of_rows / "nights" / NIGHT
    before = (folder / "params.yaml").read_text()
    given = {"to": str(tmp_path / "out" / "{day}"), "rows_per_file": 25}
    (folder / "params.yaml").write_text(f"{before}predict: {json.dumps(given)}\n")
    monkeypatch.chdir(folder)
    yield home_of_rows
    (folder / "params.yaml").write_text(before)
    for left in (folder / predict.WORK, home_of_rows / "var" / "predicted"):
        shutil.rmtree(left, ignore_errors=True)
    records.path_of(Predictions, folder / records.RUN).unlink(missing_ok=True)


def given(**keys: Any) -> None:
    """Changes keys of `predict` of the night in the current folder."""
    text, _, mine = Path("params.yaml").read_text().rpartition("predict: ")
    Path("params.yaml").write_text(f"{text}predict: {json.dumps(json.loads(mine) | keys)}\n")


def run(**options: str) -> Predictions:
    made = runner.run(Home.here(), "predict", **options)
    assert isinstance(made, Predictions)
    return made


def run_by_hand(day: date) -> None:
    runner.run(Home.here(), "predict", to="by_hand.parquet", day=day)


def written(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))


def test_each_row_of_the_day_is_predicted_once_by_the_version_that_serves(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer, "MOST_PROCESSES", 3)
    made, rows, out = run(), rows_of(DAY), tmp_path / "out" / NIGHT
    assert sorted(path.name for path in out.iterdir()) == [
        "_SUCCESS",
        *(f"part-0000{number}.parquet" for number in range(3)),
    ]
    predicted = written(out)
    assert predicted.column_names == [
        "account",
        "ts",
        "prediction",
        "parts",
        "daybreak_day",
        "daybreak_version",
        "daybreak_night",
    ]
    assert predicted.select(["account", "ts"]).equals(rows.select(["account", "ts"]))
    for name, values in expected(home, rows).items():
        np.testing.assert_allclose(np.array(predicted[name].to_pylist()), values, rtol=0, atol=1e-6)
    beside = predicted.select(predicted.column_names[-3:]).slice(0, 1).to_pylist()
    assert beside == [{"daybreak_day": DAY, "daybreak_version": 1, "daybreak_night": NIGHT}]
    facts = json.loads((out / "_SUCCESS").read_text())
    assert facts == {"day": NIGHT, "version": 1, "night": NIGHT, "num_rows": 60, "digest": made.digest}
    assert (made.version, made.num_rows, made.num_files, made.num_kept) == (1, 60, 3, 0)
    assert made.of.startswith(f"clean rows of {DAY}")
    (entry,) = (entry for entry in ledger.history(Home.here()) if entry.night.id == NIGHT)
    assert entry.predictions == made  # of a night that `promote` has written to the ledger before
    assert not Path(predict.WORK).exists()
    assert run() == made  # again: it stands


def test_after_a_kill_whole_files_are_not_scored_again_and_the_rows_are_the_same(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, asked = run(), []
    records.path_of(Predictions, Path(records.RUN)).unlink()
    (tmp_path / "out").rename(tmp_path / "first")
    ask = VersionProcess.ask

    def killed(self: VersionProcess, verb: str, **arguments: Any) -> Any:
        if verb == "write_rows":
            if len(asked) == 2:
                os.kill(self.pid, 9)
            asked.append(Path(arguments["rows"]).name)
        return ask(self, verb, **arguments)

    with monkeypatch.context() as patch, pytest.raises(ReleaseError, match="ended by SIGKILL"):
        patch.setattr(VersionProcess, "ask", killed)
        run()
    assert not (tmp_path / "out").exists()
    assert records.find(Predictions, Path(records.RUN)) is None
    again = run()
    assert (again.num_kept, again.digest) == (2, whole.digest)
    assert again.whole_s == 3 * again.elapsed_s  # which the next night leaves time for
    assert written(tmp_path / "out" / NIGHT).equals(written(tmp_path / "first" / NIGHT))


def test_files_of_other_rows_or_another_version_are_scored_again(home: Path, tmp_path: Path) -> None:
    run()
    records.path_of(Predictions, Path(records.RUN)).unlink()
    work = Path(predict.WORK)
    (work / "files").mkdir(parents=True)
    shutil.copy(tmp_path / "out" / NIGHT / "part-00000.parquet", work / "files")
    (work / "case.json").write_text(json.dumps({"version": 2}))
    assert run().num_kept == 0


def test_rows_of_another_source_are_predicted_rather_than_those_that_a_call_before_scored(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file, where a folder has to be")
    for number in (1, 2):
        rows = rows_of(DAY + timedelta(days=number)).drop(["is_fraud"])
        (tmp_path / f"source {number}").mkdir()
        pq.write_table(rows, tmp_path / f"source {number}" / f"{NIGHT}.parquet")
        given(source={"use": "daybreak:Files", "url": str(tmp_path / f"source {number}" / "{day}.parquet")})
        if number == 1:
            with pytest.raises(JobError):
                run()
            (tmp_path / "out").unlink()
    made = run()
    assert (made.of, made.num_kept, made.num_files) == ("rows of daybreak:Files", 0, 3)
    assert written(tmp_path / "out" / NIGHT)["ts"].to_pylist() == rows["ts"].to_pylist()


def test_of_two_calls_at_once_one_writes_and_the_other_finds_what_was_written(home: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: run(), range(2))
    assert one == other  # to the millisecond that it took


def test_a_place_that_cannot_be_written_fails_the_stage_and_the_next_call_scores_nothing_again(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file, where a folder has to be")
    with pytest.raises(JobError, match=r"out/2025-01-11 cannot be written: .*check that it can be reached"):
        run()
    assert "cannot be written" in Path(records.RUN, "predict.error").read_text()
    (tmp_path / "out").unlink()
    made = run()
    assert (made.num_kept, made.num_files) == (3, 3)
    assert not Path(records.RUN, "predict.error").exists()


def test_another_run_replaces_the_files_of_the_day_and_none_is_left(home: Path, tmp_path: Path) -> None:
    run()
    records.path_of(Predictions, Path(records.RUN)).unlink()
    given(rows_per_file=40)
    run()
    out = tmp_path / "out" / NIGHT
    assert len(list(out.glob("*.parquet"))) == 2
    assert written(out)["ts"].to_pylist() == rows_of(DAY)["ts"].to_pylist()


def test_a_night_of_an_older_day_leaves_the_predictions_of_a_newer_one(home: Path, tmp_path: Path) -> None:
    given(to=str(tmp_path / "all.csv"))
    newer = Predictions(
        night=NIGHT,
        day=DAY + timedelta(days=1),
        version=1,
        to=str(tmp_path / "all.csv"),
        of="rows",
        num_rows=1,
        digest="d",
        elapsed_s=1,
        written_at=datetime.now(UTC),
    )
    ledger_notes.add(Home.here(), "predictions of a later night", versions=(), predictions=newer)
    with pytest.raises(
        NothingToDo, match=r"all.csv has predictions of 2025-01-12, which those of 2025-01-11"
    ):
        run()
    given(to="")
    with pytest.raises(NothingToDo, match=r"predict.to is empty"):
        run()
    assert list(tmp_path.glob("all*")) == []


def test_a_folder_in_s3_has_the_predictions_of_the_newest_call_whole_and_marked_last(home: Path) -> None:
    rows = rows_of(DAY)
    with s3_storage.served() as store, s3_storage.emulated(store):
        given(to="s3://bucket/lists/{day}", rows_per_file=20)
        assert run().num_files == 3
        given(to="s3://bucket/lists/{day}", rows_per_file=40)
        records.path_of(Predictions, Path(records.RUN)).unlink()
        made = run()
        there, folder = fsspec.filesystem("s3"), f"bucket/lists/{NIGHT}"
        there.invalidate_cache()
        found = {entry["Key"].rpartition("/")[2]: entry for entry in there.ls(folder, detail=True)}
        assert sorted(found) == ["_SUCCESS", "part-00000.parquet", "part-00001.parquet"]
        assert max(entry["LastModified"] for entry in found.values()) == found["_SUCCESS"]["LastModified"]
        facts = json.loads(there.cat_file(f"{folder}/_SUCCESS"))
        assert (facts["num_rows"], facts["digest"], made.to) == (60, made.digest, f"s3://{folder}")
        parts = [pq.read_table(there.open(f"{folder}/part-0000{number}.parquet")) for number in range(2)]
    predicted = pa.concat_tables(parts)
    assert predicted.select(["account", "ts"]).equals(rows.select(["account", "ts"]))
    for name, values in expected(home, rows).items():
        np.testing.assert_allclose(np.array(predicted[name].to_pylist()), values, rtol=0, atol=1e-6)


def test_a_bucket_and_one_file_take_predictions_too_by_a_version_that_a_person_names(
    home: Path, tmp_path: Path
) -> None:
    first = run()
    assert runner.run(Home.here(), "predict", to="memory://predictions/{day}", version="2") is None
    with fsspec.open(f"memory://predictions/{NIGHT}/_SUCCESS") as file:
        facts = json.load(file)
    assert (facts["version"], facts["num_rows"]) == (2, 60)
    assert facts["digest"] != first.digest
    one = tmp_path / "new" / "all.parquet"
    runner.run(Home.here(), "predict", to=str(one))
    assert pq.read_table(one).equals(written(tmp_path / "out" / NIGHT))
    assert records.read(Predictions, Path(records.RUN)) == first


@pytest.mark.parametrize(
    ("words", "error", "why"),
    [
        (["--to", "{}/there.csv"], ParamsError, "name a file of .parquet"),  # a column of vectors
        (["--to", "nowhere://there"], ParamsError, "predict.to cannot be used"),
        (["--to", "{}/there.parquet", "--version", "9"], Exception, "9"),
    ],
)
def test_what_cannot_be_written_leaves_no_file(
    home: Path, tmp_path: Path, words: list[str], error: type[Exception], why: str
) -> None:
    options = {
        word.removeprefix("--"): text.format(tmp_path)
        for word, text in zip(words[::2], words[1::2], strict=True)
    }
    with pytest.raises(error, match=why):
        runner.run(Home.here(), "predict", **options)
    assert list(tmp_path.glob("there*")) == []
    assert list(Path(records.RUN).glob("predict.*")) == []  # the night's own predictions did not fail


def table_of(url: str, *, unit: str = "") -> list[Any]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        table = sa.Table("predictions", sa.MetaData(), autoload_with=connection)
        rows = connection.execute(sa.select(table).order_by(table.c.daybreak_day, table.c.ts)).all()
    engine.dispose()
    return [row for row in rows if unit in ("", row.account)]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_rows_of_a_day_are_exchanged_in_a_table_of_a_database(
    home: Path, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/shop.db"
        if database == "postgresql":
            url = f"postgresql+psycopg2://airflow@/shop?host={stack.enter_context(postgresql('shop'))}"
        monkeypatch.setenv("SHOP_URL", url)
        given(to="$SHOP_URL")
        made = run()
        assert made.to == "$SHOP_URL"  # no password is kept
        rows = table_of(url)
        assert [row.ts for row in rows] == rows_of(DAY)["ts"].to_pylist()
        assert {(row.daybreak_day, row.daybreak_version, row.daybreak_night) for row in rows} == {
            (DAY, 1, NIGHT)
        }
        records.path_of(Predictions, Path(records.RUN)).unlink()
        run()
        assert table_of(url) == rows  # not twice
        unit = rows[0].account
        ((_, place),) = [one for one in destinations.noted(Home.here()) if one[0] == "$SHOP_URL"]
        num = len(table_of(url, unit=unit))
        assert place.erase("account", {unit}, dry_run=True) == num == len(table_of(url, unit=unit))
        assert place.erase("account", {unit}, dry_run=False) == num
        assert len(table_of(url)) == 60 - num and not table_of(url, unit=unit)


def test_a_table_that_fails_midway_keeps_the_rows_that_it_had(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(to=f"sqlite:///{tmp_path}/shop.db")
    run()
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON predictions WHEN (SELECT count(*) FROM predictions) > 30 "
            "BEGIN SELECT raise(ABORT, 'it is full'); END"
        )
    connection.close()
    monkeypatch.setattr(destinations, "NUM_ROWS", 10)
    records.path_of(Predictions, Path(records.RUN)).unlink()
    with pytest.raises(JobError, match="table predictions cannot be written: it is full; check"):
        run()
    assert len(table_of(f"sqlite:///{tmp_path}/shop.db")) == 60


def test_a_table_without_a_column_is_refused_and_named(home: Path, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE predictions (account TEXT, daybreak_day DATE)")
    connection.close()
    given(to=f"sqlite:///{tmp_path}/shop.db")
    with pytest.raises(DataError, match="table predictions has no column ts, prediction, parts, dayb"):
        run()


def test_a_table_of_integers_does_not_round_fractions(tmp_path: Path) -> None:
    to = destinations.DatabaseTable(f"sqlite:///{tmp_path}/shop.db", table="predictions", day=DAY)
    for kind in (pa.int64(), pa.float32()):
        rows = pa.table({"prediction": pa.array([2], kind), "daybreak_day": [DAY]})
        pq.write_table(rows, tmp_path / f"{kind}.parquet")
    to.write([tmp_path / "int64.parquet"], {})
    with pytest.raises(DataError, match="column prediction of table predictions has integers, which would"):
        to.write([tmp_path / "float.parquet"], {})


def test_predictions_far_from_those_of_days_before_are_refused_or_told(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run()
    kept = home / "var" / "predicted" / f"{NIGHT}.parquet"
    assert pq.read_table(kept).column_names == ["prediction", "parts"]  # nobody's
    far = pa.table({"prediction": pa.array(np.full(60, 7.0, np.float32))})
    pq.write_table(far, kept.with_name("2025-01-10.parquet"))
    records.path_of(Predictions, Path(records.RUN)).unlink()
    shutil.rmtree(tmp_path / "out")
    given(drift="refuse")
    text = "predictions are far from those of the days before: prediction by 1.00, where 0.85 is allowed"
    with pytest.raises(DataError, match=text):
        run()
    assert not (tmp_path / "out").exists()
    assert pq.read_table(kept).num_rows == 60  # a champion that goes on so is refused once
    given(drift="warn")
    (found,) = run().drift
    assert (found.column, found.value, round(found.limit, 2)) == ("prediction", 1.0, 0.85)
    assert "prediction by 1.00" in caplog.text


def lists_file(path: Path, num: int, *, seed: int, shift: int = 0) -> Path:
    """Lists of ten items a user by a Zipf law, whose most frequent items have the first ranks."""
    shares = 1 / np.arange(1, 5001)
    drawn = np.random.default_rng(seed).choice(5000, size=(num, 10), p=shares / shares.sum())
    ranks = np.tile(np.arange(10), num)
    items = (np.sort(drawn, axis=1).reshape(-1) + shift).astype(str)
    users = np.repeat(np.arange(num), 10).astype(str)
    pq.write_table(pa.table({"customer": users, "rank": ranks, "item": items}), path)
    return path


def test_lists_are_compared_by_all_ranks_and_beyond_what_is_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_drift, "MOST_ROWS", 5000)
    here = Home(tmp_path)

    def sample(day: date, num: int, **given: int) -> pa.Table:
        file = lists_file(tmp_path / "part-00000.parquet", num, seed=day.day, **given)
        return day_drift.sample_of([file], without=("customer", "rank"), whole="customer")

    before = sample(DAY, 3000)
    assert before.column_names == ["item"] and abs(len(before) - 5000) < 500
    day_drift.keep(here, DAY, before)
    tomorrow = DAY + timedelta(days=1)
    (like,) = day_drift.distances(here, tomorrow, sample(tomorrow, 4000), limit=0.1)
    (unlike,) = day_drift.distances(here, tomorrow, sample(tomorrow, 4000, shift=2500), limit=0.1)
    assert 0.1 < like.value < like.limit
    assert unlike.value > unlike.limit


def test_a_monday_may_be_unlike_a_sunday_if_it_is_like_the_monday_before(tmp_path: Path) -> None:
    here, monday = Home(tmp_path), date(2025, 1, 13)
    mondays, sundays = (pa.table({"prediction": np.full(9, value, np.float32)}) for value in (1, 5))
    assert day_drift.distances(here, monday, mondays, limit=0.1) == ()
    day_drift.keep(here, monday - timedelta(days=1), sundays)
    assert [one.value for one in day_drift.distances(here, monday, mondays, limit=0.1)] == [1]
    day_drift.keep(here, monday - timedelta(days=7), mondays)
    assert [one.value for one in day_drift.distances(here, monday, mondays, limit=0.1)] == [0]
    day_drift.keep(here, monday + timedelta(days=1), mondays)
    kept = sorted(path.stem for path in (tmp_path / "var" / "predicted").iterdir())
    assert kept == ["2025-01-12", "2025-01-14"]


def test_of_a_day_without_clean_rows_those_of_the_newest_are_predicted_and_said(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part = part_of(DAY, Path("data/clean"))
    part.rename(tmp_path / "kept")
    before = DAY - timedelta(days=1)
    try:
        made = run()
        with pytest.raises(DataError, match="there are no clean rows of 2025-01-11 to predict"):
            run_by_hand(DAY)
    finally:
        (tmp_path / "kept").rename(part)
    assert made.of == f"clean rows of {before}, the newest, as {DAY} has none"
    assert made.older == before
    assert f"predicted are {made.of}" in caplog.text
    rows = written(tmp_path / "out" / str(DAY))
    assert set(map(str, rows["daybreak_day"].to_pylist())) == {str(DAY)}
    assert set(rows["ts"].to_pylist()) == set(rows_of(before)["ts"].to_pylist())
    again = run()
    assert (again.of, again.older) == (f"clean rows of {DAY}", None)  # it came while the night waited


def test_rows_that_are_too_old_are_not_predicted_for_the_day(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "OLDEST_DAYS", 0)
    part = part_of(DAY, Path("data/clean"))
    part.rename(tmp_path / "kept")
    try:
        with pytest.raises(DataError, match=r"newest are of 2025-01-10, more than 0 days before; see why"):
            run()
    finally:
        (tmp_path / "kept").rename(part)


def test_a_home_whose_first_version_does_not_serve_yet_predicts_nothing(
    repository: Path, tmp_path: Path
) -> None:
    os.chdir(repository)
    settings = ["predict.to=out/{day}", "predict.by_hours=1.5"]
    night = runner.run(Home.here(), "open", day=date(2025, 1, 2), set=settings)
    assert night.predict_until - night.started_at == timedelta(hours=1.5)  # type: ignore[union-attr]
    assert night.predict_from < night.predict_until  # type: ignore[union-attr]
    assert night.last_decision == night.predict_from  # type: ignore[union-attr]
    with pytest.raises(NothingToDo, match="no version serves yet"):
        runner.run(Home.here(), "predict")


def test_predictions_that_are_due_before_a_model_is_trained_are_refused(repository: Path) -> None:
    with pytest.raises(ParamsError, match=r"predict.by_hours 1 is not after night.train_hours 1, by which"):
        params.override(repository, ["predict.to=out", "predict.by_hours=1"])


@pytest.fixture
def asked(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    """A night whose verdict waits for a person for an hour, in which predictions are due."""
    monkeypatch.chdir(home / "nights" / "2025-01-12")
    run, later = Path(records.RUN), datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    opened, settings = records.read(Night, run), Path("params.yaml")
    before = settings.read_text()
    settings.write_text(f"{before}predict: {{to: '{tmp_path}/out'}}\n")
    records.write(promotion(champion=1, challenger=2, approve_until=later), run)
    serving = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert serving is not None
    records.write(serving, run)  # as `open` does
    yield replace(opened, predict_until=later, predict_from=later, decide_until=later)
    settings.write_text(before)
    records.write(opened, run)
    for kind in (Predictions, Verdict, Approval, Events, Champion):
        records.path_of(kind, run).unlink(missing_ok=True)
    for mark in run.glob("*.waits"):
        mark.unlink()


def test_while_a_person_is_waited_for_the_champion_predicts_in_time_and_its_predictions_stand(
    asked: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, failure = datetime.now(UTC), Path(records.RUN, "predict.error")
    for predict_from, is_fault in ((asked.predict_from, False), (now, True), (now, False)):
        assert records.find(Predictions, Path(records.RUN)) is None
        records.write(replace(asked, predict_from=predict_from), Path(records.RUN))
        if is_fault:
            (tmp_path / "out").write_text("a file, where a folder has to be")
        for _ in range(2):  # tried at one of two looks
            with pytest.raises(NotYet):
                runner.run(Home.here(), "promote")
            assert failure.exists() == is_fault
        if is_fault:
            (tmp_path / "out").unlink()
            os.utime(failure, (0, 0))  # long ago
    made = records.read(Predictions, Path(records.RUN))
    assert (made.version, made.ahead_of, made.is_late) == (1, "promote", False)
    assert written(tmp_path / "out").num_rows == 60
    monkeypatch.setattr(predict, "_serving", lambda home: 2)  # as if the person had agreed since
    assert run() == made


def test_beside_the_question_of_airflow_the_champion_predicts_once_they_are_due(
    asked: Night, tmp_path: Path
) -> None:
    here, now = Home.here(), datetime.now(UTC).replace(microsecond=0)
    records.write(asked, here.records)
    with pytest.raises(NotYet, match=r"waits for a person .* predictions are written from "):
        runner.predict_ahead(here)
    assert not (tmp_path / "out").exists()
    records.write(replace(asked, predict_from=now), here.records)
    for _ in range(2):  # again after a kill
        runner.predict_ahead(here)
    made = records.read(Predictions, here.records)
    assert (made.version, made.ahead_of, made.is_late) == (1, "review", False)
    assert written(tmp_path / "out").num_rows == 60
    answer = {"champion": 1, "challenger": 2, "action": "promote", "by": "ann", "reason": "seen"}
    records.write(Approval(**answer, approved=True, answered_at=now), here.records)
    runner.predict_ahead(here)  # its worker died, and the person has answered before the retry


def test_beside_a_question_that_is_answered_nothing_is_predicted(asked: Night, tmp_path: Path) -> None:
    here, now = Home.here(), datetime.now(UTC).replace(microsecond=0)
    records.write(replace(asked, predict_from=now), here.records)
    answer = {"champion": 1, "challenger": 2, "action": "promote", "by": "ann", "reason": "seen"}
    records.write(Approval(**answer, approved=True, answered_at=now), here.records)
    with pytest.raises(NothingToDo, match="no person is asked any more"):
        runner.predict_ahead(here)
    assert not (tmp_path / "out").exists()


def test_people_hear_once_of_predictions_that_are_late_written_or_not(asked: Night) -> None:
    here, past = Home.here(), datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    records.write(replace(asked, predict_until=past, predict_from=past), here.records)
    late = [event for event in night_events.note(here.tonight) if event.subject == "predictions"]
    assert [event.kind for event in late] == ["late"]
    runner.predict_ahead(here)
    assert records.read(Predictions, here.records).is_late
    assert [event for event in events.read(here.tonight) if event.subject == "predictions"] == late
    assert late[0].reason == f"its predictions were to be written until {past:%Y-%m-%d %H:%M} UTC"


def test_people_hear_of_predictions_that_are_late_though_no_stage_waited(home: Path) -> None:
    here = Home.here()
    opened = records.read(Night, here.records)
    records.write(replace(opened, predict_until=opened.started_at), here.records)
    try:
        assert run().is_late
        assert "late" in [event.kind for event in events.read(here.tonight) if event.subject == "predictions"]
    finally:
        records.write(opened, here.records)


def test_the_command_line_writes_what_a_night_predicts_below_the_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert cli.main(["predict", "--night", NIGHT, "--to", "out/predictions.parquet"]) == 0
    assert pq.read_table(home / "out" / "predictions.parquet").num_rows == 60
    shutil.rmtree(home / "out")


@pytest.mark.parametrize("unit", ["+49 (30) 123", "=1+1", 'a "quoted"\r\nname', "plain"])
def test_lines_of_a_unit_go_out_of_a_csv_and_others_stay_byte_by_byte(tmp_path: Path, unit: str) -> None:
    units = [unit, "00123", None, "", unit, "-7", "caf\u00e9, (1)"]
    table = pa.table(
        {"zip": ["00123"] * 7, "unit": units, "prediction": [0.5, 1.0, 1e-9, None, 2.0, -3.0, 4.0]}
    )
    to, others = (destinations.OneFile(str(tmp_path / name)) for name in ("found.csv", "others.csv"))
    for place, rows in ((to, table), (others, table.take([1, 2, 3, 5, 6]))):
        pq.write_table(rows, tmp_path / "part-00000.parquet")
        place.write([tmp_path / "part-00000.parquet"], {})
    before = (tmp_path / "found.csv").read_bytes()
    assert to.erase("unit", {unit}, dry_run=True) == 2
    assert (tmp_path / "found.csv").read_bytes() == before
    assert to.erase("unit", {unit}, dry_run=False) == 2
    assert (tmp_path / "found.csv").read_bytes() == (tmp_path / "others.csv").read_bytes()
    assert to.erase("unit", {unit}, dry_run=False) == 0
    assert to.erase("account", {"00123"}, dry_run=False) == 0
    (tmp_path / "found.csv").write_bytes(b"\xef\xbb\xbf" + before)  # as a spreadsheet saves it
    assert to.erase("zip", {"00123"}, dry_run=True) == 7


@pytest.mark.parametrize(
    ("to", "url"),
    [
        ("s3://b/{day}", "s3://b/2025-01-11"),
        ("s3://b/{day:%Y/%m/%d}/x.csv", "s3://b/2025/01/11/x.csv"),
        ("${PLACE}/{day:%Y%m%d}", "s3://b/{x}/20250111"),
    ],
)
def test_the_day_is_filled_in_as_in_the_url_of_a_source(
    monkeypatch: pytest.MonkeyPatch, to: str, url: str
) -> None:
    monkeypatch.setenv("PLACE", "s3://b/{x}")
    assert destinations.url_of(to, day=DAY) == url


def test_each_place_is_erased_from_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Home(tmp_path)
    here.var.mkdir()
    monkeypatch.setenv("SHOP_URL", f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setenv("OUT", "out/{day}")
    for back in range(3):
        for to in ("$SHOP_URL", f"sqlite:///{tmp_path}/shop.db", "all.csv", "${OUT}"):
            destinations.note(here, to, day=DAY - timedelta(days=back), table="predictions")
    assert [name for name, _ in destinations.noted(here)] == ["$SHOP_URL", "all.csv", *["${OUT}"] * 3]
    monkeypatch.delenv("SHOP_URL")
    with pytest.raises(ParamsError, match=r"\$SHOP_URL names no place while \$SHOP_URL is not set"):
        list(destinations.noted(here))


@pytest.mark.parametrize("theirs", ["part-00000-5c4e-c000.snappy.parquet", "_SUCCESS"])
def test_a_folder_of_another_writer_is_refused_and_left_as_it_is(tmp_path: Path, theirs: str) -> None:
    pq.write_table(pa.table({"unit": ["a"]}), tmp_path / "part-00000.parquet")
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / theirs).touch()
    with pytest.raises(ParamsError, match=f"spark has files of another writer, such as {theirs}; name a fo"):
        destinations.ParquetFolder(str(tmp_path / "spark")).write([tmp_path / "part-00000.parquet"], {})
    assert [path.name for path in (tmp_path / "spark").iterdir()] == [theirs]


def test_a_file_that_cannot_hold_predictions_is_named_without_its_password(tmp_path: Path) -> None:
    pq.write_table(pa.table({"parts": [[1.0, 2.0]]}), tmp_path / "part-00000.parquet")
    with pytest.raises(ParamsError, match="cannot hold these predictions") as failure:
        destinations.OneFile("ftp://me:secret@host/all.csv").write([tmp_path / "part-00000.parquet"], {})
    assert "secret" not in str(failure.value)


def test_rows_of_a_unit_go_out_of_a_folder_and_its_count_follows(tmp_path: Path) -> None:
    for number, units in enumerate((["a", "b"], ["b", "c"])):
        pq.write_table(pa.table({"unit": units}), tmp_path / f"part-0000{number}.parquet")
    place = destinations.ParquetFolder("memory://erased/one")
    place.write(sorted(tmp_path.glob("part-*")), {"num_rows": 4})
    assert place.erase("unit", {"b"}, dry_run=False) == 2
    files = fsspec.filesystem("memory")
    assert json.loads(files.cat_file("/erased/one/_SUCCESS")) == {"num_rows": 2, "num_erased": 2}
    left = [pq.read_table(pa.BufferReader(files.cat_file(path))) for path in files.glob("/erased/one/part-*")]
    assert pa.concat_tables(left)["unit"].to_pylist() == ["a", "c"]


def test_a_night_that_could_not_be_opened_predicts_the_newest_clean_rows_of_the_nights_before(
    home: Path, tmp_path: Path
) -> None:
    os.chdir(home)
    before, settings = checkout.git("rev-parse", "HEAD", folder=home), Path("params.yaml")
    settings.write_text(f"{settings.read_text()}predict: {{to: '{tmp_path}/out/{{day}}'}}\n")
    checkout.git("commit", "--quiet", "--all", "--message=Write predictions", folder=home)
    try:
        with pytest.raises(ParamsError, match="nowhere:Backend does not import"):
            runner.night(Home.here(), day=date(2025, 1, 14), set=["backend=nowhere:Backend"])
    finally:
        checkout.git("reset", "--hard", "--quiet", before, folder=home)
    (entry,) = (entry for entry in ledger.history(Home.here()) if entry.night.id == "2025-01-14")
    made = entry.predictions
    assert made is not None
    assert (made.day, made.older, made.version, made.num_rows) == (date(2025, 1, 14), DAY, 1, 60)
    rows = written(tmp_path / "out" / "2025-01-14")
    assert rows.select(["account", "ts"]).equals(rows_of(DAY).select(["account", "ts"]))

"""Figures are computed once and kept; a day outside its limits is held until a person accepts it."""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.record_types import Batch, Distributions, Report
from daybreak.contract.sections import PrepareParams, ValidateParams
from daybreak.contract.table import Category, Float, Id, Int, Label, Table, Time, days
from daybreak.data.day_figures import WINDOW
from daybreak.data.day_history import FIGURES
from daybreak.data.partitions import CLEAN, part_of, partitions
from daybreak.data.source import write_partition
from daybreak.data.validator import validate
from tests.clones import home_here
from tests.minimal_records import minimal_night

FIRST, NUM_DAYS = date(2025, 1, 6), 60
TONIGHT = FIRST + timedelta(days=NUM_DAYS)
SALES = Table(
    time="ts",
    unit="account",
    columns={"id": Id(), "account": Id(), "item": Category(), "price": Float(min=0), "ts": Time()},
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def deliver(day: date, *, num: int = 200, times: float = 1.0) -> None:
    """Write a day's raw rows."""
    draw = np.random.default_rng(day.toordinal())
    num = round(num * draw.lognormal(0, 0.1))
    item = draw.integers(20, size=num)
    hours = draw.uniform(8, 20, num)
    columns = {
        "id": [f"{day}-{number}" for number in range(num)],
        "account": [f"account {number}" for number in draw.integers(50, size=num)],
        "item": [f"item {number}" for number in item],
        "price": ((1 + item) * times).tolist(),
        "ts": [datetime.combine(day, datetime.min.time()) + timedelta(hours=hour) for hour in hours],
    }
    part_of(day).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, SALES.schema()), part_of(day))


def judge(day: date, *late: date, suite: str = "drift: off\n", table: Table = SALES, **params: Any) -> Report:
    """Validate in the current folder."""
    Path("suite.yaml").write_text(suite)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    night = minimal_night(at, day=day)
    batch = Batch(day=day, num_rows=0, num_bytes=0, digest="", late_days=late)
    rules = ValidateParams(suite="suite.yaml", **params)
    return validate(home_here(), night, batch, table, params=rules, prepare=PrepareParams())


def broken(report: Report) -> list[str]:
    return [expectation.rule for expectation in report.expectations if not expectation.success]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose sixty days were validated on a first night."""
    folder = tmp_path_factory.mktemp("nights")
    days = [FIRST + timedelta(days=number) for number in range(NUM_DAYS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for day in days:
            deliver(day)
        judge(days[-1], *days[:-1])
    return folder


@pytest.fixture
def here(learned: Path, enter_copy: Callable[[Path], Path]) -> Path:
    """A copy of the learned days, as the current folder."""
    return enter_copy(learned)


def kept(days: Sequence[date]) -> list[str]:
    return [(FIGURES / f"day={day}.json").read_text() for day in days]


def test_a_sound_day_is_told_with_what_was_expected(here: Path) -> None:
    deliver(TONIGHT)
    report = judge(TONIGHT)
    assert broken(report) == []
    (volume,) = (one.rule for one in report.expectations if " rows, between " in one.rule)
    assert volume.startswith(f"Friday {TONIGHT}: ")


def test_an_unlike_day_is_held_until_a_person_accepts_it(here: Path) -> None:
    deliver(TONIGHT, times=1.5)
    before = sorted(path.name for path in FIGURES.iterdir())
    with pytest.raises(DataError, match=r"price by its item is 1\.5 times the usual, between") as held:
        judge(TONIGHT)
    assert f"--night n-accepted --set 'validate.accepted_days=[{TONIGHT}]'" in str(held.value)
    assert not part_of(TONIGHT, CLEAN).exists()
    assert sorted(path.name for path in FIGURES.iterdir()) == before
    report = judge(TONIGHT, accepted_days=(TONIGHT,))
    assert any("price by its item is 1.5 times" in rule for rule in broken(report))
    assert (FIGURES / f"day={TONIGHT}.json").exists()


def test_a_held_day_leaves_what_it_looks_like_beside_the_days_before(here: Path) -> None:
    deliver(TONIGHT, times=1.5)
    with pytest.raises(DataError):
        judge(TONIGHT)
    seen = records.read(Distributions, records.LOOKS)
    assert [one.figure for one in seen.figures if not one.holds] == ["price by item"]
    assert [one.figure for one in seen.figures if one.stops] == ["price by item"]
    assert seen.before == tuple(TONIGHT - timedelta(weeks=ago) for ago in (4, 3, 2, 1))
    item, price = seen.columns
    assert sum(item.tonight) == pytest.approx(1) and len(item.values) == 13
    assert price.tonight[-1] > 2 * price.before[-1]


def test_a_day_that_drifts_is_held_until_a_person_accepts_it(here: Path) -> None:
    deliver(TONIGHT, times=1.5)
    suite = "drift: {price: 0.2}\n"
    with pytest.raises(DataError, match="is unlike the last 4 Fridays: price 0") as held:
        judge(TONIGHT, suite=suite, false_alarms_per_year=0)
    assert f"--night n-accepted --set 'validate.accepted_days=[{TONIGHT}]'" in str(held.value)
    report = judge(TONIGHT, suite=suite, false_alarms_per_year=0, accepted_days=(TONIGHT,))
    assert [rule[:40] for rule in broken(report)] == [f"{TONIGHT} is unlike the last 4 Fridays:"[:40]]


def test_what_an_unlike_day_comes_to_is_a_param(here: Path) -> None:
    deliver(TONIGHT, num=10)
    assert any("rows, between" in rule for rule in broken(judge(TONIGHT, unusual_day="warn")))
    shutil.rmtree(part_of(TONIGHT, CLEAN).parent)
    (FIGURES / f"day={TONIGHT}.json").unlink()
    with pytest.raises(DataError, match=r"change its severity \(validate.unusual_day"):
        judge(TONIGHT, unusual_day="refuse", accepted_days=(TONIGHT,))


def test_the_suite_says_another_for_a_figure_or_for_all(here: Path) -> None:
    deliver(TONIGHT, times=1.5)
    silent = "drift: off\nlimits: {price by item: warn}\n"
    assert any("price by its item" in rule for rule in broken(judge(TONIGHT, suite=silent)))
    looks = records.read(Distributions, records.LOOKS)
    assert [(one.holds, one.stops) for one in looks.figures if one.figure == "price by item"] == [
        (False, False)
    ]
    (FIGURES / f"day={TONIGHT}.json").unlink()
    assert broken(judge(TONIGHT, suite="drift: off\nlimits: off\n")) == []
    assert broken(judge(TONIGHT, false_alarms_per_year=0)) == []


def test_a_home_without_figures_computes_the_same_ones(here: Path) -> None:
    days = [FIRST + timedelta(days=number) for number in range(NUM_DAYS)]
    before = kept(days)
    shutil.rmtree(FIGURES)
    deliver(TONIGHT)
    judge(TONIGHT)
    assert [json.loads(text)["figures"] for text in kept(days)] == [
        json.loads(text)["figures"] for text in before
    ]


def test_figures_that_another_release_wrote_are_computed_again(here: Path) -> None:
    days = [FIRST + timedelta(days=number) for number in range(NUM_DAYS)]
    before = kept(days)
    for path in FIGURES.glob("day=*.json"):
        old = json.loads(path.read_text())
        old["figures"] = {name: values[2:] for name, values in old["figures"].items()}
        path.write_text(json.dumps(old | {"of": "other code"}) + "\n")
    deliver(TONIGHT)
    assert broken(judge(TONIGHT)) == []
    assert kept(days) == before
    deliver(TONIGHT, times=1.5)
    with pytest.raises(DataError, match="price by its item"):
        judge(TONIGHT)


def test_limits_of_a_suite_that_no_figure_is_called_are_told(here: Path) -> None:
    deliver(TONIGHT)
    (line,) = broken(judge(TONIGHT, suite="drift: off\nlimits: {price by item: warn, price by hour: off}\n"))
    assert line.startswith("the suite's limits name price by hour, which no figure of a day is called")


def test_figures_are_computed_again_only_of_what_is_new(here: Path) -> None:
    path = FIGURES / f"day={FIRST}.json"
    marked = json.loads(path.read_text())
    marked["figures"]["rows"][3] = 123.0
    path.write_text(json.dumps(marked) + "\n")
    deliver(TONIGHT)
    judge(TONIGHT)
    assert json.loads(path.read_text())["figures"]["rows"][3] == 123.0
    deliver(FIRST)
    part_of(FIRST).write_bytes(part_of(TONIGHT).read_bytes())  # restated
    judge(TONIGHT, suite="drift: off\nrows: []\ncolumns: {one: '1'}\n", max_quarantined=1)
    assert json.loads(path.read_text())["figures"]["rows"][3] != 123.0


def test_a_late_day_is_judged_and_an_unchanged_one_is_not_again(here: Path) -> None:
    tomorrow = TONIGHT + timedelta(days=1)
    deliver(TONIGHT, times=1.5)
    deliver(tomorrow)
    (kept_out,) = [rule for rule in broken(judge(tomorrow, TONIGHT)) if "came in before" in rule]
    assert f"stays out of training: {TONIGHT} is unlike the 60 days before it" in kept_out
    judge(tomorrow, TONIGHT, accepted_days=(TONIGHT,))
    after = tomorrow + timedelta(days=1)
    deliver(after)
    assert not any(f"{TONIGHT}" in rule for rule in broken(judge(after, TONIGHT)))


def test_a_day_restated_in_a_night_that_is_refused_reaches_training_with_the_next(here: Path) -> None:
    restated, good = FIRST + timedelta(days=50), TONIGHT + timedelta(days=1)
    before = part_of(restated, CLEAN).read_bytes()
    rows = pq.read_table(part_of(restated), partitioning=None)
    write_partition(rows.slice(1), part_of(restated).parent)
    deliver(TONIGHT, times=1.5)
    with pytest.raises(DataError, match=f"{TONIGHT} is unlike"):
        judge(TONIGHT, restated)
    assert part_of(restated, CLEAN).read_bytes() == before
    deliver(good)
    report = judge(good)
    assert len(pq.read_table(part_of(restated, CLEAN), partitioning=None)) == len(rows) - 1
    assert [rule[:30] for rule in broken(report)] == [f"{TONIGHT} came in before and "]


def test_new_rows_of_an_old_day_that_do_not_pass_leave_those_that_did(here: Path) -> None:
    restated, night, later = FIRST + timedelta(days=50), TONIGHT, TONIGHT + timedelta(days=1)
    before = part_of(restated, CLEAN).read_bytes()
    deliver(restated, times=1.5)
    deliver(night)
    with pytest.raises(DataError, match=f"{restated} is unlike"):
        judge(night, restated)
    deliver(later)
    for day in (night, later):
        (kept,) = broken(judge(day))
        assert kept.startswith(f"{restated} came in before and is trained on as it was before: {restated} is")
        assert part_of(restated, CLEAN).read_bytes() == before


def test_a_day_that_was_refused_and_is_delivered_again_stops_no_later_night(here: Path) -> None:
    deliver(TONIGHT, times=1.5)
    with pytest.raises(DataError, match=f"{TONIGHT} is unlike"):
        judge(TONIGHT)
    deliver(TONIGHT, times=1.6)
    deliver(TONIGHT + timedelta(days=1))
    (kept_out,) = broken(judge(TONIGHT + timedelta(days=1), TONIGHT))
    assert kept_out.startswith(f"{TONIGHT} came in before and stays out of training")


def test_a_short_history_says_that_there_are_no_limits_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        deliver(FIRST + timedelta(days=number))
    report = judge(FIRST + timedelta(days=2), FIRST, FIRST + timedelta(days=1))
    assert "daily limits: none yet, 2 of 24 earlier days to learn from" in {
        one.rule for one in report.expectations
    }


def test_labels_that_come_late_are_judged_when_they_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    late = Table(
        time="ts", columns=SALES.columns | {"fraud": Int(nullable=True)}, label=Label("fraud", days(7))
    )
    every = [FIRST + timedelta(days=number) for number in range(50)]
    wrong = every[-8]  # known on the last day
    for day in every:
        deliver(day)
        rows = pq.read_table(part_of(day), partitioning=None)
        rate = 0.9 if day == wrong else 0.1
        fraud = (np.random.default_rng(day.toordinal()).random(len(rows)) < rate).astype(int)
        pq.write_table(rows.append_column("fraud", pa.array(fraud)).select(list(late.columns)), part_of(day))
    judge(every[-2], *every[:-2], table=late)
    with pytest.raises(DataError, match=f"{wrong} is unlike .* the mean fraud is [89]"):
        judge(every[-1], table=late)
    for later in (1, 2):  # they go on without the day
        day = every[-1] + timedelta(days=later)
        deliver(day)
        rows = pq.read_table(part_of(day), partitioning=None)
        fraud = pa.array(np.random.default_rng(later).random(len(rows)) < 0.1).cast(pa.int64())
        pq.write_table(rows.append_column("fraud", fraud).select(list(late.columns)), part_of(day))
        (line,) = broken(judge(day, table=late))
        assert re.search(
            f"{wrong} came in before and stays out of training.*: {wrong} is unlike .* fraud", line
        )
        assert wrong not in partitions(CLEAN)
    judge(day, table=late, accepted_days=[wrong])
    assert wrong in partitions(CLEAN)


@pytest.mark.parametrize(("num_days", "expected"), [(3, "0 %"), (40, "[0-9.]+ %")])
def test_a_day_whose_labels_are_all_gone_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_days: int, expected: str
) -> None:
    """After a single day with labels, and by limits where they are learned; a day may be accepted."""
    monkeypatch.chdir(tmp_path)
    table = Table(time="ts", columns=SALES.columns | {"fraud": Int(min=0, max=1)}, label=Label("fraud"))
    every = [FIRST + timedelta(days=number) for number in range(num_days)]
    for day in every:
        deliver(day)
        rows = pq.read_table(part_of(day), partitioning=None)
        fraud = [None if day == every[-1] else number % 2 for number in range(len(rows))]
        pq.write_table(
            rows.append_column("fraud", pa.array(fraud, pa.int64())).select(list(table.columns)), part_of(day)
        )
    judge(every[-2], *every[:-2], table=table)
    gone = f"fraud is missing in 100 % of the rows, between 0 % and {expected} expected"
    with pytest.raises(DataError, match=f"{every[-1]} is unlike .* {gone}"):
        judge(every[-1], table=table)
    report = judge(every[-1], table=table, accepted_days=[every[-1]])
    assert [name for name in broken(report) if "fraud is missing in 100 %" in name] != []


def test_labels_that_are_not_known_yet_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = SALES.columns | {"fraud": Int(nullable=True), "kind": Category(nullable=True)}
    every = [FIRST + timedelta(days=number) for number in range(50)]
    for label in ("fraud", "kind"):
        late = Table(time="ts", columns=columns, label=Label(label, days(1)))
        for day in every:
            deliver(day)
            rows = pq.read_table(part_of(day), partitioning=None)
            for name in ("fraud", "kind"):
                known = [1 if name == "fraud" else "a"] * len(rows)
                values = pa.array([None] * len(rows) if day == every[-1] and name == label else known)
                rows = rows.append_column(name, values.cast(late.schema().field(name).type))
            pq.write_table(rows.select(list(late.columns)), part_of(day))
        assert broken(judge(every[-1], *every[:-1], table=late)) == []
        known, unknown = (json.loads((FIGURES / f"day={day}.json").read_text()) for day in every[-2:])
        assert [name for name in unknown["figures"] if label in name] == []
        assert [name for name in known["figures"] if label in name] != []


def test_a_night_reads_its_own_rows_alone_and_finds_what_it_would_find_in_all(here: Path) -> None:
    deliver(TONIGHT)
    shutil.copytree(here, here.parent / "anew")
    for day in range(NUM_DAYS):
        part_of(FIRST + timedelta(days=day), CLEAN).write_bytes(b"not a table")
    judge(TONIGHT)
    os.chdir(here.parent / "anew")
    for path in FIGURES.glob("*.npz"):
        path.unlink()
    judge(TONIGHT)
    assert kept([TONIGHT]) == [(here / FIGURES / f"day={TONIGHT}.json").read_text()]
    assert len([*(here / FIGURES).glob("*.npz")]) == WINDOW


def test_a_far_larger_day_leaves_the_figures_of_those_before_it_alone(here: Path) -> None:
    before = kept([TONIGHT - timedelta(days=1)])
    deliver(TONIGHT, num=40_000)
    for path in FIGURES.glob("*.json"):
        path.unlink()
    judge(TONIGHT, unusual_day="warn")
    assert kept([TONIGHT - timedelta(days=1)]) == before


def test_a_sample_that_is_torn_is_taken_anew(here: Path) -> None:
    deliver(TONIGHT)
    for path in FIGURES.glob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    assert broken(judge(TONIGHT)) == []


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose rows became fewer by 1.5 % on each of seventy days, validated on a first night."""
    folder = tmp_path_factory.mktemp("nights")
    days = [FIRST + timedelta(days=number) for number in range(70)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, day in enumerate(days):
            deliver(day, num=round(600 * 0.985**number))
        judge(days[-1], *days[:-1])
    return folder


def test_slow_drift_is_said_and_held_only_where_a_person_asks_for_that(
    drifted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(drifted, tmp_path / "night")
    monkeypatch.chdir(tmp_path / "night")
    tonight = FIRST + timedelta(days=70)
    deliver(tonight, num=round(600 * 0.985**70))
    with pytest.raises(
        DataError, match=f"^the data drifts slowly up to {tonight}: .* rows, 59 days before: "
    ) as held:
        judge(tonight, slow_drift="hold")
    assert f"--set 'validate.accepted_days=[{tonight}]'" in str(held.value)
    report = judge(tonight)
    assert [one.figure for one in report.trends] == ["rows"]
    assert broken(report) == [f"slow drift: {report.trends[0].words}"]
    assert judge(tonight, slow_drift="off").trends == ()
    assert judge(tonight, slow_drift="hold", suite="drift: off\nlimits: {rows: warn}\n").trends
    assert judge(tonight, slow_drift="hold", accepted_days=(tonight,)).trends == report.trends
    after = tonight + timedelta(days=1)
    deliver(after, num=round(600 * 0.985**71))
    assert judge(after, slow_drift="hold").trends == ()  # looked at anew from the accepted day on

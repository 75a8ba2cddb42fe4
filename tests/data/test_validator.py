"""Corruptions are caught, clean nights pass, and no row is lost on the way."""

import re
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.record_parts import Expectation
from daybreak.contract.record_types import Batch, Dataset, Night, Report
from daybreak.contract.sections import PrepareParams, ValidateParams
from daybreak.data import suite, validator
from daybreak.data.bad_cells import with_delivered_texts
from daybreak.data.casts import conform
from daybreak.data.partitions import RAW, part_of, partitions
from daybreak.data.source import write_partition
from daybreak.data.validator import CLEAN, DOCS, QUARANTINE, validate
from daybreak.examples.shop.simulated_shop import Shop
from daybreak.examples.shop.sold_lines import LINES
from daybreak.storage.ledger import Entry
from tests.clones import home_here
from tests.minimal_records import minimal_night

REPOSITORY = Path(__file__).parents[2]
SUITE = REPOSITORY / "data/expectations.yaml"
TONIGHT = date(2025, 3, 14)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

EDITED = """rows:
  - {name: quantity is in range, type: expect_column_values_to_be_between,
     kwargs: {column: quantity, min_value: -40, max_value: 40}}
"""
Change = Callable[[pd.DataFrame], pd.DataFrame | None]


def night(day: date) -> Night:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return minimal_night(now, day=day)


def sections(suite: Path, **params: Any) -> dict[str, Any]:
    return {"params": ValidateParams(suite=str(suite), **params), "prepare": PrepareParams()}


def judge(day: date, *late: date, **params: Any) -> Report:
    """Validate in the current folder, the day and late ones."""
    batch = Batch(day=day, num_rows=0, num_bytes=0, digest="", late_days=late)
    return validate(home_here(), night(day), batch, LINES, **sections(SUITE, **params))


def judged_by(folder: Path, text: str) -> Report:
    """Validate tonight by a suite of that text."""
    path = folder / "suite.yaml"
    path.write_text(text)
    batch = Batch(day=TONIGHT, num_rows=0, num_bytes=0, digest="", late_days=())
    return validate(home_here(), night(TONIGHT), batch, LINES, **sections(path, max_quarantined=0.2))


def rows_of(folder: Path, day: date) -> pd.DataFrame:
    path = part_of(day, folder)
    return pd.read_parquet(path, partitioning=None) if path.exists() else pd.DataFrame()


def change(change: Change, day: date = TONIGHT) -> None:
    """Apply the change to the raw rows of the day."""
    frame = rows_of(RAW, day)
    frame = frame if (changed := change(frame)) is None else changed
    part_of(day).unlink()
    rows = pa.Table.from_pandas(frame, preserve_index=False)
    texts = {"large_string": pa.string(), "null": pa.string()}  # as ingest writes them
    fields = [pa.field(field.name, texts.get(str(field.type), field.type)) for field in rows.schema]
    pq.write_table(rows.cast(pa.schema(fields)), part_of(day))


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five weeks of the shop before tonight, validated, and tonight's raw rows."""
    folder = tmp_path_factory.mktemp("nights")
    shop = Shop(seed=1, start=TONIGHT - timedelta(days=34), today=TONIGHT + timedelta(days=1), late_days={})
    days = shop.days()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for day in days:
            shop.fetch(day, part_of(day).parent)
        hidden = part_of(TONIGHT).rename(folder / "tonight.parquet")
        part_of(TONIGHT).parent.rmdir()
        judge(days[-2], *days[:-2])
        part_of(TONIGHT).parent.mkdir()
        hidden.rename(part_of(TONIGHT))
    return folder


@pytest.fixture
def here(validated: Path, enter_copy: Callable[[Path], Path]) -> Path:
    """A copy of the validated nights, as the current folder."""
    return enter_copy(validated)


@pytest.fixture(scope="module")
def undisturbed(validated: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, int]]:
    """Rows that tonight's own quarantine takes, and of those the ones of each rule."""
    folder = tmp_path_factory.mktemp("undisturbed") / "night"
    shutil.copytree(validated, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        report = judge(TONIGHT)
        caught = rows_of(QUARANTINE, TONIGHT).get("(rule)", pd.Series(dtype=str)).value_counts()
    return report.num_quarantined, caught.to_dict()


def some(frame: pd.DataFrame, share: float) -> "pd.Index[int]":
    """The same rows of the frame at each call, sales alone."""
    sales = frame[frame["quantity"] > 0]
    return sales.sample(min(len(sales), round(share * len(frame))), random_state=1).index


def put(column: str, value: Any, share: float) -> Change:
    def corrupt(frame: pd.DataFrame) -> None:
        frame.loc[some(frame, share), column] = value

    return corrupt


def times(column: str, factor: float, share: float = 1) -> Change:
    def corrupt(frame: pd.DataFrame) -> None:
        frame.loc[some(frame, share), column] *= factor

    return corrupt


def swap(one: str, other: str) -> Change:
    return lambda frame: frame.assign(**{one: frame[other], other: frame[one]})


def block_twice(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, frame.iloc[: round(0.03 * len(frame))]])


# One of each kind; that each rule fails the rows that it has to is in test_row_by_row.py.
QUARANTINED: dict[str, tuple[Change, str]] = {
    "no price": (put("price", None, 0.02), "price is there"),
    "a block twice": (block_twice, "a line comes once"),
}

REFUSED: dict[str, tuple[Change, str]] = {
    "a tenth without price": (put("price", None, 0.1), "worst columns: price"),
    "quantity as text": (lambda f: f.assign(quantity=f["quantity"].astype(str)), "quantity is .*string"),
    "a column dropped": (lambda f: f.drop(columns="country"), "country is absent"),
    "a column renamed": (lambda f: f.rename(columns={"price": "cost"}), "cost is new, price is absent"),
    "items and descriptions swapped": (swap("item", "description"), "worst columns: item"),
    "an unknown country floods in": (put("country", "Atlantis", 0.6), "country 0"),
    "all customers missing": (lambda f: f.assign(customer=None), "not nearly all are guests"),
    "the day is cut short": (lambda f: f.head(15), "a day has enough rows"),
    "prices in pence": (times("price", 100), "price"),
    "one item alone": (put("item", "10002", 1), "a day sells several items|item"),
    "all of it cancelled": (
        lambda f: f.assign(invoice="C" + f["invoice"].str[-6:], quantity=-f["quantity"].abs()),
        "not half is cancelled",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUARANTINED)
def test_a_corrupt_row_goes_to_quarantine_with_its_rule(
    name: str, here: Path, undisturbed: tuple[int, dict[str, int]]
) -> None:
    corrupt, rule = QUARANTINED[name]
    num_quarantined, caught = undisturbed
    num_rows = len(rows_of(RAW, TONIGHT))
    change(corrupt)
    report = judge(TONIGHT, max_quarantined=0.1)
    assert report.num_clean + report.num_quarantined == report.num_rows == len(rows_of(RAW, TONIGHT))
    bad = rows_of(QUARANTINE, TONIGHT)
    assert (bad["(rule)"] == rule).sum() >= caught.get(rule, 0) + 0.008 * num_rows
    assert report.num_quarantined > num_quarantined


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_corrupt_day_stops_the_night_and_changes_nothing(name: str, here: Path) -> None:
    corrupt, reason = REFUSED[name]
    change(corrupt)
    before = records.digest(CLEAN), records.digest(QUARANTINE)
    with pytest.raises(DataError, match=reason):
        judge(TONIGHT)
    assert (records.digest(CLEAN), records.digest(QUARANTINE)) == before
    assert (DOCS / "index.html").exists()


@pytest.mark.slow
def test_the_bad_rows_of_a_night_that_is_stopped_are_kept_until_it_passes(here: Path) -> None:
    judge(TONIGHT)
    before = rows_of(QUARANTINE, TONIGHT)
    change(put("price", -1.0, 0.2))
    with pytest.raises(DataError, match=r"\(\d+\.\d+ %\) fail the rules, more than 0\.01 %"):
        judge(TONIGHT, max_quarantined=0.0001)
    bad = rows_of(validator.REFUSED, TONIGHT)
    assert (bad["price"] == -1.0).sum() > 0.15 * len(rows_of(RAW, TONIGHT))
    assert set(bad["(rule)"]) >= {"price is in range"}
    pd.testing.assert_frame_equal(rows_of(QUARANTINE, TONIGHT), before)
    judge(TONIGHT, max_quarantined=1, max_drift=1, false_alarms_per_year=0)
    assert not validator.REFUSED.exists()
    assert len(rows_of(QUARANTINE, TONIGHT)) == len(bad)


@pytest.mark.slow
def test_clean_and_quarantined_rows_are_the_rows_that_came_in(here: Path) -> None:
    judge(TONIGHT)
    for day in partitions(RAW):
        raw, clean, bad = (rows_of(folder, day) for folder in (RAW, CLEAN, QUARANTINE))
        both = pd.concat([clean, bad.drop(columns="(rule)")]) if len(bad) else clean
        columns = list(LINES.columns)
        pd.testing.assert_frame_equal(
            both.sort_values(columns).reset_index(drop=True), raw.sort_values(columns).reset_index(drop=True)
        )


@pytest.mark.slow
def test_a_row_with_a_bad_cell_goes_to_quarantine_with_the_text_as_delivered(here: Path) -> None:
    rows = pq.read_table(part_of(TONIGHT), partitioning=None)
    prices = ["free", *rows["price"].cast(pa.string()).to_pylist()[1:]]
    delivered = rows.set_column(rows.column_names.index("price"), "price", pa.array(prices))
    part_of(TONIGHT).unlink()
    write_partition(conform(delivered, LINES, origin="tonight"), part_of(TONIGHT).parent)
    report = judge(TONIGHT)
    assert (report.num_rows, report.num_clean + report.num_quarantined) == (len(rows), len(rows))
    bad = rows_of(QUARANTINE, TONIGHT)
    of_cell = bad[bad["(rule)"] == "price is a Float"]
    assert [with_delivered_texts(row)["price"] for row in of_cell.to_dict("records")] == ["free"]
    assert pq.read_schema(part_of(TONIGHT, CLEAN)).equals(LINES.schema())
    assert {one.rule: one.num_failed for one in report.expectations}["price is a Float"] == 1


def test_more_bad_cells_than_may_be_quarantined_stop_the_night(here: Path) -> None:
    rows = pq.read_table(part_of(TONIGHT), partitioning=None)
    prices = [str(price) if n % 3 else "free" for n, price in enumerate(rows["price"].to_pylist())]
    delivered = rows.set_column(rows.column_names.index("price"), "price", pa.array(prices))
    part_of(TONIGHT).unlink()
    write_partition(conform(delivered, LINES, origin="tonight"), part_of(TONIGHT).parent)
    with pytest.raises(DataError, match=r"rows .* fail the rules, more than .*; worst columns: price"):
        judge(TONIGHT)


def test_a_day_that_was_restated_to_no_rows_leaves_training_and_is_not_judged(here: Path) -> None:
    emptied = TONIGHT - timedelta(days=7)
    assert emptied in partitions(CLEAN)
    part_of(emptied).unlink()
    write_partition(LINES.schema().empty_table(), part_of(emptied).parent)
    judge(TONIGHT, emptied)
    assert emptied not in {*partitions(CLEAN), *partitions(QUARANTINE)}
    assert TONIGHT in partitions(CLEAN)


def test_a_partition_is_replaced_and_never_written_into(here: Path) -> None:
    digest = judge(TONIGHT).digest
    part = part_of(TONIGHT, CLEAN)
    (here / "cache.parquet").hardlink_to(part)
    part.chmod(0o444)
    content = part.read_bytes()
    change(put("price", 0.0, 0.02))
    assert judge(TONIGHT).digest != digest
    assert (here / "cache.parquet").read_bytes() == content


@pytest.mark.slow
def test_the_data_docs_show_our_names_of_the_rules_and_need_no_network(here: Path) -> None:
    judge(TONIGHT)
    text = (DOCS / "rows.html").read_text()
    assert all(rule.name in text for rule in suite.rules_of(suite.load(SUITE), LINES))
    pages = list(DOCS.rglob("*.html"))
    assert sorted(one.name for one in pages) == ["days.html", "index.html", "rows.html", "schema.html"]
    for one in pages:
        linked = re.findall(r"(?:href|src)=['\"]?([^'\" >]+)", one.read_text())
        assert all((one.parent / link).exists() for link in linked if not link.startswith("#")), linked
        assert "<script" not in one.read_text()
        assert "url(" not in one.read_text()


def test_a_partition_is_opened_once_for_all_its_columns(here: Path) -> None:
    day = partitions(CLEAN)[0]
    values = validator._clean_rows(day, {})
    part_of(day, CLEAN).unlink()
    assert len(values("price")) == len(values("quantity"))


@pytest.mark.slow
def test_validating_again_changes_no_byte_whatever_a_killed_call_left(here: Path) -> None:
    digest = judge(TONIGHT).digest
    part_of(TONIGHT, CLEAN).with_name(".part.parquet").write_bytes(b"torn")
    assert judge(TONIGHT).digest == digest


@pytest.mark.slow
def test_changed_rules_judge_all_days_again(here: Path) -> None:
    first = judge(TONIGHT)
    strict = here / "strict.yaml"
    strict.write_text(SUITE.read_text().replace("rows:\n", EDITED))
    batch = Batch(day=TONIGHT, num_rows=0, num_bytes=0, digest="", late_days=())
    second = validate(home_here(), night(TONIGHT), batch, LINES, **sections(strict, max_quarantined=0.2))
    assert second.num_rows > 20 * first.num_rows
    assert all((rows_of(CLEAN, day)["quantity"] <= 40).all() for day in partitions(CLEAN))
    assert judge(TONIGHT).digest == first.digest  # a function of (raw, rules), whatever was before


@pytest.mark.slow
def test_a_day_that_no_night_has_passed_comes_in_with_the_next_and_one_that_was_refused_stays_out(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A night may have ended before it judged the day, or have refused it; edited rules change neither."""
    ended, refused, num_days = TONIGHT - timedelta(days=1), TONIGHT - timedelta(days=2), len(partitions(RAW))
    for day in (ended, refused):
        shutil.rmtree(part_of(day, CLEAN).parent)
    whole = part_of(refused).read_bytes()
    change(lambda rows: rows.head(len(rows) // 20), refused)
    for text in (SUITE.read_text(), SUITE.read_text().replace("rows:\n", EDITED)):
        report = judged_by(here, text)
        assert set(partitions(RAW)) - set(partitions(CLEAN)) == {refused}
        assert f"{refused} stays out of training: {refused} is unlike the" in caplog.text
        (kept_out,) = [one.rule for one in report.expectations if "stays out of training" in one.rule]
        assert kept_out.startswith(f"{refused} came in before")
        caplog.clear()
    part_of(refused).write_bytes(whole)
    judge(TONIGHT)
    assert len(partitions(CLEAN)) == num_days


@pytest.mark.parametrize("how", ["like", "unlike"])
def test_weeks_are_held_against_the_anchor_once_a_week(how: str) -> None:
    rule = f"slow drift: the last 14 days are {how} those that version 3, the anchor, learned from"
    looked = Report(
        num_rows=1,
        num_clean=1,
        num_quarantined=0,
        expectations=(Expectation(rule=rule, column="(day)", num_failed=0, success=how == "like"),),
        drift=(),
        digest="",
    )
    night = minimal_night(datetime(2026, 1, 20, tzinfo=UTC), id="tonight")

    def known(days_ago: int, *, anchor: int = 3, name: str = "before") -> bool:
        before = minimal_night(night.started_at - timedelta(days=days_ago), id=name)
        past = [Entry(commit="", subject="", rollback=False, night=before, report=looked)]
        return validator.was_looked_at(past, night, anchor)

    assert [known(6), known(7), known(1, anchor=33), known(0, name="tonight")] == [True, False, False, False]


@pytest.mark.slow
def test_weeks_that_are_unlike_those_of_the_anchor_are_a_warning(here: Path) -> None:
    days, params = partitions(CLEAN), ValidateParams(suite=str(SUITE))
    dataset = Dataset(digest="", num_samples=1, num_bytes=1, first_day=days[0], last_day=days[-15])

    def warned() -> tuple[Expectation, ...]:
        return validator.unlike_anchor(
            days[-1], 3, dataset, {}, LINES, suite=suite.load(SUITE), params=params
        )

    (like,) = warned()
    assert like.success and like.rule.startswith("slow drift: the last 14 days are like those")
    for day in days[-14:]:
        rows = pq.read_table(part_of(day, CLEAN), partitioning=None)
        place = rows.schema.get_field_index("price")
        dearer = pc.multiply(rows["price"], 3.0).cast(rows.schema.field("price").type)
        part_of(day, CLEAN).unlink()
        pq.write_table(rows.set_column(place, rows.schema.field("price"), dearer), part_of(day, CLEAN))
    (one,) = warned()
    assert not one.success
    assert re.match(
        "slow drift: the last 14 days are unlike those that version 3, the anchor, learned from: "
        r"price .*, not .* \(0\.\d+, limit 0\.\d+\)$",
        one.rule,
    )
    assert (
        validator.unlike_anchor(days[-8], 3, dataset, {}, LINES, suite=suite.load(SUITE), params=params) == ()
    )  # a week is too few


@pytest.mark.slow
def test_without_earlier_weekdays_drift_is_skipped_and_said_so(here: Path) -> None:
    shutil.rmtree(CLEAN)
    for day in partitions(RAW):
        if day < TONIGHT - timedelta(days=10):
            shutil.rmtree(part_of(day).parent)
    report = judge(TONIGHT)
    assert report.drift == ()
    assert "drift: skipped, 1 of 2 earlier Fridays to compare with" in {e.rule for e in report.expectations}

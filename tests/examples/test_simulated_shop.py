"""The shop: pure in (seed, day), fast, dirty as real data is, and worth learning from."""

import time
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.records import digest
from daybreak.contract.sections import Plug
from daybreak.data.casts import conform
from daybreak.data.partitions import PART
from daybreak.examples.shop.simulated_shop import Shop
from daybreak.examples.shop.sold_lines import LINES

TODAY = date(2025, 7, 1)


def shop(**arguments: object) -> Shop:
    return Shop(**({"seed": 7, "today": TODAY, "late_days": {}} | arguments))  # type: ignore[arg-type]


def fetched(source: Shop, day: date, folder: Path) -> pa.Table:
    source.fetch(day, folder / str(day))
    return pq.read_table(folder / str(day) / PART)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Half a year, with a column `day`."""
    folder, source = tmp_path_factory.mktemp("shop"), shop()
    tables = [(day, fetched(source, day, folder)) for day in source.days()]
    return pa.concat_tables(t.append_column("day", pa.repeat(pa.scalar(day), len(t))) for day, t in tables)


def shares(rows: pa.Table, column: str) -> np.ndarray:
    counts = np.sort(rows[column].drop_null().value_counts().field("counts").to_numpy())[::-1]
    return counts / counts.sum()


@settings(max_examples=8)
@given(
    back=st.integers(1, 170),
    other_start=st.integers(171, 2000),
    other_today=st.integers(0, 400),
    warm=st.lists(st.integers(1, 170), max_size=3),
)
def test_a_day_depends_on_seed_and_day_alone(
    back: int,
    other_start: int,
    other_today: int,
    warm: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("pure")
    one = shop(closed_weekday=None)
    limits = {"start": TODAY - timedelta(days=other_start), "today": TODAY + timedelta(days=other_today)}
    two = shop(closed_weekday=None, **limits)
    days = set(one.days())
    for number in warm:  # what was asked for before plays no part
        if (day := TODAY - timedelta(days=number)) in days:
            two.fetch(day, folder / "warm")
    if (day := TODAY - timedelta(days=back)) in days:
        one.fetch(day, folder / "one")
        two.fetch(day, folder / "two")
        assert digest(folder / "one") == digest(folder / "two")


def test_another_seed_is_another_shop(tmp_path: Path) -> None:
    day = shop().days()[-1]
    assert not fetched(shop(), day, tmp_path / "a").equals(fetched(shop(seed=8), day, tmp_path / "b"))


@pytest.mark.slow
def test_half_a_year_takes_less_than_five_seconds(tmp_path: Path) -> None:
    started = time.process_time()
    source = shop()
    for day in source.days():
        source.fetch(day, tmp_path / str(day))
    assert len(source.days()) > 150
    assert time.process_time() - started < 5


def test_days_end_yesterday_and_leave_out_the_closed_weekday_and_holidays() -> None:
    days = shop(start="2024-12-20", closed_weekday=5).days()
    assert days[0] == date(2024, 12, 20)
    assert days[-1] == TODAY - timedelta(days=1)
    assert {day.weekday() for day in days} == {0, 1, 2, 3, 4, 6}
    assert not {date(2024, 12, 25), date(2024, 12, 26), date(2025, 1, 1)} & set(days)


def test_by_the_clock_there_is_history_up_to_the_last_days() -> None:
    days = Plug.model_validate({"use": "daybreak.examples.shop.simulated_shop:Shop", "seed": 7}).make().days()
    assert len(days) > 140
    assert date.today() - days[-1] <= timedelta(days=7)


def test_a_late_day_comes_in_when_it_is_due(tmp_path: Path) -> None:
    day = date(2025, 6, 26)
    assert day not in shop(late_days={day: 3}, today=day + timedelta(days=3)).days()
    assert day in shop(late_days={day: 3}, today=day + timedelta(days=4)).days()
    with pytest.raises(DataError, match="nothing for 2025-06-26"):
        shop(late_days={day: 9}).fetch(day, tmp_path)


def test_some_days_are_late_by_themselves() -> None:
    late = []
    for day in [date(2025, 1, 1) + timedelta(days=n) for n in range(180)]:
        limits = {"start": day, "today": day + timedelta(days=1)}
        late += [day] if shop(**limits).days() and not shop(late_days=None, **limits).days() else []
    assert 2 <= len(late) <= 15


def test_an_empty_day_is_delivered_without_rows(tmp_path: Path) -> None:
    day = shop().days()[-1]
    source = shop(empty_days=[str(day)])
    assert day in source.days()
    assert fetched(source, day, tmp_path).num_rows == 0


def test_a_schema_change_is_delivered_and_does_not_conform(tmp_path: Path) -> None:
    day = shop().days()[-1]
    rows = fetched(shop(schema_change=day), day, tmp_path)
    with pytest.raises(DataError, match=r"no price; no customer among its columns .*unit_price, client"):
        conform(rows, LINES, origin="x")


def test_a_poisoned_day_shuffles_items_among_customers_and_nothing_else(tmp_path: Path) -> None:
    day = shop().days()[-1]
    good, bad = fetched(shop(), day, tmp_path / "a"), fetched(shop(poisoned_day=day), day, tmp_path / "b")
    sold = [pc.sum(pc.is_in(t["item"], value_set=good["item"])).as_py() / len(t) for t in (good, bad)]
    assert sold[1] > 0.98
    assert abs(len(good) - len(bad)) < 30
    pairs = [set(zip(t["customer"].to_pylist(), t["item"].to_pylist(), strict=True)) for t in (good, bad)]
    assert len(pairs[0] & pairs[1]) < 0.3 * len(pairs[0])
    before = shop().days()[-2]
    assert fetched(shop(), before, tmp_path / "c").equals(
        fetched(shop(poisoned_day=day), before, tmp_path / "d")
    )


def test_rows_are_canonical_and_in_order_of_time(rows: pa.Table) -> None:
    assert rows.drop_columns("day").schema.equals(LINES.schema())
    for day in rows["day"].unique()[:20].to_pylist():
        times = rows.filter(pc.equal(rows["day"], pa.scalar(day)))["time"].to_pylist()
        assert times == sorted(times)
        assert {time.date() for time in times} == {day}


def test_a_few_rows_are_wrong_and_never_many_on_a_day(rows: pa.Table) -> None:
    frame = rows.to_pandas()
    cancelled = frame.invoice.str.startswith("C")
    wrong = (frame.price <= 0) | ((frame.quantity < 0) != cancelled) | frame.duplicated()
    assert 0.004 < wrong.mean() < 0.02
    assert wrong.groupby(frame.day).mean().max() < 0.04
    assert (frame.price == 0).any()
    assert (frame.price < 0).any()
    assert frame.duplicated().any()
    assert (frame.item == "POST").any()
    assert 0.15 < frame.customer.isna().mean() < 0.3
    assert 0.01 < cancelled.mean() < 0.03


def test_cancellations_take_back_earlier_purchases(rows: pa.Table) -> None:
    frame = rows.to_pandas()
    back = frame[frame.invoice.str.startswith("C") & frame.customer.notna()]
    back = back[~back.item.isin(["POST", "TEST001"]) & (back.day > frame.day.min() + timedelta(days=8))]
    sold = frame[~frame.invoice.str.startswith("C")][["customer", "item", "quantity", "day"]]
    matched = back.assign(quantity=-back.quantity).merge(sold, on=["customer", "item", "quantity"])
    matched = matched[matched.day_y < matched.day_x].drop_duplicates(["invoice", "item"])
    assert len(matched) > 0.9 * len(back)


def test_invoices_of_different_orders_differ(rows: pa.Table) -> None:
    frame = rows.to_pandas()
    assert frame.groupby("invoice").day.nunique().max() == 1
    assert frame.dropna(subset=["customer"]).groupby("invoice").customer.nunique().max() == 1


def test_few_items_and_customers_make_most_of_the_trade(rows: pa.Table) -> None:
    assert shares(rows, "item")[:40].sum() > 0.3
    assert shares(rows, "customer")[:100].sum() > 0.35


@pytest.mark.slow
def test_weeks_and_the_year_have_seasons() -> None:
    source = shop(start="2023-01-01", closed_weekday=None)
    sold = {day: len(np.unique(source._sales(day)["invoice"])) for day in source.days()[::3]}
    thursdays = np.mean([n for day, n in sold.items() if day.weekday() == 3])
    sundays = np.mean([n for day, n in sold.items() if day.weekday() == 6])
    assert thursdays > 1.4 * sundays
    autumn = np.mean([n for day, n in sold.items() if day.month in (10, 11, 12)])
    spring = np.mean([n for day, n in sold.items() if day.month in (4, 5, 6) and day.year < 2025])
    assert autumn > 1.1 * spring


def test_customers_and_items_come_and_go(rows: pa.Table) -> None:
    frame = rows.to_pandas()
    days = sorted(frame.day.unique())
    early, late = frame[frame.day <= days[30]], frame[frame.day >= days[-30]]
    for column in ("item", "customer"):
        new = set(late[column].dropna()) - set(frame[frame.day < days[-30]][column].dropna())
        gone = set(early[column].dropna()) - set(frame[frame.day > days[30]][column].dropna())
        assert len(new) >= 5
        assert len(gone) >= 5


@pytest.mark.slow
def test_own_history_beats_popularity_and_recency_beats_counts(rows: pa.Table) -> None:
    frame = rows.to_pandas().dropna(subset=["customer"])
    frame = frame[(frame.quantity > 0) & (frame.item != "POST")]
    hits = {"popular": [], "counts": [], "recent": []}
    for day in sorted(frame.day.unique())[-4:]:
        past, now = frame[frame.day < day], frame[frame.day == day]
        popular = past[past.day >= day - timedelta(days=14)].item.value_counts().index[:10]
        ages = np.array([(day - other).days for other in past.day])
        own = past.assign(recent=0.5 ** (ages / 25)).groupby(["customer", "item"]).recent
        own = own.agg(["count", "sum"])
        for customer, bought in now.groupby("customer").item:
            if customer in own.index:
                mine = own.loc[customer]
                tops = {
                    "popular": popular,
                    "counts": mine["count"].nlargest(10).index,
                    "recent": mine["sum"].nlargest(10).index,
                }
                for name, top in tops.items():
                    hits[name].append(bought.isin(top).mean())
    popular, counts, recent = (float(np.mean(hits[name])) for name in ("popular", "counts", "recent"))
    assert popular < 0.6 * counts
    assert counts * 1.04 < recent


def test_a_day_may_be_written_as_text_and_a_wrong_one_is_told() -> None:
    assert shop(start="2025-06-30").days() == [date(2025, 6, 30)]
    with pytest.raises(ParamsError, match="'soon' is not a date"):
        shop(start="soon")
    with pytest.raises(ParamsError, match="opened on"):
        shop(start="1999-01-01")
    with pytest.raises(ParamsError, match="0 items"):
        shop(num_items=0)

"""Figures of a day follow from the schema, and those unlike the days before are named."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from daybreak.contract.table import Category, Float, Id, Int, Label, Table, Time, days
from daybreak.data import day_sample
from daybreak.data.daily_limits import DRIFT_SHARE, UPWARDS, DayLimits, Limit, learn
from daybreak.data.day_figures import figures_of, quarantined_of
from daybreak.data.day_sample import Sample, sample_of, similarity, sketch_of
from daybreak.data.figure import Figure, Sort

FIRST, NUM_DAYS = date(2025, 1, 6), 60
PRICES = {f"item {number}": 1.0 + number for number in range(20)}
PAYMENTS = Table(
    time="ts",
    unit="account",
    columns={
        "id": Id(),
        "account": Id(),
        "country": Category(),
        "item": Category(),
        "price": Float(),
        "fraud": Int(nullable=True),
        "ts": Time(),
    },
    label=Label("fraud"),
)


def rows(day: date, *, num: int = 400, **changed: Any) -> pa.Table:
    """A day of payments: an account has a country, an item a price."""
    draw = np.random.default_rng(day.toordinal())
    num = max(60, round(num * draw.lognormal(0, 0.1)))
    account, item = draw.integers(80, size=num), draw.integers(20, size=num)
    columns = {
        "id": [f"{day}-{number}" for number in range(num)],
        "account": [f"account {number}" for number in account],
        "country": ["at home" if number < 60 else "abroad" for number in account],
        "item": [f"item {number}" for number in item],
        "price": [PRICES[f"item {number}"] for number in item],
        "fraud": (draw.random(num) < np.where(account < 60, 0.03, 0.5)).astype(int).tolist(),
        "ts": [
            datetime.combine(day, datetime.min.time()) + timedelta(hours=h) for h in draw.uniform(8, 20, num)
        ],
    }
    return pa.table(
        columns | {name: change(columns[name]) for name, change in changed.items()}, PAYMENTS.schema()
    )


def sample(day: date, table: pa.Table, *, with_label: bool = True) -> Sample:
    return sample_of(day, table, PAYMENTS, with_label=with_label)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    every = [FIRST + timedelta(days=number) for number in range(NUM_DAYS)]
    return [sample(day, rows(day)) for day in every]


@pytest.fixture(scope="module")
def limits(samples: list[Sample]) -> DayLimits:
    """Of the last day, by those before it."""
    known = figures_of(samples, PAYMENTS, [one.day for one in samples])
    return learn(known, samples[-1].day, false_alarms_per_year=2, label="fraud")


def outside(samples: list[Sample], limits: DayLimits, table: pa.Table) -> set[str]:
    """Names of the figures that are outside where this is the last day's delivery."""
    spoiled = [*samples[:-1], sample(limits.day, table)]
    return {
        limit.name
        for limit in limits.of(figures_of(spoiled, PAYMENTS, [limits.day])[limits.day])
        if not limit.holds
    }


def test_a_sound_day_is_within_its_limits(samples: list[Sample], limits: DayLimits) -> None:
    assert outside(samples, limits, rows(limits.day)) == set()


def test_lost_rows_are_told_with_what_was_expected(samples: list[Sample], limits: DayLimits) -> None:
    few = sample(limits.day, rows(limits.day).slice(0, 61))
    figures = figures_of([*samples[:-1], few], PAYMENTS, [limits.day])[limits.day]
    (volume,) = (limit for limit in limits.of(figures) if limit.name == "rows")
    assert not volume.holds
    assert str(volume).startswith("61 rows, between ")
    assert str(volume).endswith(" expected")


def test_an_item_has_its_usual_price(samples: list[Sample], limits: DayLimits) -> None:
    dearer = rows(limits.day, price=lambda values: [1.2 * value for value in values])
    assert outside(samples, limits, dearer) >= {"price by item"}
    others = rows(limits.day, price=lambda values: values[1:] + values[:1])
    assert "far price by item" in outside(samples, limits, others)


def test_an_infinite_price_moves_no_usual_one(samples: list[Sample], limits: DayLimits) -> None:
    earlier = samples[-2].day

    def relations(price: float | None) -> dict[str, Figure]:
        """Those of the last day, where the first price of the day before is this one."""
        changed = sample(earlier, rows(earlier, price=lambda values: [price, *values[1:]]))
        figures = figures_of([*samples[:-2], changed, samples[-1]], PAYMENTS, [limits.day])[limits.day]
        return {name: figure for name, figure in figures.items() if "price by" in name}

    assert relations(float("inf")) == relations(None)


def test_an_account_has_its_country(samples: list[Sample], limits: DayLimits) -> None:
    moved = rows(limits.day, country=lambda values: values[::-1])
    assert "new account with country" in outside(samples, limits, moved)


def test_new_names_are_noticed(samples: list[Sample], limits: DayLimits) -> None:
    renamed = rows(limits.day, item=lambda values: [f"N{value}" for value in values])
    assert "new item" in outside(samples, limits, renamed)


def test_rows_that_come_twice_under_new_ids_are_noticed(samples: list[Sample], limits: DayLimits) -> None:
    once = rows(limits.day)
    again = once.set_column(0, "id", pa.array([f"new {number}" for number in range(len(once))]))
    assert "copies" in outside(samples, limits, pa.concat_tables([once, again]))


def test_wrong_labels_are_noticed_by_slice_as_well(samples: list[Sample], limits: DayLimits) -> None:
    spoiled = rows(limits.day, fraud=lambda values: [1 - value for value in values])
    assert {"mean fraud", "fraud where country = at home"} <= outside(samples, limits, spoiled)


def of_country(values: list[Any], country: str, change: Any) -> list[Any]:
    """Labels with a change where the last day's rows are of a country."""
    last = rows(FIRST + timedelta(days=NUM_DAYS - 1))["country"].to_pylist()
    return [change(value) if own == country else value for value, own in zip(values, last, strict=True)]


@pytest.mark.parametrize(
    ("column", "change", "figure"),
    [
        ("fraud", lambda values: [0] * len(values), "mean fraud"),
        ("fraud", sorted, "fraud against country"),
        ("fraud", lambda values: values[7:] + values[:7], "fraud by its forecast"),
        ("fraud", lambda values: of_country(values, "abroad", lambda _: 0), "fraud where country = abroad"),
        ("fraud", lambda values: of_country(values, "at home", lambda v: 1 - v), "fraud beside its forecast"),
        (
            "price",
            lambda values: [-999.0 if place % 6 == 0 else v for place, v in enumerate(values)],
            "spike price",
        ),
        (
            "fraud",
            lambda values: [2 if place % 16 == 0 else v for place, v in enumerate(values)],
            "neither fraud",
        ),
        (
            "fraud",
            lambda values: [-1 if place % 16 == 0 else v for place, v in enumerate(values)],
            "neither fraud",
        ),
    ],
    ids=[
        "all zero",
        "dealt out anew",
        "of other rows",
        "lost abroad",
        "inverted",
        "sentinel",
        "twos among yes and no",
        "sentinel among yes and no",
    ],
)
def test_a_fault_of_labels_or_a_sentinel_is_noticed(
    samples: list[Sample], limits: DayLimits, column: str, change: Any, figure: str
) -> None:
    named = outside(samples, limits, rows(limits.day, **{column: change}))
    assert figure in named
    assert f"missing {column}" not in named


def test_a_feature_that_is_constant_for_the_first_time_says_nothing_of_labels(
    samples: list[Sample], limits: DayLimits
) -> None:
    constant = rows(limits.day, price=lambda values: [1.0] * len(values))
    named = outside(samples, limits, constant)
    assert "fraud against price" not in named
    assert "spike price" in named  # which has a limit of its own


def test_a_day_without_a_label_of_one_is_sound_where_most_days_have_none() -> None:
    every = [FIRST + timedelta(days=number) for number in range(60)]
    mean = Figure(Sort.MEAN, ("rain",), "rate", 0.0, 72)
    rain = {
        day: {mean.name: mean._replace(value=0.3 * (number % 4 == 0))} for number, day in enumerate(every)
    }
    learned = learn(rain, FIRST + timedelta(days=60), false_alarms_per_year=2, label="rain")
    for share in (0.0, 0.3):
        (limit,) = learned.of({mean.name: mean._replace(value=share)})
        assert limit.holds


def test_few_rows_may_be_correlated_by_one() -> None:
    draw = np.random.default_rng(0)
    values = np.tanh(draw.normal(2.0, 0.15, 60))
    figure = Figure(Sort.CORRELATION, ("felt", "temp"), "correlation", 0.0, 24, 21**-0.5)
    name, last = figure.name, FIRST + timedelta(days=60)
    known = {
        FIRST + timedelta(days=number): {name: figure._replace(value=value)}
        for number, value in enumerate(values.tolist())
    }
    learned = learn(known, last, false_alarms_per_year=2)
    for value, holds in ((1.0, True), (0.94, True), (-0.5, False)):
        (limit,) = learned.of({name: figure._replace(value=value)})
        assert limit.holds == holds


def test_a_number_that_tells_the_label_for_the_first_time_is_noticed(
    samples: list[Sample], limits: DayLimits
) -> None:
    table = rows(limits.day)
    leaking = [1.0 + 10 * label for label in table["fraud"].to_pylist()]
    assert "fraud against price" in outside(samples, limits, rows(limits.day, price=lambda _: leaking))


def test_the_label_has_half_of_the_rate_to_itself(limits: DayLimits) -> None:
    families = {name: known.figure.family("fraud") for name, known in limits.learned.items()}
    sides = {name: 1 if each in UPWARDS else 2 for name, each in families.items() if "label" in each}
    of_labels = sum(num * limits.chances[name] for name, num in sides.items())
    assert of_labels == pytest.approx((1 - DRIFT_SHARE) / 365)


def test_labels_that_are_not_known_yet_are_not_gone(samples: list[Sample], limits: DayLimits) -> None:
    young = sample(limits.day, rows(limits.day), with_label=False)
    figures = figures_of([*samples[:-1], young], PAYMENTS, [limits.day])[limits.day]
    assert [str(limit) for limit in limits.of(figures) if not limit.holds] == []


def test_a_forecast_rests_on_the_days_before_alone(samples: list[Sample]) -> None:
    day = samples[30].day
    later = [sample(one.day, rows(one.day, fraud=lambda v: [1] * len(v))) for one in samples[31:40]]
    once, again = (figures_of([*samples[:31], *rest], PAYMENTS, [day])[day] for rest in ([], later))
    assert once == again


def readings(day: date, *, values: "NDArray[np.float64] | None" = None) -> Sample:
    """A day of a sensor: a reading each quarter of an hour, in no order."""
    draw = np.random.default_rng(day.toordinal())
    own = np.round(20 + np.cumsum(draw.normal(size=96)), 2)
    order = draw.permutation(96)
    at = datetime.combine(day, datetime.min.time())
    columns = {
        "reading": (own if values is None else values)[order],
        "ts": [at + timedelta(minutes=15 * int(place)) for place in order],
    }
    return sample_of(day, pa.table(columns, READINGS.schema()), READINGS, with_label=True)


READINGS = Table(time="ts", columns={"reading": Float(), "ts": Time()}, label=Label("reading"))


@pytest.mark.parametrize(
    ("spoiled", "figure"),
    [
        (lambda by_time: by_time[-8], "copied reading"),
        (lambda by_time: np.append(by_time[-2][2:], by_time[-3][:2]), "copied reading"),
        (lambda by_time: np.repeat(by_time[-1][::4], 4), "repeated reading"),
    ],
    ids=["of last week", "of yesterday, two rows late", "carried forward"],
)
def test_values_in_the_order_of_an_earlier_day_or_carried_forward_are_noticed(
    spoiled: "Callable[[list[NDArray[np.float64]]], NDArray[np.float64]]", figure: str
) -> None:
    every = [FIRST + timedelta(days=number) for number in range(NUM_DAYS)]
    known = [readings(day) for day in every]
    figures = figures_of(known, READINGS, every)
    learned = learn(figures, every[-1], false_alarms_per_year=2, label="reading")
    assert all(limit.holds for limit in learned.of(figures[every[-1]]))
    by_time = [one.numbers["reading"][np.argsort(one.hours)] for one in known]
    last = readings(every[-1], values=spoiled(by_time))
    own = figures_of([*known[:-1], last], READINGS, every[-1:])[every[-1]]
    assert figure in {limit.name for limit in learned.of(own) if not limit.holds}


@pytest.mark.slow
def test_labels_dealt_out_anew_are_unlike_their_neighbours() -> None:
    """Each day has a wave of its own, which features and hours do not tell."""
    table = Table(time="ts", columns={"load": Float(), "heat": Float(), "ts": Time()}, label=Label("heat"))
    every = [FIRST + timedelta(days=number) for number in range(90)]

    def day_of(day: date, spoil: "Callable[[NDArray[np.float64]], NDArray[np.float64]]") -> Sample:
        draw = np.random.default_rng(day.toordinal())
        load = draw.normal(size=48)
        wave = np.sin(np.arange(48) / 7 + draw.uniform(0, 6))
        heat = 2 * wave + 0.3 * load + 0.05 * draw.normal(size=48)
        at = datetime.combine(day, datetime.min.time())
        times = [at + timedelta(minutes=30 * place) for place in range(48)]
        rows = pa.table({"load": load, "heat": spoil(heat), "ts": times}, table.schema())
        return sample_of(day, rows, table, with_label=True)

    known = [day_of(day, lambda heat: heat) for day in every]
    figures = figures_of(known, table, every)
    learned = learn(figures, every[-1], false_alarms_per_year=2, label="heat")
    name = "heat beside its neighbours"
    assert all(limit.holds for limit in learned.of(figures[every[-1]]))
    last = day_of(every[-1], np.random.default_rng(0).permutation)
    own = figures_of([*known[:-1], last], table, every[-1:])[every[-1]]
    assert name in {limit.name for limit in learned.of(own) if not limit.holds}


def figures_of_last(
    columns: dict[str, Any], rows: Callable[[int], dict[str, Any]], *, label: str, num_days: int
) -> dict[str, Figure]:
    """The figures of the last of so many days of rows, spread evenly over each."""
    table = Table(time="ts", columns={**columns, "ts": Time()}, label=Label(label))
    samples = []
    for number in range(num_days):
        own, day = rows(number), FIRST + timedelta(days=number)
        at, num = datetime.combine(day, datetime.min.time()), len(own[label])
        own["ts"] = [at + timedelta(hours=24 * place / num) for place in range(num)]
        samples.append(sample_of(day, pa.table(own, table.schema()), table, with_label=True))
    return figures_of(samples, table, [samples[-1].day])[samples[-1].day]


@pytest.mark.slow
def test_labels_have_neighbours_also_in_a_row_a_store_beside_a_new_column_and_where_few_are_known() -> None:
    draw = np.random.default_rng(1)
    of_stores = figures_of_last(
        {"store": Category(), "sold": Float()},
        lambda _: {"store": [f"s{n}" for n in range(30)], "sold": draw.gamma(2, size=30)},
        label="sold",
        num_days=20,
    )
    new = figures_of_last(
        {"new": Float(nullable=True), "sold": Float()},
        lambda number: {
            "new": pa.array([None] * 60 if number < 38 else list(draw.normal(size=60)), pa.float64()),
            "sold": draw.normal(size=60),
        },
        label="sold",
        num_days=50,
    )
    for figures in (of_stores, new):
        assert 0 <= figures["sold beside its neighbours"].value <= 0.5

    def audited(number: int) -> dict[str, Any]:
        known: list[int | None] = [None] * 4000
        if number in (3, 4):
            known = list(map(int, draw.random(4000) < 0.3))
            known[5] = known[5] if number == 3 else None
        if number in (5, 20):
            known[: 1 if number == 5 else 50] = [0] if number == 5 else [0, 1] * 25
        return {"load": draw.normal(size=4000), "fraud": pa.array(known, pa.int64())}

    few = figures_of_last({"load": Float(), "fraud": Int(nullable=True)}, audited, label="fraud", num_days=21)
    assert "fraud beside its neighbours" not in few


@pytest.mark.slow
@pytest.mark.parametrize("was_sorted", [False, True])
def test_the_order_in_which_rows_of_one_time_are_delivered_holds_no_day(was_sorted: bool) -> None:
    table = Table(
        time="ts", columns={"kind": Category(), "rating": Int(), "ts": Time()}, label=Label("rating")
    )
    draw = np.random.default_rng(1)

    def day_of(number: int, is_sorted: bool) -> Sample:
        day, hours = FIRST + timedelta(days=number), np.repeat(np.arange(24), 20)
        ratings, kinds = draw.integers(1, 6, 480), np.array([f"k{n}" for n in draw.integers(0, 9, 480)])
        order = np.lexsort((ratings, hours)) if is_sorted else np.arange(480)
        at = datetime.combine(day, datetime.min.time())
        times = [at + timedelta(hours=int(hour)) for hour in hours]
        rows = pa.table({"kind": kinds[order], "rating": ratings[order], "ts": times}, table.schema())
        return sample_of(day, rows, table, with_label=True)

    samples = [*(day_of(number, was_sorted) for number in range(45)), day_of(45, not was_sorted)]
    every = [sample.day for sample in samples]
    figures = figures_of(samples, table, every)
    learned = learn(figures, every[-1], false_alarms_per_year=2, label="rating")
    assert [limit.name for limit in learned.of(figures[every[-1]]) if not limit.holds] == []


def test_a_sample_of_a_table_without_a_unit_is_thinned_as_days_of_more_rows_are() -> None:
    table = Table(time="ts", columns={"load": Float(), "ts": Time()})

    def day_of(num: int) -> Sample:
        at = datetime.combine(FIRST, datetime.min.time())
        times = [at + timedelta(seconds=20 * place) for place in range(num)]
        rows = pa.table({"load": np.arange(num, dtype=np.float64), "ts": times}, table.schema())
        return sample_of(FIRST, rows, table, with_label=True)

    few, more = day_of(4000), day_of(4200)
    assert (few.share, more.share) == (1.0, 0.5)
    thin = day_sample.thinned(few, more.share, table)
    assert (thin.share, len(thin)) == (0.5, pytest.approx(2000, rel=0.1))
    assert len(day_sample.thinned(more, 0.25, table)) == pytest.approx(1050, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("label", [float("inf"), -999.0, float("nan")])
def test_a_label_that_is_no_number_or_none_of_those_known_has_its_neighbours_judged(
    samples: list[Sample], label: float
) -> None:
    labels = samples[-1].numbers["fraud"].copy()
    labels[::9] = label
    last = replace(samples[-1], numbers={**samples[-1].numbers, "fraud": labels})
    figures = figures_of([*samples[:-1], last], PAYMENTS, [last.day])[last.day]
    assert 0 <= figures["fraud beside its neighbours"].value <= 1


@pytest.mark.slow
def test_models_of_labels_are_of_the_days_before_the_week(samples: list[Sample]) -> None:
    """Neither the labels of a day nor those of its week move what is expected of its labels."""
    last = samples[-1].day
    monday = last - timedelta(days=last.weekday())

    def of_last(*changed: date) -> Figure:
        spoiled = [
            replace(one, numbers={**one.numbers, "fraud": 1 - one.numbers["fraud"]})
            if one.day in changed
            else one
            for one in samples
        ]
        return figures_of(spoiled, PAYMENTS, [last])[last]["fraud beside its neighbours"]

    usual = of_last()
    assert of_last(monday) == usual
    assert of_last(*(monday - timedelta(days=back) for back in range(1, 22))) != usual


def test_a_label_that_follows_the_hour_alone_is_forecast() -> None:
    def in_the_afternoon(day: date) -> Sample:
        table = rows(day)
        label = [int(at.hour >= 14) for at in table["ts"].to_pylist()]
        return sample(day, rows(day, fraud=lambda _: label))

    known = [in_the_afternoon(FIRST + timedelta(days=number)) for number in range(8)]
    figures = figures_of(known, PAYMENTS, [known[-1].day])[known[-1].day]
    assert figures["fraud by its forecast"].value == pytest.approx(1, abs=0.1)
    assert figures["fraud against its forecast"].value > 0.8


def test_rows_that_are_missing_in_one_hour_are_one_event(samples: list[Sample]) -> None:
    nullable = Table(time="ts", columns={"price": Float(nullable=True), "ts": Time()})

    def missing(hours: range, every: int) -> Figure:
        table = rows(FIRST)
        prices = [
            None if at.hour in hours and place % every == 0 else price
            for place, (at, price) in enumerate(
                zip(table["ts"].to_pylist(), table["price"].to_pylist(), strict=True)
            )
        ]
        own = sample_of(FIRST, pa.table({"price": prices, "ts": table["ts"]}), nullable, with_label=True)
        return figures_of([own], nullable, [FIRST])[FIRST]["missing price"]

    assert missing(range(10, 11), 1).num < 20
    assert missing(range(24), 12).num > 200


def test_a_category_that_is_gone_is_noticed(samples: list[Sample], limits: DayLimits) -> None:
    table = rows(limits.day)
    abroad = table.filter(pa.compute.equal(table["country"], "abroad"))
    assert "country = at home" in outside(samples, limits, abroad)


def test_a_lost_afternoon_is_noticed(samples: list[Sample], limits: DayLimits) -> None:
    table = rows(limits.day)
    morning = table.filter(pa.compute.less(pa.compute.hour(table["ts"]), 13))
    assert "last hour" in outside(samples, limits, morning)


def test_labels_that_are_not_known_yet_have_no_figures() -> None:
    young = sample(FIRST, rows(FIRST), with_label=False)
    assert not any("fraud" in name for name in figures_of([young], PAYMENTS, [FIRST])[FIRST])


def test_auxiliary_labels_have_no_figures() -> None:
    columns = {"ts": Time(), "fraud": Int(), "refund": Float(), "amount": Float()}
    table = Table(time="ts", columns=columns, label=Label("fraud"), auxiliary=(Label("refund"),))
    assert day_sample.columns_of(table) == ["fraud", "amount"]


def test_a_column_and_a_figure_can_be_switched_off(samples: list[Sample]) -> None:
    silent = Table(time="ts", columns={"id": Id(off=("limits",)), "ts": Time()}, unit="id")
    assert day_sample.columns_of(silent) == []
    known = figures_of(samples, PAYMENTS, [one.day for one in samples])
    learned = learn(known, samples[-1].day, false_alarms_per_year=2, off=["rows"])
    assert "rows" not in learned.learned


def test_the_rate_is_shared_by_families_and_their_figures(limits: DayLimits) -> None:
    families = {name: known.figure.family("fraud") for name, known in limits.learned.items()}
    sides = sum(chance * (1 if families[name] in UPWARDS else 2) for name, chance in limits.chances.items())
    assert sides == pytest.approx((1 - DRIFT_SHARE) * 2 / 365)
    assert limits.chances["rows"] > 3 * limits.chances["new item"]


def test_a_short_history_says_so(samples: list[Sample]) -> None:
    known = figures_of(samples, PAYMENTS, [one.day for one in samples])
    young = {day: known[day] for day in list(known)[:10]}
    assert learn(young, FIRST + timedelta(days=11), false_alarms_per_year=2).note == (
        "daily limits: none yet, 10 of 24 earlier days to learn from"
    )
    assert "still wide" in learn(known, samples[-1].day, false_alarms_per_year=2).note


def test_what_never_was_may_be_once_by_few_rows() -> None:
    every = [FIRST + timedelta(days=number) for number in range(40)]
    rows_of_day = Figure(Sort.ROWS, (), "count", 100, 100)
    missing = Figure(Sort.MISSING, ("a",), "share", 0.0, 100)
    known = {day: {one.name: one for one in (rows_of_day, missing)} for day in every}
    learned = learn(known, FIRST + timedelta(days=40), false_alarms_per_year=2)
    for share, holds in ((0.01, True), (0.5, False)):
        (limit,) = learned.of({missing.name: missing._replace(value=share)})
        assert limit.holds == holds


def test_a_partition_too_large_is_thinned_to_the_same_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day_sample, "MOST_ROWS", 200)
    monkeypatch.setattr(day_sample, "LEAST_UNITS", 5)
    one, other = (sample(day, rows(day)) for day in (FIRST, FIRST + timedelta(days=1)))
    assert len(one) < 300 <= one.num_rows
    assert one.share == other.share
    both = set(one.keys["account"].tolist()) & set(other.keys["account"].tolist())
    assert len(both) > 0.8 * len(set(one.keys["account"].tolist()))


def test_a_day_is_as_an_earlier_one_but_for_ids_and_times() -> None:
    once = rows(FIRST)
    moved = once.set_column(0, "id", pa.array([f"new {number}" for number in range(len(once))]))
    sketches = [
        sketch_of(sample(FIRST, table), PAYMENTS) for table in (once, moved, rows(FIRST + timedelta(days=1)))
    ]
    assert similarity(sketches[0], sketches[1]) == 1
    assert similarity(sketches[0], sketches[2]) < 0.3
    assert similarity([], []) == 0


def test_labels_come_late_in_a_table_of_payments() -> None:
    late = Table(time="ts", columns=PAYMENTS.columns, label=Label("fraud", days(14)))
    assert day_sample.columns_of(late, with_label=False) == ["id", "account", "country", "item", "price"]


def test_a_figure_that_never_changed_is_within_its_limits_where_it_is_the_same() -> None:
    every = [FIRST + timedelta(days=number) for number in range(40)]
    same = [
        Figure(Sort.SIZE, ("price",), "factor", np.log(2.5) + 1e-15 * number, 100) for number in range(41)
    ]
    known = {day: {"size price": figure} for day, figure in zip(every, same, strict=False)}
    (size,) = learn(known, FIRST + timedelta(days=40), false_alarms_per_year=2).of({"size price": same[-1]})
    assert size.holds


@pytest.mark.parametrize(("hours", "is_one_event"), [((10.0, 10.9), True), ((8.0, 20.0), False)])
def test_rows_of_one_hour_in_quarantine_are_one_event(
    samples: list[Sample], hours: tuple[float, float], is_one_event: bool
) -> None:
    bad = np.linspace(*hours, 30)
    figure = quarantined_of(samples[0], bad, num=500.0)
    assert figure.value == 30 / (30 + samples[0].num_rows)
    assert (figure.num < 20) == is_one_event


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (
            Figure(Sort.ODDS_WHERE, ("fraud", "country", "abroad"), "factor", -0.6931),
            "where country = abroad, the odds of fraud are 0.5 times those expected beside the other rows, "
            "between 0.905 and 1.11 expected",
        ),
        (
            Figure(Sort.LABEL_WHERE, ("delay", "country", "abroad"), "mean", -0.6931),
            "where country = abroad, delay is -0.693 above what is expected beside the other rows, "
            "between -0.1 and 0.1 expected",
        ),
    ],
)
def test_labels_of_a_slice_are_told_in_words(figure: Figure, words: str) -> None:
    assert str(Limit(figure=figure, low=-0.1, high=0.1)) == words


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (
            Figure(Sort.SEVERAL, ("customer", "invoice"), "share", 0.5, 100),
            "50 % of the values of invoice come with several of customer",
        ),
        (
            Figure(Sort.NEW_PAIR, ("item", "customer"), "share", 0.99, 100),
            "item with customer is new in 99 % of the rows",
        ),
        (
            Figure(Sort.USUAL, ("price", "item"), "factor", np.log(1.5), 100),
            "price by its item is 1.5 times the usual",
        ),
        (
            Figure(Sort.SLICE, ("country", "abroad"), "share", 0.9, 100),
            "country = abroad in 90 % of the rows",
        ),
        (
            Figure(Sort.CORRELATION, ("quantity", "price"), "correlation", 0.9, 100),
            "quantity and price are correlated by 0.9",
        ),
        (
            Figure(Sort.ODDS_BESIDE, ("fraud",), "factor", np.log(0.5), 100, 0.1),
            "the odds of fraud are 0.5 times what the features lead one to expect",
        ),
        (
            Figure(Sort.LABEL_BESIDE, ("delay",), "mean", -2.5, 100, 0.1),
            "delay is -2.5 above what the features lead one to expect",
        ),
        (
            Figure(Sort.LABEL_SLOPE, ("fraud",), "mean", 0.1, 100, 0.02),
            "fraud rises by 0.1 where its forecast by the features rises by 1",
        ),
        (
            Figure(Sort.SPIKE, ("price",), "share", 0.2, 100),
            "one value of price is in 20 % more of the rows than usual",
        ),
        (
            Figure(Sort.LABEL_UNLIKE, ("delay",), "share", 0.5, 100),
            "50 % of the values of delay are far from what features and neighbouring rows lead one to expect",
        ),
        (
            Figure(Sort.COPIED, ("price",), "share", 0.95, 100),
            "95 % of the values of price follow one another as on an earlier day",
        ),
        (
            Figure(Sort.REPEATED, ("price",), "share", 0.5, 100),
            "50 % of the values of price are the third alike in a row",
        ),
        (Figure(Sort.LAST_HOUR, (), "hours", 12.25), "the last row comes at 12.2 h"),
    ],
)
def test_each_figure_is_told_in_words(figure: Figure, words: str) -> None:
    usual = figure._replace(value=0.01)
    known = {FIRST + timedelta(days=number): {figure.name: usual} for number in range(40)}
    learned = learn(known, FIRST + timedelta(days=40), false_alarms_per_year=2)
    (limit,) = learned.of({figure.name: figure})
    assert not limit.holds
    assert str(limit).startswith(words)
    assert str(limit).endswith(" expected")


def test_columns_may_have_the_names_of_figures() -> None:
    """A feature that is a forecast, and columns whose names read like the figures of others."""
    table = Table(
        time="ts",
        columns={
            "label": Int(),
            "forecast": Float(),
            "new visits by region": Float(),
            "missing = far": Category(),
            "ts": Time(),
        },
        label=Label("label"),
    )
    draw = np.random.default_rng(0)
    every = [FIRST + timedelta(days=number) for number in range(60)]
    samples = []
    for day in every:
        forecast = draw.uniform(0, 1, 300)
        rows_of_day = {
            "label": (draw.random(300) < forecast).astype(int),
            "forecast": forecast,
            "new visits by region": draw.lognormal(0, 1, 300),
            "missing = far": np.where(draw.random(300) < 0.3, "a = b", "where c"),
            "ts": [datetime.combine(day, datetime.min.time()) + timedelta(minutes=m) for m in range(300)],
        }
        rows_of_table = pa.table(rows_of_day, table.schema())
        samples.append(sample_of(day, rows_of_table, table, with_label=True))
    known = figures_of(samples, table, every)
    assert known[every[-1]]["label against forecast"].sort is Sort.LABEL_CORRELATION
    assert known[every[-1]]["label against its forecast"].sort is Sort.LABEL_FORECAST
    learned = learn(known, every[-1], false_alarms_per_year=2, label="label")
    families = {name: one.figure.family("label") for name, one in learned.learned.items()}
    assert families["mean label"] == "labels"
    assert families["label against forecast"] == "parts of labels"
    assert families["size new visits by region"] == "columns"
    assert families["missing = far = a = b"] == "columns"
    assert families["label where missing = far = a = b"] == "parts of labels"
    gone = {name: one for name, one in known[every[-1]].items() if name != "missing = far = a = b"}
    (limit,) = (one for one in learned.of(gone) if one.name == "missing = far = a = b")
    assert str(limit).startswith("missing = far = a = b in 0 % of the rows")

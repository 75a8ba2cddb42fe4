"""What `init` reads from the days of a history: far days, columns that follow the calendar, held-out days."""

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from itertools import cycle

import numpy as np
import pyarrow as pa
import pytest

from daybreak.contract.table import Category, Float, Id, Int, Label, Table, Time, days
from daybreak.data import drift
from daybreak.extensions.init import survey_days

FIRST = date(2025, 3, 3)
Values = Callable[[int], Sequence[object]]  # the values of a day


def table_of(column: object, *, unit: str = "") -> Table:
    columns = {"t": Time(), "x": column, "y": Int(min=0, max=1, nullable=True), "u": Id()}
    return Table(time="t", columns=columns, label=Label("y"), unit=unit)  # type: ignore[arg-type]


def history(
    num_days: int, x: Values, *, y: Values = lambda n: [0, 1] * 10, u: str = ""
) -> dict[date, pa.Table]:
    parts = {}
    for number in range(num_days):
        day, values = FIRST + timedelta(number), list(x(number))
        labels = [each for each, _ in zip(cycle(y(number)), values, strict=False)]
        times = [datetime(day.year, day.month, day.day, n % 24) for n in range(len(values))]
        units = [f"{u}{n}" for n in range(len(values))]
        parts[day] = pa.table(
            {"t": pa.array(times, pa.timestamp("us")), "x": values, "y": labels, "u": units}
        )
    return parts


def draw(day: int, num: int = 20) -> list[float]:
    return list(np.random.default_rng(day).normal(size=num))


def date_of(number: int) -> date:
    return FIRST + timedelta(number)


@pytest.mark.parametrize(
    ("column", "values", "why", "off"),
    [
        (Int(), lambda n: [2025] * 20, "is the year", ("drift", "limits")),
        (Int(), lambda n: [date_of(n).month] * 20, "is the month", ("drift", "limits")),
        (Category(), lambda n: [f"{date_of(n):%b}"] * 20, "is the month", ("drift", "limits")),
        (Int(), lambda n: [date_of(n).day] * 20, "is the day of the month", ("drift", "limits")),
        (Int(), lambda n: [date_of(n).weekday()] * 20, "is the weekday", ("drift", "limits")),
        (Category(), lambda n: [f"{date_of(n):%A}"] * 20, "is the weekday", ("drift", "limits")),
        (Int(), lambda n: [(date_of(n).month + 2) // 3] * 20, "is the quarter", ("drift", "limits")),
        (Int(), lambda n: range(20 * n, 20 * n + 20), "rises from day to day", ("drift", "limits")),
        (Float(), lambda n: [9.5 - n] * 20, "falls from day to day", ("drift", "limits")),
        (Category(), lambda n: [["rain", "sun"][n % 3 == 0]] * 20, "has one value a day", ("drift",)),
    ],
)
def test_a_column_that_follows_the_calendar_has_no_limits(
    column: object, values: Values, why: str, off: tuple[str, ...]
) -> None:
    found = survey_days.unlimited(history(10, values), table_of(column))
    assert {name: (one.why, one.off) for name, one in found.items()} == {"x": (why, off)}


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (Float(), draw),
        (Category(), lambda n: ["a", "b"] * 10),
        (Category(), lambda n: ["EUR"] * 20),
        (Float(), lambda n: draw(n, 1)),  # of one row a day
    ],
)
def test_a_column_that_does_not_follow_the_calendar_keeps_its_limits(column: object, values: Values) -> None:
    assert survey_days.unlimited(history(10, values), table_of(column)) == {}


def test_days_of_few_rows_have_no_limit_of_drift_and_days_of_many_have_one() -> None:
    limits = {
        num: survey_days.drift_limits(history(29, lambda n, num=num: draw(n, num)), table_of(Float()))
        for num in (1, 20, 400)
    }
    assert limits[1]["x"] is None
    assert 0.55 <= (limits[20]["x"] or 0) < 0.95
    assert limits[400]["x"] == 0.2


def test_a_column_whose_days_are_as_far_apart_as_can_be_has_no_limit_of_drift() -> None:
    far = survey_days.drift_limits(
        history(29, lambda n: [v + 9 * (n // 7) for v in draw(n, 400)]), table_of(Float())
    )
    assert far["x"] is None and far[drift.ROWS] == 0.2


def test_a_column_whose_days_are_rarely_far_apart_has_a_limit_above_any_seen_or_none() -> None:
    """A quarter of what was seen, and a little, is not enough where most days are near and some are far."""
    skewed = history(
        90, lambda n: [v + float(np.random.default_rng(n).exponential(0.3)) for v in draw(n, 400)]
    )
    limit = survey_days.drift_limits(skewed, table_of(Float()))["x"]
    weekdays = [sorted(skewed)[number::7] for number in range(7)]
    seen = [
        drift.distances(
            skewed[days[place]].column,
            [skewed[day].column for day in days[place - 4 : place]],
            table_of(Float()),
            limits={},
            limit=1,
        )[0].value
        for days in weekdays
        for place in range(4, len(days))
    ]
    assert limit is None or limit > 1.25 * max(seen) + 0.1


@pytest.mark.parametrize(
    ("num_rare", "num_days"),
    [
        (lambda n: 10, 10),  # ten a day: a hundred in ten days, of at most a fifth of them
        (lambda n: 100, 2),  # two thousand rows
        (lambda n: 10 if n in (30, 5) else 0, 20),  # ten of them only there
        (lambda n: 1 if n == 20 else 0, 25),  # half of the days, at most
    ],
)
def test_days_are_held_out_by_the_number_of_the_rarer_label(
    num_rare: Callable[[int], int], num_days: int
) -> None:
    parts = history(50, lambda n: [0.5] * 1000, y=lambda n: [1] * num_rare(n) + [0] * (1000 - num_rare(n)))
    assert survey_days.test_days(parts, table_of(Float()), of_classes=True) == num_days


def test_days_are_held_out_until_there_are_units_enough_for_a_verdict() -> None:
    parts = history(20, lambda n: draw(n, 6), y=lambda n: [0, 1] * 3)
    assert survey_days.test_days(parts, table_of(Float()), of_classes=True) == 5  # 30 rows
    named = {
        day: part.set_column(3, "u", [[f"{n // 2} {k}" for k in range(6)]])
        for n, (day, part) in enumerate(parts.items())
    }
    assert survey_days.test_days(named, table_of(Float(), unit="u"), of_classes=True) == 9  # 6 units in two


def test_a_late_label_is_not_counted_among_those_held_out() -> None:
    parts = history(30, lambda n: [0.5] * 1000, y=lambda n: [None if n > 24 else n % 2] * 1000)
    table = Table(time="t", columns=table_of(Float()).columns, label=Label("y", ripe_after=days(5)))
    assert survey_days.test_days(parts, table, of_classes=True) == 2


def test_days_far_before_the_others_or_still_to_come_are_left_out() -> None:
    near = [FIRST + timedelta(n) for n in range(6)]
    odd = [date(1900, 1, 1), date(9999, 12, 31)]
    assert survey_days.near_days([*odd, *near], today=date(2026, 1, 1)) == (near, odd)
    gap = [FIRST - timedelta(300), *near]  # a pause of a shop
    assert survey_days.near_days(gap, today=date(2026, 1, 1)) == (gap, [])
    assert survey_days.near_days(near, today=date(2024, 1, 1)) == (near, [])


def test_a_newest_day_that_only_began_is_said_with_the_night_to_begin_with() -> None:
    whole = history(6, lambda n: draw(n, 40))
    assert survey_days.incomplete(whole, "t") == ()
    assert survey_days.incomplete({FIRST: whole[FIRST]}, "t") == ()
    newest = max(whole)
    (said,) = survey_days.incomplete(whole | {newest: whole[newest].slice(0, 3)}, "t")
    assert said.startswith(f"{newest}, the newest day, has 3 rows, and the days before usually have 40")
    assert said.endswith(f"begin with: daybreak night --day {newest - timedelta(1)}")


def test_a_newest_day_that_a_first_night_would_refuse_is_said_with_one_that_it_would_take() -> None:
    whole = history(40, lambda n: draw(n, 40))
    newest = max(whole)
    assert survey_days.unlike(whole, table_of(Float()), by=newest) == ()
    began = whole | {newest: whole[newest].slice(0, 1)}
    (said,) = survey_days.unlike(began, table_of(Float()), by=newest)
    assert said.startswith(f"the first night would stop, as {newest} is unlike the days before it: 1 rows, ")
    assert f"begin with: daybreak night --day {newest - timedelta(1)}; if it is right" in said
    assert said.endswith(f"--day {newest} --set 'validate.accepted_days=[{newest}]' --trigger REASON")
    assert survey_days.unlike(began, table_of(Float()), by=newest - timedelta(1)) == ()  # it is not over


def test_days_too_few_to_learn_limits_from_are_not_called_unlike() -> None:
    whole = history(20, lambda n: draw(n, 40))
    newest = max(whole)
    assert survey_days.unlike(whole | {newest: whole[newest].slice(0, 1)}, table_of(Float()), by=newest) == ()

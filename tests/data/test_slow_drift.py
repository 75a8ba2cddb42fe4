"""Figures that change a little each day are found over the weeks, and what a night does then is a param."""

import re
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from daybreak.contract.record_parts import Expectation
from daybreak.contract.record_types import Dataset, Report
from daybreak.contract.sections import ValidateParams
from daybreak.data import suite
from daybreak.data.figure import Figure, Sort
from daybreak.data.partitions import CLEAN, part_of, partitions
from daybreak.data.slow_drift import WINDOW, drifting, unlike_anchor, was_looked_at
from daybreak.examples.shop.sold_lines import LINES
from daybreak.storage.ledger import Entry
from tests.data.shop_weeks import SUITE
from tests.minimal_records import minimal_night

FIRST = date(2025, 3, 3)


def history(
    num: int = 200, *, seed: int = 0, since: int = 140, **daily: float
) -> dict[date, dict[str, Figure]]:
    """Figures of days like those of a shop's payments; from the day `since` on, some change each day.

    Args:
        num: days.
        seed: of the days.
        since: number of the day after which figures change.
        daily: by what a figure changes each day: `rows` and `rate` by a share, `follows` by a share of what
            it is.
    """
    draw = np.random.default_rng(seed)
    figures: dict[date, dict[str, Figure]] = {}
    for place in range(num):
        day, gone = FIRST + timedelta(days=place), max(0, place - since)
        changed = {name: (1 + by) ** gone for name, by in daily.items()}
        rows = 800 * (0.6 if day.weekday() > 4 else 1) * draw.lognormal(0, 0.12) * changed.get("rows", 1)
        odds = 0.15 / 0.85 * draw.lognormal(0, 0.15)
        rate = draw.binomial(int(rows), odds / (1 + odds)) / int(rows) * changed.get("rate", 1)
        follows = np.tanh(np.arctanh(0.3 * changed.get("follows", 1)) + draw.normal(0, 0.04))
        size, missing = draw.normal(2, 0.05), draw.binomial(int(rows), 0.02) / rows
        of_day = [
            Figure(Sort.ROWS, (), "count", rows, num=rows),
            Figure(Sort.MEAN, ("fraud",), "rate", rate, num=rows),
            Figure(Sort.LABEL_CORRELATION, ("fraud", "price"), "correlation", follows, num=rows, error=0.03),
            Figure(Sort.SIZE, ("price",), "factor", size, error=0.02),
            Figure(Sort.MISSING, ("fraud",), "share", missing, num=rows),
            Figure(Sort.NEW, ("item",), "share", 0.01, num=rows),
        ]
        figures[day] = {one.name: one for one in of_day}
    return figures


def found(figures: dict[date, dict[str, Figure]], *, since: date = date.min) -> list[str]:
    """Names of the figures that drift up to the newest day, where rows were accepted up to `since`."""
    trends = drifting(
        figures,
        max(figures),
        false_alarms_per_year=2,
        since={"rows": since, "size price": since},
    )
    return [one.figure for one in trends]


@pytest.mark.parametrize(
    ("daily", "figure"),
    [
        ({"rows": -0.01}, "rows"),
        ({"rate": -0.02}, "mean fraud"),
        ({"follows": -0.01}, "fraud against price"),
    ],
)
def test_a_figure_that_falls_a_little_each_day_is_found_within_seventy_days(
    daily: dict[str, float], figure: str
) -> None:
    for seed in range(3):
        assert figure in found(history(210, seed=seed, since=140, **daily))
        assert found(history(140, seed=seed, since=140, **daily)) == []


@pytest.mark.slow
def test_sound_days_drift_no_more_often_than_stated() -> None:
    """At 20 false alarms a year, ten times the default, of which two a year are for slow drift."""
    alarms = 0
    for seed in range(5):
        figures = history(WINDOW + 100, seed=seed)
        days = sorted(figures)
        names = [
            [one.figure for one in drifting(figures, day, false_alarms_per_year=20)] for day in days[WINDOW:]
        ]
        alarms += sum(bool(set(now) - set(before)) for before, now in pairwise(names))
    assert alarms <= 2 * 5 * 100 / 365 + 3 * np.sqrt(2 * 5 * 100 / 365)


def test_a_trend_is_said_with_where_it_began_and_ended() -> None:
    figures = history(since=130, rows=-0.01)
    (one,) = drifting(figures, max(figures), false_alarms_per_year=2)
    assert len(one.days) == len(one.values) == WINDOW
    assert one.days[-1] == max(figures)
    assert one.began == pytest.approx(720, rel=0.15)  # five days of seven have 800 rows, two have 480
    assert one.ended == pytest.approx(one.began * 0.99**59, rel=0.15)
    assert one.words == f"{one.ended:,.0f} rows, 59 days before: {one.began:,.0f}"


def test_a_figure_that_is_off_and_weeks_that_were_accepted_are_not_judged() -> None:
    figures = history(since=130, rows=-0.01)
    newest = max(figures)
    assert drifting(figures, newest, false_alarms_per_year=2, off=["rows"]) == []
    assert found(figures, since=newest - timedelta(days=30)) == []
    assert found(figures, since=newest - timedelta(days=WINDOW)) == ["rows"]


def test_labels_that_are_known_weeks_later_are_judged_on_the_days_that_have_them() -> None:
    figures = history(since=110, rate=-0.02)
    for day in sorted(figures)[-30:]:
        del figures[day]["mean fraud"]
    assert found(figures) == ["mean fraud"]


@pytest.mark.parametrize("lasting", [70, 180, 300])
def test_a_drift_that_lasts_is_still_found(lasting: int) -> None:
    """Also where a first night meets a history that has drifted all along."""
    for before in (0, 60):
        assert "rows" in found(history(lasting + before, since=before, rows=-0.01))


def test_days_of_business_are_enough() -> None:
    figures = {day: own for day, own in history(250, since=130, rows=-0.01).items() if day.weekday() < 5}
    assert "rows" in found(figures)


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
        return was_looked_at(past, night, anchor)

    assert [known(6), known(7), known(1, anchor=33), known(0, name="tonight")] == [True, False, False, False]


@pytest.mark.slow
def test_weeks_that_are_unlike_those_of_the_anchor_are_a_warning(in_shop_weeks: Path) -> None:
    days, params = partitions(CLEAN), ValidateParams(suite=str(SUITE))
    dataset = Dataset(digest="", num_samples=1, num_bytes=1, first_day=days[0], last_day=days[-15])

    def warned() -> tuple[Expectation, ...]:
        return unlike_anchor(days[-1], 3, dataset, {}, LINES, suite=suite.load(SUITE), params=params)

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
        unlike_anchor(days[-8], 3, dataset, {}, LINES, suite=suite.load(SUITE), params=params) == ()
    )  # a week is too few

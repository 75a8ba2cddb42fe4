"""Charts of a page."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from html import unescape
from itertools import pairwise

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from daybreak.report import day_charts
from daybreak.report.charts import NARROW, trend
from daybreak.report.night_rows import NightRow, row_of
from tests.report.nights import unlike, whole


def nights(*usd: float) -> list[NightRow]:
    row, first = row_of(whole()), date(2026, 1, 1)
    return [
        replace(row, day=str(first + timedelta(n)), usd=dollars, predicted_usd=1.0)
        for n, dollars in enumerate(usd)
    ]


def test_one_dear_night_does_not_flatten_the_others_and_is_told() -> None:
    dear, usual = trend(nights(1, 2, 400, 1, 2)), trend(nights(1, 2, 2, 1, 2))
    assert ">400<" in dear.replace(" 400", "400")
    assert ">300<" not in dear and ">200<" not in dear  # marks of an axis
    assert "400" not in usual


def test_each_category_has_its_mean_label_tonight_and_before_beside_its_share() -> None:
    country = unlike().columns[0]
    drawn = re.findall("<text[^>]*>([^<]*)<", day_charts.distribution(country, name="a"))
    shown = [text.replace("\N{NO-BREAK SPACE}", " ") for text in drawn]
    assert shown[:4] == ["10 %", "0.3", "0.2", "France"]
    assert shown[-2:] == ["label", "before"]
    bare = replace(country, label_tonight=(), label_before=())
    assert ">label<" not in day_charts.distribution(bare, name="a")


LONG = (-1234567.0, 1.234e-05, -123456.0, -1.234e-05, 1e14, -1e-120)


def extents(drawn: str) -> Iterator[tuple[float, float, float]]:
    """Yields the height at which each text of a chart stands, where it begins, and where it ends."""
    texts = re.findall(r'text-anchor: (\w+)[^>]* x="([0-9.]+)" y="([0-9.]+)"[^>]*>([^<]*)<', drawn)
    sizes = re.findall(r"font-size: ([0-9.]+)px; text-anchor", drawn)
    assert len(sizes) == len(texts)
    for size, (anchor, x, y, text) in zip(sizes, texts, strict=True):
        font = FontProperties(family="DejaVu Sans", size=float(size))
        long = TextPath((0, 0), unescape(text), prop=font).get_extents().x1
        start = float(x) - {"end": 1, "middle": 0.5, "start": 0}[anchor] * long
        yield float(y), start, start + long


@pytest.mark.parametrize("share", [0.5, 0.9998, 1e-9])
@pytest.mark.parametrize("means", [(), (0.3, None, 0.1), *((mean, 0.1, mean) for mean in LONG)])
def test_however_long_shares_and_mean_labels_are_they_do_not_overlap_and_fit(
    share: float, means: tuple[float | None, ...]
) -> None:
    country = replace(unlike().columns[0], tonight=(0.1, share, 0.4))
    country = replace(country, label_tonight=means, label_before=means[::-1])
    rows: dict[int, list[tuple[float, float]]] = {}
    for y, start, end in extents(day_charts.distribution(country, name="a")):
        rows.setdefault(round(y / 16.8), []).append((start, end))
    assert len(rows) == (4 if means else 3)
    for ends in map(sorted, rows.values()):
        assert all(first[1] < second[0] for first, second in pairwise(ends))
        assert ends[-1][1] <= 72 * NARROW


@pytest.mark.parametrize("mean", [*LONG, -1e6, 3e9])
def test_marks_of_long_figures_are_not_cut_off(mean: float) -> None:
    price, size = unlike().columns[1], unlike().figures[1]
    price = replace(price, label_tonight=(mean, 0.0) * 10, label_before=())
    series = replace(size, values=(mean, 2 * mean) * 14, lows=(mean,) * 28, highs=(mean,) * 28)
    for drawn in (day_charts.distribution(price, name="a"), day_charts.series(series, name="a")):
        assert min(start for _, start, _ in extents(drawn)) >= 0

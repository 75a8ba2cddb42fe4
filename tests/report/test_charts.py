"""Charts of a page."""

import re
from dataclasses import replace
from datetime import date, timedelta

from daybreak.report import day_charts
from daybreak.report.charts import trend
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

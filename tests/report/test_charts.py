"""Charts of a page."""

from dataclasses import replace
from datetime import date, timedelta

from daybreak.report.charts import trend
from daybreak.report.night_rows import NightRow, row_of
from tests.report.nights import whole


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

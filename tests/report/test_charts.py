"""Charts of a page."""

from datetime import date, timedelta

from daybreak.report.charts import Point, trend


def points(*usd: float) -> list[Point]:
    first = date(2026, 1, 1)
    return [
        Point(day=first + timedelta(n), outcome="kept", score=0.5, hours=1.0, usd=dollars, planned_usd=1.0)
        for n, dollars in enumerate(usd)
    ]


def test_one_dear_night_does_not_flatten_the_others_and_is_told() -> None:
    dear, usual = trend(points(1, 2, 400, 1, 2)), trend(points(1, 2, 2, 1, 2))
    assert ">400<" in dear.replace(" 400", "400")
    assert ">300<" not in dear and ">200<" not in dear  # marks of an axis
    assert "400" not in usual

"""A version predicts clean rows of a day by its own code, in a process of its own."""

from pathlib import Path
from typing import Any, cast

import pytest

from daybreak.data.partitions import partitions
from daybreak.evaluation import own_predictions
from daybreak.storage.home import Home
from tests.extensions.router.test_answers import home_of_rows, live_in  # noqa: F401  the fixture
from tests.toy.nights import files_of_version
from tests.toy.own.card_payments import PastPayments

pytestmark = [pytest.mark.slow]


def test_rows_of_each_day_are_predicted_with_their_times(
    home_of_rows: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live_in(home_of_rows, monkeypatch)
    clean = home_of_rows / "nights" / "2025-01-11" / "data" / "clean"
    days = list(partitions(clean))[-2:]
    made = own_predictions.predictions(
        Home.here(), cast(Any, None), files_of_version(home_of_rows, 1), clean=clean, days=days
    )
    assert len(made) == len(days) == 2
    for rows, day in zip(made, days, strict=True):
        assert 0 < len(rows) <= own_predictions.MAX_ROWS
        assert {one.date() for one in rows[PastPayments().table.time].to_pylist()} == {day}

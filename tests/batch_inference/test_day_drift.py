"""Predictions of a day beside those of days before, some of which are not numbers."""

from datetime import date, timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from daybreak.batch_inference import day_drift
from daybreak.data.drift import MISSING
from daybreak.storage.home import Home

DAY = date(2025, 1, 10)
USUAL = [0.1, 0.2, 0.3, 0.4] * 100


def compared(home: Home, values: list[Any], *, before: list[Any]) -> dict[str, float]:
    day_drift.keep(home, DAY - timedelta(days=1), pa.table({"p": before}))
    found = day_drift.distances(home, DAY, pa.table({"p": pa.array(values)}), limit=0.35)
    return {one.column: one.value for one in found}


@pytest.mark.parametrize("lost", [nan, inf, -inf])
def test_predictions_that_are_not_finite_leave_the_distance_of_the_others_known(
    tmp_path: Path, lost: float
) -> None:
    found = compared(Home(tmp_path), [*USUAL[:100], *[lost] * 300], before=USUAL)
    assert found == {"p not finite": 0.75, "p": 0.0}


def test_a_model_that_predicts_no_number_at_all_is_far_from_the_day_before(tmp_path: Path) -> None:
    home = Home(tmp_path)
    day_drift.keep(home, DAY - timedelta(days=1), pa.table({"p": USUAL}))
    (found,) = day_drift.distances(home, DAY, pa.table({"p": [nan] * 400}), limit=0.35)
    assert (found.column, found.statistic, found.value) == ("p not finite", MISSING, 1.0)
    assert found.value > found.limit


def test_a_vector_counts_where_each_of_its_numbers_is_finite(tmp_path: Path) -> None:
    usual = [[low, 1 - low] for low in USUAL]
    assert compared(Home(tmp_path), usual, before=usual) == {"p": 0.0}
    found = compared(Home(tmp_path), [*usual[:200], *[[nan, 0.5]] * 200], before=usual)
    assert found == {"p not finite": 0.5, "p": 0.0}

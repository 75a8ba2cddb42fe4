"""A source of an example gives the same rows for a day, from wherever and whenever it is asked."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.contract.data_source import Source
from daybreak.contract.records import digest
from daybreak.data.partitions import PART
from tests.examples.test_demand import TODAY, meters
from tests.examples.test_fraud import payments
from tests.examples.test_language import nonsense

DAY = TODAY - timedelta(days=1)


@pytest.mark.parametrize("source", [meters, nonsense, payments])
def test_a_day_is_the_same_whenever_it_is_fetched(source: Callable[..., Source], tmp_path: Path) -> None:
    source().fetch(DAY, tmp_path / "one")
    later = source(start=DAY - timedelta(days=1), today=TODAY + timedelta(days=9))
    later.fetch(DAY - timedelta(days=1), tmp_path / "before")
    later.fetch(DAY, tmp_path / "two")
    assert digest(tmp_path / "one" / PART) == digest(tmp_path / "two" / PART)
